"""A look at a store of SQLite from outside: read only, bounded in time, beside a daemon that may be using it."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from storage.sql import StoreError

#: Steps of SQLite's virtual machine between two calls of the progress handler.
_STEPS: Final = 10_000
_BUSY_SECONDS: Final = 5.0
_WEEK_MS: Final = 7 * 86_400_000
_PROBLEMS: Final = 3


@dataclass(frozen=True, slots=True)
class Integrity:
    """The first few problems that `PRAGMA quick_check` found; `is_complete` is False if the check ran out of time."""

    problems: tuple[str, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Growth:
    """`bytes_a_day` over the last week, or over the whole log where that is younger; None for a log of hours."""

    store_bytes: int
    bytes_a_day: float | None


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
    was_quiet = not _log_of(path).exists()
    found = _checked(path, seconds)
    if found.problems and was_quiet and _log_of(path).exists():
        return _checked(path, seconds)  # a daemon started during the check
    return found


def _checked(path: Path, seconds: float) -> Integrity:
    until = time.monotonic() + seconds
    with opened_to_read(path) as connection:
        connection.set_progress_handler(lambda: time.monotonic() >= until, _STEPS)
        try:
            rows = connection.execute(f"PRAGMA quick_check({_PROBLEMS})").fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            return Integrity((), is_complete=False)
        except sqlite3.DatabaseError as error:  # a page of a table, of which every row is read
            if error.sqlite_errorcode != sqlite3.SQLITE_CORRUPT:
                raise
            return Integrity((str(error),), is_complete=True)
    return Integrity(tuple(str(row[0]) for row in rows if row[0] != "ok"), is_complete=True)


def growth(path: Path, *, now_ms: int) -> Growth:
    """How fast the message log grows. Raises StoreError."""
    with opened_to_read(path) as connection:
        size = _one(connection, "PRAGMA page_count") * _one(connection, "PRAGMA page_size")
        ends = connection.execute("SELECT min(position), max(position) FROM message").fetchone()
        if ends[0] is None:
            return Growth(size, None)
        first, last = int(ends[0]), int(ends[1])
        since_ms = max(now_ms - _WEEK_MS, _cts_at(connection, first))
        days = (now_ms - since_ms) / 86_400_000
        if days < 1:
            return Growth(size, None)
        low, high = first, last + 1
        while low < high:  # messages arrive in the order of their positions, and `cts` has no index
            middle = (low + high) // 2
            if _cts_at(connection, middle) < since_ms:
                low = middle + 1
            else:
                high = middle
        of_log = size - _bytes_of_files(connection)
        return Growth(size, (last + 1 - low) / days * of_log / (last + 1 - first))


def _bytes_of_files(connection: sqlite3.Connection) -> int:
    """Images and archives grow with no message. A store of an earlier version has none."""
    if not _one(connection, "SELECT count(*) FROM sqlite_master WHERE name = 'file'"):
        return 0
    return _one(connection, "SELECT coalesce(sum(size), 0) FROM file")


def _cts_at(connection: sqlite3.Connection, position: int) -> int:
    """The time of the first message from this position on."""
    sql = "SELECT cts FROM message WHERE position >= ? ORDER BY position LIMIT 1"
    row = connection.execute(sql, (position,)).fetchone()
    return int(row[0]) if row else 0


def _one(connection: sqlite3.Connection, sql: str) -> int:
    return int(connection.execute(sql).fetchone()[0])


def counter(path: Path, name: str) -> int:
    """The value of a counter of the store; 0 where it has none. Raises StoreError."""
    with opened_to_read(path) as connection:
        row = connection.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()
    return int(row[0]) if row else 0
