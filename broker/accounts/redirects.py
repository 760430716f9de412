"""Parameters in redirects: of the query that a browser sends, and of a redirect URI."""

from collections.abc import Iterable, Sequence
from urllib.parse import parse_qsl, quote, urlencode


def with_parameters(uri: str, parameters: Iterable[tuple[str, str | None]], *, fragment: bool = False) -> str:
    """`uri` with more parameters in its query or its fragment; parameters that are None are left out.

    The registered URI stays byte for byte; parameters are only appended.

    Authlib's `add_params_to_uri` is not used: it encodes an existing query again and turns `myapp:///done` into
    `myapp:/done`; both differ from the registered URI.
    """
    # The bytes of `state` stay the same, also when they are not UTF-8.
    given = [(name, value) for name, value in parameters if value is not None]
    text = urlencode(given, safe=",", quote_via=quote, encoding="utf-8", errors="surrogateescape")
    base, hash_, old_fragment = uri.partition("#")
    if fragment:
        return f"{base}#{old_fragment}&{text}" if old_fragment else f"{base}#{text}"
    separator = "?" if "?" not in base else "" if base.endswith(("?", "&")) else "&"
    return f"{base}{separator}{text}{hash_}{old_fragment}"


class QueryParameters:
    """The parameters of a query string, by the rules of reference 1.3. One with an empty value is absent."""

    def __init__(self, query: bytes) -> None:
        self._values: dict[str, list[str]] = {}
        # `state` is returned with the same bytes, also when they are not UTF-8.
        for name, value in parse_qsl(query.decode("latin-1"), errors="surrogateescape"):
            self._values.setdefault(name.lstrip("?"), []).append(value)

    def all(self, name: str) -> Sequence[str]:
        return self._values.get(name, ())

    def one(self, name: str) -> str | None:
        """None when the parameter is absent, and when it is repeated."""
        values = self.all(name)
        return values[0] if len(values) == 1 else None

    def same(self, name: str) -> str | None:
        """None when the parameter is absent, and when it is given with different values."""
        values = set(self.all(name))
        return values.pop() if len(values) == 1 else None

    def repeated(self, names: Iterable[str]) -> bool:
        return any(len(self.all(name)) > 1 for name in names)
