"""The thread of the store's writer."""

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

import outcome
import trio

T = TypeVar("T")
_Job = tuple[Callable[[], Any], trio.lowlevel.Task, trio.lowlevel.TrioToken]


class WriterThread:
    """Runs functions one after the other in one thread, which waits for the next one.

    `trio.to_thread` looks for a thread, names it and copies the context for each call, and a busy store commits
    hundreds of times a second.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """What the function returns or raises. The caller waits for its end, also when it is cancelled."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
            self._thread.start()
        self._jobs.put((function, trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()))
        result: T = await trio.lowlevel.wait_task_rescheduled(_finish_first)
        return result

    def end(self) -> None:
        """The thread ends, without a wait for it."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, task, loop = job
            result = outcome.capture(function)
            with suppress(trio.RunFinishedError):
                loop.run_sync_soon(trio.lowlevel.reschedule, task, result)
            del job, function, task, loop, result  # nothing is held while there is nothing to do


def _finish_first(_raise_cancel: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
