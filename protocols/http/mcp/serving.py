"""POST /mcp, and the metadata by which a client finds out who gives tokens for it (reference 29.1, RFC 9728)."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec
from quart import Blueprint, Response, request

from broker.accounts.tokens import TokenKind
from broker.errors import Unauthorized
from broker.limits.meters import Channel
from broker.services import Services
from broker.site import Site
from broker.threads import run_in_thread
from config.limits import MCP_BODY_BYTES
from protocols.http.answers import json_answer
from protocols.http.bodies import body_within
from protocols.http.errors import app_refusals, refusal_answer
from protocols.http.fast_path import Endpoint
from protocols.http.guard import Guard
from protocols.http.mcp.calling import ToolCaller
from protocols.http.mcp.messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    SUPPORTED,
    WITH_HANDSHAKE,
    Asked,
    RpcError,
    asked_in,
    error_of,
    identity,
    read_message,
    request_id,
    result_of,
)
from protocols.http.mcp.schemas import listed
from protocols.http.mcp.tools import INSTRUCTIONS, TOOLS
from protocols.http.request_context import current_request

PATH: Final = "/mcp"
_METADATA: Final = "/.well-known/oauth-protected-resource"
_CACHED_MS: Final = 300_000
_JSON: Final = "application/json"
_NOT_STORED: Final = {"Cache-Control": "no-store"}
_CAPABILITIES: Final[Mapping[str, Any]] = {"tools": {}}
_KINDS: Final = (TokenKind.USER, TokenKind.APPLICATION)


def mcp_blueprint(services: Services, endpoints: Mapping[str, Endpoint], guard: Guard) -> Blueprint:
    """The path for assistants. `endpoints`: the REST calls by their names in the application."""
    routes = Blueprint("mcp", __name__)
    core = services.core
    caller = ToolCaller(endpoints, core.refusals, core.clock, services.assistants)
    conversation = _Conversation(caller, guard, with_acts=core.settings.mcp.tools == "act")

    @routes.post(PATH)
    async def receive() -> Response:
        if not _is_own(request.headers.get("Origin"), core.site):
            error = RpcError(INVALID_REQUEST, "Origin: pages of others may not ask here", status=403)
            return _answer(error_of(error, None), error.status)
        await guard.caller(*_KINDS)
        return await conversation.answer(await body_within(MCP_BODY_BYTES))

    @routes.errorhandler(Unauthorized)
    async def without_token(error: Unauthorized) -> Response:
        answer = refusal_answer(error, app_refusals(), request.method, PATH).response()
        reason = 'error="invalid_token", ' if request.headers.get("Authorization") else ""
        answer.headers["WWW-Authenticate"] = f'Bearer {reason}resource_metadata="{core.site.origin}{_METADATA}{PATH}"'
        return answer

    @routes.get(_METADATA)
    @routes.get(f"{_METADATA}{PATH}")
    async def metadata() -> Response:
        answer = json_answer(
            {
                "resource": f"{core.site.origin}{PATH}",
                "authorization_servers": [core.site.accounts.url],
                "bearer_methods_supported": ["header"],
                "resource_name": "Trunkline",
                "resource_documentation": f"{core.site.origin}/docs/assistants",
            }
        )
        answer.headers["Access-Control-Allow-Origin"] = "*"
        return answer

    return routes


def _is_own(origin: str | None, site: Site) -> bool:
    """Whether no page of another site makes the request: a browser names the site of a page."""
    return origin is None or origin.lower() == site.origin.lower()


class _Conversation:
    """Answers messages, each for itself."""

    def __init__(self, caller: ToolCaller, guard: Guard, *, with_acts: bool) -> None:
        self._caller = caller
        self._guard = guard
        self._with_acts = with_acts
        self._tools = {tool.name: tool for tool in TOOLS if with_acts or not tool.acts}

    async def answer(self, body: bytes) -> Response:
        """Raises RateLimitExceeded."""
        id_: str | int | None = None
        asked: Asked | None = None
        try:
            message = read_message(body)
            id_ = request_id(message)
            asked = asked_in(message, current_request().header)
            await _read_declarations()
            if asked is None or asked.id is None:
                self._count()
                return Response(b"", 202)
            return _answer(await self._result(asked))
        except RpcError as error:
            if current_request().channel is None:
                self._count()
            # A client with a handshake takes any other status for a failure of the connection.
            is_answered = asked is not None and not asked.is_stateless
            return _answer(error_of(error, id_), 200 if is_answered else error.status)

    async def _result(self, asked: Asked) -> bytes:
        """Raises RpcError, RateLimitExceeded."""
        if asked.method == "tools/call":
            return await self._called(asked)
        self._count()
        match asked.method, asked.is_stateless:
            case "tools/list", _:
                if asked.params.get("cursor") is not None:
                    raise RpcError(INVALID_PARAMS, "params.cursor: the list of tools has one page")
                return result_of(asked, {"tools": listed(with_acts=self._with_acts)}, cached_ms=_CACHED_MS)
            case "server/discover", True:
                about = {"supportedVersions": list(SUPPORTED), "capabilities": _CAPABILITIES}
                return result_of(asked, {**about, "instructions": INSTRUCTIONS}, cached_ms=_CACHED_MS)
            case "initialize", False:
                return result_of(asked, self._greeting(asked))
            case "ping", False:
                return result_of(asked, {})
        raise RpcError(METHOD_NOT_FOUND, "Method not found", status=404)

    def _greeting(self, asked: Asked) -> dict[str, Any]:
        """Raises RpcError."""
        wanted = asked.params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise RpcError(INVALID_PARAMS, "params.protocolVersion: must be a text")
        return {
            "protocolVersion": wanted if wanted in WITH_HANDSHAKE else WITH_HANDSHAKE[0],
            "capabilities": _CAPABILITIES,
            "serverInfo": identity(),
            "instructions": INSTRUCTIONS,
        }

    async def _called(self, asked: Asked) -> bytes:
        """Call a tool. It counts as the REST calls that it makes, or as one where it makes none.

        Raises RpcError, RateLimitExceeded.
        """
        name, arguments = asked.params.get("name"), asked.params.get("arguments")
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None or not isinstance(arguments, dict | None):
            self._count()
            wrong = "params.name: there is no such tool" if tool is None else "params.arguments: must be an object"
            raise RpcError(INVALID_PARAMS, wrong)
        answer = await self._caller.call(tool, arguments or {}, self._count)
        text = msgspec.json.encode(answer.content)
        result = {"content": [{"type": "text", "text": text.decode()}], "structuredContent": msgspec.Raw(text)}
        return result_of(asked, {**result, "isError": answer.is_error})

    def _count(self) -> None:
        """Count the request as a REST call. Raises RateLimitExceeded."""
        asked = current_request()
        if asked.caller is not None and (refusal := self._guard.count(asked, asked.caller, Channel.REST)) is not None:
            raise refusal


async def _read_declarations() -> None:
    """They are read once, beside the loop: it takes 0.1 s."""
    if not listed.cache_info().currsize:
        await run_in_thread(partial(listed, with_acts=True))


def _answer(body: bytes, status: int = 200) -> Response:
    return Response(body, status, _NOT_STORED, content_type=_JSON)
