"""Answers that are tables of a provision file (reference 26)."""

from typing import Any, Final

from quart import Response, request

from protocols.http.calls import Answers

_TOML: Final = "application/toml"
_PLAIN: Final = "text/plain"  # for generators of clients, which know TOML by no name


def provision_answers(kind: Any, example: str) -> Answers:
    return Answers(type=kind, content_type=_TOML, also=(_PLAIN,), example=example)


def provision_answer(text: str) -> Response:
    """As `application/toml`, or as `text/plain` for who prefers it."""
    chosen = request.accept_mimetypes.best_match([_TOML, _PLAIN], default=_TOML)
    answer = Response(text, content_type=f"{chosen}; charset=utf-8")
    answer.headers["X-Content-Type-Options"] = "nosniff"
    return answer
