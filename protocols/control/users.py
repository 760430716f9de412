"""Commands of the control socket about users. `trunkline user` sends them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from protocols.control.lines import LIST_MAX, UserLine
from protocols.control.naming import named
from protocols.control.rooms import ControlRooms
from storage.records import UserRecord


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # e-mail address or user name


async def _reset_second_factor(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    name = msgspec.convert(arguments, _Named).name
    with named("user", name):
        return await rooms.accounts.second_factors.reset(name)


class _User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str  # e-mail address, id or user name


async def _disable(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    name = msgspec.convert(arguments, _User).user
    with named("user", name):
        return _line(await rooms.accounts.disabling.disable(name))


async def _enable(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    name = msgspec.convert(arguments, _User).user
    with named("user", name):
        return _line(await rooms.accounts.disabling.enable(name))


class _Leaver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str  # the id: the audit log has the command, and keeps ids only
    even_last: bool = False


async def _show(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    name = msgspec.convert(arguments, _User).user
    with named("user", name):
        return _line(await rooms.accounts.users.named(name))


async def _delete(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Leaver)
    with named("user", wanted.user):
        user = await rooms.accounts.users.find(wanted.user)
        await rooms.leaving.leaving.delete(user, even_last=wanted.even_last, until_gone=True)
    return _line(user)


async def _reset_password(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    """The link with which the user sets a new password."""
    name = msgspec.convert(arguments, _User).user
    with named("user", name):
        reset = await rooms.accounts.resets.open_for(name)
    return f"{rooms.core.site.mailed_accounts_url}/{reset.path}?code={reset.code}"


async def _list(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    return [_line(user) for user in await rooms.accounts.users.listed(limit=LIST_MAX)]


def _line(user: UserRecord) -> UserLine:
    return UserLine(
        id=user.id,
        email=user.email,
        name=user.name,
        full_name=user.full_name,
        account_type=user.account_type,
        is_verified=user.email_verified_on is not None,
        is_disabled=user.disabled_on is not None,
        created_on=user.created_on,
    )


USER_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "user delete": _delete,
    "user disable": _disable,
    "user enable": _enable,
    "user list": _list,
    "user reset password": _reset_password,
    "user reset second-factor": _reset_second_factor,
    "user show": _show,
}
