"""The operator's templates: texts with placeholders as `{did}` or `{parameters.level}`. Nothing is evaluated."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

_PLACE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)\}")


def check_template(template: Any, names: frozenset[str]) -> None:
    """Raise ValueError when a placeholder, here or in a value inside, begins with none of the names."""
    match template:
        case str():
            for place in _PLACE.findall(template):
                if place.partition(".")[0] not in names:
                    raise ValueError(f"{{{place}}} (allowed: {', '.join(sorted(names))})")
        case dict():
            for value in template.values():
                check_template(value, names)
        case list():
            for value in template:
                check_template(value, names)


def fill_template(template: Any, values: Mapping[str, Any]) -> Any:
    """The template with values in its placeholders. A text that is just one placeholder becomes the value itself.

    Raises ValueError when a placeholder has no value.
    """
    match template:
        case str():
            if (whole := _PLACE.fullmatch(template)) is not None:
                return _value(whole[1], values)
            return _PLACE.sub(_substitute(values, str), template)
        case dict():
            return {name: fill_template(value, values) for name, value in template.items()}
        case list():
            return [fill_template(value, values) for value in template]
    return template


def fill_url(template: str, values: Mapping[str, Any]) -> str:
    """Fill the template of an address; values are percent-encoded. Raises ValueError."""
    return _PLACE.sub(_substitute(values, lambda text: quote(text, safe="")), template)


def _substitute(values: Mapping[str, Any], form: Callable[[str], str]) -> Callable[[re.Match[str]], str]:
    def text(place: re.Match[str]) -> str:
        value = _value(place[1], values)
        return form(value if isinstance(value, str) else msgspec.json.encode(value).decode())

    return text


def _value(place: str, values: Mapping[str, Any]) -> Any:
    found: Any = values
    for name in place.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is None:
        raise ValueError(f"there is no {place}")
    return found
