"""`trunkline backup` tells the running daemon that it begins, for the audit log (reference 27.9)."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from protocols.control.rooms import ControlRooms


class _Backup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file: str


async def _begin(_rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    """The server of the control socket writes the entry. The command copies the store itself, beside the daemon."""
    return msgspec.convert(arguments, _Backup).file


BACKUP_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {"backup": _begin}
