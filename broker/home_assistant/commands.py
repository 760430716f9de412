"""Actions that payloads on set topics ask for, with their parameters."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from broker.errors import ValidationFailed, choice, invalid, too_high, too_long, too_low
from config.limits import MAX_DATA_BYTES

PRESS: Final = "PRESS"
ON: Final = "ON"
OFF: Final = "OFF"
#: The member of findings about what has come.
_PAYLOAD: Final = "payload"


class Call(msgspec.Struct, frozen=True):
    """An Action with its parameters."""

    name: str
    parameters: Mapping[str, Any] = {}

    @property
    def data(self) -> bytes:
        """The data of the Action message (reference 9.1)."""
        action = {"name": self.name, "parameters": self.parameters} if self.parameters else {"name": self.name}
        return msgspec.json.encode({"actions": [action]})


#: Makes the call of a payload. Raises ValidationFailed.
Command = Callable[[bytes], Call]


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise ValidationFailed.of(_PAYLOAD, invalid("must be a text")) from None


def choose(calls: Mapping[str, Call], payload: bytes) -> Call:
    """One of these, by what is written."""
    found = calls.get(_text(payload))
    if found is None:
        raise ValidationFailed.of(_PAYLOAD, invalid(choice(calls)))
    return found


def number(name: str, parameter: str, bounds: tuple[float, float], is_whole: bool, payload: bytes) -> Call:
    """The Action with a number as its one parameter."""
    value = _number(_text(payload))
    if is_whole and value != int(value):
        raise ValidationFailed.of(_PAYLOAD, invalid("must be a whole number"))
    least, most = bounds
    if value < least:
        raise ValidationFailed.of(_PAYLOAD, too_low(least))
    if value > most:
        raise ValidationFailed.of(_PAYLOAD, too_high(most))
    return Call(name, {parameter: int(value) if is_whole else value})


def _number(text: str) -> float:
    try:
        value = float(text) if len(text) <= 32 else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValidationFailed.of(_PAYLOAD, invalid("must be a number"))
    return value


def text_call(name: str, parameter: str, payload: bytes) -> Call:
    """The Action with a text as its one parameter."""
    if len(payload) > MAX_DATA_BYTES:
        raise ValidationFailed.of(_PAYLOAD, too_long(MAX_DATA_BYTES))
    return Call(name, {parameter: _text(payload)})


def colour(name: str, group: str, parts: tuple[str, str, str], payload: bytes) -> Call:
    """The Action with a colour: `255,128,0` for red, green and blue."""
    values = [_number(part) for part in _text(payload).split(",", 3)]
    if len(values) != 3 or not all(0 <= value <= 255 for value in values):
        raise ValidationFailed.of(_PAYLOAD, invalid("must be three numbers of 0 to 255 with commas between them"))
    return Call(name, {group: dict(zip(parts, map(int, values), strict=True))})
