"""A thread that works for the loop: results, errors, and callers that are cancelled."""

import threading
from collections.abc import Callable
from typing import Any

import outcome
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.worker_thread import WorkerThread


async def test_functions_run_in_one_thread_and_return_their_results() -> None:
    writer = WorkerThread("worker")
    threads = [await writer.run(threading.current_thread) for _ in range(3)]
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()
    writer.end()
    threads[0].join(10)
    assert not threads[0].is_alive()


async def test_an_error_is_raised_in_the_caller_and_the_thread_goes_on() -> None:
    writer = WorkerThread("worker")
    with pytest.raises(ZeroDivisionError):
        await writer.run(lambda: 1 / 0)
    assert await writer.run(lambda: 7) == 7
    writer.end()


async def test_a_cancelled_caller_waits_for_the_end_of_its_function() -> None:
    writer = WorkerThread("worker")
    may_end, ended = threading.Event(), []

    def work() -> None:
        assert may_end.wait(10)
        ended.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run, work)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        may_end.set()
    assert ended == [True]
    writer.end()


async def test_a_thread_that_has_ended_begins_again() -> None:
    writer = WorkerThread("worker")
    writer.end()
    assert await writer.run(lambda: 1) == 1
    writer.end()
    assert await writer.run(lambda: 2) == 2
    writer.end()


def test_a_loop_that_has_ended_meanwhile_does_not_end_the_thread() -> None:
    writer = WorkerThread("worker")
    held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert may_end.wait(10)

    async def begin() -> None:
        await writer.run(lambda: None)
        writer.begin(hold)

    trio.run(begin)
    assert held.wait(10)
    may_end.set()
    assert trio.run(writer.run, lambda: 2) == 2
    writer.end()


async def test_the_end_of_a_function_is_told_late_when_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/faults, "memory": the thread ended, and everybody waited for the commit that it had made."""
    writer, tells, tries = WorkerThread("worker"), trio.lowlevel.TrioToken.run_sync_soon, list[None]()

    def tell(token: trio.lowlevel.TrioToken, *arguments: Any) -> None:
        tries.append(None)
        if len(tries) != 3:  # the second try had told already
            tells(token, *arguments)
        if len(tries) < 4:
            raise MemoryError

    monkeypatch.setattr(trio.lowlevel.TrioToken, "run_sync_soon", tell)
    with trio.fail_after(10):
        assert await writer.run(lambda: 7) == 7
        assert await writer.run(lambda: 8) == 8
    writer.end()


async def test_an_outcome_without_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, capture, tries = WorkerThread("worker"), outcome.capture, list[None]()

    def captured(function: Callable[[], object]) -> object:
        tries.append(None)
        found = capture(function)
        if len(tries) < 3:
            raise MemoryError
        return found

    monkeypatch.setattr(outcome, "capture", captured)
    ran: list[int] = []
    with trio.fail_after(10):
        for number in range(2):
            with pytest.raises(MemoryError):
                await writer.run(lambda of=number: ran.append(of))  # type: ignore[misc]
        assert await writer.run(lambda: 7) == 7
    assert ran == [0, 1]  # each once
    writer.end()


async def test_a_thread_that_could_not_begin_begins_with_the_next_function(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, start = WorkerThread("worker"), threading.Thread.start

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        await writer.run(lambda: 7)
    monkeypatch.setattr(threading.Thread, "start", start)
    with trio.fail_after(10):
        assert await writer.run(lambda: 8) == 8
    writer.end()
