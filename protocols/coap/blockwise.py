"""Bodies in blocks, both ways, without I/O (RFC 7959): Block1 towards us, Block2 towards the peer.

A body is put together only from blocks that come in order, one for each operation: method, path and Request-Tag
(RFC 9175 section 3). Both kinds of state are few and short-lived for each peer; the oldest goes when another comes.
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
MAX_EXPONENT: Final = 6  # 1,024 bytes; 7 is reserved (RFC 7959 section 2.2)
OPERATION_SECONDS: Final = COAP_EXCHANGE_SECONDS
_ENTRY_BYTES = 400

#: What makes blocks belong together: method, path and request tags.
Operation = tuple[int, tuple[bytes, ...], tuple[bytes, ...]]


class Block(NamedTuple):
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
        """Raises BadRequest for the reserved size."""
        number = int.from_bytes(value, "big")
        if number & 7 > MAX_EXPONENT:
            raise BadRequest
        return cls(number >> 4, bool(number & 8), number & 7)

    def encode(self) -> bytes:
        return uint(self.number << 4 | self.more << 3 | self.exponent)


@dataclass(slots=True)
class _Held:
    body: bytes
    expires: float


class Blockwise:
    """What one peer is sending in blocks, and what it is still fetching."""

    __slots__ = ("_arriving", "_leaving", "bytes_held")

    def __init__(self) -> None:
        self._arriving: OrderedDict[Operation, _Held] = OrderedDict()
        self._leaving: OrderedDict[Operation, _Held] = OrderedDict()
        self.bytes_held = 0

    def collect(self, operation: Operation, block: Block, payload: bytes, now: float) -> bytes | None:
        """One more block of a request; the whole body with the last, None before.

        Raises:
            BadRequest: the payload does not fill its block.
            RequestIncomplete: a block before it is missing; the peer must begin again.
            BodyTooLarge: the body is over the limit.
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
            body = held.body[: block.start]  # the same block once more: our answer was lost, and its duplicate too
        else:
            self._drop(self._arriving, operation)
            raise RequestIncomplete
        body += payload
        self._drop(self._arriving, operation)
        if len(body) > COAP_BODY_BYTES:
            raise BodyTooLarge
        if not block.more:
            return body
        self._hold(self._arriving, operation, body, now)
        return None

    def offer(self, operation: Operation, body: bytes, now: float) -> None:
        """Keep a body whose further blocks the peer will fetch."""
        self._drop(self._leaving, operation)
        self._hold(self._leaving, operation, body, now)

    def offered(self, operation: Operation, now: float) -> bytes | None:
        """The body that is being fetched."""
        self.forget(now)
        held = self._leaving.get(operation)
        return None if held is None else held.body

    def forget(self, now: float) -> None:
        """Let go of what was begun too long ago."""
        for bodies in (self._arriving, self._leaving):
            for operation in [operation for operation, held in bodies.items() if held.expires <= now]:
                self._drop(bodies, operation)

    def _hold(self, bodies: OrderedDict[Operation, _Held], operation: Operation, body: bytes, now: float) -> None:
        if len(bodies) >= MAX_OPERATIONS:
            self._drop(bodies, next(iter(bodies)))
        bodies[operation] = _Held(body, now + OPERATION_SECONDS)
        self.bytes_held += _ENTRY_BYTES + len(body)

    def _drop(self, bodies: OrderedDict[Operation, _Held], operation: Operation) -> None:
        held = bodies.pop(operation, None)
        if held is not None:
            self.bytes_held -= _ENTRY_BYTES + len(held.body)


class Slice(NamedTuple):
    """One block of a body on its way to the peer."""

    block: Block
    payload: bytes
    etag: bytes


def cut(body: bytes, wanted: Block | None) -> Slice | None:
    """The block of `body` that the peer asks for; None when all of it fits and nothing was asked.

    Raises BadRequest when the block is behind the end.
    """
    if wanted is None and len(body) <= 16 << MAX_EXPONENT:
        return None
    return block_of(body, wanted or Block(0, more=False, exponent=MAX_EXPONENT))


def block_of(body: bytes, block: Block) -> Slice:
    """That block of `body`. Raises BadRequest when it is behind the end."""
    if block.start >= max(len(body), 1):
        raise BadRequest
    end = block.start + block.size
    return Slice(block._replace(more=end < len(body)), body[block.start : end], zlib.crc32(body).to_bytes(4, "big"))
