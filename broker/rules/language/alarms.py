"""The alarm of a rule, which is raised when the rule triggers (reference 12.12)."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from broker.errors import REQUIRED, choice, invalid, too_long
from broker.rules.language.body_reader import BodyReader
from broker.rules.language.conditions import NO_DEVICE
from broker.rules.language.evaluation import Conditions, RuleMatch
from broker.rules.language.values import (
    Bound,
    Constant,
    LastValue,
    Operand,
    UnknownValueError,
    ValueKind,
    View,
    as_text,
)
from config.limits import ALARM_CLEAR_SECONDS_MAX, ALARM_TEXT_CHARACTERS
from storage.keys import DeviceKey, DeviceTypeKey

_PATH: Final = "rule.alarm"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class RuleAlarm(msgspec.Struct, frozen=True):
    """`clear_after`: seconds without a trigger, after which it is cleared. None: it is cleared when the conditions do
    not hold any more."""

    severity: Severity
    text: Operand
    clear_after: int | None

    def text_in(self, view: View, bound: Bound) -> str:
        """The text with the values of now, in one line; empty when one of them is unknown."""
        try:
            text = as_text(self.text.read(view, bound))
        except UnknownValueError:
            return ""
        line = " ".join("".join(one if one.isprintable() else " " for one in text).split())
        return line if len(line) <= ALARM_TEXT_CHARACTERS else line[: ALARM_TEXT_CHARACTERS - 1] + "…"

    def last_values(self) -> Iterator[LastValue]:
        """The last values that the text reads."""
        for part in self.text.parts():
            if isinstance(part, LastValue):
                yield part

    @property
    def reads(self) -> frozenset[DeviceKey]:
        return frozenset(part.device for part in self.last_values() if part.device is not None)

    @property
    def type_reads(self) -> frozenset[DeviceTypeKey]:
        return frozenset(part.device_type for part in self.last_values() if part.device_type is not None)


def alarm_of(reader: BodyReader, value: object, conditions: Conditions) -> RuleAlarm | None:
    """The alarm of a body; None without one, or with a finding."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        reader.refuse(_PATH, invalid("must be an object"))
        return None
    severity = _severity(reader, value.get("severity"))
    text = _text(reader, value.get("text"))
    after = value.get("clearAfter")
    if after is not None and (isinstance(after, bool) or not isinstance(after, int)):
        reader.refuse(f"{_PATH}.clearAfter", invalid("must be a whole number of seconds"))
        return None
    if after is not None and not 1 <= after <= ALARM_CLEAR_SECONDS_MAX:
        reader.refuse(f"{_PATH}.clearAfter", invalid(f"must be a number from 1 to {ALARM_CLEAR_SECONDS_MAX}"))
        return None
    if after is None and conditions.all and len(conditions.times) == len(conditions.all):
        # No message says that conditions on times do not hold any more.
        reader.refuse(f"{_PATH}.clearAfter", REQUIRED)
        return None
    return None if severity is None or text is None else RuleAlarm(severity, text, after)


def _severity(reader: BodyReader, value: object) -> Severity | None:
    text = reader.required_text(value, f"{_PATH}.severity")
    if text is None:
        return None
    try:
        return Severity(text)
    except ValueError:
        reader.refuse(f"{_PATH}.severity", invalid(choice([one.value for one in Severity])))
        return None


def _text(reader: BodyReader, value: object) -> Operand | None:
    """A text, or a value object whose value can be made one."""
    at = f"{_PATH}.text"
    if isinstance(value, str):
        value = {"value": value}
    found = reader.operand(value, at)
    if found is None:
        return None
    if found.operand.kind is ValueKind.COLLECTION:
        reader.refuse(found.path, invalid("must not be a collection"))
        return None
    if isinstance(found.operand, Constant):
        text = as_text(found.operand.value)
        if not text.strip():
            reader.refuse(at, REQUIRED)
            return None
        if len(text) > ALARM_TEXT_CHARACTERS:
            reader.refuse(at, too_long(ALARM_TEXT_CHARACTERS))
            return None
    return found.operand


def subject_of(conditions: Conditions, match: RuleMatch | None) -> DeviceKey:
    """The device that an alarm is about: the first one that satisfies `any`, otherwise the first one that a condition
    names; without one, no device."""
    if conditions.groups and match is not None:
        return match.devices[conditions.groups[0].device_type]
    return next((condition.device for condition in conditions.all if condition.device), NO_DEVICE)
