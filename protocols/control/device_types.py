"""Commands of the control socket about device types. `trunkline type` sends them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from broker.errors import DeviceTypeNotFound, NotFound
from protocols.control.naming import UnknownObject, device_called, named
from protocols.control.rooms import ControlRooms


class _Upload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device_type: str
    document: dict[str, Any]
    approve: bool = False


class _Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device_type: str
    version: int


class _Failures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device_or_type: str
    limit: int


async def _list(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    return await rooms.device_types.manifests.overview()


async def _upload(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Upload)
    with named("device type", wanted.device_type):
        return await rooms.device_types.manifests.upload(wanted.device_type, wanted.document, approve=wanted.approve)


async def _approve(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Approval)
    with named("device type", wanted.device_type):
        try:
            return await rooms.device_types.manifests.approve(wanted.device_type, wanted.version)
        except DeviceTypeNotFound:
            raise
        except NotFound as error:
            raise UnknownObject(f"version {wanted.version} of device type {wanted.device_type!r}") from error


async def _failures(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Failures)
    manifests, name = rooms.device_types.manifests, wanted.device_or_type
    try:
        return await manifests.failures(name, limit=wanted.limit)
    except NotFound:
        device = await device_called(rooms, name, kind="device or device type")
        return await manifests.failures(device.id, limit=wanted.limit)


DEVICE_TYPE_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "type list": _list,
    "type upload": _upload,
    "type approve": _approve,
    "type failures": _failures,
}
