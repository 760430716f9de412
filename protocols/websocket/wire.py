"""WebSocket frames as bytes, without I/O: those of the client and those of the server (RFC 6455, sections 5 and 7.4).

The device channel and the live feed are hot paths, and most frames are short and unfragmented. So `feed` takes all
bytes of one read and scans each byte once. A library that makes objects and events for each frame costs several times
as much as the message itself.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from config.limits import PACKETS_PER_TURN, WEBSOCKET_FRAME_BYTES

# RFC 6455, 5.2.
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_FIN: Final = 0x80
_WHOLE_TEXT: Final = _FIN | _TEXT
_WHOLE_BINARY: Final = _FIN | _BINARY
_MASKED: Final = 0x80
_CONTROL_BYTES: Final = 125

# RFC 6455, 7.4.1.
NORMAL_CLOSURE: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
NO_CODE: Final = 1005  # stands for a close frame without one, and is never sent
INVALID_DATA: Final = 1007
POLICY_VIOLATION: Final = 1008
MESSAGE_TOO_BIG: Final = 1009
INTERNAL_ERROR: Final = 1011
SERVICE_RESTART: Final = 1012  # of IANA's registry
TRY_AGAIN_LATER: Final = 1013

_NOT_UTF8: Final = "text is not UTF-8"

_length_of_16_bits = struct.Struct("!H").unpack_from
_length_of_64_bits = struct.Struct("!Q").unpack_from


class PingFrame(msgspec.Struct, frozen=True):
    payload: bytes


class PongFrame(msgspec.Struct, frozen=True):
    payload: bytes


class CloseFrame(msgspec.Struct, frozen=True):
    """The last frame of the peer."""

    code: int
    reason: str


Control: TypeAlias = PingFrame | PongFrame | CloseFrame


@dataclass(slots=True)
class Received:
    """The messages in order, `str` for text and `bytes` for binary, and the control frames in order.

    `fragments` is the number of frames that were parts of a message and not its end.

    The order between messages and control frames does not matter: a Close is the last frame, and Pings and Pongs do not
    depend on messages.
    """

    messages: list[str | bytes]
    controls: list[Control]
    fragments: int = 0


class WireError(Exception):
    """The peer broke the protocol or a size limit. `received` has the frames before the error; they are processed."""

    def __init__(self, code: int, reason: str, received: Received | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.received = received or Received([], [])


class FrameReader:
    """Parses the frames of a client. Must not be used after a WireError or a Close."""

    __slots__ = ("_begun", "_buffer", "_limit", "_opcode", "is_behind")

    def __init__(self, *, limit: int = WEBSOCKET_FRAME_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._opcode = 0  # of the fragmented message that has begun; 0 when there is none
        self._begun: bytearray | None = None
        self.is_behind = False  # more frames may have arrived: feed the reader nothing to get them

    def feed(self, data: bytes | bytearray) -> Received:
        """The next messages and control frames: those of at most PACKETS_PER_TURN frames. The rest is kept.

        Raises:
            WireError: the peer broke the protocol or a size limit.
        """
        received, kept = Received([], []), self._buffer
        # Mostly frames end where a read ends, so that nothing is kept: then they are read from where they lie.
        if kept:
            kept += data
            data = kept
        try:
            used = self._read(data, received)
        except WireError as error:
            raise WireError(error.code, error.reason, received) from error
        except UnicodeDecodeError as error:
            raise WireError(INVALID_DATA, _NOT_UTF8, received) from error
        if data is kept:
            del kept[:used]
        elif used < len(data):
            kept += data[used:]
        return received

    def _read(self, buffer: bytes | bytearray, received: Received) -> int:
        """Read the frames that the buffer begins with; returns how many bytes they are."""
        messages, from_bytes = received.messages, int.from_bytes
        at, end = 0, len(buffer)
        self.is_behind = False
        for _ in range(PACKETS_PER_TURN):
            if end - at < 2:
                break
            first, length = buffer[at], buffer[at + 1]
            if length < _MASKED:
                raise WireError(PROTOCOL_ERROR, "frame without a mask")
            length ^= _MASKED
            mask_at = at + 2
            if length > 125:
                mask_at = at + (4 if length == 126 else 10)
                if end < mask_at:
                    break
                length = long_length(buffer, at, length)
            if first != _WHOLE_TEXT or length > self._limit or self._opcode:
                self._check(first, length)
            begin = mask_at + 4
            if end < begin + length:
                break
            at = begin + length
            # XOR of two long integers: one operation for the whole payload. The mask is cut to the length of the
            # payload.
            mask = from_bytes(buffer[mask_at:begin] * ((length + 3) >> 2), "little")
            payload = (from_bytes(buffer[begin:at], "little") ^ mask).to_bytes(length + 3, "little")[:length]
            if first == _WHOLE_TEXT:
                messages.append(payload.decode())
            elif first == _WHOLE_BINARY:
                messages.append(payload)
            elif first & 0x8:
                received.controls.append(control_frame(first & 0x0F, payload))
                if first & 0x0F == _CLOSE:
                    break
            elif (message := self._joined(first, payload)) is not None:
                messages.append(message)
            else:
                received.fragments += 1
        else:
            self.is_behind = at < end
        return at

    def _check(self, first: int, length: int) -> None:
        """Raise WireError when such a frame is not allowed now. Called before the payload has arrived."""
        if first & 0x70:
            raise WireError(PROTOCOL_ERROR, "reserved bit set")
        opcode = first & 0x0F
        if opcode & 0x8:
            if opcode > _PONG:
                raise WireError(PROTOCOL_ERROR, f"unknown opcode {opcode}")
            if not first & _FIN or length > _CONTROL_BYTES:
                raise WireError(PROTOCOL_ERROR, "control frame fragmented or too long")
            return
        if opcode > _BINARY:
            raise WireError(PROTOCOL_ERROR, f"unknown opcode {opcode}")
        if (opcode == _CONTINUATION) is not bool(self._opcode):
            raise WireError(PROTOCOL_ERROR, "fragment out of order")
        if length + len(self._begun or b"") > self._limit:
            raise WireError(MESSAGE_TOO_BIG, f"over {self._limit} bytes")

    def _joined(self, first: int, payload: bytes) -> str | bytes | None:
        """Add a fragment; return the message with the last fragment, else None."""
        if self._begun is None:
            self._opcode, self._begun = first & 0x0F, bytearray()
        self._begun += payload
        if not first & _FIN:
            return None
        whole, is_text = bytes(self._begun), self._opcode == _TEXT
        self._opcode, self._begun = 0, None
        return _text(whole) if is_text else whole


def long_length(buffer: bytes | bytearray, at: int, length: int) -> int:
    """The length of a frame that begins at `at`, and whose short length is 126 or 127. Raises WireError."""
    length = (_length_of_16_bits if length == 126 else _length_of_64_bits)(buffer, at + 2)[0]
    if length < 126 or (length < 65536 and buffer[at + 1] & 0x7F == 127):
        raise WireError(PROTOCOL_ERROR, "length not in its shortest form")
    return length


def control_frame(opcode: int, payload: bytes) -> Control:
    """Raises WireError."""
    if opcode == _CLOSE:
        return _close(payload)
    return PingFrame(payload) if opcode == _PING else PongFrame(payload)


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise WireError(INVALID_DATA, _NOT_UTF8) from None


def _close(payload: bytes) -> CloseFrame:
    if not payload:
        return CloseFrame(NO_CODE, "")
    if len(payload) == 1:
        raise WireError(PROTOCOL_ERROR, "half a close code")
    code = _length_of_16_bits(payload, 0)[0]
    if not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        raise WireError(PROTOCOL_ERROR, f"close code {code}")
    return CloseFrame(code, _text(payload[2:]))


# --- Frames of the server: never masked, never fragmented ---


def encode_frame(payload: str | bytes) -> bytes:
    """A message as a frame: `str` as a text frame, `bytes` as a binary one."""
    if isinstance(payload, str):
        return encode_text_frame(payload.encode())
    return _head(_WHOLE_BINARY, len(payload)) + payload


def encode_text_frame(payload: bytes) -> bytes:
    """A text frame; the payload is UTF-8."""
    length = len(payload)
    if length < 126:
        return _SHORT_TEXT[length] + payload
    return _head(_WHOLE_TEXT, length) + payload


def encode_frames(payloads: Iterable[str | bytes]) -> bytes:
    """Messages as frames, joined. Short texts of ASCII, as most are, take half of the time of `encode_frame`."""
    joined: list[bytes] = []
    quick: list[str] = []
    for payload in payloads:
        if type(payload) is str and (length := len(payload)) < _QUICK_CHARACTERS and payload.isascii():
            quick += (_TEXT_HEADS[length], payload)
        else:
            joined += ("".join(quick).encode("latin-1"), encode_frame(payload))
            quick.clear()
    # One character of Latin-1 is one byte, so that heads and texts are encoded together.
    last = "".join(quick).encode("latin-1")
    return b"".join((*joined, last)) if joined else last


def encode_ping_frame(payload: bytes = b"") -> bytes:
    return _head(_FIN | _PING, len(payload)) + payload


def encode_pong_frame(payload: bytes) -> bytes:
    return _head(_FIN | _PONG, len(payload)) + payload


def encode_close_frame(code: int, reason: str = "") -> bytes:
    """A close frame. `reason` is cut to the size of a control frame."""
    payload = b""
    if code != NO_CODE:
        text = reason.encode()[: _CONTROL_BYTES - 2].decode(errors="ignore")
        payload = struct.pack("!H", code) + text.encode()
    return _head(_FIN | _CLOSE, len(payload)) + payload


def _head(first: int, length: int) -> bytes:
    if length < 126:
        return bytes((first, length))
    if length < 65536:
        return struct.pack("!BBH", first, 126, length)
    return struct.pack("!BBQ", first, 127, length)


_QUICK_CHARACTERS: Final = 1024
#: The heads of text frames by the length of the text; each byte as a character of Latin-1.
_TEXT_HEADS: Final = tuple(_head(_WHOLE_TEXT, length).decode("latin-1") for length in range(_QUICK_CHARACTERS))
_SHORT_TEXT: Final = tuple(bytes((_WHOLE_TEXT, length)) for length in range(126))
