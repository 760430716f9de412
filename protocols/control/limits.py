"""Use of limits, on the control socket. `trunkline limits` asks for it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from protocols.control.lines import LIST_MAX, LimitLine
from protocols.control.rooms import ControlRooms


async def _limits(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    return [
        LimitLine(one.what, one.whose, one.used, one.limit, one.opens_on, one.is_used_up)
        for one in await rooms.limits.overview.used(limit=LIST_MAX)
    ]


LIMIT_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {"limits": _limits}
