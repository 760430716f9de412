"""Common parameters of searches of messages and of Actions (reference 9.3): owner or device, times, and page."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.envelope import Action, Message
from broker.errors import REQUIRED, Finding, PermissionDenied, invalid
from broker.messages.history import MessagePage, Search
from config.limits import CURSOR_MAX_CHARACTERS, IDS_MAX, PAGE_COUNT_DEFAULT, PAGE_COUNT_MAX
from protocols.http.openapi import samples
from protocols.http.reading import Given, Query, Rule
from protocols.http.schema import Shape, about, absent_if_none, ids, integer, one_of, spliced, text, time_ms
from storage.keys import Milliseconds, UserKey
from storage.message_searches import FieldMatch

_Entry = TypeVar("_Entry", Message, Action)
T = TypeVar("T")

FIELD_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
_ORDERS: Final = ("asc", "desc")

SearchedUser = Annotated[str, text("Whose devices; a user id, or self. By default the caller's", longest=64)]
SearchCount = Annotated[int, Meta(ge=1, le=PAGE_COUNT_MAX, description="Messages at most")]
_PRESENCE: Final = "Only messages with this field, groups separated by dots"
#: A value that is no path is refused, in contrast to `GET /messages/presence`.
FieldPresence = Annotated[str, Meta(pattern=FIELD_PATTERN, description=_PRESENCE)]
SearchedDevices = Annotated[tuple[str, ...], ids("Device ids", longest=IDS_MAX, example=samples.DID)]


class ByMid(Shape):
    mid: Annotated[str, text("One message by its id; everything but `uid` is ignored then", longest=64)]
    uid: SearchedUser | None = None


def _not_before_start(given: Given) -> Iterator[Finding]:
    start_ms, end_ms = given.values["start_date"], given.values["end_date"]
    if start_ms is not None and end_ms is not None and start_ms > end_ms:
        yield Finding("startDate", (invalid("must not be after endDate"),))


class InRange(Shape, kw_only=True):
    uid: SearchedUser | None = None
    start_date: Annotated[int, time_ms("Required without `mid`. From this time on", example=samples.TS)]
    end_date: Annotated[
        int, time_ms("Required without `mid`. Up to this time", example=samples.CTS), Rule(_not_before_start)
    ]
    order: Annotated[Literal["asc", "desc"], about("By ts")] = "asc"
    count: SearchCount = PAGE_COUNT_DEFAULT
    offset: Annotated[str, text("`next` or `prev` of an earlier answer", longest=CURSOR_MAX_CHARACTERS)] = ""


class Found(Shape, Generic[T], kw_only=True):
    # A page of a search. `count` is the requested size of the page, `size` the number of entries in it.
    mid: Annotated[str, about("When it was asked for")] | UnsetType = UNSET
    start_date: Annotated[int, integer()] | UnsetType = UNSET
    end_date: Annotated[int, integer()] | UnsetType = UNSET
    count: Annotated[int, integer("Size of the page that was asked for", lowest=1)]
    order: Annotated[str, one_of(_ORDERS)]
    next: (
        Annotated[
            str,
            text(
                "Cursor of the next page, if there is one. With conditions a page may be empty and have it",
                longest=CURSOR_MAX_CHARACTERS,
            ),
        ]
        | UnsetType
    ) = UNSET
    prev: (
        Annotated[str, text("Cursor of the page before, if there is one", longest=CURSOR_MAX_CHARACTERS)] | UnsetType
    ) = UNSET
    size: Annotated[int, integer("Messages in this answer", lowest=0)]
    data: list[T]


def found_example(device: str, entry: object) -> dict[str, object]:
    """An answer of a search of one device, whose parameter is called `device`."""
    return {
        "uid": samples.UID,
        device: samples.DID,
        "startDate": samples.TS,
        "endDate": samples.CTS,
        "count": PAGE_COUNT_DEFAULT,
        "order": "asc",
        "size": 1,
        "data": [entry],
    }


class SearchScope(msgspec.Struct, frozen=True):
    """The devices that a search is about, and their owner. `device_id` is given if the search is about one device."""

    uid: str | None = None
    device_id: str | None = None
    devices: list[Device] = msgspec.field(default_factory=list)


class Searches(Generic[_Entry]):
    """The two searches of messages, or of Actions."""

    def __init__(
        self,
        accounts: AccountsRoom,
        devices: DevicesRoom,
        device_parameter: str,
        by_mid: Callable[[str], Awaitable[tuple[_Entry, Device] | None]],
        in_range: Callable[[Search], Awaitable[MessagePage[_Entry]]],
        entry: Callable[[_Entry], bytes],
    ) -> None:
        self._permissions = accounts.permissions
        self._readable = Readable(accounts, devices)
        self._device_parameter = device_parameter
        self._by_mid: Callable[[str], Awaitable[tuple[_Entry, Device] | None]] = by_mid
        self._in_range: Callable[[Search], Awaitable[MessagePage[_Entry]]] = in_range
        self._entry: Callable[[_Entry], bytes] = entry

    async def chosen(self, caller: Caller, query: Query) -> SearchScope:
        """The devices that the query is about; of a search by id only the user."""
        if query.text("mid") is None:
            return await self._readable.chosen(caller, query, self._device_parameter)
        uid = query.text("uid")
        return SearchScope(None if uid is None else await self._readable.user_for(caller, uid))

    async def by_mid(self, caller: Caller, chosen: SearchScope, mid: str) -> tuple[_Entry | None, dict[str, Any]]:
        """The entry, if there is one, and the members of a `Found`. Raises PermissionDenied."""
        found = await self._by_mid(mid)
        members: dict[str, Any] = {"mid": mid, "count": PAGE_COUNT_DEFAULT, "order": _ORDERS[0]}
        if found is None or chosen.uid not in {None, found[1].owner_id}:
            return None, members | {"uid": absent_if_none(chosen.uid or caller.user_id), "size": 0, "data": []}
        entry, device = found
        await self._permissions.require(caller, device, Permission.READ)
        self._readable.note(caller, [device])
        return entry, members | {"uid": entry.uid, "size": 1, "data": spliced([self._entry(entry)])}

    async def in_range(self, chosen: SearchScope, query: InRange, match: FieldMatch) -> dict[str, Any]:
        """The members of a `Found`, without the device."""
        page = await self._in_range(
            Search(
                devices=chosen.devices,
                start_ms=Milliseconds(query.start_date),
                end_ms=Milliseconds(query.end_date),
                order=query.order,
                count=query.count,
                cursor=query.offset,
                match=match,
            )
        )
        return {
            "uid": absent_if_none(chosen.uid),
            "start_date": query.start_date,
            "end_date": query.end_date,
            "count": query.count,
            "order": query.order,
            "next": absent_if_none(page.next),
            "prev": absent_if_none(page.prev),
            "size": len(page.messages),
            "data": spliced(map(self._entry, page.messages)),
        }


class Readable:
    """Finds devices that the caller may read."""

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom) -> None:
        self._users = accounts.users
        self._devices = devices.registry
        self._permissions = accounts.permissions
        self._readers = devices.readers

    async def user_for(self, caller: Caller, uid: str) -> str:
        """The id of a user for whom the caller acts. A device acts for its owner.

        Raises UserNotFound, PermissionDenied.
        """
        user = await self._users.find(uid, caller)
        if caller.device is None:
            await self._permissions.require_user(caller, user.key)
        elif (await self._devices.get(caller.device)).owner != user.key:
            raise PermissionDenied("access to this user")
        return user.id

    async def chosen(self, caller: Caller, query: Query, parameter: str) -> SearchScope:
        """The device that `parameter` names, by default the caller itself; else the devices of the user `uid`."""
        uid = query.text("uid")
        device_id = query.text(parameter) or caller.device_id
        if device_id is not None:
            device = await self.device(caller, device_id)
            if uid is not None and (await self._users.find(uid, caller)).key != device.owner:
                query.refuse("uid", invalid("is not the owner of the device"))
            return SearchScope(device.owner_id, device.id, [device])
        if uid is None and caller.user is None:
            query.refuse("uid", REQUIRED)
            return SearchScope()
        user = await self._users.find(uid or "self", caller)
        await self._permissions.require_user(caller, user.key)
        return SearchScope(user.id, None, await self.owned(caller, user.key))

    async def owned(self, caller: Caller, user: UserKey) -> list[Device]:
        """The user's own devices that the caller may read."""
        reach = await self._permissions.reach(caller)
        found = [one for one in await self._devices.owned_by(user) if reach.allows(one, Permission.READ)]
        self.note(caller, found)
        return found

    async def source(self, caller: Caller, query: Query) -> Device | None:
        """The device `sdid`, by default the caller itself."""
        sdid = query.text("sdid") or caller.device_id
        return None if sdid is None else await self.device(caller, sdid)

    async def device(self, caller: Caller, device_id: str) -> Device:
        """A device that the caller may read. Raises DeviceNotFound, PermissionDenied."""
        device = await self._devices.find(device_id)
        await self._permissions.require(caller, device, Permission.READ)
        self.note(caller, [device])
        return device

    def note(self, caller: Caller, devices: list[Device]) -> None:
        """The caller reads messages of these devices."""
        self._readers.note(caller, devices)

    async def listed(self, caller: Caller, device_ids: Iterable[str]) -> list[Device]:
        """The listed devices, each once. Raises DeviceNotFound, PermissionDenied."""
        devices = [await self._devices.find(device_id) for device_id in dict.fromkeys(device_ids)]
        reach = await self._permissions.reach(caller)
        for device in devices:
            if not reach.allows(device, Permission.READ):
                raise PermissionDenied(f"READ on device {device.id}")
        self.note(caller, devices)
        return devices
