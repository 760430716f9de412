"""The stores that forward to this one: which of them sends, and how each stands."""

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from broker.clock import Clock
from broker.errors import Conflict, StorageUnavailable, Unauthorized
from broker.forwarding.edge_refusals import ForwardLoop, OtherStore, StoreCopied
from broker.forwarding.wire import Greeting
from broker.secrets import token_hash
from config.limits import EDGES_MAX
from storage.database import Database
from storage.forwarding import EdgeRecord
from storage.sql import StoreError


class EdgeStatus(msgspec.Struct, frozen=True):
    """A store that forwards to this one, for its operator. `problem`: why its last request was refused."""

    name: str
    store: str
    messages: int
    dropped: int
    upto: int
    seen_on: int | None
    problem: str


class EdgeStatistics(msgspec.Struct, frozen=True):
    """Since the start."""

    batches: int
    again: int
    messages: int
    dropped: int
    refused: int
    actions: int
    waiting: int
    edges: tuple[EdgeStatus, ...]


@dataclass(slots=True)
class EdgeCounts:
    """Of all edges, since the start; `waiting`: requests that wait for Actions now."""

    batches: int = 0
    again: int = 0
    messages: int = 0
    dropped: int = 0
    refused: int = 0
    actions: int = 0
    waiting: int = 0


@dataclass(eq=False)
class Edges:
    """`store`: the id of this one."""

    _database: Database
    _clock: Clock
    store: str
    counts: EdgeCounts = field(default_factory=EdgeCounts)

    def __post_init__(self) -> None:
        self._status: dict[int, EdgeStatus] = {}
        self._loaded: set[int] = set()

    async def load(self) -> None:
        """Read them: another node may have changed some. Raises StoreError."""
        found = await self._database.read(lambda tx: tx.forwarding.edges(limit=EDGES_MAX))
        for edge in found:
            known = self._status.get(edge.key)
            if known is None or known.seen_on is None or (edge.seen_on or 0) > known.seen_on:
                self._status[edge.key] = _status(edge, "" if known is None else known.problem)
        gone = self._status.keys() - {edge.key for edge in found}
        for key in gone & self._loaded:  # others were added during the reading
            self.forget(key)
        self._loaded = {edge.key for edge in found}

    def statistics(self) -> EdgeStatistics:
        counts = self.counts
        return EdgeStatistics(
            counts.batches,
            counts.again,
            counts.messages,
            counts.dropped,
            counts.refused,
            counts.actions,
            counts.waiting,
            tuple(sorted(self._status.values(), key=lambda one: one.name)),
        )

    def note(self, edge: EdgeRecord, problem: str = "") -> None:
        """It was added or changed, or has sent."""
        self._status[edge.key] = _status(edge, problem)

    def note_problem(self, key: int, problem: str) -> None:
        """Say why its last request was not done, or no more."""
        if (known := self._status.get(key)) is not None:
            self._status[key] = replace(known, problem=problem)

    def forget(self, key: int) -> None:
        self._status.pop(key, None)

    async def authenticate(self, token: str) -> EdgeRecord:
        """Raises Unauthorized, StorageUnavailable."""
        hashed = token_hash(token)
        try:
            edge = await self._database.look_up(lambda tx: tx.forwarding.edge_of_token(hashed))
        except StoreError as error:
            raise StorageUnavailable.of(error) from error
        if edge is None:
            raise Unauthorized
        return edge

    def greet(self, edge: EdgeRecord, store: str, known: Collection[str] | None = None) -> Greeting:
        """The first thing that a sender asks; `known`: the batches that may be its last one. Raises Conflict."""
        try:
            self.refuse_others(edge, store)
            if known is not None:
                self.refuse_copies(edge, known)
        except Conflict as error:
            self.note_refused(edge.key, error)
            raise
        return Greeting(self.store, self._clock.now_ms(), edge.batch or "", edge.upto)

    def refuse_others(self, edge: EdgeRecord, store: str) -> None:
        """Raises Conflict: the request is not of the store of this edge."""
        if store == self.store:
            raise ForwardLoop(f"{edge.name} is this store itself, or another copy of it")
        if edge.store is not None and edge.store != store and not edge.accepts:
            raise OtherStore(edge.store)

    def refuse_copies(self, edge: EdgeRecord, known: Collection[str]) -> None:
        """Raises Conflict: none of the batches is the last one of this edge."""
        if edge.batch is None or edge.accepts or edge.batch in known:
            return
        raise StoreCopied(
            f"Everything up to position {edge.upto} of the sender is at the upstream. If the sender was restored:"
            f" trunkline edge accept {edge.name} --new-positions, at the upstream. If the upstream was restored:"
            f" trunkline edge accept {edge.name}, at the upstream, and then trunkline forward rewind NAME {edge.upto},"
            " at the sender"
        )

    def note_refused(self, key: int, error: Conflict) -> None:
        self.counts.refused += 1
        self.note_problem(key, str(error))


def _status(edge: EdgeRecord, problem: str) -> EdgeStatus:
    return EdgeStatus(edge.name, edge.store or "", edge.messages, edge.dropped, edge.upto, edge.seen_on, problem)
