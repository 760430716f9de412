"""A connection whose first bytes were read before its server got it."""

from typing import Any

import trio

from protocols.listeners import Stream


class ReplayedStream(trio.abc.HalfCloseableStream):
    """Gives what was read already once more, then goes on with the stream itself."""

    def __init__(self, head: bytes, stream: Stream) -> None:
        self._head = head
        self._stream = stream

    @property
    def rest(self) -> trio.abc.Stream:
        """The stream itself, as soon as everything was given once more."""
        return self if self._head else self._stream

    @property
    def is_encrypted(self) -> bool:
        return isinstance(self._stream, trio.SSLStream)

    @property
    def socket(self) -> trio.socket.SocketType:
        """The socket below, for the addresses of both ends."""
        stream: Any = self._stream
        socket: trio.socket.SocketType = (stream.transport_stream if self.is_encrypted else stream).socket
        return socket

    def getpeercert(self) -> object:
        """What the stream below says (protocols/tls.py)."""
        return self._stream.getpeercert() if isinstance(self._stream, trio.SSLStream) else None

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._head:
            return bytes(await self._stream.receive_some(max_bytes))
        await trio.lowlevel.checkpoint()
        size = len(self._head) if max_bytes is None else max_bytes
        received, self._head = self._head[:size], self._head[size:]
        return received

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """TLS knows no half-closed connections: there, closing says it."""
        if isinstance(self._stream, trio.SSLStream):
            await trio.lowlevel.checkpoint()
        else:
            await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
