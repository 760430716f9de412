"""Hashing passwords in worker threads, with a limit on how many are hashed and how many wait."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import trio

from broker.errors import TryLater
from broker.ids import new_id
from broker.secrets import Passwords
from broker.trace.origin import address_key, current_origin
from config.limits import PASSWORD_MAX_CHARACTERS

#: One: each takes `accounts.password_memory_mib` while it is computed (64 MiB for a hash made at the former cost), and
#: a processor, of which a small gateway has few. Between two there is a rest of the same length, so strangers get half
#: a processor at most. More than ten people can sign in within a second all the same.
HASHED_AT_ONCE: Final = 1
WAITING_AT_MOST: Final = 32
#: Of one address, so that a few addresses cannot keep the others from signing in.
OF_ONE_ADDRESS: Final = 8


T = TypeVar("T")


@dataclass(eq=False)
class TooBusy(TryLater):
    """All places are taken: the password was not looked at."""

    status = 503
    template = "Too many people are signing in at this moment. Try again in {retry_seconds} seconds"
    retry_seconds: int = 5


class Hashing:
    def __init__(self, passwords: Passwords) -> None:
        self._passwords = passwords
        self._limiter = trio.CapacityLimiter(HASHED_AT_ONCE)
        self._turn = trio.Lock()
        self._rested_at = 0.0  # on trio's clock
        self._asked = 0
        self._asked_by: Counter[str] = Counter()
        self._dummy_hash = ""

    def require_room(self) -> None:
        """Raises TooBusy. A caller that then calls `hash` or `matches` without awaiting in between has a place."""
        if self._asked >= HASHED_AT_ONCE + WAITING_AT_MOST or self._asked_by[_source()] >= OF_ONE_ADDRESS:
            raise TooBusy

    @contextmanager
    def _place(self) -> Iterator[None]:
        self.require_room()
        source = _source()
        self._asked += 1
        self._asked_by[source] += source != ""
        try:
            yield
        finally:
            self._asked -= 1
            self._asked_by[source] -= source != ""
            if not self._asked_by[source]:
                del self._asked_by[source]

    async def hash(self, password: str) -> str:
        """Raises TooBusy."""
        with self._place():
            return await self._run(partial(self._passwords.hash, password))

    def is_outdated(self, hashed: str) -> bool:
        """Whether a known password should be hashed again (`Passwords.is_outdated`)."""
        return self._passwords.is_outdated(hashed)

    async def matches(self, hashed: str | None, password: str) -> bool:
        """Compare. This takes the same time when `hashed` is None (no password, no account). Raises TooBusy."""
        with self._place():
            return await self._run(partial(self._matches, hashed, password))

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._turn:
            await trio.sleep_until(self._rested_at)
            began = trio.current_time()
            try:
                return await trio.to_thread.run_sync(work, limiter=self._limiter)
            finally:
                ended = trio.current_time()
                self._rested_at = ended + (ended - began)

    def _matches(self, hashed: str | None, password: str) -> bool:
        if not self._dummy_hash:
            self._dummy_hash = self._passwords.hash(new_id())
        is_possible = hashed is not None and len(password) <= PASSWORD_MAX_CHARACTERS
        matches = self._passwords.matches(hashed or self._dummy_hash, password[:PASSWORD_MAX_CHARACTERS])
        return matches and is_possible


def _source() -> str:
    """The address that asks; empty for the daemon itself and its operator, who need no share."""
    address = current_origin().address
    return address_key(address) if address else ""
