"""The database over any engine: concurrent reads, and writes that commit together, one transaction at a time.

Writes wait in the open group. The writer takes the whole group, commits it in one transaction and wakes the loop once:
an idle system commits at once, a busy one commits many writes together. Rows of the message log commit in the same
groups (storage/journal.py).
"""

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog
import trio

from storage.ballast import Ballast
from storage.commit_delay import CommitDelay
from storage.commit_group import CommitGroup, StoreWork
from storage.conditions import conditional
from storage.durations import Durations
from storage.engines.port import StoreEngine
from storage.facts import FactRecord, StoreBehindError, StoreOvertakenError
from storage.group_writer import GroupWriter
from storage.leases import HeldLease, Holder
from storage.outages import Outage
from storage.peers import Peers
from storage.readers import READERS, Readers
from storage.sql import StoreError, StoreFullError
from storage.told import Told
from storage.transaction import Transaction
from storage.worker_thread import Job, Worker, WorkerThread

T = TypeVar("T")
#: If this many rows wait at the end of a commit, the next one begins before the senders are answered.
_AHEAD_ROWS = 100
_log = structlog.get_logger(__name__)


class DatabaseStatistics(msgspec.Struct, frozen=True):
    commits: int
    rows: int
    failures: int
    waiting_rows: int
    waiting_writes: int
    waiting_reads: int


class Database:
    """One writer, a few readers, and the group that is open for writing now."""

    def __init__(
        self,
        engine: StoreEngine,
        *,
        worker: Callable[[str], Worker] = WorkerThread,
        readers: int = READERS,
        asked_by: Callable[[], Hashable] = lambda: None,
        ballast: Ballast | None = None,
        tell: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """
        Args:
            engine: opens the connections.
            worker: makes what runs the functions that block, by its name: "writer" or "reader".
            readers: number of reads that run at once, and one more of `look_up`. One user gets at most half of them.
            asked_by: whom the task that reads works for, such as a user; None is the daemon itself.
            ballast: room on the disk that is kept for what deletes.
            tell: told what `open` is at, every few seconds.
        """
        self._engine = engine
        self._write_thread = worker("writer")
        self._writer = GroupWriter(engine, ballast, tell, base=lambda: self.base)
        self._readers = Readers(readers, worker, asked_by)
        self._closed = False
        self._wanted = trio.Event()
        self._delay = CommitDelay()
        self._gathered: trio.Event | None = None  # while a commit waits for more rows
        self._ahead: tuple[CommitGroup, Job[None]] | None = None  # is being committed already
        self._committing: CommitGroup | None = None
        self._peers: Peers | None = None
        self._commits = self._rows = self._failures = 0
        #: `CommitGroup.base` of the latest commit.
        self.base = 0
        self._failing = Outage("nothing_is_stored", "stored_again", counted="failed_commits", level="error")
        #: How long the commits took that succeeded, in the writer.
        self.commit_durations = Durations()
        #: The latest commit: when it succeeded, on trio's clock, and the error of a later one that failed.
        self.committed_at: float | None = None
        self.last_error: StoreError | None = None
        self.open_group = CommitGroup()
        self._commit_handlers: list[Callable[[CommitGroup], None]] = []
        self._hear: Callable[[Sequence[Any]], None] = _nobody_hears

    def on_commit(self, handler: Callable[[CommitGroup], None]) -> None:
        """Call `handler` on the loop after each successful commit, before anyone who waits for the commit is told."""
        self._commit_handlers.append(handler)

    def on_told(self, hear: Callable[[Sequence[Told]], None]) -> None:
        """Call `hear` on the loop with what the works of a commit told: after the handlers of `on_commit`, before
        anyone who waits for the commit is told, and also when they were cancelled."""
        self._hear = hear

    def share(self, peers: Peers) -> None:
        """Other nodes write, too. Call it before `open`; the engine is one whose connections are `SharedConnection`."""
        self._peers = self._writer.peers = peers

    def own_rows_from(self, head: int) -> int | None:
        """With several nodes: the first position of rows of this node whose commit, which gave `head`, has not ended
        for the loop; None: there are none."""
        groups = (self._writer.doubtful, self._committing, self._ahead and self._ahead[0])
        first = next((one for one in groups if one is not None and one.row_count), None)
        return None if first is None else head - first.row_count + 1

    def groups_under_way(self) -> list[CommitGroup]:
        """The groups whose commit has not ended for the loop, and the open one."""
        groups = (self._committing, self._ahead and self._ahead[0], self.open_group)
        return [one for one in groups if one is not None]

    async def open(self) -> None:
        """Bring the schema up to date and open the connections. Raises StoreError."""
        await self._write_thread.run(self._open)
        if self._peers is not None:
            self._peers.begin(self._writer.facts_upto)

    def _open(self) -> None:
        try:
            self._writer.open()
            self._readers.open(self._engine)
        except BaseException:  # whatever it is: no connection must stay open; raised again
            self._close()
            raise

    async def close(self) -> None:
        """Close a store whose writer does not run yet; the writer closes it at its own end."""
        await self._write_thread.run(self._close)
        self._end_threads()

    def _end_threads(self) -> None:
        self._write_thread.end()
        self._readers.end_threads()

    async def read(self, work: Callable[[Transaction], T], *, interrupt: Callable[[], object] | None = None) -> T:
        """Run `work` in a read transaction of its own, beside the writer and other readers: fairly by user.

        A caller that is cancelled waits for the end of `work`. `interrupt`, for a long one, is called then.
        """
        return await self._readers.read(self._readers.places, work, interrupt)

    async def look_up(self, work: Callable[[Transaction], T]) -> T:
        """As `read`, on a reader of its own: for a few rows by their keys, which everybody waits for, such as those of
        a token. So no search of any user delays it."""
        return await self._readers.read(self._readers.look_ups, work)

    # There are three kinds of writes. Rows are appended by the journal, and `write_nowait` writes what belongs to
    # them in their transaction. The works of `write` are serial: each reads, decides and writes as if it were alone.
    # Own works (`write_own`) are alone because only the holder of a lease writes what they write.

    async def write_own(self, holder: Holder, work: Callable[[Transaction], T], *, with_rows: bool = False) -> T:
        """As `write`, for a work that only the holder of a lease may write. `with_rows`: so are rows that were appended
        just before; without the lease nothing of their group is stored.

        Raises StaleLeaseError: another node has the lease. Nothing of the work is in the store.
        """
        return await self._write(work, holder.held, binds_rows=with_rows)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in the next group commit; return what it returned once that is durable.

        If `work` raises, what it wrote is undone, the rest of the group is kept, and the error is raised here. It tells
        a change that others keep in memory with `Transaction.tell`.
        """
        return await self._write(work)

    async def _write(
        self, work: Callable[[Transaction], T], held: HeldLease | None = None, *, binds_rows: bool = False
    ) -> T:
        if self._closed:
            raise StoreError("the store is closed")
        work = conditional(work)
        job, group = self.write_nowait(work), self.open_group
        job.held, job.binds_rows = held, binds_rows
        await group.ended.wait()
        if group.error is not None and not job.is_saved:
            raise type(group.error)(str(group.error)) from group.error
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    def write_nowait(
        self,
        work: Callable[[Transaction], Any],
        *,
        size: int = 0,
        holder: Holder | None = None,
        is_of_rows: bool = False,
    ) -> StoreWork:
        """Run `work` in the next group commit, without waiting: for what belongs to rows of the log that were appended
        just now. It is durable when they are. An error of `work` is its own, and nobody is told. `size` is in bytes:
        what a peer can make many of counts for the room that there is (`Journal.has_room`). `holder`: as for
        `write_own`. `is_of_rows`: when it fails, the rows are not stored, either, nor is anything else of the group;
        whoever waits for the commit is told. So it may fail for a reason that is rare."""
        job = StoreWork(work, None if holder is None else holder.held, is_of_rows=is_of_rows)
        if not self._closed:  # otherwise nothing of the group is kept
            self.open_group.works.append(job)
            self.open_group.bytes_held += size
            self.request_commit()
        return job

    async def forget_log(self) -> bool:
        """Have the engine's log hold no rows that are gone. False: not now, because somebody reads it."""
        group = self.open_group
        group.forgets_log = True
        self.request_commit()
        await group.ended.wait()
        return group.has_forgotten

    def request_commit(self) -> None:
        """Tell the writer that the open group is not empty."""
        self._wanted.set()
        if self._gathered is not None and self._delay.is_enough(self.open_group.row_count):
            self._gathered.set()

    async def commit_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the one writer. When it is cancelled, it commits what was accepted and closes the store."""
        task_status.started()
        try:
            while True:
                if self._ahead is None:
                    if not self._wanted.is_set():  # waiting for a set event would cost a turn of a busy loop
                        await self._wanted.wait()
                    if (until := self._delay.until(self.open_group.row_count, trio.current_time())) is not None:
                        await self._gather(until)
                await self._commit_open_group()
        finally:
            with trio.CancelScope(shield=True):
                while self._ahead is not None or self._wanted.is_set():
                    await self._commit_open_group()
                self._refuse_from_now_on()
                await self._write_thread.run(self._close)
                self._end_threads()

    def _refuse_from_now_on(self) -> None:
        self._closed = True
        self._readers.refuse()
        # A task that adds to the open group from now on must not wait for a commit that will never come.
        self.open_group = CommitGroup(error=StoreError("the store is closed"))
        self.open_group.ended.set()

    async def _gather(self, until: float) -> None:
        self._gathered = trio.Event()
        try:
            with trio.move_on_at(until):
                await self._gathered.wait()
        finally:
            self._gathered = None
        self._delay.waited(self.open_group.row_count)

    def _begin(self) -> tuple[CommitGroup, Job[None]]:
        """Take the open group, and have the writer's thread commit it."""
        group, self.open_group = self.open_group, CommitGroup()
        self._wanted = trio.Event()
        if group.messages:
            self._writer.encode(group)
        group.began = time.perf_counter()
        return group, self._write_thread.begin(partial(self._writer.commit, group))

    async def _commit_open_group(self) -> None:
        (group, job), self._ahead = self._ahead or self._begin(), None
        self._committing = group
        try:
            try:
                job = await self._ended(group, job)
            finally:
                if self._writer.is_doubt_settled:
                    await self._tell_late()
        except StoreOvertakenError as error:
            group.error = error
            self._take_back(group)
        except StoreError as error:
            group.error = self.last_error = error
            self._failures += 1
            self._failing.failed(error, **_help_with(error))
            self._take_back(group)
        except Exception as error:  # noqa: BLE001 - a bug in one write must not end the writer
            _log.exception("commit_failed", rows=group.row_count, works=len(group.works))
            group.error = self.last_error = StoreError(f"{type(error).__name__}: {error}")
            self._failures += 1
            self._take_back(group)
        else:
            self.commit_durations.observe(job.seconds)
            self.committed_at, self.last_error = trio.current_time(), None
            self._failing.succeeded()
            self._commits += 1
            self._rows += group.row_count
            if self.open_group.row_count >= _AHEAD_ROWS:
                self._ahead = self._begin()  # the thread writes while the loop tells of this one
            if self._peers is not None:
                await self._peers.publish(group)
            if group.row_count:
                self.base = group.base
            if group.base:
                group.settle()
            for handler in self._commit_handlers:
                _isolated(handler, group)
        self._tell_news(group.told, group.told_upto)
        self._committing = None
        # A callback may hold its group, for positions: the group must not hold it, or only the collector frees both.
        callbacks, group.callbacks = group.callbacks, []
        for callback in callbacks:
            _isolated(callback, group.error)
        group.ended.set()
        self._delay.committed(
            group.row_count,
            disk_seconds=job.idle_seconds,
            waiting=self.open_group.row_count,
            now=trio.current_time(),
        )

    async def _ended(self, group: CommitGroup, job: Job[None]) -> Job[None]:
        """Wait for the commit of a group. One that did not know what others had ended is tried again, or refused."""
        while True:
            try:
                await job.ended()
            except StoreBehindError as behind:
                if self._writer.is_doubt_settled:
                    await self._tell_late()
                assert self._peers is not None, "no other node writes"  # noqa: S101 - as the engine was told
                self._peers.heard(behind.facts)
                # Rows that came before the facts were heard wait in the open group, too.
                self.open_group.refused = self._peers.refusal(self.open_group, behind.facts) or self.open_group.refused
                if (refusal := self._peers.refusal(group, behind.facts)) is not None:
                    raise StoreOvertakenError(refusal) from None
                job = self._write_thread.begin(partial(self._writer.commit, group))
            else:
                return job

    def _tell_news(self, told: Sequence[Told | FactRecord], upto: int) -> None:
        if not told:
            return
        if self._peers is None:
            _isolated(self._hear, told)
        else:
            self._peers.committed(told, upto)

    def _take_back(self, group: CommitGroup) -> None:
        """The rows of a group got no positions: those behind them follow the rows before them, unless positions are
        tickets, of which none is given twice."""
        if self._writer.gives_positions:
            self.base -= group.row_count

    async def _tell_late(self) -> None:
        """Tell of a commit that was in doubt, before any later one."""
        writer = self._writer
        group, writer.doubtful, writer.is_doubt_settled = writer.doubtful, None, False
        if group is not None:
            if self._peers is not None:
                await self._peers.publish(group)
            if group.base:
                group.settle()
            for handler in self._commit_handlers:
                _isolated(handler, group)
            self._tell_news(group.late, group.told_upto)

    def _close(self) -> None:
        self._readers.close()
        self._writer.close()

    def statistics(self) -> DatabaseStatistics:
        return DatabaseStatistics(
            self._commits,
            self._rows,
            self._failures,
            self.open_group.row_count,
            len(self.open_group.works),
            self._readers.waiting,
        )


def _help_with(error: StoreError) -> dict[str, str]:
    if isinstance(error, StoreFullError):
        return {"help": "make room on the disk; a restart does not help"}
    return {}


def _nobody_hears(_told: Sequence[Told]) -> None:
    """No room is open."""


def _isolated(callback: Callable[[T], None], argument: T) -> None:
    """Call; log an exception, so that neither the other callbacks nor the writer fail with this one."""
    try:
        callback(argument)
    except Exception:  # noqa: BLE001 - an error of one caller must not end the writer
        _log.exception("commit_callback_failed", callback=repr(callback))
