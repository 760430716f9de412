"""Has a test over PostgreSQL fail that opens a file of SQLite: it would be a test of SQLite, silently.

Noted is what this process opens, and the commands and daemons that tests/fork_server.py forks. Tests that are about
SQLite have its mark (`pytest.mark.sqlite`) and are left out.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any, Final

from storage.engines import STORE

_IN_MEMORY: Final = (":memory:", "")
#: The drafts of backups and restores, and the copy that a dry run changes: files of SQLite over either engine.
_OF_EITHER: Final = re.compile(r"/(\.trunkline-backup-\w+|restoring|unpacked|trunkline-\w{8}/state)/[^/]+$")


class OpenedStores:
    """Names of files. They come through a file in memory, which forked commands write, too."""

    def __init__(self) -> None:
        self.file: int | None = None
        self._read = 0
        self._left = set[str]()

    def watch(self) -> None:
        """Note what is opened from now on."""
        if self.file is None:
            self.file = os.memfd_create("stores")
            record_into(self.file)

    def begin_worker(self) -> None:
        """Note in a file of its own what this process opens, which was forked."""
        if self.file is not None:
            os.dup2(os.memfd_create("stores"), self.file)

    def look_into(self, folder: Path) -> None:
        """Note the stores in the folder of a test: a program may have made them that nobody forked."""
        if self.file is not None:
            self._left |= set(map(str, folder.rglob(STORE)))

    def taken(self) -> list[str]:
        """The files since the last call."""
        if self.file is None:
            return []
        more = os.pread(self.file, 1 << 24, self._read)
        self._read += len(more)
        left, self._left = self._left, set()
        names = {*left, *more.decode(errors="replace").splitlines()}
        return sorted(name for name in names if not _OF_EITHER.search(name))


def record_into(file: int) -> None:
    """Write the name of each file that SQLite opens in this process."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect" and (name := os.fsdecode(arguments[0])) not in _IN_MEMORY:
            os.write(file, f"{name}\n".encode(errors="replace"))

    sys.addaudithook(hear)


OPENED: Final = OpenedStores()
