"""The database over any engine: concurrent reads, and writes that commit together, one transaction at a time.

Writes wait in the open group. The writer takes the whole group, commits it in one transaction and wakes the loop once:
an idle system commits at once, a busy one commits many writes together. Rows of the message log commit in the same
groups (storage/journal.py).
"""

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
import structlog
import trio

from storage.ballast import Ballast, makes_room
from storage.commit_delay import CommitDelay
from storage.commit_group import CommitGroup, StoreWork
from storage.conditions import conditional
from storage.durations import Durations
from storage.engines.port import SharedConnection, StoreEngine
from storage.facts import FactRecord, StoreBehindError, StoreOvertakenError
from storage.keys import Position
from storage.leases import HeldLease, Holder
from storage.messages import Missing
from storage.outages import Outage
from storage.peers import Peers
from storage.readers import READERS, TRIES, Readers
from storage.sql import StoreDamagedError, StoreDoubtfulError, StoreError, StoreFullError, StoreLostError
from storage.tables import check_finished
from storage.told import NotReadError, Tellable, Told, read_told
from storage.transaction import Transaction
from storage.worker_thread import Job, Worker, WorkerThread

T = TypeVar("T")
#: A start that indexes at least this many rows is logged.
_MANY_POSITIONS = 200_000
#: And how far it is, so often.
_TELL_SECONDS = 5.0
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
        self._ballast, self._tell = ballast, tell
        self._has_ballast = True
        self._readers = Readers(readers, worker, asked_by)
        self._writer: Transaction | None = None
        self._closed = False
        self._wanted = trio.Event()
        self._delay = CommitDelay()
        self._gathered: trio.Event | None = None  # while a commit waits for more rows
        self._ahead: tuple[CommitGroup, Job[None]] | None = None  # is being committed already
        self._committing: CommitGroup | None = None
        #: Other nodes that write; and what the writer's thread knows of them.
        self._peers: Peers | None = None
        self._shared: SharedConnection | None = None
        self._facts_upto = 0
        self._commits = self._rows = self._failures = 0
        #: A group whose commit is in doubt; its senders are refused. And whether it turned out to be in the store.
        self._doubtful: CommitGroup | None = None
        self._is_doubt_settled = False
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
        self._peers = peers

    def own_rows_from(self, head: int) -> int | None:
        """With several nodes: the first position of rows of this node whose commit, which gave `head`, has not ended
        for the loop; None: there are none."""
        groups = (self._doubtful, self._committing, self._ahead and self._ahead[0])
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
            self._peers.begin(self._facts_upto)

    def _open(self) -> None:
        self._engine.migrate()
        try:
            self._writer = Transaction(self._engine.open(read_only=False))
            check_finished(self._writer.connection, str(self._engine))
            if self._peers is not None:
                self._begin_sharing(self._writer)
            if self._ballast is not None:
                self._has_ballast = self._ballast.take()
            _index_all(self._writer, self._tell)
            self._readers.open(self._engine)
        except BaseException:  # whatever it is: no connection must stay open; raised again
            self._close()
            raise

    def _begin_sharing(self, transaction: Transaction) -> None:
        """Reads of the store have all facts up to the latest one from here on."""
        self._shared = shared = cast("SharedConnection", transaction.connection)
        shared.begin(write=True)
        try:
            self._facts_upto, fence = transaction.facts.latest()
        finally:
            shared.rollback()
        shared.fence = fence

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
        if group.messages and self._writer is not None:
            # On the loop: its processor has the rows in its cache, and while the writer's thread makes this, the loop
            # waits for the interpreter lock as long. After an error the writer tries it, and the senders are told.
            with suppress(Exception):
                group.encoded = self._writer.connection.encoded(group.messages)
        group.began = time.perf_counter()
        return group, self._write_thread.begin(partial(self._commit, group))

    async def _commit_open_group(self) -> None:
        (group, job), self._ahead = self._ahead or self._begin(), None
        self._committing = group
        try:
            try:
                job = await self._ended(group, job)
            finally:
                if self._is_doubt_settled:
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
                if self._is_doubt_settled:
                    await self._tell_late()
                assert self._peers is not None, "no other node writes"  # noqa: S101 - as the engine was told
                self._peers.heard(behind.facts)
                # Rows that came before the facts were heard wait in the open group, too.
                self.open_group.refused = self._peers.refusal(self.open_group, behind.facts) or self.open_group.refused
                if (refusal := self._peers.refusal(group, behind.facts)) is not None:
                    raise StoreOvertakenError(refusal) from None
                job = self._write_thread.begin(partial(self._commit, group))
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
        if self._writer is not None and self._writer.connection.gives_positions:
            self.base -= group.row_count

    def _commit(self, group: CommitGroup) -> None:
        transaction = self._writer
        if transaction is None:
            raise StoreError("the store is not open")
        if group.refused:
            raise StoreOvertakenError(group.refused)
        if self._doubtful is not None and not self._is_doubt_settled:
            self._settle(transaction, self._doubtful)
        for _ in range(TRIES - 1):
            with suppress(StoreLostError):
                return self._try_commit(transaction, group)
            for job in group.works:
                job.error = job.result = None
        return self._try_commit(transaction, group)

    def _settle(self, transaction: Transaction, group: CommitGroup) -> None:
        """Ask for the outcome of a commit that was in doubt. Raises StoreDoubtfulError: it still is."""
        row = transaction.connection.settle()
        if row is None:
            self._doubtful = None
            return
        if group.row_count:
            group.base = int(row["head"]) - group.head
        if self._shared is not None and group.told_upto:
            self._facts_upto, self._shared.fence = group.told_upto, group.fence
        self._is_doubt_settled = True  # its senders were refused; the loop tells the others of it

    async def _tell_late(self) -> None:
        """Tell of a commit that was in doubt, before any later one."""
        group, self._doubtful, self._is_doubt_settled = self._doubtful, None, False
        if group is not None:
            if self._peers is not None:
                await self._peers.publish(group)
            if group.base:
                group.settle()
            for handler in self._commit_handlers:
                _isolated(handler, group)
            self._tell_news(group.late, group.told_upto)

    def _try_commit(self, transaction: Transaction, group: CommitGroup) -> None:
        try:
            missing = transaction.messages.missing_too_many(Position(group.head + self.base))
            group.told = self._commit_together(transaction, group, group.works, missing)
        except StoreBehindError as behind:
            raise (behind if behind.facts else self._behind(transaction)) from None
        except (StoreDamagedError, NotReadError):
            self._commit_apart(transaction, group)
        except StoreFullError:
            self._make_room(transaction, group, group.works)
            raise
        if refused := [job for job in group.works if isinstance(job.error, StoreFullError)]:
            self._make_room(transaction, group, refused)
        if not self._has_ballast and self._ballast is not None:  # room that is there again is first for deleting
            self._has_ballast = self._ballast.take()
        if group.forgets_log:
            with suppress(StoreError):  # somebody reads it
                group.has_forgotten = transaction.connection.forget_log()
        group.encoded = None  # as large as the rows, which live on until all are told

    def _commit_apart(self, transaction: Transaction, group: CommitGroup) -> None:
        """Commit the rows with the works that are of them, then each other work: one of them has met damage, and SQLite
        takes nothing after that."""
        of_rows = [job for job in group.works if job.is_of_rows]
        for job in of_rows:
            job.error = job.result = None
        group.told += self._commit_together(transaction, group, of_rows)
        nothing = CommitGroup()
        for job in (one for one in group.works if not one.is_of_rows):
            job.error = job.result = None
            try:
                group.told += self._commit_together(transaction, nothing, (job,))
                group.told_upto = self._facts_upto
            except StoreBehindError as behind:
                group.told += behind.facts
                group.told_upto, job.error = self._facts_upto, StoreError(str(behind))
            except StoreError as error:
                job.error = job.error or error

    def _make_room(self, transaction: Transaction, group: CommitGroup, works: Sequence[StoreWork]) -> None:
        """The disk is full: commit those of the works that delete, each alone, in the room that is kept for them."""
        deleting = [job for job in works if job.context.get(makes_room, False)]
        if self._ballast is None or not deleting:
            return
        self._ballast.give_up()
        for job in deleting:
            job.error = job.result = None
            with suppress(StoreError):
                group.told += self._commit_together(transaction, CommitGroup(), (job,))
                job.is_saved = True
        self._has_ballast = self._ballast.take()

    def _commit_together(
        self, transaction: Transaction, group: CommitGroup, works: Sequence[StoreWork], missing: Missing | None = None
    ) -> list[Told | FactRecord]:
        """Commit; return what the works told, behind what others have told before."""
        connection, log = transaction.connection, transaction.messages
        is_of_messages = not (group.actions or group.failed)
        if group.row_count and not (works or missing) and (is_of_messages or connection.stores_rows_at_once):
            rows = group.encoded or group.messages, group.actions, group.failed
            try:
                group.base = log.append_outside_transaction(*rows, head=group.head)
            except StoreDoubtfulError:
                self._doubtful = group
                raise
            return []
        told: list[Told | FactRecord] = []
        unread: list[tuple[Tellable[Any], Any]] = []
        try:
            transaction.told = unread
            connection.begin(write=True)
            if self._shared is not None:
                told += self._others(transaction, group)
            for job in works:
                if job.binds_rows and job.held is not None:
                    transaction.leases.require(job.held)
            if group.row_count:
                group.base = log.append(group.encoded or group.messages, group.actions, group.failed, head=group.head)
            else:
                log.save_head()
            if missing is not None:
                log.add_missing(missing)
            for job in works:
                _run_in_savepoint(transaction, job, unread)
            if unread:
                own = read_told(transaction, unread)
                told += own
                if self._shared is not None:
                    self._add_facts(transaction, group, own)
            connection.commit()
            if self._shared is not None:
                self._facts_upto, self._shared.fence = group.told_upto, group.fence
        except StoreDoubtfulError:
            log.forget()
            self._doubtful, group.late = group, told
            raise
        except BaseException:  # whatever it is: no transaction must stay open; raised again
            log.forget()
            with suppress(StoreError):
                connection.rollback()
            raise
        finally:
            transaction.told = None
        return told

    # With several nodes, in the writer's thread

    def _others(self, transaction: Transaction, group: CommitGroup) -> Sequence[FactRecord]:
        """At the beginning of a transaction with works: what the others have told before, which is heard before what
        this one tells. Raises StoreBehindError: it ends something, so it is heard before the transaction."""
        facts, fence = self._read_facts(transaction)
        if any(one.is_fencing for one in facts):
            raise self._know(facts, fence)
        group.told_upto, group.fence = facts[-1].number if facts else self._facts_upto, fence
        return facts

    def _behind(self, transaction: Transaction) -> StoreBehindError:
        """Rows were refused: read why."""
        shared = self._shared
        assert shared is not None, "no other node writes"  # noqa: S101 - as the engine was told
        shared.begin_hearing()
        try:
            return self._know(*self._read_facts(transaction))
        finally:
            shared.rollback()

    def _know(self, facts: Sequence[FactRecord], fence: int) -> StoreBehindError:
        """These are told on the loop before anything else is stored."""
        assert self._shared is not None, "no other node writes"  # noqa: S101 - as the engine was told
        self._facts_upto = facts[-1].number if facts else self._facts_upto
        self._shared.fence = fence
        return StoreBehindError(facts)

    def _read_facts(self, transaction: Transaction) -> tuple[list[FactRecord], int]:
        found: list[FactRecord] = []
        while True:
            heard = transaction.facts.after(found[-1].number if found else self._facts_upto)
            found += heard.facts
            if heard.is_all:
                return found, heard.fence

    def _add_facts(self, transaction: Transaction, group: CommitGroup, told: Sequence[Told]) -> None:
        """Write what the others are to hear, at the end of the transaction."""
        peers, shared = self._peers, self._shared
        assert peers is not None, "no other node writes"  # noqa: S101 - as the engine was told
        assert shared is not None, "no other node writes"  # noqa: S101 - as the engine was told
        packed = [one for one in map(peers.packed, told) if one is not None]
        if not packed:
            return
        facts = [
            FactRecord(number, one.is_fencing, one.kind, one.value, one.content, peers.instance)
            for number, one in enumerate(packed, group.told_upto + 1)
        ]
        transaction.facts.add(facts)
        group.told_upto = facts[-1].number
        is_fencing = any(one.is_fencing for one in facts)
        group.fence += is_fencing
        shared.tell_others(is_fencing=is_fencing)

    def _close(self) -> None:
        self._readers.close()
        if self._writer is not None:
            self._writer.connection.close()
        self._writer = None

    def statistics(self) -> DatabaseStatistics:
        return DatabaseStatistics(
            self._commits,
            self._rows,
            self._failures,
            self.open_group.row_count,
            len(self.open_group.works),
            self._readers.waiting,
        )


def _index_all(writer: Transaction, tell: Callable[[str], None]) -> None:
    """Make the index entries that are missing at a start: those of the last moments, or after a new schema all. After
    a kill the next start goes on behind the ones that are made."""
    connection, log = writer.connection, writer.messages
    connection.begin(write=True)
    try:
        if log.forget_incomplete_index():
            _log.warning(
                "rows_without_index", help="an older version has written into this store; all rows are indexed"
            )
        connection.commit()
    except StoreError:  # damage: `trunkline salvage` mends it
        with suppress(StoreError):
            connection.rollback()
        log.forget()
    head = log.head()
    if (positions := head - log.counter("indexed")) >= _MANY_POSITIONS:  # which takes a while
        _log.info("making_the_index", positions=positions)
    told = time.monotonic()
    try:
        while (missing := log.missing(head)) is not None:
            connection.begin(write=True)
            log.add_missing(missing)
            connection.commit()
            if (now := time.monotonic()) - told >= _TELL_SECONDS:
                told = now
                tell(f"making the index of the log: {100 - 100 * (head - missing.upto) // max(positions, 1)} %")
    except StoreError:  # searches scan the rows without an entry
        with suppress(StoreError):
            connection.rollback()
        log.forget()


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


def _run_in_savepoint(transaction: Transaction, job: StoreWork, told: list[tuple[Tellable[Any], Any]]) -> None:
    if job.refused:
        job.error = StoreOvertakenError(job.refused)
        return
    connection, before = transaction.connection, len(told)
    connection.savepoint("SAVEPOINT work")
    try:
        if job.held is not None:
            transaction.leases.require(job.held)
        job.result = job.context.run(job.run, transaction)
    except Exception as error:
        if job.is_of_rows or (isinstance(error, StoreError) and error.is_of_transaction):
            raise
        job.error = error
        connection.savepoint("ROLLBACK TO work")
        del told[before:]
    connection.savepoint("RELEASE work")
