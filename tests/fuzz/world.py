"""Runs inputs on services that stay open, one after the other.

The event loop runs as a guest of the calling thread: a fuzzing engine calls us, and we must return between two inputs.
"""

import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from tests.fuzz.target import Opener


class World:
    """`close` ends it."""

    def __init__(self, opened: Opener, folder: Path) -> None:
        self._opened = opened
        self._folder = folder
        self._callbacks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._input: bytes | None = None
        self._failure: Exception | None = None
        self._is_closing = self._has_ended = False
        self._error: BaseException | None = None
        trio.lowlevel.start_guest_run(
            self._serve, run_sync_soon_threadsafe=self._callbacks.put, done_callback=self._ended, clock=MockClock()
        )

    def run(self, data: bytes) -> None:
        """Raises what must not happen."""
        self._input = data
        while self._input is not None and not self._has_ended:
            self._callbacks.get()()
        if self._has_ended:
            raise self._error or RuntimeError("the services have ended")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def close(self) -> None:
        self._is_closing = True
        while not self._has_ended:
            self._callbacks.get()()

    async def _serve(self) -> None:
        async with self._opened(self._folder) as runner:
            while not self._is_closing:
                if self._input is None:
                    await trio.lowlevel.checkpoint()
                    continue
                try:
                    await runner.run(self._input)
                except Exception as error:  # noqa: BLE001 - the caller raises it
                    self._failure = error
                self._input = None

    def _ended(self, outcome: Any) -> None:
        self._has_ended = True
        self._error = getattr(outcome, "error", None)
