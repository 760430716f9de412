"""Lets a few connections of strangers run in each turn of the loop.

Whoever has hundreds of connections may send on all of them, or close them, at one moment. Without a turnstile, all of
their tasks would run in one turn, for tens of milliseconds, and everybody else would wait for that turn's end.

Addresses take turns: hundreds of connections of one address do not stand before the first one of another.
"""

from collections import OrderedDict
from typing import Final

import trio

from broker.limits.overhead import TokenBucket
from broker.trace.origin import address_key, current_origin
from config.limits import STRANGERS_PER_TURN

#: Seconds after which strangers go on without waiting for more turns: turns may be long because of others.
_PAUSE_SECONDS: Final = 0.1


class Turnstile:
    """Lets waiting connections of one listener go on. It has a task while some of them wait."""

    def __init__(
        self, connections: trio.Nursery, *, at_once: int = STRANGERS_PER_TURN, turns: int = 1, per_second: float = 4_000
    ) -> None:
        """Let `at_once` connections go on in each `turns` turns of the loop, if more than `per_second` come."""
        self._connections = connections
        self._at_once, self._turns = at_once, turns
        self._few = TokenBucket(at_once=STRANGERS_PER_TURN, per_second=per_second)
        #: Waiting connections, by address; the address that had a turn last is the last.
        self._waiting: OrderedDict[str, trio.lowlevel.ParkingLot] = OrderedDict()

    async def enter(self) -> None:
        """Wait for a turn of the address that this task works for. Returns at once, without a checkpoint, while few
        come."""
        if not self._waiting:
            if self._few.take(trio.current_time()):
                return
            self._connections.start_soon(self._turn)
        address = address_key(current_origin().address)
        await self._waiting.setdefault(address, trio.lowlevel.ParkingLot()).park()

    async def _turn(self) -> None:
        while self._waiting:
            for _ in range(self._at_once):
                self._let_one_go_on()
            due = trio.current_time() + _PAUSE_SECONDS
            for _ in range(self._turns):
                await trio.lowlevel.checkpoint()
                if trio.current_time() >= due:
                    break

    def _let_one_go_on(self) -> None:
        while self._waiting:
            address, line = self._waiting.popitem(last=False)
            went_on = line.unpark()  # nobody, when all of them were cancelled
            if line:
                self._waiting[address] = line
            if went_on:
                return
