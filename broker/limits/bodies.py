"""One budget for the HTTP bodies in memory, with a small part for callers without a valid token (reference 21.6).

A body is read from its connection only after it has got its room, so what has no room stays with the peer.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
import trio

from broker.errors import TryLater
from config.limits import BODIES_BYTES, BODY_WAIT_SECONDS, UNAUTHENTICATED_BODIES_BYTES

#: Of each part of the budget, the share that one caller or one address can have.
_SHARE: Final = 4


@dataclass(eq=False)
class TooManyBodies(TryLater):
    """There was no room for the body within `BODY_WAIT_SECONDS`."""

    status = 503
    template = "Too many large requests at this moment. Try again in {retry_seconds} seconds"
    retry_seconds: int = BODY_WAIT_SECONDS


class BodyStatistics(msgspec.Struct, frozen=True):
    bytes: int
    unauthenticated_bytes: int
    refused: int


class Reservation(msgspec.Struct, frozen=True):
    """Room for one body. `source` is who sends it: a caller or an address."""

    size: int
    source: str
    is_authenticated: bool


class BodyBudget:
    def __init__(self, *, in_all: int = BODIES_BYTES, of_strangers: int = UNAUTHENTICATED_BODIES_BYTES) -> None:
        self._in_all = in_all
        self._of_strangers = of_strangers
        self._used = self._used_by_strangers = self._refused = 0
        self._by_source: dict[str, int] = {}
        self._released = trio.Event()  # replaced when it is set

    async def reserve(self, size: int, source: str, *, is_authenticated: bool) -> Reservation:
        """Room for a body of at most `size` bytes, which must be given back. Raises TooManyBodies."""
        wanted = Reservation(size, source, is_authenticated)
        with trio.move_on_after(BODY_WAIT_SECONDS):
            while not self._has_room(wanted):
                await self._released.wait()
            self._add(wanted, size)
            return wanted
        self._refused += 1
        raise TooManyBodies

    def release(self, reservation: Reservation) -> None:
        self._add(reservation, -reservation.size)
        self._released.set()
        self._released = trio.Event()

    def _has_room(self, wanted: Reservation) -> bool:
        part = self._in_all if wanted.is_authenticated else self._of_strangers
        used = self._used if wanted.is_authenticated else self._used_by_strangers
        of_source = self._by_source.get(wanted.source, 0)
        return used + wanted.size <= part and (not of_source or of_source + wanted.size <= part // _SHARE)

    def _add(self, reservation: Reservation, size: int) -> None:
        self._used += size
        if not reservation.is_authenticated:
            self._used_by_strangers += size
        of_source = self._by_source.get(reservation.source, 0) + size
        if of_source:
            self._by_source[reservation.source] = of_source
        else:
            del self._by_source[reservation.source]

    def statistics(self) -> BodyStatistics:
        return BodyStatistics(self._used, self._used_by_strangers, self._refused)
