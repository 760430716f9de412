"""Passwords beside the loop: a few are hashed at once, a few more wait, and whoever comes then is told so."""

from dataclasses import dataclass
from typing import Final

import trio

from broker.errors import TryLater
from broker.ids import new_id
from broker.secrets import Passwords
from config.limits import PASSWORD_MAX_CHARACTERS

HASHED_AT_ONCE: Final = 4  # each takes 64 MiB for as long as it is computed
WAITING_AT_MOST: Final = 32


@dataclass(eq=False)
class TooBusy(TryLater):
    """Everything that this takes is in use; nothing was looked at."""

    status = 503
    template = "Too many people are signing in at this moment. Try again in {retry_seconds} seconds"
    retry_seconds: int = 5


class Hashing:
    def __init__(self, passwords: Passwords) -> None:
        self._passwords = passwords
        self._limiter = trio.CapacityLimiter(HASHED_AT_ONCE)
        self._asked = 0
        self._nobodys_hash = ""

    def require_room(self) -> None:
        """Raises TooBusy. Whoever goes on without waiting for anything has the place."""
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

    async def matches(self, hashed: str | None, password: str) -> bool:
        """It takes as long for an account that has no password, or does not exist. Raises TooBusy."""
        self.require_room()
        self._asked += 1
        try:
            return await trio.to_thread.run_sync(self._matches, hashed, password, limiter=self._limiter)
        finally:
            self._asked -= 1

    def _matches(self, hashed: str | None, password: str) -> bool:
        if not self._nobodys_hash:
            self._nobodys_hash = self._passwords.hash(new_id())
        is_possible = hashed is not None and len(password) <= PASSWORD_MAX_CHARACTERS
        matches = self._passwords.matches(hashed or self._nobodys_hash, password[:PASSWORD_MAX_CHARACTERS])
        return matches and is_possible
