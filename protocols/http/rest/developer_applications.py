"""/developer: the applications of a member's organizations (reference 27.21)."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Final

from msgspec import UNSET, UnsetType

from broker.accounts.applications import Method
from broker.accounts.organizations import TOO_MANY, ApplicationChanges, Membership, application_tag
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.errors import Finding, choice, invalid
from broker.subscriptions.creation import StreamsNotInstalled
from broker.subscriptions.room import SubscriptionsRoom
from broker.subscriptions.storing import TOO_MANY as TOO_MANY_SUBSCRIPTIONS
from broker.subscriptions.subscription import SubscriptionStatus
from config.limits import REDIRECT_URIS_MAX
from protocols.http.calls import USER, RestCall, RestCalls
from protocols.http.conditional import or_present, tagged
from protocols.http.openapi import samples
from protocols.http.reading import Given, Rule
from protocols.http.rest.developer import DEVELOPER, ORGANIZATION, CheckedName
from protocols.http.rest.named import OWN_ORGANIZATION
from protocols.http.rest.subscription_shapes import (
    NewSubscriptionBody,
    SubscriptionObject,
    subscription_object,
    wanted_subscription,
)
from protocols.http.schema import Amount, Data, Id, NumberedPage, Paging, Shape, about, absent_if_none, numbered
from storage.records import ApplicationRecord

_APPLICATION: Final = "/developer/applications/{aid}"
_METHODS: Final = tuple(method.value for method in Method)
_ACCESS: Final = ("READ", "WRITE")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"]+")
#: A browser would take these for a script, a document or a file.
_FORBIDDEN_SCHEMES: Final = {"about", "blob", "data", "file", "javascript", "vbscript"}
_URI_CHARACTERS: Final = 2_048
_PERMISSIONS_MAX: Final = 100


def _methods_are_known(given: Given) -> Iterator[Finding]:
    for index, one in enumerate(given.values["methods"] or ()):
        if one not in _METHODS:
            yield Finding(f"methods.{index}", (invalid(choice(_METHODS)),))


def _uris_are_absolute(given: Given) -> Iterator[Finding]:
    for index, one in enumerate(given.values["redirect_uris"] or ()):
        scheme = one.partition(":")[0].lower()
        if len(one) > _URI_CHARACTERS or _URI.fullmatch(one) is None or scheme in _FORBIDDEN_SCHEMES:
            yield Finding(f"redirectUris.{index}", ("must be an absolute URI, and lead to an application",))


def _permissions_have_a_type(given: Given) -> Iterator[Finding]:
    for index, one in enumerate((given.values["permissions"] or ())[: _PERMISSIONS_MAX + 1]):
        target, asked = (one.get("deviceType"), one.get("permissions")) if isinstance(one, dict) else (None, None)
        if index == _PERMISSIONS_MAX:
            yield Finding("permissions", (f"At most {_PERMISSIONS_MAX}",))
        elif not isinstance(target, str) or not target:
            yield Finding(
                f"permissions.{index}.deviceType", (invalid("must be an id, a unique name, *, profile or trials"),)
            )
        elif not isinstance(asked, list) or not asked or not all(access in _ACCESS for access in asked):
            yield Finding(f"permissions.{index}.permissions", (invalid(f"must be a list, {choice(_ACCESS)}"),))


_Methods = Annotated[list[str], about("How it gets tokens", example=["pkce"]), Rule(_methods_are_known)]
_Uris = Annotated[
    list[str],
    about(f"At most {REDIRECT_URIS_MAX}; the first is the main one", example=["https://app.example.org/callback"]),
    Rule(_uris_are_absolute),
]
_Permissions = Annotated[
    list[Any],
    about(
        "What it asks for: each with `deviceType` (an id, a unique name, `*`, `profile` or `trials`) and `permissions`",
        example=[{"deviceType": "*", "permissions": ["READ"]}],
        items={"type": "object"},
    ),
    Rule(_permissions_have_a_type),
]
_Manages = Annotated[
    bool, about("Its own tokens have an administrator's rights in the organization (property queries, tasks, plans, …)")
]
_AnyPort = Annotated[
    bool, about("A redirect URI of a loopback address fits with any port (RFC 8252, 7.3): for programs on computers")
]
_Secret = Annotated[str, about("The client secret, shown this once", example=samples.NONCE)]


class _Request(Shape):
    device_type: str
    permissions: list[str]


class ApplicationObject(Shape):
    shape = "Application"
    example = {
        "id": samples.AID,
        "name": "Light Board",
        "methods": ["pkce"],
        "redirectUris": ["https://app.example.org/callback"],
        "permissions": [{"deviceType": "*", "permissions": ["READ"]}],
        "anyLoopbackPort": False,
        "managesOrganization": False,
    }

    id: Id
    name: str
    methods: list[str]
    redirect_uris: list[str]
    permissions: list[_Request]
    any_loopback_port: _AnyPort
    manages_organization: _Manages


class NewApplicationObject(ApplicationObject):
    example = {**ApplicationObject.example, "clientSecret": samples.NONCE}

    client_secret: _Secret


class _NewApplication(Shape):
    example = {key: value for key, value in ApplicationObject.example.items() if key != "id"}

    name: CheckedName
    methods: _Methods | None = None
    redirect_uris: _Uris | None = None
    permissions: _Permissions | None = None
    any_loopback_port: _AnyPort | None = None
    manages_organization: _Manages | None = None


class _ApplicationChange(Shape):
    example = {"redirectUris": ["https://app.example.org/callback", "myapp://done"]}

    name: CheckedName | None = None
    methods: _Methods | None = None
    redirect_uris: _Uris | None = None
    permissions: _Permissions | None = None
    any_loopback_port: _AnyPort | None = None
    manages_organization: _Manages | None = None


class _Consequences(Shape, kw_only=True):
    example = {"users": 12, "tokens": 3, "rules": 4, "scenes": 0, "models": 0, "subscriptions": 1, "exports": 0}

    users: Annotated[Amount, about("Who granted it something; they would have to sign in to another application")]
    tokens: Annotated[Amount, about("Access tokens, whose connections end")]
    rules: Annotated[Amount, about("Made through it; with the models that the rules have")]
    scenes: Amount
    models: Amount
    subscriptions: Amount
    exports: Amount
    refusal: Annotated[str, about("Why it cannot be deleted; absent if it can be")] | UnsetType = UNSET


class _NewSecret(Shape):
    client_secret: _Secret


class DeveloperApplicationCalls(RestCalls):
    chapter = DEVELOPER

    def __init__(self, accounts: AccountsRoom, subscriptions: SubscriptionsRoom) -> None:
        self._organizations = accounts.organizations
        self._ends = accounts.application_ends
        self._subscriptions = subscriptions.subscriptions
        self._signers = subscriptions.signers

    async def _application(self, caller: Caller, aid: str) -> ApplicationRecord:
        return await self._organizations.application(caller, aid)

    @RestCall(
        "GET",
        f"{ORGANIZATION}/applications",
        tokens=USER,
        on=OWN_ORGANIZATION,
        summary="The applications of an organization",
    )
    async def applications(self, membership: Membership, query: Paging) -> NumberedPage[list[ApplicationObject]]:
        found = await self._organizations.applications(membership.organization.key)
        return numbered(found, query, lambda one: ApplicationObject(*_members(one)))

    @RestCall(
        "POST",
        f"{ORGANIZATION}/applications",
        tokens=USER,
        on=OWN_ORGANIZATION,
        summary="Create an application",
        about="One that an administrator makes manages the organization unless `managesOrganization` is false. The "
        "method `client_credentials` needs an administrator.",
        refusals={409: f"{TOO_MANY}."},
        is_secret=True,
    )
    async def create(self, caller: Caller, membership: Membership, body: _NewApplication) -> Data[NewApplicationObject]:
        made, secret = await self._organizations.add_application(
            caller, membership.organization, body.name, _changes(body, name=body.name)
        )
        return Data(NewApplicationObject(*_members(made), secret))

    @RestCall(
        "GET", _APPLICATION, tokens=USER, on=_application, summary="An application of an organization", is_tagged=True
    )
    async def show(self, application: ApplicationRecord) -> Data[ApplicationObject]:
        tagged(application_tag(application))
        return Data(ApplicationObject(*_members(application)))

    @RestCall(
        "PUT",
        _APPLICATION,
        tokens=USER,
        on=_application,
        summary="Change an application",
        about="Only the members that are sent change. Tokens that were issued stay. Adding the method "
        "`client_credentials` and changing `managesOrganization` need an administrator; so do the methods and redirect "
        "URIs of an application that manages the organization.",
        is_tagged=True,
        is_conditional=True,
    )
    async def change(
        self, caller: Caller, application: ApplicationRecord, body: _ApplicationChange
    ) -> Data[ApplicationObject]:
        async with or_present(partial(self._present, caller, application.id)):
            changed = await self._organizations.change_application(caller, application, _changes(body, name=body.name))
        tagged(application_tag(changed))
        return Data(ApplicationObject(*_members(changed)))

    async def _present(self, caller: Caller, aid: str) -> ApplicationObject:
        """The application as it is now, with its tag. Raises NotFound, PermissionDenied."""
        found = await self._organizations.application(caller, aid)
        tagged(application_tag(found))
        return ApplicationObject(*_members(found))

    @RestCall(
        "POST",
        f"{_APPLICATION}/secret",
        tokens=USER,
        on=_application,
        summary="Renew the client secret",
        about="The former secret ends at once. Tokens that were issued stay. An administrator renews the secret of an "
        "application that manages the organization, or has the method `client_credentials`.",
        is_secret=True,
    )
    async def renew(self, caller: Caller, application: ApplicationRecord) -> Data[_NewSecret]:
        return Data(_NewSecret(await self._organizations.renew_secret(caller, application)))

    @RestCall(
        "GET",
        f"{_APPLICATION}/deletion",
        tokens=USER,
        on=_application,
        summary="Say what deleting an application would end",
    )
    async def consequences(self, application: ApplicationRecord) -> Data[_Consequences]:
        found = await self._ends.consequences(application)
        return Data(_Consequences(**found.counts, refusal=absent_if_none(found.refusal)))

    @RestCall(
        "DELETE",
        _APPLICATION,
        tokens=USER,
        on=_application,
        summary="Delete an application",
        about="Its tokens and their connections, what users granted it, its subscriptions, exports, rules, scenes and "
        "models end at once. Devices, their tokens and their messages stay. An administrator deletes an application "
        "that manages the organization, or has the method `client_credentials`.",
        refusals={409: "A provision file makes the application, or no other one manages the organization."},
    )
    async def delete(self, caller: Caller, application: ApplicationRecord) -> Data[ApplicationObject]:
        return Data(ApplicationObject(*_members(await self._ends.delete(caller, application))))

    @RestCall(
        "POST",
        f"{_APPLICATION}/subscriptions",
        tokens=USER,
        on=_application,
        summary="Create a subscription of an application",
        about="As `POST /subscriptions` with a token of the application. For the caller's own devices, as far as the "
        "caller let the application in; for those of other users, who let it in, by an administrator.",
        refusals={
            404: "The application, the user, the device type or the device does not exist.",
            409: TOO_MANY_SUBSCRIPTIONS,
            501: StreamsNotInstalled.template,
        },
    )
    async def subscribe(
        self, caller: Caller, application: ApplicationRecord, body: NewSubscriptionBody
    ) -> Data[SubscriptionObject]:
        created = await self._subscriptions.create_for(caller, application, wanted_subscription(body))
        return Data(subscription_object(created, self._signers, status=SubscriptionStatus.PENDING))


def _changes(body: _NewApplication | _ApplicationChange, *, name: str | None) -> ApplicationChanges:
    asked = body.permissions
    return ApplicationChanges(
        name=name,
        methods=None if body.methods is None else [Method(one) for one in body.methods],
        redirect_uris=body.redirect_uris,
        permissions=None
        if asked is None
        else [{"device_type": one["deviceType"], "permissions": one["permissions"]} for one in asked],
        any_loopback_port=body.any_loopback_port,
        manages_organization=body.manages_organization,
    )


def _members(application: ApplicationRecord) -> tuple[str, str, list[str], list[str], list[_Request], bool, bool]:
    asked = [_Request(str(one["device_type"]), list(one["permissions"])) for one in application.permissions]  # type: ignore[call-overload]
    return (
        application.id,
        application.name,
        list(application.methods),
        list(application.redirect_uris),
        asked,
        application.any_loopback_port,
        application.manages_organization,
    )
