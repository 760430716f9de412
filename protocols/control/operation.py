"""Commands of the control socket about the daemon itself: limits, the backup and retention."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from protocols.control.lines import LIST_MAX, LimitLine
from protocols.control.rooms import ControlRooms


class _Backup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file: str


async def _begin_backup(_rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    """`trunkline backup` says that it begins: the server of the control socket writes the audit entry (reference 27.9).

    The command copies the store itself, beside the daemon.
    """
    return msgspec.convert(arguments, _Backup).file


async def _limits(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    return [
        LimitLine(one.what, one.whose, one.used, one.limit, one.opens_on, one.is_used_up)
        for one in await rooms.limits.overview.used(limit=LIST_MAX)
    ]


async def _confirm_retention(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    """See reference 27.7."""
    return {"jumped_seconds": await rooms.core.trusted_time.confirm()}


OPERATION_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "backup": _begin_backup,
    "limits": _limits,
    "retention confirm": _confirm_retention,
}
