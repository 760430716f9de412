"""Strangers who wake up at one moment, and how many of them go on in one turn of the loop."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.life import Life
from broker.limits.overhead import Overhead
from broker.limits.strangers import Place, Strangers
from broker.trace.origin import Origin, enter
from config.limits import STRANGERS_PER_TURN
from protocols.http.connection import HttpConnection, HttpListener
from protocols.http.hypercorn_adapter import HypercornAdapter
from protocols.streams.hub import Hub
from protocols.streams.peers import Peer, set_peer
from protocols.streams.turnstile import Turnstile
from tests.fakes import new_refusals


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


async def test_a_crowd_of_one_address_does_not_stand_before_another_address(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    turnstile, passed = Turnstile(nursery), list[str]()

    async def come(address: str) -> None:
        enter(Origin(address))
        await turnstile.enter()
        passed.append(address)

    for _ in range(100):
        nursery.start_soon(come, "192.0.2.1")
    await trio.lowlevel.checkpoint()
    nursery.start_soon(come, "192.0.2.2")
    while "192.0.2.2" not in passed:
        await trio.lowlevel.checkpoint()
    assert len(passed) <= 5 * STRANGERS_PER_TURN


async def turns_of_a_crowd(turnstile: Turnstile, nursery: trio.Nursery, between: Callable[[], None]) -> list[int]:
    """The turns of the loop in which 20 waiting connections went on; `between` is called in each turn."""
    turn, passed = 0, list[int]()

    async def come() -> None:
        await turnstile.enter()
        passed.append(turn)

    for _ in range(20):
        nursery.start_soon(come)
    while len(passed) < 20:
        await trio.lowlevel.checkpoint()
        between()
        turn += 1
    return passed[STRANGERS_PER_TURN:]


async def test_a_crowd_that_takes_much_work_goes_on_one_by_one(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    turnstile = Turnstile(nursery, at_once=1, turns=8, per_second=100)
    waited = await turns_of_a_crowd(turnstile, nursery, lambda: None)
    assert all(after - before in {7, 8, 9} for before, after in pairwise(waited))  # trio runs ready tasks in any order


async def test_long_turns_let_more_of_a_crowd_go_on(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    turnstile = Turnstile(nursery, at_once=1, turns=8, per_second=0.001)
    waited = await turns_of_a_crowd(turnstile, nursery, lambda: mock_clock.jump(0.11))  # others have as much work
    assert waited[-1] - waited[0] <= 2 * len(waited)


async def test_hypercorn_gets_what_strangers_send_one_by_one(
    nursery: trio.Nursery, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocols.http.hypercorn_exchange._bound", lambda _stream: None)
    turnstile, turn, passed = Turnstile(nursery, at_once=1, turns=8, per_second=100), 0, list[int]()
    strangers = Strangers(in_all=100, of_one_address=100)

    async def note(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        passed.append(turn)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    listener = HttpListener(
        Hub(nursery, Life()), HypercornAdapter(note, turnstile=turnstile), new_refusals(), Overhead()
    )

    async def serve(place: Place | None) -> None:
        ours, theirs = trio.socket.socketpair()
        with ours, theirs:
            set_peer(Peer(place=place))
            await theirs.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            await HttpConnection(listener, trio.SocketStream(ours)).run()

    for _ in range(20):
        nursery.start_soon(serve, strangers.enter(None, print))
    while len(passed) < 20:
        await trio.lowlevel.checkpoint()
        turn += 1
    assert passed[-1] >= 7 * (20 - STRANGERS_PER_TURN - 1)
    turn = 0
    for _ in range(20):
        nursery.start_soon(serve, None)  # somebody is authenticated on these
    while len(passed) < 40:
        await trio.lowlevel.checkpoint()
        turn += 1
    assert turn < 20
    nursery.cancel_scope.cancel()


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
