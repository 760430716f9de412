"""Reads the file of a store ahead of a check of all its pages.

`PRAGMA quick_check` reads each tree from its last page to its first. The system takes that for reads at random and gets
one page of 4 KiB from the disk after the other, a seventh of what the disk can.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

PIECE_BYTES: Final = 1024 * 1024


@contextmanager
def reading_ahead(path: Path) -> Iterator[None]:
    """Have the pages in the system's memory soon: a thread reads the file from its end to its beginning, in pieces.

    Not beside a daemon, from whose writes it takes the disk. The check meets what it cannot read as well.
    """
    is_over = Event()
    thread = Thread(target=_read, args=(path, is_over), name="reading ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _read(path: Path, is_over: Event) -> None:
    piece = bytearray(PIECE_BYTES)
    with suppress(OSError), path.open("rb", buffering=0) as file:
        for at in reversed(range(0, os.fstat(file.fileno()).st_size, PIECE_BYTES)):
            os.preadv(file.fileno(), [piece], at)
            if is_over.is_set():
                return
