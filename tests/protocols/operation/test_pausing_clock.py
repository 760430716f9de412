"""Bytes that peers sent while the process did not run are read before deadlines count.

The clock of these tests jumps while the bytes lie in the sockets: so it looks to the daemon after SIGSTOP and SIGCONT.
"""

import os
import time
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.services import Services
from config.settings import Address
from protocols.http.server import serve_http
from protocols.mqtt.server import serve_mqtt
from protocols.operation.pausing_clock import PausingClock
from tests.factories import KITCHEN, KITCHEN_TOKEN, World
from tests.protocols.http.conftest import repeat_head
from tests.protocols.mqtt.peers import ACCEPTED, PINGREQ, PINGRESP, connect
from tests.protocols.websocket.peers import open_peers


class Passing:
    """Time that goes on, also while the process does not run."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self.ahead


@pytest.fixture
def passing() -> Passing:
    return Passing()


@pytest.fixture
def clock(passing: Passing) -> PausingClock:
    return PausingClock(passing)


class Steps:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_passes_as_it_does_elsewhere() -> None:
    steps = Steps()
    clock = PausingClock(steps)
    for _ in range(100):
        begin = clock.current_time()
        assert clock.deadline_to_sleep_time(begin + 30) == pytest.approx(30)
        steps.now += 30.4  # woken a little late
        assert clock.current_time() - begin == pytest.approx(30.4)
        steps.now += 0.3
        assert clock.current_time() - begin == pytest.approx(30.7)
    assert clock.pauses == 0


@pytest.mark.parametrize(("sleeping", "pause"), [(0.0, 6.0), (3.0, 6.0), (0.2, 1.0), (3.0, 86_400.0)])
def test_no_deadline_comes_in_a_pause_nor_in_the_second_after_it(sleeping: float, pause: float) -> None:
    steps = Steps()
    clock = PausingClock(steps)
    deadline = clock.current_time() + (sleeping or 0.1)
    if sleeping:
        clock.deadline_to_sleep_time(deadline)
    steps.now += pause
    at = clock.current_time()
    assert at < deadline
    wait = clock.deadline_to_sleep_time(deadline)
    assert wait >= 1.0
    steps.now += 0.9
    assert clock.current_time() == at
    steps.now += wait - 0.9
    assert clock.current_time() == pytest.approx(deadline)


def test_deadlines_come_on_a_machine_that_always_has_too_much_to_do() -> None:
    steps = Steps()
    clock = PausingClock(steps)
    begin = clock.current_time()
    for _ in range(100):
        before = clock.current_time()
        steps.now += 0.7
        assert clock.current_time() >= before
    assert clock.current_time() - begin > 35


_ROUNDS = 8  # without the clock, chance decides whether the socket or the deadline comes first


async def passes(passing: Passing, seconds: float) -> None:
    """While the process runs."""
    for _ in range(round(seconds / 0.45)):
        passing.ahead += 0.45
        await wait_all_tasks_blocked(0.001)


async def test_pings_in_the_socket_keep_an_mqtt_connection(
    services: Services, world: World, nursery: trio.Nursery, clock: PausingClock, passing: Passing
) -> None:
    bound = await nursery.start(partial(serve_mqtt, services, Address("127.0.0.1", 0), connections=nursery))
    for _ in range(_ROUNDS):
        async with await trio.open_tcp_stream(bound.host, bound.port) as stream:
            await stream.send_all(connect(keep_alive=2))
            assert await stream.receive_some() == ACCEPTED
            await wait_all_tasks_blocked()
            os.write(stream.socket.fileno(), PINGREQ)  # nothing else runs between this and the jump
            passing.ahead += 6
            with trio.fail_after(5):
                assert await stream.receive_some() == PINGRESP
            await passes(passing, 6)
            with trio.fail_after(5):  # who is silent while the clock runs is cut off all the same
                assert await stream.receive_some() == b""
    assert clock.pauses == _ROUNDS


async def test_a_head_in_the_socket_is_answered(
    services: Services, world: World, nursery: trio.Nursery, passing: Passing
) -> None:
    bound = await nursery.start(partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=repeat_head))
    for _ in range(_ROUNDS):
        async with await trio.open_tcp_stream(bound.host, bound.port) as stream:
            await stream.send_all(b"GET /v1.1/users/self HTTP/1.1\r\nHost: a\r\n")
            await wait_all_tasks_blocked()
            os.write(stream.socket.fileno(), b"\r\n")
            passing.ahead += 60
            with trio.fail_after(5):
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 401 ")
        await passes(passing, 4)


async def test_a_registration_in_the_socket_is_taken(services: Services, world: World, passing: Passing) -> None:
    async with open_peers(services) as peers:
        for _ in range(_ROUNDS):
            peer = await peers.connect_plain("/v1.1/websocket?ack=true", sockets=True)
            assert isinstance(peer.stream, trio.SocketStream)
            register = {"type": "register", "sdid": KITCHEN, "Authorization": f"bearer {KITCHEN_TOKEN}"}
            os.write(peer.stream.socket.fileno(), peer.encoded(register))
            passing.ahead += 60
            with trio.fail_after(5):
                assert (await peer.said())["data"]["message"] == "OK"
            await peer.stream.aclose()
            await passes(passing, 4)
