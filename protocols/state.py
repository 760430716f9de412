"""The state directory: its lock, the daemon's key, and the path of the store."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from broker.secrets import Vault
from config.settings import Settings

_CREDENTIAL = "trunkline.key"
_LOCK = "lock"

_log = structlog.get_logger(__name__)


class StateError(Exception):
    """The state directory cannot be used. The text is one line for the operator."""


class StateInUseError(StateError):
    """Another process uses this state directory."""


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """A state directory that no other process uses while `open_state` lasts."""

    directory: Path
    database: Path
    vault: Vault


@contextmanager
def open_state(settings: Settings) -> Iterator[StateDirectory]:
    """Create the state directory if need be, lock it against other daemons and read its key.

    Raises:
        StateInUseError: another daemon, or `trunkline provision`, holds it.
        StateError: it cannot be created or read, is open to others, or its key is missing or no key.
    """
    directory = settings.state_dir
    database = directory / "store.sqlite"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _close_to_others(directory)
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateError(f"state_dir {directory}: {error.strerror}") from error
    try:
        _take(lock, directory)
        yield StateDirectory(directory, database, _vault(directory, database))
    finally:
        os.close(lock)


def _close_to_others(directory: Path) -> None:
    """Nobody else may read messages and secrets. A directory that holds other things too is not ours to change."""
    if not directory.stat().st_mode & 0o077:
        return
    names = {path.name for path in directory.iterdir()}
    if names and _LOCK not in names:
        raise StateError(f"state_dir {directory}: others may read it, and it holds other files: chmod 700 it")
    directory.chmod(0o700)
    _log.warning("state_dir_closed_to_others", state_dir=str(directory))


def _take(lock: int, directory: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
        raise StateInUseError(f"state_dir {directory}: in use by process {holder or '?'}") from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


def _vault(directory: Path, database: Path) -> Vault:
    """The key from systemd's credential if there is one, else from the state directory, where it is made at first."""
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    credential = Path(credentials) / _CREDENTIAL if credentials else None
    path = credential if credential is not None and credential.exists() else directory / "key"
    try:
        if path is not credential:
            if not path.exists():
                _make_key(path, database)
            if path.stat().st_mode & 0o077:
                raise StateError(f"{path}: others may read this key: chmod 600 it")
        return Vault(path.read_bytes().strip())
    except OSError as error:
        raise StateError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise StateError(f"{path}: not a key: expected 32 bytes in URL-safe Base64") from error


def _make_key(path: Path, database: Path) -> None:
    if database.exists():
        # With a new key, no stored secret could be read any more.
        raise StateError(f"{path}: missing, but {database.name} has secrets that only this key opens: restore it")
    draft = path.with_name("key.new")
    draft.unlink(missing_ok=True)
    # Written to another name and renamed, so that a key file is never incomplete.
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - its mode
        file.write(Vault.new_key())
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
