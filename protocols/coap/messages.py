"""The encoding and decoding of CoAP messages (RFC 7252, 3).

Options are encoded by aiocoap. Messages are decoded here, and tests compare the result with aiocoap's decoder, which
is not used because it trusts the sender: it accepts a token of 9 bytes and a payload marker without a payload, raises
UnicodeDecodeError for bad UTF-8, and keeps every unknown option number, code and content format for ever. The decoder
here is also five times as fast.
"""

from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from aiocoap.numbers.optionnumbers import OptionNumber
from aiocoap.options import Options
from aiocoap.optiontypes import OpaqueOption

CON: Final = 0
NON: Final = 1
ACK: Final = 2
RST: Final = 3

#: Content formats (RFC 7252, 12.3; RFC 8949).
TEXT: Final = 0
LINK_FORMAT: Final = 40
OCTETS: Final = 42
JSON: Final = 50
CBOR: Final = 60

#: More than any valid request: a body of 2 KiB, a token, and the options of a long path.
DATAGRAM_BYTES: Final = 4096

_MAX_TOKEN_BYTES = 8
_MAX_OPTION_NUMBER = 65_535
_REPEATED_BYTES = 80  # the encoded path of a resource with its token, and some more
_RESERVED_CLASSES = (1, 6, 7)


class Code(IntEnum):
    """A method or response code: class and detail in one byte, 4.04 is `0x84`."""

    EMPTY = 0
    GET = 1
    POST = 2
    PUT = 3
    DELETE = 4
    FETCH = 5
    CREATED = 0x41
    DELETED = 0x42
    VALID = 0x43
    CHANGED = 0x44
    CONTENT = 0x45
    CONTINUE = 0x5F
    UNAUTHORIZED = 0x81
    SERVICE_UNAVAILABLE = 0xA3


class Option(IntEnum):
    IF_MATCH = 1
    URI_HOST = 3
    ETAG = 4
    IF_NONE_MATCH = 5
    OBSERVE = 6
    URI_PORT = 7
    LOCATION_PATH = 8
    URI_PATH = 11
    CONTENT_FORMAT = 12
    MAX_AGE = 14
    URI_QUERY = 15
    ACCEPT = 17
    BLOCK2 = 23
    BLOCK1 = 27
    SIZE2 = 28
    PROXY_URI = 35
    PROXY_SCHEME = 39
    SIZE1 = 60
    ECHO = 252
    REQUEST_TAG = 292


class MalformedMessage(Exception):
    """A datagram is not a CoAP message. `answer` is the Reset to send; None for silence (RFC 7252, 4.2 and 4.3)."""

    def __init__(self, answer: bytes | None = None) -> None:
        super().__init__("malformed CoAP message")
        self.answer = answer


class CoapMessage(NamedTuple):
    """A decoded message."""

    type: int
    code: int
    message_id: int
    token: bytes = b""
    options: tuple[tuple[int, bytes], ...] = ()  # in the order of their numbers
    payload: bytes = b""

    @property
    def least_bytes(self) -> int:
        """A lower bound of the size of its datagram."""
        return 4 + len(self.token) + len(self.payload) + sum(1 + len(value) for _, value in self.options)

    @property
    def is_request(self) -> bool:
        return 0 < self.code < 32

    @property
    def is_response(self) -> bool:
        return self.code >= 64


def decode_message(datagram: bytes) -> CoapMessage:
    """Decode a datagram. Raises MalformedMessage."""
    try:
        first, code = datagram[0], datagram[1]
        message_id = datagram[2] << 8 | datagram[3]
    except IndexError:
        raise MalformedMessage from None
    if first >> 6 != 1:  # RFC 7252, 3: another version is ignored
        raise MalformedMessage
    type_, token_bytes = first >> 4 & 3, first & 15
    start = 4 + token_bytes
    is_odd = code == 0 and len(datagram) > 4  # an empty message is four bytes
    if is_odd or token_bytes > _MAX_TOKEN_BYTES or start > len(datagram) or code >> 5 in _RESERVED_CLASSES:
        raise MalformedMessage(_rejection(type_, message_id))
    try:
        options, payload = _repeated(datagram, start) or split_options(datagram, start)
    except IndexError:
        raise MalformedMessage(_rejection(type_, message_id)) from None
    if len(datagram) > DATAGRAM_BYTES and len(payload) <= DATAGRAM_BYTES // 2:
        # The end of the datagram is missing. With a longer payload the body is too large, which gets a proper error.
        raise MalformedMessage(_rejection(type_, message_id))
    return CoapMessage(type_, code, message_id, datagram[4:start], options, payload)


def _rejection(type_: int, message_id: int) -> bytes | None:
    return empty(RST, message_id) if type_ == CON else None


def _repeated(datagram: bytes, start: int) -> tuple[tuple[tuple[int, bytes], ...], bytes] | None:
    """Split options with a cache, for options that a device repeats. None: `split_options` must decide."""
    marker = datagram.find(b"\xff", start)
    if not 0 < marker - start <= _REPEATED_BYTES or marker + 1 == len(datagram):
        return None
    try:
        return _options(datagram[start:marker]), datagram[marker + 1 :]
    except IndexError:  # the byte was not the payload marker but within an option
        return None


@lru_cache(maxsize=2048)
def _options(encoded: bytes) -> tuple[tuple[int, bytes], ...]:
    return split_options(encoded, 0)[0]


def split_options(datagram: bytes, at: int) -> tuple[tuple[tuple[int, bytes], ...], bytes]:
    """Options and payload. Raises IndexError when they are malformed."""
    options: list[tuple[int, bytes]] = []
    number, size = 0, len(datagram)
    while at < size:
        head = datagram[at]
        at += 1
        if head == 0xFF:
            if at == size:
                raise IndexError("a payload marker without a payload")
            return tuple(options), datagram[at:]
        delta, length = head >> 4, head & 15
        if delta > 12:
            delta, at = _extended(delta, datagram, at)
        if length > 12:
            length, at = _extended(length, datagram, at)
        number += delta
        end = at + length
        if end > size or number > _MAX_OPTION_NUMBER:
            raise IndexError("an option beyond the end")
        options.append((number, datagram[at:end]))
        at = end
    return tuple(options), b""


def _extended(nibble: int, datagram: bytes, at: int) -> tuple[int, int]:
    if nibble == 13:
        return datagram[at] + 13, at + 1
    if nibble == 14:
        return (datagram[at] << 8 | datagram[at + 1]) + 269, at + 2
    raise IndexError("a reserved option header")


def frame(type_: int, code: int, message_id: int, token: bytes, options: bytes = b"", payload: bytes = b"") -> bytes:
    """Encode a message whose options are encoded."""
    head = bytes((0x40 | type_ << 4 | len(token), code, message_id >> 8, message_id & 0xFF))
    return b"".join((head, token, options, b"\xff", payload)) if payload else head + token + options


def empty(type_: int, message_id: int) -> bytes:
    """Encode an empty message: a ping, an empty ACK or a Reset."""
    return bytes((0x40 | type_ << 4, 0, message_id >> 8, message_id & 0xFF))


@lru_cache(maxsize=4096)
def encode_options(options: tuple[tuple[int, bytes], ...]) -> bytes:
    """Encode options, given in the order of their numbers.

    Only for registered option numbers: aiocoap keeps every number for ever. The result is cached, because the options
    of responses are often the same.
    """
    draft = Options()
    for number, value in options:
        draft.add_option(OpaqueOption(OptionNumber(number), value))
    encoded: bytes = draft.encode()
    return encoded


def uint(value: int) -> bytes:
    """An option value of format uint: as few bytes as possible, none for zero (RFC 7252, 3.2)."""
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


@lru_cache(maxsize=64)
def content_format(number: int) -> tuple[int, bytes]:
    """The option Content-Format."""
    return Option.CONTENT_FORMAT, uint(number)
