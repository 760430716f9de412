"""A compiled rule: asked with a view, it says what happens, and explains it (reference 12.7).

The caller calls

- `on_message` for each normalised message of a device that `watches` names, in the order of `cts`;
- `on_minute` at each time that `next_minute` gave;
- `on_elapsed` when a timer is due. Timers that are due at or before a message's cts come before the message.

Each answer is an `Outcome`: the changes of the rule's timers, and the match if the rule triggers. `outgoing` then makes
what is to be sent from the match.
"""

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from broker.rules.language.actions import ActionList, Outgoing
from broker.rules.language.alarms import RuleAlarm, subject_of
from broker.rules.language.conditions import Choice, Condition, ModelCondition, TimeCondition
from broker.rules.language.evaluation import (
    NO_TIMERS,
    SEEN_MAX,
    Cause,
    ConditionReport,
    Conditions,
    Explanation,
    Outcome,
    RuleMatch,
    TimerKey,
    Timers,
    TypeGroup,
    after,
    device_of,
    holds,
)
from broker.rules.language.values import Bound, View
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, UserKey


class Watch(msgspec.Struct, frozen=True):
    """A source of messages for a rule: one device, or the owner's devices of a type, and the `fields` it evaluates.

    A message of such a device counts whatever fields it has: each one triggers the rule while all conditions hold.
    """

    fields: frozenset[str]
    device: DeviceKey | None = None
    device_type: DeviceTypeKey | None = None


class Transformer(msgspec.Struct, frozen=True):
    """A condition with a model.

    Attributes:
        condition: its index in the rule.
        device, device_type: the source of the field; one of the two is None. With a type, each of the owner's devices
            of the type needs a model of its own.
        field: the dotted path of the source field.
        kind: `prediction` or `anomalyDetection`.
        predict_in_seconds: how far a prediction looks ahead.
        sensitivity: 0 to 100, of an anomaly detection.
    """

    condition: int
    device: DeviceKey | None
    device_type: DeviceTypeKey | None
    field: str
    kind: str
    predict_in_seconds: float | None = None
    sensitivity: float | None = None


@dataclass(slots=True, eq=False)
class CompiledRule:
    """One compiled rule. It holds no state: the same view and timers give the same outcome.

    Attributes:
        key: the caller's number for it, which `View.model_output` is asked with.
        conditions: its `if`.
        actions: its `then`.
        alarm: its `alarm`.
    """

    key: int
    conditions: Conditions
    actions: ActionList
    alarm: RuleAlarm | None = None

    # Evaluation

    def on_message(self, view: View, timers: Timers = NO_TIMERS) -> Outcome:
        """Evaluate `view.message`."""
        return self.conditions.on_message(view, timers)

    def on_minute(self, view: View, timers: Timers = NO_TIMERS) -> Outcome:
        """Evaluate at the beginning of a minute of the rule's `datetime` conditions; at other times nothing happens."""
        return self.conditions.on_minute(view, timers)

    def on_elapsed(self, view: View, timers: Timers, due: TimerKey) -> Outcome:
        """Evaluate because a timer is due. A timer that is gone, not due or elapsed already changes nothing."""
        return self.conditions.on_elapsed(view, timers, due)

    def outgoing(self, view: View, match: RuleMatch) -> list[Outgoing]:
        """The Actions to send, in the order of `then`. An Action that cannot be made does not stop the others."""
        return self.actions.outgoing(view, match.devices)

    # The alarm

    def subject(self, match: RuleMatch) -> DeviceKey:
        """The device that the alarm of a match is about."""
        return subject_of(self.conditions, match)

    def still_holds(self, view: View, timers: Timers, subject: DeviceKey) -> bool:
        """Whether the conditions hold now for an alarm about this device."""
        return self.conditions.hold_for(view, timers, subject)

    def concerns_all_alarms(self, view: View) -> bool:
        """Whether the evaluation may end alarms of other devices than the message's."""
        return self.conditions.concerns_all(view)

    def explain_match(self, view: View, timers: Timers, match: RuleMatch) -> tuple[ConditionReport, ...]:
        """Reports on the conditions of a match. `timers` are those after it."""
        return explain_outcome(self.conditions, view, timers, Outcome(match), Cause()).conditions

    def next_minute(self, after_ms: Milliseconds) -> Milliseconds | None:
        """The next time, later than `after_ms`, for `on_minute` and for this question; None: never.

        It is the beginning of a minute that matches a `datetime` condition, except when the sun does not rise or set
        for days: then it may be a time at which `on_minute` does nothing.
        """
        times = (condition.next_after(after_ms) for condition in self.conditions.times)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    # Explanation

    def explain_message(self, view: View, timers: Timers = NO_TIMERS) -> Explanation:
        """`on_message` with its reasons. `timers` are those before the message, as for `on_message`."""
        cause = Cause() if view.message is None else self.conditions.cause(view.message)
        return explain_outcome(self.conditions, view, timers, self.on_message(view, timers), cause)

    def explain_minute(self, view: View, timers: Timers = NO_TIMERS) -> Explanation:
        """`on_minute` with its reasons. At a moment that is no minute of the rule, it says how conditions stand."""
        return explain_outcome(self.conditions, view, timers, self.on_minute(view, timers), Cause())

    def explain_elapsed(self, view: View, timers: Timers, due: TimerKey) -> Explanation:
        """`on_elapsed` with its reasons."""
        cause = self.conditions.cause_of_timer(due)
        return explain_outcome(self.conditions, view, timers, self.on_elapsed(view, timers, due), cause)

    # Sources and destinations

    @property
    def owner(self) -> UserKey:
        """The user whose rule it is."""
        return self.conditions.owner

    @property
    def watches(self) -> tuple[Watch, ...]:
        """The sources of its messages; empty if it depends on times only."""
        fields: dict[tuple[DeviceKey | None, DeviceTypeKey | None], set[str]] = {}
        for condition in self.conditions.all:
            if condition.field:
                device = condition.device or None
                fields.setdefault((device, condition.device_type), set()).add(condition.field)
            for part in condition.last_values():
                fields.setdefault((part.device, part.device_type), set()).add(part.field)
        return tuple(Watch(frozenset(names), *source) for source, names in fields.items())

    @property
    def reads(self) -> frozenset[DeviceKey]:
        """The devices that the owner needs READ on."""
        return (
            self.conditions.named | self.actions.reads | (self.alarm.reads if self.alarm is not None else frozenset())
        )

    @property
    def writes(self) -> frozenset[DeviceKey]:
        """The devices that the owner needs WRITE on."""
        return self.actions.writes

    @property
    def type_reads(self) -> frozenset[DeviceTypeKey]:
        """The types whose devices of the owner it reads."""
        types = {watch.device_type for watch in self.watches if watch.device_type is not None}
        types |= self.alarm.type_reads if self.alarm is not None else frozenset()
        return self.actions.type_reads | types

    @property
    def type_writes(self) -> frozenset[DeviceTypeKey]:
        """The types whose devices of the owner it sends Actions to."""
        return self.actions.type_writes

    def lacks_sun(self, now_ms: Milliseconds) -> bool:
        """A sunrise or sunset of a `datetime` condition does not happen on the local date, as beyond a polar circle."""
        return any(condition.schedule.missing(now_ms) for condition in self.conditions.times)

    @property
    def transformers(self) -> tuple[Transformer, ...]:
        """The conditions with models."""
        return tuple(
            Transformer(
                condition.index,
                condition.device or None,
                condition.device_type,
                condition.field,
                condition.kind,
                condition.predict_in_seconds,
                condition.sensitivity,
            )
            for condition in self.conditions.all
            if isinstance(condition, ModelCondition)
        )

    @property
    def is_testable(self) -> bool:
        """At least one Action is static (reference 12.1)."""
        return self.actions.is_testable

    @property
    def is_static(self) -> bool:
        """All Actions are static."""
        return self.actions.is_static


# Explanations


def explain_outcome(conditions: Conditions, view: View, timers: Timers, outcome: Outcome, cause: Cause) -> Explanation:
    """Report on each condition of an outcome, with the values it looked at. `timers` are those before the outcome.

    An explanation asks the same compiled conditions as the evaluation; it goes on where the evaluation would stop.
    """
    now = after(timers, outcome.timers)
    bound: dict[DeviceTypeKey, DeviceKey] = {}
    for group in conditions.groups:
        device = conditions.chosen(group, view, now, cause)
        if device is None:
            device = _nearest(conditions, group, view, now, cause)
        if device is not None:
            bound[group.device_type] = device
    if outcome.match is not None:
        bound |= outcome.match.devices
    reports = (
        _every(conditions, condition, view, bound, now)
        if condition.choice is Choice.EVERY
        else _one(condition, view, device_of(condition, bound), bound, now)
        for condition in conditions.all
    )
    return Explanation(outcome, tuple(reports))


def _one(condition: Condition, view: View, device: DeviceKey, bound: Bound, timers: Timers) -> ConditionReport:
    if condition.choice is not None and not device:  # the owner has no device of the type
        return ConditionReport(condition.path, held=False)
    return ConditionReport(
        condition.path,
        holds(condition, view, device, bound, timers),
        device if condition.choice is not None else None,
        tuple(condition.looks_at(view, device, bound)[:SEEN_MAX]),
        condition.operand_value(view, bound),
        condition.output(view, device),
        timers.get((condition.index, device)),
        None if condition.duration is None else condition.holds(view, device, bound),
        condition.schedule if isinstance(condition, TimeCondition) else None,
    )


def _every(conditions: Conditions, condition: Condition, view: View, bound: Bound, timers: Timers) -> ConditionReport:
    """The report on a condition with `every`: one for all devices of the type."""
    reports = [_one(condition, view, device, bound, timers) for device in conditions.every_device(condition, view)]
    reports.sort(key=lambda report: _ORDER.index(report.held))
    if not reports:
        return ConditionReport(condition.path, held=False)
    seen = {(found.device, found.field): found for report in reports for found in report.seen}
    return replace(reports[0], device=None, seen=tuple(seen.values())[:SEEN_MAX])


_ORDER = (False, None, True)


def _nearest(conditions: Conditions, group: TypeGroup, view: View, timers: Timers, cause: Cause) -> DeviceKey | None:
    """The candidate that satisfies most conditions, for the reports on a group that no device satisfies."""
    if cause.device_type == group.device_type and cause.only:
        return cause.device

    def score(device: DeviceKey) -> int:
        bound = {group.device_type: device}
        return sum(
            holds(condition, view, device_of(condition, bound), bound, timers) is True for condition in group.conditions
        )

    return max(view.devices_of(conditions.owner, group.device_type), key=score, default=None)
