"""The live feed as Server-Sent Events: GET /v1.1/live with `Accept: text/event-stream` (reference 19.6; HTML, 9.2).

The selection and the rights are those of the WebSocket. The answer has no length and ends with its connection. Lines
of keep-alive are comments without an empty line behind them: some clients take each empty line for an event.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

import h11
import msgspec
import trio
from msgspec.structs import replace

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import BadRequest, DomainError, PermissionDenied, Unauthorized
from broker.messages.ingest import Ingest
from broker.messages.log_feeds import Begin, Gap, LogFeed, LogFeedForm
from broker.routing.connections import CloseReason
from broker.routing.feeds import FeedEncoding
from config.limits import PING_SECONDS, SILENCE_SECONDS
from protocols.cookies import SESSION_COOKIE, cookie_in
from protocols.cors import CORS
from protocols.refusals import error_id_of, note_refusal, refusal_for, rest_refusal_body, rest_refusal_headers
from protocols.rendering import action_frame, message_text
from protocols.rooms import WebSocketRooms
from protocols.streams.connection import Need, StreamConnection
from protocols.streams.hub import Hub
from protocols.streams.peers import authenticated
from protocols.streams.tls import peer_certificate
from protocols.websocket.errors import code_and_text
from protocols.websocket.feeds import LiveSelection, gap_members, recent_mids, select_live
from protocols.websocket.handshake import HandshakeRequest, parsed_handshake
from storage.keys import Position
from storage.records import MessageRow
from storage.sql import StoreError

#: When a client that has lost its connection comes again.
_RETRY_MS: Final = 2_000
_SENT_AT_ONCE: Final = 16 * 1024
_ROUTE: Final = "/v1.1/live"
#: Proxies such as nginx would keep what they get until there is more of it.
_HEAD: Final = (
    b"HTTP/1.1 200 \r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-store\r\n"
    b"X-Accel-Buffering: no\r\nConnection: close\r\n"
)
_BEGIN: Final = b"\r\nretry: %d\n" % _RETRY_MS
_KEEP_ALIVE: Final = b": keep-alive\n"
_CORS_LINES: Final = "".join(f"{name}: {value}\r\n" for name, value in CORS.items()).encode()
_FETCHED_HERE: Final = frozenset({"", "same-origin"})

_to_json = msgspec.json.Encoder().encode


class StreamRequest(msgspec.Struct, frozen=True):
    """A request for events. `cookie` is that of a page of this origin; empty if there is a token, or no such cookie."""

    handshake: HandshakeRequest
    last_event_id: str = ""
    cookie: str = ""

    @property
    def after(self) -> str | None:
        """The mid behind which the events begin. The browser's word goes before the address, which never changes."""
        return self.last_event_id or self.handshake.value("after")

    @property
    def named(self) -> str:
        """The name of what gives the mid."""
        return "Last-Event-ID" if self.last_event_id else "after"

    @property
    def since(self) -> str | None:
        return None if self.last_event_id else self.handshake.value("since")


def _named(name: str, data: Mapping[str, str], mid: str = "") -> bytes:
    return b"event: %b\n%bdata: %b\n\n" % (name.encode(), f"id: {mid}\n".encode() if mid else b"", _to_json(data))


@lru_cache(maxsize=1)
def _form(ingest: Ingest) -> LogFeedForm:
    """One object for all streams, so that they share what is encoded."""
    mids, mid = recent_mids(ingest), ingest.mid

    def messages(pairs: Sequence[tuple[MessageRow, Device]]) -> bytes:
        named = zip(pairs, mids.of([row.position for row, _ in pairs]), strict=True)
        return "".join(
            [f"id: {one}\ndata: {message_text(row, device, one)}\n\n" for (row, device), one in named]
        ).encode()

    def action(sent: Action) -> bytes:
        return b"id: %b\ndata: %b\n\n" % (sent.mid.encode(), action_frame(sent))

    def gap(told: Gap) -> bytes:
        return _named("gap", gap_members(told, mid))

    def position(upto: Position) -> bytes:
        return _named("position", {"mid": mid(upto)}, mid(upto))

    return LogFeedForm(FeedEncoding(messages, action), gap, position)


async def serve_event_stream(
    rooms: WebSocketRooms, head: bytes, early: bytes, stream: trio.abc.Stream, *, hub: Hub
) -> None:
    """Serve one connection, which asks for events with this head, to its end."""
    try:
        connection = await _admitted(rooms, head, stream, hub)
    except (DomainError, StoreError) as error:
        refusal = refusal_for(error)
        error_id = error_id_of(refusal)
        about = {"code": refusal.code, "error_id": error_id, "status": refusal.status}
        note_refusal(rooms.core.refusals, "http", refusal, **about, method="GET", route=_ROUTE)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.send_all(_refused(refusal, error_id))
        return
    await connection.run(early)


async def _admitted(rooms: WebSocketRooms, head: bytes, stream: trio.abc.Stream, hub: Hub) -> "EventStream":
    """Raises DomainError, StoreError."""
    request = _read(head)
    selection, caller = await _select(rooms, request)
    shown = peer_certificate(stream)
    await rooms.registration.admission.check_caller(caller, shown)
    begin = await rooms.log_feeds.begin(request.after, request.since, named=request.named)
    handshake = await _with_token(rooms, request)
    await rooms.accounts.tokens.caller(handshake.token or "")  # it may have been revoked since
    authenticated(caller, is_feed=True)
    rooms.log_feeds.check_room(caller)
    caller.act()
    return EventStream(rooms, request, selection, begin, stream, hub)  # nothing is awaited until it is counted


def _read(head: bytes) -> StreamRequest:
    """Raises BadRequest, and PermissionDenied for a cookie that a page of another origin sends."""
    wire = h11.Connection(h11.SERVER)
    try:
        wire.receive_data(head)
        event = wire.next_event()
    except h11.RemoteProtocolError as error:
        raise BadRequest from error
    if not isinstance(event, h11.Request):
        raise BadRequest
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
    target = event.target.decode("ascii")
    handshake = parsed_handshake(target, headers.get("authorization", "").encode("latin-1"), is_in_header=True)
    cookie = "" if handshake.token is not None else cookie_in(headers.get("cookie", ""), SESSION_COOKIE)
    if cookie and not _is_of_this_origin(headers):
        raise PermissionDenied("a session's cookie on a page of another origin")
    return StreamRequest(handshake, headers.get("last-event-id", "").strip(), cookie)


def _is_of_this_origin(headers: Mapping[str, str]) -> bool:
    """Whether a page of this origin asks, as far as the browser says."""
    origin = headers.get("origin", "")
    return headers.get("sec-fetch-site", "") in _FETCHED_HERE and (
        not origin or origin.partition("://")[2].lower() == headers.get("host", "").lower()
    )


async def _with_token(rooms: WebSocketRooms, request: StreamRequest) -> HandshakeRequest:
    """The request with the token that it has now: that of a session changes. Raises Unauthorized."""
    if not request.cookie:
        return request.handshake
    session = await rooms.accounts.sessions.find(request.cookie)
    if session is None:
        raise Unauthorized
    return replace(request.handshake, token=(await rooms.accounts.console.token(session)).value)


async def _select(rooms: WebSocketRooms, request: StreamRequest) -> tuple[LiveSelection, Caller]:
    selection = await select_live(rooms, await _with_token(rooms, request))
    return selection, selection.reach.caller


def _refused(error: DomainError, error_id: str) -> bytes:
    body = rest_refusal_body(error, error_id)
    headers = {
        **rest_refusal_headers(error),
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")
    return b"HTTP/1.1 %d \r\n%b%b\r\n%b" % (error.status, lines, _CORS_LINES, body)


class EventStream(StreamConnection):
    """One client that reads events."""

    __slots__ = ("_feed", "_next_ping", "_request", "_rooms")

    PROTOCOL = "event_stream"

    def __init__(
        self,
        rooms: WebSocketRooms,
        request: StreamRequest,
        selection: LiveSelection,
        begin: Begin,
        stream: trio.abc.Stream,
        hub: Hub,
    ) -> None:
        super().__init__(stream, hub)
        self._rooms = rooms
        self._request = request
        self.pace = rooms.limits.overhead.pace()
        self._next_ping = trio.current_time() + PING_SECONDS
        self._feed = LogFeed(rooms.log_feeds, begin, selection, _form(rooms.messages.ingest), self, self._end_feed)

    def begin(self) -> None:
        # A page of another origin cannot read what its visitor's cookie gives.
        self.put(_HEAD + (b"" if self._request.cookie else _CORS_LINES) + _BEGIN)
        self._feed.open(self.hub.connections)

    def take(self, data: bytes | bytearray) -> Need:
        """The bytes of a client have no meaning here, and cost it time."""
        if data:
            self.pace.spend(1)
        return Need.PACE if self.pace.owed else Need.READ

    def heard_end(self) -> Need:
        self.is_broken = True
        return Need.END

    def due(self) -> float:
        return self._next_ping

    async def beat(self, now: float) -> None:
        if now < self._next_ping:
            return
        self._next_ping += PING_SECONDS
        await self._check()
        if not self.is_ended and self.is_empty and not self._feed.tell_position():
            self.put(_KEEP_ALIVE)

    async def _check(self) -> None:
        """Resolve the selection again: tokens, devices and permissions may have gone or been added."""
        outage = self._rooms.core.life.outage("event_stream_not_checked")
        try:
            selection, _ = await _select(self._rooms, self._request)
            outage.succeeded()
            self._feed.select(selection)
        except Unauthorized:
            self._end_feed(CloseReason.TOKEN_REVOKED)
        except DomainError as error:
            self._say_end(code_and_text(error)[1])
        except StoreError as error:
            outage.failed(error)  # the next ping asks again

    def _end_feed(self, reason: CloseReason) -> None:
        if reason is CloseReason.SHUTDOWN:
            self.end()
        else:
            self._say_end(reason.value)

    def _say_end(self, reason: str) -> None:
        """Tell the client that it need not come again with this token and these parameters."""
        if not self.is_ended:
            self._feed.end()
            self.put(_named("end", {"reason": reason}))
            self.end()

    async def finish(self) -> None:
        self.leave()

    def leave(self) -> None:
        self._feed.end()

    async def _send(self, data: bytes) -> None:
        for begin in range(0, len(data), _SENT_AT_ONCE):
            with trio.fail_after(SILENCE_SECONDS):
                await super()._send(data[begin : begin + _SENT_AT_ONCE])
