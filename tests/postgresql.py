"""PostgreSQL for tests: one server for all processes of a run, and databases that tests use one after the other.

`make test ENGINE=postgresql` has all tests use it that make a store or start a daemon (tests/stores.py and
tests/daemon.py). The server is started when a test first needs it, in a folder of its own, and stops when the last
process of the run has ended, however it ended.
"""

import atexit
import fcntl
import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final, cast

from tests.programs import skip_without

if TYPE_CHECKING:
    import psycopg

    from storage.engines.postgresql import PostgresqlEngine
    from storage.engines.postgresql_connection import PostgresqlConnection
    from storage.engines.postgresql_target import Target

#: The engine of this run: `sqlite` or `postgresql`.
ENGINE: Final = os.environ.get("ENGINE") or "sqlite"
if ENGINE not in {"sqlite", "postgresql"}:
    raise ValueError(f"ENGINE is {ENGINE!r}, and not sqlite or postgresql")
_FOLDER: Final = "TESTS_POSTGRESQL"  # of this run; processes of the run inherit it
TEMPLATE: Final = "trunkline_template"
#: A test that fails must not find the server's disk, and nothing of it outlives the run.
_SETTINGS: Final = (
    *("fsync=off", "full_page_writes=off", "listen_addresses=", "max_connections=400", "shared_buffers=64MB"),
    *("autovacuum_naptime=10s", "log_min_messages=fatal", "max_wal_size=4GB", "checkpoint_timeout=1h", "jit=off"),
)
_WATCH: Final = """
import fcntl, json, subprocess, sys, shutil
with open(sys.argv[1] + "/users") as users:
    fcntl.flock(users, fcntl.LOCK_EX)
    subprocess.run(sys.argv[3:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **json.loads(sys.argv[2]))
    shutil.rmtree(sys.argv[1], ignore_errors=True)
"""
_numbers = count()
_held: list[object] = []  # as long as the process runs
_made: list[Path] = []


def programs() -> Path:
    """The folder of PostgreSQL's programs. Where there is none, see `tests/programs.py: skip_without`."""
    if (folder := find_programs()) is None:
        skip_without("postgresql", "its server is not installed (apt-get install postgresql)")
    return folder


def find_programs() -> Path | None:
    if (found := shutil.which("initdb")) is not None:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return folders[-1].parent if folders else None


def folder_of_run() -> Path:
    """The folder in which the server will be. The process that starts all others makes it, before them."""
    if _FOLDER not in os.environ:
        # Short, because it has a socket; and where the server's user may enter.
        shared = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
        folder = mkdtemp(prefix="trunkline-pg.", dir=shared if os.access(shared, os.W_OK) else None)
        os.environ[_FOLDER] = folder
        _made.append(Path(folder))
        if "pytest" not in sys.modules:  # whose end calls it
            atexit.register(end_run)
    return Path(os.environ[_FOLDER])


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the run, which the process makes that first asks for it. `make` gets its path."""
    folder = folder_of_run() / name
    with (folder_of_run() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made := folder_of_run() / f"{name}.made").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that failed
            make(folder)
            made.touch()
    return folder


def end_run() -> None:
    """Remove the folder that this process made, unless a server is in it that will do it.

    A test may run pytest, too, in which the folder is that of the run around it.
    """
    for folder in _made:
        if not (folder / "users").exists():
            shutil.rmtree(folder, ignore_errors=True)


def as_server() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid():
        return {}
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _give_to_server(folder: Path) -> None:
    if not os.geteuid():
        os.chown(folder, as_server()["user"], as_server()["group"])
    folder.chmod(0o755)


class Server:
    """A server with a folder of its own; connections come through a socket in it, without a password."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        #: Variables of its processes, beside those of this one.
        self.environment: dict[str, str] = {}

    def make(self, *settings: str, like: Path | None = None) -> None:
        """`like`: data of a server that does not run; None: empty ones."""
        _give_to_server(self.folder)
        subprocess.run(["cp", "-a", like or self._initial(), self.data], check=True, **as_server())
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            for setting in (*_SETTINGS, *settings, f"unix_socket_directories={self.folder}"):
                name, _, value = setting.partition("=")
                file.write(f"{name} = '{value}'\n")

    def _initial(self) -> Path:
        """Data as initdb makes them, once in a run: half a second of processor time, of which a copy takes a tenth."""

        def make(folder: Path) -> None:
            folder_of_run().chmod(0o755)
            folder.mkdir()
            _give_to_server(folder)
            options = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
            self._run("initdb", "-D", folder / "data", *options)

        return made_once("initial", make) / "data"

    def standby(self, folder: Path) -> "Server":
        """Another server, which does not run yet: a copy of this one, which runs, and follows it when it is started."""
        made = Server(folder)
        folder.mkdir(mode=0o755)
        if not os.geteuid():
            os.chown(folder, as_server()["user"], as_server()["group"])
        whole = ("-c", "fast", "-X", "stream", "--no-sync", "-R")
        self._run("pg_basebackup", "-D", made.data, "-d", f"host={self.folder} user=postgres", *whole)
        with (made.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(f"unix_socket_directories = '{folder}'\n")
        return made

    def promote(self) -> None:
        self._run("pg_ctl", "-D", self.data, "-w", "-s", "promote")

    def set(self, name: str, value: str) -> None:
        """Change a setting of the server that runs, which is known to it when this returns."""
        with self.target("postgres").connect(name="tests") as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
            connection.execute("SELECT pg_reload_conf()")
            while connection.execute(f"SHOW {name}".encode()).fetchone() != (value,):
                time.sleep(0.01)
            connection.execute("CHECKPOINT")  # who makes it tells the others whether commits wait for a standby

    def start(self) -> None:
        self._run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "-s", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run(*self.stopping(mode))
        if (administration := self.__dict__.pop("administration", None)) is not None:
            administration.close()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """All processes of the server are stopped while the block lasts."""
        main = int((self.data / "postmaster.pid").read_text(encoding="ascii").splitlines()[0])
        children = Path(f"/proc/{main}/task/{main}/children")
        os.kill(main, signal.SIGSTOP)  # it makes no more of them
        processes = [main, *map(int, children.read_text(encoding="ascii").split())]
        try:
            for process in processes[1:]:
                os.kill(process, signal.SIGSTOP)
            yield
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def stopping(self, mode: str = "fast") -> list[str | Path]:
        return ["pg_ctl", "-D", self.data, "-m", mode, "-w", "-s", "stop"]

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def urls(self, database: str, *others: "Server") -> str:
        """The address of whichever of these servers takes writes."""
        hosts = ",".join(str(one.folder) for one in (self, *others))
        return f"postgresql://postgres@/{database}?host={hosts}&target_session_attrs=read-write"

    def target(self, database: str) -> "Target":
        from storage.engines.postgresql_target import Target

        return Target(self.url(database), synchronous=False)

    def _run(self, name: str | Path, *arguments: str | Path) -> None:
        command = [programs() / name, *arguments]
        # A pipe would stay open in the server.
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=False,
            env={**os.environ, **self.environment},
            **as_server(),
        )
        assert not done.returncode, f"{command} failed; {self.folder / 'log'} may say why"

    @cached_property
    def administration(self) -> "psycopg.Connection[Any]":
        """A connection that makes and removes databases."""
        return self.target("postgres").connect(name="tests")

    def new_database(self, *, template: str = TEMPLATE) -> str:
        name = f"t{os.getpid()}_{next(_numbers)}"
        self.make_database(name, template)
        return name

    def make_database(self, name: str, template: str) -> None:
        self.administration.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy".encode())

    def drop(self, name: str) -> None:
        self.administration.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@cache
def server() -> Server:
    """The server of this run, with a database that has the schema."""
    from storage.engines.postgresql import PostgresqlEngine

    folder_of_run()
    folder = Path(os.environ[_FOLDER])
    found = Server(folder)
    with (folder / "begin").open("w") as beginning:
        fcntl.flock(beginning, fcntl.LOCK_EX)
        users = (folder / "users").open("w")
        fcntl.flock(users, fcntl.LOCK_SH)
        _held.append(users)
        if not (folder / "ready").exists():
            found.make()
            found.start()
            stop = [str(programs() / "pg_ctl"), *map(str, found.stopping()[1:])]
            watch = [sys.executable, "-c", _WATCH, str(folder), json.dumps(as_server()), *stop]
            _held.append(subprocess.Popen(watch, stdin=subprocess.DEVNULL, start_new_session=True))
            found.administration.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0".encode())
            PostgresqlEngine(found.target(TEMPLATE)).migrate()
            with found.target(TEMPLATE).connect() as template:
                template.execute(_BEGIN_ANEW)
            (folder / "ready").touch()
    return found


class _Kept:
    """A database and a connection that serve one test after the other."""

    def __init__(self) -> None:
        from storage.engines.postgresql import PostgresqlEngine

        self.name = server().new_database()
        engine = PostgresqlEngine(server().target(self.name))
        self.columns = engine.columns
        self.connection = engine.open(read_only=False)
        self.is_lent = False
        self._tables = self._emptied()

    def restart(self) -> bool:
        """Empty the tables that have rows. To make a database takes a hundred times as long.

        Returns:
            False: a test has taken tables away, or made some.
        """
        self.connection.rollback()
        self.is_lent = False
        return self._emptied() == self._tables

    def drop(self) -> None:
        self.connection.close()
        server().drop(self.name)

    def _emptied(self) -> list[str]:
        """The tables, which are empty now."""
        row = self.connection.execute("SELECT begin_test_anew(:mid) AS tables", {"mid": secrets.token_bytes(32)}).one()
        self.connection.forget()
        assert row is not None
        tables: list[str] = row["tables"]
        return tables


class _Databases:
    """The databases of this process: for each file that SQLite would have, one."""

    def __init__(self) -> None:
        self._free: list[_Kept] = []
        self._of: dict[Path, _Kept] = {}

    def at(self, path: Path) -> _Kept:
        """The database of a path, which begins as an empty store."""
        if path not in self._of:
            self._forget(lambda other: not other.parent.exists())  # examples of one test follow each other
            self._of[path] = self._begun()
        return self._of[path]

    def _begun(self) -> _Kept:
        while self._free:
            if (kept := self._free.pop()).restart():
                return kept
            kept.drop()
        return _Kept()

    def end_test(self) -> None:
        self._forget(lambda _path: True)

    def _forget(self, is_over: Callable[[Path], bool]) -> None:
        for path in [path for path in self._of if is_over(path)]:
            self._free.append(self._of.pop(path))

    def close(self) -> None:
        self.end_test()
        for one in self._free:
            one.connection.close()
        self._free.clear()


DATABASES: Final = _Databases()


class _StateDatabases:
    """For each state directory a database, which daemons and commands have. It is dropped after its folder."""

    def __init__(self) -> None:
        self._of: dict[Path, str] = {}

    def url(self, state: Path) -> str:
        """The address of the database, which is empty until a daemon or `begin` makes a store in it."""
        return server().url(self._name(state))

    def begin(self, state: Path, source: Path | None = None) -> None:
        """Make it an empty store, or a copy of that of another state directory, which nobody uses."""
        self._begin(state, TEMPLATE if source is None else self._of[source.absolute()])

    def empty(self, state: Path) -> None:
        """Of the store nothing is left."""
        self._begin(state, "template0")

    def move(self, state: Path, to: Path) -> None:
        name, new = self._of[state.absolute()], f"t{os.getpid()}_{next(_numbers)}"
        server().administration.execute(f"ALTER DATABASE {name} RENAME TO {new}".encode())
        self._of[to.absolute()] = new
        server().make_database(name, "template0")

    def drop(self, state: Path) -> None:
        """The state directory is not used any more."""
        if (name := self._of.pop(state.absolute(), None)) is not None:
            server().drop(name)

    def end_test(self) -> None:
        for state in [state for state in self._of if not state.parent.exists()]:
            self.drop(state)

    def _name(self, state: Path) -> str:
        """Its database, which is empty if there was none."""
        return self._of.get(state.absolute()) or self._begin(state, "template0")

    def _begin(self, state: Path, template: str) -> str:
        """Make its database anew, under the name that it has."""
        state = state.absolute()
        if (name := self._of.get(state)) is not None:
            server().drop(name)
        name = self._of[state] = name or f"t{os.getpid()}_{next(_numbers)}"
        server().make_database(name, template)
        return name


STATES: Final = _StateDatabases()


def migrated_engine(path: Path) -> "PostgresqlEngine":
    """An engine on the database of a path."""
    from storage.engines.postgresql import PostgresqlEngine

    class Migrated(PostgresqlEngine):
        """Its database is made when it is first used."""

        def __init__(self) -> None:
            super().__init__(server().target("postgres"))
            self.path = path

        def migrate(self) -> None:
            self._kept()

        def _kept(self) -> _Kept:
            kept = DATABASES.at(path)
            self.target, self.columns = server().target(kept.name), kept.columns
            return kept

        def open(self, *, read_only: bool) -> "PostgresqlConnection":
            self._kept()
            return super().open(read_only=read_only)

        def open_on_loop(self) -> "PostgresqlConnection":
            """The one connection of a store that is read and written on the event loop."""
            kept = self._kept()
            if kept.is_lent:
                return self.open(read_only=False)
            kept.is_lent = True
            return cast("PostgresqlConnection", _Lent(kept))

    return Migrated()


class _Lent:
    """A connection that stays open when the test closes it."""

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept.connection, name)

    def close(self) -> None:
        self._kept.connection.rollback()
        self._kept.is_lent = False


#: Deletes what a test has left: which is quicker than TRUNCATE for some rows in a few of many tables.
_BEGIN_ANEW: Final = """
CREATE FUNCTION begin_test_anew(mid BYTEA) RETURNS TEXT[] LANGUAGE plpgsql AS $$
DECLARE
  of_table TEXT;
  has_rows BOOLEAN;
  counting TEXT;
BEGIN
  SET LOCAL session_replication_role = replica;
  FOR of_table IN
    SELECT quote_ident(relname) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname NOT IN ('schema_step', 'store_version')
      AND pg_relation_size(oid) > 0  -- most tables have never had a row
  LOOP
    EXECUTE 'SELECT EXISTS (SELECT 1 FROM ' || of_table || ')' INTO has_rows;
    IF has_rows THEN
      EXECUTE 'DELETE FROM ' || of_table;
      SELECT pg_get_serial_sequence(of_table, attname) INTO counting FROM pg_attribute
        WHERE attrelid = of_table::regclass AND attidentity <> '';
      IF FOUND THEN
        PERFORM setval(counting, 1, FALSE);
      END IF;
    END IF;
  END LOOP;
  PERFORM setval('log', 0);
  INSERT INTO secret (name, value) VALUES ('mid', mid);
  RETURN (SELECT array_agg(relname::TEXT ORDER BY relname) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition);
END $$
"""
