"""A WebSocket that carries the bytes of another protocol: MQTT at /mqtt (MQTT 5.0, section 6; reference 16.5).

The other protocol reads and writes a stream, and neither sees frames nor decides on them. Its packets need not begin
and end with frames.
"""

from typing import Final

import trio

from broker.limits.overhead import Pace
from broker.registration.certificates import ClientCertificate
from protocols.streams.listeners import end_gently
from protocols.websocket.streamed import StreamReader
from protocols.websocket.wire import (
    NORMAL_CLOSURE,
    CloseFrame,
    PingFrame,
    Received,
    WireError,
    encode_close_frame,
    encode_frame,
    encode_pong_frame,
)

UNSUPPORTED_DATA: Final = 1003
_READ_BYTES: Final = 32 * 1024
_GOODBYE_SECONDS: Final = 1.0
#: Frames with fewer bytes than this on average count as overhead.
_BYTES_OF_A_FRAME: Final = 8


class Tunnel(trio.abc.HalfCloseableStream):
    """The stream inside a WebSocket whose handshake is done.

    Args:
        stream: the connection.
        early: what the peer has sent behind its handshake.
        pace: spends the frames that carry nothing, or next to nothing.
        shown: the certificate that the peer has shown in the TLS handshake.
    """

    def __init__(
        self, stream: trio.abc.Stream, early: bytes, pace: Pace, shown: ClientCertificate | None = None
    ) -> None:
        self._stream = stream
        self._early = early
        self._pace = pace
        self._shown = shown
        self._reader = StreamReader()
        self._sending = trio.Lock()
        self._is_over = self._said_close = self._is_refused = False

    def getpeercert(self) -> ClientCertificate | None:
        return self._shown

    async def receive_some(self, max_bytes: int | None = None) -> bytes:  # noqa: ARG002 - a turn of frames is bounded
        """The received content of the next turn of binary frames; empty at the end, also after a fault."""
        while not self._is_over:
            if self._pace.owed:
                await self._pace.wait()
            received = await self._receive_turn()
            content = await self._content(received)
            small = received.fragments - len(content) // _BYTES_OF_A_FRAME
            if overhead := len(received.controls) + max(0, small):
                self._pace.spend(overhead)
            if content:
                return content
        if self._is_refused:
            self._is_refused = False
            with trio.move_on_after(_GOODBYE_SECONDS):  # so that the close frame is not lost
                await end_gently(self._stream)
        return b""

    async def _receive_turn(self) -> Received:
        data: bytes | bytearray = b""
        if self._reader.is_behind:
            await trio.lowlevel.checkpoint()
        else:
            data, self._early = self._early or await self._stream.receive_some(_READ_BYTES), b""
            self._is_over = not data
        try:
            return self._reader.feed(data)
        except WireError as fault:
            await self._refuse(fault.code, fault.reason)
            return fault.received

    async def _content(self, received: Received) -> bytes:
        for control in received.controls:
            if isinstance(control, PingFrame):
                await self._send(encode_pong_frame(control.payload))
            elif isinstance(control, CloseFrame):
                await self._close(control.code)
        content = []
        for message in received.messages:
            if isinstance(message, str):
                await self._refuse(UNSUPPORTED_DATA, "text frame")
                break
            content.append(message)
        return b"".join(content)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._send(encode_frame(bytes(data)))

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Say that the conversation is over; the peer then closes."""
        await self._close(NORMAL_CLOSURE, is_over=False)

    async def _refuse(self, code: int, reason: str) -> None:
        self._is_refused = True
        await self._close(code, reason)

    async def _close(self, code: int, reason: str = "", *, is_over: bool = True) -> None:
        self._is_over = self._is_over or is_over
        if not self._said_close:
            async with self._sending:
                if self._said_close:  # by another task, in between
                    return
                self._said_close = True
                await self._stream.send_all(encode_close_frame(code, reason))

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            if not self._said_close:  # RFC 6455, 5.5.1: nothing follows the close frame
                await self._stream.send_all(frame)

    async def aclose(self) -> None:
        await self._stream.aclose()
