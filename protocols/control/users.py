"""Commands of the control socket about users. `trunkline user` sends them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from protocols.control.devices import LIST_MAX
from protocols.control.rooms import ControlRooms


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # e-mail address or user name


async def _reset_second_factor(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    return await rooms.accounts.second_factors.reset(msgspec.convert(arguments, _Named).name)


class UserLine(msgspec.Struct, frozen=True):
    """A user as the operator sees it. The time is milliseconds since the epoch."""

    id: str
    email: str
    name: str
    full_name: str
    account_type: str
    is_verified: bool
    created_on: int


async def _list(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    return [
        UserLine(
            id=user.id,
            email=user.email,
            name=user.name,
            full_name=user.full_name,
            account_type=user.account_type,
            is_verified=user.email_verified_on is not None,
            created_on=user.created_on,
        )
        for user in await rooms.accounts.users.listed(limit=LIST_MAX)
    ]


USER_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "user list": _list,
    "user reset second-factor": _reset_second_factor,
}
