"""A look at a store of SQLite from outside: read only, bounded in time, beside a daemon that may be using it."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Final
from urllib.parse import quote

import msgspec

from storage.sql import StoreError

_COMMAND: Final = (sys.executable, "-P", "-m", "storage.engines.sqlite_check")
_BUSY_SECONDS: Final = 5.0
_PROBLEMS: Final = 3


class Integrity(msgspec.Struct, frozen=True):
    """The first few problems that `PRAGMA quick_check` found; `is_complete` is False if the check ran out of time."""

    problems: tuple[str, ...]
    is_complete: bool


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


@contextmanager
def opened_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing, also not the write-ahead log. One thread at a time may use it.

    Raises:
        StoreError: the file cannot be read; also for errors of SQLite within the block.
    """
    try:
        # Without a write-ahead log nobody uses the store. SQLite would begin a log, and leave it behind.
        is_quiet = not _log_of(path).exists()
        address = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if is_quiet else ''}"
        with closing(_connected(address)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from error


def _connected(address: str) -> sqlite3.Connection:
    return sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def check_integrity(path: Path, *, seconds: float) -> Integrity:
    """Raises StoreError when the file cannot be read or is no database."""
    until = time.monotonic() + seconds
    was_quiet = not _log_of(path).exists()
    found = _checked(path, until)
    if found.problems and was_quiet and _log_of(path).exists():
        return _checked(path, until)  # a daemon started during the check
    return found


def _checked(path: Path, until: float) -> Integrity:
    """In a process of its own, which is ended when the time is over: up to SQLite 3.41 the check calls no handler
    while it goes through the pages of all tables, which takes minutes for a store of some GiB."""
    try:
        said = subprocess.run(  # noqa: S603 - this program
            [*_COMMAND, path], stdout=subprocess.PIPE, timeout=max(0.0, until - time.monotonic()), check=True
        ).stdout
    except subprocess.TimeoutExpired:
        return Integrity((), is_complete=False)
    except subprocess.CalledProcessError as error:
        raise StoreError(f"{path}: the check of the store ended with status {error.returncode}") from error
    found = msgspec.json.decode(said, type=Look)
    if found.error:
        raise StoreError(found.error)
    return Integrity(found.problems, is_complete=True)


@contextmanager
def checked_meanwhile(path: Path) -> Iterator[None]:
    """Check a store that nobody writes to while the block runs, in a thread.

    A block that fails does not wait for the check, nor does the end of the process: it cannot be interrupted.

    Raises:
        StoreError: at the end of the block, when the file is damaged or cannot be read.
    """
    found: list[Look] = []
    thread = Thread(target=lambda: found.append(look(path)), name="check of a store", daemon=True)
    thread.start()
    yield
    thread.join()
    if not found or found[0] != Look():
        said = found[0] if found else Look(error=f"{path}: the check of the store has failed")
        raise StoreError(said.error or f"damaged: {' '.join(said.problems)}")


class Look(msgspec.Struct, frozen=True):
    """Problems that were found, or why it could not look."""

    problems: tuple[str, ...] = ()
    error: str = ""


def look(path: Path) -> Look:
    try:
        with opened_to_read(path) as connection:
            try:
                rows = connection.execute(f"PRAGMA quick_check({_PROBLEMS})").fetchall()
            except sqlite3.DatabaseError as error:  # a page of a table, of which every row is read
                if error.sqlite_errorcode != sqlite3.SQLITE_CORRUPT:
                    raise
                return Look((str(error),))
    except StoreError as error:
        return Look(error=str(error))
    return Look(tuple(str(row[0]) for row in rows if row[0] != "ok"))


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(look(Path(sys.argv[1]))))
