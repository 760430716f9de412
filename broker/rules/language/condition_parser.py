"""Compiles conditions (reference 12.7)."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from sys import intern
from typing import Final

import msgspec

from broker.device_types.manifest import Field
from broker.device_types.reading import JsonObject
from broker.errors import BOOLEAN_ONLY, REQUIRED, choice, invalid, too_high, too_low
from broker.rules.language.body_reader import (
    INVALID_RULE,
    OF_ANOTHER_KIND,
    BodyReader,
    ReadOperand,
    RuleSource,
    not_allowed,
)
from broker.rules.language.conditions import (
    ALLOWED,
    EQUALITY,
    IS_IN_MESSAGE,
    NO_DEVICE,
    OF_TIMES,
    PRESENCE,
    TESTS,
    Choice,
    Condition,
    Duration,
    FixedValueCondition,
    ModelCondition,
    PresenceCondition,
    TimeCondition,
    ValueCondition,
)
from broker.rules.language.evaluation import Conditions, TypeGroup
from broker.rules.language.schedule import Cron, InvalidScheduleError, Schedule, SunTime
from broker.rules.language.values import (
    Constant,
    LastValue,
    Operand,
    Value,
    ValueKind,
    kind_of_field,
    kind_of_items,
    value_kind,
)
from storage.keys import DeviceTypeKey

DATETIME: Final = "datetime"
PREDICTION: Final = "prediction"
ANOMALY_DETECTION: Final = "anomalyDetection"
_SELECTORS: Final = frozenset({"any", "every", "matched"})
_CHOICES: Final = {"any": Choice.MATCHED, "matched": Choice.MATCHED, "every": Choice.EVERY}
_DURATION_MAX_SECONDS: Final = 31_536_000
_PREDICT_IN_MAX_SECONDS: Final = 31_536_000
_TIMES: Final = (
    "must be `minute hour day month weekday year`, and `TZ` with a time zone if wanted; or `@sunrise` or `@sunset` with"
    " latitude, longitude, offset, `TZ` and a time zone"
)
_SENSITIVITY_MAX: Final = 100
_SCHEDULES_SHARED: Final = 2_048


class _Model(msgspec.Struct, frozen=True):
    kind: str
    predict_in_seconds: float | None
    sensitivity: float | None


class ConditionParser:
    """Makes conditions of their objects, and puts them together."""

    def __init__(self, reader: BodyReader, rule: int) -> None:
        self._reader = reader
        self._rule = rule
        self._chosen: set[DeviceTypeKey] = set()  # the types with an `any`

    def conditions(self, entries: Iterable[tuple[str, object]]) -> Conditions:
        """The conditions at these paths, together, without those with findings."""
        read = [self.condition(entry, intern(path), index) for index, (path, entry) in enumerate(entries)]
        chosen = frozenset(self._chosen)
        found = tuple(condition for condition in read if condition is not None)
        return combine(self._reader, found, chosen)

    def condition(self, entry: object, path: str, index: int) -> Condition | None:
        if not isinstance(entry, Mapping):
            self._reader.refuse(path, invalid("must be an object"))
            return None
        if entry.get("field") == DATETIME:
            return self._time(entry, path, index)
        source = self._source(entry, path)
        found = self._reader.field(source, entry.get("field"), f"{path}.field")
        field = None if found is None else found[1]
        model = self._transformer(entry, path, field)
        operator = self._operator(entry, path, field, model)
        operand = self._operand(entry, path, operator, field, model)
        duration = self._duration(entry, path, source, operand)
        if source is None or found is None or operator is None:
            return None
        base = (index, path, source.device, source.device_type, _CHOICES.get(source.selector), found[0], duration)
        if operator in PRESENCE:
            names = tuple(map(intern, found[0].split(".")))
            return PresenceCondition(*base, None, names, operator == IS_IN_MESSAGE)
        if operand is None:
            return None
        test = TESTS[operator]
        if model is not None:
            kind, predict_in, sensitivity = model.kind, model.predict_in_seconds, model.sensitivity
            return ModelCondition(*base, operand.operand, self._rule, test, kind, predict_in, sensitivity)
        if isinstance(operand.operand, Constant):
            return FixedValueCondition(*base, operand.operand, test, operand.operand.value)
        return ValueCondition(*base, operand.operand, test)

    def _source(self, entry: JsonObject, path: str) -> RuleSource | None:
        at = f"{path}.sdid"
        source = self._reader.source(entry.get("sdid"), at, selectors=_SELECTORS)
        if source is not None and source.selector == "any" and source.device_type is not None:
            if source.device_type in self._chosen:
                self._reader.refuse(at, INVALID_RULE)
            self._chosen.add(source.device_type)
        return source

    def _operator(self, entry: JsonObject, path: str, field: Field | None, model: _Model | None) -> str | None:
        operator = self._reader.required_text(entry.get("operator"), f"{path}.operator")
        if operator is None:
            return None
        if field is None:
            allowed = PRESENCE | TESTS.keys()
        elif model is None:
            allowed = ALLOWED[kind_of_field(field)]
        else:
            allowed = (EQUALITY if model.kind == ANOMALY_DETECTION else ALLOWED[kind_of_items(field)]) - PRESENCE
        if operator in allowed:
            return operator
        self._reader.refuse(f"{path}.operator", not_allowed(operator))
        return None

    def _operand(
        self, entry: JsonObject, path: str, operator: str | None, field: Field | None, model: _Model | None
    ) -> ReadOperand | None:
        if operator in PRESENCE:
            return None
        found = self._reader.operand(entry.get("operand"), f"{path}.operand")
        if found is None or field is None or operator is None:
            return found
        if model is not None and model.kind == ANOMALY_DETECTION:
            wanted = ValueKind.BOOLEAN
        else:
            wanted = kind_of_field(field) if operator in EQUALITY else kind_of_items(field)
        if found.operand.kind is not wanted or not _has_items(found.constant, kind_of_items(field)):
            self._reader.refuse(found.path, OF_ANOTHER_KIND[wanted])
        return found

    # Times

    def _time(self, entry: JsonObject, path: str, index: int) -> Condition | None:
        reader = self._reader
        operator = reader.required_text(entry.get("operator"), f"{path}.operator")
        if operator is not None and operator not in OF_TIMES:
            reader.refuse(f"{path}.operator", not_allowed(operator))
        for member in ("duration", "transformer"):
            if entry.get(member) is not None:
                reader.refuse(f"{path}.{member}", invalid("a condition on datetime has none"))
        schedule = self._schedule(entry.get("operand"), f"{path}.operand")
        if operator is None or schedule is None:
            return None
        return TimeCondition(index, path, NO_DEVICE, None, None, "", None, None, schedule, operator)

    def _schedule(self, value: object, path: str) -> Schedule | None:
        reader = self._reader
        if not isinstance(value, Mapping):
            reader.refuse(path, REQUIRED if value is None else invalid("must be an object"))
            return None
        text = reader.required_text(value.get("value"), f"{path}.value")
        if text is None:
            return None
        try:
            return parse_schedule(text.strip())
        except InvalidScheduleError:
            reader.refuse(
                f"{path}.value",
                invalid(_TIMES),
            )
            return None

    # Durations and models

    def _duration(
        self, entry: JsonObject, path: str, source: RuleSource | None, operand: ReadOperand | None
    ) -> Duration | None:
        value = entry.get("duration")
        if value is None:
            return None
        at = f"{path}.duration"
        if not isinstance(value, Mapping):
            self._reader.refuse(at, invalid("must be an object"))
            return None
        accepts = value.get("acceptUpdate")
        if accepts is not None and not isinstance(accepts, bool):
            self._reader.refuse(f"{at}.acceptUpdate", BOOLEAN_ONLY)
        if source is not None and operand is not None and _depends_on_others(source, operand.operand):
            self._reader.refuse(at, INVALID_RULE)
        seconds = self._number(value.get("value"), f"{at}.value", 1, _DURATION_MAX_SECONDS)
        return None if seconds is None else Duration(round(seconds * 1000), accepts is not False)

    def _transformer(self, entry: JsonObject, path: str, field: Field | None) -> _Model | None:
        value = entry.get("transformer")
        if value is None:
            return None
        at = f"{path}.transformer"
        if not isinstance(value, Mapping):
            self._reader.refuse(at, invalid("must be an object"))
            return None
        kind = self._reader.required_text(value.get("type"), f"{at}.type")
        if kind is not None and kind not in (PREDICTION, ANOMALY_DETECTION):
            self._reader.refuse(f"{at}.type", invalid(choice((PREDICTION, ANOMALY_DETECTION))))
            kind = None
        if field is not None and kind_of_field(field) not in (ValueKind.NUMBER, ValueKind.BOOLEAN):
            self._reader.refuse(
                at, invalid("the field must have numbers or Booleans")
            )  # no model learns texts or collections
        parameters = value.get("parameters")
        if parameters is None:
            parameters = {}
        if not isinstance(parameters, Mapping):
            self._reader.refuse(f"{at}.parameters", invalid("must be an object"))
            return None
        if kind == PREDICTION:
            name, least, most = "predictIn", 0, _PREDICT_IN_MAX_SECONDS
        elif kind == ANOMALY_DETECTION:
            name, least, most = "anomalyDetectionSensitivity", 0, _SENSITIVITY_MAX
        else:
            return None
        number = self._number(parameters.get(name), f"{at}.parameters.{name}", least, most)
        if number == 0 and kind == PREDICTION:
            self._reader.refuse(f"{at}.parameters.{name}", invalid("must be greater than 0"))
        return _Model(PREDICTION, number, None) if kind == PREDICTION else _Model(ANOMALY_DETECTION, None, number)

    def _number(self, value: object, path: str, least: int, most: int) -> float | None:
        number = self._reader.number(value, path)
        if number is None:
            return None
        if number < least:
            self._reader.refuse(path, too_low(least))
        elif number > most:
            self._reader.refuse(path, too_high(most))
        else:
            return number
        return None


@lru_cache(maxsize=_SCHEDULES_SHARED)
def parse_schedule(text: str) -> Schedule:
    """The schedule of a cron or sun expression, shared by the rules that have it. Raises InvalidScheduleError."""
    return SunTime(text) if text.startswith("@") else Cron(text)


def combine(reader: BodyReader, found: tuple[Condition, ...], chosen: frozenset[DeviceTypeKey]) -> Conditions:
    """Sort conditions into the parts of `Conditions`. `chosen` are the types with an `any`."""
    not_every = [condition for condition in found if condition.choice is not Choice.EVERY]
    groups = tuple(
        TypeGroup(
            type_,
            tuple(condition for condition in not_every if condition.needs == {type_}),
            tuple({field for condition in found for field in condition.fields_of(type_)}),
        )
        for type_ in sorted(chosen)
    )
    return Conditions(
        owner=reader.names.owner,
        all=found,
        alone=tuple(condition for condition in not_every if not condition.needs),
        groups=groups,
        joint=tuple(condition for condition in not_every if len(condition.needs) > 1),
        every=tuple(condition for condition in found if condition.choice is Choice.EVERY),
        with_duration=tuple(condition for condition in found if condition.duration is not None),
        times=tuple(condition for condition in found if isinstance(condition, TimeCondition)),
        named=frozenset(device for condition in found for device in condition.named),
    )


def _has_items(value: Value | None, kind: ValueKind) -> bool:
    """Whether the items of a constant are of a kind, if it is a collection."""
    return not isinstance(value, list) or all(value_kind(item) is kind for item in value)


def _depends_on_others(source: RuleSource, operand: Operand) -> bool:
    """Whether it depends on the choice of `any` whether a condition holds for its own device.

    A timer belongs to one device. It cannot also follow what `any` chooses from message to message.
    """
    own = source.device_type if source.selector in ("any", "matched") else None
    return any(part.device_type not in (None, own) for part in operand.parts() if isinstance(part, LastValue))
