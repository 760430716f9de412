"""A server of PostgreSQL that fails, and its standby that takes over: what was told, and what the daemon believes."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

import pytest
import trio

from protocols.operation.standby import cut_silent_forever
from storage.database import Database
from storage.engines.postgresql import PostgresqlEngine
from storage.engines.postgresql_target import Target
from storage.keys import Position
from storage.sql import StoreError, StoreForkedError, StoreUnreachableError
from tests.postgresql import Server, made_once, server
from tests.storage.test_postgresql import append, count, opened, stored

pytestmark = pytest.mark.processes

_PATIENCE: Final = 30.0
_SYNCHRONOUS: Final = "1 (standby)"


def _with_store(folder: Path) -> None:
    folder.mkdir()
    made = Server(folder)
    made.make()
    made.start()
    made.administration.execute("CREATE DATABASE store TEMPLATE template0")
    PostgresqlEngine(made.target("store")).migrate()
    made.stop()


class Pair:
    """A server, and one that copies from it."""

    def __init__(self, folder: Path) -> None:
        self.first = Server(folder / "first")
        self.first.folder.mkdir()
        data = made_once("with-store", _with_store) / "data"
        self.first.make("cluster_name=first", "wal_keep_size=64MB", like=data)
        self.first.start()
        self.second = self.first.standby(folder / "second")
        with (self.second.data / "postgresql.conf").open("a", encoding="ascii") as file:
            file.write("cluster_name = 'standby'\n")  # its name as it asks for the log
        self.second.start()

    def engine(self, *, patience: float = _PATIENCE) -> PostgresqlEngine:
        return PostgresqlEngine(Target(self.first.urls("store", self.second)), patience_seconds=patience)

    def be_synchronous(self) -> None:
        self.first.set("synchronous_standby_names", _SYNCHRONOUS)

    def set_aside(self) -> None:
        """Stop the second one, which has everything so far."""
        asked = "SELECT bool_and(flush_lsn >= pg_current_wal_flush_lsn()) FROM pg_stat_replication"
        while self.first.administration.execute(asked).fetchone() != (True,):
            pass  # the time limit of the test ends it
        self.second.stop()

    def fail_over(self) -> None:
        self.first.stop("immediate")
        self.second.promote()

    def lose(self) -> None:
        """The first one fails, and the other one begins with what it had when it was stopped."""
        self.first.stop("immediate")
        self.second.start()
        self.second.promote()

    def end(self) -> None:
        for one in (self.first, self.second):
            if (one.data / "postmaster.pid").exists():
                one.stop("immediate")


@pytest.fixture
def pair() -> Iterator[Pair]:
    folder = Path(mkdtemp(prefix="two.", dir=server().folder))
    folder.chmod(0o755)
    made = Pair(folder)
    yield made
    made.end()
    rmtree(folder)


async def test_a_failover_to_a_synchronous_standby_loses_nothing_and_ends_nobody(pair: Pair) -> None:
    pair.be_synchronous()
    async with opened(pair.engine()) as (database, journal):
        given: list[int] = []
        database.on_commit(lambda group: given.extend(row.position for row in group.messages))
        for number in range(5):
            append(journal, number)
            assert await database.write(count("a")) == number + 1
        await trio.to_thread.run_sync(pair.first.stop, "immediate")
        async with trio.open_nursery() as nursery:
            append(journal, 5)
            nursery.start_soon(journal.wait_committed)
            nursery.start_soon(trio.to_thread.run_sync, pair.second.promote)
        assert await database.write(count("a")) == 6
        append(journal, 6)
        await journal.wait_committed()
        assert await stored(database) == list(range(7))
        found = [row.position for row in await database.read(lambda tx: tx.messages.after(Position(0)))]
        assert found == given == sorted(set(given))
        assert given[5] - given[4] > 100_000  # a client may have seen the positions between, if not that row


async def test_commits_that_an_asynchronous_standby_lacks_end_the_daemon_and_their_positions_stay_theirs(
    pair: Pair,
) -> None:
    engine, given = pair.engine(), list[int]()
    async with opened(engine) as (database, journal):
        database.on_commit(lambda group: given.extend(row.position for row in group.messages))
        append(journal, 1)
        await database.write(count("a"))
        await trio.to_thread.run_sync(pair.set_aside)
        for number in range(2, 5):
            append(journal, number)
            await journal.wait_committed()
        await trio.to_thread.run_sync(pair.lose)
        append(journal, 5)
        with pytest.raises(StoreError, match=r"lost what it had stored: 3 commits and 3 positions of messages"):
            await journal.wait_committed()
        for _ in range(2):
            with pytest.raises(StoreForkedError):
                await database.read(lambda tx: tx.messages.counter("a"))
            with pytest.raises(StoreForkedError):
                await database.write(count("a"))
    async with opened(pair.engine()) as (database, journal):
        database.on_commit(lambda group: given.extend(row.position for row in group.messages))
        append(journal, 6)
        assert await database.write(count("a")) == 2
        assert await stored(database) == [1, 6]
    assert len(set(given)) == 5  # 1 to 4, and 6


async def test_positions_that_only_the_lost_server_gave_are_left_out_by_a_daemon_that_starts_after_it(
    pair: Pair,
) -> None:
    given: list[int] = []
    async with opened(pair.engine()) as (database, journal):
        append(journal, 1)
        await journal.wait_committed()
        await trio.to_thread.run_sync(pair.set_aside)
        database.on_commit(lambda group: given.extend(row.position for row in group.messages))
        append(journal, 2)
        await journal.wait_committed()
    await trio.to_thread.run_sync(pair.lose)
    for _ in range(2):  # it is left out once
        async with opened(pair.engine()) as (database, journal):
            database.on_commit(lambda group: given.extend(row.position for row in group.messages))
            append(journal, 3)
            await journal.wait_committed()
    assert len(set(given)) == 3
    assert given[2] == given[1] + 1


async def test_a_server_that_has_not_taken_over_yet_is_waited_for_and_named(pair: Pair) -> None:
    async with opened(pair.engine(patience=0.5)) as (database, _):
        assert await database.write(count("a")) == 1
        await trio.to_thread.run_sync(pair.first.stop, "immediate")
        with pytest.raises(StoreUnreachableError, match="the server is the copy of another one: promote it"):
            await database.write(count("a"))
        with pytest.raises(StoreUnreachableError):
            await database.read(lambda tx: tx.messages.counter("a"))
        await trio.to_thread.run_sync(pair.second.promote)
        assert await database.write(count("a")) == 2
    alone = PostgresqlEngine(Target(pair.second.url("store")), patience_seconds=0.5)
    async with opened(alone) as (database, _):
        # Nothing of a server is read that is only the copy of another one, also where the address does not say so.
        await trio.to_thread.run_sync(pair.second.stop, "immediate")
        (pair.second.data / "standby.signal").touch()
        await trio.to_thread.run_sync(pair.second.start)
        with pytest.raises(StoreUnreachableError, match="takes no writes: promote it, or name the other one"):
            await database.read(lambda tx: tx.messages.counter("a"))
        with pytest.raises(StoreUnreachableError, match="takes no writes: promote it, or name the other one"):
            await database.write(count("a"))


async def test_the_former_server_is_not_used_when_it_comes_back(pair: Pair) -> None:
    async with opened(pair.engine(patience=0.5)) as (database, _):
        await database.write(count("a"))
        await trio.to_thread.run_sync(pair.set_aside)
        await trio.to_thread.run_sync(pair.second.start)
        await trio.to_thread.run_sync(pair.fail_over)
        assert await database.write(count("a")) == 2
        await trio.to_thread.run_sync(pair.first.start)
        await trio.to_thread.run_sync(pair.second.stop, "immediate")
        with pytest.raises(StoreUnreachableError, match="lacks what was stored since another one took over"):
            await database.write(count("a"))


async def test_a_commit_that_a_synchronous_standby_lacks_is_not_told_when_its_session_ends(pair: Pair) -> None:
    """It is in the store of the server then, and everybody there sees it."""
    async with opened(pair.engine()) as (database, _):
        await database.write(count("a"))
        await trio.to_thread.run_sync(pair.set_aside)
        await trio.to_thread.run_sync(pair.be_synchronous)
        told: list[int] = []

        async def write() -> None:
            told.append(await database.write(count("a")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            ended = await trio.to_thread.run_sync(_end_who_waits, pair.first)
            # The work is tried again, or looked for; either waits for the standby.
            await trio.to_thread.run_sync(_wait_for_another, pair.first, ended)
            assert await database.read(lambda tx: tx.messages.counter("a")) == 2
            assert told == []
            await trio.to_thread.run_sync(pair.second.start)
        assert told == [2]


async def test_commits_for_which_a_synchronous_standby_is_missing_are_refused_after_the_patience(pair: Pair) -> None:
    engine = pair.engine(patience=1)
    async with opened(engine) as (database, journal), trio.open_nursery() as nursery:
        nursery.start_soon(cut_silent_forever, engine)
        assert await database.write(count("a")) == 1
        await trio.to_thread.run_sync(pair.set_aside)
        await trio.to_thread.run_sync(pair.be_synchronous)
        with pytest.raises(StoreUnreachableError, match="a commit waits for a synchronous standby of the server"):
            await database.write(count("a"))
        append(journal, 1)
        with pytest.raises(StoreError, match="a commit waits for a synchronous standby of the server"):
            await journal.wait_committed()
        assert await database.read(lambda tx: tx.messages.counter("a")) == 2  # it is there, and nobody was told
        await trio.to_thread.run_sync(pair.second.start)
        found = None
        with trio.fail_after(_PATIENCE):
            while found is None:
                found = await _tried(database)
        assert found == 3
        assert await stored(database) == []
        nursery.cancel_scope.cancel()


async def _tried(database: Database) -> int | None:
    with suppress(StoreError):
        return int(await database.write(count("a")))
    return None


_WAITS: Final = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid <> %s"


def _end_who_waits(server: Server) -> int:
    """End the session that waits for the standby; return its number."""
    waiting = _wait_for_another(server, 0)
    server.administration.execute("SELECT pg_terminate_backend(%s)", [waiting])
    return waiting


def _wait_for_another(server: Server, known: int) -> int:
    deadline = time.monotonic() + _PATIENCE
    while (row := server.administration.execute(_WAITS, [known]).fetchone()) is None:
        assert time.monotonic() < deadline, "nobody waits for the standby"
    (pid,) = row
    assert isinstance(pid, int)
    return pid
