"""A target of the fuzzer: a function of bytes, and the rules that every input has to keep."""

import resource
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from broker.errors import DomainError

#: The longest input.
INPUT_BYTES: Final = 64 * 1024
#: Processor time and growth of the process's memory that one input may take.
MOST_SECONDS: Final = 1.0
MOST_BYTES: Final = 64 * 1024 * 1024
CORPUS: Final = Path(__file__).parent / "corpus"

Run = Callable[[bytes], None]


class AsyncRunner(Protocol):
    async def run(self, data: bytes) -> None:
        """Raises what must not happen."""


#: Opens what runs the inputs of a target in an event loop, with files in a folder.
Opener = Callable[[Path], AbstractAsyncContextManager[AsyncRunner]]


class BrokenRuleError(AssertionError):
    """An input took too long, or too much memory."""


@dataclass(frozen=True, slots=True)
class Target:
    """`run` or `opened` takes an input. `allowed`: the refusals that are right."""

    name: str
    run: Run | None = None
    opened: Opener | None = None
    allowed: tuple[type[BaseException], ...] = (DomainError,)
    longest: int = INPUT_BYTES

    def corpus(self) -> list[bytes]:
        return [example(path) for path in sorted((CORPUS / self.name).iterdir())]


def example(path: Path) -> bytes:
    """An example of the corpus. The repository has no binary files: it is a line with the escapes of Python."""
    return path.read_bytes().removesuffix(b"\n").decode("unicode_escape").encode("latin-1")


class Watch:
    """Checks what each input of a process takes."""

    def __init__(self, most_seconds: float = MOST_SECONDS) -> None:
        self._most_seconds = most_seconds
        self._peak = _peak_bytes()
        self.executions = 0
        self.slowest = 0.0

    def run(self, run: Run, data: bytes) -> None:
        """Raises what `run` raises, and BrokenRuleError."""
        self.executions += 1
        began = time.thread_time()
        run(data)
        took = time.thread_time() - began
        self.slowest = max(self.slowest, took)
        if took > self._most_seconds:
            raise BrokenRuleError(f"{took:.1f} s of processor time for {len(data)} bytes")
        grown, self._peak = _peak_bytes() - self._peak, max(self._peak, _peak_bytes())
        if grown > MOST_BYTES:
            raise BrokenRuleError(f"{grown >> 20} MiB of memory for {len(data)} bytes")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
