"""The loop of a worker: when it takes a step, and that a failing store does not end it."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

import broker
from broker.loops import Loop, Wakeup
from storage.ballast import makes_room
from storage.sql import StoreError


class Steps:
    """Remembers when each step was taken; a step ends as `outcomes` say, and answers None after the last of them."""

    def __init__(self, *outcomes: bool | Exception) -> None:
        self.times: list[float] = []
        self._outcomes: Iterator[bool | Exception] = iter(outcomes)

    async def __call__(self) -> bool | None:
        await trio.lowlevel.checkpoint()
        self.times.append(trio.current_time())
        outcome = next(self._outcomes, None)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@asynccontextmanager
async def repeating(
    steps: Steps,
    *,
    every: float = inf,
    wakeup: Wakeup | None = None,
    at_once: bool = False,
    retry_seconds: float | None = None,
) -> AsyncIterator[None]:
    loop = Loop(
        steps,
        failure="step_failed",
        every=every,
        wakeup=wakeup or Wakeup(),
        at_once=at_once,
        retry_seconds=retry_seconds,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(loop.run)
        yield
        nursery.cancel_scope.cancel()


async def test_steps_follow_at_their_interval(autojump_clock: MockClock) -> None:
    steps = Steps()
    async with repeating(steps, every=10):
        await trio.sleep(35)
    assert steps.times == [10, 20, 30]


async def test_the_first_step_may_come_at_once(autojump_clock: MockClock) -> None:
    steps = Steps()
    async with repeating(steps, every=10, at_once=True):
        await trio.sleep(15)
    assert steps.times == [0, 10]


async def test_a_wakeup_ends_the_wait_and_none_is_lost_that_comes_before_it(autojump_clock: MockClock) -> None:
    steps, wakeup = Steps(), Wakeup()
    wakeup.set()
    async with repeating(steps, every=10, wakeup=wakeup):
        await trio.sleep(3)
        wakeup.set()
        wakeup.set()
        await trio.sleep(12)
    assert steps.times == [0, 3, 13]


async def test_a_step_that_has_more_to_do_is_followed_without_a_wait(autojump_clock: MockClock) -> None:
    steps = Steps(True, True, False)
    async with repeating(steps, every=10):
        await trio.sleep(25)
    assert steps.times == [10, 10, 10, 20]


@pytest.mark.parametrize(
    ("retry_seconds", "times"), [pytest.param(None, [10, 20], id="waits"), pytest.param(2, [10, 12, 22], id="retries")]
)
async def test_a_store_that_fails_is_logged_and_the_loop_goes_on(
    autojump_clock: MockClock, retry_seconds: float | None, times: list[float]
) -> None:
    steps = Steps(StoreError("disk full"))
    with capture_logs() as logs:
        async with repeating(steps, every=10, retry_seconds=retry_seconds):
            await trio.sleep(25)
    assert steps.times == times
    assert [(line["event"], line.get("reason")) for line in logs] == [
        ("step_failed", "disk full"),
        ("works_again", None),
    ]


async def test_a_store_that_fails_for_long_is_told_of_once_a_minute(autojump_clock: MockClock) -> None:
    steps = Steps(*[StoreError("disk full")] * 150, False, StoreError("again"))
    with capture_logs() as logs:
        async with repeating(steps, every=1):
            await trio.sleep(151.5)
    told = [(line["event"], line.get("reason") or line["after"], line["times"], line["seconds"]) for line in logs]
    assert told == [
        ("step_failed", "disk full", 1, 0),
        ("step_failed", "disk full", 61, 60),
        ("step_failed", "disk full", 121, 120),
        ("works_again", "step_failed", 150, 150),
    ]


async def test_any_other_error_ends_the_loop(autojump_clock: MockClock) -> None:
    with pytest.raises(ZeroDivisionError):
        await Loop(Steps(ZeroDivisionError()), failure="step_failed", at_once=True).run()


@pytest.mark.parametrize("deletes", [True, False])
async def test_only_steps_that_delete_use_the_disk_space_that_is_reserved_for_them(*, deletes: bool) -> None:
    found: list[bool] = []

    async def step() -> None:
        await trio.lowlevel.checkpoint()
        found.append(makes_room.get())
        scope.cancel()

    with trio.CancelScope() as scope:
        await Loop(step, at_once=True, failure="not_swept", deletes=deletes).run()
    assert found == [deletes]
    assert not makes_room.get()


def test_each_sweep_uses_the_disk_space_that_is_reserved_for_deleting() -> None:
    """A sweep that could not delete on a full disk would leave it full."""
    loops = re.compile(r"\bLoop\((?:[^()]|\([^()]*\))*\)")
    sweeps = [
        call
        for path in Path(broker.__path__[0]).rglob("*.py")
        for call in loops.findall(path.read_text(encoding="utf-8"))
        if re.search(r"not_swept|not_removed|not_deleted", call)
    ]
    assert len(sweeps) >= 7
    assert [call for call in sweeps if "deletes=True" not in call] == []
