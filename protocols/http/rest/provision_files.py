"""Answers that are tables of a provision file (reference 26)."""

from typing import Any, Final

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from protocols.http.answers import NO_SNIFF, Answer
from protocols.http.calls import Answers
from protocols.http.request_context import current_request

_TOML: Final = "application/toml"
_PLAIN: Final = "text/plain"  # for generators of clients, which know TOML by no name


def provision_answers(kind: Any, example: str) -> Answers:
    return Answers(type=kind, content_type=_TOML, also=(_PLAIN,), example=example)


def provision_answer(text: str) -> Answer:
    """The answer as `application/toml`, or as `text/plain` for clients that prefer it."""
    accepted = parse_accept_header(current_request().header(b"accept"), MIMEAccept)
    chosen = accepted.best_match([_TOML, _PLAIN], default=_TOML)
    return Answer(text.encode(), headers=(NO_SNIFF,), content_type=f"{chosen}; charset=utf-8")
