"""Commits a group: its rows, then its works one after the other, each in a savepoint, in one transaction.

Everything here runs on the writer's thread, one call at a time, except where it says otherwise. A group that cannot be
committed as a whole is committed in parts: when a work has met damage, or the disk is full.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import structlog

from storage.ballast import Ballast, makes_room
from storage.commit_group import CommitGroup, StoreWork
from storage.engines.port import SharedConnection, StoreEngine
from storage.facts import FactRecord, StoreBehindError, StoreOvertakenError
from storage.keys import Position
from storage.messages import Missing
from storage.peers import Peers
from storage.readers import TRIES
from storage.sql import StoreDamagedError, StoreDoubtfulError, StoreError, StoreFullError, StoreLostError
from storage.tables import check_finished
from storage.told import NotReadError, Tellable, Told, read_told
from storage.transaction import Transaction

#: A start that indexes at least this many rows is logged.
_MANY_POSITIONS = 200_000
#: And how far it is, so often.
_TELL_SECONDS = 5.0
_log = structlog.get_logger(__name__)


class GroupWriter:
    def __init__(
        self, engine: StoreEngine, ballast: Ballast | None, tell: Callable[[str], None], *, base: Callable[[], int]
    ) -> None:
        """`ballast`, `tell`: see `Database`. `base`: of the latest commit that the loop knows (`CommitGroup.base`)."""
        self._engine, self._ballast, self._tell, self._base = engine, ballast, tell, base
        self._has_ballast = True
        self.transaction: Transaction | None = None
        #: Other nodes that write, and what is known of them.
        self.peers: Peers | None = None
        self._shared: SharedConnection | None = None
        self.facts_upto = 0
        #: A group whose commit is in doubt; its senders are refused. And whether it turned out to be in the store.
        self.doubtful: CommitGroup | None = None
        self.is_doubt_settled = False

    def open(self) -> None:
        """Bring the schema up to date, connect, and index what is not. Raises StoreError; then call `close`."""
        self._engine.migrate()
        self.transaction = transaction = Transaction(self._engine.open(read_only=False))
        check_finished(transaction.connection, str(self._engine))
        if self.peers is not None:
            self._begin_sharing(transaction)
        if self._ballast is not None:
            self._has_ballast = self._ballast.take()
        _index_all(transaction, self._tell)

    def close(self) -> None:
        if self.transaction is not None:
            self.transaction.connection.close()
        self.transaction = None

    def encode(self, group: CommitGroup) -> None:
        """On the loop: its processor has the rows in its cache, and while this thread encoded them, the loop would wait
        for the interpreter lock as long. After an error the commit tries it, and the senders are told."""
        if self.transaction is not None:
            with suppress(Exception):
                group.encoded = self.transaction.connection.encoded(group.messages)

    @property
    def gives_positions(self) -> bool:
        """Whether positions are given in the commit. For the loop."""
        return self.transaction is not None and self.transaction.connection.gives_positions

    def _begin_sharing(self, transaction: Transaction) -> None:
        """Reads of the store have all facts up to the latest one from here on."""
        self._shared = shared = cast("SharedConnection", transaction.connection)
        shared.begin(write=True)
        try:
            self.facts_upto, fence = transaction.facts.latest()
        finally:
            shared.rollback()
        shared.fence = fence

    def commit(self, group: CommitGroup) -> None:
        """Commit everything of the group. Raises StoreError: nothing of it is stored, or nobody knows."""
        transaction = self.transaction
        if transaction is None:
            raise StoreError("the store is not open")
        if group.refused:
            raise StoreOvertakenError(group.refused)
        if self.doubtful is not None and not self.is_doubt_settled:
            self._settle(transaction, self.doubtful)
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
            self.doubtful = None
            return
        if group.row_count:
            group.base = int(row["head"]) - group.head
        if self._shared is not None and group.told_upto:
            self.facts_upto, self._shared.fence = group.told_upto, group.fence
        self.is_doubt_settled = True  # its senders were refused; the loop tells the others of it

    def _try_commit(self, transaction: Transaction, group: CommitGroup) -> None:
        try:
            missing = transaction.messages.missing_too_many(Position(group.head + self._base()))
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
                group.told_upto = self.facts_upto
            except StoreBehindError as behind:
                group.told += behind.facts
                group.told_upto, job.error = self.facts_upto, StoreError(str(behind))
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
                self.doubtful = group
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
                self.facts_upto, self._shared.fence = group.told_upto, group.fence
        except StoreDoubtfulError:
            log.forget()
            self.doubtful, group.late = group, told
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
        group.told_upto, group.fence = facts[-1].number if facts else self.facts_upto, fence
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
        self.facts_upto = facts[-1].number if facts else self.facts_upto
        self._shared.fence = fence
        return StoreBehindError(facts)

    def _read_facts(self, transaction: Transaction) -> tuple[list[FactRecord], int]:
        found: list[FactRecord] = []
        while True:
            heard = transaction.facts.after(found[-1].number if found else self.facts_upto)
            found += heard.facts
            if heard.is_all:
                return found, heard.fence

    def _add_facts(self, transaction: Transaction, group: CommitGroup, told: Sequence[Told]) -> None:
        """Write what the others are to hear, at the end of the transaction."""
        peers, shared = self.peers, self._shared
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
