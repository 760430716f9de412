"""Strangers who wake up at one moment, and how many of them go on in one turn of the loop."""

from collections import Counter

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config.limits import STRANGERS_PER_TURN
from protocols.turnstile import Turnstile


async def test_a_few_do_not_wait(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    turnstile = Turnstile(nursery)
    for _ in range(3):
        with trio.CancelScope() as scope:
            scope.cancel()  # a checkpoint would raise
            for _ in range(STRANGERS_PER_TURN):
                await turnstile.enter()
        assert not scope.cancelled_caught
        mock_clock.jump(1)


async def test_a_crowd_goes_on_a_few_in_each_turn(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    turnstile, turn, passed = Turnstile(nursery), 0, Counter[int]()

    async def come() -> None:
        await turnstile.enter()
        passed[turn] += 1

    count = 10 * STRANGERS_PER_TURN
    for _ in range(count):
        nursery.start_soon(come)
    while passed.total() < count:
        await trio.lowlevel.checkpoint()
        turn += 1
    assert max(passed.values()) <= 2 * STRANGERS_PER_TURN  # trio runs ready tasks in any order


async def test_who_is_cancelled_while_waiting_hinders_nobody(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    turnstile, passed = Turnstile(nursery), 0
    scopes = [trio.CancelScope() for _ in range(5 * STRANGERS_PER_TURN)]

    async def come(scope: trio.CancelScope) -> None:
        nonlocal passed
        with scope:
            await turnstile.enter()
            passed += 1

    for scope in scopes:
        nursery.start_soon(come, scope)
    for scope in scopes[::2]:
        scope.cancel()
    await wait_all_tasks_blocked()
    assert passed >= len(scopes) // 2
    assert passed + sum(scope.cancelled_caught for scope in scopes) == len(scopes)
    for _ in range(2):  # and the next crowd is served, too
        passed = 0
        for _ in range(2 * STRANGERS_PER_TURN):
            nursery.start_soon(come, trio.CancelScope())
        await wait_all_tasks_blocked()
        assert passed == 2 * STRANGERS_PER_TURN
