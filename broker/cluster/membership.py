"""A node among several that serve one store: its own lease, which says that it lives, and those of the workers.

Each node renews its lease four times before it is over, by PostgreSQL's clock. When one is over, any other node buries
it: the epoch grows, so nothing of it is stored any more, and its workers and connections are free. A node that has more
of the workers than its share ends some: they store what they know, and another node takes the lease. All nodes together
hold the lease of the whole daemon, so that none begins beside a daemon that serves alone.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.cluster.fenced import FencedError, ReplacedError
from broker.cluster.keeper import AWAY, AWAY_SECONDS, DAEMON, Candidate
from broker.cluster.kinds import AVAILABILITY, NODE_BURIED, Availability
from broker.cluster.leases import Lease, LeaseName, Leases, NodeStatus
from broker.cluster.renewal import Overdue, RenewedDeadline, boot_seconds
from broker.cluster.reports import LogHeads, NodeReport, NodeSeen, Report, nodes_seen
from broker.cluster.shared_clock import SharedClock
from broker.cluster.shares import candidates_of, takers, to_give_away
from storage.database import Database
from storage.keys import Milliseconds
from storage.lease_table import LeaseTable
from storage.leases import NODE, HeldLease, LeaseRecord, LeaseStore
from storage.outages import Outage
from storage.sql import StoreError
from storage.transaction import Transaction

#: The name of all nodes together as the holder of the lease of the daemon.
SEVERAL: Final = "(several nodes)"
_LOOK_SECONDS: Final = 0.2
#: Of the database's clock at a time, until one is quick.
_MEASUREMENTS: Final = 3
_FORGET_SECONDS: Final = 60.0
#: A lease that a node had to take back, because nobody else took it, stays for so long.
_KEPT_SECONDS: Final = 60.0
_log = structlog.get_logger(__name__)


class NodeMembership(RenewedDeadline):
    """Joins, keeps this node's lease, and leaves."""

    def __init__(
        self,
        table: LeaseTable,
        node: str,
        instance: str,
        seconds: float,
        version: str,
        *,
        works: Sequence[LeaseName] = tuple(LeaseName),
        now: Callable[[], float] = boot_seconds,
    ) -> None:
        """Arguments as of `Keeper`. `version`: of this daemon. `works`: the leases that it may take."""
        super().__init__(node, seconds, now)
        self._table = table
        self._instance = instance
        self._version = version
        self._overdue = Overdue(now, seconds)
        self._found: LeaseRecord | None = None
        self._works = tuple(one.value for one in works)
        self._free_since: dict[LeaseName, float] = {}  # when the lease was found free
        self._seen: tuple[NodeSeen, ...] = ()
        self._own = NodeReport()
        #: The clock of the database, which all nodes go by.
        self.clock = SharedClock()
        self._hurry = trio.Event()
        self._known: frozenset[tuple[str, int]] = frozenset()  # the nodes of the last look, with their epochs
        self._stays_until = 0.0  # no lease is given away before
        self._given: dict[LeaseName, float] = {}  # when they were given away last
        self.shared: HeldLease | None = None
        #: Asked at each renewal.
        self.report: Report = lambda _heads: NodeReport()
        #: Whether it leaves: it takes no more leases, and the others do not count on it.
        self.is_draining = False

    # The life of a node

    async def join(self, waiting: Candidate) -> Sequence[HeldLease]:
        """Wait until no daemon serves alone, and join. Returns the leases that each transaction needs.

        Raises StoreError: the store cannot be used, or a node of another version serves.
        """
        known = None
        while True:
            try:
                if (shared := await self._join()) is not None:
                    break
            except AWAY as error:
                known = None
                waiting.is_away(error)
                await trio.sleep(AWAY_SECONDS)
                continue
            waiting.answers()
            if (found := self._found) is not None and (found.node, found.epoch) != known:
                known = found.node, found.epoch
                waiting.stands_by(found)
            await trio.sleep(_LOOK_SECONDS)
        asked = self._now()
        name = f"{NODE}{self.node}"
        report = msgspec.json.encode(NodeReport(self._seconds, works=self._works)).decode()
        held = await self._table.take(
            name,
            self.node,
            self._instance,
            self._seconds,
            is_over=lambda _former: True,
            told=(self._version, report),
        )
        assert held is not None, "no other node has this name"  # noqa: S101 - `take` replaces a node of the same name
        await self._table.run(partial(_free, held))
        try:
            await self._check_versions()  # another one may have begun at the same time
        except StoreError:
            await self._table.leave(held, shared)
            raise
        await self.look()
        self.shared, self.held = shared, held
        self._note_renewed(asked)
        self._give_others_time()
        return shared, held

    async def _join(self) -> HeldLease | None:
        await self._check_versions()
        return await self._table.join(DAEMON, SEVERAL, self._seconds, is_over=self._is_free)

    async def _check_versions(self) -> None:
        """Raises StoreError: a node of another version serves."""
        for one in await self._table.run(_nodes):
            if one.node != self.node and one.version != self._version and one.seconds_left > 0:
                raise StoreError(
                    f"node {one.node} runs Trunkline {one.version}, and this one is {self._version}: nodes of several"
                    " versions do not serve together. Stop all nodes, and start them with one version"
                )

    def _is_free(self, former: LeaseRecord) -> bool:
        self._found = former
        return self._overdue.is_over(former)

    async def keep_forever(self) -> None:
        """Renew the leases. Raises FencedError: this node is buried or replaced, or could not renew them in time."""
        outage = Outage("lease_not_renewed", "lease_renewed_again")
        problem = "the database does not answer"

        async def end_when_over() -> None:
            while self.held is not None:
                if (left := self._seconds_left()) > 0:
                    await trio.sleep(left)
                    continue
                self._give_up()
                raise FencedError(
                    f"this node could not tell the others for {self._seconds:g} s (cluster.lease_seconds) that it"
                    f" lives: {problem}. Nothing that it acknowledged is lost. Started again, it joins them"
                )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_when_over)
            while (held := self.held) is not None and (shared := self.shared) is not None:
                with trio.move_on_after(self._seconds / 4):
                    await self._hurry.wait()
                self._hurry = trio.Event()
                problem = (
                    await self._renew_once(held, partial(self._renew, held, shared), self._table, outage) or problem
                )
            nursery.cancel_scope.cancel()

    async def _renew(self, held: HeldLease, shared: HeldLease) -> bool:
        heads = LogHeads(*await self._table.run(LeaseStore.heads))
        self._own = replace(
            self.report(heads),
            lease_seconds=self._seconds,
            is_draining=self.is_draining,
            works=self._works,
            latency_seconds=round(self._latency_seconds, 6),
        )
        report = msgspec.json.encode(self._own).decode()
        is_held = await self._table.run(partial(LeaseStore.renew, held=held, seconds=self._seconds, report=report))
        is_held = is_held and await self._table.renew(shared, self._seconds)
        await self.look()
        return is_held

    def status(self) -> NodeStatus:
        found = super().status()
        serving = {one.node for one in self._seen}  # a node that has waited before still has the name of one that does
        return replace(
            found,
            standbys=tuple(one for one in found.standbys if one not in serving),
            nodes=tuple(one.node for one in self._seen),
            behind_rows=self._own.behind_rows,
            behind_facts=self._own.behind_facts,
            is_draining=self.is_draining,
        )

    def nodes(self) -> tuple[NodeSeen, ...]:
        return self._seen

    async def look(self) -> None:
        """Look at the nodes now, and not at the next renewal only. Raises StoreError."""
        for _ in range(_MEASUREMENTS):
            asked = self.clock.steady_ms()
            self.clock.measured(asked, await self._table.run(_now_ms))
            if self.clock.is_exact:
                break
        self._seen = await self._table.run(_seen)

    def others_that_serve(self) -> tuple[str, ...]:
        """The names of the other nodes that live, as they were seen last, and do not leave."""
        return tuple(
            one.node
            for one in self._seen
            if one.node != self.node and not one.report.is_draining and one.heard_seconds < self._seconds
        )

    def drain(self) -> None:
        """Tell the others that this node leaves."""
        self.is_draining = True
        self._hurry.set()

    async def _fenced(self, held: HeldLease) -> FencedError:
        self._give_up()
        holder = daemon = None
        with suppress(StoreError):
            holder, daemon = await self._table.find(held.name), await self._table.find(DAEMON)
        if daemon is not None and daemon.node != SEVERAL:
            return FencedError(f"node {daemon.node} serves the store alone now, and this node was away for too long")
        if holder is not None and holder.instance != self._instance:
            return ReplacedError(
                f"another daemon with the name of this node, {self.node}, serves the store now: give each its own name"
                " (cluster.node)"
            )
        return FencedError(
            f"the other nodes have not heard of this one, {self.node}, for longer than cluster.lease_seconds, and go on"
            " without it. Nothing that it acknowledged is lost. Started again, it joins them"
        )

    def _give_up(self) -> None:
        super()._give_up()
        self.shared = None

    async def leave(self) -> None:
        """This node has stopped writing: its workers are free at once."""
        held, shared = self.held, self.shared
        self._give_up()
        if held is None or shared is None:
            return
        try:
            await self._table.leave(held, shared)
        except StoreError as error:  # it is over soon
            _log.warning("lease_not_given_back", reason=str(error))

    # The others

    async def look_after_forever(
        self,
        database: Database,
        leases: Leases,
        buried: Callable[[], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Bury the nodes that are silent, take the leases of workers that nobody has, and give away those beyond the
        share of this node.

        Args:
            database: of this node.
            leases: this node gains and loses them.
            buried: called when this node has buried one.
        """
        async with trio.open_nursery() as nursery:
            task_status.started()
            await self._look_forever(database, leases, buried, nursery)

    async def _look_forever(
        self, database: Database, leases: Leases, buried: Callable[[], Awaitable[None]], handing: trio.Nursery
    ) -> None:
        outage, forget_at = Outage("nodes_not_looked_after"), 0.0
        while True:
            try:
                nodes = await self._table.run(_nodes)
                for one in nodes:
                    if one.node != self.node and self._overdue.is_over(one) and await self._bury(one, database):
                        await buried()
                if self.is_draining:
                    self._give_all_away(nodes, leases, handing)
                else:
                    await self._take_workers(nodes, leases)
                    await self._give_away(nodes, leases, handing)
                if self._now() >= forget_at:
                    await self._table.forget_old_facts()
                    forget_at = self._now() + _FORGET_SECONDS
                outage.succeeded()
            except StoreError as error:
                outage.failed(error)
                self._give_others_time()
            await trio.sleep(min(1.0, self._seconds / 8))

    def _give_others_time(self) -> None:
        """The database was away, or may have been before this start: a node that renews again in time is not buried."""
        self._overdue.give_time(self._seconds / 2)

    async def _bury(self, record: LeaseRecord, database: Database) -> bool:
        """False: it was renewed since, or another node has done it."""
        # A process that stands still may hold locks.
        await self._table.end_sessions(record.instance)
        if is_buried := await database.write(partial(_bury, self.node, record, self.clock.now_ms())):
            _log.warning("node_buried", node=record.node, epoch=record.epoch)
        return is_buried

    async def _take_workers(self, nodes: Sequence[LeaseRecord], leases: Leases) -> None:
        """Take what is free: this node's part at once. That of another node is left to it for a while, since it may be
        slow: if it does not come, the lease goes back to the node that gave it away, and only then to a third one."""
        holders = await self._table.run(_holders)
        wanted = takers(_NAMES, holders, candidates_of(nodes, _NAMES))
        for name in LeaseName:
            lease = leases.of(name)
            if name.value not in self._works or lease.is_held or name.value in holders:
                self._free_since.pop(name, None)
                continue
            free_for = self._now() - self._free_since.setdefault(name, self._now())
            patience = self._seconds / 2 if self._has_given(name) else self._seconds
            if wanted.get(name.value) != self.node and free_for < patience:
                continue
            row = await self._table.run(partial(_take_worker, name.value, self.node, self._instance))
            if row is not None:
                del self._free_since[name]
                lease.gain(row)
                _log.info("lease_gained", lease=name.value, epoch=row.epoch)

    async def _give_away(self, nodes: Sequence[LeaseRecord], leases: Leases, handing: trio.Nursery) -> None:
        """Give one lease away, if another node lacks it, and the same nodes have lived for as long as a lease lasts."""
        living = frozenset((one.node, one.epoch) for one in nodes if one.seconds_left > 0)
        if living != self._known:
            self._known, self._stays_until = living, self._now() + self._seconds
        if self._now() < self._stays_until:
            return
        holders, candidates = await self._table.run(_holders), candidates_of(nodes, _NAMES)
        # A free one is about to be taken: else more would be given than the other node lacks.
        holders |= takers(_NAMES, holders, candidates)
        for name in to_give_away(self.node, _NAMES, holders, candidates):
            which = LeaseName(name)
            if self._has_given(which) or not leases.of(which).is_held:
                continue
            self._given[which] = self._now()
            self._stays_until = self._now() + self._seconds / 4
            handing.start_soon(self._hand_on, leases.of(which))  # others are buried beside it
            return

    def _has_given(self, name: LeaseName) -> bool:
        """Whether this node has given the lease away a short time ago."""
        return name in self._given and self._now() < self._given[name] + _KEPT_SECONDS

    def _give_all_away(self, nodes: Sequence[LeaseRecord], leases: Leases, handing: trio.Nursery) -> None:
        """Before this node ends: give away what others may take."""
        works = frozenset[str]().union(*candidates_of(nodes, _NAMES).values())
        for name in LeaseName:
            if name.value in works and leases.of(name).is_held:
                handing.start_soon(self._hand_on, leases.of(name))

    async def _hand_on(self, lease: Lease) -> None:
        """Have the workers of a lease end and store what they know; then another node may take it."""
        held = lease.held
        await lease.leave()
        outage = Outage("lease_not_given_back")
        while held is not None:
            try:
                await self._table.give_back(held)
            except StoreError as error:
                outage.failed(error)
                await trio.sleep(AWAY_SECONDS)
            else:
                _log.info("lease_given_away", lease=lease.name.value, epoch=held.epoch)
                return


_NAMES: Final = tuple(one.value for one in LeaseName)


def _nodes(leases: LeaseStore) -> list[LeaseRecord]:
    return leases.nodes()


def _seen(leases: LeaseStore) -> tuple[NodeSeen, ...]:
    return nodes_seen(leases.nodes(), _of_workers(leases))


def _of_workers(leases: LeaseStore) -> list[LeaseRecord]:
    return leases.of_workers(_NAMES)


def _now_ms(leases: LeaseStore) -> Milliseconds:
    return leases.now_ms()


def _holders(leases: LeaseStore) -> dict[str, str]:
    """The holders of workers' leases, by their names."""
    return {one.name: one.node for one in _of_workers(leases)}


def _take_worker(name: str, node: str, instance: str, leases: LeaseStore) -> HeldLease | None:
    return leases.take_worker(name, node, instance)


def _free(held: HeldLease, leases: LeaseStore) -> None:
    """This node begins: what it held before has ended."""
    leases.free(held.node)


def _bury(node: str, record: LeaseRecord, now_ms: Milliseconds, tx: Transaction) -> bool:
    if not tx.leases.bury(record):
        return False
    tx.mqtt_sessions.end_all(node=record.node)
    tx.mqtt_wills.take_over(node, record.node, tx.connection.now_ms())
    tx.lwm2m.end_all(record.node, now_ms=now_ms, head=tx.messages.head())
    devices = tx.device_connections.end_all(record.node)
    tx.devices.end_online_periods_of(devices)
    for device in devices:
        tx.tell(AVAILABILITY, Availability(device, "offline", now_ms))
    tx.tell(NODE_BURIED, record.node)
    return True
