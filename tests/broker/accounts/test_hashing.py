"""The limits on how many passwords are hashed and how many wait."""

import threading
from itertools import pairwise

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from broker.accounts.hashing import HASHED_AT_ONCE, OF_ONE_ADDRESS, WAITING_AT_MOST, Hashing, TooBusy
from broker.secrets import Passwords
from broker.trace.origin import Origin, enter


class SlowPasswords(Passwords):
    """`hash` waits until the test sets `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.most_at_once = self._at_once = 0
        self._lock = threading.Lock()

    def hash(self, password: str) -> str:  # noqa: ARG002 - as every other
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        self.go_on.wait(60)
        with self._lock:
            self._at_once -= 1
        return "hashed"


async def test_a_password_is_refused_when_all_places_are_taken() -> None:
    passwords, hashed = SlowPasswords(), []
    hashing = Hashing(passwords)

    async def one() -> None:
        hashed.append(await hashing.hash("12345678"))

    async with trio.open_nursery() as nursery:
        for _ in range(HASHED_AT_ONCE + WAITING_AT_MOST):
            nursery.start_soon(one)
        await trio.testing.wait_all_tasks_blocked()
        for refused in (hashing.hash("12345678"), hashing.matches(None, "12345678")):
            with pytest.raises(TooBusy) as caught:
                await refused
            assert (caught.value.status, caught.value.retry_seconds) == (503, 5)
        passwords.go_on.set()
    assert hashed == ["hashed"] * (HASHED_AT_ONCE + WAITING_AT_MOST)
    assert passwords.most_at_once <= HASHED_AT_ONCE
    await hashing.hash("12345678")  # there is room again


async def test_between_two_there_is_a_rest_of_the_same_length(mock_clock: MockClock) -> None:
    seconds, begun = 2.0, list[float]()

    class TimedPasswords(Passwords):
        def hash(self, password: str) -> str:  # noqa: ARG002 - as every other
            trio.from_thread.run_sync(self._work)
            return "hashed"

        def _work(self) -> None:
            begun.append(trio.current_time())
            mock_clock.jump(seconds)

    hashing = Hashing(TimedPasswords())
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(hashing.hash, "12345678")
        while len(begun) < 3:
            await trio.lowlevel.checkpoint()
            mock_clock.jump(0.001)
    assert all(later - earlier >= 2 * seconds for earlier, later in pairwise(begun))


async def test_a_cancelled_wait_frees_its_place() -> None:
    passwords = SlowPasswords()
    hashing = Hashing(passwords)
    async with trio.open_nursery() as nursery:
        for _ in range(HASHED_AT_ONCE):
            nursery.start_soon(hashing.hash, "12345678")
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as impatient:
            for _ in range(WAITING_AT_MOST):
                impatient.start_soon(hashing.hash, "12345678")
            await trio.testing.wait_all_tasks_blocked()
            impatient.cancel_scope.cancel()
        hashing.require_room()
        passwords.go_on.set()


async def test_a_few_addresses_do_not_take_all_places() -> None:
    passwords = SlowPasswords()
    hashing = Hashing(passwords)

    async def ask(address: str) -> None:
        enter(Origin(address))
        await hashing.hash("12345678")

    async with trio.open_nursery() as nursery:
        for number in range(3 * OF_ONE_ADDRESS):
            nursery.start_soon(ask, f"192.0.2.{number % 3}")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TooBusy):
            await ask("192.0.2.1")
        nursery.start_soon(ask, "192.0.2.9")
        await trio.testing.wait_all_tasks_blocked()
        passwords.go_on.set()
    await ask("192.0.2.1")  # there is room again
