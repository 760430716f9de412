"""/names: what ids stand for, and /users/…/automations: all that acts on a user's devices (reference 27.21)."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, UnsetType

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import CONSOLE_ID, Caller
from broker.errors import PermissionDenied, ValidationFailed
from broker.ids import is_device_type_id, is_id
from broker.operating.names import Names
from broker.operating.room import OperatingRoom
from config.limits import AUTOMATIONS_SHOWN, NAMES_ASKED
from protocols.http.calls import USER, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.schema import Data, Id, Shape, about, ids, one_of
from storage.names import AutomationRecord
from storage.records import UserRecord

_KINDS: Final = (
    "device",
    "device type",
    "user",
    "application",
    "organization",
    "rule",
    "scene",
    "trial",
    "subscription",
)


class NameObject(Shape):
    shape = "Name"
    example = {"id": samples.DID, "kind": "device", "name": "Kitchen light", "isGone": False}

    id: str
    kind: Annotated[str, one_of(_KINDS)]
    name: Annotated[
        str,
        about(
            "Of a user the full name, or the e-mail address without one; of a subscription its description, or where "
            "it delivers"
        ),
    ]
    is_gone: Annotated[bool, about("A device that was deleted and can still be restored")]


class _Names(Shape):
    names: Annotated[list[NameObject], about("Without ids that do not exist, or that the caller may not know")]


class _Asked(Shape):
    ids: Annotated[tuple[str, ...], ids("Ids of anything", longest=NAMES_ASKED, example=samples.DID)]


class _Named(Shape):
    id: Id
    name: str


class AutomationObject(Shape, kw_only=True):
    shape = "Automation"
    example = {
        "kind": "rule",
        "id": samples.RULE,
        "name": "Dim",
        "enabled": True,
        "user": {"id": samples.UID, "name": "Ada Example"},
        "application": {"id": samples.AID, "name": "Dashboard"},
        "isOfConsole": False,
        "devices": [{"id": samples.DID, "name": "Kitchen light"}],
    }

    kind: Annotated[str, one_of(("rule", "scene"))]
    id: Id
    name: Annotated[str, about("Absent from what belongs to another user")] | UnsetType = UNSET
    enabled: bool
    user: Annotated[_Named, about("Whose it is")]
    application: Annotated[_Named, about("What made it")]
    is_of_console: Annotated[bool, about("The console made it")]
    devices: Annotated[list[_Named], about("The user's devices that it names")]


class _Automations(Shape):
    automations: Annotated[list[AutomationObject], about(f"At most {AUTOMATIONS_SHOWN} rules and as many scenes")]


class NameCalls(RestCalls):
    chapter = Chapter(
        "Names",
        "What ids stand for, for pages that people look at, and everything that acts on a person's devices.",
    )

    def __init__(self, accounts: AccountsRoom, operating: OperatingRoom) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._names: Names = operating.names

    async def _person(self, caller: Caller, uid: str) -> UserRecord:
        user = await self._users.find(uid, caller)
        await self._permissions.require_profile(caller, user.key)
        return user

    async def _at_console(self, caller: Caller) -> Names:
        if not caller.is_console:
            raise PermissionDenied("a token of the console")
        return self._names

    @RestCall(
        "GET",
        "/names",
        tokens=USER,
        on=_at_console,
        summary="What ids stand for",
        about="Of devices that the user owns or that are shared with the user, of published device types, of "
        "applications, of the user's rules, scenes and trials, of subscriptions of the user and of the applications of "
        "the user's organizations, of the members of these organizations and of those with whom a device is shared. "
        "The operator of the service at the console learns every name.",
    )
    async def names(self, caller: Caller, names: Names, query: _Asked) -> Data[_Names]:
        if len(query.ids) > NAMES_ASKED:
            raise ValidationFailed.of("ids", f"Invalid value: at most {NAMES_ASKED} ids")
        asked = [one for one in dict.fromkeys(query.ids) if is_id(one) or is_device_type_id(one)]
        found = await names.of(caller, asked)
        return Data(_Names([NameObject(one.id, one.kind, one.name, one.is_gone) for one in found]))

    @RestCall(
        "GET",
        "/users/{uid}/automations",
        tokens=USER,
        on=_person,
        summary="What acts on a user's devices",
        about="The user's rules and scenes, whichever application made them, and those of other users that name a "
        "device of the user.",
    )
    async def automations(self, user: UserRecord) -> Data[_Automations]:
        found = await self._names.automations(user.key)
        return Data(_Automations([_automation(one, user) for one in found]))


def _automation(one: AutomationRecord, user: UserRecord) -> AutomationObject:
    kind: Literal["rule", "scene"] = one.kind
    return AutomationObject(
        kind=kind,
        id=one.id,
        name=one.name if one.owner == user.key else UNSET,
        enabled=one.enabled,
        user=_Named(one.owner_id, one.owner_name),
        application=_Named(one.application_id, one.application_name),
        is_of_console=one.application_id == CONSOLE_ID,
        devices=[_Named(*device) for device in one.devices],
    )
