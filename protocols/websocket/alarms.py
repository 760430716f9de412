"""When to wake the connections: one task for all, because a task for each would be a sixth of what an idle one holds.

Each connection has one alarm, which rings at a time that the connection sets, and when the daemon begins to stop.
"""

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

import trio

# Connections that were opened together ring together. So many are woken before others have their turn.
RINGS_OF_TURN: Final = 50
_STALE_ALLOWED: Final = 1000


class Alarm:
    """`ring` is called on the event loop, and must neither wait nor raise."""

    __slots__ = ("entry", "ring")

    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring = ring
        self.entry: _Entry | None = None


class _Entry:
    """A time in the heap. `alarm` is None when the alarm was set again or has ended."""

    __slots__ = ("alarm", "at")

    def __init__(self, at: float, alarm: Alarm) -> None:
        self.at = at
        self.alarm: Alarm | None = alarm

    def __lt__(self, other: "_Entry") -> bool:
        return self.at < other.at


class Alarms:
    def __init__(self, stopping: trio.Event) -> None:
        """`stopping` is set when the daemon begins to stop."""
        self._stopping = stopping
        self._entries: list[_Entry] = []  # a heap
        self._stale = 0
        self._nap = trio.CancelScope()

    async def ring_forever(self) -> None:
        """Ring what is due, until the daemon begins to stop; then ring all."""
        while not self._stopping.is_set():
            if self._ring(trio.current_time()):
                await trio.lowlevel.checkpoint()
                continue
            with trio.CancelScope(deadline=self._first) as self._nap:
                await self._stopping.wait()
        while self._ring(math.inf):
            await trio.lowlevel.checkpoint()

    @property
    def _first(self) -> float:
        return self._entries[0].at if self._entries else math.inf

    def _ring(self, now: float) -> bool:
        """Ring what is due by `now`, at most as many as one turn may have; whether there are more."""
        for _ in range(RINGS_OF_TURN):
            if not self._entries or self._first > now:
                return False
            alarm = heappop(self._entries).alarm
            if alarm is None:
                self._stale -= 1
            else:
                alarm.entry = None
                alarm.ring()
        return True

    def set(self, alarm: Alarm, at: float) -> None:
        """Ring at this time on trio's clock, and not at the time that was set before."""
        self.unset(alarm)
        if self._stopping.is_set():
            alarm.ring()
            return
        alarm.entry = _Entry(at, alarm)
        heappush(self._entries, alarm.entry)
        self._nap.deadline = min(self._nap.deadline, at)

    def unset(self, alarm: Alarm) -> None:
        """Do not ring. What the alarm held is free at once, also before the time that was set."""
        entry, alarm.entry = alarm.entry, None
        if entry is None:
            return
        entry.alarm = None
        self._stale += 1
        if self._stale > max(_STALE_ALLOWED, len(self._entries) // 2):
            self._entries = [entry for entry in self._entries if entry.alarm is not None]
            heapify(self._entries)
            self._stale = 0
