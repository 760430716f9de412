"""The rules that run, and which of them a message concerns (reference 12.4)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from broker.accounts.permissions import Reach
from broker.accounts.tokens import Caller, user_through
from broker.alarms.changes import AlarmRule
from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound
from broker.rules.language.conditions import FixedValueCondition, Test
from broker.rules.language.evaluation import Timer, TimerKey
from broker.rules.language.rule import CompiledRule
from broker.rules.language.sentences import conditions_of
from broker.rules.language.values import Value
from storage.alarms import OpenAlarm
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, Position, RuleKey, UserKey
from storage.rules import RuleRecord, RuleState


class _Timer(msgspec.Struct, array_like=True):
    condition: int
    device: DeviceKey
    since_ms: Milliseconds
    due_ms: Milliseconds
    elapsed: bool
    spent: bool


class _Memory(msgspec.Struct, omit_defaults=True):
    timers: list[_Timer] = []
    minute: Milliseconds | None = None
    upto: Position | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Memory).decode


#: The device of an alarm, and whether the alarm stands for more that were too many.
AlarmPlace = tuple[DeviceKey, bool]


@dataclass(slots=True, eq=False)
class RunningRule:
    """A compiled rule that runs, with its state between evaluations.

    `minute` is the last one at which the rule was evaluated because of its `datetime` conditions. Messages up to `upto`
    are done with: they came before the rule, or it was evaluated for them while others were not. `behind`: it has come
    to here only, while all others have come to the common position.
    """

    rule: CompiledRule
    key: RuleKey
    id: str
    name: str
    owner: UserKey
    owner_id: str
    since: Position
    revision: int
    reach: Reach
    timers: dict[TimerKey, Timer] = field(default_factory=dict)
    minute: Milliseconds | None = None
    #: The devices and types on which the owner needs READ whenever the rule triggers.
    reads: frozenset[DeviceKey] = frozenset()
    type_reads: frozenset[DeviceTypeKey] = frozenset()
    #: It may look at all devices of a type, so that its time is measured.
    is_costly: bool = False
    triggered: int = 0
    last_on: Milliseconds | None = None
    failing: bool = False
    upto: Position = Position(0)
    behind: Position | None = None
    modified_on: Milliseconds = Milliseconds(0)
    #: The open alarms, and when the conditions of each held last. `alarm_rule`: None without an alarm in the rule.
    alarms: dict[AlarmPlace, Milliseconds] = field(default_factory=dict)
    alarm_rule: AlarmRule | None = None
    #: The conditions of the body, for the sentences of alarms.
    conditions: tuple[dict[str, Any], ...] = ()

    @classmethod
    def made(cls, record: RuleRecord, rule: CompiledRule, reach: Reach, state: RuleState | None) -> "RunningRule":
        running = cls(
            rule,
            record.key,
            record.id,
            record.name,
            record.owner,
            record.owner_id,
            record.since,
            record.revision,
            reach,
            reads=rule.reads,
            type_reads=rule.type_reads,
            is_costly=bool(rule.type_reads or rule.type_writes),
            upto=record.since,
            modified_on=record.modified_on,
        )
        if rule.alarm is not None:
            running.alarm_rule = AlarmRule(record.key, record.id, record.name, record.owner, record.application)
            running.conditions = tuple(conditions_of(record.body))
        if state is not None:
            running.take(state)
        return running

    def take(self, state: RuleState) -> None:
        """Go on from a stored state. A rule that no engine has stored yet begins where it was made, which may be before
        the common position: another node has made it."""
        self.triggered, self.last_on, self.failing = state.triggered, state.last_on, state.failing
        memory = _decode(state.memory) if state.memory else _Memory(upto=self.since)
        self.timers, self.minute, self.behind = _timers(memory), memory.minute, memory.upto
        self.alarms = {(one.device, one.is_storm): one.last_on for one in state.alarms}

    def follow(self, common: Position) -> None:
        """The common position is this one."""
        self.upto = max(self.since, common if self.behind is None else self.behind)
        if self.upto >= common:
            self.behind = None

    def state(self, upto: Position | None = None) -> RuleState:
        """The state to store. `upto`: it is behind the common position, and has come to here."""
        timers = [_Timer(*key, one.since_ms, one.due_ms, one.elapsed, one.spent) for key, one in self.timers.items()]
        memory = _encode(_Memory(timers, self.minute, upto)).decode()
        alarms = tuple(OpenAlarm(*place, last_ms) for place, last_ms in self.alarms.items())
        return RuleState(self.key, self.revision, self.triggered, self.last_on, self.failing, memory, alarms)


def remembered(state: RuleState) -> tuple[dict[TimerKey, Timer], Milliseconds | None]:
    """The timers and the last minute of a stored state."""
    if not state.memory:
        return {}, None
    memory = _decode(state.memory)
    return _timers(memory), memory.minute


def _timers(memory: _Memory) -> dict[TimerKey, Timer]:
    return {
        (one.condition, one.device): Timer(one.since_ms, one.due_ms, one.elapsed, one.spent) for one in memory.timers
    }


def acting(record: RuleRecord) -> Caller:
    """The rule as a caller: its owner, through the application that made it."""
    return user_through(
        record.owner, record.owner_id, record.application, record.application_id, record.application_organization
    )


def through(caller: Caller, record: RuleRecord) -> Caller:
    """The rule's owner through the application of a caller."""
    return replace(
        acting(record),
        application=caller.application,
        application_id=caller.application_id,
        application_organization=caller.application_organization,
    )


_DEVICES_REMEMBERED: Final = 100_000
K = TypeVar("K")


#: The comparison of a field's value, the value to compare with, and the rule that is guarded by it.
Guard = tuple[Test, Value, RunningRule]


class Interest(msgspec.Struct, frozen=True):
    """The rules that a device's messages concern.

    A rule may have a *guard*: a condition that compares the last value of a field of the device with a constant. While
    the guard does not hold, the rule cannot trigger, and nothing else of it is looked at. `guards` has them by field;
    `unguarded` has the rules without one.
    """

    device_type: DeviceTypeKey
    owner: UserKey
    rules: tuple[RunningRule, ...]
    guards: tuple[tuple[str, tuple[Guard, ...]], ...] = ()
    unguarded: tuple[RunningRule, ...] = ()


NO_INTEREST: Final = Interest(DeviceTypeKey(0), UserKey(0), ())


class RuleIndex:
    """The running rules by key, and by the devices and types that they watch."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._rules: dict[RuleKey, RunningRule] = {}
        self._of_device: dict[DeviceKey, tuple[RunningRule, ...]] = {}
        self._of_type: dict[tuple[UserKey, DeviceTypeKey], tuple[RunningRule, ...]] = {}
        self._interests: dict[DeviceKey, Interest] = {}

    def __len__(self) -> int:
        return len(self._rules)

    def __iter__(self) -> Iterator[RunningRule]:
        return iter(self._rules.values())

    def get(self, key: RuleKey) -> RunningRule | None:
        return self._rules.get(key)

    def has(self, running: RunningRule) -> bool:
        """The rule still runs, and was not replaced."""
        return self._rules.get(running.key) is running

    def put(self, running: RunningRule) -> None:
        """Add a rule, or replace the one with its key."""
        self.remove(running.key)
        self._rules[running.key] = running
        for watch in running.rule.watches:
            if watch.device is not None:
                known = self._of_device.get(watch.device, ())
                if running not in known:
                    self._of_device[watch.device] = _in_order((*known, running))
                    self._interests.pop(watch.device, None)
            elif watch.device_type is not None:
                place = (running.owner, watch.device_type)
                known = self._of_type.get(place, ())
                if running not in known:
                    self._of_type[place] = _in_order((*known, running))
                    self._interests.clear()

    def remove(self, key: RuleKey) -> None:
        running = self._rules.pop(key, None)
        if running is None:
            return
        for watch in running.rule.watches:
            if watch.device is not None and (known := self._of_device.get(watch.device)):
                _put_or_drop(self._of_device, watch.device, tuple(one for one in known if one is not running))
                self._interests.pop(watch.device, None)
            elif watch.device_type is not None:
                place = (running.owner, watch.device_type)
                if known := self._of_type.get(place):
                    _put_or_drop(self._of_type, place, tuple(one for one in known if one is not running))
                    self._interests.clear()

    def of_type(self, owner: UserKey, device_type: DeviceTypeKey) -> tuple[RunningRule, ...]:
        """The rules of a user whose conditions have a selector of this type."""
        return self._of_type.get((owner, device_type), ())

    def interest(self, device: DeviceKey) -> Interest | None:
        """The rules that a message of this device concerns; None: `find` must look the device up."""
        return self._interests.get(device)

    async def find(self, device: DeviceKey) -> Interest:
        if len(self._interests) >= _DEVICES_REMEMBERED:
            self._interests.clear()
        if not self._of_type and device not in self._of_device:
            found = NO_INTEREST
        else:
            try:
                known = await self._devices.get(device)
            except DeviceNotFound:
                return NO_INTEREST
            rules = {*self._of_device.get(device, ()), *self._of_type.get((known.owner, known.type_key), ())}
            found = _interest(known, _in_order(rules))
        self._interests[device] = found
        return found


def _interest(device: Device, rules: tuple[RunningRule, ...]) -> Interest:
    guards: dict[str, list[Guard]] = {}
    unguarded: list[RunningRule] = []
    for running in rules:
        guard = _guard(running, device.key)
        if guard is None:
            unguarded.append(running)
        else:
            guards.setdefault(guard.field, []).append((guard.test, guard.constant, running))
    by_field = tuple((field, tuple(tests)) for field, tests in guards.items())
    return Interest(device.type_key, device.owner, rules, by_field, tuple(unguarded))


def _guard(running: RunningRule, device: DeviceKey) -> FixedValueCondition | None:
    """A condition that every match needs. None: there is none, or durations follow each message."""
    conditions = running.rule.conditions
    if conditions.with_duration or running.rule.alarm is not None:  # a message may clear an alarm
        return None
    for condition in conditions.alone:
        if isinstance(condition, FixedValueCondition) and condition.device == device:
            return condition
    return None


def _in_order(rules: Iterable[RunningRule]) -> tuple[RunningRule, ...]:
    return tuple(sorted(rules, key=lambda running: running.key))


def _put_or_drop(places: dict[K, tuple[RunningRule, ...]], place: K, rules: tuple[RunningRule, ...]) -> None:
    if rules:
        places[place] = rules
    else:
        del places[place]
