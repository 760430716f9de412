"""Answers plain REST calls directly: from the front door to the handler and back, past Hypercorn and Quart.

Those two take ten times as long as most calls. So a connection begins here, and comes back here after each answer of
theirs. Any request that is not a plain one for a plain call goes to Hypercorn from its first byte on: nothing has been
done about it here. Both ways read the same declarations, check in the same order (`dispatch`), and
answer with the same bytes; tests/protocols/http/test_direct.py compares them.

A connection has one request in flight here. If a client sends its next request before the answer has come, the
connection goes to Hypercorn, where the request waits in line (reference 21.5).
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Final, NamedTuple

import trio
from quart import Quart, Response
from werkzeug.exceptions import HTTPException

from broker.accounts.tokens import TokenKind
from broker.errors import DomainError
from broker.trace.origin import Origin, enter
from broker.trace.refusals import Refusals
from protocols.http.allowances import EXPOSED, Allowances
from protocols.http.answers import CORS, REST_ROOT, Answer
from protocols.http.errors import failure_answer, refusal_answer
from protocols.http.forwarded import Forwarded
from protocols.http.heads import HEAD_BYTES, HEAD_SECONDS, date_line, is_whole, read_head, refuse_head
from protocols.http.parked import KEEP_ALIVE_SECONDS, Endpoint, ParkedConnection
from protocols.http.peer_timeouts import PeerTimeouts
from protocols.http.plain_requests import PlainRequest, plain_request
from protocols.http.this_request import ThisRequest, answering, within
from protocols.metrics.vitals import Traffic
from protocols.streams.hub import Hub
from protocols.streams.listeners import Stream, sender_at_once
from protocols.streams.peers import Peer, current_peer, turn_of_strangers
from protocols.streams.proxies import TrustedProxies
from protocols.streams.tls import peer_certificate
from storage.sql import StoreError

SEND_SECONDS: Final = 30.0
#: A request whose body takes longer to come goes to Hypercorn, where it has more time.
_BODY_SECONDS: Final = 1.0
_ROUTES_KEPT: Final = 4096

_CORS_LINES: Final = b"".join(
    f"{name.lower()}: {value}\r\n".encode()
    for name, value in (*CORS.items(), ("Access-Control-Expose-Headers", EXPOSED))
)


class _Route(NamedTuple):
    endpoint: Endpoint
    rule: str  # as in the log
    names: Mapping[str, str]  # those in the path
    is_of_address: bool  # counts against the limit of the client's address


class DirectCalls:
    """The plain calls of one listener."""

    def __init__(
        self,
        app: Quart,
        endpoints: Mapping[str, Endpoint],
        allowances: Allowances,
        refusals: Refusals,
        timeouts: PeerTimeouts,
        traffic: Traffic,
        proxies: TrustedProxies,
        *,
        hub: Hub | None,
        hsts_seconds: int = 0,
    ) -> None:
        """`endpoints` are the plain calls by the names that they have as endpoints of `app`.

        The hub reads from connections of devices that post messages; None where no connection can be parked.
        """
        self.timeouts = timeouts
        self._hub = hub
        self._endpoints = endpoints
        self._router = app.url_map.bind("localhost")
        self._route = lru_cache(_ROUTES_KEPT)(self._routed)  # bounded: the paths of plain requests are short
        self._allowances = allowances
        self._refusals = refusals
        self._traffic = traffic
        self._proxies = proxies
        self._hsts = f"strict-transport-security: max-age={hsts_seconds}\r\n".encode() if hsts_seconds else b""

    async def serve(self, received: bytes, stream: Stream, begin: Callable[[], Awaitable[None]] | None = None) -> bytes:
        """Answer the request that these bytes begin with, and those after it, while they are plain.

        `begin` is awaited before the first answer, if there is one.

        Returns:
            The bytes of the first request that is not, as far as they have come; empty at the connection's end.
        """
        peer, certificate, send_now = current_peer(), peer_certificate(stream), sender_at_once(stream)
        # A connection that comes back from Hypercorn is also Hypercorn's, which may close it.
        may_park = begin is None and not peer.is_proxy
        parked: ParkedConnection | None = None
        head, asked, route = b"", None, None
        while received:
            # Most clients send the same head again and again.
            if asked is None or not received.startswith(head):
                asked = plain_request(received)
                route = None if asked is None else self._route(asked.method, asked.path)
                head = b"" if asked is None else received[: asked.head_length]
            if asked is None or route is None:
                break
            received = await self._with_body(received, asked, stream)
            if len(received) != asked.head_length + asked.body_length:
                break
            if begin is not None:
                await begin()
                begin = None
            request = ThisRequest(
                asked.method,
                self._client(peer, asked),
                asked.authorization,
                asked.query,
                certificate,
                partial(within, received[asked.head_length :]),
                is_whole=True,
                headers=asked.headers,
            )
            await self._send(await self._answer(request, asked.method, route), stream, send_now)
            # Forget the caller: the next request may be somebody else's, and an idle connection should hold nothing.
            enter(Origin(peer.address))
            answering(None)
            if not (may_park and route.endpoint.is_at_once and _is_of_device(request, peer)):
                del request, received
                received = await self._following(stream)
                continue
            del request, received
            parked = parked or self._parked(stream, peer)
            head, asked = b"", None  # thousands of connections may be idle, and a parked one has its own
            received = await self._following_parked(parked, stream)
            may_park = parked is not None and parked.has_answered  # otherwise this client sends in another way
        return received

    def _routed(self, method: str, path: str) -> _Route | None:
        if not path.startswith(REST_ROOT):
            return None
        try:
            rule, names = self._router.match(path, method, return_rule=True)
        except HTTPException:
            return None
        endpoint = self._endpoints.get(rule.endpoint)
        if endpoint is None:
            return None
        is_of_address = self._allowances.are_of_address(path)
        return _Route(endpoint, rule.rule, names, is_of_address)

    def _client(self, peer: Peer, asked: PlainRequest) -> str:
        return Forwarded(asked.headers).client(peer.address, self._proxies) if peer.is_proxy else peer.address

    async def _with_body(self, received: bytes, asked: PlainRequest, stream: Stream) -> bytes:
        """The request with its body; fewer bytes when the body does not come, and more when more than it has come."""
        missing = asked.head_length + asked.body_length - len(received)
        if missing > 0:
            with self.timeouts.limit(_BODY_SECONDS, in_flight=False):
                while missing > 0 and (more := await stream.receive_some(missing)):
                    received += more
                    missing -= len(more)
                    await turn_of_strangers()
        return received

    async def _answer(self, request: ThisRequest, method: str, route: _Route) -> bytes:
        began = time.perf_counter()
        enter(Origin(request.address))
        answering(request)
        try:
            if route.is_of_address:
                self._allowances.count_address(request.address)
            answer = await route.endpoint.reply(route.names)
            if isinstance(answer, Response):
                raise TypeError(f"{method} {route.rule} is no plain call")
        except Exception as error:  # noqa: BLE001 - a bug must end only its request
            answer = self._refused(error, method, route.rule)
        return self.finished(request, began, answer)

    # --- Parked connections --------------------------------------------------------------------------------------

    def _parked(self, stream: Stream, peer: Peer) -> ParkedConnection | None:
        if self._hub is None or not isinstance(stream, trio.SocketStream):
            return None
        return ParkedConnection(self, self._hub, stream, address=peer.address)

    def at_once(self, asked: PlainRequest) -> Endpoint | None:
        """The endpoint of a request that the hub may answer."""
        route = self._route(asked.method, asked.path)
        return route.endpoint if route is not None and route.endpoint.is_at_once else None

    def finished(self, request: ThisRequest, began: float, answer: Answer) -> bytes:
        """Count an answer, and render it. `began` is the time.perf_counter when the request had come."""
        self._traffic.answered(time.perf_counter() - began, answer.status)
        return self._rendered(answer, self._allowances.standing(request))

    def refused_message(self, error: Exception) -> Answer:
        """The answer about an error of a request for which `at_once`."""
        return self._refused(error, "POST", f"{REST_ROOT}/messages")

    # --- Answers -----------------------------------------------------------------------------------------------------

    def _refused(self, error: Exception, method: str, rule: str) -> Answer:
        """The answer to an error, as Quart's: of several errors at once, the first one counts."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, DomainError | StoreError):
            return refusal_answer(error, self._refusals, method, rule)
        return failure_answer(error, method, rule)

    def _rendered(self, answer: Answer, standing: Mapping[str, str]) -> bytes:
        own, is_open = "", True
        for name, value in answer.headers:
            own += f"{name.lower()}: {value}\r\n"
            is_open = is_open and name != "Cache-Control"
        about = "".join([f"{name}: {value}\r\n" for name, value in standing.items()]).lower()  # values are numbers
        return b"".join(
            (
                b"HTTP/1.1 %d \r\ncontent-type: %b\r\ncontent-length: %d\r\n"
                % (answer.status, answer.content_type.encode(), len(answer.body)),
                own.encode("latin-1"),
                self._hsts,
                _CORS_LINES if is_open else b"",
                about.encode("latin-1"),
                date_line(),
                b"\r\n",
                answer.body,
            )
        )

    async def _send(self, answer: bytes, stream: Stream, send_now: Callable[[bytes], int] | None) -> None:
        """Raises BrokenResourceError, also when the peer does not read."""
        sent = 0 if send_now is None else send_now(answer)
        if sent == len(answer):
            return
        with self.timeouts.limit(SEND_SECONDS, in_flight=True) as scope:
            await stream.send_all(answer[sent:])
        if scope.cancelled_caught:
            raise trio.BrokenResourceError("the peer does not read")

    async def _following(self, stream: Stream) -> bytes:
        """The head of the next request, and what came with it; empty at the connection's end."""
        with self.timeouts.limit(KEEP_ALIVE_SECONDS, in_flight=False):
            received = bytes(await stream.receive_some(HEAD_BYTES))
            await turn_of_strangers()
            return await self._whole_head(received, stream)
        return b""

    async def _following_parked(self, parked: ParkedConnection | None, stream: Stream) -> bytes:
        """The next head, as `_following`. A device's connection parks, and its messages are answered while waiting."""
        received = None if parked is None else await parked.wait(partial(self._send, stream=stream, send_now=None))
        if parked is None or received is None:
            return await self._following(stream)
        with self.timeouts.until(parked.deadline, in_flight=False):
            return await self._whole_head(received, stream)
        return b""

    async def _whole_head(self, received: bytes, stream: Stream) -> bytes:
        if not received or is_whole(received):
            return received
        head = bytearray(received)
        with self.timeouts.limit(HEAD_SECONDS, in_flight=False) as scope:
            await read_head(stream, head)
        if scope.cancelled_caught:
            await refuse_head(stream, HTTPStatus.REQUEST_TIMEOUT, self._refusals)
            return b""
        return bytes(head)


def _is_of_device(request: ThisRequest, peer: Peer) -> bool:
    """Whether the peer is a device that has shown its token. Strangers may lose their connections at any time."""
    return peer.place is None and request.caller is not None and request.caller.kind is TokenKind.DEVICE
