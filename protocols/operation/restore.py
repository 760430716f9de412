"""Restoring a backup into a state directory that has no store (reference 27.9)."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from broker.backup.archive import IMAGES, KEY, SEALED_KEY, STORE, BackupError, BackupManifest, read_manifest, unpack
from broker.backup.sealed_key import WrongPassphraseError, open_key
from broker.export.status import WITH_RESULT, ExportStatus
from broker.secrets import Vault
from broker.store_key import opens_secrets
from broker.trace.audit import AuditEvent, entry_of
from config.settings import Settings
from protocols.errors import StateError
from protocols.operation.backup import MIB, Copied, sync_folder
from protocols.operation.key_file import KeyFile, KeyFileError
from protocols.operation.migrate_store import require_unused
from protocols.operation.state import key_file_of, lock_state
from storage.audit import AuditStore
from storage.engines import engine_of
from storage.engines.port import EngineConnection
from storage.engines.sqlite import SqliteEngine
from storage.migrations import unknown_names
from storage.sql import StoreError
from storage.store_copy import CopyProgress, copy_store, require_free

_DRAFT: Final = "restoring"


def restore_backup(
    settings: Settings,
    file: Path,
    passphrase: str | None = None,
    key_path: Path | None = None,
    *,
    copied: Copied = lambda _more, _total: None,
    mended: Callable[[str], None] = lambda _sentence: None,
) -> BackupManifest:
    """Put back what a backup has, after all of it was checked. When it is refused, nothing but the lock is left.

    SQLite may have rows that refer to rows that are not there, and PostgreSQL refuses them. On either engine they are
    mended as if those had just been deleted.

    Args:
        settings: with the state directory; it has no store, and no daemon runs on it.
        file: the backup.
        passphrase: of the sealed key.
        key_path: where the key goes or is, if not in the state directory.
        copied: how far it is.
        mended: told of such rows, in a sentence.

    Raises:
        BackupError: the file is no backup, damaged, incomplete or of a newer version, or the passphrase is wrong.
        StateInUseError: a daemon runs. StateError: there is a store, or another key.
        StoreError: the store in the backup is damaged.
    """
    try:
        manifest = read_manifest(file)
        if unknown_names(manifest.steps):
            raise BackupError(
                f"{file}: Trunkline {manifest.version} has made this backup, and this version cannot read it:"
                f" install {manifest.version} or a newer one"
            )
        with lock_state(settings) as directory:
            _check_empty(settings)
            if settings.storage.is_postgresql:
                target = engine_of(settings)
                require_free(target, str(target))
                require_unused(target)
            free = shutil.disk_usage(directory).free
            if free < manifest.bytes:
                needed = f"{manifest.bytes / MIB:,.0f} MiB are needed"
                raise StateError(f"{directory}: the disk has {free / MIB:,.0f} MiB, and {needed}")
            with _draft_in(directory) as draft:
                unpack(file, draft, progress=lambda more: copied(more, manifest.bytes))
                _Restoring(file, settings, draft, passphrase, key_path, copied, mended).finish()
    except OSError as error:
        raise BackupError(f"{error.filename or file}: {error.strerror or error}") from error
    return manifest


def _check_empty(settings: Settings) -> None:
    directory = settings.state_dir
    for path in (*(() if settings.storage.is_postgresql else (directory / STORE,)), directory / IMAGES):
        if path.is_dir() and not any(path.iterdir()):
            continue
        if path.exists():
            raise StateError(f"{path}: exists already, and a restore overwrites nothing: move it away")


@contextmanager
def _draft_in(directory: Path) -> Iterator[Path]:
    draft = directory / _DRAFT
    if draft.exists():  # a restore was killed
        shutil.rmtree(draft)
    draft.mkdir(mode=0o700)
    try:
        yield draft
    finally:
        shutil.rmtree(draft)


class _Restoring(msgspec.Struct, frozen=True):
    file: Path
    settings: Settings
    draft: Path
    passphrase: str | None
    key_path: Path | None
    copied: Copied
    mended: Callable[[str], None]

    @property
    def directory(self) -> Path:
        return self.settings.state_dir

    def finish(self) -> None:
        keys, store = self._keys_in_backup(), SqliteEngine(self.draft / STORE)
        try:
            store.check()
            store.migrate()
            if sentence := str(store.mend_references()):
                self.mended(sentence)
        except StoreError as error:
            raise StoreError(f"{self.file}: {error}") from error
        key_file, is_private = key_file_of(self.directory, self.key_path)
        try:
            there = key_file.keys(is_private=is_private) if key_file.path.exists() else ()
        except KeyFileError as error:
            raise StateError(str(error)) from error
        if not keys and not there:
            raise StateError(f"{key_file.path}: missing, and the backup has no key: put the key of its time there")
        if there and not set(keys) <= set(there):
            raise StateError(f"{key_file.path}: another key than the backup's: move it away")
        with closing(store.open(read_only=False)) as connection:
            if not opens_secrets(connection, Vault(*(there or keys))):
                raise StateError("the key opens none of the secrets in the backup: it belongs to another store")
            _in_transaction(connection, _end_without_archive)
            _in_transaction(connection, self._note)
        self._move_in(None if there else key_file, keys)

    def _keys_in_backup(self) -> tuple[bytes, ...]:
        keys = tuple(self._key_lines().split())
        try:
            if keys:
                Vault(*keys)
        except ValueError:
            raise BackupError(f"{self.file}: damaged: what it has is no key") from None
        return keys

    def _key_lines(self) -> bytes:
        plain, sealed = self.draft / KEY, self.draft / SEALED_KEY
        if plain.exists():
            return plain.read_bytes()
        if not sealed.exists():
            return b""
        if self.passphrase is None:
            raise BackupError(f"{self.file}: its key is under a passphrase: name it with --passphrase-file")
        try:
            return open_key(sealed.read_bytes(), self.passphrase)
        except WrongPassphraseError:
            raise BackupError(f"{self.file}: the passphrase is wrong") from None

    def _note(self, connection: EngineConnection) -> None:
        entry = entry_of(AuditEvent.COMMAND, f"file {self.file}", now_ms=time.time_ns() // 1_000_000, command="restore")
        AuditStore(connection).add(entry)

    def _move_in(self, key_file: KeyFile | None, keys: tuple[bytes, ...]) -> None:
        """The store last: without it, a daemon finds nothing, and the restore can be repeated. A database of PostgreSQL
        is marked as unfinished until all is in it."""
        store, images = self.draft / STORE, self.draft / IMAGES
        owner = self.directory.stat()
        for path in (store, images, *images.iterdir()):
            if os.geteuid() == 0:  # for the user as whom the daemon runs
                os.chown(path, owner.st_uid, owner.st_gid)
        if any(images.iterdir()):
            images.replace(self.directory / IMAGES)
        if key_file is not None:
            try:
                key_file.write(*keys)
            except KeyFileError as error:
                raise StateError(str(error)) from error
        if self.settings.storage.is_postgresql:
            return self._copy_rows(store)
        with store.open("rb") as file:
            os.fsync(file.fileno())
        store.rename(self.directory / STORE)
        sync_folder(self.directory)
        return None

    def _copy_rows(self, store: Path) -> None:
        target = engine_of(self.settings)
        total = store.stat().st_size
        done = 0

        def tell(now: CopyProgress) -> None:
            nonlocal done
            so_far = total * now.rows // max(1, now.total)
            self.copied(so_far - done, 2 * total)
            done = so_far

        with closing(SqliteEngine(store).open(read_only=True)) as source:
            copy_store(source, target, str(target), tell)


def _in_transaction(connection: EngineConnection, work: Callable[[EngineConnection], None]) -> None:
    connection.begin(write=True)
    try:
        work(connection)
        connection.commit()
    except BaseException:  # whatever it is: the transaction must not stay open; raised again
        connection.rollback()
        raise


def _end_without_archive(connection: EngineConnection) -> None:
    """Backups of earlier versions have no archives of exports and of users: they can be asked for again."""
    done, served = WITH_RESULT
    connection.execute(
        "UPDATE export SET status = :expired WHERE status IN (:done, :served)"
        " AND NOT EXISTS (SELECT 1 FROM file WHERE file.name = 'exports/' || export.id)",
        {"expired": ExportStatus.EXPIRED, "done": done, "served": served},
    )
    connection.execute(
        "DELETE FROM user_archive WHERE status = 'Success'"
        " AND NOT EXISTS (SELECT 1 FROM file WHERE file.name = 'archives/' || user_archive.id)"
    )
