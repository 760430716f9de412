"""An older store becomes one of this version: a copy beside it, the schema steps with their progress, and the way back.

A step cannot be undone, and an older version refuses a store that has it. The copy is the way back:
`trunkline store undo-upgrade`.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from config.shown_command import shown_command
from storage import migrations
from storage.sql import StoreError, StoreFullError

#: Told what is being done, at least every few seconds.
Progress = Callable[[str], None]

_TELL_SECONDS: Final = 5.0
_OPERATIONS: Final = 1_000_000  # of SQLite's machine between two looks at the clock: some 20 ms
_COPY_PAGES: Final = 2048  # at once: 8 MiB
_RESERVE_BYTES: Final = 64 * 2**20


def copies_of(store: Path) -> list[Path]:
    """The copies that upgrades have kept beside a store, the newest last."""
    found = store.parent.glob(f"{store.name}.before-[0-9][0-9][0-9][0-9]")
    return sorted(found, key=lambda path: path.stat().st_mtime)


def keep_copy(store: Path, connection: sqlite3.Connection, last_step: str, progress: Progress) -> Path:
    """Copy the store before its next steps, replacing the copy of an earlier upgrade. The caller has it alone.

    Of an upgrade that was killed between two steps the copy is there already, and stays: a new one would have steps
    that the version of before refuses.

    Raises:
        StoreFullError: the disk has no room for it.
        StoreError: a file beside the store cannot be written, renamed or deleted.
        sqlite3.Error: a page cannot be read or written.
    """
    try:
        if (kept := _copy_of_this_upgrade(store, connection)) is not None:
            return kept
        return _copy(store, connection, last_step, progress)
    except OSError as error:
        raise StoreError(f"{error.filename or store}: {error.strerror}") from error


def _copy_of_this_upgrade(store: Path, connection: sqlite3.Connection) -> Path | None:
    """The copy of an upgrade that has made some of its steps, and not all: no version can have used the store since."""
    for copy in copies_of(store)[-1:]:
        with suppress(sqlite3.Error), closing(sqlite3.connect(copy, isolation_level=None)) as before:
            has, had = migrations.applied(connection), migrations.applied(before)
            if 0 < len(had) < len(has) and migrations.version_of(before) == migrations.version_of(connection):
                return copy
    return None


def _copy(store: Path, connection: sqlite3.Connection, last_step: str, progress: Progress) -> Path:
    pages, page_bytes = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    for old in copies_of(store):
        old.unlink()
    free = shutil.disk_usage(store.parent).free
    if free < pages * page_bytes + _RESERVE_BYTES:
        raise StoreFullError(
            f"{store}: the upgrade keeps a copy of {pages * page_bytes >> 20} MiB, and the disk has {free >> 20} MiB:"
            f" make room, or make a backup and run: {shown_command('migrate --no-copy')}"
        )
    copy = store.with_name(f"{store.name}.before-{last_step[:4]}")
    part = copy.with_name(f"{copy.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    told = Seldom(progress)

    def copied(_status: int, remaining: int, total: int) -> None:
        told(f"copying the store before the upgrade: {100 * (total - remaining) // max(total, 1)} %")

    with closing(sqlite3.connect(part, isolation_level=None)) as target:
        for pragma in ("synchronous=OFF", "journal_mode=OFF"):  # until it has its name, it is worth nothing
            target.execute(f"PRAGMA {pragma}")
        connection.backup(target, pages=_COPY_PAGES, progress=copied)
    sync(part)
    part.rename(copy)
    return copy


def apply_steps(db: sqlite3.Connection, steps: Sequence[str], progress: Progress) -> None:
    """Apply the schema steps, and tell of each, and again while one takes long."""
    for number, name in enumerate(steps, 1):
        told = Seldom(progress)
        text = f"step {number} of {len(steps)}, {name}"
        progress(text)

        def look(told: "Seldom" = told, text: str = text) -> int:
            told(f"{text}: {told.seconds:.0f} s")
            return 0  # go on

        db.set_progress_handler(look, _OPERATIONS)
        try:
            migrations.apply(db, stop_before=steps[number] if number < len(steps) else None)
        finally:
            db.set_progress_handler(None, 0)


def undo_upgrade(store: Path, *, force: bool = False) -> tuple[Path, Path]:
    """Replace the store by the copy made before the last upgrade. The caller has the store alone.

    Returns: the copy that is in place now, by its former name, and where the upgraded store is kept.

    Raises:
        StoreError: there is no copy; without `force`, something was stored after the upgrade, which would be lost; or a
            file cannot be renamed or deleted: the upgraded store is in its place then.
    """
    if not (copies := copies_of(store)):
        raise StoreError(f"{store}: no upgrade has kept a copy beside it: restore a backup instead")
    copy = copies[-1]
    if not force and (rows := _rows(store) - _rows(copy)):
        raise StoreError(
            f"{store}: {rows} messages and Actions came after the upgrade and would be lost: make a backup of it, then"
            f" repeat with --force"
        )
    aside = store.with_name(f"{store.name}.upgraded")
    try:
        for end in ("-wal", "-shm"):
            store.with_name(f"{store.name}{end}").unlink(missing_ok=True)  # `_rows` has brought all into the store
        aside.unlink(missing_ok=True)
        _put_in_place(store, copy, aside)
        sync(store.parent)
    except OSError as error:
        raise StoreError(f"{error.filename or store}: {error.strerror}") from error
    return copy, aside


def _put_in_place(store: Path, copy: Path, aside: Path) -> None:
    """Whenever this ends, there is a store: a daemon that finds none begins an empty one. Raises OSError."""
    try:
        os.link(store, aside)
    except OSError:  # a file system without hard links
        store.rename(aside)
    try:
        copy.rename(store)
    except OSError:
        if store.exists():
            aside.unlink()
        else:
            aside.rename(store)
        raise


def sync(path: Path) -> None:
    """Bring a file, or the names of a folder, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rows(store: Path) -> int:
    """How many rows the log has ever had. Empties the write-ahead log into the store."""
    try:
        with closing(sqlite3.connect(store, isolation_level=None)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            found = db.execute("SELECT value FROM counter WHERE name = 'head'").fetchone()
            return int(found[0]) if found else 0
    except sqlite3.Error as error:
        raise StoreError(f"{store}: {error}") from error


class Seldom:
    """Passes a text on when the last one is some seconds old."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._began = self._told = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def __call__(self, text: str) -> None:
        if (now := time.monotonic()) - self._told >= _TELL_SECONDS:
            self._told = now
            self._progress(text)
