"""A compiled rule: asked with a view, it says what happens.

Who asks, and when:

- `on_message` for each normalised message of a device that `watches` names, in the order of `cts`;
- `on_minute` at each time that `next_minute` gave;
- `on_elapsed` when a timer is due. Timers that are due at or before a message's cts come before the message.

Each answer is an `Outcome`: the changes of the rule's timers, and the match if the rule triggers. `outgoing` then makes
what is to be sent from the match.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from broker.rules.view import NestedValue, Seen, Value, View
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, UserKey

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
    timers: Mapping[TimerKey, Timer | None] = NO_TIMERS


NOTHING: Final = Outcome()


@dataclass(frozen=True, slots=True)
class Watch:
    """Whose messages concern a rule: one device's, or those of the owner's devices of a type. `fields` are looked at.

    A message of such a device counts whatever fields it has: each one triggers the rule while all conditions hold.
    """

    fields: frozenset[str]
    device: DeviceKey | None = None
    device_type: DeviceTypeKey | None = None


@dataclass(frozen=True, slots=True)
class Transformer:
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


@dataclass(frozen=True, slots=True)
class ConditionReport:
    """How one condition came out.

    Attributes:
        path: where it stands in the body, such as `rule.if.and.0`.
        held: None when a value is unknown that the condition needs.
        device: the device that `any` or `matched` chose; None for other conditions, or when no device was chosen.
        seen: the values that were looked at, at most `SEEN_MAX`, those that kept the condition from holding first.
        operand: what the values were compared with; None when there is none or it is unknown.
        timer: the running or elapsed duration.
    """

    path: str
    held: bool | None
    device: DeviceKey | None = None
    seen: tuple[Seen, ...] = ()
    operand: Value | None = None
    timer: Timer | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a rule triggered or did not: its outcome, and a report on each condition in the order of the body."""

    outcome: Outcome
    conditions: tuple[ConditionReport, ...]


@dataclass(frozen=True, slots=True)
class SendAction:
    """An Action for a device. `index` is its place in `then`."""

    index: int
    device: DeviceKey
    name: str
    parameters: Mapping[str, NestedValue]


@dataclass(frozen=True, slots=True)
class CallHttp:
    """`httpRequest`. `url` is checked for its form only: whoever calls refuses private addresses (reference 11.2)."""

    index: int
    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    body: str | None


@dataclass(frozen=True, slots=True)
class SendMail:
    """`sendEmail`. `to` None: the rule's owner."""

    index: int
    to: str | None
    subject: str
    body: str


@dataclass(frozen=True, slots=True)
class NotSent:
    """An Action that cannot be made, and why: a value is unknown, or no text or number can be made of it."""

    index: int
    reason: str


Outgoing = SendAction | CallHttp | SendMail | NotSent


@dataclass(slots=True, eq=False)
class Rule:
    """One compiled rule. It holds no state: the same view and timers give the same outcome.

    Attributes:
        key: the caller's number for it, which `View.model_output` is asked with.
        owner: the user whose rule it is.
        watches: whose messages concern it; empty when only times do.
        reads, writes: devices that the owner needs READ or WRITE on; `type_reads`, `type_writes` are device types of
            which the rule uses the owner's devices.
        has_times: it has `datetime` conditions.
        transformers: the conditions with models.
        is_testable: at least one Action is static; `is_static`: all are (reference 12.1).
    """

    key: int
    owner: UserKey
    watches: tuple[Watch, ...]
    reads: frozenset[DeviceKey] = field(default=frozenset())
    writes: frozenset[DeviceKey] = field(default=frozenset())
    type_reads: frozenset[DeviceTypeKey] = field(default=frozenset())
    type_writes: frozenset[DeviceTypeKey] = field(default=frozenset())
    transformers: tuple[Transformer, ...] = ()
    has_times: bool = False
    is_testable: bool = False
    is_static: bool = False

    def on_message(self, view: View, timers: Timers = NO_TIMERS) -> Outcome:
        """Evaluate `view.message`."""
        raise NotImplementedError

    def on_minute(self, view: View, timers: Timers = NO_TIMERS) -> Outcome:
        """Evaluate at the beginning of a minute of the rule's `datetime` conditions."""
        raise NotImplementedError

    def on_elapsed(self, view: View, timers: Timers, due: TimerKey) -> Outcome:
        """Evaluate because a timer is due. A timer that is gone or elapsed already changes nothing."""
        raise NotImplementedError

    def explain_message(self, view: View, timers: Timers = NO_TIMERS) -> Explanation:
        """`on_message` with its reasons. `timers` are those before the message, as for `on_message`."""
        raise NotImplementedError

    def explain_minute(self, view: View, timers: Timers = NO_TIMERS) -> Explanation:
        """`on_minute` with its reasons. At a moment that is no minute of the rule, it says how conditions stand."""
        raise NotImplementedError

    def explain_elapsed(self, view: View, timers: Timers, due: TimerKey) -> Explanation:
        """`on_elapsed` with its reasons."""
        raise NotImplementedError

    def next_minute(self, after_ms: Milliseconds) -> Milliseconds | None:
        """The next beginning of a minute of a `datetime` condition, later than `after_ms`; None: there is none."""
        raise NotImplementedError

    def outgoing(self, view: View, match: Match) -> list[Outgoing]:
        """What is to be sent, in the order of `then`. An Action that cannot be made does not stop the others."""
        raise NotImplementedError
