"""What REST answers look like: compact JSON, its headers, and the CORS rules (reference 1.4)."""

import time
from typing import Any, Final

import msgspec
from quart import Response, request

from protocols.http.schema import DataAndFlat

REST_ROOT: Final = "/v1.1"
_JSON: Final = "application/json; charset=utf-8"
_CORS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": (
        "Origin, X-Requested-With, Content-Type, Accept, Referer, User-Agent, Authorization"
    ),
}

_encode = msgspec.json.Encoder().encode


def json_answer(payload: Any, status: int = 200) -> Response:
    return Response(_json(payload), status, content_type=_JSON)


def _json(payload: Any) -> bytes:
    if isinstance(payload, DataAndFlat):
        content = _encode(payload.content)
        return b'{"data":' + content + b"," + content[1:]
    return _encode(payload)


def search_answer(payload: Any, started: float) -> Response:
    """The answer of a search of messages or Actions. `started` is the `time.perf_counter` when the search began."""
    answer = Response(_json(payload), content_type="application/json")
    answer.headers["Request-Time"] = f"{time.perf_counter() - started:.3f}"
    return answer


def secret_answer(payload: Any) -> Response:
    """An answer that carries tokens: it is not stored, and no other origin reads it (reference 1.4)."""
    answer = json_answer(payload)
    answer.headers["Cache-Control"] = "no-store"
    answer.headers["Pragma"] = "no-cache"
    return answer


def error_answer(status: int, body: bytes) -> Response:
    return Response(body, status, content_type=_JSON)


async def answer_preflight() -> Response | None:
    """Answer OPTIONS on any REST path, without a token and without a body."""
    if request.method != "OPTIONS" or not is_rest() or request.routing_exception is not None:
        return None
    return preflight_answer()


def preflight_answer() -> Response:
    answer = Response(b"")
    del answer.headers["Content-Type"]
    return answer


async def add_cors(answer: Response) -> Response:
    """Allow other origins to read the answer, unless it carries tokens: those answers have a Cache-Control."""
    if is_rest() and "Cache-Control" not in answer.headers:
        answer.headers.extend(_CORS)
    return answer


async def add_hsts(seconds: int, answer: Response) -> Response:
    """Tell browsers to come back over TLS only, for so long (RFC 6797). For TLS listeners."""
    answer.headers["Strict-Transport-Security"] = f"max-age={seconds}"
    return answer


def is_rest() -> bool:
    """Whether the request is for a path of the REST API."""
    path = request.path
    return path.startswith(REST_ROOT) and path[len(REST_ROOT) : len(REST_ROOT) + 1] in {"", "/"}
