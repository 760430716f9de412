"""Evaluates the rules that run, row by row, and collects what they trigger (reference 12.4).

The result is a function of the log alone: a message counts at its `cts`, and a duration that is due by then comes
first. So after a crash the rows behind the saved position are evaluated again, with the same result.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.alarms.changes import AlarmChange, ClearedBy
from broker.changes import Changes
from broker.devices.registry import Devices
from broker.messages.decoding import flat
from broker.rules.language.actions import NotSent, Outgoing, SendAction, WantValues
from broker.rules.language.evaluation import NOTHING, Outcome, RuleMatch, TimerKey
from broker.rules.language.values import CurrentMessage
from broker.rules.running.alarms import AlarmChanges, RuleAlarms, due_of, judged, place_of, slot_of
from broker.rules.running.guards import NO_CAUSES, ActionBudget, Causes, CostGuard, LoopGuard
from broker.rules.running.index import AlarmPlace, Interest, RuleIndex, RunningRule
from broker.rules.running.last_values import Fields, NotLoadedError, StateView, merge_message, values_at
from broker.rules.running.models import ConditionModels
from broker.rules.sending.sender import Firing, FiringProblem, Stop
from config.limits import (
    CLOCK_AHEAD_MS,
    RULE_ACTIONS_A_MINUTE,
    RULE_COST_SECONDS,
    RULE_LOOP_SECONDS,
    RULE_LOOP_TRIGGERS,
    RULE_SELECTED_DEVICES,
)
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, Position, RuleKey, UserKey
from storage.records import MessageRow
from storage.sql import StoreError

_SLACK: Final = 64

Slot = tuple[RuleKey, TimerKey]


class TimerHeap:
    """The moments at which rules are due, in one heap.

    A timer belongs to a slot of a rule: a condition with a duration on one device, or the schedule of the rule. Setting
    or dropping a timer leaves its old entry in the heap, where it counts for nothing; the heap is rebuilt before such
    entries outnumber the timers.
    """

    def __init__(self) -> None:
        self._due: dict[Slot, Milliseconds] = {}
        self._of_rule: dict[RuleKey, set[TimerKey]] = {}
        self._heap: list[tuple[Milliseconds, Slot]] = []

    def __len__(self) -> int:
        return len(self._due)

    def set(self, rule: RuleKey, name: TimerKey, due_ms: Milliseconds) -> None:
        slot = (rule, name)
        if self._due.get(slot) == due_ms:
            return
        self._due[slot] = due_ms
        self._of_rule.setdefault(rule, set()).add(name)
        heappush(self._heap, (due_ms, slot))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._rebuild()

    def drop(self, rule: RuleKey, name: TimerKey) -> None:
        if self._due.pop((rule, name), None) is not None:
            names = self._of_rule[rule]
            names.remove(name)
            if not names:
                del self._of_rule[rule]

    def drop_all_of(self, rule: RuleKey) -> None:
        for name in self._of_rule.pop(rule, ()):
            del self._due[rule, name]
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._rebuild()

    def next_due(self) -> Milliseconds | None:
        """The moment of the first timer; None without a timer."""
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, until_ms: Milliseconds) -> tuple[Milliseconds, Slot] | None:
        """Take the first timer that is due at `until_ms`; None when none is."""
        due_ms = self.next_due()
        if due_ms is None or due_ms > until_ms:
            return None
        _, slot = heappop(self._heap)
        self.drop(*slot)
        return due_ms, slot

    def _rebuild(self) -> None:
        self._heap = [(due_ms, slot) for slot, due_ms in self._due.items()]
        heapify(self._heap)


#: The slot of a rule's next minute; those of its durations have the index of the condition.
MINUTE: Final[TimerKey] = (-1, DeviceKey(0))
#: A minute that began longer ago than this is over: rules are never evaluated for the past (reference 12.4).
_MINUTE_MS: Final = 60_000
_DEVICES_REMEMBERED: Final = 50_000
_LOOP: Final = (
    f"The rule triggers itself: more than {RULE_LOOP_TRIGGERS} times within {RULE_LOOP_SECONDS} seconds it was"
    " triggered by a message of a device to which the rule itself, or a rule that it triggered, had just sent an Action"
)
_TOO_COSTLY: Final = (
    f"Rules of the user that look at all devices of a type took more than {RULE_COST_SECONDS:g} seconds of processor"
    " time in a minute, and this one took most of it"
)
_TOO_MANY_DEVICES: Final = f"The rule must look at more than {RULE_SELECTED_DEVICES} devices of a type"
_TOO_MANY_ACTIONS: Final = f"Not sent: more than {RULE_ACTIONS_A_MINUTE} Actions in a minute"
_TURN_SECONDS: Final = 0.001  # within one message; then the other tasks have their turn
_TURN_RULES: Final = 32  # rules between two looks at the time

T = TypeVar("T")


class _TooManyDevicesError(Exception):
    """A selector means more devices than a rule may look at."""


_log = structlog.get_logger(__name__)
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(slots=True)
class PendingEffects:
    """The effects of evaluations that are not committed yet. `changed`: rules whose states differ from the store."""

    firings: list[Firing]
    problems: list[FiringProblem]
    stops: list[Stop]
    changed: set[RuleKey]
    alarms: AlarmChanges

    def __bool__(self) -> bool:
        return bool(self.firings or self.problems or self.stops or self.alarms)


def _nothing_pending() -> PendingEffects:
    return PendingEffects([], [], [], set(), AlarmChanges())


class Evaluator:
    def __init__(
        self, database: Database, devices: Devices, index: RuleIndex, models: ConditionModels, loops: LoopGuard
    ) -> None:
        self._database = database
        self._devices = devices
        self._index = index
        self._models = models
        self._loops = loops
        self._costs = CostGuard()
        self._budget = ActionBudget()
        self._alarms = RuleAlarms()
        self._values: dict[DeviceKey, Fields] = {}
        self._members: dict[tuple[UserKey, DeviceTypeKey], tuple[DeviceKey, ...]] = {}
        self._members_changes = Changes()
        self.timers = TimerHeap()
        self.position = Position(0)
        self._now_ms = Milliseconds(0)  # of the last evaluation, by whatever it was caused
        self.pending = _nothing_pending()
        self.evaluated = 0

    # The rules

    def schedule(self, running: RunningRule, after_ms: Milliseconds) -> None:
        """Set the timers of a rule that begins to run. Minutes count that begin after `after_ms`."""
        sinces = (timer.since_ms for timer in running.timers.values())
        self._now_ms = max(self._now_ms, running.minute or Milliseconds(0), *sinces)
        self.timers.drop_all_of(running.key)
        for key, timer in running.timers.items():
            if not timer.elapsed:
                self.timers.set(running.key, key, timer.due_ms)
        for place in running.alarms:
            self._set_alarm(running, place)
        self._alarms.note_open(running)
        self._set_minute(running, after_ms)

    def _set_alarm(self, running: RunningRule, place: AlarmPlace) -> None:
        """Set the timer that clears an open alarm, or drop it."""
        last_ms = running.alarms.get(place)
        due_ms = None if last_ms is None else due_of(running.rule, place, last_ms)
        if due_ms is None:
            self.timers.drop(running.key, slot_of(place))
        else:
            self.timers.set(running.key, slot_of(place), due_ms)

    def alarm_ended(self, running: RunningRule, place: AlarmPlace) -> None:
        """Something else than the evaluation has cleared an alarm."""
        if running.alarms.pop(place, None) is not None:
            self._set_alarm(running, place)
            self._alarms.note_open(running)

    def alarms_stored(self, changes: Sequence[AlarmChange]) -> None:
        """Changes of alarms are stored."""
        of_rules: dict[RuleKey, list[AlarmChange]] = {}
        for one in changes:
            of_rules.setdefault(one.rule.key, []).append(one)
        for key, some in of_rules.items():
            if (running := self._index.get(key)) is not None:
                self._alarms.stored(running, some)
                for one in some:
                    self._set_alarm(running, (one.device, one.is_storm))

    def _set_minute(self, running: RunningRule, after_ms: Milliseconds) -> None:
        due_ms = running.rule.next_minute(after_ms)
        if due_ms is not None:
            self.timers.set(running.key, MINUTE, due_ms)

    def advance_clock(self, now_ms: Milliseconds) -> None:
        """Time has come to `now_ms`. When the clock was set back, a duration that began after that time begins now."""
        if now_ms >= self._now_ms - CLOCK_AHEAD_MS:
            self._now_ms = max(now_ms, self._now_ms)
            return
        self._now_ms = now_ms
        for running in list(self._index):
            ahead = {key: timer for key, timer in running.timers.items() if timer.since_ms > now_ms}
            for key, timer in ahead.items():
                due_ms = Milliseconds(now_ms + timer.due_ms - timer.since_ms)
                running.timers[key] = replace(timer, since_ms=now_ms, due_ms=due_ms)
            if running.minute is not None and running.minute > now_ms:
                running.minute = now_ms
            running.alarms = {place: min(last_ms, now_ms) for place, last_ms in running.alarms.items()}
            if ahead or running.minute == now_ms:
                self.pending.changed.add(running.key)
            self.schedule(running, running.minute or now_ms)

    def forget_rule(self, key: RuleKey) -> None:
        """Forget a rule that does not run any more."""
        self.timers.drop_all_of(key)
        self._loops.forget(key)
        self._alarms.forget(key)

    def forget_members(self, owner: UserKey, device_type: DeviceTypeKey) -> None:
        """A user has more or fewer devices of a type."""
        self._members.pop((owner, device_type), None)
        self._members_changes.note()

    def forget(self) -> None:
        """Drop the values and the pending effects."""
        self._values.clear()
        self._members.clear()
        self.pending = _nothing_pending()

    def go_back(self, position: Position) -> None:
        """Evaluate the messages behind this position again, for the rules that have not come so far."""
        for running in self._index:
            running.upto = max(running.upto, self.position)
        self._values.clear()
        self.position = position

    def trim(self) -> None:
        if len(self._values) > _DEVICES_REMEMBERED:
            self._values.clear()

    def take_pending(self) -> PendingEffects:
        found, self.pending = self.pending, _nothing_pending()
        return found

    # The log and the time

    def skips(self, row: MessageRow) -> bool:
        """Whether a message certainly triggers nothing, so that it is done with. False: `evaluate` must see it."""
        interest = self._index.interest(row.device)
        if interest is None or interest.unguarded:
            return False
        due_ms = self.timers.next_due()
        if (due_ms is not None and due_ms <= row.cts) or row.cts < self._now_ms:
            return False
        fields = self._values.get(row.device)
        if fields is None:
            if interest.rules:
                return False
        else:
            merge_message(fields, flat(_decode(row.data)), row)
            if next(_through_guards(interest, fields), None) is not None:
                return False
            self.evaluated += len(interest.rules)
        self.position = row.position
        return True

    async def prefetch(self, rows: Sequence[MessageRow]) -> None:
        """Load the values of all devices that rows concern in one read, before the first of the rows is evaluated."""
        values = self._values
        missing = {row.device for row in rows if row.device not in values}
        wanted = []
        for device in missing:
            interest = self._index.interest(device) or await self._index.find(device)
            if interest.rules:
                wanted.append(device)
        if len(wanted) > 1:
            await self._load(NotLoadedError(wanted))

    async def evaluate(self, row: MessageRow) -> None:
        """Evaluate a message, and before it what is due by its time."""
        self.advance_clock(row.cts)
        if (due_ms := self.timers.next_due()) is not None and due_ms <= row.cts:
            await self.run_due(row.cts)
        interest = self._index.interest(row.device) or await self._index.find(row.device)
        if interest.rules and row.device not in self._values:
            await self._load(NotLoadedError((row.device,)))
        fields = self._values.get(row.device)
        data = _decode(row.data) if fields is not None else {}
        if fields is not None:
            merge_message(fields, flat(data), row)
        self.position = row.position
        if not interest.rules or fields is None:
            return
        message = CurrentMessage(row.device, interest.device_type, interest.owner, data)
        view = StateView(row.cts, message, self._values, self._members, self._models.output)
        causes = self._loops.causes_of(row.device, row.cts)
        self.evaluated += len(interest.rules)
        began = time.perf_counter()
        concerned = (*_through_guards(interest, fields), *interest.unguarded)
        for number, running in enumerate(concerned, 1):
            if row.position > running.upto and self._index.has(running):
                try:
                    if running.is_costly:
                        outcome = self._timed(running, view)
                    else:
                        outcome = running.rule.on_message(view, running.timers)
                except Exception as error:  # noqa: BLE001 - handled in `_retry`
                    outcome = await self._retry(error, running, view, partial(self._timed, running, view), NOTHING)
                if (outcome is not NOTHING or running.alarms) and self._index.has(running):
                    await self._apply(running, outcome, view, causes)
            if (running.is_costly or number % _TURN_RULES == 0) and time.perf_counter() - began > _TURN_SECONDS:
                await trio.lowlevel.checkpoint()
                began = time.perf_counter()

    async def run_due(self, until_ms: Milliseconds, *, not_before_ms: Milliseconds = Milliseconds(0)) -> None:
        """Evaluate what is due. Minutes that began before `not_before_ms` are left out."""
        began = time.perf_counter()
        while (due := self.timers.pop_due(until_ms)) is not None:
            due_ms, (key, slot) = due
            running = self._index.get(key)
            if running is None:
                continue
            self._now_ms = max(self._now_ms, due_ms)
            view = StateView(due_ms, None, self._values, self._members, self._models.output)
            if (place := place_of(slot)) is not None:
                self._alarms.clear(running, place, due_ms, ClearedBy.TIME, self.pending.alarms)
                continue
            self.evaluated += 1
            if slot != MINUTE:
                outcome = await self._evaluate_due(running, view, slot)
            elif due_ms + _MINUTE_MS > not_before_ms:
                running.minute = due_ms
                self.pending.changed.add(key)
                self._set_minute(running, due_ms)
                outcome = await self._evaluate_due(running, view, None)
            else:
                self._set_minute(running, Milliseconds(not_before_ms - _MINUTE_MS))
                continue
            if (outcome is not NOTHING or running.alarms) and self._index.has(running):
                await self._apply(running, outcome, view, NO_CAUSES)
            if time.perf_counter() - began > _TURN_SECONDS:
                await trio.lowlevel.checkpoint()
                began = time.perf_counter()

    async def _evaluate_due(self, running: RunningRule, view: StateView, slot: TimerKey | None) -> Outcome:
        evaluate = partial(self._timed, running, view, slot)
        try:
            return evaluate()
        except Exception as error:  # noqa: BLE001 - handled in `_retry`
            return await self._retry(error, running, view, evaluate, NOTHING)

    async def _retry(
        self, error: Exception, running: RunningRule, view: StateView, evaluate: Callable[[], T], nothing: T
    ) -> T:
        """Load the values that an evaluation missed and evaluate again. Any other error is a problem of the rule."""
        while isinstance(error, NotLoadedError):
            try:
                await self._load(error)
                return evaluate()
            except (StoreError, trio.Cancelled):
                raise
            except Exception as next_error:  # noqa: BLE001 - the loop handles it
                error = next_error
        if isinstance(error, _TooManyDevicesError):
            self._stop(running, view.now_ms, _TOO_MANY_DEVICES)
            return nothing
        _log.error("rule_evaluation_failed", rule=running.id, exc_info=error)
        self.pending.problems.append(
            FiringProblem(running, "rule.if", f"{type(error).__name__} in the service", view.now_ms)
        )
        return nothing

    async def _load(self, missing: NotLoadedError) -> None:
        if missing.members is not None:
            members = await self._members_changes.settled(partial(self._read_members, *missing.members))
            if len(members) > RULE_SELECTED_DEVICES:
                raise _TooManyDevicesError
            self._members[missing.members] = members
        if missing.devices:
            position = self.position
            self._values.update(
                await self._database.read(lambda tx: {one: values_at(tx, one, position) for one in missing.devices})
            )

    async def _read_members(self, owner: UserKey, device_type: DeviceTypeKey) -> tuple[DeviceKey, ...]:
        found = await self._database.read(lambda tx: tx.devices.keys_of_owner(owner))
        return tuple(one.key for one in await self._devices.get_all(found) if one.type_key == device_type)

    def _timed(self, running: RunningRule, view: StateView, slot: TimerKey | None = None) -> Outcome:
        """Evaluate a message, a minute or a duration, and count the processor time of rules with selectors."""
        before = time.thread_time() if running.is_costly else 0.0
        rule, timers = running.rule, running.timers
        try:
            if view.message is not None:
                return rule.on_message(view, timers)
            return rule.on_minute(view, timers) if slot is None else rule.on_elapsed(view, timers, slot)
        finally:
            if running.is_costly:
                self._charge(running, time.thread_time() - before, view)

    def _charge(self, running: RunningRule, seconds: float, view: StateView) -> None:
        costliest = self._costs.charge(running.owner, running.key, seconds, trio.current_time())
        if costliest is not None and (found := self._index.get(costliest)) is not None:
            self._stop(found, view.now_ms, _TOO_COSTLY)

    def _stop(self, running: RunningRule, at_ms: Milliseconds, reason: str) -> None:
        self._index.remove(running.key)
        self.forget_rule(running.key)
        self.pending.stops.append(Stop(running, at_ms, reason))

    async def _apply(self, running: RunningRule, outcome: Outcome, view: StateView, causes: Causes) -> None:
        for key, timer in outcome.timers.items():
            if timer is None:
                running.timers.pop(key, None)
            else:
                running.timers[key] = timer
            if timer is None or timer.elapsed:
                self.timers.drop(running.key, key)
            else:
                self.timers.set(running.key, key, timer.due_ms)
            self.pending.changed.add(running.key)
        fired = None
        if outcome.match is not None:
            fired = await self._trigger(running, outcome.match, view, causes)
        if running.alarms and self._index.has(running):
            await self._judge_alarms(running, view, fired)

    async def _judge_alarms(self, running: RunningRule, view: StateView, fired: AlarmPlace | None) -> None:
        """Clear the open alarms whose conditions do not hold any more. With `clearAfter`, the time clears them."""
        device = None if fired is None or fired[1] else fired[0]

        def found() -> Sequence[tuple[DeviceKey, bool]]:
            return judged(running.rule, view, running.timers, running.alarms.keys(), device)

        alarm, waits = running.rule.alarm, running.rule.alarm is not None and running.rule.alarm.clear_after is not None
        try:
            known = found()
        except Exception as error:  # noqa: BLE001 - handled in `_retry`
            known = await self._retry(error, running, view, found, ())
        if alarm is None or not self._index.has(running):
            return
        for one, still_holds in known:
            place: AlarmPlace = (one, False)
            if waits and still_holds:
                self._alarms.held(running, one, view.now_ms, self.pending.alarms)
            elif not waits and not still_holds:
                self._alarms.clear(running, place, view.now_ms, ClearedBy.CONDITION, self.pending.alarms)
            self._set_alarm(running, place)

    async def _trigger(
        self, running: RunningRule, match: RuleMatch, view: StateView, causes: Causes
    ) -> AlarmPlace | None:
        """Returns the alarm that is open now."""
        if self._loops.is_loop(running.key, causes, view.now_ms):
            self._stop(running, view.now_ms, _LOOP)
            return None

        def outgoing() -> Sequence[Outgoing]:
            return running.rule.outgoing(view, match)

        found: Sequence[Outgoing] = [NotSent(0, _TOO_MANY_ACTIONS)]
        if not self._budget.is_spent(running.owner, view.now_ms):
            try:
                found = outgoing()
            except Exception as error:  # noqa: BLE001 - handled in `_retry`
                found = await self._retry(error, running, view, outgoing, ())
            self._budget.spend(running.owner, sum(isinstance(one, SendAction | WantValues) for one in found))
        running.triggered += 1
        running.last_on = view.now_ms
        self.pending.changed.add(running.key)
        device = None if view.message is None else view.message.device
        self.pending.firings.append(Firing(running, view.now_ms, device, found, causes))
        return None if running.rule.alarm is None else await self._raise_alarm(running, match, view)

    async def _raise_alarm(self, running: RunningRule, match: RuleMatch, view: StateView) -> AlarmPlace | None:
        def raised() -> AlarmPlace | None:
            return self._alarms.fired(running, match, view, self.position, self.pending.alarms)

        try:
            place = raised()
        except Exception as error:  # noqa: BLE001 - handled in `_retry`
            place = await self._retry(error, running, view, raised, None)
        if place is not None:
            self._set_alarm(running, place)
        return place


def _through_guards(interest: Interest, fields: Fields) -> Iterator[RunningRule]:
    """The rules whose guards hold."""
    for field, guards in interest.guards:
        if (known := fields.get(field)) is not None:
            value = known[2]
            for test, constant, running in guards:
                if test(value, constant):
                    yield running
