"""A database and a server that others use, too: their settings, objects, rights and locks."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import trio
from structlog.testing import capture_logs

from broker.cluster.keeper import AWAY
from config.settings import Settings, Storage
from protocols.doctor.patient import Patient
from protocols.doctor.state import look_at_store
from protocols.operation.standby import cut_silent_forever
from storage import migrations
from storage.engines.postgresql import PostgresqlEngine
from storage.engines.postgresql_connection import PostgresqlConnection
from storage.engines.postgresql_rights import CONNECTIONS, ours
from storage.engines.postgresql_schema import LOG_LOCK, WORKS_LOCK
from storage.engines.postgresql_target import Target
from storage.sql import StoreError
from tests.postgresql import Server, server
from tests.rows import each_row
from tests.storage.test_postgresql import append, count, opened, stored

pytestmark = pytest.mark.processes

ROLE: Final = "tenant"
#: Of a role whose owner wants something else of his sessions.
STRANGE: Final = {
    "search_path": "elsewhere, pg_temp",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "default_transaction_read_only": "on",
    "statement_timeout": "100",
    "lock_timeout": "100",
    "idle_session_timeout": "2000",
    "idle_in_transaction_session_timeout": "2000",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "quote_all_identifiers": "on",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "datestyle": "SQL, DMY",
    "intervalstyle": "iso_8601",
    "timezone": "Pacific/Chatham",
    "application_name": "theirs",
    "client_encoding": "latin1",
    "synchronous_commit": "off",
}


class Shared:
    """An empty database of a role, and whoever administers the server."""

    def __init__(self, like: str = "") -> None:
        """`like`: the name of a database in which the role has made a store; "": it makes the roles."""
        self._server, self._like = server(), like
        self.administration = self._server.administration
        if not like:
            for role in (ROLE, "app"):
                self.administration.execute(f"CREATE ROLE {role} LOGIN".encode())
        self.name = self._server.new_database(template="template0")
        self._give_to_role()
        self.url = self._server.url(self.name).replace("postgres@", f"{ROLE}@")

    def _give_to_role(self) -> None:
        self.administration.execute(f"ALTER DATABASE {self.name} OWNER TO {ROLE}".encode())

    def engine(self, *, patience: float = 5.0, options: str = "") -> PostgresqlEngine:
        return PostgresqlEngine(Target(f"{self.url}{options}"), patience_seconds=patience)

    def made(self) -> "Shared":
        """It has a store as its role makes one."""
        self._server.drop(self.name)
        self._server.make_database(self.name, self._like)
        self._give_to_role()
        return self

    def migrated(self) -> "Shared":
        """The same, made with all that the test has changed, which takes ten times as long."""
        self.engine().migrate()
        return self

    def as_owner(self, sql: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.encode())

    def as_superuser(self, sql: str) -> None:
        with psycopg.connect(self._server.url(self.name), autocommit=True) as connection:
            connection.execute(sql.encode())

    @contextmanager
    def session_of(self, sql: str) -> Iterator[None]:
        """Another application's session with an open transaction."""
        with psycopg.connect(self._server.url(self.name), application_name="theirs") as connection:
            connection.execute(sql.encode())
            yield
            connection.rollback()

    def drop(self) -> None:
        self._server.drop(self.name)
        roles = [f"ALTER ROLE {ROLE} RESET ALL", f"ALTER ROLE {ROLE} LOGIN CONNECTION LIMIT -1"]
        roles += [f"REVOKE app, pg_read_all_stats FROM {ROLE}"]
        for sql in roles if self._like else [f"DROP ROLE {ROLE}", "DROP ROLE app"]:
            self.administration.execute(sql.encode())


@pytest.fixture(scope="module")
def store_of_role() -> Iterator[str]:
    found = Shared().migrated()
    yield found.name
    found.drop()


@pytest.fixture
def shared(store_of_role: str) -> Iterator[Shared]:
    found = Shared(store_of_role)
    yield found
    found.drop()


def refusal(of: Shared, *, passes: bool = False) -> str:
    """What is said. `passes`: a daemon that starts waits for the end of it, and ends otherwise."""
    with pytest.raises(StoreError) as caught:
        of.engine(patience=0).migrate()
    assert isinstance(caught.value, AWAY) == passes
    return str(caught.value)


# Settings


async def test_settings_of_the_role_and_of_the_database_change_nothing(shared: Shared) -> None:
    shared.as_superuser("CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.message (a TEXT)")
    whose = cycle((f"ROLE {ROLE}", f"DATABASE {shared.name}"))
    for of, (name, value) in zip(whose, STRANGE.items(), strict=False):
        shared.administration.execute(setting(of, name, value))
    shared.migrated()
    async with opened(shared.engine()) as (database, journal):
        assert await database.write(count("a")) == 1
        append(journal, 1)
        await journal.wait_committed()
        assert await stored(database) == [1]
    with closing(shared.engine().open(read_only=False)) as connection:
        sql = (
            "SELECT 0.1::double precision + 0.2::double precision AS sum, member_at(:json, 'a') #>> '{}' AS escaped,"
            " current_setting('transaction_isolation') AS isolation, current_setting('application_name') AS name,"
            " current_setting('statement_timeout') AS seconds, pg_sleep(0.15)::text"
        )
        row = connection.execute(sql, {"json": '{"a":"\\\\u0000 b"}'}).one()
    assert row is not None
    assert (row["sum"], row["escaped"], row["isolation"]) == (0.1 + 0.2, "\\u0000 b", "read committed")
    assert row["name"].startswith("trunkline ")


def test_all_settings_of_a_session_are_its_own(shared: Shared) -> None:
    """Whatever the role has for them."""
    before = settings_of(shared)
    for name, value in STRANGE.items():
        shared.administration.execute(setting(f"ROLE {ROLE}", name, value))
    assert settings_of(shared) == before


def setting(of: str, name: str, value: str) -> bytes:
    return f"ALTER {of} SET {name} = {value if name == 'search_path' else repr(value)}".encode()


def settings_of(shared: Shared) -> dict[str, str]:
    with shared.engine().target.connect() as connection:
        return {name: str(connection.execute(f"SHOW {name}".encode()).fetchone()) for name in STRANGE}


@each_row("options", ["&application_name=theirs", "&fallback_application_name=theirs"])
def test_sessions_have_the_names_by_which_former_ones_are_ended(shared: Shared, options: str) -> None:
    """Also where the address names the application."""
    engine = shared.made().engine(options=options)
    with closing(engine.open(read_only=False)) as first, closing(engine.open(read_only=False)) as second:
        names = second.execute("SELECT application_name AS name FROM pg_stat_activity WHERE usename = current_user")
        found = {row["name"] for row in names}
        assert {first.name, second.name} <= found
        engine.end_sessions(engine.instance)
        with pytest.raises(StoreError):
            first.execute("SELECT 1")


def test_a_role_that_becomes_another_one_acts_as_itself(shared: Shared) -> None:
    """Else it could not end its own former sessions."""
    shared.administration.execute(f"GRANT app TO {ROLE}".encode())
    shared.administration.execute(f"ALTER ROLE {ROLE} SET role = app".encode())
    engine = shared.made().engine()
    with closing(engine.open(read_only=False)) as connection:
        row = connection.execute("SELECT current_user AS role").one()
        assert row == {"role": ROLE}
        connection.driver.execute("SELECT set_config('application_name', 'trunkline before.1', FALSE)")
        engine.end_sessions("before")
        with pytest.raises(StoreError):
            connection.execute("SELECT 1")


def test_references_that_the_role_does_not_keep_are_refused(shared: Shared) -> None:
    shared.administration.execute(f"ALTER ROLE {ROLE} SET session_replication_role = replica".encode())
    assert f"ALTER ROLE {ROLE} RESET session_replication_role" in refusal(shared)


# Objects


def test_objects_of_the_same_names_in_other_schemas_are_not_taken(shared: Shared) -> None:
    shared.as_superuser(
        f"CREATE SCHEMA {ROLE}; CREATE SCHEMA other; CREATE TABLE {ROLE}.message (a TEXT); CREATE SEQUENCE {ROLE}.log;"
        f" CREATE TABLE other.lease (a TEXT, strange TEXT); CREATE VIEW {ROLE}.device AS SELECT 1 AS a;"
        f" CREATE FUNCTION {ROLE}.member_at(TEXT, TEXT) RETURNS JSON LANGUAGE sql AS 'SELECT NULL::json';"
        f" CREATE TYPE {ROLE}.secret AS (a TEXT); CREATE FUNCTION other.f(bigint, bigint) RETURNS boolean LANGUAGE sql"
        f" AS 'SELECT FALSE'; CREATE OPERATOR {ROLE}.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = other.f);"
        f" GRANT USAGE ON SCHEMA {ROLE}, other TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA {ROLE}, other TO PUBLIC"
    )
    engine = shared.migrated().engine()
    with closing(engine.open(read_only=False)) as connection:
        connection.insert_many("counter", ("name", "value"), [("a", 1)])
        row = connection.execute("SELECT value FROM counter WHERE value = :one", {"one": 1}).one()
        assert row == {"value": 1}
    with engine.snapshot() as snapshot:
        assert snapshot.has("lease", "node")
        assert not snapshot.has("lease", "strange")


@each_row(
    ("make", "kind", "name"),
    [
        ("CREATE TABLE of_others (a TEXT)", "table", "of_others"),
        ("CREATE TABLE p (a INT) PARTITION BY RANGE (a)", "table", "p"),
        ("CREATE VIEW device AS SELECT 1 AS a", "view", "device"),
        ("CREATE SEQUENCE log", "sequence", "log"),
    ],
)
def test_a_database_in_which_something_else_is_gets_no_store(shared: Shared, make: str, kind: str, name: str) -> None:
    shared.as_owner(make)
    said = refusal(shared)
    shared.as_owner(f"DROP {kind} {name}")
    assert f"something else is in this database (the {kind} {name}), and no store" in said


def test_what_others_put_beside_the_store_is_told_and_in_no_copy(shared: Shared, tmp_path: Path) -> None:
    shared.made()
    with closing(shared.engine().open(read_only=True)) as connection:
        tables = connection.tables().shapes()
    shared.as_owner("CREATE TABLE of_others (a TEXT); CREATE VIEW theirs AS SELECT 1 AS a")
    with closing(shared.engine().open(read_only=True)) as connection:
        assert connection.tables().shapes() == tables
    shared.as_superuser("GRANT CREATE ON SCHEMA public TO app, PUBLIC")
    said = [one.text for one in examined(shared, tmp_path) if not one.ok]
    assert "PUBLIC, app may make objects in the schema public" in said[0]
    assert "REVOKE CREATE ON SCHEMA public FROM PUBLIC, app" in said[0]
    assert "theirs, of_others in the schema public is not Trunkline's, and in no backup" in said[1]


def examined(shared: Shared, folder: Path, url: str = "") -> list[Any]:
    settings = Settings(state_dir=folder, storage=Storage(url=url or shared.url))
    return list(look_at_store(Patient(settings, None, "", "")))


def test_the_names_of_the_stores_objects_are_those_that_it_has(shared: Shared) -> None:
    with shared.made().engine().target.connect() as connection:
        relations = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
            " AND NOT relispartition"
        ).fetchall()
        functions = connection.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        ).fetchall()
    assert {name for (name,) in relations} <= set(ours()["relations"])
    assert {name for (name,) in functions} <= set(ours()["functions"])


# Rights


@each_row(
    ("change", "back", "said"),
    [
        (
            "ALTER TABLE message_0 OWNER TO app",
            "ALTER TABLE message_0 OWNER TO tenant",
            "the table message_0 belongs to the role app, and the role tenant has not its rights",
        ),
        ('ALTER TABLE "user" OWNER TO app', 'ALTER TABLE "user" OWNER TO tenant', "(BACK)"),
        (
            "ALTER FUNCTION message_partitions() OWNER TO app",
            "ALTER FUNCTION message_partitions OWNER TO tenant",
            "(BACK)",
        ),
        ("ALTER SEQUENCE log OWNER TO app", "ALTER SEQUENCE log OWNER TO tenant", "(BACK)"),
        ("REVOKE INSERT ON device FROM tenant", "GRANT ALL ON TABLE device TO tenant", "(BACK)"),
        ("REVOKE SELECT ON schema_step FROM tenant", "GRANT ALL ON TABLE schema_step TO tenant", "(BACK)"),
        ("REVOKE UPDATE ON log FROM tenant", "GRANT ALL ON SEQUENCE log TO tenant", "(BACK)"),
        (
            "REVOKE EXECUTE ON FUNCTION member_at FROM PUBLIC, tenant",
            "GRANT ALL ON FUNCTION member_at TO tenant",
            "(BACK)",
        ),
        (
            "ALTER TABLE device ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
            "ALTER TABLE device NO FORCE ROW LEVEL SECURITY",
            "(BACK)",
        ),
        (
            "REVOKE USAGE ON SCHEMA public FROM PUBLIC, pg_database_owner",
            "GRANT USAGE, CREATE ON SCHEMA public TO tenant",
            "(BACK)",
        ),
        (
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC, pg_database_owner, tenant",
            "GRANT USAGE, CREATE ON SCHEMA public TO tenant",
            "the role may make no tables: let it own the database",
        ),
        (
            "ALTER SCHEMA public RENAME TO gone",
            "ALTER SCHEMA gone RENAME TO public",
            "there is no schema public in this database: CREATE SCHEMA public",
        ),
    ],
)
def test_a_right_that_is_missing_is_named(shared: Shared, tmp_path: Path, change: str, back: str, said: str) -> None:
    """At a start, and by the doctor and `serve --check`, which open a snapshot; (BACK): with what gives it."""
    engine = shared.made().engine()
    shared.as_superuser(change)
    found, (by_doctor,) = refusal(shared), examined(shared, tmp_path)
    assert said.replace("(BACK)", back) in found
    assert (by_doctor.ok, by_doctor.text) == (False, found)
    shared.as_superuser(back)
    engine.migrate()


def test_rows_that_become_hidden_are_an_error_and_not_less_rows(shared: Shared) -> None:
    with closing(shared.made().engine().open(read_only=False)) as connection:
        shared.as_superuser("ALTER TABLE counter ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        with pytest.raises(StoreError, match="row-level security"):
            connection.execute("SELECT * FROM counter")


def test_a_superuser_is_told_that_less_is_enough(shared: Shared, tmp_path: Path) -> None:
    shared.made()
    (found,) = examined(shared, tmp_path, server().url(shared.name))
    assert found.ok
    assert "its role is a superuser: one that owns the database is enough" in found.text


def test_transactions_that_cannot_be_seen_are_told(shared: Shared, tmp_path: Path) -> None:
    shared.made()
    with shared.session_of("SELECT 1"):
        (found,) = examined(shared, tmp_path)
        assert "transactions of postgres cannot be seen: GRANT pg_read_all_stats" in found.text
        shared.administration.execute(f"GRANT pg_read_all_stats TO {ROLE}".encode())
        (found,) = examined(shared, tmp_path)
        assert "cannot be seen" not in found.text


# Connections


@each_row(
    ("change", "back"),
    [
        ("ALTER ROLE tenant CONNECTION LIMIT 3", "ALTER ROLE tenant CONNECTION LIMIT -1"),
        ("ALTER DATABASE {name} CONNECTION LIMIT 3", "ALTER DATABASE {name} CONNECTION LIMIT -1"),
        ("ALTER ROLE tenant NOLOGIN", "ALTER ROLE tenant LOGIN"),
        ("REVOKE CONNECT ON DATABASE {name} FROM PUBLIC, tenant", "GRANT CONNECT ON DATABASE {name} TO tenant"),
        ("ALTER DATABASE {name} ALLOW_CONNECTIONS false", "ALTER DATABASE {name} ALLOW_CONNECTIONS true"),
    ],
)
def test_connections_that_are_not_allowed_are_named_with_what_allows_them(
    shared: Shared, change: str, back: str
) -> None:
    engine = shared.made().engine()
    shared.administration.execute(change.format(name=shared.name).encode())
    assert back.format(name=shared.name) in refusal(shared)
    shared.administration.execute(back.format(name=shared.name).encode())
    engine.migrate()


def test_connections_beyond_the_limit_are_waited_for_and_named(shared: Shared) -> None:
    shared.made().administration.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT {CONNECTIONS}".encode())
    held = [psycopg.connect(shared.url) for _ in range(CONNECTIONS)]
    try:
        assert f"ALTER ROLE {ROLE} CONNECTION LIMIT -1" in refusal(shared, passes=True)
    finally:
        for connection in held:
            connection.close()


# Locks


@each_row(
    ("sql", "works", "rows"),
    [
        ("LOCK TABLE counter", False, True),
        ("LOCK TABLE message", True, False),
        (f"SELECT pg_advisory_xact_lock({WORKS_LOCK})", False, True),
        (f"SELECT pg_advisory_xact_lock({LOG_LOCK})", True, False),
    ],
)
async def test_a_lock_of_somebody_else_refuses_within_the_patience_and_is_named(
    shared: Shared, sql: str, works: bool, rows: bool
) -> None:
    """Nothing waits for ever, nothing is lost, and all goes on afterwards."""
    engine = shared.made().engine(patience=1)
    async with opened(engine) as (database, journal), trio.open_nursery() as nursery:
        nursery.start_soon(cut_silent_forever, engine)
        await database.write(lambda tx: tx.connection.execute("DELETE FROM message"))
        append(journal, 1)
        await journal.wait_committed()
        with shared.session_of(sql):
            for write, goes in ((partial(database.write, count("a")), works), (journal.wait_committed, rows)):
                if write == journal.wait_committed:
                    append(journal, 2)
                with trio.fail_after(10):
                    if goes:
                        await write()
                        continue
                    with pytest.raises(StoreError, match=r"lock of process \d+ of role postgres \(theirs\)"):
                        await write()
        await database.write(count("a"))
        append(journal, 3)
        await journal.wait_committed()
        assert await stored(database) == ([1, 2, 3] if rows else [1, 3])
        nursery.cancel_scope.cancel()


def test_a_step_of_the_schema_waits_for_locks_and_says_whose(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.made()
    shared.as_owner("DELETE FROM schema_step WHERE name LIKE '0093%'")
    told, stop = list[str](), threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        if "waits for a lock" in text:
            stop.set()

    def hold(begun: threading.Event) -> None:
        with shared.session_of("LOCK TABLE schema_step IN SHARE MODE"):
            begun.set()
            stop.wait(60)

    begun = threading.Event()
    thread = threading.Thread(target=hold, args=(begun,))
    thread.start()
    begun.wait()
    monkeypatch.setattr("storage.engines.postgresql._STEP_LOCK_SECONDS", 0.2)
    try:
        PostgresqlEngine(Target(shared.url), progress=tell).migrate()
    finally:
        stop.set()
        thread.join()
    assert "step 1 of 1, 0093_partitions_among_others" in told[0]
    assert "waits for a lock of process" in told[1]
    assert "of role postgres (theirs)" in told[1]
    with shared.engine().target.connect() as connection:
        assert connection.execute("SELECT count(*) FROM schema_step").fetchone() == (len(migrations.names()),)


def test_a_lock_of_the_same_number_is_named(shared: Shared) -> None:
    with shared.session_of("SELECT pg_advisory_lock(128034945264384)"):
        said = refusal(shared, passes=True)
    assert "of role postgres (theirs) holds the advisory lock 128034945264384: end it" in said
    shared.migrated()


# Partitions


def test_an_event_trigger_that_forbids_tables_stops_no_message_while_there_is_room(shared: Shared) -> None:
    shared.made().as_superuser(
        "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$;"
        " CREATE EVENT TRIGGER no ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION no()"
    )
    try:
        with closing(shared.engine().open(read_only=False)) as connection, capture_logs() as logs:
            connection.execute("SELECT setval('log', 15000000)")
            columns = ("position", "device", "ts", "cts", "mv", "data")
            for begins in (False, True):
                if begins:
                    connection.begin(write=True)
                connection.partitions.forget()
                connection.insert_log([("message", columns, [(1, 1, 1, 1, 1, "{}")])], head=1)
                if begins:
                    connection.commit()
            assert connection.execute("SELECT count(*) AS n FROM message").one() == {"n": 2}
        assert [one["reason"] for one in logs if one["event"] == "database_warns"] == [
            "no partition for further messages: not today"
        ] * 2
    finally:
        shared.as_superuser("DROP EVENT TRIGGER no")
    with closing(shared.engine().open(read_only=False)) as connection:
        row = connection.execute(
            "SELECT message_partitions_from(15000000) AS behind, current_setting('lock_timeout') AS patience"
        ).one()
        assert row == {"behind": 30_000_000, "patience": "5s"}


def test_dropping_a_partition_leaves_the_patience_as_it_was(shared: Shared) -> None:
    with closing(shared.made().engine().open(read_only=False)) as connection:
        connection.execute("SELECT setval('log', 15000000)")
        connection.begin(write=True)
        connection.drop_partition(connection.full_partitions()[0])
        assert connection.execute("SELECT current_setting('lock_timeout') AS now").one() == {"now": "5s"}
        connection.commit()
        assert isinstance(connection, PostgresqlConnection)


# What keeps the room of deleted rows


def test_what_keeps_the_servers_disk_from_being_freed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Server(Path(server().folder) / "prepared")
    own.folder.mkdir()
    own.make("max_prepared_transactions=1", "wal_level=replica", "max_wal_size=32MB")
    own.start()
    try:
        own.administration.execute("CREATE DATABASE store TEMPLATE template0")
        PostgresqlEngine(own.target("store")).migrate()
        with psycopg.connect(own.url("store"), autocommit=True) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT pg_current_xact_id()")
            connection.execute("PREPARE TRANSACTION 'theirs'")
        monkeypatch.setattr("protocols.doctor.database._LONG_SECONDS", -1)
        settings = Settings(state_dir=tmp_path, storage=Storage(url=own.url("store")))
        said = [one.text for one in look_at_store(Patient(settings, None, "", ""))]
        assert any("a prepared transaction has been open for" in text for text in said)
        with psycopg.connect(own.url("store"), autocommit=True) as connection:
            connection.execute("ROLLBACK PREPARED 'theirs'")
            connection.execute("SELECT pg_create_physical_replication_slot('gone', TRUE)")
            for _ in range(4):
                connection.execute("SELECT pg_switch_wal(), pg_logical_emit_message(FALSE, 'a', 'b')")
            connection.execute("CHECKPOINT")
        said = [one.text for one in look_at_store(Patient(settings, None, "", ""))]
        assert any("keeps its log for the replication slot gone, which nobody reads" in text for text in said)
    finally:
        own.stop("immediate")
