"""Commands of the control socket about devices. `trunkline device` sends them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec

from broker.devices.inventory import DeviceChanges
from broker.devices.labels import ImportedDevice
from broker.devices.registry import Device
from config.limits import IMPORT_DEVICES_MAX
from protocols.control.lines import LIST_MAX, DeviceLine, ImportedLine
from protocols.control.naming import device_called, named
from protocols.control.rooms import ControlRooms


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device: str


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    owner: str | None = None  # e-mail address, id or user name
    limit: Annotated[int, msgspec.Meta(ge=1, le=LIST_MAX)] = LIST_MAX


async def _list(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _List)
    with named("user", wanted.owner):
        owner = None if wanted.owner is None else (await rooms.accounts.users.named(wanted.owner)).key
    return await _lines(rooms, await rooms.devices.registry.listed(owner=owner, limit=wanted.limit))


async def _show(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    return (await _lines(rooms, [await _device(rooms, arguments)]))[0]


async def _token(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    return (await rooms.devices.tokens.of(await _device(rooms, arguments))).token


async def _rotate(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    return (await rooms.devices.tokens.renew(await _device(rooms, arguments), application=None)).token


async def _switch(enabled: bool, rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    device = await _device(rooms, arguments)
    await rooms.devices.inventory.change(device, DeviceChanges(enabled=enabled))
    return (await _lines(rooms, [device]))[0]


async def _delete(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    device = await _device(rooms, arguments)
    line = (await _lines(rooms, [device]))[0]
    await rooms.devices.inventory.delete(device)
    return line


async def _device(rooms: ControlRooms, arguments: Mapping[str, Any]) -> Device:
    return await device_called(rooms, msgspec.convert(arguments, _Named).device)


async def _lines(rooms: ControlRooms, devices: list[Device]) -> list[DeviceLine]:
    presences = await rooms.devices.presence.of_all([device.key for device in devices])
    owners = {key: await rooms.accounts.users.find(id_) for key, id_ in {(one.owner, one.owner_id) for one in devices}}
    return [
        DeviceLine(
            id=device.id,
            name=device.record.name,
            device_type=device.type.record.unique_name,
            owner=owners[device.owner].email,
            enabled=device.enabled,
            availability=presences[device.key].availability,
            last_time_online=presences[device.key].last_time_online,
            created_on=device.record.created_on,
        )
        for device in devices
    ]


class _Import(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str  # of the CSV file
    owner: str  # e-mail address, id or user name
    accounts: str | None = None  # the address of the accounts paths, where it is not the daemon's own


async def _import(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Import)
    with named("user", wanted.owner):
        owner = await rooms.accounts.users.named(wanted.owner)
    made = await rooms.devices.labels.import_devices(wanted.text, owner)
    return _lines_of_labels(rooms, made, wanted.accounts)


class _Labels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    devices: Annotated[list[str], msgspec.Meta(min_length=1, max_length=IMPORT_DEVICES_MAX)]  # ids or names
    accounts: str | None = None


async def _labels(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Labels)
    devices = {one.key: one for one in [await device_called(rooms, name) for name in wanted.devices]}
    return _lines_of_labels(rooms, await rooms.devices.labels.renew(list(devices.values())), wanted.accounts)


def _lines_of_labels(rooms: ControlRooms, made: Sequence[ImportedDevice], accounts: str | None) -> list[ImportedLine]:
    root = (accounts or rooms.core.site.mailed_accounts_url).rstrip("/")
    return [
        ImportedLine(one.id, one.name, one.type, one.token, one.code, f"{root}/accept/label?code={one.code}")
        for one in made
    ]


DEVICE_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "device list": _list,
    "device show": _show,
    "device token": _token,
    "device rotate": _rotate,
    "device disable": partial(_switch, False),
    "device enable": partial(_switch, True),
    "device delete": _delete,
    "device import": _import,
    "device labels": _labels,
}
