"""/devices/…/status and /devices/…/presence: what a device did last, and whether it is there (reference 6.4)."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller, TokenKind
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import REQUIRED, DeviceNotFound, SourceDeviceDisabled, ValidationFailed, choice, invalid
from broker.messages.room import MessagesRoom
from broker.messages.status import DeviceStatus
from broker.routing.room import RoutingRoom
from config.limits import IDS_MAX
from protocols.http.calls import ANY_TOKEN, NOTHING, USER_OR_APPLICATION, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import has_value, members
from protocols.http.rest.named import named_device
from protocols.http.schema import Amount, BodyForm, Id, Shape, about, absent_if_none, ids, one_of, time_ms
from protocols.rendering import snapshot_object

_AVAILABILITIES: Final = ("online", "offline", "unknown")
_AVAILABILITY: Final = {"type": "string", "enum": list(_AVAILABILITIES)}


class _StatusData(Shape, kw_only=True):
    """Times of events that never happened are left out"""

    last_message_ts: Annotated[int, time_ms("The last message")] | UnsetType = UNSET
    last_action_ts: Annotated[int, time_ms("The last Action")] | UnsetType = UNSET
    availability: Annotated[str, one_of(_AVAILABILITIES)]
    last_time_online: Annotated[int, time_ms("Now while online, else the end of the last time online")] | UnsetType = (
        UNSET
    )
    snapshot: (
        Annotated[dict[str, Any], about("Fields by name, groups nested; each leaf is `{value, ts}`")] | UnsetType
    ) = UNSET


class DeviceStatusObject(Shape):
    shape = "DeviceStatus"
    example = {
        "did": samples.DID,
        "data": {
            "lastMessageTs": samples.TS,
            "lastActionTs": samples.CTS,
            "availability": "online",
            "lastTimeOnline": samples.CTS,
            "snapshot": {"state": {"value": True, "ts": samples.TS}},
        },
    }

    did: Id
    data: _StatusData


class _PresenceData(Shape, kw_only=True):
    last_seen_on: Annotated[int, time_ms("Its last message, connection or ping")] | UnsetType = UNSET
    connected: Annotated[bool, about("Whether it holds a persistent connection")]


class _Presence(Shape):
    example = {"sdid": samples.DID, "data": {"lastSeenOn": samples.TS, "connected": False}}

    sdid: Annotated[Id, about("The device")]
    data: _PresenceData


_WithSnapshot = Annotated[bool, about("Whether the last value of every field is told")]
_WithTimes = Annotated[bool, about("Whether those values come with their times")]


class _ShownWith(Shape):
    include_snapshot: _WithSnapshot = True
    include_snapshot_timestamp: _WithTimes = True


class _OfMany(Shape):
    dids: Annotated[tuple[str, ...], ids("Device ids", longest=IDS_MAX, example=samples.DID)]
    include_snapshot: _WithSnapshot = True
    include_snapshot_timestamp: _WithTimes = True


# All entries are in one answer. A docstring would be a description in the document.
class _Statuses(Shape):
    data: list[DeviceStatusObject]
    total: Annotated[Amount, about("Entries", example=1)]
    offset: Annotated[Amount, about("Always 0", example=0)]
    count: Annotated[Amount, about("Entries", example=1)]


class _Flat(Shape):
    availability: Raw = msgspec.field(default_factory=Raw)


class _Said(Shape):
    example = {"data": {"availability": "online"}}
    any_of = (BodyForm(("data",)), BodyForm(("availability",), about="The same, not wrapped"))

    data: Annotated[
        Raw, about("", type="object", required=["availability"], properties={"availability": _AVAILABILITY})
    ] = msgspec.field(default_factory=Raw)
    availability: Annotated[Raw, about("", **_AVAILABILITY)] = msgspec.field(default_factory=Raw)


class DeviceStatusCalls(RestCalls):
    chapter = Chapter(
        "Status",
        "Whether a device is there, and what it did last. A device is online while it holds a persistent connection; "
        "otherwise whichever happened last decides: what was set here, or the end of a connection.",
    )

    def __init__(
        self, accounts: AccountsRoom, devices: DevicesRoom, messages: MessagesRoom, routing: RoutingRoom
    ) -> None:
        self._permissions = accounts.permissions
        self._devices = devices.registry
        self._presence = devices.presence
        self._statuses = messages.statuses
        self._connections = routing.connections

    @RestCall(
        "GET", "/devices/{did}/status", tokens=ANY_TOKEN, on=named_device(Permission.READ), summary="Status of a device"
    )
    async def show(self, device: Device, query: _ShownWith) -> DeviceStatusObject:
        status = await self._statuses.of(device, with_snapshot=query.include_snapshot)
        return _status(device, status, with_ts=query.include_snapshot_timestamp)

    @RestCall(
        "PUT",
        "/devices/{did}/status",
        tokens=ANY_TOKEN,
        on=named_device(Permission.WRITE),
        summary="Say whether a device is there",
        about="For devices without a persistent connection. While there is one, offline has no visible effect.",
    )
    async def change(self, caller: Caller, device: Device, body: _Said) -> DeviceStatusObject:
        availability = _availability(body)
        if caller.kind is TokenKind.DEVICE and not device.enabled:
            raise SourceDeviceDisabled
        await self._presence.set(device.key, availability)
        return _status(device, await self._statuses.of(device), with_ts=True)

    @RestCall(
        "GET",
        "/devices/status",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Status of many devices",
        about="Devices that the caller may not read are left out and not counted.",
    )
    async def show_many(self, caller: Caller, query: _OfMany) -> _Statuses:
        reach = await self._permissions.reach(caller)
        found = [device for device in await self._existing(query.dids) if reach.allows(device, Permission.READ)]
        statuses = await self._statuses.of_all(found, with_snapshot=query.include_snapshot)
        entries = [
            _status(device, status, with_ts=query.include_snapshot_timestamp)
            for device, status in zip(found, statuses, strict=True)
        ]
        return _Statuses(entries, len(entries), 0, len(entries))

    @RestCall(
        "GET",
        "/devices/{did}/presence",
        tokens=ANY_TOKEN,
        on=named_device(Permission.READ),
        summary="Whether a device is connected",
    )
    async def presence(self, device: Device) -> _Presence:
        presence = await self._presence.of(device.key)
        seen_on = presence.last_seen_on
        # To this node, or, as the store has it, to another one.
        is_online = self._connections.is_online(device.key) or presence.is_connected
        return _Presence(device.id, _PresenceData(last_seen_on=absent_if_none(seen_on), connected=is_online))

    async def _existing(self, device_ids: tuple[str, ...]) -> list[Device]:
        """The devices that exist, each once."""
        found = []
        for device_id in dict.fromkeys(device_ids):
            try:
                found.append(await self._devices.find(device_id))
            except DeviceNotFound:
                continue
        return found


def _availability(said: _Said) -> str:
    """The availability, which is given in `data` or flat. Raises ValidationFailed."""
    path, given = "availability", said.availability
    if has_value(said.data):
        if not bytes(said.data).startswith(b"{"):
            raise ValidationFailed.of("data", invalid("must be an object"))
        path, given = "data.availability", members(bytes(said.data), _Flat).availability
    if not has_value(given):
        raise ValidationFailed.of(path, REQUIRED)
    try:
        value = msgspec.json.decode(given, type=str)
    except msgspec.DecodeError:
        raise ValidationFailed.of(path, invalid("must be a text")) from None
    if value not in _AVAILABILITIES:
        raise ValidationFailed.of(path, invalid(choice(_AVAILABILITIES)))
    return value


def _status(device: Device, status: DeviceStatus, *, with_ts: bool) -> DeviceStatusObject:
    snapshot = None if status.snapshot is None else snapshot_object(status.snapshot, with_ts=with_ts)
    data = _StatusData(
        last_message_ts=absent_if_none(status.last_message_ts),
        last_action_ts=absent_if_none(status.last_action_ts),
        availability=status.availability,
        last_time_online=absent_if_none(status.last_time_online),
        snapshot=absent_if_none(snapshot),
    )
    return DeviceStatusObject(device.id, data)
