"""What a browser posts."""

from typing import Final
from urllib.parse import parse_qsl, quote, unquote_plus

from protocols.http.body import read_body

_FORM_BYTES: Final = 64 * 1024
_STANDS_IN_A_QUERY: Final = "%&=+?/:@!$'()*,;"


class Form:
    def __init__(self, body: bytes) -> None:
        given = parse_qsl(body.decode("latin-1"), keep_blank_values=True, errors="replace")
        self._values = dict(given)

    @classmethod
    async def of_request(cls) -> "Form":
        """Raises BodyTooLarge."""
        return cls(await read_body(limit=_FORM_BYTES))

    def text(self, name: str) -> str:
        return self._values.get(name, "")

    def query(self, name: str) -> bytes:
        """A query string that a page carried along. It may be anything."""
        return self.text(name).encode("latin-1", errors="replace")


def as_field(query: bytes) -> str:
    """A query string as `Form.query` reads it."""
    return query.decode("latin-1")


def in_address(query: bytes, *, but: str) -> str:
    """A query string as it stands in an address, meaning what it meant, without the parameter `but`."""
    given = query.decode("latin-1").split("&")
    kept = [one for one in given if unquote_plus(one.partition("=")[0]).lstrip("?") != but]
    return quote("&".join(kept), safe=_STANDS_IN_A_QUERY)
