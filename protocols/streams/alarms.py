"""Alarms that wake connections: one task for all, because a task for each would be a sixth of what an idle one holds.

Each connection is an alarm, which rings at a time that the connection sets, and when the daemon begins to stop. Before
that a node among several may move its connections to the others: over seconds, because they all connect again.
"""

import math
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

import trio

from broker.life import Life

# Connections that were opened together ring together. So many are woken before others have their turn.
RINGS_OF_TURN: Final = 50
_STALE_ALLOWED: Final = 1000
#: Between two parts of the connections that are moved.
_MOVE_SECONDS: Final = 0.1


class Alarm(Protocol):
    #: For `Alarms` alone.
    alarm_entry: "AlarmEntry | None"

    def ring(self) -> None:
        """The alarm's time has come. Called on the event loop; may neither wait nor raise."""

    def move(self) -> bool:
        """The peer is to connect to another node. As `ring`; False: not yet, ask again."""


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
        self._life = life
        self._stopping = life.stopping
        life.not_moved.append(lambda: len(self._entries) - self._stale)
        self._entries: list[AlarmEntry] = []  # a heap
        self._stale = 0
        self._is_running = False
        self._nap = trio.CancelScope()

    async def _ring_until_stop(self) -> None:
        """Ring what is due, until the daemon begins to stop; then ring all."""
        while not self._life.moving.is_set():
            if self._ring(trio.current_time()):
                await trio.lowlevel.checkpoint()
                continue
            with trio.CancelScope(deadline=self._first) as self._nap:
                await self._life.moving.wait()
        await self._move_until_stop()
        while self._ring(math.inf):
            await trio.lowlevel.checkpoint()

    async def _move_until_stop(self) -> None:
        """Move the connections, evenly. Some cannot be moved at once, and are asked again."""
        until = trio.current_time() + self._life.moving_seconds
        while not self._stopping.is_set():
            now = trio.current_time()
            while self._ring(now):
                await trio.lowlevel.checkpoint()
            turns_left = max(1, math.ceil((until - now) / _MOVE_SECONDS))
            number = math.ceil((len(self._entries) - self._stale) / turns_left)
            while number > 0 and self._move(min(number, RINGS_OF_TURN)):
                number -= RINGS_OF_TURN
                await trio.lowlevel.checkpoint()
            with trio.move_on_after(_MOVE_SECONDS):
                await self._stopping.wait()

    def _move(self, number: int) -> bool:
        """Move this number of them; False: no more can be moved now."""
        later: list[tuple[float, Alarm]] = []
        while number and self._entries:
            entry = heappop(self._entries)
            if (alarm := entry.alarm) is None:
                self._stale -= 1
                continue
            alarm.alarm_entry = None
            if alarm.move():
                number -= 1
            else:
                later.append((entry.at, alarm))
        for at, alarm in later:
            self.set(alarm, at)
        return not number

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
