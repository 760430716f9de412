"""Values of the texts that found devices publish, and the texts of Actions for them (reference 16.9)."""

from collections.abc import Mapping
from typing import Any

from broker.found.templates import Template


def number_in(text: str) -> float | int | None:
    try:
        value = float(text) if len(text) <= 64 else None
    except ValueError:
        return None
    if value is None or not abs(value) < 1e300:
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def words_in(text: str) -> str | None:
    return text[:512] if text and text != "None" else None


def either(true: str, false: str, text: str) -> bool | None:
    return True if text == true else False if text == false else None


def fixed(payload: str, _parameters: Mapping[str, Any]) -> str:
    return payload


def switched(on: str, off: str, parameter: str, parameters: Mapping[str, Any]) -> str | None:
    value = parameters.get(parameter)
    return (on if value else off) if isinstance(value, bool) else None


def written(parameter: str, template: Template | None, parameters: Mapping[str, Any]) -> str | None:
    value = parameters.get(parameter)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if template is None else template.render(value=value)


def chosen(options: frozenset[str], parameter: str, template: Template | None, given: Mapping[str, Any]) -> str | None:
    value = given.get(parameter)
    return written(parameter, template, given) if isinstance(value, str) and value in options else None


def within(
    least: float, most: float, parameter: str, template: Template | None, given: Mapping[str, Any]
) -> str | None:
    value = given.get(parameter)
    fits = isinstance(value, int | float) and least <= value <= most
    return written(parameter, template, given) if fits else None
