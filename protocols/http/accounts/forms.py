"""The forms of the pages: reading what a browser posts, and the fields that forms carry."""

from collections.abc import Collection
from typing import Final
from urllib.parse import parse_qsl, quote, unquote_plus

from config.limits import MAX_FORM_BYTES
from protocols.http.reading import read_body

_STANDS_IN_A_QUERY: Final = "%&=+?/:@!$'()*,;"


class FormData:
    """URL-encoded fields, of a body or of a query string. Of a repeated field, the last value counts."""

    def __init__(self, body: bytes) -> None:
        given = parse_qsl(body.decode("latin-1"), keep_blank_values=True, errors="replace")
        self._values = dict(given)

    @classmethod
    async def of_request(cls) -> "FormData":
        """Raises BodyTooLarge."""
        return cls(await read_body(limit=MAX_FORM_BYTES))

    def text(self, name: str) -> str:
        return self._values.get(name, "")

    def query(self, name: str) -> bytes:
        """The query string in a hidden field, as `as_field` wrote it. It is untrusted."""
        return self.text(name).encode("latin-1", errors="replace")


def as_field(query: bytes) -> str:
    """A query string as the value of a hidden field; `FormData.query` reads it."""
    return query.decode("latin-1")


def in_address(query: bytes, *, but: Collection[str]) -> str:
    """A query string for an address, with the same meaning, without the parameters `but`."""
    given = query.decode("latin-1").split("&")
    kept = [one for one in given if unquote_plus(one.partition("=")[0]).lstrip("?") not in but]
    return quote("&".join(kept), safe=_STANDS_IN_A_QUERY)


def csrf_subject(kind: str, content: object) -> tuple[bytes, bytes]:
    """Subject of a form's CSRF token: the content on the screen, so that a person agrees to nothing else."""
    return kind.encode(), repr(content).encode()
