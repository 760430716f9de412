"""Backup, restore, the doctor and commands of a stopped daemon, with the store in PostgreSQL."""

import shutil
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec import structs

from broker.cluster.keeper import DAEMON
from broker.secrets import Vault
from config.loading import load_settings
from config.settings import Cluster, Settings, Storage
from protocols.doctor.cluster import look_at_cluster
from protocols.doctor.patient import Patient
from protocols.doctor.state import look_at_disk, look_at_store
from protocols.errors import StateError
from protocols.operation.backup import BackupNotWrittenError, make_backup
from protocols.operation.migrate_store import copy_store_to
from protocols.operation.restore import restore_backup
from protocols.operation.standby import alone_for_a_command
from protocols.operation.state import open_state
from storage.engines import engine_at, engine_of, has_store
from storage.engines.postgresql import PostgresqlEngine
from storage.engines.postgresql_connection import PostgresqlConnection
from storage.engines.sqlite import SqliteEngine
from storage.leases import LeaseStore
from storage.sql import StoreError
from tests.daemon import Daemon, command_output, run_command, write_world
from tests.postgresql import server
from tests.rows import each_row
from tests.storage.test_store_copy import contents
from tests.stores import store_of

pytestmark = pytest.mark.processes


class Databases:
    def __init__(self) -> None:
        self.names: list[str] = []

    def new(self, folder: Path, **of: str) -> Settings:
        """Settings with a new database, which is an empty store."""
        self.names.append(server().new_database(**of))
        return Settings(state_dir=folder, storage=Storage(url=server().url(self.names[-1])))


@pytest.fixture
def databases() -> Iterator[Databases]:
    found = Databases()
    yield found
    for name in found.names:
        server().drop(name)


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A state directory with the key, and a database with secrets, an image and messages."""
    folder, name = tmp_path_factory.mktemp("provisioned") / "world", server().new_database()
    url = server().url(name)
    config, file = write_world(folder, devices=2, settings=f'[storage]\nurl = "{url}"\n')
    command_output("provision", file, "--config", config)
    with store_of(load_settings(config, {})) as store:
        store.execute("INSERT INTO file (key, name, size) VALUES (1, 'images/a', 3)")
        store.execute("INSERT INTO file_chunk VALUES (1, 0, :content)", {"content": bytes(3)})
        store.execute("INSERT INTO message (position, device, ts, cts, mv, data) VALUES (1, 1, 1, 1, 1, '{\"a\":1}')")
    yield folder / "state", name
    server().drop(name)


@pytest.fixture
def settings(tmp_path: Path, databases: Databases, provisioned: tuple[Path, str]) -> Settings:
    """A store with secrets, an image and messages in PostgreSQL; its state directory has the key."""
    state, name = provisioned
    shutil.copytree(state, tmp_path / "state")
    return databases.new(tmp_path / "state", template=name)


@pytest.mark.sqlite("in each run it has both engines")
def test_a_backup_is_restored_into_either_engine(settings: Settings, databases: Databases, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    file = tmp_path / "backup.tar.gz"
    make_backup(settings, file, copied=lambda more, total: told.append((more, total)))
    assert sum(more for more, _ in told) > 0
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["manifest.json", "key", "store.sqlite", "SHA256SUMS"]
    before = contents(engine_of(settings))
    for number, storage in enumerate((Storage(), databases.new(tmp_path).storage)):
        there = Settings(state_dir=tmp_path / f"restored{number}", storage=storage)
        restore_backup(there, file)
        after = contents(engine_of(there))
        assert after.pop("audit_entry") != before["audit_entry"]  # which has the restore
        assert after == {name: rows for name, rows in before.items() if name != "audit_entry"}
        assert (there.state_dir / "key").read_bytes() == (settings.state_dir / "key").read_bytes()
        assert (there.state_dir / "store.sqlite").exists() == (number == 0)


@pytest.mark.sqlite("in each run it has both engines")
def test_rows_that_refer_to_lost_rows_are_mended_alike_on_either_engine(
    databases: Databases, settings: Settings, tmp_path: Path
) -> None:
    """SQLite has them where somebody wrote without `foreign_keys`."""
    file = tmp_path / "backup.tar"
    make_backup(settings, file)
    broken = Settings(state_dir=tmp_path / "broken")
    restore_backup(broken, file)
    with closing(sqlite3.connect(broken.state_dir / "store.sqlite")) as db:
        lost = [row[0] for row in db.execute("SELECT key FROM device ORDER BY key LIMIT 1")]
        db.execute("DELETE FROM device WHERE key = ?", lost)
        db.execute("INSERT INTO file_chunk VALUES (77, 0, x'00')")  # a table without row ids
        db.commit()
        dangling = {row[0] for row in db.execute("PRAGMA foreign_key_check")}
        assert {"file_chunk", "device_token"} <= dangling
    make_backup(broken, tmp_path / "broken.tar")
    found, told = list[dict[str, Any]](), list[str]()
    for number, storage in enumerate((Storage(), databases.new(tmp_path).storage)):
        there = Settings(state_dir=tmp_path / f"mended{number}", storage=storage)
        restore_backup(there, tmp_path / "broken.tar", mended=told.append)
        found.append({name: rows for name, rows in contents(engine_of(there)).items() if name != "audit_entry"})
    assert found[0] == found[1]
    assert [row for row in found[0]["file_chunk"] if 77 in row] == []
    assert told[0] == told[1]
    assert told[0].startswith("rows that refer to lost rows: ")
    assert "1 of file_chunk left out" in told[0]
    # And by `migrate-store`, whose source keeps them.
    before = contents(engine_of(broken))
    for to in (databases.new(tmp_path, template="template0").storage.url, str(tmp_path / "copied.sqlite")):
        migrated = copy_store_to(broken, to, tell=lambda _progress: None)
        assert migrated.report.mended == told[0]
        rows = contents(engine_at(to))
        assert {name: of for name, of in rows.items() if name != "audit_entry"} == found[0]
        assert contents(engine_of(broken)) == before


@pytest.mark.sqlite("in each run it has both engines")
def test_what_is_written_during_a_backup_is_not_in_it(settings: Settings, tmp_path: Path) -> None:
    """One snapshot: the daemon runs on."""
    with closing(engine_of(settings).open(read_only=False)) as daemon:

        def write(_more: int, _total: int) -> None:
            daemon.begin(write=True)
            daemon.execute("UPDATE message SET data = 'changed'")
            daemon.execute("DELETE FROM file_chunk")
            daemon.commit()

        make_backup(settings, tmp_path / "backup.tar", copied=write)
    there = Settings(state_dir=tmp_path / "restored")
    restore_backup(there, tmp_path / "backup.tar")
    found = contents(engine_of(there))
    assert (len(found["message"]), len(found["file_chunk"])) == (1, 1)
    assert "changed" not in repr(found["message"])


def test_what_a_restore_refuses_changes_nothing(settings: Settings, databases: Databases, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    make_backup(settings, file)
    engine_of(settings).migrate()
    before = contents(engine_of(settings))
    with pytest.raises(StoreError, match="has a store already"):
        restore_backup(Settings(state_dir=tmp_path / "new", storage=settings.storage), file)
    assert contents(engine_of(settings)) == before
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lock"]


def test_a_backup_with_another_key_or_without_a_server_is_refused(
    settings: Settings, tmp_path: Path, databases: Databases
) -> None:
    (tmp_path / "key").write_bytes(Vault.new_key() + b"\n")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(StateError, match="another store"):
        make_backup(settings, tmp_path / "backup.tar", tmp_path / "key")
    nowhere = Settings(state_dir=settings.state_dir, storage=Storage(url="postgresql://a@127.0.0.1:1/b"))
    with pytest.raises(StoreError, match="is the server running"):
        make_backup(nowhere, tmp_path / "backup.tar")
    with pytest.raises(BackupNotWrittenError):
        make_backup(settings, tmp_path / "nowhere" / "backup.tar")
    assert list(tmp_path.glob("backup*")) == []


def test_the_doctor(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = look_at_store(Patient(settings, None, "", ""))
    assert found.ok, found.text
    assert "PostgreSQL" in found.text
    found, size = look_at_disk(Patient(settings, None, "", ""))
    assert "on the server" in found.text
    assert "free pages" in size.text
    nowhere = Settings(state_dir=settings.state_dir, storage=Storage(url="postgresql://a:secret@127.0.0.1:1/b"))
    (found,) = look_at_store(Patient(nowhere, None, "", ""))
    assert not found.ok
    assert "secret" not in found.text
    (found,) = look_at_disk(Patient(nowhere, None, "", ""))
    assert found.ok
    monkeypatch.setattr("protocols.doctor.database._LONG_SECONDS", -1)
    engine = engine_of(settings)
    assert isinstance(engine, PostgresqlEngine)
    (found, *_) = look_at_store(Patient(settings, None, "", ""))
    assert not found.ok
    assert "a transaction has been open" in found.text


def test_commands_of_a_stopped_daemon(settings: Settings, tmp_path: Path) -> None:
    daemon = Daemon(settings.state_dir, settings=f'[storage]\nurl = "{settings.storage.url}"\n')
    daemon.write_config()
    before = contents(engine_of(settings))

    def run(*command: str) -> tuple[int, str]:
        done = run_command(*command, "--config", daemon.config)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    assert run("serve", "--check")[0] == 0
    for command, says in (("salvage", "pg_amcheck"), ("compact", "autovacuum"), ("undo-upgrade", "restore the backup")):
        status, said = run("store", command)
        assert status == 4
        assert says in said
    (tmp_path / "users.toml").write_text(
        '[[users]]\nemail = "eve@example.org"\npassword = "a long one, it is"\n', encoding="utf-8"
    )
    status, said = run("provision", str(tmp_path / "users.toml"), "--dry-run")
    assert status == 0, said
    assert contents(engine_of(settings)).keys() == before.keys()
    assert contents(engine_of(settings))["user"] == before["user"]
    assert run("migrate") == (0, run("migrate")[1])
    assert run("retention", "confirm")[0] == 0
    status, said = run("key", "rotate")
    assert status == 0, said
    assert "are sealed with the new key" in said
    assert run("serve", "--check")[0] == 0
    status, said = run("backup", str(tmp_path / "backup.tar"))
    assert status == 0, said
    assert not (settings.state_dir / "store.sqlite").exists()


def test_a_lost_key_is_said_and_no_other_is_made(settings: Settings) -> None:
    (settings.state_dir / "key").unlink()
    with pytest.raises(StateError, match=r"missing, but postgresql.* copy it from the machine"), open_state(settings):
        pass
    assert not (settings.state_dir / "key").exists()


def test_commands_begin_no_store_in_an_empty_database(tmp_path: Path, databases: Databases) -> None:
    settings = databases.new(tmp_path / "state", template="template0")
    daemon = Daemon(settings.state_dir, settings=f'[storage]\nurl = "{settings.storage.url}"\n')
    daemon.write_config()
    for command in ("user list", "audit", "migrate", "key rotate", f"backup {tmp_path}/a.tar"):
        done = run_command(*command.split(), "--config", daemon.config)
        assert (done.returncode, done.stderr) == (4, f"trunkline: {engine_of(settings)}: there is no store\n"), command
    (tmp_path / "users.toml").write_text('[[users]]\nemail = "eve@example.org"\n', encoding="utf-8")
    done = run_command("provision", tmp_path / "users.toml", "--dry-run", "--config", daemon.config)
    assert done.returncode == 0, done.stderr
    assert not has_store(settings)


def test_both_engines_are_told_apart(settings: Settings) -> None:
    with closing(engine_of(settings).open(read_only=True)) as connection:
        assert isinstance(connection, PostgresqlConnection)
    assert isinstance(engine_of(Settings(state_dir=settings.state_dir)), SqliteEngine)


# The doctor


def examined(settings: Settings) -> list[tuple[str, bool, str]]:
    """The checks of the database, of which none may raise."""
    patient = Patient(settings, None, "", "trunkline.service")
    checks = [*look_at_store(patient), *look_at_cluster(patient), *look_at_disk(patient)]
    return [(one.check, one.ok, one.text) for one in checks]


def test_the_doctor_says_of_an_empty_database_that_the_first_start_makes_a_store(tmp_path: Path) -> None:
    name = server().new_database(template="template0")
    try:
        store, cluster, disk = examined(Settings(state_dir=tmp_path, storage=Storage(url=server().url(name))))
    finally:
        server().drop(name)
    assert (store[1], store[2].endswith("there is none yet: the first start makes it")) == (True, True)
    assert cluster == ("cluster", True, "no daemon has served this database yet")
    assert disk[1]


@each_row(
    ("make", "change", "said"),
    [
        ("", "nowhere", "is the server running?"),
        ("", "no database", "does not exist (make it: createdb"),
        ("", "no role", "make the role, and a database of its own"),
        ("ENCODING 'SQL_ASCII'", "", "its encoding is SQL_ASCII, not UTF8"),
        ("LOCALE_PROVIDER icu ICU_LOCALE 'en'", "", "its texts are in the order of ICU, not C"),
        ("", "CREATE TABLE of_others (a TEXT)", "something else is in this database"),
        ("", "newer", "a newer version has made it"),
        ("", "guest", "the role"),
    ],
)
def test_the_doctor_says_what_to_do_about_each_mistake(make: str, change: str, said: str) -> None:
    postgresql = server()
    name = f"mistaken_{time.time_ns()}"
    template = "trunkline_template" if change == "newer" else "template0"
    postgresql.administration.execute(f"CREATE DATABASE {name} TEMPLATE {template} {make}".encode())
    url = postgresql.url(name)
    if change == "nowhere":
        url = "postgresql://postgres@127.0.0.1:1/x"
    elif change == "no database":
        url = postgresql.url("nothing_is_here")
    elif change == "no role":
        url = url.replace("postgres@", "nobody_at_all@")
    elif change == "guest":
        postgresql.administration.execute("CREATE ROLE doctors_guest LOGIN")
        url = url.replace("postgres@", "doctors_guest@")
    elif change == "newer":
        with postgresql.target(name).connect() as connection:
            connection.execute("INSERT INTO schema_step (name) VALUES ('9999_of_tomorrow')")
    elif change:
        with postgresql.target(name).connect() as connection:
            connection.execute(change.encode())
    try:
        with TemporaryDirectory() as folder:
            found = examined(Settings(state_dir=Path(folder), storage=Storage(url=url)))
    finally:
        postgresql.drop(name)
        postgresql.administration.execute("DROP ROLE IF EXISTS doctors_guest")
    assert found[0][:2] == ("store", False), found
    assert said in found[0][2], found
    assert all("Traceback" not in text for _, _, text in found)


async def test_two_commands_of_machines_with_one_name_run_one_after_the_other(settings: Settings) -> None:
    settings = structs.replace(settings, cluster=Cluster(node="a", lease_seconds=4.0))
    first, second, third = (engine_of(settings) for _ in range(3))
    assert isinstance(first, PostgresqlEngine)
    assert isinstance(second, PostgresqlEngine)
    assert isinstance(third, PostgresqlEngine)
    async with alone_for_a_command(first, settings, "user list"):
        with closing(first.open(read_only=False)) as writer:
            with pytest.raises(StateError, match=r"the command `user list` runs on this store, of node a: wait until"):
                async with alone_for_a_command(second, settings, "audit"):
                    pass
            writer.begin(write=True)
            writer.execute("DELETE FROM counter")  # nobody has replaced it
            writer.commit()
    async with alone_for_a_command(second, settings, "audit"):
        pass
    # One that was killed: nobody renews its lease, or gives it back.
    with closing(third.open(read_only=False)) as killed:
        assert (
            LeaseStore(killed).take(DAEMON, "a (command audit 1)", "1", 1.0, former=LeaseStore(killed).find(DAEMON))
            is not None
        )
    async with alone_for_a_command(second, settings, "audit"):
        pass
