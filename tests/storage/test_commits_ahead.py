"""Commits that begin before the senders of the commit before them are told."""

import threading

import pytest
from trio.testing import wait_all_tasks_blocked

from storage.commit_group import CommitGroup
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.journal import Journal
from storage.keys import Position
from storage.sql import StoreError
from tests.storage.test_database import append, rows_in, running

_SECONDS = 10


class Writer:
    """The first commit waits in the writer's thread until `go_on` is set. The second one says that it has begun."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.second = threading.Event(), threading.Event()
        self.error: StoreError | None = None  # of the second commit
        self.sizes: list[int] = []
        self._commit = database._writer.commit
        monkeypatch.setattr(database._writer, "commit", self._commit_held)

    def _commit_held(self, group: CommitGroup) -> None:
        self.sizes.append(group.row_count)
        if len(self.sizes) == 1:
            assert self.go_on.wait(_SECONDS)
        elif len(self.sizes) == 2:
            self.second.set()
            if self.error is not None:
                raise self.error
        self._commit(group)


@pytest.fixture
def database(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr("storage.database._AHEAD_ROWS", 3)
    return Database(engine)


@pytest.fixture
def writer(database: Database, monkeypatch: pytest.MonkeyPatch) -> Writer:
    return Writer(database, monkeypatch)


async def test_with_many_rows_that_wait_the_next_commit_begins_before_the_callbacks(
    database: Database, writer: Writer
) -> None:
    told: list[object] = []
    async with running(database):
        journal = Journal(database, head=Position(0))
        append(journal)
        journal.after_commit(lambda _: told.append(writer.second.wait(_SECONDS)))
        await wait_all_tasks_blocked()
        for _ in range(3):
            append(journal)
        journal.after_commit(lambda _: told.append("second"))
        writer.go_on.set()
        await journal.wait_committed()
        assert told == [True, "second"]
        assert writer.sizes == [1, 3]


async def test_with_few_rows_that_wait_the_callbacks_come_first(database: Database, writer: Writer) -> None:
    """Writes that the callbacks make go with the next commit."""
    told: list[bool] = []

    def append_more(_error: StoreError | None) -> None:
        append(journal)

    async with running(database):
        journal = Journal(database, head=Position(0))
        append(journal)
        journal.after_commit(lambda _: told.append(writer.second.is_set()))
        journal.after_commit(append_more)
        await wait_all_tasks_blocked()
        for _ in range(2):
            append(journal)
        writer.go_on.set()
        await journal.wait_committed()
        assert told == [False]
        assert writer.sizes == [1, 3]


async def test_a_commit_ahead_that_fails_fails_its_own_callers_alone(database: Database, writer: Writer) -> None:
    writer.error = StoreError("disk full")
    told: list[object] = []
    async with running(database):
        journal = Journal(database, head=Position(0))
        append(journal)
        journal.after_commit(told.append)
        await wait_all_tasks_blocked()
        for _ in range(3):
            append(journal)
        journal.after_commit(told.append)
        writer.go_on.set()
        with pytest.raises(StoreError, match="disk full"):
            await journal.wait_committed()
        append(journal)
        await journal.wait_committed()
        assert told == [None, writer.error]
        assert await database.read(rows_in("message")) == 2


async def test_a_writer_that_stops_ends_the_commit_that_has_begun(database: Database, writer: Writer) -> None:
    told: list[object] = []

    def append_more(_error: StoreError | None) -> None:
        append(journal)
        journal.after_commit(told.append)

    async with running(database) as opened:
        journal = Journal(opened, head=Position(0))
        append(journal)
        journal.after_commit(append_more)
        await wait_all_tasks_blocked()
        for _ in range(3):
            append(journal)
        journal.after_commit(told.append)
        writer.go_on.set()
    assert told == [None, None]
    assert writer.sizes == [1, 3, 1]
