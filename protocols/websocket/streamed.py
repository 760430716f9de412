"""WebSocket frames of a client that carry a stream: the content is given out as it comes (RFC 6455, section 5).

Frames mean nothing to such a stream, so none has to come whole, and none is too long.
"""

from typing import Final

from config.limits import PACKETS_PER_TURN
from protocols.websocket.wire import PROTOCOL_ERROR, CloseFrame, Received, WireError, control_frame, long_length

_CONTINUATION, _TEXT, _BINARY, _PONG = 0x0, 0x1, 0x2, 0xA
_FIN: Final = 0x80
_MASKED: Final = 0x80
_CONTROL_BYTES: Final = 125
_LONGEST: Final = 1 << 63  # RFC 6455, 5.2: the first bit of a length is 0


class StreamReader:
    """Must not be used after a WireError, a Close or a text frame."""

    __slots__ = ("_buffer", "_is_open", "_left", "_mask", "is_behind")

    def __init__(self) -> None:
        self._buffer = bytearray()  # of a frame whose head, or whose control payload, has not come whole
        self._left = 0  # bytes of the present frame that have not come
        self._mask = b""
        self._is_open = False  # a message has begun, and its last frame has not
        self.is_behind = False  # more frames may have arrived: feed the reader nothing to get them

    def feed(self, data: bytes | bytearray) -> Received:
        """The content and the control frames of at most PACKETS_PER_TURN frames; `fragments` says how many had content.

        A text frame, which no such stream has, is an empty text among the messages.

        Raises:
            WireError: the peer broke the protocol.
        """
        received, kept = Received([], []), self._buffer
        if kept:
            kept += data
            data = kept
        try:
            used = self._read(data, received)
        except WireError as error:
            raise WireError(error.code, error.reason, received) from error
        if data is kept:
            del kept[:used]
        else:
            kept += data[used:]
        return received

    def _read(self, buffer: bytes | bytearray, received: Received) -> int:
        """Read what the buffer begins with; returns how many bytes that is."""
        at, end = self._take(buffer, 0, received), len(buffer)
        self.is_behind = False
        for _ in range(PACKETS_PER_TURN):
            if end - at < 2:
                break
            first, length = buffer[at], buffer[at + 1]
            if length < _MASKED:
                raise WireError(PROTOCOL_ERROR, "frame without a mask")
            length ^= _MASKED
            mask_at = at + (2 if length < 126 else 4 if length == 126 else 10)
            begin = mask_at + 4
            if first & 0x08:
                self._check_control(first, length)
                if end < begin + length:
                    break
                control = control_frame(first & 0x0F, _unmasked(buffer[begin : begin + length], buffer[mask_at:begin]))
                received.controls.append(control)
                at = begin + length
                if isinstance(control, CloseFrame):
                    break
                continue
            self._check(first)
            if first & 0x0F == _TEXT:
                received.messages.append("")
                break
            if end < begin:
                break
            self._left = length if length < 126 else long_length(buffer, at, length)
            if self._left >= _LONGEST:
                raise WireError(PROTOCOL_ERROR, "length with its first bit set")
            self._mask, self._is_open = bytes(buffer[mask_at:begin]), not first & _FIN
            received.fragments += 1
            at = self._take(buffer, begin, received)
        else:
            self.is_behind = at < end
        return at

    def _take(self, buffer: bytes | bytearray, at: int, received: Received) -> int:
        """Take what has come of the present frame's content; returns where it ends."""
        size = min(self._left, len(buffer) - at)
        if size:
            received.messages.append(_unmasked(buffer[at : at + size], self._mask))
            self._left -= size
            turned = size % 4
            self._mask = self._mask[turned:] + self._mask[:turned]
        return at + size

    def _check(self, first: int) -> None:
        opcode = first & 0x0F
        if first & 0x70:
            raise WireError(PROTOCOL_ERROR, "reserved bit set")
        if opcode > _BINARY:
            raise WireError(PROTOCOL_ERROR, f"unknown opcode {opcode}")
        if (opcode == _CONTINUATION) is not self._is_open:
            raise WireError(PROTOCOL_ERROR, "fragment out of order")

    def _check_control(self, first: int, length: int) -> None:
        if first & 0x70:
            raise WireError(PROTOCOL_ERROR, "reserved bit set")
        if first & 0x0F > _PONG:
            raise WireError(PROTOCOL_ERROR, f"unknown opcode {first & 0x0F}")
        if not first & _FIN or length > _CONTROL_BYTES:
            raise WireError(PROTOCOL_ERROR, "control frame fragmented or too long")


def _unmasked(content: bytes | bytearray, mask: bytes | bytearray) -> bytes:
    """XOR of two long integers: one operation for all bytes. The mask is cut to the length of the content."""
    size = len(content)
    whole = int.from_bytes(mask * ((size + 3) >> 2), "little")
    return (int.from_bytes(content, "little") ^ whole).to_bytes(size + 3, "little")[:size]
