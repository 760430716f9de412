"""`trunkline retention confirm` on the control socket (reference 27.7)."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from protocols.control.rooms import ControlRooms


async def _confirm(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    return {"jumped_seconds": await rooms.core.trusted_time.confirm()}


RETENTION_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "retention confirm": _confirm
}
