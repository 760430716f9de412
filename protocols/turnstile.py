"""Lets a few connections of strangers run in each turn of the loop.

Whoever has hundreds of connections may send on all of them, or close them, at one moment. Without a turnstile, all of
their tasks would run in one turn, for tens of milliseconds, and everybody else would wait for that turn's end.
"""

from typing import Final

import trio

from broker.limits.overhead import Bucket
from config.limits import STRANGERS_PER_TURN

#: Turns may be long because of others. Strangers do not wait for so many of those.
_PAUSE_SECONDS: Final = 0.1


class Turnstile:
    """For the connections of one listener. It has a task while some of them wait."""

    def __init__(
        self, connections: trio.Nursery, *, at_once: int = STRANGERS_PER_TURN, turns: int = 1, per_second: float = 4_000
    ) -> None:
        """In so many `turns` of the loop, so many go on `at_once`, when more than `per_second` come."""
        self._connections = connections
        self._at_once, self._turns = at_once, turns
        self._few = Bucket(at_once=STRANGERS_PER_TURN, per_second=per_second)
        self._waiting = trio.lowlevel.ParkingLot()

    async def enter(self) -> None:
        """Wait for a turn. Returns at once, without a checkpoint, while few come."""
        if not self._waiting:
            if self._few.take(trio.current_time()):
                return
            self._connections.start_soon(self._turn)
        await self._waiting.park()

    async def _turn(self) -> None:
        while self._waiting:
            self._waiting.unpark(count=self._at_once)
            due = trio.current_time() + _PAUSE_SECONDS
            for _ in range(self._turns):
                await trio.lowlevel.checkpoint()
                if trio.current_time() >= due:
                    break
