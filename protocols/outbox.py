"""Bytes on their way to one peer: bounded, and written by one task.

Two kinds wait here. Answers to what the peer sent are always taken: whoever reads from the peer stops while `has_room`
is false, so their number is bounded by what was read. Everything else is offered, and refused when the peer is slow.
"""

from collections.abc import Awaitable, Callable

import trio

MAX_WAITING_BYTES = 256 * 1024


class Outbox:
    """Where nothing waits, `send_now` spares the sending task: most answers are on the wire before `put` returns.

    Args:
        send: sends all of it, and waits for as long as that takes.
        send_now: sends what the operating system takes at once and answers how much that was.
        limit: bytes that may wait before `has_room` is false.
    """

    __slots__ = ("_emptied", "_is_corked", "_limit", "_send", "_send_now", "_waiting", "_waiting_bytes", "_wanted")

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        *,
        send_now: Callable[[bytes], int] | None = None,
        limit: int = MAX_WAITING_BYTES,
    ) -> None:
        self._send = send
        self._send_now = send_now
        self._limit = limit
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0  # including what is being sent now
        self._is_corked = False
        self._wanted = trio.Event()  # set for as long as the sending task has something to do
        self._emptied = trio.Event()

    @property
    def is_empty(self) -> bool:
        """Everything put so far was handed to the operating system."""
        return not self._waiting_bytes

    @property
    def has_room(self) -> bool:
        return self._waiting_bytes < self._limit

    def put(self, data: bytes) -> None:
        """An answer: it is always taken."""
        if data:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if not self._is_corked:
                self._begin()

    def offer(self, data: bytes) -> bool:
        """Anything else: taken, or refused because the peer does not keep up."""
        if not self.has_room:
            return False
        self.put(data)
        return True

    def cork(self) -> None:
        """More than one answer follows: send nothing until `uncork`, then all of it at once."""
        self._is_corked = True

    def uncork(self) -> None:
        self._is_corked = False
        if self._waiting:
            self._begin()

    def _begin(self) -> None:
        if self._wanted.is_set():  # the sending task is at it, and the order is its business
            return
        if self._send_now is not None:
            data = self._take_waiting()
            sent = self._send_now(data)
            self._waiting_bytes -= sent
            if sent == len(data):
                return
            self._waiting.append(data[sent:])
        self._wanted.set()

    def _take_waiting(self) -> bytes:
        data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        return data

    async def wait_empty(self) -> None:
        """Return when everything put so far was handed to the operating system."""
        while self._waiting_bytes:
            await self._emptied.wait()

    async def send_forever(self) -> None:
        """The one task that writes. Raises what the stream raises when the peer is gone."""
        while True:
            await self._wanted.wait()
            data = self._take_waiting()
            await self._send(data)
            self._waiting_bytes -= len(data)
            if not self._waiting:
                self._wanted = trio.Event()
                self._emptied.set()
                self._emptied = trio.Event()
