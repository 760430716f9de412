"""Leases: what one node does at a time, and the holder that knows whether it still may.

On SQLite one daemon has the store, so its leases are held from the beginning to the end: there are no rows of them, and
nothing is checked. Over PostgreSQL one lease stands for the whole daemon (broker/cluster/keeper.py). Whoever has it has
those of the workers, and each of its transactions begins by checking that one. Where several nodes serve, each lease of
a worker is a row of its own (broker/cluster/membership.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import msgspec
import trio

from broker.cluster.reports import NodeSeen
from storage.leases import HeldLease
from storage.sql import StaleLeaseError


class LeaseName(Enum):
    """The leases of the workers."""

    FOLDS = "folds"
    RULES = "rules"
    SUBSCRIPTIONS = "subscriptions"
    MAILS = "mails"
    MODELS = "models"
    CONNECTORS = "connectors"
    TASKS = "tasks"
    UPKEEP = "upkeep"
    FORWARDS = "forwards"


class NodeStatus(msgspec.Struct, frozen=True):
    """This daemon as one of those on a store. `standbys`: the names of the nodes that stand by; `nodes`: the names of
    all that serve together, with this one."""

    node: str
    lease_epoch: int
    lease_left_seconds: float
    latency_seconds: float  # of the latest renewal of the lease, one commit
    standbys: tuple[str, ...]
    #: Of the transaction in the database, also of others, that has been open longest.
    oldest_snapshot_seconds: float = 0.0
    nodes: tuple[str, ...] = ()
    #: Rows and facts of other nodes that this one has not published yet.
    behind_rows: int = 0
    behind_facts: int = 0
    is_draining: bool = False


class Deadline:
    """Until when the holder may act outside of the store. This one has no end."""

    def is_ahead(self) -> bool:
        return True

    async def wait_ahead(self) -> None:
        """Return when `is_ahead`."""

    def status(self) -> NodeStatus | None:
        """None where no other daemon can be on the store."""
        return None

    def nodes(self) -> tuple[NodeSeen, ...]:
        """The nodes that serve together; none where one daemon serves."""
        return ()


class Lease:
    """One lease as its worker sees it.

    A worker runs while the lease is held, and writes with `Database.write_own`. Before it sends something out of the
    store it asks `may_act`, because nobody can take that back: a node that was paused may have been replaced.
    """

    def __init__(self, name: LeaseName, deadline: Deadline | None = None, *, is_held: bool = True) -> None:
        self.name = name
        self._deadline = deadline or Deadline()
        self._row: HeldLease | None = None
        self._gained = trio.Event()
        self._runs = set[trio.CancelScope]()
        self._users, self._unused, self._is_leaving = 0, trio.Event(), False
        if is_held:
            self._gained.set()

    @property
    def is_held(self) -> bool:
        return self._gained.is_set()

    @property
    def held(self) -> HeldLease | None:
        """The row that a work of the holder is checked with; None: none. Raises StaleLeaseError: it is not held."""
        if not self.is_held and not self._is_leaving:
            raise StaleLeaseError(f"this node does not have the lease {self.name.value}")
        return self._row

    def gain(self, row: HeldLease | None) -> None:
        """This node holds it from now on."""
        self._row = row
        self._gained.set()

    def lose(self) -> None:
        """This node does not hold it any more."""
        if self.is_held:
            self._gained = trio.Event()
            for run in self._runs:
                run.cancel()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within the block a worker runs, or stores what it knows."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()
                self._unused = trio.Event()

    @contextmanager
    def until_lost(self) -> Iterator[None]:
        """The block is cancelled when the lease, which is held, is lost."""
        with trio.CancelScope() as run:
            self._runs.add(run)
            try:
                yield
            finally:
                self._runs.remove(run)

    @property
    def is_leaving(self) -> bool:
        """The workers end, and may still write: nobody else has it yet."""
        return self._is_leaving

    async def leave(self) -> None:
        """Have the workers end and store what they know. Afterwards another node may have it."""
        self._is_leaving = True
        try:
            self.lose()
            while self._users:
                await self._unused.wait()
        finally:
            self._is_leaving = False

    async def wait_gained(self) -> None:
        await self._gained.wait()

    def may_act(self) -> bool:
        """Whether nobody else can be the holder now, by a clock that nobody sets."""
        return self.is_held and self._deadline.is_ahead()

    async def wait_may_act(self) -> None:
        """Return when `may_act`: at once while the lease is held for longer. Call it before each send."""
        while not self.may_act():
            await self._gained.wait()
            await self._deadline.wait_ahead()


class Leases:
    """The leases of this daemon's workers."""

    def __init__(self, deadline: Deadline | None = None, *, are_held: bool = True) -> None:
        """`are_held`: from the beginning on; else each is gained by itself."""
        self._deadline = deadline or Deadline()
        self._of = {name: Lease(name, self._deadline, is_held=are_held) for name in LeaseName}
        #: For what each of several nodes does: while this one may act at all.
        self.here = Lease(LeaseName.CONNECTORS, self._deadline)

    def of(self, name: LeaseName) -> Lease:
        return self._of[name]

    def status(self) -> NodeStatus | None:
        """As `Deadline.status`."""
        return self._deadline.status()

    def nodes(self) -> tuple[NodeSeen, ...]:
        """As `Deadline.nodes`."""
        return self._deadline.nodes()

    def statistics(self) -> dict[str, bool]:
        return {name.value: lease.is_held for name, lease in self._of.items()}
