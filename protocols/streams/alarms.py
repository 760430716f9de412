"""Alarms that wake connections: one task for all, because a task for each would be a sixth of what an idle one holds.

Each connection is an alarm, which rings at a time that the connection sets, and when the daemon begins to stop.
"""

import math
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

import trio

from broker.life import Life

# Connections that were opened together ring together. So many are woken before others have their turn.
RINGS_OF_TURN: Final = 50
_STALE_ALLOWED: Final = 1000


class Alarm(Protocol):
    #: For `Alarms` alone.
    alarm_entry: "AlarmEntry | None"

    def ring(self) -> None:
        """The alarm's time has come. Called on the event loop; may neither wait nor raise."""


class AlarmEntry:
    """A time in the heap. `alarm` is None when the alarm was set again or has ended."""

    __slots__ = ("alarm", "at")

    def __init__(self, at: float, alarm: Alarm) -> None:
        self.at = at
        self.alarm: Alarm | None = alarm

    def __lt__(self, other: "AlarmEntry") -> bool:
        return self.at < other.at


class Alarms:
    """Alarms of connections. One task serves them, from the first alarm until the daemon begins to stop."""

    def __init__(self, connections: trio.Nursery, life: Life) -> None:
        self._connections = connections
        self._stopping = life.stopping
        self._entries: list[AlarmEntry] = []  # a heap
        self._stale = 0
        self._is_running = False
        self._nap = trio.CancelScope()

    async def _ring_until_stop(self) -> None:
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
                alarm.alarm_entry = None
                alarm.ring()
        return True

    def set(self, alarm: Alarm, at: float) -> None:
        """Ring at this time on trio's clock, and not at the time that was set before."""
        self.unset(alarm)
        if self._stopping.is_set():
            alarm.ring()
            return
        alarm.alarm_entry = AlarmEntry(at, alarm)
        heappush(self._entries, alarm.alarm_entry)
        if not self._is_running:
            self._is_running = True
            self._connections.start_soon(self._ring_until_stop)
        elif at < self._nap.deadline:
            self._nap.deadline = at

    def unset(self, alarm: Alarm) -> None:
        """Cancel the alarm and free its references at once, not only at the time that was set."""
        entry, alarm.alarm_entry = alarm.alarm_entry, None
        if entry is None:
            return
        entry.alarm = None
        self._stale += 1
        if self._stale > max(_STALE_ALLOWED, len(self._entries) // 2):
            self._entries = [entry for entry in self._entries if entry.alarm is not None]
            heapify(self._entries)
            self._stale = 0
