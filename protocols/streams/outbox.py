"""A bounded queue of the bytes to send to one peer, which one task writes.

The queue accepts answers to the peer's own requests always: the task that reads from the peer pauses while `has_room`
is false, so the answers are bounded by what was read. All other bytes are offered, and refused while the peer is slow.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Protocol

import trio

_SMALL_BYTES: Final = 64 * 1024


class SharedRoom(Protocol):
    """The memory for bytes that wait, which several outboxes share."""

    @property
    def is_full(self) -> bool: ...

    def add(self, size: int) -> None:
        """Add to the number of waiting bytes; a negative `size` takes away."""


class Outbox(ABC):
    """When no bytes wait, `put` sends through `_send_now` without the sending task, so most answers leave at once."""

    __slots__ = ("_emptied", "_is_corked", "_is_wanted", "_shared", "_waiting", "_waiting_bytes", "_wakeup")

    #: Bytes that may wait before `has_room` is false.
    LIMIT: ClassVar[int] = 256 * 1024

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0  # including what is being sent now
        self._shared: SharedRoom | None = None
        self._is_corked = False
        self._is_wanted = False  # while the sending task has bytes to send
        # Events take much of what an idle connection holds: there are none while nobody waits.
        self._wakeup: trio.Event | None = None
        self._emptied: trio.Event | None = None

    @abstractmethod
    async def _send(self, data: bytes) -> None:
        """Send all bytes, and wait for as long as that takes."""

    @abstractmethod
    def _send_now(self, data: bytes) -> int:
        """Send what the operating system takes at once; return the number of bytes."""

    @property
    def is_empty(self) -> bool:
        """All bytes so far were handed to the operating system."""
        return not self._waiting_bytes

    @property
    def has_room(self) -> bool:
        return self._waiting_bytes < self.LIMIT

    def share(self, shared: SharedRoom) -> None:
        """Count what waits there, too. While that is full, nothing is offered to a peer that has something waiting, and
        nothing large to any."""
        self._shared = shared
        shared.add(self._waiting_bytes)

    def _count(self, change: int) -> None:
        self._waiting_bytes += change
        if self._shared is not None:
            self._shared.add(change)

    def put(self, data: bytes) -> None:
        """Queue an answer to the peer's own request. Always accepted."""
        if not data:
            return
        if not (self._waiting_bytes or self._is_corked):
            sent = self._send_now(data)  # the usual case: nothing waits before it, and it leaves at once
            if sent == len(data):
                return
            self._waiting.append(data[sent:])
            self._count(len(data) - sent)
            self._want()
            return
        self._waiting.append(data)
        self._count(len(data))
        if not self._is_corked:
            self._send_waiting()

    def offer(self, data: bytes) -> bool:
        """Queue other bytes; False, and nothing queued, when the peer does not keep up."""
        if not self.has_room:
            return False
        if self._shared is not None and (self._waiting_bytes or len(data) > _SMALL_BYTES) and self._shared.is_full:
            return False
        self.put(data)
        return True

    def cork(self) -> None:
        """Send nothing until `uncork`, then everything at once."""
        self._is_corked = True

    def uncork(self) -> None:
        self._is_corked = False
        if self._waiting:
            self._send_waiting()

    def _send_waiting(self) -> None:
        if self._is_wanted:  # the sending task is at work, and keeps the order
            return
        data = self._take_waiting()
        sent = self._send_now(data)
        self._count(-sent)
        if sent < len(data):
            self._waiting.insert(0, data[sent:])
            self._want()

    def _want(self) -> None:
        self._is_wanted = True
        if self._wakeup is not None:
            self._wakeup.set()

    def _take_waiting(self) -> bytes:
        data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        return data

    async def wait_empty(self) -> None:
        """Wait until all bytes so far were handed to the operating system, or discarded."""
        while (
            self._waiting_bytes > 0
        ):  # less, when the sending task was about to note bytes that `discard` has forgotten
            if self._emptied is None:
                self._emptied = trio.Event()
            await self._emptied.wait()

    def discard(self) -> None:
        """The connection has ended: what waits is never sent."""
        self._waiting.clear()
        self._count(-self._waiting_bytes)
        self._shared = None
        self._note_empty()

    async def send_forever(self) -> None:
        """Send until cancelled; run by one task. Raises the stream's error when the peer has gone."""
        while True:
            if not self._is_wanted:
                self._wakeup = trio.Event()
                await self._wakeup.wait()
                self._wakeup = None
            await self.send_waiting()

    async def send_waiting(self) -> None:
        """Send all that waits. Raises the stream's error when the peer has gone."""
        while self._waiting:
            data = self._take_waiting()
            await self._send(data)
            self._count(-len(data))
        self._is_wanted = False
        self._note_empty()

    def _note_empty(self) -> None:
        if self._emptied is not None:
            self._emptied.set()
            self._emptied = None
