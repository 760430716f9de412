"""An answer in blocks (RFC 7959; over TCP also RFC 8323, 6), put together and checked."""

from typing import Final

from protocols.coap.lwm2m.formats.content import ANSWER_BYTES
from protocols.coap.lwm2m.formats.values import UnreadablePayload
from protocols.coap.messages import CoapMessage, Option, uint

_BERT: Final = 7  # blocks of a multiple of 1,024 bytes


def option_of(message: CoapMessage, number: int) -> bytes | None:
    """The value of an option; None when the message does not have it."""
    for found, value in message.options:
        if found == number:
            return value
    return None


class BodyChanged(UnreadablePayload):
    """The blocks are not of one body: between two of them, its format or its ETag has changed."""


class Blocks:
    """The body of one answer so far."""

    def __init__(self) -> None:
        self.body = b""
        self._etag: bytes | None = None
        self._format: bytes | None = None
        self._exponent = 0

    def take(self, answer: CoapMessage) -> bool:
        """Add an answer. Returns whether there are more blocks.

        Raises:
            Unreadable: it is not the block that was asked for, or the body is too long.
            ChangedMeanwhile: it is of another body than the blocks before.
        """
        encoded = option_of(answer, Option.BLOCK2)
        if encoded is None:
            if self.body:
                raise UnreadablePayload("has no block where the next one was asked for")
            self.body = answer.payload
            return False
        value = int.from_bytes(encoded[:4], "big")
        number, has_more, self._exponent = value >> 4, bool(value & 8), value & 7
        unit = 1024 if self._exponent == _BERT else 16 << self._exponent
        if number * unit != len(self.body):
            raise UnreadablePayload(f"has block {number}, and block {len(self.body) // unit} was asked for")
        etag, format_ = option_of(answer, Option.ETAG), option_of(answer, Option.CONTENT_FORMAT)
        if self.body and etag != self._etag:
            raise BodyChanged("has changed while its blocks were fetched")
        if self.body and format_ not in (None, self._format):
            raise BodyChanged("has blocks of different content-formats")
        size = len(answer.payload)
        is_whole = size == unit or (self._exponent == _BERT and size > 0 and size % unit == 0)
        if has_more and not is_whole:
            raise UnreadablePayload(f"has {size} bytes in block {number}, which should be full")
        self._etag = etag
        if not self.body:
            self._format = format_
        self.body += answer.payload
        if len(self.body) > ANSWER_BYTES:
            raise UnreadablePayload(f"has more than {ANSWER_BYTES} bytes")
        return has_more

    @property
    def next(self) -> tuple[int, bytes]:
        """The option that asks for the next block."""
        unit = 1024 if self._exponent == _BERT else 16 << self._exponent
        return Option.BLOCK2, uint((len(self.body) // unit) << 4 | self._exponent)
