"""The store of a stopped daemon is rewritten, without free pages, and so that later ones can go back to the disk.

The new file gets the name of the store when it is whole: whenever this ends, the one or the other is there with all
rows. A store that an older version has made cannot give pages back otherwise (`auto_vacuum`).
"""

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from config.shown_command import shown_command
from storage.engines.sqlite_read_ahead import reading_ahead
from storage.engines.sqlite_upgrade import Progress, Seldom, sync
from storage.sql import StoreDamagedError, StoreError, StoreFullError

_OPERATIONS: Final = 100_000  # of SQLite's machine between two looks at the clock: some ms
_BUSY_SECONDS: Final = 5.0
_RESERVE_BYTES: Final = 64 * 2**20
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@dataclass(frozen=True, slots=True)
class Compacted:
    """Bytes of the store before and after."""

    before: int
    after: int


def unfinished_copy(store: Path) -> Path:
    """Where the new file is written. One that is there belongs to a compaction that did not end."""
    return store.with_name(f"{store.name}.compact.part")


def room_needed(store: Path) -> int:
    """Free bytes on the disk of the store that `compact` needs. Raises StoreError."""
    try:
        with closing(sqlite3.connect(store, isolation_level=None)) as db:
            names = ("page_size", "page_count", "freelist_count")
            size, pages, free = (int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    except sqlite3.Error as error:
        raise StoreError(f"{store}: {error}") from error
    return size * (pages - free) + _RESERVE_BYTES


def compact(store: Path, progress: Progress) -> Compacted:
    """Rewrite the store. The caller has it alone.

    Raises:
        StoreFullError: the disk has no room for the new file beside the store.
        StoreDamagedError: a page cannot be read. StoreError: a file cannot be used.
    """
    part = unfinished_copy(store)
    try:
        part.unlink(missing_ok=True)
        needed, free = room_needed(store), shutil.disk_usage(store.parent).free
        if free < needed:
            raise StoreFullError(
                f"{store}: {needed >> 20} MiB are needed beside the store, and the disk has {free >> 20} MiB: make room"
            )
        part.touch(mode=0o600)
        before = _rewrite(store, part, needed - _RESERVE_BYTES, progress)
        progress("looking at the new file")
        _check(part)
        after = part.stat().st_size
        _put_in_place(store, part)
    except OSError as error:
        raise StoreError(f"{error.filename or store}: {error.strerror}") from error
    except sqlite3.Error as error:
        part.unlink(missing_ok=True)
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
            raise StoreDamagedError(f"{store}: {error}: run {shown_command('store salvage')} instead") from error
        kind = StoreFullError if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL else StoreError
        raise kind(f"{store}: {error}") from error
    return Compacted(before, after)


def _rewrite(store: Path, part: Path, expected: int, progress: Progress) -> int:
    """Return the size of the store, into which its write-ahead log has gone."""
    told = Seldom(progress)
    progress(f"{expected >> 20} MiB are to be written")

    def look() -> int:
        told(f"{min(99, 100 * part.stat().st_size // max(1, expected))} % are written")
        return 0  # go on

    with closing(sqlite3.connect(store, isolation_level=None, timeout=_BUSY_SECONDS)) as db:
        if db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            raise StoreError(f"{store}: another process uses it")
        before = store.stat().st_size
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # what the new file gets
        db.set_progress_handler(look, _OPERATIONS)
        db.execute("VACUUM INTO ?", (str(part),))
    return before


def _check(part: Path) -> None:
    """The new file is all that is left of the store. Raises StoreDamagedError."""
    with closing(sqlite3.connect(part, isolation_level=None)) as db, reading_ahead(part):
        found = [str(row[0]) for row in db.execute("PRAGMA quick_check(1)")]
    if found != ["ok"]:
        raise StoreDamagedError(f"{part}: {' '.join(found)}")


def _put_in_place(store: Path, part: Path) -> None:
    status = store.stat()
    if os.geteuid() == 0:  # for the user as whom the daemon runs
        os.chown(part, status.st_uid, status.st_gid)
    sync(part)
    for end in ("-wal", "-shm"):
        store.with_name(f"{store.name}{end}").unlink(missing_ok=True)  # nothing is in them any more
    part.rename(store)
    sync(store.parent)
