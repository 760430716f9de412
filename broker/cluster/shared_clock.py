"""The clock of several nodes: that of the database, so that the clock of a node's machine does not matter.

It is the steady clock of the machine and an offset, which is measured again and again. A measurement knows the time of
the database to half the seconds that its answer took; one that is slower than the last is left out.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from broker.clock import Clock, system_now_ms, system_steady_ms
from storage.keys import Milliseconds

#: An answer that took longer says little, unless none was quicker for `_RENEWED_MS`.
_QUICK_MS: Final = 100
_RENEWED_MS: Final = 60_000


class SharedClock:
    def __init__(self, steady_ms: Callable[[], int] = system_steady_ms) -> None:
        self._steady_ms = steady_ms
        self._offset: int | None = None
        self._measured = 0
        self._took: float = inf

    @property
    def is_exact(self) -> bool:
        """Whether the last measurement that counts was quick."""
        return self._took <= _QUICK_MS

    def measured(self, asked: int, now_ms: Milliseconds) -> None:
        """The database, which was asked at this steady time and has answered just now, has told its time."""
        answered = self._steady_ms()
        took = answered - asked
        if took <= max(_QUICK_MS, self._took) or answered - self._measured > _RENEWED_MS:
            self._offset = now_ms - (asked + answered) // 2
            self._measured, self._took = answered, took

    def steady_ms(self) -> int:
        return self._steady_ms()

    def now_ms(self) -> Milliseconds:
        """Before the first measurement: the time of the machine."""
        if self._offset is None:
            return system_now_ms()
        return self._steady_ms() + self._offset  # type: ignore[return-value] # each message pays for a call

    def clock(self) -> Clock:
        return Clock(self.now_ms, self._steady_ms)
