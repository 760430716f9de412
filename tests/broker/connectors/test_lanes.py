"""Jobs for third parties: in order for each device, bounded for each type, independent of each other."""

import pytest
import trio

from broker.connectors.lanes import Lanes
from storage.keys import DeviceKey, DeviceTypeKey

TYPE, OTHER_TYPE = DeviceTypeKey(1), DeviceTypeKey(2)


@pytest.fixture
async def lanes(nursery: trio.Nursery) -> Lanes:
    lanes = Lanes()
    await nursery.start(lanes.run_forever)
    return lanes


class Log:
    """Jobs that record their start, and end when the test lets them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = trio.Event()

    def job(self, name: str) -> "Job":
        return Job(self, name)


class Job:
    def __init__(self, log: Log, name: str) -> None:
        self._log, self._name = log, name

    async def __call__(self) -> None:
        self._log.begun.append(self._name)
        await self._log.may_end.wait()


async def test_jobs_of_a_device_run_one_at_a_time_in_order(lanes: Lanes) -> None:
    log = Log()
    for device, name in ((1, "a1"), (1, "a2"), (2, "b1"), (1, "a3")):
        assert lanes.offer(TYPE, DeviceKey(device), log.job(name))
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(log.begun) == ["a1", "b1"]
    log.may_end.set()
    await trio.testing.wait_all_tasks_blocked()
    assert [name for name in log.begun if name.startswith("a")] == ["a1", "a2", "a3"]
    assert lanes.waiting == 0


async def test_jobs_of_a_type_are_bounded_and_other_types_continue(lanes: Lanes) -> None:
    log = Log()
    for device in range(20):
        lanes.offer(TYPE, DeviceKey(device), log.job("slow"))
    await trio.testing.wait_all_tasks_blocked()
    assert (log.begun.count("slow"), lanes.room(TYPE), lanes.room(OTHER_TYPE)) == (
        8,
        0,
        8,
    )
    lanes.offer(OTHER_TYPE, DeviceKey(100), log.job("other"))
    await trio.testing.wait_all_tasks_blocked()
    assert "other" in log.begun
    log.may_end.set()
    await trio.testing.wait_all_tasks_blocked()
    assert (log.begun.count("slow"), lanes.room(TYPE)) == (20, 8)


async def test_the_number_of_waiting_jobs_is_bounded(lanes: Lanes) -> None:
    log = Log()
    taken = [lanes.offer(TYPE, DeviceKey(1), log.job("x")) for _ in range(1002)]
    assert (taken.count(True), taken[-2:], lanes.dropped) == (1000, [False, False], 2)
    assert lanes.offer(OTHER_TYPE, DeviceKey(2), log.job("x"))
    log.may_end.set()
    await trio.testing.wait_all_tasks_blocked()
    assert (len(log.begun), lanes.waiting) == (1001, 0)


async def test_a_job_that_fails_does_not_end_others(lanes: Lanes) -> None:
    log = Log()
    log.may_end.set()

    async def fail() -> None:
        raise RuntimeError

    for job in (fail, log.job("next")):
        lanes.offer(TYPE, DeviceKey(1), job)
    await trio.testing.wait_all_tasks_blocked()
    assert (log.begun, lanes.waiting) == (["next"], 0)


async def test_no_job_is_accepted_while_the_lanes_do_not_run() -> None:
    lanes, log = Lanes(), Log()
    assert not lanes.offer(TYPE, DeviceKey(1), log.job("x"))
    async with trio.open_nursery() as nursery:
        await nursery.start(lanes.run_forever)
        assert lanes.offer(TYPE, DeviceKey(1), log.job("x"))
        nursery.cancel_scope.cancel()
    assert not lanes.offer(TYPE, DeviceKey(1), log.job("x"))
