"""Rotates a key and is killed on the way: `python -m tests.protocols.cli.killed_rotation`.

It reads lines `<state directory> <number>`. For each, a child process rotates the key of that state directory and kills
itself before the operation of that number. The answer is a line with the signal; 0 when the rotation came to its end.
A power cut can fall between these operations: each call that changes a file, and each SQL statement.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.settings import Settings
from protocols.cli.key import rotate_key
from storage.engines.sqlite import SqliteConnection


class _Counted:
    def __init__(self, left: int) -> None:
        self.left = left

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            return function(*arguments, **named)

        return counted


def _rotate(state: Path, number: int) -> None:
    counted = _Counted(number)
    for owner, name in ((os, "open"), (os, "fsync"), (Path, "rename"), (Path, "unlink"), (SqliteConnection, "execute")):
        setattr(owner, name, counted.wrap(getattr(owner, name)))
    rotate_key(Settings(state_dir=state))


def main() -> None:
    for line in sys.stdin:
        state, number = line.split()
        child = os.fork()
        if child == 0:
            _rotate(Path(state), int(number))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{-os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
