"""Values of CBOR and MessagePack as JSON, which Ingest takes (reference 8.4): one rule for both.

JSON has neither NaN nor infinity, and no half of a surrogate pair is a text. The encoder would make a null of a number
that is not finite, and nobody would be told. So it becomes something that no field but a text holds: the Manifest drops
the field and names it, as it does for the JSON number 1e400.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, Final

import msgspec

_encode: Final = msgspec.json.Encoder().encode


class NotFiniteError(ValueError):
    """A number is NaN or infinite. `path` is where, dotted."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def to_json(found: object) -> bytes:
    """The JSON text of a value: byte strings become BASE64, numbers as keys become text (RFC 8949, 6.1).

    NaN and infinity become the texts `NaN`, `Infinity` and `-Infinity`; halves of surrogate pairs are escaped.

    Raises:
        ValueError, TypeError, OverflowError: something has no equivalent.
    """
    try:
        text = _encode(found)
    except UnicodeEncodeError:
        return _carefully(found)
    return _carefully(found) if b"null" in text else text  # a number that is not finite became null


def check_finite(found: object) -> None:
    """Raises NotFiniteError."""
    for path, *_ in _numbers_without_json({"data": found}):
        raise NotFiniteError(path)


def _carefully(found: object) -> bytes:
    plain = msgspec.to_builtins({"": found}, str_keys=True)
    for _, container, key, value in list(_numbers_without_json(plain)):
        container[key] = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return json.dumps(plain[""], separators=(",", ":"), allow_nan=False).encode()


def _numbers_without_json(found: object) -> Iterator[tuple[str, Any, Any, float]]:
    """Dotted path, container, key and value of each. Without recursion: values nest deeper than calls may."""
    waiting: list[tuple[str, Any]] = [("", found)]
    while waiting:
        above, container = waiting.pop()
        members = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in members:
            path = f"{above}.{key}" if above else str(key)
            if isinstance(value, dict | list):
                waiting.append((path, value))
            elif isinstance(value, float) and not math.isfinite(value):
                yield path, container, key, value
