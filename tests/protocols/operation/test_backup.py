"""A backup has everything, whole or not at all, and a restore overwrites nothing (reference 27.9)."""

import hashlib
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from threading import Event

import msgspec
import pytest

from broker.backup.archive import BackupError, BackupManifest, CopyPace, read_manifest
from broker.export.status import ExportStatus
from config.settings import Settings, Storage
from protocols.errors import StateError, StateInUseError
from protocols.operation.backup import Backup, BackupNotWrittenError, make_backup
from protocols.operation.key_file import KeyFile
from protocols.operation.restore import restore_backup
from protocols.operation.state import open_state
from storage.engines import engine_of, has_store
from storage.engines.sqlite import SqliteEngine
from storage.engines.sqlite_check import Look
from storage.engines.sqlite_tables import SqliteTables
from storage.files import FileStore
from storage.firmware import FirmwareImageRecord, FirmwareStore
from storage.keys import DeviceTypeKey, Milliseconds
from storage.sealed import SEALED_COLUMNS
from storage.sql import StoreError, sure
from storage.store_copy import require_free
from tests.broker.test_resealing import opened
from tests.postgresql import ENGINE
from tests.protocols.operation.sealed_state import make_sealed_state
from tests.stored_files import files_in
from tests.stores import configuration, copy_state, lift_references, storage_of, store_of

IMAGE = "1a" * 16
#: Of the store in the state directory.
FILES = ["store.sqlite"] if ENGINE == "sqlite" else []


@pytest.fixture(scope="module")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sealed_state(tmp_path_factory.mktemp("template") / "state", 1)


@pytest.fixture
def settings(tmp_path: Path, _template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A state directory with secrets, a firmware image, and rows that are only in the write-ahead log.

    The rows are made up, and refer to nobody: test_postgresql_store.py has what a restore does with such ones.
    """
    monkeypatch.setattr(SqliteEngine, "mend_references", lambda _engine: "")
    settings = settings_at(tmp_path / "state")
    copy_state(_template, settings.state_dir)
    (settings.state_dir / "images").mkdir()
    (settings.state_dir / "images" / IMAGE).write_bytes(b"firmware")
    with closing(engine_of(settings).open(read_only=False)) as store:
        store.execute("INSERT INTO counter VALUES ('a', 7)")
        lift_references(store)
        FirmwareStore(store).put(
            FirmwareImageRecord(IMAGE, DeviceTypeKey(1), "1", "Application", 8, "", Milliseconds(0))
        )
        yield settings


@pytest.fixture(autouse=True)
def _references_need_not_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `elsewhere`: made-up rows stay. tests/storage/test_neighbours.py has a role without references, which is
    refused, and test_postgresql_store.py rows that a restore mends."""

    def begin(self: SqliteTables) -> str:
        self._connection.begin(write=False)
        return ""

    if ENGINE == "postgresql":
        monkeypatch.setattr(SqliteTables, "begin_mended", begin)
        monkeypatch.setattr("storage.engines.postgresql_schema.check_rights", lambda _connection, _target: None)


def settings_at(state: Path) -> Settings:
    return Settings(state_dir=state, storage=storage_of(state))


def elsewhere(tmp_path: Path) -> Settings:
    """Where backups are restored to; its database takes the made-up rows, which refer to nobody."""
    settings = settings_at(tmp_path / "elsewhere")
    if not settings.storage.is_postgresql:
        return settings
    url = f"{settings.storage.url}&options=-csession_replication_role%3Dreplica"
    return msgspec.structs.replace(settings, storage=Storage(url=url))


def counted(settings: Settings) -> int:
    with store_of(settings) as store:
        row = store.execute("SELECT coalesce(sum(value), 0) AS value FROM counter WHERE name = 'a'").one()
    return int(sure(row)["value"])


def is_empty(settings: Settings) -> bool:
    """Whether nothing was restored; a database may have the tables already. Raises StoreError: one of them has rows."""
    if settings.storage.is_postgresql:
        require_free(engine_of(settings), str(settings.state_dir))
        return True
    return not has_store(settings)


def secrets_of(settings: Settings) -> dict[str, list[str]]:
    with open_state(settings) as state, store_of(settings) as store:
        return {str(column): opened(store, column, state.vault) for column in SEALED_COLUMNS}


def repacked(path: Path, change: str, content: bytes | None) -> Path:
    """A copy of a backup with another content of one member, or without it; the checksums are as they were."""
    changed = path.with_name("changed.tar")
    with tarfile.open(path) as before, tarfile.open(changed, "w") as after:
        for member in before.getmembers():
            data = before.extractfile(member)
            assert data is not None
            if member.name != change:
                after.addfile(member, data)
            elif content is not None:
                member.size = len(content)
                after.addfile(member, BytesIO(content))
    return changed


@pytest.mark.both_engines
@pytest.mark.parametrize("name", ["backup.tar", "backup.tar.gz"])
def test_what_was_backed_up_comes_back(settings: Settings, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    made = make_backup(settings, file)
    assert made == Backup(file, file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest(), "included")
    assert file.stat().st_mode & 0o777 == 0o600
    restore_backup(elsewhere(tmp_path), file)
    state = elsewhere(tmp_path).state_dir
    assert counted(elsewhere(tmp_path)) == 7
    assert (state / "images" / IMAGE).read_bytes() == b"firmware"
    assert secrets_of(elsewhere(tmp_path)) == secrets_of(settings)
    assert {path.stat().st_mode & 0o077 for path in state.iterdir()} == {0}
    assert sorted(path.name for path in state.iterdir()) == ["images", "key", "lock", *FILES]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "elsewhere", "state"])


def test_a_backup_can_be_checked_without_trunkline(settings: Settings, tmp_path: Path) -> None:
    make_backup(settings, tmp_path / "backup.tar")
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "xf", "../backup.tar"], cwd=tmp_path / "unpacked", check=True, timeout=60)
    subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path / "unpacked", check=True, timeout=60)


@pytest.mark.sqlite("nobody copies the files of PostgreSQL")
def test_cp_of_the_store_lacks_what_is_in_its_log(settings: Settings, tmp_path: Path) -> None:
    """Why the README says: no `cp`."""
    shutil.copy(settings.state_dir / "store.sqlite", tmp_path / "copy.sqlite")
    with closing(SqliteEngine(tmp_path / "copy.sqlite").open(read_only=True)) as copy:
        assert list(copy.execute("SELECT value FROM counter WHERE name = 'a'")) == []
    make_backup(settings, tmp_path / "backup.tar")
    restore_backup(elsewhere(tmp_path), tmp_path / "backup.tar")
    assert counted(elsewhere(tmp_path)) == 7


@pytest.mark.both_engines
def test_what_is_written_during_a_backup_is_not_in_it_and_does_not_delay_it(settings: Settings, tmp_path: Path) -> None:
    steps = 0

    def write(_more: int, _total: int) -> None:
        nonlocal steps
        steps += 1
        with store_of(settings) as store:
            store.execute("UPDATE counter SET value = value + 1 WHERE name = 'a'")

    make_backup(settings, tmp_path / "backup.tar", copied=write)
    restore_backup(elsewhere(tmp_path), tmp_path / "backup.tar")
    assert counted(elsewhere(tmp_path)) == 7
    assert counted(settings) == 7 + steps > 7


def test_an_image_that_is_taken_into_the_store_meanwhile_is_not_left_out(settings: Settings, tmp_path: Path) -> None:
    """The first start of this version takes images into the store."""

    def take_in(_more: int, _total: int) -> None:
        (settings.state_dir / "images" / IMAGE).unlink(missing_ok=True)

    with pytest.raises(BackupNotWrittenError, match="try again"):
        make_backup(settings, tmp_path / "backup.tar", copied=take_in)
    assert not (tmp_path / "backup.tar").exists()
    make_backup(settings, tmp_path / "backup.tar")


def test_files_in_the_store_come_back_with_it(settings: Settings, tmp_path: Path) -> None:
    with store_of(settings) as store:
        FileStore(store).append_to("exports/a", bytes(300_000))
    make_backup(settings, tmp_path / "backup.tar")
    restore_backup(elsewhere(tmp_path), tmp_path / "backup.tar")
    with store_of(elsewhere(tmp_path)) as store:
        assert files_in(store) == {"exports/a": bytes(300_000)}


def test_a_key_under_a_passphrase_opens_with_it_only(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.backup.sealed_key._MEMORY_KIB", 8)
    file, (key,) = tmp_path / "backup.tar", KeyFile(settings.state_dir / "key").keys()
    assert make_backup(settings, file, passphrase="correct horse").key == "sealed"
    assert key not in file.read_bytes()
    with pytest.raises(BackupError, match="its key is under a passphrase"):
        restore_backup(elsewhere(tmp_path), file)
    with pytest.raises(BackupError, match="the passphrase is wrong"):
        restore_backup(elsewhere(tmp_path), file, "wrong horse")
    assert [path.name for path in elsewhere(tmp_path).state_dir.iterdir()] == ["lock"]
    restore_backup(elsewhere(tmp_path), file, "correct horse")
    assert secrets_of(elsewhere(tmp_path)) == secrets_of(settings)


def test_a_backup_without_the_key_needs_the_key_of_its_time(settings: Settings, tmp_path: Path) -> None:
    file, target = tmp_path / "backup.tar", elsewhere(tmp_path)
    make_backup(settings, file, has_key=False)
    with pytest.raises(StateError, match="the backup has no key"):
        restore_backup(target, file)
    with open_state(target):
        pass  # which makes a new key
    with pytest.raises(StateError, match="belongs to another store"):
        restore_backup(target, file)
    shutil.copy(settings.state_dir / "key", target.state_dir / "key")
    restore_backup(target, file)
    assert secrets_of(target) == secrets_of(settings)


def test_a_key_outside_the_state_directory_is_named_in_both_directions(settings: Settings, tmp_path: Path) -> None:
    file, key = tmp_path / "backup.tar", tmp_path / "the.key"
    (settings.state_dir / "key").rename(key)
    with pytest.raises(StateError, match="--key-file"):
        make_backup(settings, file)
    make_backup(settings, file, key)
    restore_backup(elsewhere(tmp_path), file, key_path=tmp_path / "back.key")
    assert (tmp_path / "back.key").read_bytes() == key.read_bytes()
    assert not (elsewhere(tmp_path).state_dir / "key").exists()


def test_the_key_of_another_store_makes_no_backup(settings: Settings, tmp_path: Path) -> None:
    KeyFile(tmp_path / "other.key").write(b"A" * 43 + b"=")
    with pytest.raises(StateError, match="belongs to another store"):
        make_backup(settings, tmp_path / "backup.tar", tmp_path / "other.key")
    assert not (tmp_path / "backup.tar").exists()


@pytest.mark.sqlite("the store is a file; test_postgresql_store.py restores into a database that has a store")
def test_a_restore_overwrites_nothing(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    make_backup(settings, file)
    for name in ("store.sqlite", "images"):
        with pytest.raises(StateError, match=rf"{name}: exists already, and a restore overwrites nothing"):
            restore_backup(settings, file)
        (settings.state_dir / name).rename(tmp_path / f"old-{name}")
        for log in settings.state_dir.glob("*-wal"):
            log.rename(tmp_path / log.name)
    with open_state(elsewhere(tmp_path)):
        other = (elsewhere(tmp_path).state_dir / "key").read_bytes()
    with pytest.raises(StateError, match="another key than the backup's"):
        restore_backup(elsewhere(tmp_path), file)
    assert (elsewhere(tmp_path).state_dir / "key").read_bytes() == other
    restore_backup(settings, file)


@pytest.mark.both_engines
def test_a_restore_never_touches_a_state_that_is_in_use(settings: Settings, tmp_path: Path) -> None:
    make_backup(settings, tmp_path / "backup.tar")
    with open_state(elsewhere(tmp_path)), pytest.raises(StateInUseError):
        restore_backup(elsewhere(tmp_path), tmp_path / "backup.tar")
    assert is_empty(elsewhere(tmp_path))


@pytest.mark.parametrize("name", ["backup.tar", "backup.tar.gz"])
def test_a_file_that_ends_early_is_refused_wherever_it_ends(settings: Settings, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    whole = make_backup(settings, file).size
    # At the end of a tar are zeros that say nothing; the checksums come before them.
    with tarfile.open(file) as tar:
        members = [] if name.endswith("gz") else [member.offset for member in tar.getmembers()]
    content, places = file.read_bytes(), [0, 1, 511, 700, whole // 2, whole * 9 // 10, *members]
    for place in places:
        file.write_bytes(content[:place])
        with pytest.raises(BackupError, match=r"backup"):
            restore_backup(elsewhere(tmp_path), file)
    assert is_empty(elsewhere(tmp_path))
    file.write_bytes(content)
    restore_backup(elsewhere(tmp_path), file)


def test_a_file_that_ends_in_the_head_of_gzip_is_refused(tmp_path: Path) -> None:
    """With a further field, a name, a comment and a checksum of the head (RFC 1952, 2.3)."""
    head = b"\x1f\x8b\x08\x1e" + bytes(6) + b"\x04\x00more" + b"name\x00comment\x00" + b"\x12\x34"
    file = tmp_path / "backup.tar.gz"
    for length in range(len(head) + 1):
        file.write_bytes(head[:length])
        with pytest.raises(BackupError, match="damaged, incomplete or not a backup"):
            read_manifest(file)


@pytest.mark.parametrize(
    ("member", "content", "said"),
    [
        ("store.sqlite", b"other", "damaged or incomplete"),
        ("store.sqlite", None, "damaged or incomplete"),
        ("key", b"other", "damaged or incomplete"),
        ("SHA256SUMS", None, "damaged or incomplete"),
        ("manifest.json", None, "not a backup of Trunkline"),
        ("manifest.json", b"{}", "not a backup|cannot read it"),
        ("manifest.json", b'{"format":2,"version":"9.0"}', r"Trunkline 9\.0 has made this backup"),
        ("manifest.json", b"\xff", "not a backup|damaged"),
    ],
)
def test_a_changed_file_is_refused(
    settings: Settings, tmp_path: Path, member: str, content: bytes | None, said: str
) -> None:
    make_backup(settings, tmp_path / "backup.tar")
    with pytest.raises(BackupError, match=said):
        restore_backup(elsewhere(tmp_path), repacked(tmp_path / "backup.tar", member, content))


@pytest.mark.parametrize("name", ["../outside", "images/../../outside", "/outside", "images/x", "other"])
def test_a_file_with_other_members_writes_nothing_outside(settings: Settings, tmp_path: Path, name: str) -> None:
    make_backup(settings, tmp_path / "backup.tar")
    hostile = tmp_path / "hostile.tar"
    with tarfile.open(tmp_path / "backup.tar") as before, tarfile.open(hostile, "w") as after:
        first = before.getmembers()[0]
        after.addfile(first, before.extractfile(first))
        member = tarfile.TarInfo(name)
        member.size = 1
        after.addfile(member, BytesIO(b"x"))
    with pytest.raises(BackupError, match="not a backup of Trunkline"):
        restore_backup(elsewhere(tmp_path), hostile)
    assert not list(tmp_path.glob("**/outside"))


@pytest.mark.both_engines
def test_links_in_a_file_are_refused(settings: Settings, tmp_path: Path) -> None:
    make_backup(settings, tmp_path / "backup.tar")
    hostile = tmp_path / "hostile.tar"
    with tarfile.open(tmp_path / "backup.tar") as before, tarfile.open(hostile, "w") as after:
        first = before.getmembers()[0]
        after.addfile(first, before.extractfile(first))
        member = tarfile.TarInfo("store.sqlite")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        after.addfile(member)
    with pytest.raises(BackupError, match="not a backup of Trunkline"):
        restore_backup(elsewhere(tmp_path), hostile)


def test_a_backup_of_a_newer_version_is_refused_before_anything_is_unpacked(settings: Settings, tmp_path: Path) -> None:
    make_backup(settings, tmp_path / "backup.tar")
    manifest = read_manifest(tmp_path / "backup.tar")
    newer = BackupManifest(
        **{**msgspec.structs.asdict(manifest), "steps": (*manifest.steps, "9999_later"), "version": "9.0"}
    )
    file = repacked(tmp_path / "backup.tar", "manifest.json", msgspec.json.encode(newer))
    with pytest.raises(BackupError, match=r"install 9\.0 or a newer one"):
        restore_backup(elsewhere(tmp_path), file)
    assert not elsewhere(tmp_path).state_dir.exists()


@pytest.mark.sqlite("it cuts the file")
def test_a_damaged_store_makes_no_backup(settings: Settings, tmp_path: Path) -> None:
    copy = elsewhere(tmp_path)
    make_backup(settings, tmp_path / "good.tar")
    restore_backup(copy, tmp_path / "good.tar")
    database = copy.state_dir / "store.sqlite"
    with database.open("r+b") as file:
        file.truncate(database.stat().st_size // 2)
    with pytest.raises(Exception, match=r"malformed|damaged|disk image"):
        make_backup(copy, tmp_path / "backup.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "good.tar", "state"]


def test_the_copy_is_checked_while_the_archive_is_written(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, a store of some GiB would take minutes more. Nothing is kept of what fails the check."""
    is_written, waited = Event(), list[bool]()

    def look(path: Path) -> Look:
        waited.append(is_written.wait(20))
        return Look((f"{path.name} is torn",))

    def copied(_more: int, _total: int) -> None:
        if any(tmp_path.glob(".trunkline-backup-*/archive")):
            is_written.set()

    monkeypatch.setattr("storage.engines.sqlite_check.look", look)
    with pytest.raises(StoreError, match=r"damaged: store\.sqlite is torn"):
        make_backup(settings, tmp_path / "backup.tar", copied=copied)
    assert waited == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_file_that_exists_is_not_overwritten(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "backup.tar").write_text("mine")
    with pytest.raises(BackupNotWrittenError, match="exists already"):
        make_backup(settings, tmp_path / "backup.tar")
    assert (tmp_path / "backup.tar").read_text() == "mine"


@pytest.mark.processes
@pytest.mark.parametrize("share", [0.3, 1.2])
def test_a_full_disk_leaves_nothing_of_a_backup(settings: Settings, tmp_path: Path, share: float) -> None:
    """The bound on a file's size stands for the disk: it is reached by the copy, or by the archive.

    Over PostgreSQL always by the copy, whose log is larger than itself.
    """
    config, target = tmp_path / "trunkline.toml", tmp_path / "target"
    config.write_text(configuration(f'state_dir = "{settings.state_dir}"\n', settings.state_dir))
    target.mkdir()
    make_backup(settings, tmp_path / "whole.tar")
    with tarfile.open(tmp_path / "whole.tar") as whole:
        size = whole.getmember("store.sqlite").size
    bound = int(size * share) if share < 1 else size + 1024
    done = subprocess.run(
        [Path(sys.executable).with_name("trunkline"), "backup", target / "backup.tar", "--config", config],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bound, bound)),
    )
    assert done.returncode == (4 if share < 1 or ENGINE == "postgresql" else 1), done.stderr
    assert str(target / "backup.tar") in done.stderr.splitlines()[-1]
    assert list(target.iterdir()) == []


def test_a_killed_backup_leaves_what_the_next_one_removes(settings: Settings, tmp_path: Path) -> None:
    target, left = tmp_path / "target", tmp_path / "target" / ".trunkline-backup-killed"
    left.mkdir(parents=True)
    (left / "store.sqlite").write_bytes(b"half")
    make_backup(settings, target / "backup.tar")
    assert [path.name for path in target.iterdir()] == ["backup.tar"]


@pytest.mark.both_engines
def test_a_killed_restore_can_be_repeated(settings: Settings, tmp_path: Path) -> None:
    make_backup(settings, tmp_path / "backup.tar")
    state = elsewhere(tmp_path).state_dir
    (state / "restoring" / "images").mkdir(parents=True)
    (state / "restoring" / "store.sqlite").write_bytes(b"half")
    state.chmod(0o700)
    restore_backup(elsewhere(tmp_path), tmp_path / "backup.tar")
    assert counted(elsewhere(tmp_path)) == 7


@pytest.mark.both_engines
def test_exports_end_with_the_restore_of_a_backup_that_lacks_their_archives(settings: Settings, tmp_path: Path) -> None:
    columns = "id, user, application, request, plan, status, created_on, head, expires_on, total_messages"
    statuses = ["IN_PROGRESS", "SUCCESS", "SERVED"]
    with store_of(settings) as store:
        FileStore(store).append_to("exports/there", b"archive")
    with store_of(settings, has_references=False) as store:
        for id_, status in (("there", ExportStatus.SUCCESS), *((one, ExportStatus[one]) for one in statuses)):
            store.execute(
                f"INSERT INTO export ({columns}) VALUES (:id, NULL, 1, '{{}}', '{{}}', :status, 1, 0, 2, 0)",  # noqa: S608 - constants
                {"id": id_, "status": status},
            )
    make_backup(settings, tmp_path / "backup.tar")
    restore_backup(elsewhere(tmp_path), tmp_path / "backup.tar")
    with store_of(elsewhere(tmp_path)) as store:
        found = {row["id"]: row["status"] for row in store.execute("SELECT id, status FROM export")}
    assert found == {
        "there": ExportStatus.SUCCESS,
        "IN_PROGRESS": ExportStatus.IN_PROGRESS,  # it begins again
        "SUCCESS": ExportStatus.EXPIRED,
        "SERVED": ExportStatus.EXPIRED,
    }


@pytest.mark.sqlite("it makes a file without the last step; tests/storage/test_postgresql.py has an older database")
def test_a_store_of_an_older_version_is_backed_up_as_it_is_and_brought_up_to_date_by_the_restore(
    settings: Settings, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(settings.state_dir / "store.sqlite")) as db, db:
        (last,) = db.execute("SELECT name FROM _sqlite_migrations ORDER BY rowid DESC LIMIT 1").fetchone()
        db.execute("DELETE FROM _sqlite_migrations WHERE name = ?", [last])
        db.execute("DROP TABLE firmware_image")
    make_backup(settings, tmp_path / "backup.tar")
    assert last not in read_manifest(tmp_path / "backup.tar").steps
    assert not SqliteEngine(settings.state_dir / "store.sqlite").is_current()


def test_the_pace_waits_for_what_is_beyond_the_rate() -> None:
    waits: list[float] = []
    times = iter([0.0, 0.0, 0.5, 60.0])
    pace = CopyPace(100, now=lambda: next(times), sleep=waits.append)
    pace.spend(100)
    pace.spend(100)
    pace.spend(50)
    assert waits == [1.0, 1.5, 0.5]


def test_a_file_system_without_hard_links_gets_a_backup_and_is_not_overwritten(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_draft: Path, _target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert make_backup(settings, tmp_path / "backup.tar").path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BackupNotWrittenError, match="exists already"):
        make_backup(settings, tmp_path / "backup.tar")
    restore_backup(elsewhere(tmp_path), tmp_path / "backup.tar")


@pytest.mark.both_engines
def test_what_root_restores_belongs_to_the_owner_of_the_directory(settings: Settings, tmp_path: Path) -> None:
    make_backup(settings, tmp_path / "backup.tar")
    state = elsewhere(tmp_path).state_dir
    state.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(state, 65534, 65534)
    restore_backup(elsewhere(tmp_path), tmp_path / "backup.tar")
    owner = state.stat().st_uid
    assert {path.name: path.stat().st_uid for path in state.rglob("*")} == dict.fromkeys(
        ("lock", "key", *FILES, "images", IMAGE), owner
    )
