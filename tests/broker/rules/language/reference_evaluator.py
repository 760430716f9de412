"""A second implementation of rules: slow, plainly, on the JSON of the body (reference 12.7 and 12.10).

It knows no compiled form and shares no code with broker/rules. Devices are named by their ids, times are milliseconds.
`datetime` conditions are read with single numbers and `*` only, in UTC.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

Body = Mapping[str, Any]
TimerKey = tuple[int, str]


class Unknown(Exception):
    """A value is needed that nobody sent."""


@dataclass
class Moment:
    """The state of the world when a rule is evaluated.

    `own` has the devices of the rule's user, in order; `types` the type of every device. `values` has (value, time) by
    device and field. `message` is the current one, as (device, data), or None.
    """

    own: list[str]
    types: Mapping[str, str]
    now: int = 0
    values: dict[tuple[str, str], tuple[Any, int]] = field(default_factory=dict)
    message: tuple[str, Mapping[str, Any]] | None = None

    def devices_of(self, type_: str) -> list[str]:
        return [device for device in self.own if self.types[device] == type_]

    def value(self, device: str | None, path: str) -> Any:
        if device is None or (device, path) not in self.values:
            raise Unknown(path)
        return self.values[device, path][0]


@dataclass
class Running:
    """A duration: when it is over, and what became of it."""

    due: int
    elapsed: bool = False
    spent: bool = False


class ReferenceRule:
    """One rule and its running durations."""

    def __init__(self, body: Body) -> None:
        clauses = body["if"]
        self.conditions: list[Body] = clauses.get("and", [clauses])
        self.running: dict[TimerKey, Running] = {}

    # Events

    def message(self, moment: Moment) -> dict[str, str] | None:
        """A message came. The answer: the devices of `any` by type if the rule triggers."""
        assert moment.message is not None
        self._follow(moment)
        return self._triggered(moment, self._tie(moment))

    def minute(self, moment: Moment) -> dict[str, str] | None:
        """A minute begins."""
        begins = moment.now % 60_000 == 0 and any(
            time_holds("=", condition["operand"]["value"], moment.now)
            for condition in self.conditions
            if is_time(condition)
        )
        return self._triggered(moment, None) if begins else None

    def elapse(self, moment: Moment, key: TimerKey) -> dict[str, str] | None:
        """A duration is over."""
        self.running[key].elapsed = True
        index, device = key
        choice, type_ = selector_of(self.conditions[index])
        tie = (type_, device, True) if choice in ("any", "matched") else None
        return self._triggered(moment, tie)

    def next_due(self) -> tuple[int, TimerKey] | None:
        """The first duration to be over."""
        waiting = [(running.due, key) for key, running in self.running.items() if not running.elapsed]
        return min(waiting, default=None)

    # Which devices

    def _tie(self, moment: Moment) -> tuple[str, str, bool] | None:
        """The type that the message's device stands for, and whether no other device may."""
        assert moment.message is not None
        device = moment.message[0]
        if device not in moment.own:
            return None
        named = any(device in named_in(condition) for condition in self.conditions)
        return moment.types[device], device, not named

    def chosen(self, moment: Moment, tie: tuple[str, str, bool] | None) -> dict[str, str] | None:
        """The device of each `any`, by type; None when one has no device."""
        devices: dict[str, str] = {}
        for type_ in sorted({found[1] for found in map(selector_of, self.conditions) if found[0] == "any"}):
            candidates = moment.devices_of(type_)
            if tie is not None and tie[0] == type_:
                if self._satisfies(moment, type_, tie[1]):
                    devices[type_] = tie[1]
                    continue
                if tie[2]:
                    return None
            satisfying = [device for device in candidates if self._satisfies(moment, type_, device)]
            if not satisfying:
                return None
            newest = [self._newest(moment, type_, device) for device in satisfying]
            devices[type_] = satisfying[newest.index(max(newest))]
        return devices

    def _satisfies(self, moment: Moment, type_: str, device: str) -> bool:
        """Whether a device satisfies all conditions that depend on this choice alone."""
        return all(
            self.held(index, moment, {type_: device}) is True
            for index, condition in enumerate(self.conditions)
            if selector_of(condition)[0] != "every" and choices_in(condition) == {type_}
        )

    def _newest(self, moment: Moment, type_: str, device: str) -> int:
        times = [0]
        for condition in self.conditions:
            paths = [path for found, path in matched_fields(condition) if found == type_]
            if selector_of(condition) in (("any", type_), ("matched", type_)):
                paths.append(condition["field"])
            times += [moment.values[device, path][1] for path in paths if (device, path) in moment.values]
        return max(times)

    # Whether conditions hold

    def _triggered(self, moment: Moment, tie: tuple[str, str, bool] | None) -> dict[str, str] | None:
        devices = self.chosen(moment, tie)
        if devices is None:
            return None
        if not all(self.held(index, moment, devices) is True for index in range(len(self.conditions))):
            return None
        used = [self.running[key] for key in self._durations(moment, devices)]
        if used and all(running.spent for running in used):
            return None
        for running in used:
            running.spent = True
        return devices

    def held(self, index: int, moment: Moment, devices: Mapping[str, str]) -> bool | None:
        """Whether a condition holds, its duration included; None: a value is unknown."""
        condition = self.conditions[index]
        choice, type_ = selector_of(condition)
        if choice == "every":
            all_devices = moment.devices_of(type_)
            found = [self._held_by(index, moment, devices, device) for device in all_devices]
            return False if not found or False in found else None if None in found else True
        if is_time(condition):
            return time_holds(condition["operator"], condition["operand"]["value"], moment.now)
        device = condition["sdid"] if choice is None else devices[type_]
        return self._held_by(index, moment, devices, device)

    def _held_by(self, index: int, moment: Moment, devices: Mapping[str, str], device: str) -> bool | None:
        condition = self.conditions[index]
        if "duration" in condition:
            return (index, device) in self.running and self.running[index, device].elapsed
        return base_holds(condition, moment, devices, device)

    # Durations

    def _durations(self, moment: Moment, devices: Mapping[str, str]) -> Iterator[TimerKey]:
        for index, condition in enumerate(self.conditions):
            if "duration" in condition:
                choice, type_ = selector_of(condition)
                if choice == "every":
                    yield from ((index, device) for device in moment.devices_of(type_))
                else:
                    yield index, condition["sdid"] if choice is None else devices[type_]

    def _follow(self, moment: Moment) -> None:
        """Start, restart and end durations after a message."""
        assert moment.message is not None
        sender, data = moment.message
        for index, condition in enumerate(self.conditions):
            if "duration" not in condition:
                continue
            choice, type_ = selector_of(condition)
            subjects = [condition["sdid"]] if choice is None else moment.devices_of(type_)
            for device in subjects:
                key = (index, device)
                if "in message" in condition["operator"] and device != sender:
                    continue  # the message says nothing about this device's messages
                holds = base_holds(condition, moment, {} if choice is None else {type_: device}, device)
                updated = device == sender and in_message(data, condition["field"])
                if not holds:
                    self.running.pop(key, None)
                elif key not in self.running or (updated and not condition["duration"].get("acceptUpdate", True)):
                    self.running[key] = Running(moment.now + round(condition["duration"]["value"] * 1000))


def base_holds(condition: Body, moment: Moment, devices: Mapping[str, str], device: str) -> bool | None:
    """Whether a condition holds for a device, its duration aside."""
    operator = str(condition["operator"])
    if operator in ("is in message", "is not in message"):
        if moment.message is None or moment.message[0] != device:
            return False
        wanted = operator == "is in message"
        return in_message(moment.message[1], condition["field"]) is wanted
    try:
        value = moment.value(device, condition["field"])
        return compare(value, operator, read(condition["operand"], moment, devices))
    except Unknown:
        return None


# Operators


def kind(value: Any) -> str:
    for name, types in (("boolean", bool), ("number", (int, float)), ("text", str), ("collection", list)):
        if isinstance(value, types):
            return name
    raise AssertionError(value)


def equal(left: Any, right: Any) -> bool:
    if kind(left) != kind(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(equal(one, other) for one, other in zip(left, right, strict=True))
    return bool(left == right)


def compare(value: Any, operator: str, operand: Any) -> bool:
    if operator == "=":
        return equal(value, operand)
    if operator == "!=":
        return not equal(value, operand)
    if operator in ("contains", "does not contain"):
        if isinstance(value, list):
            found = any(equal(item, operand) for item in value)
        else:
            found = isinstance(value, str) and isinstance(operand, str) and operand in value
        return found == (operator == "contains")
    if kind(value) != kind(operand) or kind(value) not in ("number", "text"):
        return False
    smaller, same = value < operand, value == operand
    return bool({"<": smaller, "<=": smaller or same, ">": not smaller and not same, ">=": not smaller}[operator])


def in_message(data: Any, path: str) -> bool:
    name, _, rest = path.partition(".")
    if not isinstance(data, dict) or name not in data:
        return False
    return in_message(data[name], rest) if rest else True


# Operands


def read(operand: Body, moment: Moment, devices: Mapping[str, str]) -> Any:
    """The value of a value object. Raises Unknown."""
    if "value" in operand:
        return operand["value"]
    if "valueFrom" in operand:
        source = operand["valueFrom"]
        device = source["sdid"] if isinstance(source["sdid"], str) else devices.get(source["sdid"]["dtid"])
        return moment.value(device, source["field"])
    ((name, parts),) = operand.items()
    values = [read(part, moment, devices) for part in parts]
    if name == "concat":
        return "".join(text(value) for value in values)
    numbers = [number(value) for value in values]
    return sum(numbers) if name == "add" else numbers[0] - sum(numbers[1:])


def text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def number(value: Any) -> float:
    if isinstance(value, bool):
        return 1 if value else 0
    if isinstance(value, str):
        try:
            exact = Decimal(value)
        except InvalidOperation:
            return 0
        return int(exact) if exact == int(exact) else float(exact)
    return float(value) if isinstance(value, float) else int(value)


# Names in conditions


def is_time(condition: Body) -> bool:
    return bool(condition["field"] == "datetime")


def selector_of(condition: Body) -> tuple[str | None, str]:
    """Selector and type of `sdid`; (None, "") for a device and for a time."""
    source = condition.get("sdid")
    return (source["selector"], source["dtid"]) if isinstance(source, dict) else (None, "")


def sources_in(value: Any) -> Iterator[Body]:
    """Every `valueFrom` inside an operand."""
    if isinstance(value, dict):
        for member, content in value.items():
            if member == "valueFrom":
                yield content
            else:
                yield from sources_in(content)
    elif isinstance(value, list):
        for item in value:
            yield from sources_in(item)


def matched_fields(condition: Body) -> list[tuple[str, str]]:
    """The fields of `matched` devices in the operand, as (type, field)."""
    found = sources_in(condition.get("operand"))
    return [(source["sdid"]["dtid"], source["field"]) for source in found if isinstance(source["sdid"], dict)]


def choices_in(condition: Body) -> set[str]:
    """The types whose chosen devices decide a condition."""
    choice, type_ = selector_of(condition)
    own = {type_} if choice in ("any", "matched") else set()
    return own | {found for found, _ in matched_fields(condition)}


def named_in(condition: Body) -> set[str]:
    """The devices that a condition names by id."""
    sources = [condition.get("sdid"), *(source["sdid"] for source in sources_in(condition.get("operand")))]
    return {source for source in sources if isinstance(source, str)}


# Times


def time_holds(operator: str, expression: str, now: int) -> bool:
    local = datetime.fromtimestamp(now / 1000, UTC)
    minute, hour, day, month, weekday, year = expression.split()
    given = [
        (year, local.year), (month, local.month), (day, local.day), (weekday, (local.weekday() + 1) % 7),
        (hour, local.hour), (minute, local.minute),
    ]  # fmt: skip
    fixed = [(int(wanted), is_) for wanted, is_ in given if wanted != "*"]
    wanted_units, units = [wanted for wanted, _ in fixed], [is_ for _, is_ in fixed]
    assert "*" in (day, weekday), "for either of the two, this evaluator is too simple"
    return {
        "<": units < wanted_units,
        "<=": units <= wanted_units,
        "=": units == wanted_units,
        ">": units > wanted_units,
        ">=": units >= wanted_units,
    }[operator]
