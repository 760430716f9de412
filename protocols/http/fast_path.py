"""The fast path: plain REST calls are answered from the bytes of their request to the handler and back, past Hypercorn
and Quart.

Those two take ten times as long as most calls. A call that is not plain, and a request of an unusual form, take the
slow path from their first byte on: nothing has been done about them here. Both paths read the same declarations, check
in the same order (`dispatch`), and answer with the same bytes; tests/protocols/http/test_fast_path.py compares them.
"""

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from quart import Quart, Response
from werkzeug.exceptions import HTTPException

from broker.errors import DomainError
from broker.registration.certificates import ClientCertificate
from broker.trace.origin import Origin, enter
from broker.trace.refusals import Refusals
from protocols.cors import CORS
from protocols.http.allowances import EXPOSED, Allowances
from protocols.http.answers import REST_ROOT, Answer
from protocols.http.calls import AfterCommit
from protocols.http.dispatch import Begun
from protocols.http.errors import failure_answer, refusal_answer
from protocols.http.forwarded import Forwarded
from protocols.http.heads import RequestHead, date_line
from protocols.http.request_context import RequestContext, set_current_request
from protocols.metrics.vitals import Traffic
from protocols.streams.peers import Peer
from protocols.streams.proxies import TrustedProxies
from storage.sql import StoreError

_ROUTES_KEPT: Final = 4096

_CORS_LINES: Final = "".join(
    f"{name.lower()}: {value}\r\n" for name, value in (*CORS.items(), ("Access-Control-Expose-Headers", EXPOSED))
)


class Endpoint(Protocol):
    has_nowait: bool

    def begin(self, request: RequestContext, names: Mapping[str, str]) -> AfterCommit[Any] | Begun:
        """Begin to answer `current_request`, as far as nothing is to be waited for. Raises DomainError."""

    def committed(self, begun: AfterCommit[Any]) -> Answer:
        """The answer after the commit."""

    async def reply(self, names: Mapping[str, str], begun: Begun | None = None) -> Answer | Response:
        """Answer `current_request`, which has begun, or not. Raises DomainError, StoreError."""


class Route(NamedTuple):
    endpoint: Endpoint
    rule: str  # as in the log
    names: Mapping[str, str]  # those in the path
    is_of_address: bool  # counts against the limit of the client's address


class FastPath:
    """The calls of one listener that it can answer."""

    def __init__(
        self,
        app: Quart,
        endpoints: Mapping[str, Endpoint],
        allowances: Allowances,
        refusals: Refusals,
        traffic: Traffic,
        proxies: TrustedProxies,
        *,
        hsts_seconds: int = 0,
        is_moving: Callable[[], bool] = lambda: False,
    ) -> None:
        """`endpoints` are the calls by the names that they have as endpoints of `app`. `is_moving`: whether each answer
        is the last one of its connection."""
        self._endpoints = endpoints
        self._router = app.url_map.bind("localhost")
        #: By method and path; bounded: the paths of usual heads are short.
        self.route = lru_cache(_ROUTES_KEPT)(self._routed)
        self._allowances = allowances
        self._refusals = refusals
        self._traffic = traffic
        self._proxies = proxies
        self._is_moving = is_moving
        self._hsts = f"strict-transport-security: max-age={hsts_seconds}\r\n" if hsts_seconds else ""

    def _routed(self, method: str, path: str) -> Route | None:
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
        return Route(endpoint, rule.rule, names, is_of_address)

    def request(
        self, head: RequestHead, body: bytes, peer: Peer, certificate: ClientCertificate | None
    ) -> RequestContext:
        """The request that the peer has sent, which is whole."""
        return RequestContext(
            head.method,
            Forwarded(head.headers).client(peer.address, self._proxies) if peer.is_proxy else peer.address,
            head.authorization,
            head.query,
            certificate,
            body,
            headers=head.headers,
        )

    def begin(self, request: RequestContext, route: Route) -> AfterCommit[Any] | Begun:
        """Begin to answer a message, in a context of its own. Raises DomainError."""
        set_current_request(request)
        return route.endpoint.begin(request, route.names)

    async def answer(self, request: RequestContext, route: Route, begun: Begun | None = None) -> bytes:
        enter(Origin(request.address))
        set_current_request(request)
        if request.caller is not None:  # it has begun
            request.caller.act()
        try:
            if route.is_of_address:
                self._allowances.count_address(request.address)
            answer = await route.endpoint.reply(route.names, begun)
            if isinstance(answer, Response):
                raise TypeError(f"{request.method} {route.rule} is no call of the fast path")
        except Exception as error:  # noqa: BLE001 - a bug must end only its request
            return self.refused(request, error, route)
        return self._finished(request, answer)

    def committed(
        self, request: RequestContext, route: Route, begun: AfterCommit[Any], error: StoreError | None
    ) -> bytes:
        """The answer to a message after its commit, which has failed with this error, or not."""
        if error is not None:
            return self.refused(request, error, route)
        try:
            return self._finished(request, route.endpoint.committed(begun))
        except Exception as bug:  # noqa: BLE001 - as above
            return self.refused(request, bug, route)

    def refused(self, request: RequestContext, error: Exception, route: Route) -> bytes:
        """The answer to an error, as Quart's: of several errors at once, the first one counts."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, DomainError | StoreError):
            answer = refusal_answer(error, self._refusals, request.method, route.rule)
        else:
            answer = failure_answer(error, request.method, route.rule)
        return self._finished(request, answer)

    def _finished(self, request: RequestContext, answer: Answer) -> bytes:
        self._traffic.answered(time.perf_counter() - request.began, answer.status)
        return self._rendered(answer, self._allowances.standing(request))

    def _rendered(self, answer: Answer, standing: Mapping[str, str]) -> bytes:
        own, is_open = "connection: close\r\n" if self._is_moving() else "", True
        for name, value in answer.headers:
            own += f"{name.lower()}: {value}\r\n"
            is_open = is_open and name != "Cache-Control"
        about = "".join([f"{name}: {value}\r\n" for name, value in standing.items()]).lower()  # values are numbers
        head = (
            f"HTTP/1.1 {answer.status} \r\ncontent-type: {answer.content_type}\r\n"
            f"content-length: {len(answer.body)}\r\n{own}{self._hsts}{_CORS_LINES if is_open else ''}{about}"
        )
        return b"%b%b\r\n%b" % (head.encode("latin-1"), date_line(), answer.body)
