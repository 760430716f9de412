"""Files in the store: they are written and read in pieces, each in a transaction of its own, and deleted by one worker.

Firmware images and archives of exports and of users are such files. Earlier versions had them in folders beside the
store; at the start the worker takes those in (`Files.adopts`).
"""

import hashlib
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from broker.clock import Clock
from broker.ids import is_id
from broker.loops import Loop
from storage.ballast import making_room
from storage.database import Database
from storage.files import CHUNK_BYTES, FileKey
from storage.keys import Milliseconds
from storage.sql import StoreError
from storage.transaction import Transaction

_LOOK_SECONDS: Final = 60.0
_DELETED_AT_ONCE: Final = 4  # chunks in one write, so that senders hardly wait
_DRAFT_MS: Final = 86_400_000
_PIECE_BYTES: Final = 4 * CHUNK_BYTES
_LOG_SECONDS: Final = 5.0
_MIB: Final = 1024 * 1024
#: Files that users fill leave this to the store.
_RESERVE_LEAST: Final = 64 * _MIB
_RESERVE_MOST: Final = 1024 * _MIB
#: Of a folder with files of an earlier version: the bytes of each that is needed, by its id.
Known = Callable[[Transaction], Mapping[str, int]]
_log = structlog.get_logger(__name__)


def room_in(folder: Path) -> int:
    """How many bytes may still be written to the disk of a folder, without the reserve; below 0 there are too few.

    The reserve is a twentieth of the disk, at least 64 MiB and at most 1 GiB. Raises OSError.
    """
    while not folder.exists():
        folder = folder.parent
    disk = shutil.disk_usage(folder)
    return disk.free - min(max(disk.total // 20, _RESERVE_LEAST), _RESERVE_MOST)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the store. `size` is in bytes."""

    database: Database = field(repr=False)
    key: FileKey
    size: int

    async def read(self, position: int, size: int) -> bytes:
        """Bytes from a position on; fewer than `size` at the end, or when the file has just been deleted.

        Raises StoreError.
        """
        wanted = range(position, min(self.size, position + size))
        return b"".join([piece async for piece in self.pieces(wanted)])

    async def pieces(self, wanted: range) -> AsyncGenerator[bytes]:
        """The bytes of these positions, in pieces; fewer when the file has just been deleted. Raises StoreError.

        Each piece is read in a transaction of its own: who reads slowly holds up nobody.
        """
        position = wanted.start
        while position < wanted.stop:
            if not (piece := await self.database.read(partial(_read, self.key, position, wanted.stop - position))):
                return
            yield piece
            position += len(piece)


class Draft:
    """A file that is being written. It is deleted a day later, or after `drop`, unless it is kept."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._key: FileKey | None = None
        self._digest = hashlib.sha256()
        self._waiting = bytearray()
        self._stored = 0
        self.size = 0

    @property
    def sha256(self) -> str:
        """Of all bytes so far, in hexadecimal."""
        return self._digest.hexdigest()

    async def add(self, content: bytes) -> None:
        """Add bytes. Raises StoreError."""
        self._digest.update(content)
        self.size += len(content)
        self._waiting += content
        while len(self._waiting) >= CHUNK_BYTES:
            await self._put(bytes(self._waiting[:CHUNK_BYTES]))

    async def flush(self) -> None:
        """Store all that was added. Raises StoreError."""
        if self._waiting or self._key is None:
            await self._put(bytes(self._waiting))

    async def _put(self, content: bytes) -> None:
        due_on = Milliseconds(self._clock.now_ms() + _DRAFT_MS)

        def work(tx: Transaction) -> FileKey:
            file = tx.files.begin(due_on=due_on) if self._key is None else self._key
            if content:
                tx.files.append(file, self._stored, content)
            return file

        self._key = await self._database.write(work)
        self._stored += len(content)
        del self._waiting[: len(content)]

    def keep(self, tx: Transaction, name: str) -> None:
        """The file, all of which is stored, belongs to what the name says. Raises StoreError."""
        if self._key is None or self._waiting or not tx.files.keep(self._key, name):
            raise StoreError(f"{name}: the file is not whole")

    async def drop(self) -> None:
        """Delete the file, if it was not kept; also when the calling task is cancelled."""
        if (key := self._key) is not None:
            with trio.CancelScope(shield=True), suppress(StoreError):  # else it is deleted a day later
                await self._database.write(lambda tx: tx.files.drop(key))


@dataclass(eq=False)
class Files:
    """`folder` is the state directory. `is_undoable` says whether an upgrade of the store can be undone; `tell` is
    told every few seconds how far the start is with files of an earlier version."""

    _database: Database
    _clock: Clock
    folder: Path
    _is_undoable: Callable[[], bool]
    _tell_supervisor: Callable[[str], None]

    def __post_init__(self) -> None:
        self._adopted: dict[str, Known] = {}
        self._told_at = -_LOG_SECONDS

    def draft(self) -> Draft:
        return Draft(self._database, self._clock)

    async def find(self, name: str) -> StoredFile | None:
        found = await self._database.read(lambda tx: tx.files.find(name))
        return None if found is None else StoredFile(self._database, *found)

    async def clear(self, name: str) -> None:
        """Delete the file of this name, if there is one. Raises StoreError."""
        await self._database.write(lambda tx: tx.files.end(name))

    # Files of earlier versions

    def adopts(self, folder: str, known: Known) -> None:
        """Take the files in a folder of the state directory into the store at the start, and remove them there then.

        A file ID or ID.tgz that is known gets the name `folder/ID`; unknown ones are of what was interrupted or ended.
        """
        self._adopted[folder] = known

    async def _adopt(self) -> None:
        for name, known in self._adopted.items():
            needed = await self._database.read(known)
            for id_, path in self._beside(name):
                if id_ in needed and not path.name.endswith(".part"):
                    await self._take_in(path, f"{name}/{id_}")
        self._remove_adopted()

    def _beside(self, name: str) -> list[tuple[str, Path]]:
        """The files of an earlier version in a folder, each with its id."""
        folder = self.folder / name
        found = [(path.name.removesuffix(".part").removesuffix(".tgz"), path) for path in folder.glob("*")]
        return [(id_, path) for id_, path in sorted(found) if is_id(id_)]

    def _remove_adopted(self) -> None:
        """Remove the files that were taken in. While the upgrade can be undone they stay, for the earlier version."""
        if self._is_undoable():
            return
        for name in self._adopted:
            for _id, path in self._beside(name):
                path.unlink(missing_ok=True)
            with suppress(OSError):  # there is no such folder, or it has files of somebody else
                (self.folder / name).rmdir()
        self._adopted.clear()

    async def _take_in(self, path: Path, name: str) -> None:
        """Killed at any point, it is done again at the next start."""
        if await self.find(name) is not None:
            return
        draft = self.draft()
        async with await trio.open_file(path, "rb") as file:
            while piece := await file.read(_PIECE_BYTES):
                await draft.add(piece)
                self._tell(path, draft.size)
        await draft.flush()
        await self._database.write(lambda tx: draft.keep(tx, name))
        _log.info("file_taken_into_store", file=str(path), bytes=draft.size)

    def _tell(self, path: Path, done: int) -> None:
        if (now := trio.current_time()) >= self._told_at + _LOG_SECONDS:
            self._told_at = now
            _log.info("taking_file_into_store", file=str(path), bytes=done)
            self._tell_supervisor(f"taking {path} into the store: {done >> 20} MiB")

    # The worker

    async def work_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Nobody writes a file before it has started."""
        try:
            await self._database.write(lambda tx: tx.files.drop_unnamed())
            await self._adopt()
        except (StoreError, OSError) as error:  # the next start tries again; nothing is lost
            _log.error("files_not_taken_into_store", reason=str(error))
            self._adopted.clear()
        loop = Loop(self._sweep, every=_LOOK_SECONDS, at_once=True, failure="files_not_deleted", deletes=True)
        await loop.run(task_status=task_status)

    async def sweep(self) -> None:
        """Delete what is due. Raises StoreError."""
        with making_room():
            await self._sweep()

    async def _sweep(self) -> None:
        if self._adopted:
            self._remove_adopted()
        now_ms = self._clock.now_ms()
        for file in await self._database.read(lambda tx: tx.files.due(now_ms)):
            while await self._database.write(partial(_delete_some, file)):
                pass  # in small steps, so that other writes get their turn


def _read(file: FileKey, position: int, size: int, tx: Transaction) -> bytes:
    return tx.files.read(file, position, size)


def _delete_some(file: FileKey, tx: Transaction) -> bool:
    return tx.files.delete_some(file, chunks=_DELETED_AT_ONCE)
