"""Reads TOML: the settings and the provision file."""

import tomllib
from typing import Any, Final

from config.limits import JSON_NESTING_MAX

_INTEGERS: Final = range(-(2**63), 2**63)


def read_toml(text: str) -> dict[str, Any]:
    """The tables of a text.

    Raises ValueError with what is wrong, also for an integer of more than 64 bits (TOML 1.0, Integer) and for too many
    levels.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level: list[Any] = [document]
    for _ in range(JSON_NESTING_MAX + 1):
        if any(type(value) is int and value not in _INTEGERS for value in level):
            raise ValueError("an integer of more than 64 bits")
        level = [inner for value in level if isinstance(value, dict | list) for inner in _inner(value)]
        if not level:
            return document
    raise ValueError(_TOO_DEEP)


_TOO_DEEP: Final = f"more than {JSON_NESTING_MAX} levels of arrays and tables"


def _inner(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value
