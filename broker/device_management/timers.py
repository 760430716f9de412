"""Many deadlines, one waiting task: schedules, expiries, polls and roll-outs."""

import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Final

import structlog

from broker.loops import Wakeup

_LOOK_SECONDS: Final = 30.0  # the wall clock may be set while the task waits
_HEAP_SLACK: Final = 100
_log = structlog.get_logger(__name__)


class Timers:
    """Calls functions at moments of one clock. Each name has at most one moment."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._heap: list[tuple[int, int, Hashable]] = []
        self._waiting: dict[Hashable, tuple[int, Callable[[], None]]] = {}
        self._numbers = count()
        self._wakeup = Wakeup()

    def set(self, name: Hashable, at_ms: int, call: Callable[[], None]) -> None:
        """Call `call` at this moment, or at once if it is past; in the place of an earlier call with the same name."""
        number = next(self._numbers)
        self._waiting[name] = (number, call)
        heapq.heappush(self._heap, (at_ms, number, name))
        if self._heap[0][1] == number:
            self._wakeup.set()

    def cancel(self, name: Hashable) -> None:
        if self._waiting.pop(name, None) is None or len(self._heap) <= _HEAP_SLACK + 2 * len(self._waiting):
            return
        # Most of the heap stands for calls that were cancelled or have another moment: some of these are a year away.
        self._heap = [one for one in self._heap if self._waiting.get(one[2], (None,))[0] == one[1]]
        heapq.heapify(self._heap)

    def clear(self) -> None:
        self._waiting, self._heap = {}, []

    def __len__(self) -> int:
        return len(self._waiting)

    async def run_forever(self) -> None:
        while True:
            self._call_due()
            await self._wakeup.wait(self._seconds())

    def _seconds(self) -> float:
        if not self._heap:
            return _LOOK_SECONDS
        return min(_LOOK_SECONDS, max(0, self._heap[0][0] - self._now_ms()) / 1000)

    def _call_due(self) -> None:
        now_ms = self._now_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            _, number, name = heapq.heappop(self._heap)
            known = self._waiting.get(name)
            if known is None or known[0] != number:  # it was cancelled, or has another moment now
                continue
            del self._waiting[name]
            try:
                known[1]()
            except Exception:  # noqa: BLE001 - one call must not end the others
                _log.exception("timer_failed", name=repr(name))
