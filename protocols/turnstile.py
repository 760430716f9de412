"""Lets a few connections of strangers run in each turn of the loop.

Whoever has hundreds of connections may send on all of them, or close them, at one moment. Without a turnstile, all of
their tasks would run in one turn, for tens of milliseconds, and everybody else would wait for that turn's end.
"""

from typing import Final

import trio

from broker.limits.overhead import Bucket
from config.limits import STRANGERS_PER_TURN

#: So many may pass without a look at the turns: a fleet that connects is no crowd.
_PER_SECOND: Final = 4_000.0


class Turnstile:
    """For the connections of one listener. It has a task while some of them wait."""

    def __init__(self, connections: trio.Nursery) -> None:
        self._connections = connections
        self._few = Bucket(at_once=STRANGERS_PER_TURN, per_second=_PER_SECOND)
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
            self._waiting.unpark(count=STRANGERS_PER_TURN)
            await trio.lowlevel.checkpoint()
