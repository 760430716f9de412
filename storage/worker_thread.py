"""A thread that works for the loop, such as those of the store's writer and readers."""

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

import outcome
import trio

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Job(Protocol[T_co]):
    """The end of a function that a worker runs. When it has ended: how long it took, and how long of that the worker
    did not use the processor, because it waited for the disk."""

    seconds: float
    idle_seconds: float

    async def ended(self, interrupt: Callable[[], object] | None = None) -> T_co:
        """Return or raise the outcome of the function. One task waits for its end, also if it is cancelled: then
        `interrupt` is called, which may have the function end earlier."""


class Worker(Protocol):
    """Runs functions one after the other."""

    def begin(self, function: Callable[[], T]) -> Job[T]:
        """Run the function when those before it have ended."""

    async def run(self, function: Callable[[], T], interrupt: Callable[[], object] | None = None) -> T:
        """Return or raise the outcome of the function. The caller waits for its end as in `Job.ended`."""

    def end(self) -> None: ...


class _ThreadJob(Generic[T]):
    """A job of the thread. It does not refer to the function, which may refer to this object."""

    __slots__ = ("_result", "_task", "idle_seconds", "seconds")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._result: outcome.Outcome[T] | None = None
        self.seconds = self.idle_seconds = 0.0

    async def ended(self, interrupt: Callable[[], object] | None = None) -> T:
        abort = _finish_first if interrupt is None else partial(_interrupted, interrupt)
        while self._result is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)
        return self._result.unwrap()

    def end(self, result: outcome.Outcome[T]) -> None:
        """End the job; called on the loop. A second end is none."""
        if self._result is not None:
            return
        self._result = result
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)


#: Between two tries to tell of the end of a job while there is no memory.
_MEMORY_SECONDS: Final = 0.05
_Waiting = tuple[Callable[[], Any], _ThreadJob[Any], trio.lowlevel.TrioToken]


class WorkerThread:
    """Runs functions one after the other in one thread, which waits for the next one.

    `trio.to_thread` looks for a thread, names it and copies the context for each call, and a busy store commits
    hundreds of times a second.
    """

    def __init__(self, name: str) -> None:
        """The thread begins with the first function, also after `end`."""
        self._name = name
        self._jobs: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, function: Callable[[], T]) -> Job[T]:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()  # RuntimeError: there is no memory for it now
            self._thread = thread
        job: _ThreadJob[T] = _ThreadJob()
        self._jobs.put((function, job, trio.lowlevel.current_trio_token()))
        return job

    async def run(self, function: Callable[[], T], interrupt: Callable[[], object] | None = None) -> T:
        return await self.begin(function).ended(interrupt)

    def end(self) -> None:
        """The thread ends, without a wait for it."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _work(self) -> None:
        spare = _out_of_memory()
        while (waiting := self._jobs.get()) is not None:
            function, job, loop = waiting
            result: outcome.Outcome[Any] | None = None
            while True:  # whoever waits for the job must hear of its end, also when there is no memory for that now
                try:
                    result = result or _run(function, job)
                    loop.run_sync_soon(job.end, result)
                    if result is spare:
                        spare = _out_of_memory()
                    break
                except trio.RunFinishedError:
                    break
                except MemoryError:
                    result = result or spare
                    time.sleep(_MEMORY_SECONDS)
            del waiting, function, job, loop, result  # nothing is held while there is nothing to do


def _run(function: Callable[[], T], job: _ThreadJob[Any]) -> outcome.Outcome[T]:
    began, worked = time.perf_counter(), time.thread_time()
    result = outcome.capture(function)
    job.seconds = time.perf_counter() - began
    job.idle_seconds = job.seconds - (time.thread_time() - worked)
    return result


def _out_of_memory() -> outcome.Error:
    """The outcome of a function whose own one there was no memory for."""
    return outcome.Error(MemoryError("there was no memory for the outcome"))


def _finish_first(_raise_cancel: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


def _interrupted(interrupt: Callable[[], object], raise_cancel: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
    interrupt()
    return _finish_first(raise_cancel)
