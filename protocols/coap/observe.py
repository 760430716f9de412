"""One observation of a device's Actions, without I/O (RFC 7641).

Every notification is confirmable, and one is under way at a time. The next one is sent after the peer has acknowledged
it and, if it is in blocks, fetched its last block: a peer drops an unfinished notification when the next one arrives,
and an Action must not be lost so. Later Actions wait in a bounded queue; when it is full, the device
loses the new ones.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MAX_WAITING: Final = 64
_NUMBERS = 1 << 24  # RFC 7641, 3.4
_ENTRY_BYTES = 100  # of a waiting notification, beside its payload


class NotificationBody(NamedTuple):
    """A notification in blocks while the peer fetches it, in the format in which its first block was sent."""

    format: int
    content: bytes


@dataclass(eq=False, slots=True)
class Observation:
    """The token, the Observe numbers and the queue of one observation.

    Args:
        token: of the request that registered it.
        path: of that request.
        format: the content format of notifications.
        exponent: of the size of their blocks: 16 << exponent bytes.
    """

    token: bytes
    path: tuple[bytes, ...]
    format: int
    exponent: int
    body: NotificationBody | None = None  # until the peer has fetched its last block
    bytes_held: int = 0
    is_acknowledged: bool = False  # of the notification under way
    _number: int = 0
    _current: bytes | None = None
    _waiting: deque[bytes] = field(default_factory=deque)

    @property
    def is_under_way(self) -> bool:
        return self._current is not None

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def next_number(self, now_ms: int) -> int:
        """The Observe number of the next notification. It is the time, so it also increases over observations.

        A number that began at 0 again after a restart would be older for a peer than the last it has seen, for 128 s
        (RFC 7641, 3.4 and 4.4). In 128 s a number in milliseconds grows by far less than 2^23, half of its range.
        """
        self._number = max(self._number + 1, now_ms)
        return self._number % _NUMBERS

    def offer(self, payload: bytes) -> bool:
        """Queue a notification. False when the queue is full."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append(payload)
        self.bytes_held += _ENTRY_BYTES + len(payload)
        return True

    def offer_state(self, payload: bytes) -> None:
        """Queue a notification instead of the waiting ones: the peer needs the last state only (RFC 7641, 1.3)."""
        self.bytes_held -= sum(_ENTRY_BYTES + len(waiting) for waiting in self._waiting)
        self._waiting.clear()
        self.offer(payload)

    def take(self) -> bytes | None:
        """The next notification in the queue, which is under way now. None when one is under way or none waits."""
        if self._current is not None or not self._waiting:
            return None
        self._current = self._waiting.popleft()
        self.is_acknowledged = False
        return self._current

    def keep(self, body: NotificationBody) -> None:
        """Remember that the notification under way is in blocks."""
        self.body = body
        self.bytes_held += len(body.content)

    def fetched(self) -> None:
        """Forget the body: the peer has asked for its last block, or will not ask."""
        if self.body is not None:
            self.bytes_held -= len(self.body.content)
            self.body = None

    def take_back(self) -> None:
        """Put the notification under way back at the head of the queue."""
        if self._current is not None:
            self.fetched()
            self._waiting.appendleft(self._current)
            self._current = None

    def settled(self) -> None:
        """Remove the notification under way: it has arrived completely, or is given up."""
        self.fetched()
        if self._current is not None:
            self.bytes_held -= _ENTRY_BYTES + len(self._current)
            self._current = None
