"""Commands of the control socket about forwarding. `trunkline forward` and `trunkline edge` send them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from broker.errors import ValidationFailed, invalid
from broker.forwarding.edge_book import EdgeSeen, NewEdge
from config.limits import EDGE_DEVICES
from protocols.control.lines import EdgeLine, NewEdgeToken, OriginLine
from protocols.control.naming import named
from protocols.control.rooms import ControlRooms


class _Rewind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    forward: str
    position: int


class _Add(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    edge: str
    owner: str
    types: str = ""
    devices: int = EDGE_DEVICES


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    edge: str


class _Accept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    edge: str
    new_positions: bool = False


class _Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mid: str
    edge: str = ""


async def _forwards(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    return rooms.forwarding.forwarding.entries()


async def _rewind(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Rewind)
    if wanted.position < 0:
        raise ValidationFailed.of("position", invalid("must be at least 0"))
    with named("forward", wanted.forward):
        return await rooms.forwarding.forwarding.rewind(wanted.forward, wanted.position)


async def _edges(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    return [_line(one) for one in await rooms.forwarding.book.seen()]


async def _add(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Add)
    with named("user", wanted.owner):
        owner = await rooms.accounts.users.named(wanted.owner)
    with named("organization", wanted.types):
        _, token = await rooms.forwarding.book.add(NewEdge(wanted.edge, owner.id, wanted.types, wanted.devices))
    return NewEdgeToken(wanted.edge, token)


async def _renew(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Named)
    with named("edge", wanted.edge):
        _, token = await rooms.forwarding.book.renew(wanted.edge)
    return NewEdgeToken(wanted.edge, token)


async def _remove(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Named)
    with named("edge", wanted.edge):
        await rooms.forwarding.book.remove(wanted.edge)
    return None


async def _accept(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Accept)
    with named("edge", wanted.edge):
        record = await rooms.forwarding.book.accept(wanted.edge, new_positions=wanted.new_positions)
    return record.upto


async def _origin(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Origin)
    book = rooms.forwarding.book
    with named("message of an edge with the mid", wanted.mid):
        found = await book.origin(wanted.mid, wanted.edge)
    return OriginLine(book.mid_of(found), found.edge, found.store, found.remote_mid)


def _line(one: EdgeSeen) -> EdgeLine:
    record = one.record
    return EdgeLine(
        name=record.name,
        owner=one.owner,
        store=record.store or "",
        types=one.organization,
        devices=one.devices,
        devices_max=record.devices_max,
        messages=record.messages,
        dropped=record.dropped,
        upto=record.upto,
        seen_on=record.seen_on,
    )


FORWARDING_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "forward list": _forwards,
    "forward rewind": _rewind,
    "edge list": _edges,
    "edge add": _add,
    "edge token": _renew,
    "edge remove": _remove,
    "edge accept": _accept,
    "edge origin": _origin,
}
