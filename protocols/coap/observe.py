"""One observer of one device's Actions, without I/O (RFC 7641).

Every notification is confirmable and one is under way at a time; the next goes when the peer has acknowledged it and,
if it went in blocks, has fetched the last of them: Actions are events, and what the next one replaces is lost. What
arrives meanwhile waits, bounded: a slow device loses its own Actions.
"""

from collections import deque
from typing import Final, NamedTuple

MAX_WAITING: Final = 64
_NUMBERS = 1 << 24  # RFC 7641 section 3.4
_ENTRY_BYTES = 100


class Body(NamedTuple):
    """A notification whose further blocks the peer fetches: as it was sent, whatever a refresh changes meanwhile."""

    format: int
    content: bytes


class Observation:
    """The observer's token, its numbers, and what waits for it."""

    __slots__ = (
        "_current",
        "_number",
        "_waiting",
        "body",
        "bytes_held",
        "exponent",
        "format",
        "is_acknowledged",
        "path",
        "token",
    )

    def __init__(self, token: bytes, path: tuple[bytes, ...], format_: int, exponent: int) -> None:
        """`format_` is the content format of its notifications, `exponent` the size of their blocks."""
        self.token = token
        self.path = path
        self.format = format_
        self.exponent = exponent
        self.body: Body | None = None  # until its last block is fetched
        self.bytes_held = 0
        self.is_acknowledged = False  # the notification under way
        self._number = 0
        self._current: bytes | None = None
        self._waiting: deque[bytes] = deque()

    @property
    def is_under_way(self) -> bool:
        return self._current is not None

    def next_number(self, now_ms: int) -> int:
        """The Observe number of the next notification: it increases, and goes on increasing in later observations.

        It is the time, as in RFC 7641 section 4.4: a peer that registers again after our restart would take a number
        that begins anew for an old one for 128 s. In milliseconds it is far from its half turn of 2^23 by then.
        """
        self._number = max(self._number + 1, now_ms)
        return self._number % _NUMBERS

    def offer(self, payload: bytes) -> bool:
        """Something to tell. False when the peer does not keep up."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append(payload)
        self.bytes_held += _ENTRY_BYTES + len(payload)
        return True

    def take(self) -> bytes | None:
        """What to send now, if nothing is under way."""
        if self._current is not None or not self._waiting:
            return None
        self._current = self._waiting.popleft()
        self.is_acknowledged = False
        return self._current

    def keep(self, body: Body) -> None:
        """What is under way went in blocks."""
        self.body = body
        self.bytes_held += len(body.content)

    def fetched(self) -> None:
        """The peer has asked for the last block."""
        if self.body is not None:
            self.bytes_held -= len(self.body.content)
            self.body = None

    def take_back(self) -> None:
        """What has not arrived, or not to its last block, will be sent anew."""
        if self._current is not None:
            self.fetched()
            self._waiting.appendleft(self._current)
            self._current = None

    def settled(self) -> None:
        """The notification under way has arrived, or is given up."""
        self.fetched()
        if self._current is not None:
            self.bytes_held -= _ENTRY_BYTES + len(self._current)
            self._current = None
