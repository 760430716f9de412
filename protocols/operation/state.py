"""The state directory: its lock, the daemon's key, and the path of the store."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import structlog

from broker.secrets import Vault
from broker.store_key import opens_secrets
from config.settings import Settings
from protocols.errors import STORE, StateError, StateInUseError
from protocols.operation.key_file import KeyFile, KeyFileError
from storage.engines import engine_of
from storage.sealed import SEALED_COLUMNS

_CREDENTIAL = "trunkline.key"
_LOCK = "lock"
#: Of SQLite's write-ahead log (sqlite.org/fileformat2.html, 4.1): before the frames, and before the page in each.
_WAL_HEADER_BYTES = 32
_WAL_FRAME_BYTES = 24

_log = structlog.get_logger(__name__)


class StateDirectory(msgspec.Struct, frozen=True):
    """A state directory that no other process uses while `open_state` lasts."""

    directory: Path
    database: Path
    key_file: KeyFile
    keys: tuple[bytes, ...]  # more than one: a rotation was interrupted

    @property
    def vault(self) -> Vault:
        return Vault(*self.keys)


@contextmanager
def open_state(settings: Settings, *, key_path: Path | None = None) -> Iterator[StateDirectory]:
    """Create the state directory if need be, lock it against other daemons and read its key.

    Args:
        settings: with the state directory.
        key_path: the key is in this file, and in no other place.

    Raises:
        StateInUseError: another daemon, or `trunkline provision`, holds it.
        StateError: it cannot be created or read, is open to others, or its key is missing or no key.
        StoreError: the key is missing, and the database that may have secrets of it cannot be read.
    """
    with lock_state(settings) as directory:
        yield read_state(settings, directory, key_path=key_path)


def read_state(settings: Settings, directory: Path, *, key_path: Path | None = None) -> StateDirectory:
    """The state whose directory this process has locked. Raises as `open_state`; it may ask the database."""
    return StateDirectory(directory, directory / STORE, *_key_file(settings, key_path))


@contextmanager
def lock_state(settings: Settings) -> Iterator[Path]:
    """Lock the state as `open_state` does, without reading or making a key: to put a store there, or take a copy."""
    directory = settings.state_dir
    with ExitStack() as held:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _close_to_others(directory)
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.callback(os.close, lock)
            owner = directory.stat()
            if os.geteuid() == 0 and owner.st_uid != 0:  # a command of root
                held.callback(_give_away, directory, owner)
            itself = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, itself)
            _take(lock, itself, settings)
            _look_at_log(directory / STORE)
        except OSError as error:
            where = error.filename if isinstance(error.filename, str) else directory
            raise StateError(f"state_dir {where}: {error.strerror}") from error
        yield directory


def _give_away(directory: Path, owner: os.stat_result) -> None:
    """Give files that root made in the directory to the daemon's user, who must be able to open them."""
    for folder, _, names in os.walk(directory):
        for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118 - of os.walk
            if os.lstat(path).st_uid == 0:
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _close_to_others(directory: Path) -> None:
    """Keep other users from reading messages and secrets. The mode of a directory with other files is not changed."""
    mode = directory.stat().st_mode
    if not mode & 0o077:
        return
    names = {path.name for path in directory.iterdir()}
    if names and mode & 0o022:  # they may have put a key or a store of their own there
        raise StateError(f"state_dir {directory}: others may write into it: look at what it holds, then chmod 700 it")
    if names and _LOCK not in names:
        raise StateError(f"state_dir {directory}: others may read it, and it holds other files: chmod 700 it")
    directory.chmod(0o700)
    _log.warning("state_dir_closed_to_others", state_dir=str(directory))


def holder(directory: Path) -> int | None:
    """The process that holds the state directory: a daemon that serves, one that stands by, or a command."""
    try:
        with (directory / _LOCK).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read(20))
    except (OSError, ValueError):
        pass
    return None


def _take(lock: int, itself: int, settings: Settings) -> None:
    """Lock the file, which says who holds the lock, and the directory itself, whose lock nobody can remove."""
    try:
        for descriptor in (lock, itself):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        process = os.pread(lock, 20, 0).decode(errors="replace").strip() or "?"
        help_ = "stop it, or name another"
        if settings.storage.is_postgresql:
            help_ = "if it stands by, give the command on the machine that serves; else stop it, or name another"
        raise StateInUseError(f"state_dir {settings.state_dir}: in use by process {process}: {help_}") from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


def _look_at_log(database: Path) -> None:
    """Refuse to begin a new store beside the write-ahead log of another one: SQLite would delete the log.

    A log that ends within a frame was cut, or a power cut met the last write; SQLite uses the frames before the cut.
    """
    log = database.with_name(f"{database.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if not size:
        return
    if not database.exists() or not database.stat().st_size:
        raise StateError(
            f"{database}: missing or empty, but {log.name} has {size} bytes of it: restore the store,"
            f" or move {log.name} away to begin a new one"
        )
    with log.open("rb") as file:
        header = file.read(_WAL_HEADER_BYTES)
    page_bytes = int.from_bytes(header[8:12], "big")
    if len(header) < _WAL_HEADER_BYTES or (size - _WAL_HEADER_BYTES) % (_WAL_FRAME_BYTES + page_bytes):
        _log.warning("store_log_is_cut", log=str(log), bytes=size)


def _key_file(settings: Settings, given: Path | None) -> tuple[KeyFile, tuple[bytes, ...]]:
    """The key and its file, which is made at first in the state directory."""
    try:
        file, is_private = key_file_of(settings.state_dir, given)
        if given is None and is_private and not file.path.exists():
            _make_key(file, settings)
        return file, file.keys(is_private=is_private)
    except KeyFileError as error:
        raise StateError(str(error)) from error
    except OSError as error:
        raise StateError(f"{error.filename}: {error.strerror}") from error


def key_file_of(directory: Path, given: Path | None) -> tuple[KeyFile, bool]:
    """`given`, else systemd's credential if there is one, else the file in the state directory.

    And whether it must be private: who reads a credential is for systemd to decide.
    """
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    credential = Path(credentials) / _CREDENTIAL if credentials else None
    if given is None and credential is not None and credential.exists():
        return KeyFile(credential), False
    return KeyFile(given or directory / "key"), True


def _make_key(file: KeyFile, settings: Settings) -> None:
    """With a new key, no stored secret could be read any more."""
    if settings.storage.is_postgresql:
        engine = engine_of(settings)
        with engine.snapshot() as snapshot:
            columns = [at for at in SEALED_COLUMNS if snapshot.has(at.table, at.column)]
            if not opens_secrets(snapshot.rows, Vault(Vault.new_key()), columns=columns):
                raise StateError(
                    f"{file.path}: missing, but {engine} has secrets that only its key opens: restore it,"
                    " or copy it from the machine that serves"
                )
    elif (settings.state_dir / STORE).exists():
        raise StateError(f"{file.path}: missing, but {STORE} has secrets that only this key opens: restore it")
    file.write(Vault.new_key())
