"""One observer of one device's Actions, without I/O (RFC 7641).

Every notification is confirmable and one is under way at a time; the next goes when the peer has acknowledged it. What
arrives meanwhile waits, bounded: a slow device loses its own Actions.
"""

from collections import deque
from typing import Final

MAX_WAITING: Final = 64
_NUMBERS = 1 << 24  # RFC 7641 section 3.4
_ENTRY_BYTES = 100


class Observation:
    """The observer's token, its numbers, and what waits for it."""

    __slots__ = ("_number", "_waiting", "bytes_held", "exponent", "format", "is_under_way", "path", "token")

    def __init__(self, token: bytes, path: tuple[bytes, ...], format_: int, exponent: int) -> None:
        """`format_` is the content format of its notifications, `exponent` the size of their blocks."""
        self.token = token
        self.path = path
        self.format = format_
        self.exponent = exponent
        self.is_under_way = False
        self.bytes_held = 0
        self._number = 0
        self._waiting: deque[bytes] = deque()

    def next_number(self) -> int:
        """The Observe number of the next notification: it increases."""
        self._number = (self._number + 1) % _NUMBERS
        return self._number

    def offer(self, payload: bytes) -> bool:
        """Something to tell. False when the peer does not keep up."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append(payload)
        self.bytes_held += _ENTRY_BYTES + len(payload)
        return True

    def take(self) -> bytes | None:
        """What to send now, if nothing is under way."""
        if self.is_under_way or not self._waiting:
            return None
        payload = self._waiting.popleft()
        self.bytes_held -= _ENTRY_BYTES + len(payload)
        self.is_under_way = True
        return payload

    def settled(self) -> None:
        """The notification under way has arrived."""
        self.is_under_way = False
