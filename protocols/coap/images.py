"""Firmware images by CoAP: GET of the address of a device task, in blocks (RFC 7959; reference 18.5).

Every request names its block, so the server keeps nothing of a transfer: a device goes on wherever it stopped, and
knows by the ETag whether it is still the same image. The address is the proof: its id is as secret as a token.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import msgspec
import trio

from broker.device_management.downloads import Download
from broker.errors import BadRequest, DomainError, NotFound, StorageUnavailable
from broker.limits.overhead import TokenBucket
from broker.trace.origin import enter
from protocols.coap.blockwise import MAX_EXPONENT, BlockOption
from protocols.coap.containment import Failure, contain_async
from protocols.coap.errors import InternalError, MethodNotAllowed, NotAcceptable
from protocols.coap.incoming import Incoming
from protocols.coap.messages import OCTETS, Code, Option, uint
from protocols.coap.requests import CoapRequest, CoapResponse, refusal_response
from protocols.coap.session import CoapSession, SessionRank
from protocols.refusals import note_refusal
from protocols.rooms import CoapRooms
from storage.sql import StoreError
from storage.tasks import DeviceTaskRecord

PATH: Final = (b"v1.1", b"updates", b"urls")
#: Bytes to read at once, and to keep for the next blocks.
CHUNK_BYTES: Final = 64 * 1024
_CHUNKS: Final = 64  # that are kept in memory
_ADDRESSES: Final = 4_096
_WAITING: Final = 256  # requests for another chunk
#: After that, the address is looked up again: it may be gone, and so may the image.
_FRESH_SECONDS: Final = 5.0
#: Blocks to one address. Further ones are charged to the session, like all packets that are no messages.
_BLOCKS_AT_ONCE, _BLOCKS_PER_SECOND = 1_024, 1_024.0
#: To all together: each takes the event loop some 0.1 ms, and messages go first.
_TOGETHER_PER_SECOND: Final = 4_096.0
#: Bytes between two reports of a download's progress; the end is reported, too.
_TOLD_BYTES: Final = 16 * 1024
_ETAG_BYTES: Final = 8

K = TypeVar("K")
V = TypeVar("V")


class _Address(msgspec.Struct, frozen=True):
    """The address of an image that was looked up, and what may be fetched from it."""

    download: Download
    until: float
    blocks: TokenBucket


class _Part(NamedTuple):
    """A part of an image in memory, and the address that it was asked from."""

    address: _Address
    chunk: bytes


_Wanted = tuple[CoapSession, Incoming, CoapRequest, str, BlockOption]


class ImageBlocks:
    """Answers the requests of one endpoint."""

    def __init__(
        self,
        rooms: CoapRooms,
        reply: Callable[[CoapSession, Incoming, CoapResponse], None],
        authenticated: Callable[[CoapSession], None],
        contained: Callable[..., object],
    ) -> None:
        """The arguments are those of `Resources`."""
        self._downloads = rooms.device_management.downloads
        self._is_at = rooms.routing.connections.is_at
        self._refusals = rooms.core.refusals
        self._reply = reply
        self._authenticated = authenticated
        self._contained = contained
        self._together = TokenBucket(at_once=_TOGETHER_PER_SECOND, per_second=_TOGETHER_PER_SECOND)
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        #: By image and position: many devices fetch the same one.
        self._chunks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._wanted, self._due = trio.open_memory_channel[_Wanted](_WAITING)

    def handle(self, session: CoapSession, incoming: Incoming, request: CoapRequest, now: float) -> None:
        """Answer at once from memory, or after it was read. Raises DomainError."""
        if request.method != Code.GET:
            raise MethodNotAllowed
        if request.accept not in (None, OCTETS):
            raise NotAcceptable
        id_ = request.path[-1].decode("ascii", "replace")
        block = request.block2 or BlockOption(0, more=False, exponent=MAX_EXPONENT)
        if (part := self._in_memory(id_, block, now)) is not None:
            self._answer(session, incoming, part, block, now)
            return
        try:
            self._wanted.send_nowait((session, incoming, request, id_, block))
        except trio.WouldBlock:
            raise StorageUnavailable("too many images are read at once") from None

    async def read_forever(self, now: Callable[[], float]) -> None:
        """Read what is not in memory, until cancelled. Several tasks may do so."""
        async for session, incoming, request, id_, block in self._due:
            enter(session.origin)
            outcome = await contain_async("coap_request_failed", session.key, self._found, id_, block, now)
            self._contained(session.key, self._serve, session, incoming, request, block, outcome, now())

    def _in_memory(self, id_: str, block: BlockOption, now: float) -> _Part | None:
        address = self._addresses.get(id_)
        if address is None or address.until <= now:
            return None
        chunk = self._chunks.get((address.download.image.id, _start(block)))
        return None if chunk is None or block.start >= address.download.image.size else _Part(address, chunk)

    async def _found(self, id_: str, block: BlockOption, now: Callable[[], float]) -> _Part | DomainError:
        if (part := self._in_memory(id_, block, now())) is not None:  # a request before this one has read it
            return part
        try:
            return await self._read(id_, block, now)
        except DomainError as error:
            self._addresses.pop(id_, None)
            return error
        except StoreError as error:
            return StorageUnavailable.of(error)

    async def _read(self, id_: str, block: BlockOption, now: Callable[[], float]) -> _Part:
        address = self._addresses.get(id_)
        if address is None or address.until <= now():
            blocks = (
                TokenBucket(at_once=_BLOCKS_AT_ONCE, per_second=_BLOCKS_PER_SECOND)
                if address is None
                else address.blocks
            )
            address = _Address(await self._downloads.find(id_), now() + _FRESH_SECONDS, blocks)
            _keep(self._addresses, id_, address, _ADDRESSES)
        image = address.download.image
        if block.start >= image.size:
            raise BadRequest
        key = image.id, _start(block)
        if (chunk := self._chunks.get(key)) is None:
            chunk = await address.download.file.read(key[1], CHUNK_BYTES)
            if len(chunk) < min(CHUNK_BYTES, image.size - key[1]):  # the image has just been deleted
                raise NotFound
            _keep(self._chunks, key, chunk, _CHUNKS)
        return _Part(address, chunk)

    def _serve(
        self,
        session: CoapSession,
        incoming: Incoming,
        request: CoapRequest,
        block: BlockOption,
        outcome: _Part | DomainError | Failure,
        now: float,
    ) -> None:
        if isinstance(outcome, Failure):
            self._reply(session, incoming, refusal_response(InternalError(), request, error_id=outcome.error_id))
        elif isinstance(outcome, DomainError):
            note_refusal(self._refusals, "coap", outcome)
            self._reply(session, incoming, refusal_response(outcome, request))
        else:
            self._answer(session, incoming, outcome, block, now)

    def _prove(self, session: CoapSession, entry: DeviceTaskRecord) -> None:
        """LWM2M clients know no Echo, and give up after its 4.01."""
        if not session.is_address_verified:
            address = session.origin.address
            session.is_address_verified = self._is_at(entry.device, address) or self._downloads.has_proved(
                entry, address
            )

    def _answer(self, session: CoapSession, incoming: Incoming, part: _Part, block: BlockOption, now: float) -> None:
        if session.is_closed:
            return
        if session.rank is SessionRank.UNAUTHENTICATED:
            self._authenticated(session)
        self._prove(session, part.address.download.entry)
        if not (part.address.blocks.take(now) and self._together.take(now)):
            session.spend(now)
        if session.is_address_verified:
            self._downloads.proved(part.address.download.entry, session.origin.address)
        download, at = part.address.download, block.start - _start(block)
        payload = part.chunk[at : at + block.size]
        end, size = block.start + len(payload), download.image.size
        options = [
            (int(Option.ETAG), bytes.fromhex(download.image.sha256)[:_ETAG_BYTES]),
            (int(Option.BLOCK2), block._replace(more=end < size).encode()),
        ]
        if block.number == 0:
            options.append((int(Option.SIZE2), uint(size)))
        if end == size or end % _TOLD_BYTES == 0:
            self._downloads.sent(download.entry, end, end % _TOLD_BYTES or _TOLD_BYTES)
        response = CoapResponse(Code.CONTENT, payload, OCTETS, tuple(options), is_repeatable=True)
        self._reply(session, incoming, response)


def _start(block: BlockOption) -> int:
    return block.start // CHUNK_BYTES * CHUNK_BYTES


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Forget the oldest one beyond the bound."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
