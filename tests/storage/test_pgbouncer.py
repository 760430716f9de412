"""PgBouncer before the server: in session mode it may stand there, in the other modes it is refused."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from psycopg import OperationalError

from protocols.operation.standby import cut_silent_forever
from storage.engines.postgresql import PostgresqlEngine
from storage.engines.postgresql_target import Target
from storage.sql import StoreError, StoreLostError
from tests.free_port import free_port
from tests.postgresql import as_server, server
from tests.programs import require_program
from tests.storage.test_postgresql import PATIENCE, append, count, opened, stored

pytestmark = pytest.mark.processes

_CONFIG = """
[databases]
store = host={folder} dbname={database}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = {mode}
application_name_add_host = {adds_host}
default_pool_size = 40
logfile =
pidfile =
"""


@pytest.fixture
def name() -> Iterator[str]:
    made = server().new_database()
    yield made
    server().drop(made)


@contextmanager
def bouncer(database: str, mode: str, *, adds_host: int = 0) -> Iterator[str]:
    """The address of the database behind PgBouncer."""
    program = require_program("pgbouncer")
    # The server's user reads it: not in the folder of the tests, which may be closed to others.
    with TemporaryDirectory(dir=server().folder) as name:
        folder = Path(name)
        folder.chmod(0o755)
        port = free_port()
        (folder / "users").write_text('"postgres" ""\n', encoding="ascii")
        config = _CONFIG.format(
            folder=server().folder, database=database, port=port, users=folder / "users", mode=mode, adds_host=adds_host
        )
        (folder / "ini").write_text(config, encoding="ascii")
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen([program, "-q", folder / "ini"], stdout=log, stderr=log, **as_server()) as process,
        ):
            try:
                while process.poll() is None:
                    with socket.socket() as tried:
                        if tried.connect_ex(("127.0.0.1", port)) == 0:
                            break
                assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
                yield f"postgresql://postgres@127.0.0.1:{port}/store?sslmode=disable&gssencmode=disable"
            finally:
                process.kill()


def test_a_pooler_that_gives_each_transaction_another_session_is_refused(name: str) -> None:
    with bouncer(name, "transaction") as url, pytest.raises(StoreError, match=r"pool_mode = transaction\): name the"):
        PostgresqlEngine(Target(url)).migrate()


def test_a_pooler_that_gives_each_statement_another_session_is_refused(name: str) -> None:
    with bouncer(name, "statement") as url, pytest.raises(StoreError, match="statement pooling"):
        PostgresqlEngine(Target(url)).migrate()


@pytest.mark.parametrize("adds_host", [0, 1])
async def test_a_pooler_that_gives_each_connection_a_session_serves_the_store(name: str, adds_host: int) -> None:
    """Also when it appends the client's address to the names of the connections."""
    with bouncer(name, "session", adds_host=adds_host) as url:
        engine = PostgresqlEngine(Target(url), patience_seconds=PATIENCE)
        async with opened(engine) as (database, journal):
            for number in range(8):
                append(journal, number)
                if number % 3 == 0:
                    server().administration.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
                    )
                assert await database.write(count("a")) == number + 1
            assert await stored(database) == list(range(8))


@pytest.mark.parametrize("adds_host", [0, 1])
async def test_sessions_behind_a_pooler_are_known_by_their_names(name: str, adds_host: int) -> None:
    with bouncer(name, "session", adds_host=adds_host) as url:
        engine = PostgresqlEngine(Target(url), patience_seconds=1)
        async with opened(engine) as (database, _), trio.open_nursery() as nursery:
            nursery.start_soon(cut_silent_forever, engine)
            query = "SELECT pg_backend_pid() AS pid, pg_sleep(2.5)"
            before = await database.look_up(lambda tx: tx.connection.execute(query).one())
            after = await database.look_up(lambda tx: tx.connection.execute("SELECT pg_backend_pid() AS pid").one())
            assert before is not None
            assert after is not None
            assert before["pid"] == after["pid"]  # the server works for it, so it is left alone
            nursery.cancel_scope.cancel()
        # The former session of a connection that is made again may still commit.
        with closing(engine.open(read_only=False)) as connection, engine.target.connect(name=connection.name) as former:
            connection.cut()
            with suppress(StoreLostError):
                connection.execute("SELECT 1 AS one")
            assert connection.execute("SELECT 1 AS one").one() == {"one": 1}
            with pytest.raises(OperationalError):
                former.execute("SELECT 1")
