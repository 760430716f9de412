"""Commands of the control socket about applications. `trunkline app` sends them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from protocols.control.lines import LIST_MAX, ApplicationLine
from protocols.control.rooms import ControlRooms


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    application: str  # an id, or a name that only one application has


async def _list(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    found = [application.record for application in await rooms.accounts.applications.listed(limit=LIST_MAX)]
    return [ApplicationLine(one.id, one.name, one.methods, one.redirect_uris) for one in found]


async def _secret(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    application = await rooms.accounts.applications.named(msgspec.convert(arguments, _Named).application)
    return rooms.core.vault.open(application.record.secret)


APPLICATION_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "app list": _list,
    "app secret": _secret,
}
