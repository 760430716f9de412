"""Has a Parquet file written by a process of its own (`parquet_writing`), piece by piece. Runs in threads."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Timer
from typing import Final

import msgspec

from broker.errors import DomainError
from broker.export.parquet_frames import ParquetColumn, framed, read_frame
from broker.export.tables import DEVICE, MORE, RECEIVED, SDID, TIME, Column

_ANSWER_SECONDS: Final = 60.0
_COMMAND: Final = (sys.executable, "-P", "-m", "broker.export.parquet_writing")
#: Nothing of the daemon's environment, which may have secrets.
_ENVIRONMENT: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
_encode = msgspec.json.Encoder().encode


@dataclass(eq=False)
class ParquetNotInstalled(DomainError):
    """The library that writes Parquet is an optional part of the installation."""

    status = 501
    template = "This server cannot write Parquet: its operator can install the extra parquet"


class ParquetFailed(OSError):
    """The process ended without an answer."""


def is_installed() -> bool:
    return find_spec("pyarrow") is not None


class ParquetFile:
    """One file. Raises ParquetFailed. `close` it, whatever happens."""

    def __init__(self, columns: Sequence[Column]) -> None:
        first = [ParquetColumn(TIME, "time"), ParquetColumn(RECEIVED, "time")]
        first += [ParquetColumn(SDID, "text"), ParquetColumn(DEVICE, "text")]
        fields = [ParquetColumn(one.name, one.kind, one.is_list, one.unit) for one in columns]
        self._columns = _encode([*first, *fields, ParquetColumn(MORE, "text")])
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> bytes:
        """Begin the file; its first bytes."""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a constant
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
            )
        except OSError as error:
            raise ParquetFailed(f"no process can be started: {error.strerror}") from error
        return self._asked(self._columns)

    def add(self, rows: bytes) -> bytes:
        """Add rows, given as `Table.columns_json`. Returns the bytes that the file has grown by."""
        return self._asked(rows)

    def end(self) -> bytes:
        """The last bytes."""
        last = self._asked(b"")
        self.close()
        return last

    def close(self) -> None:
        if (process := self._process) is None:
            return
        self._process = None
        process.kill()
        with process:  # its pipes are closed, and it is waited for
            pass

    def _asked(self, request: bytes) -> bytes:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ParquetFailed("the file has ended")
        try:
            with _killed_late(process):
                process.stdin.write(framed(request))
                process.stdin.flush()
                return read_frame(process.stdout)
        except (OSError, EOFError) as error:
            self.close()
            raise ParquetFailed("the process that writes Parquet has ended") from error


@contextmanager
def _killed_late(process: subprocess.Popen[bytes]) -> Iterator[None]:
    timer = Timer(_ANSWER_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
