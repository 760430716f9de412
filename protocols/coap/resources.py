"""The resources of reference 17: what a path and a method do in the broker.

The device token is the last segment of a path. A token that is known is looked up at once; for one that is not, the
request waits in a bounded queue for a worker that asks the store. Requests with one token are answered in their order.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import structlog
import trio

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import (
    BadRequest,
    BodyTooLarge,
    DomainError,
    NotFound,
    PermissionDenied,
    SourceDeviceDisabled,
    StorageUnavailable,
)
from broker.ids import new_id
from broker.limits.meters import Channel
from broker.nesting import check_nesting
from broker.services import Services
from config.limits import COAP_BODY_BYTES
from protocols.coap.errors import InternalError, MethodNotAllowed, NotAcceptable, UnsupportedFormat
from protocols.coap.incoming import Incoming
from protocols.coap.messages import CBOR, LINK_FORMAT, Code, Option, uint
from protocols.coap.observers import Observers
from protocols.coap.requests import BARE, Answer, Request, cbor_to_json, check_formats, in_blocks, json_to, refusal
from protocols.coap.session import Rank, Session
from protocols.refusals import PublishForbidden, SubscribeForbidden
from storage.sql import StoreError

MAX_UNKNOWN_TOKENS: Final = 256
MAX_WAITING_PER_TOKEN: Final = 64

_DISCOVERY: Final = b'</v1.1/messages>;ct="50 60",</v1.1/actions>;ct="50 60";obs'
_WELL_KNOWN: Final = (b".well-known", b"core")
_MESSAGES: Final = (b"v1.1", b"messages")
_ACTIONS: Final = (b"v1.1", b"actions")

_log = structlog.get_logger(__name__)


class _Body(msgspec.Struct):
    """The body of a message. What is null is not there (reference 1.3)."""

    data: msgspec.Raw = msgspec.Raw(b"null")
    ts: object = None
    type: object = None
    sdid: object = None


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_text = msgspec.json.Decoder(str).decode


def _unquoted(data: bytes) -> bytes:
    """`data` given as a text is what stands in it (reference 8.4). Raises BadRequest for half a character."""
    if not data.startswith(b'"'):
        return data
    try:
        return _decode_text(data).encode()
    except ValueError as error:  # no JSON after all, or half a surrogate pair
        raise BadRequest from error


#: Answers a request, once.
Reply = Callable[[Session, Incoming, Answer], None]


class Resources:
    """From requests to the broker and back. Call `submitted` after everything that was read in one go."""

    def __init__(
        self, services: Services, observers: Observers, reply: Reply, member: Callable[[Session], None]
    ) -> None:
        """`member` is told when a session has shown a valid device token and nothing was refused."""
        self._services = services
        self._ingest = services.messages.ingest
        self._observers = observers
        self._reply = reply
        self._member = member
        self._stored: list[tuple[Session, Incoming, Request, int]] = []
        # By the token that is being looked up; the channel has each of them once.
        self._unknown: dict[str, list[tuple[Session, Incoming, Request]]] = {}
        self._lookups, self._lookups_due = trio.open_memory_channel[str](MAX_UNKNOWN_TOKENS)

    def handle(self, session: Session, incoming: Incoming, request: Request, now: float) -> None:
        """Answer now, after the commit, or when the token is known. Raises DomainError."""
        *collection, last = request.path or (b"",)
        match tuple(collection):
            case (b"v1.1", b"messages"):
                if request.method != Code.POST:
                    raise MethodNotAllowed
            case (b"v1.1", b"actions"):
                if request.method != Code.GET:
                    raise MethodNotAllowed
            case _:
                self._reply(session, incoming, self._discover(session, request, now))
                return
        check_formats(request)
        token = last.decode("ascii", "replace")
        known = self._services.devices.registry.by_token_nowait(token)
        if known is None or token in self._unknown:
            self._look_up(token, session, incoming, request)
        else:
            self._serve(session, incoming, request, *known, now)

    def _discover(self, session: Session, request: Request, now: float) -> Answer:
        if request.path != _WELL_KNOWN:
            raise NotFound
        if request.method != Code.GET:
            raise MethodNotAllowed
        if request.accept not in (None, LINK_FORMAT):
            raise NotAcceptable
        return in_blocks(Answer(Code.CONTENT, _DISCOVERY, LINK_FORMAT), request, session.blocks, now)

    # --- Who it is ---------------------------------------------------------------------------------------------------

    def _look_up(self, token: str, session: Session, incoming: Incoming, request: Request) -> None:
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
        """A worker; several may run. `done` is called when a token's requests have been served."""
        async for token in self._lookups_due:
            outcome: tuple[Device, Caller] | DomainError
            error_id: str | None = None
            try:
                outcome = await self._services.devices.registry.by_token(token)
            except DomainError as error:
                outcome = error
            except StoreError as error:
                outcome = StorageUnavailable(str(error))
            except Exception:  # noqa: BLE001 - a bug of ours must not end the listener
                outcome, error_id = InternalError(), _logged()
            for session, incoming, request in self._unknown.pop(token):
                if isinstance(outcome, DomainError):
                    self._refuse(session, incoming, request, outcome, error_id)
                else:
                    self._contained(session, incoming, request, *outcome, now())
            done()

    def _contained(
        self, session: Session, incoming: Incoming, request: Request, device: Device, caller: Caller, now: float
    ) -> None:
        try:
            self._serve(session, incoming, request, device, caller, now)
        except DomainError as error:
            if not incoming.is_answered:
                self._refuse(session, incoming, request, error)
        except Exception:  # noqa: BLE001 - as in the endpoint, which is not there to catch it
            error_id = _logged()
            if not incoming.is_answered:
                self._refuse(session, incoming, request, InternalError(), error_id)

    def _refuse(
        self,
        session: Session,
        incoming: Incoming,
        request: Request,
        error: DomainError,
        error_id: str | None = None,
    ) -> None:
        if isinstance(error, PermissionDenied):  # valid, but no device's
            error = PublishForbidden() if request.method == Code.POST else SubscribeForbidden()
        self._reply(session, incoming, refusal(error, request, error_id=error_id))

    # --- What it wants -----------------------------------------------------------------------------------------------

    def _serve(
        self, session: Session, incoming: Incoming, request: Request, device: Device, caller: Caller, now: float
    ) -> None:
        is_post = request.method == Code.POST
        try:
            self._services.registration.admission.check(device, session.certificate)
        except PermissionDenied:
            raise (PublishForbidden if is_post else SubscribeForbidden) from None
        if is_post:
            self._post(session, incoming, request, device, caller, now)
        elif session.is_closed:
            return  # while its token was looked up: nobody would ever end its observation
        else:
            self._reply(session, incoming, self._actions(session, incoming, request, device, caller, now))
            self._observers.go_on(session)
        if session.rank is Rank.STRANGER and device.enabled:  # and nothing of it was refused
            self._member(session)

    def _post(
        self, session: Session, incoming: Incoming, request: Request, device: Device, caller: Caller, now: float
    ) -> None:
        if request.block2 is not None and request.block2.number > 0:
            self._reply(session, incoming, self._rest(session, request, now))
            return
        if request.block1 is None or request.block1.number == 0:  # a message in blocks is one message
            self._count(caller)
        payload = incoming.message.payload
        if request.block1 is not None:
            if request.size1 > COAP_BODY_BYTES:
                raise BodyTooLarge
            body = session.blocks.collect(request.operation, request.block1, payload, now)
            if body is None:
                block1 = (Option.BLOCK1, request.block1.encode())
                self._reply(session, incoming, Answer(Code.CONTINUE, options=(block1,)))
                return
            payload = body
        if request.format in BARE:
            position = self._submit_bare(device, payload)
        else:
            position = self._submit(device, cbor_to_json(payload) if request.format == CBOR else payload)
        self._stored.append((session, incoming, request, position))

    def _count(self, caller: Caller) -> None:
        """Raises RateLimitExceeded."""
        meter = self._services.limits.meters.of(Channel.COAP, caller)
        if meter is not None:
            meter.count()

    def _submit(self, device: Device, payload: bytes) -> int:
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
        return self._ingest.submit(device, _unquoted(bytes(body.data)), body.ts)

    def _submit_bare(self, device: Device, payload: bytes) -> int:
        if not device.manifest.takes_any_payload:
            raise UnsupportedFormat
        return self._ingest.submit(device, payload)

    def _rest(self, session: Session, request: Request, now: float) -> Answer:
        """A further block of the answer to a POST. The POST is not done again for it."""
        body = session.blocks.offered(request.operation, now)
        if body is None:
            raise BadRequest
        return in_blocks(Answer(Code.CREATED, body, request.answer_format), request, session.blocks, now)

    def _actions(
        self, session: Session, incoming: Incoming, request: Request, device: Device, caller: Caller, now: float
    ) -> Answer:
        if request.block2 is not None and request.block2.number > 0:
            return self._observers.rest(session, request.path, request.block2)
        options: tuple[tuple[int, bytes], ...] = ()
        if request.observe == 0:
            if not device.enabled:
                raise SourceDeviceDisabled
            number = self._observers.register(session, request, incoming.token, device, caller)
            options = ((Option.OBSERVE, uint(number)),)
        elif request.observe == 1:
            self._observers.end_path(session, request.path)
        body = json_to(request.answer_format, b"{}")
        return in_blocks(Answer(Code.CONTENT, body, request.answer_format, options), request, session.blocks, now)

    # --- When it is durable ------------------------------------------------------------------------------------------

    def submitted(self) -> None:
        """Everything that was read in one go is submitted: answer it when it is durable."""
        if self._stored:
            stored, self._stored = self._stored, []
            self._ingest.after_commit(partial(self._committed, stored))

    def _committed(
        self, stored: list[tuple[Session, Incoming, Request, int]], error: StorageUnavailable | None
    ) -> None:
        if error is not None:
            _log.error("coap_messages_not_stored", messages=len(stored), reason=error.reason)
            for session, incoming, request, _ in stored:
                self._reply(session, incoming, refusal(error, request))
            return
        mid = self._ingest.mid
        for session, incoming, request, position in stored:
            self._reply(session, incoming, self._created(session, request, mid(position)))

    def _created(self, session: Session, request: Request, mid: str) -> Answer:
        format_ = request.answer_format
        answer = Answer(Code.CREATED, json_to(format_, b'{"data":{"mid":"%b"}}' % mid.encode()), format_)
        if request.block1 is not None:
            answer = answer._replace(options=((Option.BLOCK1, request.block1.encode()),))
        if request.block2 is None:
            return answer
        return in_blocks(answer, request, session.blocks, session.last_heard)


def _logged() -> str:
    """The id under which the log has the bug that is being caught."""
    error_id = new_id()
    _log.exception("coap_request_failed", error_id=error_id)
    return error_id
