"""Evaluates the conditions of a rule together (reference 12.7).

A rule's conditions fall into four parts, which are evaluated in this order:

- *alone*: about one device or the time. They need nothing else.
- *groups*: for each type with an `any`, the conditions that depend on its device. The device of the message that causes
  the evaluation is the only candidate if it is one; otherwise the candidate whose values came last is chosen.
- *joint*: conditions that depend on the chosen devices of two types.
- *every*: about all of the owner's devices of a type.

A condition with a duration holds while its timer has elapsed. Timers follow their conditions: `_advance` starts and
ends them with each message.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.rules.language.conditions import NO_DEVICE, Choice, Condition, TimeCondition, has_field
from broker.rules.language.schedule import Schedule
from broker.rules.language.values import NOTHING_BOUND, Bound, CurrentMessage, Seen, Value, View
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, UserKey

TimerKey = tuple[int, DeviceKey]
"""A condition's index in the rule, and the device that meets the condition."""


class Timer(msgspec.Struct, frozen=True):
    """A duration. It runs until `due_ms`; from then on, while it exists, the condition holds.

    `spent`: the rule has triggered since the timer elapsed. A rule with durations triggers once for each that elapses.
    """

    since_ms: Milliseconds
    due_ms: Milliseconds
    elapsed: bool = False
    spent: bool = False


Timers = Mapping[TimerKey, Timer]
NO_TIMERS: Final[Timers] = MappingProxyType({})


class RuleMatch(msgspec.Struct, frozen=True):
    """The conditions are met. `devices` has the device that satisfied `any`, by its type."""

    devices: Mapping[DeviceTypeKey, DeviceKey]


class Outcome(msgspec.Struct, frozen=True):
    """The result of an evaluation. `timers` has the changed ones; None: the timer is gone. `match`: it triggers."""

    match: RuleMatch | None = None
    timers: Mapping[TimerKey, Timer | None] = msgspec.field(default_factory=dict)


NOTHING: Final = Outcome()

SEEN_MAX: Final = 10


class ConditionReport(msgspec.Struct, frozen=True):
    """How one condition came out.

    Attributes:
        path: where it stands in the body, such as `rule.if.and.0`.
        held: None when a value is unknown that the condition needs.
        device: the device that `any` or `matched` chose; None for other conditions, or when there is no device.
        seen: the values that were looked at, at most `SEEN_MAX`; those against the condition come first.
        operand: what the values were compared with; None when there is none or it is unknown.
        output: what the model said; None without a model, or while it is not ready.
        timer: the running or elapsed duration.
        holds_now: of a condition with a duration: whether it holds without regard to that.
        schedule: of a condition on times: when they are.
    """

    path: str
    held: bool | None
    device: DeviceKey | None = None
    seen: tuple[Seen, ...] = ()
    operand: Value | None = None
    output: Value | None = None
    timer: Timer | None = None
    holds_now: bool | None = None
    schedule: Schedule | None = None


class Explanation(msgspec.Struct, frozen=True):
    """Why a rule triggered or did not: its outcome, and a report on each condition in the order of the body.

    A rule with durations that has triggered for them already does not trigger, although all conditions held.
    """

    outcome: Outcome
    conditions: tuple[ConditionReport, ...]


_NOTHING_CHOSEN: Final = RuleMatch(NOTHING_BOUND)


class Cause(msgspec.Struct, frozen=True):
    """The device that causes an evaluation, and its type. By default: time, or a device that no selector can mean.

    `only`: among the devices of the type, no other one may satisfy `any`. That is so unless the rule also names the
    device by its id: then its message may be about that condition.
    """

    device: DeviceKey = NO_DEVICE
    device_type: DeviceTypeKey | None = None
    only: bool = True


_TIME: Final = Cause()


@dataclass(slots=True, eq=False)
class TypeGroup:
    """The conditions that depend on the device of one type that satisfies `any`, and no other type.

    `fields` has all fields of the device that the rule's conditions look at.
    """

    device_type: DeviceTypeKey
    conditions: tuple[Condition, ...]
    fields: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Conditions:
    """The conditions of a rule, in their parts. `named` has the devices that the rule names by id."""

    owner: UserKey
    all: tuple[Condition, ...]
    alone: tuple[Condition, ...]
    groups: tuple[TypeGroup, ...]
    joint: tuple[Condition, ...]
    every: tuple[Condition, ...]
    with_duration: tuple[Condition, ...]
    times: tuple[TimeCondition, ...]
    named: frozenset[DeviceKey]

    # Causes

    def on_message(self, view: View, timers: Timers) -> Outcome:
        message = view.message
        if message is None:
            return NOTHING
        if not self.with_duration:
            found = self._match(view, NO_TIMERS, self.cause(message))
            return NOTHING if found is None else Outcome(found)
        changes = dict(self._advance(view, message, timers))
        return self._outcome(view, after(timers, changes), changes, self.cause(message))

    def on_minute(self, view: View, timers: Timers) -> Outcome:
        if not any(condition.begins(view.now_ms) for condition in self.times):
            return NOTHING
        return self._outcome(view, timers, {}, _TIME)

    def on_elapsed(self, view: View, timers: Timers, due: TimerKey) -> Outcome:
        timer = timers.get(due)
        if timer is None or timer.elapsed or timer.due_ms > view.now_ms:
            return NOTHING
        index, device = due
        type_ = self.all[index].device_type
        if type_ is not None and device not in view.devices_of(self.owner, type_):
            return Outcome(timers={due: None})
        changes: dict[TimerKey, Timer | None] = {due: replace(timer, elapsed=True)}
        return self._outcome(view, after(timers, changes), changes, self.cause_of_timer(due))

    def cause(self, message: CurrentMessage) -> Cause:
        if message.owner != self.owner:  # selectors choose from the owner's devices
            return _TIME
        return Cause(message.device, message.device_type, message.device not in self.named)

    def cause_of_timer(self, due: TimerKey) -> Cause:
        index, device = due
        condition = self.all[index]
        return Cause(device, condition.device_type) if condition.choice is Choice.MATCHED else _TIME

    # Alarms

    def hold_for(self, view: View, timers: Timers, device: DeviceKey) -> bool:
        """Whether the conditions hold, and of the type of the first `any` for this device."""
        cause = Cause(device, self.groups[0].device_type) if self.groups else _TIME
        return self._match(view, timers, cause) is not None

    def concerns_all(self, view: View) -> bool:
        """Whether the cause of an evaluation may decide about other devices than its own."""
        message = view.message
        if message is None or len(self.groups) != 1 or self.joint or self.every:
            return True
        is_member = message.owner == self.owner and message.device_type == self.groups[0].device_type
        return not is_member or message.device in self.named

    # Together

    def _outcome(self, view: View, timers: Timers, changes: dict[TimerKey, Timer | None], cause: Cause) -> Outcome:
        found = self._match(view, timers, cause)
        if found is not None and self.with_duration:
            unspent = [key for key in self._timers_of(view, found) if not timers[key].spent]
            changes |= {key: replace(timers[key], spent=True) for key in unspent}
            if not unspent:
                found = None
        return Outcome(found, changes) if found is not None or changes else NOTHING

    def _match(self, view: View, timers: Timers, cause: Cause) -> RuleMatch | None:
        for condition in self.alone:
            if not holds(condition, view, condition.device, NOTHING_BOUND, timers):
                return None
        bound: dict[DeviceTypeKey, DeviceKey] = {}
        for group in self.groups:
            device = self.chosen(group, view, timers, cause)
            if device is None:
                return None
            bound[group.device_type] = device
        for condition in self.joint:
            if not holds(condition, view, device_of(condition, bound), bound, timers):
                return None
        for condition in self.every:
            if not self.every_holds(condition, view, bound, timers):
                return None
        return RuleMatch(bound) if bound else _NOTHING_CHOSEN

    def chosen(self, group: TypeGroup, view: View, timers: Timers, cause: Cause) -> DeviceKey | None:
        """The device of the group's type that satisfies `any`."""
        if cause.device_type == group.device_type:
            if satisfies(group, view, cause.device, timers):
                return cause.device
            if cause.only:
                return None
        best: DeviceKey | None = None
        newest = -1
        for device in view.devices_of(self.owner, group.device_type):
            if satisfies(group, view, device, timers):
                last = max((view.value_ms(device, field) or 0 for field in group.fields), default=0)
                if last > newest:
                    best, newest = device, last
        return best

    def every_holds(self, condition: Condition, view: View, bound: Bound, timers: Timers) -> bool:
        devices = self.every_device(condition, view)
        # The device that failed last will most often fail again: looking at it first saves looking at all the others.
        if condition.failed in devices and not holds(condition, view, condition.failed, bound, timers):
            return False
        for device in devices:
            if not holds(condition, view, device, bound, timers):
                condition.failed = device
                return False
        return bool(devices)

    def every_device(self, condition: Condition, view: View) -> Collection[DeviceKey]:
        """The devices that `every` means."""
        type_ = condition.device_type
        return () if type_ is None else view.devices_of(self.owner, type_)

    # Timers

    def _advance(self, view: View, message: CurrentMessage, timers: Timers) -> Iterator[tuple[TimerKey, Timer | None]]:
        """The timers that a message starts, restarts or ends."""
        for condition in self.with_duration:
            if (duration := condition.duration) is None:
                continue
            for device in self._concerned(condition, view, message):
                key = (condition.index, device)
                timer = timers.get(key)
                bound = {} if condition.device_type is None else {condition.device_type: device}
                if not condition.holds(view, device, bound):
                    if timer is not None:
                        yield key, None
                elif timer is None or (not duration.accepts_update and _updates(message, condition, device)):
                    yield key, Timer(view.now_ms, Milliseconds(view.now_ms + duration.length_ms))

    def _concerned(self, condition: Condition, view: View, message: CurrentMessage) -> Iterator[DeviceKey]:
        """The devices for which a message may change whether a condition holds."""
        device, type_ = message.device, condition.device_type
        by_operand = any(part.device == device for part in condition.last_values())
        if type_ is None:
            if device == condition.device or by_operand:
                yield condition.device
        elif by_operand:
            yield from view.devices_of(self.owner, type_)
        elif type_ == message.device_type and message.owner == self.owner:
            yield device

    def _timers_of(self, view: View, match: RuleMatch) -> Iterator[TimerKey]:
        """The timers of the durations that a match rests on."""
        for condition in self.with_duration:
            if condition.choice is Choice.EVERY:
                for device in self.every_device(condition, view):
                    yield condition.index, device
            else:
                yield condition.index, device_of(condition, match.devices)


def holds(condition: Condition, view: View, device: DeviceKey, bound: Bound, timers: Timers) -> bool | None:
    """Whether a condition holds for a device, its duration included."""
    if condition.duration is None:
        return condition.holds(view, device, bound)
    timer = timers.get((condition.index, device))
    return timer is not None and timer.elapsed


def satisfies(group: TypeGroup, view: View, device: DeviceKey, timers: Timers) -> bool:
    bound = {group.device_type: device}
    return all(holds(condition, view, device_of(condition, bound), bound, timers) for condition in group.conditions)


def device_of(condition: Condition, bound: Bound) -> DeviceKey:
    """The device that a condition is about, unless it is about every device of a type."""
    type_ = condition.device_type
    return condition.device if type_ is None else bound.get(type_, NO_DEVICE)


def _updates(message: CurrentMessage, condition: Condition, device: DeviceKey) -> bool:
    return message.device == device and has_field(message.data, tuple(condition.field.split(".")))


def after(timers: Timers, changes: Mapping[TimerKey, Timer | None]) -> Timers:
    if not changes:
        return timers
    kept = {key: timer for key, timer in timers.items() if key not in changes}
    return kept | {key: timer for key, timer in changes.items() if timer is not None}
