"""From a request to the handler of its call and back: one order of checks for all calls (reference 3.2).

Token, object, permission, rate limit, query and body. A declaration (`calls`) says what each of these is, and no
handler runs before all of them have passed.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache, cached_property, partial
from typing import Any, Final

from quart import Quart, Response
from werkzeug.http import parse_options_header

from broker.accounts.tokens import Caller
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


class Dispatcher:
    def __init__(self, guard: Guard, named: Named) -> None:
        self._guard = guard
        self._named = named
        #: The plain calls, by the names of their endpoints in the application.
        self.plain: dict[str, _Endpoint] = {}

    def install(self, app: Quart, nouns: Iterable[RestCalls], *, is_secure: bool) -> None:
        """Route the calls of `nouns`. Calls that need a certificate are routed only on the secure listener."""
        for noun in nouns:
            for call in noun.declared():
                if is_secure or not call.needs_certificate:
                    endpoint = _Endpoint(call, noun, self._guard, self._named)
                    name = _route(app, call, endpoint.answer if noun.is_served else _unknown_path)
                    if noun.is_served and call.is_plain:
                        self.plain[name] = endpoint


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

    def __init__(self, call: RestCall, noun: RestCalls, guard: Guard, named: Named) -> None:
        self._call = call
        self._noun = noun
        self._guard = guard
        self._named = named
        self.is_at_once = call.at_once is not None

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

    async def reply(self, names: Mapping[str, str]) -> Answer | Response:
        """Answer `current_request`; a `Response` only where the handler returns one. `names` are those in the path.

        Raises DomainError, StoreError.
        """
        answer: Answer | Response
        if self._call.counted is not Counted.MESSAGES:
            with UnderConditions():
                answer = await self._begin(names)
                return answer
        begun = await self._begin(names)  # messages are written without a transaction of their own
        if isinstance(begun, AfterCommit):
            await begun.ingest.wait_committed()
            return self.committed(begun)
        answer = begun
        return answer

    def committed(self, begun: AfterCommit[Any]) -> Answer:
        """The answer after the commit."""
        return self._rendered(begun.answer(), 0)

    def reply_at_once(self, request: RequestContext, body: bytes) -> AfterCommit[Any] | None:
        """Begin to answer this request, which is `current_request` and has this body, without waiting, in the order of
        `_begin`.

        Returns:
            None where something is to be waited for, and where the checks of token and body refuse: nothing was done
            about the request, and `reply` says what is wrong with it.

        Raises:
            DomainError: the call is over its limits, or `Ingest.submit` refuses.
        """
        call = self._call
        caller = self._guard.admitted_nowait(request)
        if caller is None or caller.kind not in call.tokens or call.at_once is None or len(body) > call.body_limit:
            return None
        try:
            submit = call.at_once(self._noun, caller, members(body, call.body, caller))
        except DomainError:
            return None
        if submit is None:
            return None
        request.caller = caller
        caller.act()
        if (refusal := self._guard.count(caller, _CHANNELS[call.counted])) is not None:
            raise refusal
        return submit()

    async def _begin(self, names: Mapping[str, str]) -> Any:
        """The answer, or the one that is due after the commit."""
        started = time.perf_counter()
        performer, refusal = await self._admission()
        found = None
        if self._find is not None:
            found = await self._find(performer, *[names[name] for name in self._call.names])
        if refusal is not None:
            raise refusal
        arguments = await self._read(performer, found, names)
        for name, parameter in self._call.text_parameters:
            arguments[parameter] = names[name]
        if self._call.is_conditional and (header := current_request().header(b"if-match")):
            with expecting(expected_tags(header)):
                answer = await self._handler(**arguments)
        elif self._call.method == "DELETE":
            with making_room():
                answer = await self._handler(**arguments)
        else:
            answer = await self._handler(**arguments)
        if isinstance(answer, AfterCommit):
            return answer
        return answer if self._call.returns_answer else self._rendered(answer, started)

    async def _read(
        self, performer: Caller | ClientCertificate | None, found: object, names: Mapping[str, str]
    ) -> dict[str, Any]:
        """Read the handler's arguments. Problems of the body are reported before problems of the query."""
        call = self._call
        caller = performer if isinstance(performer, Caller) else None
        arguments: dict[str, Any] = {}
        query = Query(current_request().query) if call.queries else None
        if query is not None:
            if self._find_in_query is not None:
                found = await self._find_in_query(performer, query)
            kind = _chosen(call.queries, query)
            values = query.members(kind, caller)
        if call.is_body_streamed:
            arguments["body"] = chunks_within
        elif self._body is not None:
            try:
                arguments["body"] = await self._body.read(caller)
            except DomainError as error:
                if call.counted is Counted.MESSAGES and caller is not None:
                    await self._noun.body_refused(caller, error)
                raise
            if not current_request().is_whole:
                found = await self._found_again(performer, found, names, query)
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

    def _rendered(self, answer: Any, started: float) -> Answer:
        if self._call.is_timed:
            return search_answer(answer, started)
        rendered = secret_answer(answer) if self._call.is_secret else plain_answer(answer)
        if self._call.is_tagged and (tag := current_request().etag):
            return rendered._replace(headers=(*rendered.headers, ("ETag", f'"{tag}"')))
        return rendered


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
        return self._members(body, caller)

    def _is_form(self) -> bool:
        if not self._call.reads_forms:
            return False
        return parse_options_header(current_request().header(b"content-type"))[0].lower() == FORM

    def _members_of_long(self, body: bytes, caller: Caller | None) -> Any:
        if body.count(b"&") > BODY_VALUES_MAX if self._is_form() else has_too_many_values(body):
            raise TooManyValues
        return self._members(body, caller)

    def _members(self, body: bytes, caller: Caller | None) -> Any:
        call = self._call
        if call.body is bytes:
            return body
        if call.is_object:
            return json_object(body)
        if self._is_form():
            form = Query(body)
            values = form.members(call.body, caller)
            form.check()
            return call.body(**values)
        return members(body, call.body, caller)
