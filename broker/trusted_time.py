"""Decides whether the clock can be trusted to delete by age (reference 27.7).

A machine without a battery begins in 1970, a time server corrects years at once, and operators mistype dates. Data that
a wrong clock took for old cannot be brought back, so sweeps wait after an unexplained jump:
until the kernel says that the clock is synchronised, or until the operator confirms the clock.
"""

from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from broker.clock import Clock
from broker.loops import Loop
from config.shown_command import shown_command
from storage.database import Database

_LOOK_SECONDS: Final = 60.0
#: A clock this far beyond the time since the last look has jumped, or the daemon did not run all this time.
UNEXPLAINED_MS: Final = 86_400_000
_SAVED_EVERY_MS: Final = 600_000
_WARNED_EVERY_MS: Final = 3_600_000
_COUNTER: Final = "trusted_ms"

_log = structlog.get_logger(__name__)


class TrustedTimeStatistics(msgspec.Struct, frozen=True):
    """`jumped_seconds`: how far the clock is ahead of what is explained, while sweeps wait; 0 otherwise."""

    jumped_seconds: int


class TrustedTime:
    def __init__(self, database: Database, clock: Clock, is_synchronized: Callable[[], bool]) -> None:
        """`is_synchronized`: whether the operating system keeps the clock right by other clocks."""
        self._database = database
        self._clock = clock
        self._is_synchronized = is_synchronized
        self._known: tuple[int, int] | None = None  # a wall time that was believed, and the steady time of then
        self._jumped_ms = 0
        self._saved_ms = self._warned_steady_ms = -1
        self._on_confirm: list[Callable[[], None]] = []
        self.watch_forever = Loop(self.look, every=_LOOK_SECONDS, at_once=True, failure="trusted_time_not_saved").run

    def on_confirm(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the operator has confirmed the clock: sweeps begin at once, and not when they are due."""
        self._on_confirm.append(wake)

    def may_delete(self) -> bool:
        """Whether what is old by the clock may be deleted now."""
        self._judge()
        return not self._jumped_ms

    async def resume(self) -> None:
        """Read the last time that a former run believed. Raises StoreError."""
        saved = await self._database.read(lambda tx: tx.messages.counter(_COUNTER))
        if saved:
            self._saved_ms = saved
            self._known = saved, self._clock.steady_ms()

    async def confirm(self) -> int:
        """The operator says that the clock is right. Returns the seconds that it was ahead. Raises StoreError."""
        self._judge()
        jumped_ms, self._jumped_ms = self._jumped_ms, 0
        self._believe()
        await self.save()
        for wake in self._on_confirm:
            wake()
        return jumped_ms // 1000

    def _believe(self) -> None:
        self._known = self._clock.now_ms(), self._clock.steady_ms()

    def _judge(self) -> None:
        """Compare the clock with the last time that was believed and the steady time since then."""
        now_ms, steady_ms = self._clock.now_ms(), self._clock.steady_ms()
        ahead_ms = 0 if self._known is None else now_ms - (self._known[0] + steady_ms - self._known[1])
        if ahead_ms <= UNEXPLAINED_MS:  # a clock that is set back deletes less
            self._jumped_ms = 0
            self._believe()
        elif self._is_synchronized():
            _log.info("clock_jump_confirmed", seconds=ahead_ms // 1000, by="the operating system")
            self._jumped_ms = 0
            self._believe()
        else:
            self._jumped_ms = ahead_ms

    async def look(self) -> None:
        """Judge the clock, warn once an hour while sweeps wait, and save the time while it is believed."""
        self._judge()
        if not self._jumped_ms:
            if abs(self._clock.now_ms() - self._saved_ms) >= _SAVED_EVERY_MS:
                await self.save()
            return
        steady_ms = self._clock.steady_ms()
        if self._warned_steady_ms < 0 or steady_ms - self._warned_steady_ms >= _WARNED_EVERY_MS:
            self._warned_steady_ms = steady_ms
            _log.warning(
                "nothing_is_deleted",
                reason="the clock jumped ahead, or the daemon did not run for long",
                seconds=self._jumped_ms // 1000,
                confirm=shown_command("retention confirm"),
            )

    async def save(self) -> None:
        self._judge()  # a stop comes any time after the last look: a clock that has jumped since is not saved
        if self._jumped_ms or self._known is None:
            return
        now_ms = self._clock.now_ms()
        await self._database.write(lambda tx: tx.messages.set_counter(_COUNTER, now_ms))
        self._saved_ms = now_ms

    def statistics(self) -> TrustedTimeStatistics:
        return TrustedTimeStatistics(self._jumped_ms // 1000)
