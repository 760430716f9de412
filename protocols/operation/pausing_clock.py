"""trio's clock of the daemon: it stands still while the process does not run.

A process may be stopped for seconds: by a debugger, a hypervisor, or a machine that has too much to do. Bytes that
peers sent wait in their sockets, but deadlines pass at once: trio would end connections as silent before anything
is read. So the time in which nothing ran does not count, and afterwards the clock waits until what is there was read.
Every judgement by trio's clock reads first then: keep-alive, pings, registrations, lifetimes, heads.
"""

import time
from collections.abc import Callable
from typing import Final

import trio

#: A longer gap than that between two looks at the clock is a pause: nothing of the daemon runs as long without a look.
_GAP_SECONDS: Final = 0.5
#: Time that the clock stands still after a pause: enough to read thousands of sockets.
_READING_SECONDS: Final = 1.0
#: Time after that in which it does not stop again: so deadlines still pass on a machine that is always overloaded.
_RUNNING_SECONDS: Final = 2.0


class PausingClock(trio.abc.Clock):
    __slots__ = ("_limit", "_looked_at", "_missing", "_now", "_stands_at", "_stands_until", "pauses")

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """`now` is a clock in seconds that runs on while the process does not run."""
        self._now = now
        self._looked_at = now()  # what that clock said last
        self._limit = _GAP_SECONDS  # a longer gap until the next look is a pause
        self._missing = self._looked_at  # what that clock is ahead of this one
        self._stands_until = self._looked_at  # in its time
        self._stands_at = 0.0
        self.pauses = 0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        now = self._now()
        if now - self._looked_at > self._limit:
            self._pause(now)
        self._looked_at, self._limit = now, _GAP_SECONDS
        return now - self._missing if now >= self._stands_until else self._stands_at

    def _pause(self, now: float) -> None:
        """Exclude a pause: (nearly) nothing ran since the last look."""
        ran_until = self._looked_at
        if ran_until < self._stands_until + (_RUNNING_SECONDS if self.pauses else 0.0):
            return
        # A little less than the loop was to wait has passed, so that no deadline has come.
        passed = max(0.0, self._limit - 2 * _GAP_SECONDS)
        self._stands_at = ran_until - self._missing + passed
        self._stands_until = now + _READING_SECONDS
        self._missing = self._stands_until - self._stands_at
        self.pauses += 1

    def deadline_to_sleep_time(self, deadline: float) -> float:
        wait = deadline - self.current_time()
        if self._looked_at < self._stands_until:
            wait += self._stands_until - self._looked_at
        if wait > 0:
            self._limit = wait + _GAP_SECONDS
        return wait
