"""ETag and If-Match of REST calls (reference 1.5; RFC 9110, 8.8.3 and 13.1.1)."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from broker.conditional import ANY, ChangedMeanwhile
from broker.errors import DomainError, ValidationFailed, invalid
from protocols.http.request_context import current_request

IF_MATCH: Final = "If-Match"
_HEADER_CHARACTERS: Final = 1_000
_TAG: Final = re.compile(r'\s*(W/)?"([\x21\x23-\x7e]*)"\s*(?:,|$)')


@dataclass(eq=False)
class PreconditionFailed(DomainError):
    """The refusal of a change, with the object as it is now."""

    status = 412
    template = ChangedMeanwhile.template
    present: Any = field(repr=False)
    tag: str = ""


def tagged(tag: str) -> None:
    """The answer has this ETag."""
    current_request().etag = tag


def expected_tags(header: str) -> frozenset[str]:
    """The tags in If-Match. A weak one matches nothing. Raises ValidationFailed."""
    text = header.strip()
    if text == ANY:
        return frozenset((ANY,))
    found, place = set(), 0
    while place < len(text):
        match = _TAG.match(text, place)
        if match is None or len(text) > _HEADER_CHARACTERS:
            raise ValidationFailed.of(IF_MATCH, invalid('must be * or entity tags such as "a1b2", separated by commas'))
        if match[1] is None:
            found.add(match[2])
        place = match.end()
    return frozenset(found)


@asynccontextmanager
async def or_present(present: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """Refuse a change of an object that has changed, with the present object as the answer. `present` tags it, too."""
    try:
        yield
    except ChangedMeanwhile as error:
        shown = await present()
        raise PreconditionFailed(shown, current_request().etag) from error
