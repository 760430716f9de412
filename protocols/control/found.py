"""Commands of the control socket about devices that MQTT clients announce. `trunkline found` sends them."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from broker.errors import NotFound
from broker.found.clients import FoundDevice
from broker.found.finding import DeviceFinder
from protocols.control.lines import FoundLine
from protocols.control.naming import named
from protocols.control.rooms import ControlRooms


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    owner: str


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    found: str


def _finder(rooms: ControlRooms) -> DeviceFinder:
    if rooms.found.finder is None:
        raise NotFound
    return rooms.found.finder


async def _list(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _List)
    with named("user", wanted.owner):
        owner = await rooms.accounts.users.named(wanted.owner)
    if rooms.found.finder is None:
        return list[FoundLine]()
    finder = rooms.found.finder
    return [_line(finder, found) for _, found in finder.of_user(owner.key)]


async def _decide(decision: str, rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Named)
    with named("found device", wanted.found):
        finder = _finder(rooms)
        client, found = finder.find(wanted.found)
    if decision == "accept":
        return _line(finder, await finder.accept(client.owner, found.record.id))
    return _line(finder, await finder.ignore(client.owner, found.record.id))


def _line(finder: DeviceFinder, found: FoundDevice) -> FoundLine:
    definition, device = found.definition, finder.device_of(found)
    return FoundLine(
        id=found.record.id,
        name=found.record.name,
        model=found.record.model,
        status=found.record.status,
        device="" if device is None else device.id,
        fields=len(definition.manifest["fields"]),
        actions=len(definition.manifest["actions"]),
        problems=[f"{one.component}: {one.text}" for one in definition.problems],
    )


FOUND_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "found list": _list,
    "found accept": partial(_decide, "accept"),
    "found ignore": partial(_decide, "ignore"),
}
