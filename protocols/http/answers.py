"""Format of REST answers: compact JSON, its headers, and the CORS rules (reference 1.4)."""

import time
from typing import Any, Final, NamedTuple

import msgspec
from quart import Response, request

from protocols.cors import CORS
from protocols.http.schema import DataAndFlat

REST_ROOT: Final = "/v1.1"
_JSON: Final = "application/json; charset=utf-8"

NO_SNIFF: Final = ("X-Content-Type-Options", "nosniff")
_NOT_STORED: Final = (("Cache-Control", "no-store"), ("Pragma", "no-cache"))

_encode = msgspec.json.Encoder().encode


class Answer(NamedTuple):
    """An answer of a REST call, before it has the headers that every answer gets. `headers` are its own ones."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = _JSON

    def response(self) -> Response:
        """This answer as Quart's response."""
        answer = Response(self.body, self.status, content_type=self.content_type)
        answer.headers.extend(self.headers)
        return answer


def json_answer(payload: Any, status: int = 200) -> Response:
    return plain_answer(payload, status).response()


def plain_answer(payload: Any, status: int = 200) -> Answer:
    return Answer(_json(payload), status)


def _json(payload: Any) -> bytes:
    if isinstance(payload, DataAndFlat):
        content = _encode(payload.content)
        return b'{"data":' + content + b"," + content[1:]
    return _encode(payload)


def search_answer(payload: Any, started: float) -> Answer:
    """The answer of a search of messages or Actions. `started` is the `time.perf_counter` when the search began."""
    seconds = f"{time.perf_counter() - started:.3f}"
    return Answer(_json(payload), headers=(("Request-Time", seconds),), content_type="application/json")


def secret_answer(payload: Any) -> Answer:
    """An answer that carries tokens: it is not stored, and no other origin reads it (reference 1.4)."""
    return Answer(_json(payload), headers=_NOT_STORED)


def answer_preflight() -> Response | None:
    """Answer OPTIONS on any REST path, without a token and without a body."""
    if request.method != "OPTIONS" or not is_rest() or request.routing_exception is not None:
        return None
    return preflight_answer()


def preflight_answer() -> Response:
    answer = Response(b"")
    del answer.headers["Content-Type"]
    return answer


def add_cors(answer: Response) -> None:
    """Allow other origins to read the answer, unless it carries tokens: those answers have a Cache-Control."""
    if is_rest() and "Cache-Control" not in answer.headers:
        answer.headers.extend(CORS)


async def add_hsts(seconds: int, answer: Response) -> Response:
    """Tell browsers to come back over TLS only, for this time (RFC 6797). For TLS listeners."""
    answer.headers["Strict-Transport-Security"] = f"max-age={seconds}"
    return answer


def is_rest() -> bool:
    """Whether the request is for a path of the REST API."""
    path = request.path
    return path.startswith(REST_ROOT) and path[len(REST_ROOT) : len(REST_ROOT) + 1] in {"", "/"}
