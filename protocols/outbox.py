"""Bytes on their way to one peer: bounded, and written by one task.

Two kinds wait here. Answers to what the peer sent are always taken: whoever reads from the peer stops while `has_room`
is false, so their number is bounded by what was read. Everything else is offered, and refused when the peer is slow.
"""

from collections.abc import Awaitable, Callable

import trio

MAX_WAITING_BYTES = 256 * 1024


class Outbox:
    __slots__ = ("_emptied", "_limit", "_send", "_waiting", "_waiting_bytes", "_wanted")

    def __init__(self, send: Callable[[bytes], Awaitable[None]], *, limit: int = MAX_WAITING_BYTES) -> None:
        self._send = send
        self._limit = limit
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0  # including what is being sent now
        self._wanted = trio.Event()
        self._emptied = trio.Event()

    @property
    def has_room(self) -> bool:
        return self._waiting_bytes < self._limit

    def put(self, data: bytes) -> None:
        """An answer: it is always taken."""
        if data:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self._wanted.set()

    def offer(self, data: bytes) -> bool:
        """Anything else: taken, or refused because the peer does not keep up."""
        if not self.has_room:
            return False
        self.put(data)
        return True

    async def wait_empty(self) -> None:
        """Return when everything put so far was handed to the operating system."""
        while self._waiting_bytes:
            await self._emptied.wait()

    async def send_forever(self) -> None:
        """The one task that writes. Raises what the stream raises when the peer is gone."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            data = b"".join(self._waiting)
            self._waiting.clear()
            await self._send(data)
            self._waiting_bytes -= len(data)
            self._emptied.set()
            self._emptied = trio.Event()
