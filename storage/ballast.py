"""Disk space that is reserved for deleting, so that it works on a full disk, too.

A deletion must be written before it frees space. So a file takes some of the disk from the start. When the disk is
full and something is to be deleted, the writer frees the space of the file, commits the deletion alone, and reserves
the space again.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

BALLAST_BYTES: Final = 8 * 1024 * 1024
_LEAST_BYTES: Final = 64 * 1024

#: Set while a task deletes. A write takes it along in its context (`Database.write`).
makes_room: Final[ContextVar[bool]] = ContextVar("makes_room", default=False)


@contextmanager
def making_room() -> Iterator[None]:
    """Let the writes of the block use the disk space that is reserved for deleting."""
    token = makes_room.set(True)
    try:
        yield
    finally:
        makes_room.reset(token)


class Ballast:
    def __init__(self, path: Path, *, size: int = BALLAST_BYTES) -> None:
        """`path`: of the file, on the disk of the store."""
        self._path = path
        self._size = size

    def take(self) -> bool:
        """Take the room, or as much of it as there is. Return whether that is all of it."""
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            taken, piece = 0, self._size
            while taken < self._size and piece >= _LEAST_BYTES:
                try:
                    os.posix_fallocate(file, taken, min(piece, self._size - taken))
                except OSError:
                    piece //= 2
                else:
                    taken += piece
            return taken >= self._size
        finally:
            os.close(file)

    def give_up(self) -> None:
        """Leave the room to others."""
        try:
            os.truncate(self._path, 0)
        except OSError:
            return
