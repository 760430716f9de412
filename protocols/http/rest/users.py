"""/users: the caller's own profile, and what applications keep about users (reference 5)."""

from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import UNSET, Meta, Raw, UnsetType, field

from broker.accounts.granted import GrantedApplication
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.errors import Finding, PermissionDenied
from config.limits import APPLICATION_PROPERTIES_MAX_CHARACTERS
from protocols.http.calls import NOTHING, USER, USER_OR_APPLICATION, Answers, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Given, Rule
from protocols.http.rest.named import NAMED_USER
from protocols.http.schema import ID_PATTERN, Data, Id, Shape, Timestamp, about, absent_if_none, one_of, text
from storage.keys import UserKey
from storage.records import UserRecord

_APPLICATIONS: Final = "/users/{uid}/applications"
_PROPERTIES: Final = "/users/{uid}/properties"
_ABOUT_PROPERTIES: Final = "Whatever the application wants to keep; empty after removal"


def _own_application(given: Given) -> Iterator[Finding]:
    """An application sees its own properties and none of other applications (reference 5.2).

    Raises PermissionDenied.
    """
    aid = given.values["aid"]
    if aid is not None and given.caller is not None and aid != given.caller.application_id:
        raise PermissionDenied(f"properties of application {aid[:64]}")
    yield from ()


class UserObject(Shape):
    shape = "User"
    example = {
        "id": samples.UID,
        "name": "ada",
        "email": "ada@example.net",
        "fullName": "Ada Example",
        "accountType": "LOCAL",
        "createdOn": samples.TS,
        "modifiedOn": samples.TS,
    }

    id: Id
    name: Annotated[str, about("Unique user name")]
    email: Annotated[str, about("", format="email")]
    full_name: Annotated[str, about("Display name")]
    account_type: Annotated[str, about("LOCAL, or the name of the identity provider")]
    created_on: Timestamp
    modified_on: Timestamp
    language: (
        Annotated[str, about("Of the pages, as the person has chosen it; absent: as the browser wants it")] | UnsetType
    ) = UNSET


class UserProperties(Shape):
    shape = "UserProperties"
    example = {"uid": samples.UID, "aid": samples.AID, "properties": '{"theme":"dark"}'}

    uid: Id
    aid: Id
    properties: Annotated[str, text(_ABOUT_PROPERTIES, longest=APPLICATION_PROPERTIES_MAX_CHARACTERS)]


class _GrantedPermission(Shape):
    dtid: Annotated[str, about("A device type, * for every type, profile, or trials")]
    permissions: list[Annotated[str, one_of(("READ", "WRITE"))]]


class GrantedApplicationObject(Shape):
    shape = "GrantedApplication"
    example = {
        "aid": samples.AID,
        "name": "Light Board",
        "organization": "Acme",
        "permissions": [{"dtid": samples.DTID, "permissions": ["READ"]}],
        "sentences": ["See your devices of the type Light and their messages."],
        "howLong": "It keeps this, also while you do not use it, until you end it.",
    }

    aid: Id
    name: Annotated[str, about("Of the application")]
    organization: Annotated[str, about("Name of the application's organization, whose types are always granted")]
    permissions: Annotated[list[_GrantedPermission], about("What is granted besides")]
    sentences: Annotated[list[str], about("All that it may, in the words of the permission screen")]
    how_long: Annotated[str, about("How long it may, for people")]


class _GrantedApplications(Shape):
    applications: list[GrantedApplicationObject]


class _OfApplication(Shape):
    aid: (
        Annotated[
            str,
            about("The application of the token, and no other", minLength=1, maxLength=64),
            Rule(_own_application),
        ]
        | None
    ) = None


class _Kept(Shape, kw_only=True):
    example = {"properties": '{"theme":"dark"}'}

    # Only described: the value is not read.
    uid: Annotated[Raw, about("As in the path", type="string", pattern=ID_PATTERN)] = field(default_factory=Raw)
    aid: Annotated[Id, about("The application of the token"), Rule(_own_application)] | None = None
    properties: Annotated[str, Meta(max_length=APPLICATION_PROPERTIES_MAX_CHARACTERS, description=_ABOUT_PROPERTIES)]


class UserCalls(RestCalls):
    chapter = Chapter(
        "Users",
        "The person behind a user token, the applications that act for this person, and what an application keeps "
        "about its users.",
    )

    def __init__(self, accounts: AccountsRoom) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._granted = accounts.granted
        self._properties = accounts.properties

    @RestCall("GET", "/users/self", tokens=USER, on=NOTHING, summary="The caller's own profile")
    async def profile(self, caller: Caller) -> Data[UserObject]:
        return Data(profile_of(await self._users.self_of(caller)))

    @RestCall(
        "GET",
        _PROPERTIES,
        tokens=USER_OR_APPLICATION,
        on=NAMED_USER,
        query=_OfApplication,
        summary="What the application keeps about a user",
        about="404 before anything was kept, and after it was removed.",
    )
    async def properties(self, caller: Caller, user: UserRecord) -> Data[UserProperties]:
        return _answer(caller, user, await self._properties.get(caller, user.key))

    @RestCall(
        "POST",
        _PROPERTIES,
        tokens=USER_OR_APPLICATION,
        on=NAMED_USER,
        query=_OfApplication,
        summary="Keep something about a user",
        about="Creates or replaces, like PUT.",
    )
    @RestCall(
        "PUT",
        _PROPERTIES,
        tokens=USER_OR_APPLICATION,
        on=NAMED_USER,
        query=_OfApplication,
        summary="Replace what is kept about a user",
        about="Creates or replaces, like POST.",
    )
    async def put_properties(
        self,
        caller: Caller,
        user: UserRecord,
        body: _Kept,
    ) -> Data[UserProperties]:
        await self._properties.put(caller, user.key, body.properties)
        return _answer(caller, user, body.properties)

    @RestCall(
        "DELETE",
        _PROPERTIES,
        tokens=USER_OR_APPLICATION,
        on=NAMED_USER,
        query=_OfApplication,
        summary="Forget what is kept about a user",
        answers=Answers(example={"data": {"uid": samples.UID, "aid": samples.AID, "properties": ""}}),
    )
    async def remove_properties(self, caller: Caller, user: UserRecord) -> Data[UserProperties]:
        await self._properties.remove(caller, user.key)
        return _answer(caller, user, "")

    @RestCall(
        "GET",
        _APPLICATIONS,
        tokens=USER,
        on=NAMED_USER,
        summary="Applications that act for a user",
        about="All applications to which the user granted something, if the application of the token has WRITE on the "
        "profile; otherwise this application alone.",
    )
    async def applications(self, caller: Caller, user: UserRecord) -> Data[_GrantedApplications]:
        found = await self._granted.of(caller, user.key)
        return Data(_GrantedApplications(list(map(_application, found))))

    async def _application_of(self, caller: Caller, uid: str, aid: str) -> tuple[UserKey, GrantedApplication]:
        """The user and the application. Raises UserNotFound, NotFound, PermissionDenied."""
        user = await self._users.find(uid, caller)
        await self._permissions.require_user(caller, user.key)
        return user.key, await self._granted.find(caller, user.key, aid)

    @RestCall(
        "DELETE",
        f"{_APPLICATIONS}/{{aid}}",
        tokens=USER,
        on=_application_of,
        summary="Revoke an application",
        about="Ends what the user granted it, and every access and refresh token that it has for the user, at once; "
        "also the token of this call, if it is the application's own. Tokens of devices stay. Another application "
        "than the token's own needs WRITE on the profile.",
    )
    async def revoke_application(self, found: tuple[UserKey, GrantedApplication]) -> Data[GrantedApplicationObject]:
        user, application = found
        await self._granted.revoke(user, application.key)
        return Data(_application(application))


def _application(granted: GrantedApplication) -> GrantedApplicationObject:
    permissions = [
        _GrantedPermission(one.target, [name for name, has in (("READ", one.read), ("WRITE", one.write)) if has])
        for one in granted.permissions
    ]
    return GrantedApplicationObject(
        granted.id,
        granted.name,
        granted.organization,
        permissions,
        list(map(str, granted.sentences)),
        str(granted.how_long),
    )


def _answer(caller: Caller, user: UserRecord, properties: str) -> Data[UserProperties]:
    return Data(UserProperties(user.id, caller.application_id or "", properties))


def profile_of(user: UserRecord) -> UserObject:
    return UserObject(
        id=user.id,
        name=user.name,
        email=user.email,
        full_name=user.full_name,
        account_type=user.account_type,
        created_on=user.created_on,
        modified_on=user.modified_on,
        language=absent_if_none(user.language),
    )
