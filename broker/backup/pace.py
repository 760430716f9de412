"""Limits the bytes per second of a backup, so that it leaves the disk to the daemon."""

import time
from collections.abc import Callable


class CopyPace:
    def __init__(
        self,
        bytes_per_second: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._now, self._sleep = now, sleep
        self._free_at = now()

    def spend(self, count: int) -> None:
        """Wait until `count` bytes more are within the rate. Time that was not used is not made up for later."""
        now = self._now()
        self._free_at = max(self._free_at, now) + count / self._rate
        if self._free_at > now:
            self._sleep(self._free_at - now)
