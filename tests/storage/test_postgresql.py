"""PostgreSQL as the engine: connections that break, commits in doubt, refusals with their reason, and the steps."""

import errno
import os
import re
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from functools import cache, partial
from pathlib import Path
from subprocess import run
from threading import Thread
from typing import Any, Final

import psycopg
import pytest
import trio
from msgspec import structs

from config.settings import Cluster, Settings, Storage
from protocols.operation.standby import cut_silent_forever
from storage import migrations
from storage.commit_group import CommitGroup
from storage.database import Database
from storage.engines import engine_of, postgresql_connection
from storage.engines import postgresql_schema as schema
from storage.engines.postgresql import PostgresqlEngine
from storage.engines.postgresql_connection import PostgresqlConnection
from storage.engines.postgresql_target import Target, explained, is_away
from storage.engines.sqlite import SqliteEngine
from storage.journal import Journal
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import MessageRow
from storage.sql import StoreAwayError, StoreBusyError, StoreError, StoreFullError, StoreUnreachableError
from storage.transaction import Transaction
from tests.cutting_proxy import CuttingProxy
from tests.postgresql import Server, as_server, server
from tests.rows import each_row

pytestmark = pytest.mark.slow


PATIENCE: Final = 10.0


@pytest.fixture
def name() -> Iterator[str]:
    made = server().new_database()
    yield made
    server().drop(made)


@pytest.fixture
def proxy() -> Iterator[CuttingProxy]:
    with closing(CuttingProxy(server().folder / ".s.PGSQL.5432")) as running:
        yield running


def through(proxy: CuttingProxy, name: str, *, patience: float = PATIENCE) -> PostgresqlEngine:
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{name}?sslmode=disable&gssencmode=disable"
    return PostgresqlEngine(Target(url), patience_seconds=patience)


@asynccontextmanager
async def opened(engine: PostgresqlEngine) -> AsyncIterator[tuple[Database, Journal]]:
    database = Database(engine)
    await database.open()
    head = await database.read(lambda tx: tx.messages.head())
    async with trio.open_nursery() as nursery:
        await nursery.start(database.commit_forever)
        yield database, Journal(database, head=head)
        nursery.cancel_scope.cancel()


def count(name: str) -> Any:
    def work(tx: Transaction) -> int:
        value = tx.messages.counter(name) + 1
        tx.messages.set_counter(name, value)
        return value

    return work


def append(journal: Journal, number: int) -> None:
    journal.append_message(DeviceKey(1), Milliseconds(number), Milliseconds(number), 1, "{}")


async def stored(database: Database) -> list[int]:
    return [row.ts for row in await database.read(lambda tx: tx.messages.after(Position(0)))]


@pytest.mark.parametrize("answered", [True, False])
async def test_a_work_whose_commit_lost_its_connection_is_done_once(
    name: str, proxy: CuttingProxy, answered: bool
) -> None:
    async with opened(through(proxy, name)) as (database, _):
        assert await database.write(count("a")) == 1
        proxy.cut_at(b"COMMIT", answered=answered)
        assert await database.write(count("a")) == 2
        assert proxy.has_cut.is_set()
        assert await database.write(count("a")) == 3


@pytest.mark.parametrize("answered", [True, False])
async def test_messages_whose_commit_lost_its_connection_are_stored_once(
    name: str, proxy: CuttingProxy, answered: bool
) -> None:
    async with opened(through(proxy, name)) as (database, journal):
        groups: list[CommitGroup] = []
        database.on_commit(groups.append)
        append(journal, 1)
        await journal.wait_committed()
        proxy.cut_at(b"setval", answered=answered)
        append(journal, 2)
        append(journal, 3)
        await journal.wait_committed()
        assert proxy.has_cut.is_set()
        append(journal, 4)
        await journal.wait_committed()
        assert await stored(database) == [1, 2, 3, 4]
        found = [row.position for row in await database.read(lambda tx: tx.messages.after(Position(0)))]
        assert [row.position for group in groups for row in group.messages] == found


async def test_a_read_whose_connection_breaks_is_read_again(name: str, proxy: CuttingProxy) -> None:
    async with opened(through(proxy, name)) as (database, _):
        await database.write(count("a"))
        proxy.cut()
        assert await database.read(lambda tx: tx.messages.counter("a")) == 1
        assert await database.look_up(lambda tx: tx.messages.counter("a")) == 1


async def test_a_commit_in_doubt_beyond_the_patience_is_refused_and_told_of_late(
    name: str, proxy: CuttingProxy
) -> None:
    async with opened(through(proxy, name, patience=0.2)) as (database, journal):
        groups: list[list[int]] = []
        database.on_commit(lambda group: groups.append([row.ts for row in group.messages]))
        append(journal, 1)
        await journal.wait_committed()
        proxy.cut_at(b"setval", answered=True, then_closed=True)
        append(journal, 2)
        with pytest.raises(StoreError):
            await journal.wait_committed()
        append(journal, 3)
        with pytest.raises(StoreError):  # and that one never reached the server
            await journal.wait_committed()
        assert groups == [[1]]
        proxy.is_closed = False
        append(journal, 4)
        await journal.wait_committed()
        assert groups == [[1], [2], [4]]
        assert await stored(database) == [1, 2, 4]


async def test_a_commit_that_was_undone_is_told_of_to_nobody(name: str, proxy: CuttingProxy) -> None:
    async with opened(through(proxy, name, patience=0.2)) as (database, journal):
        groups: list[list[int]] = []
        database.on_commit(lambda group: groups.append([row.ts for row in group.messages]))
        proxy.cut_at(b"setval", answered=False, then_closed=True)
        append(journal, 1)
        with pytest.raises(StoreError):
            await journal.wait_committed()
        proxy.is_closed = False
        append(journal, 2)
        await journal.wait_committed()
        assert groups == [[2]]
        assert await stored(database) == [2]


async def test_without_its_server_a_write_fails_after_the_patience_and_at_once_after_that(
    name: str, proxy: CuttingProxy
) -> None:
    async with opened(through(proxy, name, patience=0.5)) as (database, _):
        proxy.is_closed = True
        proxy.cut()
        began = trio.current_time()
        with pytest.raises(StoreUnreachableError):
            await database.write(count("a"))
        assert trio.current_time() - began >= 0.4
        with pytest.raises(StoreUnreachableError):
            await database.write(count("a"))
        proxy.is_closed = False
        assert await database.write(count("a")) == 1


@pytest.mark.parametrize("is_seen", [True, False])
async def test_a_server_that_has_become_read_only_is_refused_after_the_patience(
    name: str, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    """Whether a new connection can see it, or each transaction is refused."""
    async with opened(through(proxy, name, patience=0.5)) as (database, journal):
        assert await database.write(count("a")) == 1
        where = "_check_writable" if is_seen else "_end_former"
        known = getattr(postgresql_connection, where)

        def read_only(connection: Any, *given: Any) -> None:
            connection.execute("SET default_transaction_read_only = on")
            known(connection, *given)

        with monkeypatch.context() as patched:
            patched.setattr(postgresql_connection, where, read_only)
            proxy.cut()
            with pytest.raises(StoreError, match="the server is read-only"):
                await database.write(count("a"))
            append(journal, 1)
            with pytest.raises(StoreError, match="the server is read-only"):
                await journal.wait_committed()
        proxy.cut()
        with trio.fail_after(30):
            number = None
            while number is None:
                with suppress(StoreAwayError):  # of a connection that began before
                    number = await database.write(count("a"))
        assert number == 2
        append(journal, 2)
        await journal.wait_committed()
        assert await stored(database) == [2]


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_connection_that_loses_what_goes_through_it_is_made_again(
    name: str, proxy: CuttingProxy, direction: str
) -> None:
    engine = through(proxy, name, patience=1)
    async with opened(engine) as (database, journal), trio.open_nursery() as nursery:
        assert await database.write(count("a")) == 1
        nursery.start_soon(cut_silent_forever, engine)
        proxy.loses = direction
        with trio.fail_after(30):
            async with trio.open_nursery() as writing:
                append(journal, 1)
                writing.start_soon(journal.wait_committed)
                await trio.to_thread.run_sync(proxy.has_lost.wait)
                proxy.loses = ""
            assert await database.write(count("a")) == 2
        assert await stored(database) == [1]
        nursery.cancel_scope.cancel()


async def test_a_connection_for_which_the_server_works_is_left_alone(
    name: str, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = through(proxy, name, patience=1)
    answers: list[set[str]] = []
    ask = engine.are_busy

    def noted(connections: Sequence[PostgresqlConnection]) -> set[str]:
        answers.append(ask(connections))
        return answers[-1]

    monkeypatch.setattr(engine, "are_busy", noted)
    async with opened(engine) as (database, _), trio.open_nursery() as nursery:
        nursery.start_soon(cut_silent_forever, engine)
        query = "SELECT pg_backend_pid() AS pid, pg_sleep(2.5)"
        before = await database.look_up(lambda tx: tx.connection.execute(query).one())
        after = await database.look_up(lambda tx: tx.connection.execute("SELECT pg_backend_pid() AS pid").one())
        assert before is not None
        assert after is not None
        assert before["pid"] == after["pid"]
        assert any(answers)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("after", [b"", b"SET synchronous_commit", b"pg_terminate_backend"])
async def test_a_try_to_connect_with_a_server_that_stands_still_has_an_end(
    name: str, proxy: CuttingProxy, after: bytes
) -> None:
    """Whenever the server falls silent: before it takes the connection, or after it has."""
    async with opened(through(proxy, name, patience=4)) as (database, _):
        assert await database.write(count("a")) == 1
        proxy.lose_at(after)
        proxy.cut()
        for within in (4.5, 2.5):  # the patience, then one try at most
            began = trio.current_time()
            with pytest.raises(StoreAwayError):
                await database.write(count("a"))
            assert trio.current_time() - began < within
        proxy.lose_at(b"nothing that is sent")
        with trio.fail_after(10):
            while True:
                with suppress(StoreError):
                    assert await database.write(count("a")) == 2
                    break
                await trio.sleep(0.05)


async def test_a_server_that_stands_still_is_refused_within_the_patience() -> None:
    """SIGSTOP of all its processes, in the middle of commits and reads. A read that has waited for others may try to
    connect next, which takes half of the patience."""
    own = Server(Path(server().folder) / "still")
    own.folder.mkdir()
    own.make()
    own.start()
    patience, longest = 5.0, 0.0
    try:
        own.administration.execute("CREATE DATABASE store TEMPLATE template0")
        engine = PostgresqlEngine(Target(own.url("store")), patience_seconds=patience)
        async with opened(engine) as (database, _), trio.open_nursery() as nursery:

            async def ask(do: Callable[[], Awaitable[object]]) -> None:
                nonlocal longest
                until = trio.current_time() + 2 * patience
                while trio.current_time() < until:
                    began = trio.current_time()
                    with suppress(StoreUnreachableError):
                        await do()
                    longest = max(longest, trio.current_time() - began)
                    await trio.sleep(0.05)

            nursery.start_soon(cut_silent_forever, engine)
            assert await database.write(count("a")) == 1
            with own.standing_still():
                async with trio.open_nursery() as asking:
                    for _ in range(3):
                        asking.start_soon(ask, partial(database.write, count("a")))
                        asking.start_soon(ask, partial(database.read, lambda tx: tx.messages.counter("a")))
                        asking.start_soon(ask, partial(database.look_up, lambda tx: tx.messages.counter("a")))
            with trio.fail_after(2 * patience):
                while True:
                    with suppress(StoreError):
                        assert await database.write(count("b")) == 1
                        break
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
    finally:
        own.stop("immediate")
    print(f"longest: {longest:.2f} s")  # noqa: T201 - with -s
    assert longest <= 1.5 * patience + 0.5


async def test_the_event_loop_asks_the_server_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not for the types of the columns at the first message: a server that is away would stop everything."""
    run, threads = PostgresqlConnection._run, set[threading.Thread]()

    def noted(connection: PostgresqlConnection, *given: Any) -> Any:
        threads.add(threading.current_thread())
        return run(connection, *given)

    monkeypatch.setattr(PostgresqlConnection, "_run", noted)
    async with opened(PostgresqlEngine(server().target(name))) as (_, journal):
        for number in range(3):
            append(journal, number)
            await journal.wait_committed()
    assert threads
    assert threading.current_thread() not in threads


async def test_a_read_of_one_statement_is_one_trip(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(PostgresqlEngine(server().target(name))) as (database, _):
        commands, command = list[str](), PostgresqlConnection.command

        def noting(self: PostgresqlConnection, text: str) -> None:
            commands.append(text)
            command(self, text)

        monkeypatch.setattr(PostgresqlConnection, "command", noting)
        for _ in range(3):
            assert await database.read(lambda tx: tx.messages.counter("a")) == 0
        assert commands == []


async def test_a_read_of_several_statements_sees_one_moment(name: str) -> None:
    """Also the first one of its kind, when nobody knows that a second statement follows."""
    async with opened(PostgresqlEngine(server().target(name))) as (database, _):
        await database.write(count("a"))
        begun = 0

        def work(tx: Transaction) -> tuple[int, ...]:
            nonlocal begun
            begun += 1
            before = tx.messages.counter("a")
            with server().target(name).connect() as other:
                other.execute("UPDATE counter SET value = value + 1 WHERE name = 'a'")
            rows = tx.connection.execute("SELECT value FROM counter WHERE name IN ('a', 'b')")
            return before, *(row["value"] for row in rows)

        assert await database.read(work) == (2, 2)
        assert await database.read(work) == (3, 3)
        assert begun == 3


async def test_sessions_that_the_server_ends_lose_nothing(name: str) -> None:
    async with opened(PostgresqlEngine(server().target(name), patience_seconds=PATIENCE)) as (database, journal):
        for number in range(30):
            append(journal, number)
            if number % 3 == 0:
                server().administration.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
                )
            assert await database.write(count("a")) == number + 1
        assert await stored(database) == list(range(30))


async def test_a_server_that_restarts_at_once_loses_nothing() -> None:
    own = Server(Path(server().folder) / "own")
    own.folder.mkdir()
    own.make("fsync=off", "synchronous_commit=on")
    own.start()
    try:
        own.administration.execute("CREATE DATABASE store TEMPLATE template0")
        target = Target(own.url("store"))
        async with opened(PostgresqlEngine(target, patience_seconds=60)) as (database, journal):
            for number in range(4):
                append(journal, number)
                await database.write(count("a"))
                await trio.to_thread.run_sync(own.stop, "immediate")
                append(journal, 100 + number)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(journal.wait_committed)
                    await trio.to_thread.run_sync(own.start)
            assert sorted(await stored(database)) == [0, 1, 2, 3, 100, 101, 102, 103]
            assert await database.read(lambda tx: tx.messages.counter("a")) == 4
    finally:
        own.stop("immediate")


async def test_a_server_without_room_refuses_loses_nothing_and_goes_on_with_room() -> None:
    """A limit on the size of its files stands for a quota, which has no code of its own: tests/faults fills a disk. The
    server says it in German."""
    own = Server(Path(server().folder) / "quota")
    own.folder.mkdir()
    own.make(*in_german())
    own.start()
    try:
        target = of_plain_role(own)
        async with opened(PostgresqlEngine(target)) as (database, journal):
            limit_files(own, 17 << 20)  # a file of the server's log has 16 MiB, and is whole from its beginning on
            kept, refusal = 0, None
            while refusal is None:
                data = f'"{secrets.token_hex(1 << 19)}"'  # which cannot be made smaller than half of it
                try:
                    await database.write(partial(append_large, kept, data))
                    kept += 1
                except StoreFullError as error:
                    refusal = str(error)
            assert in_words("could not extend file", "konnte Datei") in refusal
            append(journal, kept)
            await journal.wait_committed()  # there is room for a short one
            limit_files(own, "unlimited")
            await database.write(partial(append_large, kept + 1, data))
            assert sorted(await stored(database)) == list(range(kept + 2))
            assert kept > 10
    finally:
        own.stop("immediate")


_GERMAN: Final = "de_DE.utf8"


def in_german() -> tuple[str, ...]:
    """The setting of a server whose language is German, where the machine has that."""
    return (f"lc_messages={_GERMAN}",) if speaks_german() else ()


def in_words(english: str, german: str) -> str:
    return german if speaks_german() else english


@cache
def speaks_german() -> bool:
    known = run(["locale", "-a"], capture_output=True, text=True, check=False).stdout.split()
    return _GERMAN in known and bool(list(Path("/usr/share/locale/de/LC_MESSAGES").glob("postgres-*.mo")))


def of_plain_role(own: Server) -> Target:
    """A database of a role that may not choose the language."""
    own.administration.execute("CREATE ROLE plain LOGIN")
    own.administration.execute("CREATE DATABASE store TEMPLATE template0 OWNER plain")
    return Target(own.url("store").replace("postgres@", "plain@"))


def test_a_server_of_another_language_is_understood() -> None:
    """Decisions go by its codes; and its texts are English where the role may choose."""
    own = Server(Path(server().folder) / "german")
    own.folder.mkdir()
    own.make(*in_german(), "hot_standby=off", "max_connections=20", "superuser_reserved_connections=0")
    own.start()
    try:
        target = of_plain_role(own)
        engine = PostgresqlEngine(target, patience_seconds=0)
        engine.migrate()
        with closing(engine.open(read_only=False)) as connection:
            with pytest.raises(StoreError, match=in_words("does not exist", "existiert nicht")):
                connection.execute("SELECT 1 FROM nothing")
            own.administration.execute("GRANT SET ON PARAMETER lc_messages TO plain")
            with closing(engine.open(read_only=False)) as other, pytest.raises(StoreError, match="does not exist"):
                other.execute("SELECT 1 FROM nothing")
            connection.command("BEGIN; LOCK TABLE counter")
            with closing(engine.open(read_only=False)) as other, pytest.raises(StoreBusyError):
                other.command("BEGIN; SET LOCAL lock_timeout = 1; LOCK TABLE counter")
        with pytest.raises(StoreAwayError, match=in_words("too many clients", "Verbindungen")):
            take_all_places(target)
        own.stop("immediate")
        (own.data / "standby.signal").touch()
        own.start()  # it takes no connections: hot_standby
        with pytest.raises(StoreAwayError, match=in_words("not accepting", "nimmt keine|akzeptiert")):
            engine.migrate()
    finally:
        own.stop("immediate")


def take_all_places(target: Target) -> None:
    with ExitStack() as taken:
        while True:
            taken.enter_context(target.connect())


def append_large(number: int, data: str, tx: Transaction) -> None:
    row = MessageRow(Position(1_000_000 + number), DeviceKey(1), Milliseconds(number), Milliseconds(number), 1, data)
    tx.connection.insert_many("message", row.__struct_fields__, [row])


def limit_files(of: Server, size: int | str) -> None:
    """Limit the size of the files of a server that runs."""
    main = (of.data / "postmaster.pid").read_text(encoding="ascii").split()[0]
    children = Path(f"/proc/{main}/task/{main}/children").read_text(encoding="ascii").split()
    for process in (main, *children):
        run(["prlimit", "--pid", process, f"--fsize={size}:unlimited"], check=True, **as_server())


# Positions


async def test_rows_of_two_writers_have_different_positions_in_the_order_of_their_commits(name: str) -> None:
    engines = [PostgresqlEngine(server().target(name)) for _ in range(2)]
    async with opened(engines[0]) as (first, one), opened(engines[1]) as (second, other):
        found: list[int] = []
        for database in (first, second):
            database.on_commit(lambda group: found.extend(row.position for row in group.messages))
        for number in range(20):
            append((one, other)[number % 2], number)
            await (one, other)[number % 2].wait_committed()
        assert found == list(range(1, 21))
        assert await stored(first) == list(range(20))


async def test_a_position_is_never_given_twice_also_when_everything_was_deleted(name: str) -> None:
    async with opened(PostgresqlEngine(server().target(name))) as (database, journal):
        for number in range(3):
            append(journal, number)
        await journal.wait_committed()
        await database.write(lambda tx: tx.connection.execute("DELETE FROM message"))
    server().administration.execute("SELECT 1")
    with server().target(name).connect() as connection:
        connection.execute("DELETE FROM batch")
        connection.execute("SELECT setval('log', 0)")  # as in a store that was copied
        connection.execute("INSERT INTO counter (name, value) VALUES ('head', 3)")
    async with opened(PostgresqlEngine(server().target(name))) as (database, journal):
        append(journal, 4)
        await journal.wait_committed()
        assert [row.position for row in await database.read(lambda tx: tx.messages.after(Position(0)))] == [4]


async def test_numbers_of_old_commits_are_forgotten_and_the_highest_position_is_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.engines.postgresql_connection._BATCHES_KEPT", 5)
    async with opened(PostgresqlEngine(server().target(name))) as (database, journal):
        append(journal, 1)
        await journal.wait_committed()
        await database.write(lambda tx: tx.connection.execute("DELETE FROM message"))
        for _ in range(20):
            await database.write(count("a"))
        kept = await database.read(lambda tx: tx.connection.execute("SELECT count(*) AS n FROM batch").one())
        assert kept is not None
        assert kept["n"] <= 10
        assert await database.read(lambda tx: tx.messages.head()) == 1


# The schema


def test_a_store_of_a_newer_version_is_refused(name: str) -> None:
    with server().target(name).connect() as connection:
        connection.execute("INSERT INTO schema_step (name) VALUES ('9999_of_tomorrow')")
    with pytest.raises(StoreError, match=r"has made this store, and .* cannot read it: install"):
        PostgresqlEngine(server().target(name)).migrate()


def test_a_step_that_was_interrupted_has_not_been(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = server().target(name)
    statements = migrations.statements
    names = [*migrations.names(), "9998_whole", "9999_broken"]
    monkeypatch.setattr(migrations, "names", lambda: names)
    monkeypatch.setattr(migrations, "unknown_names", lambda steps: set(steps) - set(names))

    def broken(step: str, engine: str = "") -> tuple[list[str], bool]:
        made = {
            "9998_whole": ["CREATE TABLE whole (key INTEGER PRIMARY KEY)"],
            "9999_broken": ["CREATE TABLE broken (a BLOB)", failing],
        }
        return (made[step], False) if step in made else statements(step, engine)

    failing = "SELECT 1 / 0"
    monkeypatch.setattr(migrations, "statements", broken)
    with pytest.raises(StoreError, match="division by zero"):
        PostgresqlEngine(target).migrate()
    with target.connect() as connection:
        assert schema.applied(connection)[-1] == "9998_whole"
        assert connection.execute("SELECT to_regclass('whole'), to_regclass('broken')").fetchone() == ("whole", None)
    failing = "SELECT 1"
    PostgresqlEngine(target).migrate()
    with target.connect() as connection:
        assert schema.applied(connection)[-1] == "9999_broken"


async def test_two_daemons_that_start_at_once_make_one_store() -> None:
    made = server().new_database(template="template0")
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(trio.to_thread.run_sync, PostgresqlEngine(server().target(made)).migrate)
    with server().target(made).connect() as connection:
        assert schema.applied(connection) == migrations.names()
        assert connection.execute("SELECT count(*) FROM secret").fetchone() == (1,)
    server().drop(made)


# What is said


@each_row(
    ("sql", "said"),
    [
        ("INSERT INTO secret (name, value) VALUES ('Geheim', ''), ('Geheim', '')", "secret_pkey"),
        ("SELECT CAST('Geheim' AS bigint)", "invalid input syntax for type bigint"),
        ("SELECT CAST('{Geheim' AS json)", "invalid input syntax for type json"),
        ("SELECT CAST('a \"Geheim\" b' AS date)", "invalid input syntax for type date"),
        ("INSERT INTO mail (recipient) VALUES ('Geheim')", "violates not-null constraint"),
    ],
)
def test_no_value_of_a_row_is_in_the_text_of_an_error_or_its_traceback(name: str, sql: str, said: str) -> None:
    """The server's details have them."""
    with closing(PostgresqlEngine(server().target(name)).open(read_only=False)) as connection:
        for run_it in (lambda: connection.execute(sql), lambda: connection.command(sql), lambda: bare(name, sql)):
            with pytest.raises(StoreError) as caught:
                run_it()
            text = "".join(traceback.format_exception(caught.value, chain=True))
            assert "Geheim" not in text.replace(sql, "")
            assert re.search(rf"{said}.*SQLSTATE 2\w{{4}}", str(caught.value))


def bare(name: str, sql: str) -> None:
    """As the steps of the schema are run."""
    target = server().target(name)
    with explained(target), target.connect() as connection:
        connection.execute(sql.encode())


def test_details_without_values_are_said(name: str) -> None:
    with pytest.raises(StoreError, match=r"other objects depend on it \(view v depends on table secret\)"):
        bare(name, "CREATE TEMP VIEW v AS SELECT * FROM secret; DROP TABLE secret")


# Refusals


def refusal(url: str, *, passes: bool = False, **storage: Any) -> str:
    """What is said. `passes`: a daemon that starts waits for the end of it, and is refused otherwise."""
    settings = Settings(
        state_dir=Path("/nowhere"), storage=Storage(url=url, **storage), cluster=Cluster(patience_seconds=0)
    )
    with pytest.raises(StoreError) as caught:
        engine_of(settings).migrate()
    assert isinstance(caught.value, StoreAwayError) == passes, caught.value
    return str(caught.value)


@each_row(
    ("make", "said"),
    [
        ("ENCODING 'SQL_ASCII'", "its encoding is SQL_ASCII, not UTF8: make another database: createdb --template"),
        ("LOCALE_PROVIDER icu ICU_LOCALE 'en'", "its texts are in the order of ICU, not C"),
    ],
)
def test_a_database_of_another_encoding_or_order_is_refused(make: str, said: str) -> None:
    server().administration.execute(f"CREATE DATABASE wrong TEMPLATE template0 {make}".encode())
    try:
        found = refusal(server().url("wrong"))
        assert said in found
        assert found.endswith(" wrong_2")  # which is not there yet
    finally:
        server().drop("wrong")


def test_a_server_that_is_too_old_is_refused(name: str, proxy: CuttingProxy) -> None:
    """It says its version when a connection begins."""
    proxy.rewrites = lambda said: re.sub(rb"(?<=server_version\x00)\d\d", b"14", said)
    said = refusal(through(proxy, name).target.url)
    assert said.endswith("the server is PostgreSQL 14: 15 or newer is needed")
    proxy.rewrites = bytes
    through(proxy, name).migrate()


def _answer_as_http(listener: socket.socket) -> None:
    with listener.accept()[0] as connection:
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_the_encoding_of_the_connection_cannot_be_chosen(name: str) -> None:
    url = f"{server().url(name)}&client_encoding=SQL_ASCII"
    PostgresqlEngine(Target(url)).migrate()


def test_letters_are_folded_as_in_sqlite_in_a_database_of_another_locale() -> None:
    made = server().new_database(template="template0 LC_COLLATE 'C.UTF-8' LC_CTYPE 'C.UTF-8'")
    engine = PostgresqlEngine(server().target(made))
    engine.migrate()
    with closing(engine.open(read_only=True)) as connection:
        row = connection.execute("SELECT lower(:text) AS folded", {"text": "ÄB"}).one()
    assert row is not None
    assert row["folded"] == "Äb"
    server().drop(made)


def test_what_keeps_a_database_from_being_used_is_said(name: str) -> None:
    assert "does not exist (make it: createdb" in refusal(server().url("nothing_here"))
    assert "is the server running?" in refusal("postgresql://postgres@127.0.0.1:1/x", passes=True)
    assert "is the server running?" in refusal("postgresql://postgres@/x?host=/nowhere", passes=True)
    assert "is the name of the server right?" in refusal("postgresql://postgres@trunkline.invalid/x", passes=True)
    for unreadable in ("h/x?nothing=1", "u:a%zz@h/x", "u:ge@h%im:/1@h/x"):
        assert "cannot read this address: a password with @, :, / or %" in refusal(f"postgresql://{unreadable}")
    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = Thread(target=_answer_as_http, args=(other,))
        thread.start()
        port = other.getsockname()[1]
        assert "something else than PostgreSQL has this port" in refusal(f"postgresql://u@127.0.0.1:{port}/x")
        thread.join()
    administration = server().administration
    administration.execute("CREATE ROLE guest LOGIN")
    try:
        url = server().url(server().new_database(template="template0")).replace("postgres@", "guest@")
        said = refusal(url)
        assert "the role may make no tables" in said
        administration.execute(re.findall(r"ALTER DATABASE \w+ OWNER TO guest", said)[0].encode())
        PostgresqlEngine(Target(url)).migrate()
        server().drop(url.partition("?")[0].rpartition("/")[2])
        assert "has not its rights" in refusal(server().url(name).replace("postgres@", "guest@"))
    finally:
        administration.execute("DROP ROLE guest")


@each_row(
    ("text", "passes"),
    [
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  the database system is shutting down", True),
        ("FATAL:  the database system is in recovery mode", True),
        ("FATAL:  the database system is not yet accepting connections\nDETAIL:  Recovery has not got so far.", True),
        ("FATAL:  sorry, too many clients already", True),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", True),
        ("FATAL:  server login has been failing, cached error: connect failed (server_login_retry)", True),
        ("Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?", True),
        ("server closed the connection unexpectedly", True),
        ("session is read-only", True),
        ("SSL error: unexpected eof while reading", True),
        ("connection timeout expired", True),
        ('FATAL:  password authentication failed for user "u"', False),
        ("FATAL:  Passwort-Authentifizierung für Benutzer »u« fehlgeschlagen", False),
        ('FATAL:  no pg_hba.conf entry for host "192.0.2.1", user "u", database "x", no encryption', False),
        ("FATAL:  unsupported startup parameter: a", False),
        ("fe_sendauth: no password supplied", False),
        ("SSL error: certificate verify failed", False),
        ("server does not support SSL, but SSL was required", False),
        ('root certificate file "/root/.postgresql/root.crt" does not exist', False),
        ('private key file "/a" has group or world access', False),
    ],
)
@pytest.mark.parametrize("others", ["", "Connection refused"])
def test_what_passes_by_itself_is_told_from_what_somebody_has_to_correct(text: str, passes: bool, others: str) -> None:
    """Also when an address has several servers. The texts are those of PostgreSQL 17 and psycopg 3.3."""
    server = 'connection failed: connection to server at "192.0.2.1", port 5432 failed: '
    lines = [server + line for line in filter(None, (others, text))]
    assert is_away(psycopg.OperationalError("\n".join(lines))) == passes


def test_an_empty_database_is_a_store_without_steps() -> None:
    """Commands look at it before the first start."""
    made = server().new_database(template="template0")
    with PostgresqlEngine(server().target(made)).snapshot() as snapshot:
        assert snapshot.steps() == ()
    server().drop(made)


def test_a_database_with_something_else_is_refused() -> None:
    made = server().new_database(template="template0")
    with server().target(made).connect() as connection:
        connection.execute("CREATE TABLE of_others (a TEXT)")
    assert "something else is in this database (the table of_others)" in refusal(server().url(made))
    server().drop(made)


def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("wr/ong\n", encoding="utf-8")
    for url, storage in (
        ("postgresql://u:wr%2Fong@127.0.0.1:1/x", {}),
        ("postgresql://u@127.0.0.1:1/x?password=wr%2Fong", {}),
        ("postgresql://u:wr%2Fong@127.0.0.1:1/x?nothing=1", {}),
        ("postgresql://u@127.0.0.1:1/x", {"password_file": file}),
    ):
        said = refusal(url, passes="nothing=1" not in url, **storage)
        assert "wr%2Fong" not in said
        assert "wr/ong" not in said
    assert "storage.password_file" in refusal("postgresql://u@h/x", password_file=tmp_path / "none")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:a%2Fb%20s3%C3%A9@h/db",
        "postgresql://u:a%2fb%20%733%c3%A9@h/db",
        "host=h user=u password='a/b s3é'",
        "postgresql://u@h/db?sslkey=/k&sslpassword=a%2Fb%20s3%c3%a9",
    ],
)
def test_a_password_is_hidden_however_the_address_spells_it(url: str) -> None:
    hidden = Target(url).without_secret(url)
    assert "…" in hidden
    for part in ("s3", "733", "%2f", "%2F", "/b", "a9", "A9"):
        assert part not in hidden
    assert Target(url).without_secret("a/b s3é is wrong") == "… is wrong"


@each_row(("host", "port"), [("slow.invalid", ""), ("slow.invalid,127.0.0.1", "{port}"), ("/nowhere,slow.invalid", "")])
def test_a_name_server_that_does_not_answer_is_not_waited_for(
    name: str, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch, host: str, port: str
) -> None:
    asked, answers = list[str](), threading.Event()

    def slow(host: str, *_given: Any, **_more: Any) -> list[Any]:
        asked.append(host)
        answers.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    options = f"host={host}&port={port.format(port=proxy.port)}&sslmode=disable&gssencmode=disable"
    target = Target(f"postgresql://postgres@/{name}?{options}")
    try:
        began = time.monotonic()
        for _ in range(3):  # of which each would wait for as long as the name server takes
            if "127.0.0.1" in host:
                target.connect(seconds=0.3).close()
                continue
            with pytest.raises(StoreAwayError, match=r"the name slow\.invalid was not found within|No such file"):
                target.connect(seconds=0.3)
        assert time.monotonic() - began < 10
        assert asked == ["slow.invalid"]
    finally:
        answers.set()


def test_each_address_of_a_name_is_tried(name: str, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(_host: str, *_given: Any, **_more: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("127.0.0.9", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    target = Target(f"postgresql://postgres@db.invalid:{proxy.port}/{name}?sslmode=disable&gssencmode=disable")
    with target.connect() as connection:
        assert connection.info.host == "db.invalid"


def test_without_a_free_descriptor_the_store_is_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PostgresqlEngine(server().target(name))
    engine.migrate()

    def dup(_number: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "dup", dup)
    with pytest.raises(StoreAwayError, match="Too many open files"):
        engine.open(read_only=True)


def test_a_wrong_password_is_named(tmp_path: Path) -> None:
    own = Server(Path(server().folder) / "passwords")
    own.folder.mkdir()
    own.make()
    own.start()
    try:
        own.administration.execute("CREATE ROLE trunkline LOGIN PASSWORD 'right'")
        own.administration.execute("CREATE DATABASE trunkline TEMPLATE template0 OWNER trunkline")
        (own.data / "pg_hba.conf").write_text(
            "local all postgres trust\nlocal all all scram-sha-256\n", encoding="ascii"
        )
        own.administration.execute("SELECT pg_reload_conf()")
        url = own.url("trunkline").replace("postgres@", "trunkline@")
        file = tmp_path / "password"
        file.write_text("wrong\n", encoding="ascii")
        assert "is the password right?" in refusal(url, password_file=file)
        assert "is the password right?" in refusal(url)
        file.write_text("right\n", encoding="ascii")
        PostgresqlEngine(Target(url, file)).migrate()
    finally:
        own.stop("immediate")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And SQLite needs nothing of it (tests/protocols/cli/test_imports.py: nor does the daemon)."""
    monkeypatch.delitem(sys.modules, "storage.engines.postgresql")
    for name in ("psycopg", "psycopg.sql"):
        monkeypatch.setitem(sys.modules, name, None)
    settings = Settings(state_dir=Path("/nowhere"))
    assert isinstance(engine_of(settings), SqliteEngine)
    with pytest.raises(StoreError, match=re.escape("install trunkline[postgresql]")):
        engine_of(structs.replace(settings, storage=Storage(url="postgresql://h/d")))
