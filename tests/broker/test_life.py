"""The workers of the capabilities: started in order, saved after they have ended, observed by name."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from broker.cluster.leases import Lease, LeaseName
from broker.life import Life
from storage.facts import StoreOvertakenError
from storage.sql import StoreError


class Recorder:
    """Writes down what a life does to its workers."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def run(self, name: str) -> Callable[..., Awaitable[None]]:
        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            self.done.append(f"{name} started")
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self.done.append(f"{name} ended")

        return run

    def save(self, name: str, error: StoreError | None = None) -> Callable[[], Awaitable[None]]:
        async def save() -> None:
            await trio.lowlevel.checkpoint()
            self.done.append(f"{name} saved")
            if error is not None:
                raise error

        return save


async def test_workers_start_in_the_order_of_registration() -> None:
    life, recorder = Life(), Recorder()
    for name in ("first", "second", "third"):
        life.worker(name, recorder.run(name))
    async with life.running():
        assert recorder.done == ["first started", "second started", "third started"]


async def test_state_is_saved_after_every_worker_has_ended() -> None:
    life, recorder = Life(), Recorder()
    life.worker("first", recorder.run("first"), save=recorder.save("first"))
    life.worker("second", recorder.run("second"), save=recorder.save("second"))
    async with life.running():
        recorder.done.clear()
    assert sorted(recorder.done[:2]) == ["first ended", "second ended"]
    assert recorder.done[2:] == ["first saved", "second saved"]


async def test_a_worker_whose_state_cannot_be_saved_does_not_keep_the_others_from_saving() -> None:
    life, recorder = Life(), Recorder()
    life.worker("first", recorder.run("first"), save=recorder.save("first", StoreError("disk full")))
    life.worker("second", recorder.run("second"), save=recorder.save("second"))
    async with life.running():
        pass
    assert recorder.done[-2:] == ["first saved", "second saved"]


async def test_state_is_saved_when_the_block_is_cancelled() -> None:
    life, recorder = Life(), Recorder()
    life.worker("first", recorder.run("first"), save=recorder.save("first"))
    with trio.CancelScope() as scope:
        async with life.running():
            scope.cancel()
            await trio.sleep_forever()
    assert recorder.done[-1] == "first saved"


async def test_state_is_saved_when_the_block_fails() -> None:
    life, recorder = Life(), Recorder()
    life.worker("first", recorder.run("first"), save=recorder.save("first"))
    with pytest.RaisesGroup(ZeroDivisionError):
        async with life.running():
            raise ZeroDivisionError
    assert recorder.done[-1] == "first saved"


async def test_a_failing_worker_ends_the_others_and_the_block() -> None:
    life, recorder = Life(), Recorder()

    async def fail(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        raise ZeroDivisionError

    life.worker("first", recorder.run("first"), save=recorder.save("first"))
    life.worker("second", fail)
    with pytest.RaisesGroup(ZeroDivisionError):
        async with life.running():
            await trio.sleep_forever()
    assert recorder.done == ["first started", "first ended", "first saved"]


async def test_a_worker_that_cannot_begin_when_its_lease_is_gained_begins_again(autojump_clock: MockClock) -> None:
    """The commit that it begins with may have been overtaken by another node."""
    life, recorder, lease = Life(), Recorder(), Lease(LeaseName.TASKS, is_held=False)
    run, refusals = recorder.run("tasks"), [StoreOvertakenError("a device has connected to another node")]

    async def begin(*, task_status: trio.TaskStatus[None]) -> None:
        if refusals:
            recorder.done.append("tasks refused")
            raise refusals.pop()
        await run(task_status=task_status)

    life.worker("tasks", begin, lease=lease, forget=lambda: recorder.done.append("tasks forgotten"))
    async with life.running():
        lease.gain(None)
        await trio.sleep(10)
        assert recorder.done == ["tasks refused", "tasks forgotten", "tasks started"]


def test_statistics_are_read_when_they_are_asked_for() -> None:
    life, counts = Life(), [1]
    life.observe("part", lambda: counts[0])
    assert life.statistics() == {"part": 1}
    counts[0] = 2
    assert life.statistics() == {"part": 2}


def test_two_parts_cannot_have_statistics_of_one_name() -> None:
    life = Life()
    life.observe("part", lambda: 1)
    with pytest.raises(ValueError, match="'part'"):
        life.observe("part", lambda: 2)
