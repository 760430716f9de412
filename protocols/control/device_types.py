"""Commands of the control socket about device types. `trunkline type` sends them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

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
    return await rooms.device_types.manifests.upload(wanted.device_type, wanted.document, approve=wanted.approve)


async def _approve(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Approval)
    return await rooms.device_types.manifests.approve(wanted.device_type, wanted.version)


async def _failures(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Failures)
    return await rooms.device_types.manifests.failures(wanted.device_or_type, limit=wanted.limit)


DEVICE_TYPE_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "type list": _list,
    "type upload": _upload,
    "type approve": _approve,
    "type failures": _failures,
}
