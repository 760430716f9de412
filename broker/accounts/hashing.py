"""Hashing passwords in worker threads, with a limit on how many are hashed and how many wait."""

from dataclasses import dataclass
from typing import Final

import trio

from broker.errors import TryLater
from broker.ids import new_id
from broker.secrets import Passwords
from config.limits import PASSWORD_MAX_CHARACTERS

#: One: each takes `accounts.password_memory_mib` while it is computed (64 MiB for a hash made at the former cost), and
#: a processor, of which a small gateway has few. More than ten people can sign in within a second all the same.
HASHED_AT_ONCE: Final = 1
WAITING_AT_MOST: Final = 32


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
        self._asked = 0
        self._dummy_hash = ""

    def require_room(self) -> None:
        """Raises TooBusy. A caller that then calls `hash` or `matches` without awaiting in between has a place."""
        if self._asked >= HASHED_AT_ONCE + WAITING_AT_MOST:
            raise TooBusy

    async def hash(self, password: str) -> str:
        """Raises TooBusy."""
        self.require_room()
        self._asked += 1
        try:
            return await trio.to_thread.run_sync(self._passwords.hash, password, limiter=self._limiter)
        finally:
            self._asked -= 1

    def is_outdated(self, hashed: str) -> bool:
        """Whether a hash of a known password should be made anew (`Passwords.is_outdated`)."""
        return self._passwords.is_outdated(hashed)

    async def matches(self, hashed: str | None, password: str) -> bool:
        """Compare. This takes the same time when `hashed` is None (no password, no account). Raises TooBusy."""
        self.require_room()
        self._asked += 1
        try:
            return await trio.to_thread.run_sync(self._matches, hashed, password, limiter=self._limiter)
        finally:
            self._asked -= 1

    def _matches(self, hashed: str | None, password: str) -> bool:
        if not self._dummy_hash:
            self._dummy_hash = self._passwords.hash(new_id())
        is_possible = hashed is not None and len(password) <= PASSWORD_MAX_CHARACTERS
        matches = self._passwords.matches(hashed or self._dummy_hash, password[:PASSWORD_MAX_CHARACTERS])
        return matches and is_possible
