"""Rotates a key and is killed on the way: `python -m tests.protocols.cli.killed_rotation`.

It reads lines `<state directory> <storage.url> <number>`. For each, a child process rotates the key of that state
directory and kills itself before the operation of that number. The answer is a line with the signal, 0 when the
rotation came to its end, and the number of operations that were done.
A power cut can fall between these operations: each call that changes a file, and each SQL statement.
"""

import mmap
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.settings import Settings, Storage
from protocols.cli.key import rotate_key
from storage.engines.postgresql_connection import PostgresqlConnection
from storage.engines.sqlite import SqliteConnection


class _Counted:
    def __init__(self, until: int, done: mmap.mmap) -> None:
        self.until, self.done = until, done

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            number = int.from_bytes(self.done[:8])
            if number == self.until:
                os.kill(os.getpid(), signal.SIGKILL)
            self.done[:8] = (number + 1).to_bytes(8)
            return function(*arguments, **named)

        return counted


def _rotate(settings: Settings, number: int, done: mmap.mmap) -> None:
    counted = _Counted(number, done)
    files = ((os, "open"), (os, "fsync"), (Path, "rename"), (Path, "unlink"))
    statements = (PostgresqlConnection, "_run") if settings.storage.is_postgresql else (SqliteConnection, "execute")
    for owner, name in (*files, statements):
        setattr(owner, name, counted.wrap(getattr(owner, name)))
    rotate_key(settings)


def main() -> None:
    for line in sys.stdin:
        state, url, number = line.split()
        done = mmap.mmap(-1, 8)  # the child's, too
        child = os.fork()
        if child == 0:
            _rotate(Settings(state_dir=Path(state), storage=Storage(url=url)), int(number), done)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{-os.waitstatus_to_exitcode(status)} {int.from_bytes(done[:8])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
