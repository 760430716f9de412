"""Leases of workers come to rest after nodes have come and gone, also where these are slow."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
from msgspec.json import encode
from trio.testing import MockClock

from broker.cluster.leases import Leases
from broker.cluster.membership import NodeMembership
from broker.cluster.reports import NodeReport
from storage.keys import Milliseconds
from storage.lease_table import LeaseTable
from storage.leases import NODE, HeldLease, LeaseRecord

SECONDS = 10.0
#: A node looks once a second; a busy machine adds so much to that.
SLOW_SECONDS = 4.0


class Table:
    """The leases of the store; implements what `LeaseTable` and `LeaseStore` are asked for."""

    def __init__(self) -> None:
        self.until: dict[str, float] = {}
        self.epochs: Counter[str] = Counter()
        self.holders: dict[str, str] = {}
        #: When each lease was taken, and by whom.
        self.taken: list[tuple[float, str, str]] = []

    async def run(self, work: Callable[[Any], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return work(self)

    def nodes(self) -> list[LeaseRecord]:
        return [self._record(f"{NODE}{name}", name, until) for name, until in sorted(self.until.items())]

    def of_workers(self, _names: object) -> list[LeaseRecord]:
        return [self._record(name, node, 0) for name, node in self.holders.items()]

    def _record(self, name: str, node: str, until: float) -> LeaseRecord:
        left = until - trio.current_time()
        report = encode(NodeReport(SECONDS)).decode()
        return LeaseRecord(name, node, node, self.epochs[name], Milliseconds(0), Milliseconds(1), left, "1", report)

    def take_worker(self, name: str, node: str, _instance: str) -> HeldLease | None:
        if name in self.holders:
            return None
        self.holders[name] = node
        self.epochs[name] += 1
        self.taken.append((trio.current_time(), name, node))
        return HeldLease(name, node, self.epochs[name])

    async def give_back(self, held: HeldLease) -> None:
        await trio.lowlevel.checkpoint()
        if self.holders.get(held.name) == held.node:
            del self.holders[held.name]

    def bury(self, node: str) -> None:
        self.until.pop(node, None)
        for name in [name for name, holder in self.holders.items() if holder == node]:
            del self.holders[name]


class Node:
    def __init__(self, table: Table, name: str, chance: random.Random) -> None:
        self.table, self.name, self.chance = table, name, chance
        self.member = NodeMembership(cast("LeaseTable", table), name, name, SECONDS, "1", now=trio.current_time)
        self.leases = Leases(self.member, are_held=False)
        self.scope = trio.CancelScope()

    async def serve(self) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._renew)
                while True:
                    nodes = self.table.nodes()
                    await self.member._take_workers(nodes, self.leases)
                    await self.member._give_away(nodes, self.leases, nursery)
                    await trio.sleep(min(1, SECONDS / 8) + self.chance.random() * SLOW_SECONDS)

    async def _renew(self) -> None:
        while True:
            self.table.until[self.name] = trio.current_time() + SECONDS
            await trio.sleep(SECONDS / 4 + self.chance.random())


@pytest.mark.parametrize("seed", [5, 65, 97])
async def test_after_nodes_have_come_and_gone_a_lease_moves_at_most_once(seed: int, autojump_clock: MockClock) -> None:
    """All nodes begin, one after the other, as after a failover; one of them ends, and comes back."""
    chance, table = random.Random(seed), Table()  # noqa: S311 - a seed for a test
    async with trio.open_nursery() as nursery:
        nodes = [Node(table, name, chance) for name in "abc"]
        for one in nodes:
            nursery.start_soon(one.serve)
            await trio.sleep(chance.random() * 2 * SECONDS)
        gone = chance.choice(nodes)
        gone.scope.cancel()
        await trio.sleep(SECONDS)
        table.bury(gone.name)
        await trio.sleep(chance.random() * SECONDS)
        nursery.start_soon(Node(table, gone.name, chance).serve)
        begun = trio.current_time()
        await trio.sleep(10 * SECONDS)
        nursery.cancel_scope.cancel()
    moved = [(at - begun, name) for at, name, _ in table.taken if at > begun]
    assert max(Counter(name for _, name in moved).values()) == 1
    assert max(at for at, _ in moved) < 5 * SECONDS
    shares = Counter(table.holders.values())
    assert len(shares) == len(nodes)
    assert max(shares.values()) - min(shares.values()) <= 1
