"""Fairness between peers: frames that carry no message are bounded, for each peer and for all together.

Overhead is work for the daemon without a stored message: pings, fragments, subscriptions, refused frames
(reference 21.5). Each peer has an allowance that no polite peer uses up. A peer beyond it waits before the daemon reads
on, in one line with all others of its kind, so that a thousand of them take no more of the event loop than one.

Amounts are in frames, and a SUBSCRIBE counts for each of its filters.
"""

from typing import Final

import msgspec
import trio

#: Frames that one peer may send at once, and per second in the long run.
FRAMES_AT_ONCE: Final = 64
FRAMES_PER_SECOND: Final = 10.0
#: Frames per second of all peers together that exceed their allowance. On a small gateway, a frame takes up to 25 µs.
LINE_PER_SECOND: Final = 10_000.0
#: A turn of the loop in which a peer beyond its allowance went on is followed by a rest as long, if it is longer.
_LONG_TURN_SECONDS: Final = 0.0005


class TokenBucket:
    """A token bucket: a number at once, and a number a second (the generic cell rate algorithm, without a timer)."""

    __slots__ = ("_interval", "_paid_until", "_slack")

    def __init__(self, *, at_once: float, per_second: float) -> None:
        self._interval = 1 / per_second
        self._slack = at_once / per_second
        self._paid_until = float("-inf")

    def is_empty(self, now: float) -> bool:
        return self._paid_until > now - self._interval / 2  # half of one: sums of floating point are not exact

    def take(self, now: float) -> bool:
        """Take one; False, and nothing taken, when the bucket is empty. `now` is in seconds."""
        if self.is_empty(now):
            return False
        self.charge(now, 1)
        return True

    def charge(self, now: float, amount: int) -> None:
        """Take what was used already. A debt never exceeds what the bucket holds."""
        paid_until = max(self._paid_until, now - self._slack) + amount * self._interval
        self._paid_until = min(paid_until, now + self._slack)


class OverheadStatistics(msgspec.Struct, frozen=True):
    """`waiting` peers are beyond their allowance now; `delayed` frames were since the start."""

    waiting: int
    delayed: int


class Overhead:
    """The line in which peers beyond their allowance wait."""

    def __init__(self, per_second: float = LINE_PER_SECOND) -> None:
        self.per_second = per_second
        self._free_at = float("-inf")
        self._waiting = self._delayed = 0
        self._due = trio.lowlevel.ParkingLot()
        self._is_taken = False  # one of them goes on, or is about to
        self._rested_at = float("-inf")

    def pace(self) -> "Pace":
        """The allowance of a new connection."""
        return Pace(self)

    async def wait(self, frames: int) -> None:
        """Wait behind all earlier callers, for as long as `frames` frames take."""
        self._free_at = max(self._free_at, trio.current_time()) + frames / self.per_second
        self._delayed += frames
        self._waiting += 1
        try:
            await trio.sleep_until(self._free_at)
            await self._take_turn()
        finally:
            self._waiting -= 1

    async def _take_turn(self) -> None:
        """Let one peer of the line continue at a time, and pause after a long turn: peers that owe little are due at
        almost the same moment, and the next frames of each may take longer than it has waited."""
        if self._is_taken:
            await self._due.park()  # the task that unparks it leaves the turn taken
        self._is_taken = True
        try:
            if (now := trio.current_time()) < self._rested_at:
                await trio.sleep_until(self._rested_at)
                now = trio.current_time()
        except trio.Cancelled:
            self._pass_on()
            raise
        trio.lowlevel.current_trio_token().run_sync_soon(self._end_turn, now)

    def _end_turn(self, began_at: float) -> None:
        """End the turn of a peer; called in the next turn of the loop."""
        now = trio.current_time()
        if now - began_at >= _LONG_TURN_SECONDS:
            self._rested_at = now + (now - began_at)
        self._pass_on()

    def _pass_on(self) -> None:
        self._is_taken = bool(self._due.unpark())

    def statistics(self) -> OverheadStatistics:
        return OverheadStatistics(self._waiting, self._delayed)


class Pace:
    """The allowance of one connection. Call `spend` for received frames, and `wait` before reading more."""

    __slots__ = ("_bucket", "_line", "_over_limit", "owed")

    def __init__(self, line: Overhead) -> None:
        self._line = line
        self._bucket = TokenBucket(at_once=FRAMES_AT_ONCE, per_second=FRAMES_PER_SECOND)
        self._over_limit: TokenBucket | None = None  # made when it is needed: most peers stay within their rate limit
        self.owed = 0  # frames beyond the allowance that were not waited for

    def floods(self, frames: int) -> bool:
        """Count `frames` pings or subscriptions beyond the peer's rate limit, and return whether they are a flood.

        Only they count here, and no refused messages: a device that goes on sending messages, and pings as its
        keep-alive demands, is refused and stays connected (reference 16.3 and 19.3).
        """
        now = trio.current_time()
        if self._over_limit is None:
            self._over_limit = TokenBucket(at_once=FRAMES_AT_ONCE, per_second=FRAMES_PER_SECOND)
        self._over_limit.charge(now, frames)
        return self._over_limit.is_empty(now)

    def spend(self, frames: int = 1) -> None:
        """Count frames of the peer that carry no message."""
        now = trio.current_time()
        self._bucket.charge(now, frames)
        if self._bucket.is_empty(now):
            self.owed += frames

    async def wait(self) -> None:
        """Let others run. Returns at once, without a checkpoint, when the peer owes nothing."""
        if self.owed:
            owed, self.owed = self.owed, 0
            await self._line.wait(owed)
