"""Stand-ins for what tests must hold in their own hands: the time, and where blocking work runs."""

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

import trio

from broker.clock import Clock
from broker.trace.refusals import Refusals
from storage.engines.port import EngineConnection
from storage.engines.sqlite import SqliteConnection, SqliteEngine
from storage.keys import Milliseconds
from storage.sql import EncodedRows, QueryResult, TableSize

T = TypeVar("T")


class FakeClock:
    """Wall-clock milliseconds that move only when told. Setting `now` moves the wall clock, and not the steady one."""

    def __init__(self, now_ms: int) -> None:
        self.now = now_ms
        self._steady = 1_000

    def __call__(self) -> Milliseconds:
        return Milliseconds(self.now)

    def steady_ms(self) -> int:
        return self._steady

    @property
    def clock(self) -> Clock:
        """This time, as services take it."""
        return Clock(self, self.steady_ms)

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds
        self._steady += milliseconds


async def run_inline(sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> T:
    """Blocking work on the loop: on a mock clock a task that waits for a thread counts as idle."""
    await trio.lowlevel.checkpoint()
    return sync_fn()


class RunSync(Protocol):
    """Runs a function that blocks, at a moment that a test decides."""

    def __call__(self, sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> Awaitable[T]: ...


class WorkerOnLoop:
    """Runs the functions of a store's writer or reader through `run_sync`. The disk takes no time of a mock clock."""

    def __init__(self, run_sync: RunSync, name: str) -> None:
        self._run = run_sync
        self._limiter = trio.CapacityLimiter(1) if name == "writer" else None

    def begin(self, function: Callable[[], T]) -> "JobOnLoop[T] | InlineJob[T]":
        return InlineJob(function) if self._run is run_inline else JobOnLoop(partial(self.run, function))

    async def run(self, function: Callable[[], T], _interrupt: Callable[[], object] | None = None) -> T:
        return await self._run(function, limiter=self._limiter)

    def end(self) -> None: ...


class InlineJob(Generic[T]):
    """A function of `run_inline` that runs when its end is waited for."""

    idle_seconds = 0.0

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self.seconds = 0.0

    async def ended(self, _interrupt: Callable[[], object] | None = None) -> T:
        await trio.lowlevel.cancel_shielded_checkpoint()
        began = perf_counter()
        try:
            return self._function()
        finally:
            self.seconds = perf_counter() - began


class JobOnLoop(Generic[T]):
    """A function that runs when its end is waited for."""

    idle_seconds = 0.0

    def __init__(self, run: Callable[[], Awaitable[T]]) -> None:
        self._run = run
        self.seconds = 0.0

    async def ended(self, _interrupt: Callable[[], object] | None = None) -> T:
        began = perf_counter()
        with trio.CancelScope(shield=True):
            try:
                return await self._run()
            finally:
                self.seconds = perf_counter() - began
        raise AssertionError("nobody cancels the scope")


def on_loop(run_sync: RunSync = run_inline) -> Callable[[str], WorkerOnLoop]:
    """The workers of a `Database` that run through `run_sync`."""
    return partial(WorkerOnLoop, run_sync)


def new_refusals(clock: Clock | None = None) -> Refusals:
    """Refusals without an audit log."""
    return Refusals(clock or Clock(), lambda _entry: None)


class OnTheLoop:
    """Runs blocking work on the event loop: reads and writes follow each other (tests/builders.py)."""


class HeldRunner(OnTheLoop):
    """Runs blocking work on the loop, and holds it for as long as a test wants.

    A commit is held before it runs, a read after it ran: what it found may be old by the time it is looked at.
    """

    def __init__(self) -> None:
        self.commits, self.reads = trio.Event(), trio.Event()
        self.commits.set()
        self.reads.set()
        #: Set while a commit is held.
        self.holds_commit = trio.Event()

    def hold_commits(self) -> None:
        self.commits, self.holds_commit = trio.Event(), trio.Event()

    def hold_reads(self) -> None:
        self.reads = trio.Event()

    def release_later_reads(self) -> None:
        """Reads that are held stay held; reads that begin from now on are not held."""
        self.reads = trio.Event()
        self.reads.set()

    async def __call__(self, sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> T:
        await trio.lowlevel.checkpoint()
        if limiter is not None:  # the writer's
            self.holds_commit.set()
            await self.commits.wait()
            return sync_fn()
        result = sync_fn()
        await self.reads.wait()
        return result


class BreakableEngine:
    """SQLite whose commits fail while `error` is set, as they do on a full or broken disk."""

    def __init__(self, engine: SqliteEngine) -> None:
        self.engine = engine
        self.error: Exception | None = None

    def migrate(self) -> None:
        self.engine.migrate()

    def open(self, *, read_only: bool) -> EngineConnection:
        return BreakableConnection(self, self.engine.open(read_only=read_only))


class BreakableConnection:
    def __init__(self, engine: BreakableEngine, connection: SqliteConnection) -> None:
        self._engine = engine
        self._connection = connection
        self._is_begun = False

    @property
    def driver(self) -> sqlite3.Connection:
        return self._connection.driver

    @property
    def gives_positions(self) -> bool:
        return self._connection.gives_positions

    @property
    def stores_rows_at_once(self) -> bool:
        return self._connection.stores_rows_at_once

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> QueryResult:
        return self._connection.execute(sql, parameters)

    @property
    def key_share(self) -> str:
        return self._connection.key_share

    def now_ms(self) -> str:
        return self._connection.now_ms()

    def stream(self, sql: str, parameters: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
        return self._connection.stream(sql, parameters)

    def encoded(self, rows: Sequence[Any]) -> EncodedRows:
        return self._connection.encoded(rows)

    def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Any] | EncodedRows) -> None:
        if self._engine.error is not None and not self._is_begun:  # a transaction of its own
            raise self._engine.error
        self._connection.insert_many(table, columns, rows)

    def insert_log(self, parts: Sequence[tuple[str, Sequence[str], Sequence[Any] | EncodedRows]], *, head: int) -> int:
        if self._engine.error is not None and not self._is_begun:  # a transaction of its own
            raise self._engine.error
        return self._connection.insert_log(parts, head=head)

    def given_head(self) -> int:
        return self._connection.given_head()

    def numbers_in(self, parameter: str) -> str:
        return self._connection.numbers_in(parameter)

    def texts_in(self, parameter: str) -> str:
        return self._connection.texts_in(parameter)

    def texts(self, texts: Iterable[str]) -> str:
        return self._connection.texts(texts)

    def given(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[str, Mapping[str, Any]]:
        return self._connection.given(table, columns, rows)

    def rows_at(
        self,
        table: str,
        columns: Sequence[str],
        positions: str,
        conditions: str,
        parameters: Mapping[str, Any],
        *,
        first: str = "",
    ) -> str:
        return self._connection.rows_at(table, columns, positions, conditions, parameters, first=first)

    def json_has(self, column: str, parameter: str) -> str:
        return self._connection.json_has(column, parameter)

    def put_many(self, table: str, columns: Sequence[str], key: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._connection.put_many(table, columns, key, rows)

    def json_matches(self, column: str, path: str, text: str, number: str) -> str:
        return self._connection.json_matches(column, path, text, number)

    def all_texts(self, column: str) -> str:
        return self._connection.all_texts(column)

    def json_any_named(self, column: str, member: str, parameter: str) -> str:
        return self._connection.json_any_named(column, member, parameter)

    def full_partitions(self) -> Sequence[range]:
        return self._connection.full_partitions()

    def drop_partition(self, part: range) -> None:
        self._connection.drop_partition(part)

    def size_bytes(self) -> tuple[int, int]:
        return self._connection.size_bytes()

    def table_sizes(self) -> Mapping[str, TableSize]:
        return self._connection.table_sizes()

    def gives_back(self) -> bool:
        return self._connection.gives_back()

    def give_back(self, pages: int) -> bool:
        return self._connection.give_back(pages)

    def forget_log(self) -> bool:
        return self._connection.forget_log()

    def begin(self, *, write: bool) -> None:
        self._connection.begin(write=write)
        self._is_begun = True

    def begin_read(self) -> None:
        self.begin(write=False)

    def savepoint(self, command: str) -> None:
        self._connection.savepoint(command)

    def commit(self) -> None:
        if self._engine.error is not None:
            raise self._engine.error
        self._connection.commit()
        self._is_begun = False

    def settle(self) -> Mapping[str, Any] | None:
        return self._connection.settle()

    def rollback(self) -> None:
        self._connection.rollback()
        self._is_begun = False

    def close(self) -> None:
        self._connection.close()
