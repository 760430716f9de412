"""State of the service: one answer to the first questions of an incident."""

from collections.abc import Mapping, Sequence

import msgspec

from broker.cluster.leases import NodeStatus
from broker.cluster.reports import NodeSeen
from broker.core import Core
from broker.operating.port import ListenerStatus, Machine, Room
from storage.transaction import Transaction

_DAY_MS = 86_400_000


class Consumer(msgspec.Struct, frozen=True):
    """A reader of the log, and how many rows it is behind."""

    name: str
    position: int
    behind: int


class Overview(msgspec.Struct, frozen=True):
    version: str
    now: int
    started_on: int
    problem: str  # why the daemon is not ready
    listeners: Sequence[ListenerStatus]
    consumers: Sequence[Consumer]
    room: Room
    retention_days: int
    full_on: int | None  # when the disk is full, as the store grows now and retention deletes
    statistics: Mapping[str, object]
    engine: str  # sqlite | postgresql
    node: NodeStatus | None  # None: no other daemon can be on the store
    nodes: Sequence[NodeSeen] = ()  # that serve together


def consumers_of(tx: Transaction) -> list[Consumer]:
    head = tx.messages.head()
    return [Consumer(name, position, max(0, head - position)) for name, position in tx.messages.consumers()]


async def overview(core: Core, machine: Machine, started_on: int) -> Overview:
    room, now_ms = await machine.room(), core.clock.now_ms()
    full_on = None
    if room.full_in_days is not None:
        full_on = now_ms + room.full_in_days * _DAY_MS
    return Overview(
        version=machine.version,
        now=now_ms,
        started_on=started_on,
        problem=await machine.problem(),
        listeners=machine.listeners(),
        consumers=await core.database.read(consumers_of),
        room=room,
        retention_days=core.settings.storage.retention_days,
        full_on=full_on,
        engine="postgresql" if core.settings.storage.is_postgresql else "sqlite",
        node=core.leases.status(),
        nodes=core.leases.nodes(),
        statistics={**core.life.statistics(), **machine.counters()},
    )
