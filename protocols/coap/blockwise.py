"""Block-wise transfers without I/O (RFC 7959): Block1 for bodies of requests, Block2 for bodies of responses.

Blocks belong to one body when their operation is the same: method, path and Request-Tag (RFC 9175, 3). The blocks of a
request are accepted only in order. A peer may have MAX_OPERATIONS transfers in each direction, each for
OPERATION_SECONDS; one more replaces the oldest.
"""

import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from broker.errors import BadRequest, BodyTooLarge
from config.limits import COAP_BODY_BYTES, COAP_EXCHANGE_SECONDS
from protocols.coap.errors import RequestIncomplete
from protocols.coap.messages import uint

MAX_OPERATIONS: Final = 4
MAX_EXPONENT: Final = 6  # 1,024 bytes; 7 is reserved (RFC 7959, 2.2)
OPERATION_SECONDS: Final = COAP_EXCHANGE_SECONDS
_ENTRY_BYTES = 400  # of a transfer, beside its body

#: Method, path and request tags.
BlockwiseOperation = tuple[int, tuple[bytes, ...], tuple[bytes, ...]]


class BlockOption(NamedTuple):
    """The value of a Block1 or Block2 option."""

    number: int
    more: bool
    exponent: int

    @property
    def size(self) -> int:
        return 16 << self.exponent

    @property
    def start(self) -> int:
        return self.number * self.size

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode an option value. Raises BadRequest for the reserved size."""
        number = int.from_bytes(value, "big")
        if number & 7 > MAX_EXPONENT:
            raise BadRequest
        return cls(number >> 4, bool(number & 8), number & 7)

    def encode(self) -> bytes:
        """The option value."""
        return uint(self.number << 4 | self.more << 3 | self.exponent)


@dataclass(slots=True)
class _Held:
    body: bytes
    expires: float


class Blockwise:
    """The block-wise transfers of one peer."""

    __slots__ = ("_arriving", "_leaving", "bytes_held")

    def __init__(self) -> None:
        self._arriving: OrderedDict[BlockwiseOperation, _Held] = OrderedDict()
        self._leaving: OrderedDict[BlockwiseOperation, _Held] = OrderedDict()
        self.bytes_held = 0

    def collect(
        self,
        operation: BlockwiseOperation,
        block: BlockOption,
        payload: bytes,
        now: float,
        *,
        most: int = COAP_BODY_BYTES,
    ) -> bytes | None:
        """Take a block of a request. Returns the whole body with the last block, None before.

        Raises:
            BadRequest: the payload does not fill its block.
            RequestIncomplete: a block before this one is missing. The received part is dropped.
            BodyTooLarge: the body has more than `most` bytes.
        """
        self.forget(now)
        if (block.more and len(payload) != block.size) or len(payload) > block.size:
            raise BadRequest
        held = self._arriving.get(operation)
        if block.number == 0:
            body = b""
        elif held is None:
            raise RequestIncomplete
        elif block.start == len(held.body):
            body = held.body
        elif block.start + len(payload) == len(held.body) and held.body.endswith(payload):
            body = held.body[: block.start]  # the last block again: its response was lost
        else:
            self._drop(self._arriving, operation)
            raise RequestIncomplete
        body += payload
        self._drop(self._arriving, operation)
        if len(body) > most:
            raise BodyTooLarge
        if not block.more:
            return body
        self._hold(self._arriving, operation, body, now)
        return None

    def offer(self, operation: BlockwiseOperation, body: bytes, now: float) -> None:
        """Keep the body of a response whose further blocks the peer will fetch."""
        self._drop(self._leaving, operation)
        self._hold(self._leaving, operation, body, now)

    def offered(self, operation: BlockwiseOperation, now: float) -> bytes | None:
        """The body of a response that is being fetched; None when there is none."""
        self.forget(now)
        held = self._leaving.get(operation)
        return None if held is None else held.body

    def forget(self, now: float) -> None:
        """Forget the transfers that began more than OPERATION_SECONDS ago."""
        for bodies in (self._arriving, self._leaving):
            for operation in [operation for operation, held in bodies.items() if held.expires <= now]:
                self._drop(bodies, operation)

    def _hold(
        self, bodies: OrderedDict[BlockwiseOperation, _Held], operation: BlockwiseOperation, body: bytes, now: float
    ) -> None:
        if len(bodies) >= MAX_OPERATIONS:
            self._drop(bodies, next(iter(bodies)))
        bodies[operation] = _Held(body, now + OPERATION_SECONDS)
        self.bytes_held += _ENTRY_BYTES + len(body)

    def _drop(self, bodies: OrderedDict[BlockwiseOperation, _Held], operation: BlockwiseOperation) -> None:
        held = bodies.pop(operation, None)
        if held is not None:
            self.bytes_held -= _ENTRY_BYTES + len(held.body)


class Slice(NamedTuple):
    """One block of the body of a response, and the ETag of the body."""

    block: BlockOption
    payload: bytes
    etag: bytes


def cut(body: bytes, wanted: BlockOption | None) -> Slice | None:
    """The block of `body` that the peer wants. None when it wants none in particular and the body fits into one.

    Raises:
        BadRequest: the block is beyond the end.
    """
    if wanted is None and len(body) <= 16 << MAX_EXPONENT:
        return None
    return block_of(body, wanted or BlockOption(0, more=False, exponent=MAX_EXPONENT))


def block_of(body: bytes, block: BlockOption) -> Slice:
    """A block of `body`. Raises BadRequest when it is beyond the end."""
    if block.start >= max(len(body), 1):
        raise BadRequest
    end = block.start + block.size
    return Slice(block._replace(more=end < len(body)), body[block.start : end], etag_of(body))


def etag_of(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "big")
