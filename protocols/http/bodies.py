"""A request's body stays with the peer until the application asks for it and the budget has room (reference 21.6).

Otherwise strangers could fill the memory with bodies that nobody reads. Short bodies come at once, because asking costs
more than they do.
"""

from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final

import trio
from hypercorn.typing import ASGIReceiveEvent
from quart import request

from broker.accounts.tokens import Caller
from broker.errors import BadRequest, BodyTooLarge, EncodingNotTaken
from broker.limits.bodies import BodyBudget, Reservation
from config.limits import UNCOUNTED_BODY_BYTES
from protocols.http.request_context import current_request

#: The key of the body in ASGI's `state`; None for one that is not held.
STATE_KEY: Final = "held_body"
_CHUNKS_BYTES: Final = 1024 * 1024  # of a body that is read while it comes
_SILENCE_SECONDS: Final = 30
_AS_IT_IS: Final = "identity"  # RFC 9110, 8.4: a coding that changes nothing


class HeldBody:
    """The body of one request. When it is `opened`, the connection is read on; else it is closed after the answer."""

    def __init__(self, budget: BodyBudget, length: int | None) -> None:
        """`length` is what the head of the request says; None for a body in chunks."""
        self._budget = budget
        self._length = length
        self._reservation: Reservation | None = None
        self._received = self._allowed = 0
        self.opened = trio.Event()

    @classmethod
    def of(cls, headers: Iterable[tuple[bytes, bytes]], budget: BodyBudget) -> "HeldBody | None":
        """The body of the request with these headers, which h11 has checked; None if it has none, or a short one."""
        length = 0
        for name, value in headers:
            if name == b"transfer-encoding":
                return cls(budget, None)
            if name == b"content-length":
                length = int(value)
        return cls(budget, length) if length > UNCOUNTED_BODY_BYTES else None

    async def ask(self, limit: int, source: str, *, is_authenticated: bool, kept: int | None = None) -> None:
        """Let the body come, once there is room for it. Raises TooManyBodies.

        `kept`: how much of it is in memory at a time, for a body that is read while it comes.
        """
        if self._reservation is None:
            self._allowed = limit if self._length is None else min(limit, self._length)
            size = self._allowed if kept is None else min(kept, self._allowed)
            self._reservation = await self._budget.reserve(size, source, is_authenticated=is_authenticated)
            self.opened.set()

    def release(self) -> None:
        if self._reservation is not None:
            self._budget.release(self._reservation)
            self._reservation = None

    @property
    def is_too_large(self) -> bool:
        """Whether more has come than there was room for."""
        return self._reservation is not None and self._received > self._allowed

    def counted(self, event: ASGIReceiveEvent) -> ASGIReceiveEvent:
        """An event of the request as the application gets it: a body that becomes too large ends there."""
        if event["type"] == "http.request":
            self._received += len(event["body"])
            if self.is_too_large:
                return {"type": "http.request", "body": b"", "more_body": False}
        return event


async def _ask(limit: int, *, kept: int | None = None) -> Any:
    """Let the body of the current request come. Raises EncodingNotTaken, BodyTooLarge, TooManyBodies."""
    codings = ",".join(request.headers.getlist("Content-Encoding")).split(",")
    if any(coding.strip().lower() not in {"", _AS_IT_IS} for coding in codings):
        raise EncodingNotTaken  # what it unpacks to has no bound
    if (request.content_length or 0) > limit:
        raise BodyTooLarge
    held: Any = request.scope.get("state", {}).get(STATE_KEY)
    if held is not None:
        caller = (asked := current_request()).caller
        source = f"address {asked.address}" if caller is None else _name(caller)
        await held.ask(limit, source, is_authenticated=caller is not None, kept=kept)
    return held


async def chunks_within(limit: int) -> AsyncGenerator[bytes, None]:
    """The body of the current request while it comes. Raises BadRequest and what `_ask` raises."""
    held = await _ask(limit, kept=_CHUNKS_BYTES)
    body = aiter(request.body)
    while True:
        with trio.move_on_after(_SILENCE_SECONDS) as scope:
            chunk = await anext(body, None)
        if scope.cancelled_caught:
            raise BadRequest
        if chunk is None:
            break
        yield chunk
    if held is not None and held.is_too_large:
        raise BodyTooLarge


async def body_within(limit: int) -> bytes:
    """The body of the current request. Raises EncodingNotTaken, BodyTooLarge, TooManyBodies."""
    held = await _ask(limit)
    body: bytes = await request.get_data(cache=True, as_text=False, parse_form_data=False)
    if len(body) > limit or (held is not None and held.is_too_large):
        raise BodyTooLarge
    return body


def _name(caller: Caller) -> str:
    return f"caller {caller.user} {caller.application} {caller.device}"
