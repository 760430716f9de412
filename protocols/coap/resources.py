"""The resources of reference 17: what requests do in the broker.

The device token is the last segment of a path. A request whose token is not in memory waits in a bounded queue for a
worker that looks the token up in the store. Requests with the same token are served in their order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import trio

from broker.accounts.tokens import Caller
from broker.device_types.dropped import DroppedField
from broker.devices.registry import Device
from broker.errors import (
    BadRequest,
    BodyTooLarge,
    DomainError,
    NotFound,
    PermissionDenied,
    SourceDeviceDisabled,
    StorageUnavailable,
    Unauthorized,
)
from broker.limits.meters import Channel
from broker.messages.ingest import Commit
from broker.nesting import check_nesting
from broker.trace.origin import current_origin, enter
from broker.wanted.values import NOTHING
from config.limits import COAP_BODY_BYTES
from protocols.coap.blockwise import etag_of
from protocols.coap.containment import Failure, contain, contain_async
from protocols.coap.errors import InternalError, MethodNotAllowed, NotAcceptable, UnsupportedFormat
from protocols.coap.images import PATH as IMAGES
from protocols.coap.images import ImageBlocks
from protocols.coap.incoming import Incoming
from protocols.coap.messages import CBOR, JSON, LINK_FORMAT, Code, Option, uint
from protocols.coap.observers import WANTED, Observers
from protocols.coap.requests import (
    BARE,
    CoapRequest,
    CoapResponse,
    cbor_to_json,
    check_formats,
    in_blocks,
    json_to,
    refusal_response,
)
from protocols.coap.session import CoapSession, SessionRank
from protocols.coap.usual import MESSAGES, UsualPost
from protocols.refusals import PublishForbidden, SubscribeForbidden, note_refusal, refusal_for
from protocols.rooms import CoapRooms
from storage.keys import Ticket
from storage.sql import StoreError

MAX_UNKNOWN_TOKENS: Final = 256
MAX_WAITING_PER_TOKEN: Final = 64

_DISCOVERY: Final = b'</v1.1/messages>;ct="50 60",</v1.1/actions>;ct="50 60";obs,</v1.1/wanted>;ct="50 60";obs'
_WELL_KNOWN: Final = (b".well-known", b"core")
#: Most bytes of warnings in an answer: constrained devices have little room.
_WARNINGS_BYTES: Final = 512
#: The method of a path. A device token follows these segments.
_METHODS: Final[dict[tuple[bytes, ...], int]] = {
    MESSAGES: int(Code.POST),
    (b"v1.1", b"actions"): int(Code.GET),
    WANTED: int(Code.GET),
}


class _Body(msgspec.Struct):
    """The body of a message. A null is an absent member (reference 1.3)."""

    data: msgspec.Raw = msgspec.Raw(b"null")
    ts: object = None
    type: object = None
    sdid: object = None


def _claimed(request: CoapRequest, payload: bytes) -> str:
    """The device that a message with a wrong token names; empty when it names none."""
    try:
        check_nesting(payload)
        body = _decode_body(cbor_to_json(payload) if request.format == CBOR else payload)
    except (DomainError, ValueError):
        return ""
    return body.sdid if isinstance(body.sdid, str) else ""


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_text = msgspec.json.Decoder(str).decode


def _warnings(lost: list[DroppedField]) -> bytes:
    """The warnings as JSON: as many as fit into a small answer, and how many more there are."""
    room, found = _WARNINGS_BYTES, list[DroppedField]()
    for one in lost:
        room -= len(msgspec.json.encode(one))
        if room < 0 and found:
            found.append(DroppedField("data", f"{len(lost) - len(found)} more"))
            break
        found.append(one)
    return msgspec.json.encode(found)


def _unquoted(data: bytes) -> bytes:
    """The content of `data` that is given as a string (reference 8.4). Raises BadRequest for a lone surrogate."""
    if not data.startswith(b'"'):
        return data
    try:
        return _decode_text(data).encode()
    except ValueError as error:  # not JSON, or a lone surrogate
        raise BadRequest from error


def _is_bare(device: Device, payload: bytes) -> bool:
    """Whether a payload without a content format is `data` itself: of a device with a transform, and no JSON object."""
    return device.manifest.takes_any_payload and not payload.lstrip().startswith(b"{")


#: Answers a request.
_Reply = Callable[[CoapSession, Incoming, CoapResponse], None]
_Created = Callable[[CoapSession, Incoming, bytes], None]


@dataclass(eq=False)
class Resources:
    """Serves requests. Call `submitted` after all requests of one wake-up.

    The resources of one endpoint.

    Args:
        rooms: the broker.
        observers: the endpoint's observations.
        reply: answers a request, unless its session is closed.
        created: answers a request that asked for no blocks: its message is stored, and this is the body in JSON.
        authenticated: called when a request with a valid device token was not refused.
        contained: `Endpoint.contained`.
    """

    _rooms: CoapRooms
    _observers: Observers
    _reply: _Reply
    _created: _Created
    _authenticated: Callable[[CoapSession], None]
    _contained: Callable[..., object]

    def __post_init__(self) -> None:
        self._ingest = self._rooms.messages.ingest
        self._is_current = self._rooms.accounts.tokens.is_current
        self.images = ImageBlocks(self._rooms, self._reply, self._authenticated, self._contained)
        self._stored: list[tuple[CoapSession, Incoming, CoapRequest, Ticket]] = []
        #: Notices for the senders of messages of which nothing remained, or whose time is in seconds, until they are
        #: answered (reference 9.7).
        self._lost: dict[Ticket, list[DroppedField]] = {}
        # The requests that wait, by the token that is being looked up. The channel has each token once.
        self._unknown: dict[str, list[tuple[CoapSession, Incoming, CoapRequest]]] = {}
        self._lookups, self._lookups_due = trio.open_memory_channel[str](MAX_UNKNOWN_TOKENS)

    def handle(self, session: CoapSession, incoming: Incoming, request: CoapRequest, now: float) -> None:
        """Serve a request: at once, or after its token was looked up. A stored message is answered after its commit.

        Raises:
            DomainError: the request is refused.
        """
        method = _METHODS.get(request.path[:-1])
        if method is None and request.path[:-1] == IMAGES:
            enter(session.origin)
            self.images.handle(session, incoming, request, now)
            return
        if method is None:
            self._reply(session, incoming, self._discover(session, request, now))
            return
        if request.method != method:
            raise MethodNotAllowed
        check_formats(request)
        enter(session.origin)
        token = request.path[-1].decode("ascii", "replace")
        known = self._rooms.devices.registry.by_token_nowait(token)
        if known is None or token in self._unknown:
            self._look_up(token, session, incoming, request)
        else:
            self._serve(session, incoming, request, *known, now)

    def post(self, session: CoapSession, incoming: Incoming, usual: UsualPost, now: float) -> None:
        """Handle a POST whose common parts are known; see `handle`."""
        if usual.token in self._unknown or not self._is_current(usual.caller):
            session.usual = None
            self.handle(session, incoming, usual.request, now)
            return
        if usual.origin is None:
            enter(session.origin)
            usual.caller.act()
            usual.origin = current_origin()
        else:
            enter(usual.origin)
        try:
            self._rooms.registration.admission.check(usual.device, session.certificate)
        except PermissionDenied:
            raise PublishForbidden from None
        if usual.meter is not None:
            usual.meter.count()
        self._store(session, incoming, usual.request, usual.device, incoming.message.payload)

    def _discover(self, session: CoapSession, request: CoapRequest, now: float) -> CoapResponse:
        if request.path != _WELL_KNOWN:
            raise NotFound
        if request.method != Code.GET:
            raise MethodNotAllowed
        if request.accept not in (None, LINK_FORMAT):
            raise NotAcceptable
        return in_blocks(CoapResponse(Code.CONTENT, _DISCOVERY, LINK_FORMAT), request, session.blocks, now)

    # --- Look up tokens ----------------------------------------------------------------------------------------------

    def _look_up(self, token: str, session: CoapSession, incoming: Incoming, request: CoapRequest) -> None:
        waiting = self._unknown.get(token)
        if waiting is None:
            try:
                self._lookups.send_nowait(token)
            except trio.WouldBlock:
                raise StorageUnavailable("too many unknown tokens at once") from None
            waiting = self._unknown[token] = []
        if len(waiting) >= MAX_WAITING_PER_TOKEN:
            raise StorageUnavailable("too many requests with one unknown token")
        waiting.append((session, incoming, request))

    async def look_up_forever(self, now: Callable[[], float], done: Callable[[], None]) -> None:
        """Serve requests with unknown tokens until cancelled. Several tasks may do so.

        Args:
            now: the clock.
            done: called when the requests with one token have been served.
        """
        async for token in self._lookups_due:
            first, *_ = self._unknown[token][0]
            enter(first.origin)
            outcome = await contain_async("coap_request_failed", first.key, self._outcome, token)
            for session, incoming, request in self._unknown.pop(token):
                self._contained(session.key, self._serve_looked_up, session, incoming, request, outcome, now())
            done()

    async def _outcome(self, token: str) -> tuple[Device, Caller] | DomainError:
        try:
            return await self._rooms.devices.registry.by_token(token)
        except DomainError as error:
            return error
        except StoreError as error:
            return StorageUnavailable.of(error)

    def _serve_looked_up(
        self,
        session: CoapSession,
        incoming: Incoming,
        request: CoapRequest,
        outcome: tuple[Device, Caller] | DomainError | Failure,
        now: float,
    ) -> None:
        enter(session.origin)
        if isinstance(outcome, tuple):
            serve = partial(self._serve_or_refuse, session, incoming, request, *outcome, now)
            failure = contain("coap_request_failed", None, session.key, serve)
            if failure is None or incoming.is_answered:
                return
            outcome = failure
        if isinstance(outcome, Unauthorized):
            self._rooms.messages.claims.note(_claimed(request, incoming.message.payload), "CoAP", outcome)
        if isinstance(outcome, Failure):
            self._refuse(session, incoming, request, InternalError(), outcome.error_id)
        else:
            self._refuse(session, incoming, request, outcome)

    def _serve_or_refuse(
        self, session: CoapSession, incoming: Incoming, request: CoapRequest, device: Device, caller: Caller, now: float
    ) -> None:
        try:
            self._serve(session, incoming, request, device, caller, now)
        except DomainError as error:
            if not incoming.is_answered:
                self._refuse(session, incoming, request, error)

    def _refuse(
        self,
        session: CoapSession,
        incoming: Incoming,
        request: CoapRequest,
        error: DomainError,
        error_id: str | None = None,
    ) -> None:
        if isinstance(error, PermissionDenied):  # the token is valid, but not a device token
            error = PublishForbidden() if request.method == Code.POST else SubscribeForbidden()
        if error_id is None:
            self.note_refusal(session, error)
        self._reply(session, incoming, refusal_response(error, request, error_id=error_id))

    def note_refusal(self, session: CoapSession, error: DomainError) -> None:
        enter(session.origin)
        note_refusal(self._rooms.core.refusals, "coap", error)

    # --- Serve -------------------------------------------------------------------------------------------------------

    def _serve(
        self, session: CoapSession, incoming: Incoming, request: CoapRequest, device: Device, caller: Caller, now: float
    ) -> None:
        is_post = request.method == Code.POST
        caller.act()
        try:
            self._rooms.registration.admission.check(device, session.certificate)
        except PermissionDenied:
            raise (PublishForbidden if is_post else SubscribeForbidden) from None
        if is_post:
            self._post(session, incoming, request, device, caller, now)
        elif session.is_closed:
            return  # it ended while its token was looked up, and so an observation would never end
        else:
            response = self._actions(session, incoming, request, device, caller, now)
            if request.observe == 0 and incoming.token in session.observers:
                answer = partial(self._observed, session, incoming, request, response)
                self._observers.when_entered(session, incoming.token, answer)
            else:
                self._answer_actions(session, incoming, response)
        if device.enabled:  # the request was not refused
            if session.rank is SessionRank.UNAUTHENTICATED:
                self._authenticated(session)
            session.proved(device.id)

    def _post(
        self, session: CoapSession, incoming: Incoming, request: CoapRequest, device: Device, caller: Caller, now: float
    ) -> None:
        if request.block2 is not None and request.block2.number > 0:
            self._reply(session, incoming, self._rest(session, request, now))
            return
        if request.block1 is None or request.block1.number == 0:  # a message in blocks is one message
            self._count(caller)
        payload = incoming.message.payload
        if request.block1 is not None:
            if request.size1 > COAP_BODY_BYTES:
                self._ingest.refused.note(device, BodyTooLarge())
                raise BodyTooLarge
            body = session.blocks.collect(request.operation, request.block1, payload, now)
            if body is None:
                block1 = (Option.BLOCK1, request.block1.encode())
                self._reply(session, incoming, CoapResponse(Code.CONTINUE, options=(block1,)))
                return
            payload = body
        self._store(session, incoming, request, device, payload)

    def _store(
        self, session: CoapSession, incoming: Incoming, request: CoapRequest, device: Device, payload: bytes
    ) -> None:
        """Submit a message, and answer it when it is durable."""
        try:
            if request.format in BARE or (request.format is None and _is_bare(device, payload)):
                data, ts = self._bare(device, payload), None
            else:
                data, ts = self._read(device, cbor_to_json(payload) if request.format == CBOR else payload)
        except DomainError as error:
            self._ingest.refused.note(device, error)
            raise
        dropped: list[DroppedField] = []
        ticket = self._ingest.submit(device, data, ts, dropped)
        if ticket == self._ingest.failed_ticket:
            if (lost := self._ingest.nothing_remained(device)) is not None:
                self._lost[ticket] = [DroppedField("data", str(lost))]
        elif dropped:
            self._lost[ticket] = dropped
        self._stored.append((session, incoming, request, ticket))

    def _count(self, caller: Caller) -> None:
        """Raises RateLimitExceeded."""
        meter = self._rooms.limits.meters.of(Channel.COAP, caller)
        if meter is not None:
            meter.count()

    def _read(self, device: Device, payload: bytes) -> tuple[bytes, object]:
        """`data` and `ts` of a message, not checked yet. Raises BodyTooLarge, BadRequest, PublishForbidden."""
        if len(payload) > COAP_BODY_BYTES:
            raise BodyTooLarge
        try:
            check_nesting(payload)
            body = _decode_body(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest from error
        if body.type is not None and not (isinstance(body.type, str) and body.type.lower() == "message"):
            raise BadRequest
        if body.sdid is not None and body.sdid != device.id:
            raise PublishForbidden
        return _unquoted(bytes(body.data)), body.ts

    def _bare(self, device: Device, payload: bytes) -> bytes:
        if not device.manifest.takes_any_payload:
            raise UnsupportedFormat
        return payload

    def _rest(self, session: CoapSession, request: CoapRequest, now: float) -> CoapResponse:
        """A further block of the response to a POST, which is not performed again."""
        body = session.blocks.offered(request.operation, now)
        if body is None:
            raise BadRequest
        return in_blocks(CoapResponse(Code.CREATED, body, request.answer_format), request, session.blocks, now)

    def _actions(
        self, session: CoapSession, incoming: Incoming, request: CoapRequest, device: Device, caller: Caller, now: float
    ) -> CoapResponse:
        if request.block2 is not None and request.block2.number > 0:
            return self._observers.rest(session, request.path, request.block2)
        if request.observe != 1:  # ending an observation is always allowed
            self._count(caller)
        options: tuple[tuple[int, bytes], ...] = ()
        if request.observe == 0:
            if not device.enabled:
                raise SourceDeviceDisabled
            number = self._observers.register(session, request, incoming.token, device, caller)
            options = ((Option.OBSERVE, uint(number)),)
        elif request.observe == 1:
            self._observers.end_path(session, request.path)
        if request.path[:-1] == WANTED:
            return self._wanted(session, request, device, options, now)
        body = json_to(request.answer_format, b"{}")
        return in_blocks(CoapResponse(Code.CONTENT, body, request.answer_format, options), request, session.blocks, now)

    def _wanted(
        self,
        session: CoapSession,
        request: CoapRequest,
        device: Device,
        options: tuple[tuple[int, bytes], ...],
        now: float,
    ) -> CoapResponse:
        """The values that are wanted of the device; without them, if the peer names their ETag (RFC 7252, 5.10.6.2)."""
        wanted = self._rooms.wanted
        document = json_to(request.answer_format, wanted.document(device.key) or NOTHING)
        wanted.given(device.key)
        tag = etag_of(document)
        if tag in request.etags:
            return CoapResponse(Code.VALID, options=((Option.ETAG, tag), *options))
        response = CoapResponse(Code.CONTENT, document, request.answer_format, options)
        in_parts = in_blocks(response, request, session.blocks, now)
        return in_parts if in_parts is not response else response._replace(options=((Option.ETAG, tag), *options))

    def _observed(
        self,
        session: CoapSession,
        incoming: Incoming,
        request: CoapRequest,
        response: CoapResponse,
        error: DomainError | None,
    ) -> None:
        """An observation has its place among the connections of several nodes, or has ended before."""
        if error is None:
            self._answer_actions(session, incoming, response)
        elif not session.is_closed:
            self._refuse(session, incoming, request, error)

    def _answer_actions(self, session: CoapSession, incoming: Incoming, response: CoapResponse) -> None:
        self._reply(session, incoming, response)
        self._observers.go_on(session)

    # --- Answer after the commit -------------------------------------------------------------------------------------

    def submitted(self) -> None:
        """All requests of one wake-up are submitted: answer their messages after the commit."""
        if self._stored:
            stored, self._stored = self._stored, []
            self._ingest.after_commit(partial(self._committed, stored, self._ingest.group))

    def _committed(
        self,
        stored: list[tuple[CoapSession, Incoming, CoapRequest, Ticket]],
        group: Commit,
        error: StoreError | None,
    ) -> None:
        mid, contained, created = self._ingest.mid, self._contained, self._created
        for session, incoming, request, ticket in stored:
            lost = self._lost.pop(ticket, None) if self._lost else None
            if error is None:
                position = group.position(ticket)
                format_ = request.answer_format
                if lost is None and format_ == JSON and request.block1 is None and request.block2 is None:
                    body = b'{"data":{"mid":"%b"}}' % mid(position).encode()
                    contained(session.key, created, session, incoming, body)
                    continue
                contained(session.key, self._reply_created, session, incoming, request, mid(position), lost)
            else:
                self._contained(
                    session.key, self._reply, session, incoming, refusal_response(refusal_for(error), request)
                )

    def _reply_created(
        self, session: CoapSession, incoming: Incoming, request: CoapRequest, mid: str, lost: list[DroppedField] | None
    ) -> None:
        format_ = request.answer_format
        body = b'{"data":{"mid":"%b"}}' % mid.encode()
        if lost is not None:
            warnings = _warnings(lost)
            body = b"%b,%b}" % (body[:-1], b'"warnings":' + warnings)
        response = CoapResponse(Code.CREATED, json_to(format_, body), format_)
        if request.block1 is not None:
            response = response._replace(options=((Option.BLOCK1, request.block1.encode()),))
        if request.block2 is not None:
            response = in_blocks(response, request, session.blocks, session.last_heard)
        self._reply(session, incoming, response)
