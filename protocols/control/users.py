"""Commands of the control socket about users. `trunkline user` sends them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from protocols.control.rooms import ControlRooms


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # e-mail address or user name


async def _reset_second_factor(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    return await rooms.accounts.second_factors.reset(msgspec.convert(arguments, _Named).name)


USER_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "user reset second-factor": _reset_second_factor,
}
