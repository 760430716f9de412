"""From a request to the handler of its call and back: one order of checks for all calls (reference 3.2).

Token, object, permission, rate limit, query and body. A declaration (`calls`) says what each of these is, and no
handler runs before all of them have passed.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from functools import cache, cached_property, partial
from typing import Any, Final

from quart import Quart, Response
from werkzeug.http import parse_options_header

from broker.accounts.tokens import Caller
from broker.cluster.facts import FactLog
from broker.conditional import expecting
from broker.errors import BadRequest, DomainError, NotFound, TooManyValues, ValidationFailed
from broker.limits.meters import Channel
from broker.limits.refusals import RateLimitExceeded
from broker.nesting import has_too_many_values
from broker.registration.certificates import ClientCertificate
from broker.threads import run_in_thread
from broker.trace.origin import on_whose_account
from config.limits import BODY_VALUES_MAX
from protocols.http.answers import REST_ROOT, Answer, plain_answer, search_answer, secret_answer
from protocols.http.bodies import chunks_within
from protocols.http.calls import FORM, AfterCommit, Counted, InQuery, Nothing, RestCall, RestCalls, SharedFinder
from protocols.http.conditional import expected_tags
from protocols.http.errors import forget_frames
from protocols.http.guard import Guard, token_in_header
from protocols.http.reading import Query, has_first_member, json_object, members, read_body
from protocols.http.request_context import RequestContext, current_request, require_certificate
from protocols.http.rest.named import Named
from storage.ballast import making_room
from storage.conditions import UnderConditions
from storage.fair_places import FairPlaces

#: It takes 5 ms to read a body of this length.
_LONG_BODY: Final = 64 * 1024
#: Longer ones are read beside the loop, one at a time.
_READING: Final = FairPlaces(1)
_CHANNELS: Final = {Counted.REST: Channel.REST, Counted.MESSAGES: Channel.MESSAGES}

#: The steps of a call: each is what has to be awaited, and is resumed with the result.
Steps = Generator[Awaitable[Any], Any, Any]
#: Steps that have begun, and what they wait for.
Begun = tuple[Steps, Awaitable[Any]]


class Dispatcher:
    def __init__(self, guard: Guard, named: Named, peers: FactLog | None = None) -> None:
        """`peers`: what other nodes tell; None: there are none."""
        self._guard = guard
        self._named = named
        self._peers = peers
        #: The calls of the fast path, by the names of their endpoints in the application.
        self.fast: dict[str, _Endpoint] = {}

    def install(self, app: Quart, nouns: Iterable[RestCalls], *, is_secure: bool) -> None:
        """Route the calls of `nouns`. Calls that need a certificate are routed only on the secure listener."""
        for noun in nouns:
            for call in noun.declared():
                if is_secure or not call.needs_certificate:
                    endpoint = _Endpoint(call, noun, self._guard, self._named, self._peers)
                    name = _route(app, call, endpoint.answer if noun.is_served else _unknown_path)
                    if noun.is_served and call.fits_fast_path:
                        self.fast[name] = endpoint


def _route(app: Quart, call: RestCall, answer: Callable[..., Awaitable[Response]]) -> str:
    """The name of the endpoint."""
    endpoint = f"rest.{call}"
    app.add_url_rule(_rule(call.path), endpoint, answer, methods=[call.method])
    return endpoint


@cache  # every listener routes every call
def _rule(path: str) -> str:
    return REST_ROOT + path.replace("{", "<").replace("}", ">")


async def _unknown_path(**_names: str) -> Response:
    raise NotFound


class _Admission:
    """Finds the caller of calls whose token is not just in the header."""

    def __init__(self, call: RestCall, guard: Guard) -> None:
        self._call = call
        self._guard = guard
        self._channel = _CHANNELS.get(call.counted)
        self._body = _Body(call) if call.has_token_in_body else None

    async def __call__(self) -> tuple[Caller | ClientCertificate | None, RateLimitExceeded | None]:
        """Raises Unauthorized, PermissionDenied."""
        if self._call.needs_certificate:
            return require_certificate(), None
        if not self._call.tokens:
            return None, None
        offered = None if self._body is None else await self._token_in(self._body)
        return await self._guard.admitted(self._call.tokens, self._channel, offered)

    @staticmethod
    async def _token_in(body: "_Body") -> str | None:
        """The token in the body, if the header has none. A body that cannot be read has no token."""
        if token_in_header() is not None:
            return None
        try:
            token: str | None = (await body.read(None)).token
        except (BadRequest, ValidationFailed):
            return None
        return token


class _Endpoint:
    """One call of one listener. Its parts are made at its first request: a listener has 200 calls."""

    def __init__(self, call: RestCall, noun: RestCalls, guard: Guard, named: Named, peers: FactLog | None) -> None:
        self._call = call
        self._noun = noun
        self._guard = guard
        self._named = named
        #: Heard before the call, so that it knows all that other nodes have answered. Messages hear at their commit.
        self._peers = None if call.counted is Counted.MESSAGES else peers
        self.has_nowait = call.nowait is not None
        self._nowait = None if call.nowait is None else call.nowait(noun)

    @cached_property
    def _handler(self) -> Callable[..., Awaitable[Any]]:
        handler: Callable[..., Awaitable[Any]] = getattr(self._noun, self._call.handler)
        return handler

    @cached_property
    def _admission(self) -> Callable[[], Awaitable[tuple[Caller | ClientCertificate | None, RateLimitExceeded | None]]]:
        """The first check: who calls. A caller over its limit is refused later, after the object was found."""
        call = self._call
        if not call.tokens or call.needs_certificate or call.has_token_in_body:
            return _Admission(call, self._guard)
        return partial(self._guard.admitted, call.tokens, _CHANNELS.get(call.counted))

    @cached_property
    def _find(self) -> Callable[..., Awaitable[Any]] | None:
        on = self._call.on
        if isinstance(on, SharedFinder):
            return partial(on.find, self._named)
        return None if isinstance(on, InQuery | Nothing) else partial(on, self._noun)

    @cached_property
    def _find_in_query(self) -> Callable[..., Awaitable[Any]] | None:
        on = self._call.on
        return partial(on.find, self._noun) if isinstance(on, InQuery) else None

    @cached_property
    def _body(self) -> "_Body | None":
        return None if self._call.body is None else _Body(self._call)

    async def answer(self, **names: str) -> Response:
        """Answer a request of Quart."""
        answer = await self.reply(names)
        return answer if isinstance(answer, Response) else answer.response()

    async def reply(self, names: Mapping[str, str], begun: "Begun | None" = None) -> Answer | Response:
        """Answer `current_request`; a `Response` only where the handler returns one. `names` are those in the path, and
        `begun` is the result of `begin`, if that came before.

        Raises DomainError, StoreError.
        """
        answer: Any
        if self._call.counted is not Counted.MESSAGES:
            with UnderConditions():
                answer = await _finish(self._steps(current_request(), names))
        else:  # messages are written without a transaction of their own
            answer = await (_finish(self._steps(current_request(), names)) if begun is None else _finish(*begun))
            if isinstance(answer, AfterCommit):
                await answer.ingest.wait_committed()
                answer = self.committed(answer)
        replied: Answer | Response = answer
        return replied

    def begin(self, request: RequestContext, names: Mapping[str, str]) -> "AfterCommit[Any] | Begun":
        """Begin to answer `current_request`, for a call with `nowait`, as far as nothing is to be waited for: to the
        submission, or to a step for which `reply` waits. Raises DomainError."""
        steps = self._steps(request, names)
        try:
            return steps, next(steps)
        except StopIteration as done:
            submitted: AfterCommit[Any] = done.value
            return submitted

    def committed(self, begun: AfterCommit[Any]) -> Answer:
        """The answer after the commit."""
        return self._rendered(begun.answer())

    def _steps(self, request: RequestContext, names: Mapping[str, str]) -> Steps:
        """The order of checks. Yields each step that is to be awaited, and gets its result. Returns the answer, or the
        one that is due after the commit."""
        call = self._call
        admitted = None if self._nowait is None else self._guard.admitted_nowait(request, call.tokens)
        if admitted is None:
            performer, refusal = yield self._admission()
        else:
            performer, refusal = admitted, self._guard.count(request, admitted, _CHANNELS[call.counted])
        if self._peers is not None:
            yield self._peers.catch_up()
            if performer is not None:  # its token may have ended on another node
                yield self._guard.check_again()
        found = None
        if self._find is not None:
            found = yield self._find(performer, *[names[name] for name in call.names])
        if refusal is not None:
            raise refusal
        arguments = yield from self._read(request, performer, found, names)
        for name, parameter in call.text_parameters:
            arguments[parameter] = names[name]
        submit = None if self._nowait is None else self._nowait(performer, arguments["body"])
        if submit is not None:
            return submit()
        if call.is_conditional and (header := request.header(b"if-match")):
            with expecting(expected_tags(header)):
                answer = yield self._handler(**arguments)
        elif call.method == "DELETE":
            with making_room():
                answer = yield self._handler(**arguments)
        else:
            answer = yield self._handler(**arguments)
        if isinstance(answer, AfterCommit):
            return answer
        return answer if call.returns_answer else self._rendered(answer)

    def _read(
        self,
        request: RequestContext,
        performer: Caller | ClientCertificate | None,
        found: object,
        names: Mapping[str, str],
    ) -> Steps:
        """Read the handler's arguments. Problems of the body are reported before problems of the query."""
        call = self._call
        caller = performer if isinstance(performer, Caller) else None
        arguments: dict[str, Any] = {}
        is_looked_at = bool(call.queries) and (bool(request.query) or not call.has_optional_query)
        query = Query(request.query) if is_looked_at else None
        if query is not None:
            if self._find_in_query is not None:
                found = yield self._find_in_query(performer, query)
            kind = _chosen(call.queries, query)
            values = query.members(kind, caller)
        if call.is_body_streamed:
            arguments["body"] = chunks_within
        elif self._body is not None:
            try:
                if request.read_body is None:
                    arguments["body"] = self._body.members_of(request.body_within(call.body_limit), caller)
                else:
                    arguments["body"] = yield self._body.read(caller)
            except DomainError as error:
                if call.counted is Counted.MESSAGES and caller is not None:
                    yield self._noun.body_refused(caller, error)
                raise
            if request.read_body is not None:  # the client had time
                found = yield self._found_again(performer, found, names, query)
        if query is not None:
            query.check()
            if call.takes_query:
                arguments["query"] = kind(**values)
        if call.object_parameter is not None:
            arguments[call.object_parameter] = found
        if call.performer_parameter is not None:
            arguments[call.performer_parameter] = performer
        return arguments

    async def _found_again(
        self,
        performer: Caller | ClientCertificate | None,
        found: object,
        names: Mapping[str, str],
        query: Query | None,
    ) -> object:
        """Repeat the checks after the body, because a client sends it as slowly as it likes: a token
        may have ended, and an object may have another owner, or be gone. Raises DomainError, StoreError."""
        if isinstance(performer, Caller):
            await self._guard.check_again()
        if self._find is not None:
            return await self._find(performer, *[names[name] for name in self._call.names])
        if self._find_in_query is not None:
            return await self._find_in_query(performer, query)
        return found

    def _rendered(self, answer: Any) -> Answer:
        if self._call.is_timed:
            return search_answer(answer, current_request().began)
        rendered = secret_answer(answer) if self._call.is_secret else plain_answer(answer)
        if self._call.is_tagged and (tag := current_request().etag):
            return rendered._replace(headers=(*rendered.headers, ("ETag", f'"{tag}"')))
        return rendered


async def _finish(steps: Steps, awaited: Awaitable[Any] | None = None) -> Any:
    """Take the steps that are left; `awaited` is the one to wait for."""
    try:
        awaited = awaited or next(steps)
        while True:
            try:
                result = await awaited
            except Exception as error:  # noqa: BLE001 - the steps decide
                awaited = steps.throw(error)
            else:
                awaited = steps.send(result)
    except StopIteration as done:
        return done.value


def _chosen(kinds: tuple[Any, ...], query: Query) -> Any:
    return next((kind for kind in kinds[:-1] if has_first_member(query, kind)), kinds[-1])


class _Body:
    """How the body of a call is read."""

    def __init__(self, call: RestCall) -> None:
        self._call = call

    async def read(self, caller: Caller | None) -> Any:
        """Raises BodyTooLarge, TooManyValues, BadRequest, ValidationFailed."""
        body = await read_body(limit=self._call.body_limit)
        if len(body) > _LONG_BODY and self._call.reads_json:
            async with _READING.of(on_whose_account()):
                try:
                    return await run_in_thread(partial(self._members_of_long, body, caller))
                except DomainError as error:  # a frame of trio's holds it, and frames hold the body
                    forget_frames(error)
                    raise error from None
        return self.members_of(body, caller)

    def _is_form(self) -> bool:
        return parse_options_header(current_request().header(b"content-type"))[0].lower() == FORM

    def _members_of_long(self, body: bytes, caller: Caller | None) -> Any:
        if (
            body.count(b"&") > BODY_VALUES_MAX
            if self._call.reads_forms and self._is_form()
            else has_too_many_values(body)
        ):
            raise TooManyValues
        return self.members_of(body, caller)

    def members_of(self, body: bytes, caller: Caller | None) -> Any:
        call = self._call
        if call.body is bytes:
            return body
        if call.is_object:
            return json_object(body)
        if call.reads_forms and self._is_form():
            form = Query(body)
            values = form.members(call.body, caller)
            form.check()
            return call.body(**values)
        return members(body, call.body, caller)
