"""The messages of CoAP over TCP and TLS, without I/O (RFC 8323, 3.2).

A message has its length in front, and neither a type nor a message id: TCP delivers it once and in order.
"""

from typing import Final

from protocols.coap.messages import CON, CoapMessage, split_options

#: The longest message that is accepted. RFC 8323, 5.3.1 asks for 1,152 bytes at least.
MESSAGE_BYTES: Final = 64 * 1024

#: Signalling (RFC 8323, 5).
CSM: Final = 0xE1
PING: Final = 0xE2
PONG: Final = 0xE3
RELEASE: Final = 0xE4
ABORT: Final = 0xE5
#: The option of a CSM with the longest message that its sender accepts (RFC 8323, 5.3.1).
MAX_MESSAGE_SIZE: Final = 2

_MAX_TOKEN_BYTES: Final = 8
#: By the length nibble: the bytes of the extended length, and what is added to it.
_EXTENDED: Final = {13: (1, 13), 14: (2, 269), 15: (4, 65_805)}


class MalformedFrame(Exception):
    """The bytes are not a CoAP message, or it is too long. Nothing after it can be read.

    `messages` came before it.
    """

    messages: tuple[CoapMessage, ...] = ()


def is_signalling(message: CoapMessage) -> bool:
    """Whether the message is about the connection itself."""
    return message.code >> 5 == 7


class CoapFrameReader:
    """Cuts what was received into messages of at most `most_bytes`."""

    __slots__ = ("_received", "most_bytes")

    def __init__(self, most_bytes: int = MESSAGE_BYTES) -> None:
        self._received = bytearray()
        self.most_bytes = most_bytes

    def feed(self, received: bytes) -> list[CoapMessage]:
        """The messages that are complete now; their type is CON and their message id 0.

        Raises:
            MalformedFrame: the connection has to end.
        """
        self._received += received
        found = []
        try:
            while (message := self._next()) is not None:
                found.append(message)
        except MalformedFrame as malformed:
            malformed.messages = tuple(found)
            raise
        return found

    def _next(self) -> CoapMessage | None:
        received = self._received
        if not received:
            return None
        nibble, token_bytes = received[0] >> 4, received[0] & 15
        extended, added = _EXTENDED.get(nibble, (0, nibble))
        if token_bytes > _MAX_TOKEN_BYTES:
            raise MalformedFrame("a token of more than 8 bytes")
        head = 1 + extended
        if len(received) < head:
            return None
        length = added + int.from_bytes(received[1:head], "big")
        if length > self.most_bytes:
            raise MalformedFrame(f"a message of more than {self.most_bytes} bytes")
        options_at = head + 1 + token_bytes
        end = options_at + length
        if len(received) < end:
            return None
        frame = bytes(received[:end])
        del received[:end]
        try:
            options, payload = split_options(frame, options_at)
        except IndexError as error:
            raise MalformedFrame(str(error)) from None
        return CoapMessage(CON, frame[head], 0, frame[head + 1 : options_at], options, payload)


def encode_coap_frame(code: int, token: bytes, options: bytes = b"", payload: bytes = b"") -> bytes:
    """Encode a message whose options are encoded."""
    rest = b"".join((options, b"\xff", payload)) if payload else options
    length = len(rest)
    for nibble, (extended, added) in reversed(_EXTENDED.items()):
        if length >= added:
            head = bytes((nibble << 4 | len(token),)) + (length - added).to_bytes(extended, "big")
            break
    else:
        head = bytes((length << 4 | len(token),))
    return b"".join((head, bytes((code,)), token, rest))
