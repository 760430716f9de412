"""Making a backup of a state directory, while a daemon runs on it or not (reference 27.9)."""

import fcntl
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import msgspec

from broker.backup.archive import FORMAT, IMAGES, KEY, SEALED_KEY, STORE, BackupManifest, BackupWriter, KeyIn
from broker.backup.sealed_key import seal_key
from broker.secrets import Vault
from broker.store_key import opens_secrets
from config.settings import Settings
from config.shown_command import shown_command
from protocols.errors import StateError, require_store
from protocols.operation.key_file import KeyFileError
from protocols.operation.state import key_file_of
from storage.engines import engine_of
from storage.engines.sqlite import SqliteEngine, SqliteSnapshot
from storage.engines.sqlite_check import checked_meanwhile
from storage.firmware import FirmwareStore
from storage.migrations import VERSION
from storage.sealed import SEALED_COLUMNS
from storage.sql import StoreError, StoreFullError
from storage.store_copy import CopyProgress, copy_rows

if TYPE_CHECKING:
    from storage.engines.postgresql import PostgresqlSnapshot

MIB: Final = 1024 * 1024
_DRAFT: Final = ".trunkline-backup-"
#: Told how many bytes more were read, and how many there are in all; may wait.
Copied = Callable[[int, int], None]


class BackupNotWrittenError(Exception):
    """The backup cannot be written where it was asked for. The text is one line for the operator."""


class Backup(msgspec.Struct, frozen=True):
    path: Path
    size: int
    sha256: str
    key: KeyIn


def name_by_time(folder: Path) -> Path:
    return folder / f"trunkline-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}.tar.gz"


def make_folder(settings: Settings, folder: Path) -> None:
    """Closed to others, and of the owner of the state directory. Raises OSError."""
    if folder.is_dir():
        return
    folder.mkdir(mode=0o700, parents=True)
    if os.geteuid() == 0:
        owner = settings.state_dir.stat()
        os.chown(folder, owner.st_uid, owner.st_gid)


def make_backup(
    settings: Settings,
    target: Path,
    key_path: Path | None = None,
    passphrase: str | None = None,
    *,
    has_key: bool = True,
    copied: Copied = lambda _more, _total: None,
) -> Backup:
    """Write what the state directory has at one moment after the call. Nothing but a whole backup stays.

    Args:
        settings: with the state directory.
        target: the new file. A name that ends in .gz or .tgz is compressed.
        key_path: where the key is, if not in the state directory.
        passphrase: seals the key.
        has_key: include the key.
        copied: how far it is.

    Raises:
        StateError: there is no store, or its key is not found or another store's.
        StoreError: the store is damaged or cannot be read.
        BackupNotWrittenError: the file is there already, or there is no room for it.
    """
    require_store(settings)
    if target.exists():
        raise BackupNotWrittenError(f"{target}: exists already")
    try:
        with _draft_beside(target) as draft:
            return _Making(settings, draft, target, key_path, passphrase, has_key, copied).make()
    except StoreFullError as error:
        raise BackupNotWrittenError(f"{target}: the disk is full") from error
    except StoreError as error:
        raise StoreError(f"{engine_of(settings)} cannot be copied to {target}: {error}") from error
    except OSError as error:
        named = str(error.filename or target)
        raise BackupNotWrittenError(f"{target if _DRAFT in named else named}: {error.strerror or error}") from error


class _Making(msgspec.Struct, frozen=True):
    settings: Settings
    draft: Path
    target: Path
    key_path: Path | None
    passphrase: str | None
    has_key: bool
    copied: Copied

    @property
    def directory(self) -> Path:
        return self.settings.state_dir

    def make(self) -> Backup:
        engine, copy = engine_of(self.settings), self.draft / STORE
        earlier = self._keys()
        with engine.snapshot() as snapshot:
            # Read before and after the moment of the copy: a rotation between the reads changes both the key and the
            # store.
            keys = tuple(dict.fromkeys((*self._keys(), *earlier)))
            _check_key(snapshot, keys)
            images = self._images(snapshot)
            size = snapshot.size_bytes + sum(images.values())
            work = snapshot.size_bytes + size  # the store is read twice: for the copy, and for the archive
            self._check_room(work)
            if isinstance(snapshot, SqliteSnapshot):
                snapshot.copy(copy, lambda more: self.copied(more, work))
            else:
                self._copy_rows(snapshot, copy, work)
                work += copy.stat().st_size - snapshot.size_bytes  # a database is larger than its rows
            steps = snapshot.steps()
        if not all((self.directory / IMAGES / id_).exists() for id_ in images):
            # Not deleted: the store at the moment of the copy does not have them.
            raise BackupNotWrittenError(
                f"{IMAGES}: the daemon takes images of an earlier version into the store: try again"
            )
        has: KeyIn = "left out" if not self.has_key else "included" if self.passphrase is None else "sealed"
        manifest = BackupManifest(FORMAT, VERSION, datetime.now(UTC).isoformat(timespec="seconds"), steps, size, has)
        draft = self.draft / "archive"
        with checked_meanwhile(copy):
            sha256 = self._write(draft, manifest, keys, images, copy, work)
        _give_name(draft, self.target)
        sync_folder(self.target.parent)
        return Backup(self.target, self.target.stat().st_size, sha256, has)

    def _write(
        self,
        draft: Path,
        manifest: BackupManifest,
        keys: tuple[bytes, ...],
        images: Iterable[str],
        copy: Path,
        work: int,
    ) -> str:
        """Write the archive, durably. Returns its SHA-256."""
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - its mode
            hashing = _Hashing(file)
            writer = BackupWriter(
                cast("IO[bytes]", hashing),
                is_compressed=self.target.suffix in {".gz", ".tgz"},
                progress=lambda more: self.copied(more, work),
            )
            writer.begin(manifest)
            self._add_keys(writer, keys)
            for id_ in images:
                writer.add_file(f"{IMAGES}/{id_}", self.directory / IMAGES / id_)
            writer.add_file(STORE, copy)
            writer.finish()
            file.flush()
            os.fsync(file.fileno())
        return hashing.digest.hexdigest()

    def _copy_rows(self, snapshot: "PostgresqlSnapshot", copy: Path, work: int) -> None:
        """The rows of another engine's store as a store of SQLite: a backup is restored into either engine."""
        if not snapshot.is_current():
            raise StoreError(f"an older version has made it: start the daemon, or run once: {shown_command('migrate')}")
        done = 0

        def tell(now: CopyProgress) -> None:
            nonlocal done
            so_far = snapshot.size_bytes * now.rows // max(1, now.total)
            self.copied(so_far - done, work)
            done = so_far

        target = SqliteEngine(copy, synchronous="off")  # until it is whole the copy is worth nothing
        copy_rows(snapshot.rows, target, str(copy), tell)

    def _keys(self) -> tuple[bytes, ...]:
        if not self.has_key:
            return ()
        file, is_private = key_file_of(self.directory, self.key_path)
        try:
            return file.keys(is_private=is_private)
        except KeyFileError as error:
            raise StateError(f"{error}: name the key with --key-file, or leave it out with --without-key") from error

    def _add_keys(self, writer: BackupWriter, keys: tuple[bytes, ...]) -> None:
        content = b"\n".join(keys) + b"\n"
        if keys and self.passphrase is not None:
            writer.add_bytes(SEALED_KEY, seal_key(content, self.passphrase))
        elif keys:
            writer.add_bytes(KEY, content)

    def _images(self, snapshot: "SqliteSnapshot | PostgresqlSnapshot") -> dict[str, int]:
        """The size of each firmware image that is beside the store, where earlier versions had them."""
        known = FirmwareStore(snapshot.rows).sizes() if snapshot.has("firmware_image", "id") else {}
        paths = {id_: self.directory / IMAGES / id_ for id_ in sorted(known)}
        return {id_: path.stat().st_size for id_, path in paths.items() if path.exists()}

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self.draft).free
        if free < needed:
            folder = self.target.parent
            raise BackupNotWrittenError(
                f"{folder}: the disk has {free / MIB:,.0f} MiB, and {needed / MIB:,.0f} MiB are needed"
            )


def _check_key(snapshot: "SqliteSnapshot | PostgresqlSnapshot", keys: tuple[bytes, ...]) -> None:
    columns = [at for at in SEALED_COLUMNS if snapshot.has(at.table, at.column)]
    if keys and not opens_secrets(snapshot.rows, Vault(*keys), columns=columns):
        raise StateError("the key opens none of the store's secrets: it belongs to another store")


def _give_name(draft: Path, target: Path) -> None:
    """Overwrites nothing. Raises OSError."""
    try:
        os.link(draft, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links, as on memory sticks
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            draft.replace(target)
        except OSError:
            target.unlink()  # it is empty
            raise


@contextmanager
def _draft_beside(target: Path) -> Iterator[Path]:
    """A private folder on the disk of `target`; and those go that earlier backups left there when they were killed."""
    for left in target.parent.glob(f"{_DRAFT}*"):
        with _locked(left) as is_ours:
            if is_ours and left.stat().st_uid == os.geteuid():
                shutil.rmtree(left, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=target.parent))
    with _locked(draft):
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = True
    except BlockingIOError:
        is_ours = False
    try:
        yield is_ours
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Hashing(io.BufferedIOBase):
    """A writer that hashes what it passes on."""

    def __init__(self, target: IO[bytes]) -> None:
        super().__init__()
        self.digest = hashlib.sha256()
        self._target = target

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._target.write(data)
