"""What an evaluation comes to: timers that changed, the match, and the explanation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from broker.rules.schedule import Schedule
from broker.rules.view import Seen, Value
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds

TimerKey = tuple[int, DeviceKey]
"""A condition's index in the rule, and the device that meets the condition."""


@dataclass(frozen=True, slots=True)
class Timer:
    """A duration. It runs until `due_ms`; from then on, while it exists, the condition holds.

    `spent`: the rule has triggered since the timer elapsed. A rule with durations triggers once for each that elapses.
    """

    since_ms: Milliseconds
    due_ms: Milliseconds
    elapsed: bool = False
    spent: bool = False


Timers = Mapping[TimerKey, Timer]
NO_TIMERS: Final[Timers] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Match:
    """The conditions are met. `devices` has the device that satisfied `any`, by its type."""

    devices: Mapping[DeviceTypeKey, DeviceKey]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an evaluation comes to. `timers` has those that changed; None: the timer is gone. `match`: it triggers."""

    match: Match | None = None
    timers: Mapping[TimerKey, Timer | None] = field(default_factory=dict)


NOTHING: Final = Outcome()

SEEN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class ConditionReport:
    """How one condition came out.

    Attributes:
        path: where it stands in the body, such as `rule.if.and.0`.
        held: None when a value is unknown that the condition needs.
        device: the device that `any` or `matched` chose; None for other conditions, or when there is no device.
        seen: the values that were looked at, at most `SEEN_MAX`, those that kept the condition from holding first.
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


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a rule triggered or did not: its outcome, and a report on each condition in the order of the body.

    A rule with durations that has triggered for them already does not trigger, although all conditions held.
    """

    outcome: Outcome
    conditions: tuple[ConditionReport, ...]
