"""The parameters of a query string that a browser was sent with, by the rules of reference 1.3."""

from collections.abc import Iterable, Sequence
from urllib.parse import parse_qsl


class QueryParameters:
    """Values by name. A parameter with an empty value is absent."""

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
