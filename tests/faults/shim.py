"""The library that stands before libc in a daemon (shim.c), and what it is told."""

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.faults.world import wait

_SOURCE: Final = Path(__file__).with_name("shim.c")
#: `struct control` of shim.c.
_CONTROL: Final = struct.Struct("=16s16siiiii")
_HITS_AT: Final = _CONTROL.size - 4
_SKIP_AT: Final = _CONTROL.size - 12
#: The store, its log, the index of the log; and all other files of the state directory.
STORE: Final = "dlm"
ALL: Final = "dlmx"
ALWAYS: Final = 1 << 30


class Shim:
    """What fails in the daemons that start within `loaded`."""

    def __init__(self, folder: Path, state: Path) -> None:
        self._library = folder / "shim.so"
        compiler = shutil.which("cc") or "cc"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True, timeout=60)
        self._state = state
        self._file = folder / "control"
        self._file.write_bytes(bytes(_CONTROL.size))
        with self._file.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _CONTROL.size)

    @contextmanager
    def loaded(self, **variables: str) -> Iterator[None]:
        """Daemons that start within the block have the library; it gets the variables, too."""
        given = {
            "LD_PRELOAD": str(self._library),
            "FAULTS_CONTROL": str(self._file),
            "FAULTS_STATE": str(self._state),
            **variables,
        }
        former = dict(os.environ)
        os.environ.update(given)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(former)

    def arm(
        self, calls: str, files: str = STORE, *, error: int = 0, delay: int = 0, skip: int = 0, count: int = ALWAYS
    ) -> None:
        """From now on `count` of these calls fail, or are late by `delay` ms, after `skip` that do not."""
        self.disarm()
        # The calls come last: without them nothing else is looked at.
        told = _CONTROL.pack(calls.encode(), files.encode(), error, delay, skip, count, 0)
        self._control[16:] = told[16:]
        self._control[:16] = told[:16]

    def disarm(self) -> None:
        self._control[:16] = bytes(16)

    @property
    def hits(self) -> int:
        """How many calls have failed, or were late, since `arm`."""
        found: int = struct.unpack("=i", self._control[_HITS_AT:])[0]
        return found

    def counted(self, calls: str, run: Callable[[], object]) -> int:
        """How many of these calls come while it runs. None fails."""
        self.arm(calls, ALL, skip=ALWAYS)
        run()
        left: int = struct.unpack_from("=i", self._control, _SKIP_AT)[0]
        self.disarm()
        return ALWAYS - left

    def wait_hit(self) -> None:
        wait(lambda: self.hits > 0, "a call that fails")
