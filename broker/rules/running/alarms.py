"""The meaning of an evaluation for the alarms of its rule (reference 12.12).

As everything that follows from an evaluation, it is a function of the log alone.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

import msgspec

from broker.alarms.changes import STORM_TEXT, AlarmChange, Change, ClearedBy
from broker.rules.language.evaluation import ConditionReport, RuleMatch, TimerKey, Timers
from broker.rules.language.rule import CompiledRule
from broker.rules.language.sentences import sentence
from broker.rules.language.values import View
from broker.rules.running.guards import AlarmGuard
from broker.rules.running.index import AlarmPlace, RunningRule
from config.limits import ALARM_STORM_SECONDS
from storage.keys import DeviceKey, Milliseconds, Position, RuleKey, UserKey
from storage.transaction import Transaction

STORM: Final[AlarmPlace] = (DeviceKey(0), True)
_NOBODY: Final = UserKey(0)
_OF_DEVICE: Final = -2
_OF_STORM: Final = -3


def slot_of(place: AlarmPlace) -> TimerKey:
    """The slot of the timer that clears it; those of durations have the index of a condition."""
    return (_OF_STORM if place[1] else _OF_DEVICE, place[0])


def place_of(slot: TimerKey) -> AlarmPlace | None:
    """None: the slot is of something else."""
    return (slot[1], slot[0] == _OF_STORM) if slot[0] in {_OF_DEVICE, _OF_STORM} else None


def due_of(rule: CompiledRule, place: AlarmPlace, last_ms: Milliseconds) -> Milliseconds | None:
    """When it is cleared, if nothing comes before; None: never."""
    if place[1]:
        return Milliseconds(last_ms + ALARM_STORM_SECONDS * 1000)
    after = None if rule.alarm is None else rule.alarm.clear_after
    return None if after is None else Milliseconds(last_ms + after * 1000)


def judged(
    rule: CompiledRule, view: View, timers: Timers, known: Collection[AlarmPlace], fired: DeviceKey | None
) -> Sequence[tuple[DeviceKey, bool]]:
    """Whether the conditions of open alarms still hold: of alarms that an evaluation may decide about, and that it has
    not raised."""
    if rule.concerns_all_alarms(view):
        devices = [device for device, is_storm in known if not is_storm]
    else:
        assert view.message is not None  # noqa: S101 - otherwise it concerns all
        devices = [view.message.device] if (view.message.device, False) in known else []
    return [(device, rule.still_holds(view, timers, device)) for device in devices if device != fired]


class AlarmChanges:
    """The changes that are not committed yet, in their order. Triggers that only count are put together."""

    def __init__(self) -> None:
        self._changes: list[tuple[RunningRule, AlarmChange]] = []
        self._last: dict[tuple[RuleKey, AlarmPlace], AlarmChange] = {}

    def __bool__(self) -> bool:
        return bool(self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def of(self, runs: Callable[[RunningRule], bool], refused: Collection[RuleKey]) -> list[AlarmChange]:
        """The changes of rules that run, without what refused rules have raised."""
        return [
            one
            for running, one in self._changes
            if runs(running) and (one.kind is not Change.RAISED or running.key not in refused)
        ]

    def add(self, running: RunningRule, change: AlarmChange) -> None:
        slot = (running.key, (change.device, change.is_storm))
        last = self._last.get(slot)
        counts_on = change.kind is Change.HELD or (last is not None and last.kind is change.kind)
        if last is not None and counts_on and Change.CLEARED not in {last.kind, change.kind}:
            last.last_ms, last.times = change.last_ms, last.times + change.times
            return
        self._changes.append((running, change))
        self._last[slot] = change


class _Condition(msgspec.Struct, omit_defaults=True):
    field: str
    text: str
    seen: Sequence[tuple[str, str, object, Milliseconds | None]] = ()


def _cause(
    conditions: Sequence[dict[str, object]],
    reports: Sequence[ConditionReport],
    told: Collection[tuple[DeviceKey, str]],
    at_ms: Milliseconds,
    tx: Transaction,
) -> str:
    """JSON of the conditions that held, with ids in the place of keys. `told`: the devices and fields that the text
    read; without a sentence, they only say of whom it tells."""
    found = []
    for condition, report in zip(conditions, reports, strict=True):
        seen = [(tx.devices.id_of(one.device) or "", one) for one in report.seen]
        text = sentence(condition, report, seen, at_ms)
        values = [(did, one.field, one.value, one.at_ms) for did, one in seen]
        found.append(_Condition(report.path, text, values))
    if told:
        read = [(tx.devices.id_of(device) or "", field, None, None) for device, field in told]
        found.append(_Condition("rule.alarm.text", "", read))
    return msgspec.json.encode(found).decode()


class RuleAlarms:
    """Applies evaluations to the open alarms of the running rules. `pending` is what the store does not have yet."""

    def __init__(self) -> None:
        self._guard = AlarmGuard()

    def note_open(self, running: RunningRule) -> None:
        """The open alarms of a rule are these."""
        self._guard.note_open(running.key, running.owner, len(running.alarms))

    def forget(self, rule: RuleKey) -> None:
        self._guard.note_open(rule, _NOBODY, 0)

    def fired(
        self, running: RunningRule, match: RuleMatch, view: View, position: Position, pending: AlarmChanges
    ) -> AlarmPlace | None:
        """The rule has triggered. Returns the alarm that is open now. Raises NotLoadedError before it changes
        anything."""
        rule, alarm, of_rule = running.rule, running.rule.alarm, running.alarm_rule
        if alarm is None or of_rule is None:
            return None
        now_ms = view.now_ms
        place: AlarmPlace = (rule.subject(match), False)
        text, reports = alarm.text_in(view, match.devices), None
        if place not in running.alarms:
            reports = rule.explain_match(view, running.timers, match)
            if not self._guard.may_raise(running.key, running.owner, now_ms):
                place, reports, text = STORM, None, STORM_TEXT
        cause = None
        if reports is not None:
            sources = [(one.source(match.devices), one.field) for one in alarm.last_values()]
            told = dict.fromkeys((device, field) for device, field in sources if device is not None)
            cause = partial(_cause, running.conditions, reports, tuple(told), now_ms)
        message = None if view.message is None else position
        running.alarms[place] = now_ms
        self.note_open(running)
        pending.add(
            running,
            AlarmChange(
                of_rule,
                Change.RAISED,
                *place,
                now_ms,
                now_ms,
                1,
                alarm.severity,
                text,
                position,
                message,
                cause,
            ),
        )
        return place

    def held(self, running: RunningRule, device: DeviceKey, now_ms: Milliseconds, pending: AlarmChanges) -> None:
        """The conditions hold on."""
        if running.alarm_rule is not None:
            running.alarms[device, False] = now_ms
            pending.add(running, AlarmChange(running.alarm_rule, Change.HELD, device, False, now_ms, now_ms))

    def clear(
        self, running: RunningRule, place: AlarmPlace, at_ms: Milliseconds, by: ClearedBy, pending: AlarmChanges
    ) -> None:
        if running.alarms.pop(place, None) is not None and running.alarm_rule is not None:
            self.note_open(running)
            pending.add(running, AlarmChange(running.alarm_rule, Change.CLEARED, *place, at_ms, at_ms, by=by))

    def stored(self, running: RunningRule, changes: Sequence[AlarmChange]) -> None:
        """Changes of a rule are stored. Another one may have cleared the same alarms just before."""
        for one in changes:
            place = (one.device, one.is_storm)
            if one.kind is Change.RAISED:
                running.alarms.setdefault(place, one.last_ms)
            elif one.kind is Change.CLEARED:
                running.alarms.pop(place, None)
        self.note_open(running)
