"""Runs one rule over a part of the log, as the engine would have, without sending anything (reference 12.9).

Everything is read in one transaction, on a thread beside the loop.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

import msgspec
import trio

from broker.alarms.changes import ClearedBy
from broker.errors import Conflict
from broker.messages.decoding import flat
from broker.rules.explaining.simulated_alarms import SimulatedAlarms
from broker.rules.language.actions import Outgoing
from broker.rules.language.evaluation import Explanation, Outcome, RuleMatch, Timer, TimerKey
from broker.rules.language.rule import CompiledRule
from broker.rules.language.values import CurrentMessage
from broker.rules.running.alarms import place_of
from broker.rules.running.evaluator import MINUTE, TimerHeap
from broker.rules.running.last_values import (
    Fields,
    NotLoadedError,
    Output,
    StateView,
    members_of,
    merge_message,
    values_at,
)
from config.limits import (
    RULE_HISTORY_DAYS,
    RULE_HISTORY_ROWS,
    RULE_HISTORY_SECONDS,
    RULE_HISTORY_WAIT_SECONDS,
    RULE_SIMULATED_DEVICES,
)
from storage.database import Database
from storage.fair_places import FairPlaces
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, Position, RuleKey, UserKey
from storage.message_searches import Range
from storage.records import DeviceRecord, MessageRow
from storage.transaction import Transaction

T = TypeVar("T")
TOO_MANY_DEVICES: Final = f"The rule watches more than {RULE_SIMULATED_DEVICES} devices"
TOO_LONG: Final = f"Nothing was ready after {RULE_HISTORY_SECONDS} seconds of processor time; ask for less"
TOO_MANY_AT_ONCE: Final = "Other explanations and replays of this user's rules are not ready yet"
_AT_ONCE: Final = 2
_WAITING_MAX: Final = 4  # of one user, the one that runs included
_DAY_MS: Final = 86_400_000
_DEVICES_AT_ONCE: Final = 100  # in one search
_RULE: Final = RuleKey(0)
_NOTHING: Final = Position(0)
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class TooManyDevicesError(Exception):
    """The rule watches more devices than a simulation may."""


class TookTooLongError(Exception):
    """The simulation has used up its time."""


class Budget:
    """The processor time and the time of one simulation."""

    def __init__(self) -> None:
        self._processor_ends = self._ends = inf
        self._is_ended = False

    def begin(self) -> None:
        """Begin the simulation in the calling thread."""
        self._processor_ends = time.thread_time() + RULE_HISTORY_SECONDS
        self._ends = time.monotonic() + RULE_HISTORY_WAIT_SECONDS

    def end(self) -> None:
        """Cancel the simulation; any thread may call this."""
        self._is_ended = True

    def check(self) -> None:
        """Raises TookTooLongError when the time is used up."""
        time.sleep(0)  # the event loop may have the interpreter now
        if self._is_ended or time.thread_time() > self._processor_ends or time.monotonic() > self._ends:
            raise TookTooLongError


class SimulatedEvaluation(msgspec.Struct, frozen=True):
    """One evaluation: of a message, `row`, or because of the time.

    `explanation` and, if the rule triggers, `outgoing` are there if they were asked for.
    """

    at_ms: Milliseconds
    row: MessageRow | None
    outcome: Outcome
    explanation: Explanation | None
    outgoing: Sequence[Outgoing] = ()


@dataclass(eq=False)
class RuleSimulation:
    """Begin behind `position`, at `at_ms`, without running durations. `output` asks the models, as they are now.

    Raises TookTooLongError from the method that is running when the budget is used up.
    """

    _tx: Transaction
    _rule: CompiledRule
    _position: Position
    _at_ms: Milliseconds
    _output: Output
    _budget: Budget

    def __post_init__(self) -> None:
        #: Whether what happens is explained, and whether it says what would be sent.
        self.explains = False
        self.sends = False
        #: The alarms of the rule, where these are asked for.
        self.alarms: SimulatedAlarms | None = None
        self._known: dict[DeviceKey, DeviceRecord | None] = {}
        self._values: dict[DeviceKey, Fields] = {}
        self._members: dict[tuple[UserKey, DeviceTypeKey], tuple[DeviceKey, ...]] = {}
        self._due = TimerHeap()
        self.timers: dict[TimerKey, Timer] = {}

    def begin_minutes(self, after_ms: Milliseconds) -> None:
        """Evaluate the minutes of `datetime` conditions that begin after this."""
        if (due_ms := self._rule.next_minute(after_ms)) is not None:
            self._due.set(_RULE, MINUTE, due_ms)

    def until(self, until_ms: Milliseconds) -> Iterator[SimulatedEvaluation]:
        """Evaluate what is due."""
        while (due := self._due.pop_due(until_ms)) is not None:
            due_ms, (_, slot) = due
            view = self._view(due_ms, None)
            if (place := place_of(slot)) is not None:
                if self.alarms is not None:
                    self.alarms.clear(place[0], due_ms, ClearedBy.TIME)
            elif slot == MINUTE:
                self.begin_minutes(due_ms)
                yield self._happened(view, None, self._rule.on_minute, self._rule.explain_minute)
            else:
                yield self._happened(
                    view,
                    None,
                    lambda view, timers, slot=slot: self._rule.on_elapsed(view, timers, slot),  # type: ignore[misc]
                    lambda view, timers, slot=slot: self._rule.explain_elapsed(view, timers, slot),  # type: ignore[misc]
                )

    def message(self, row: MessageRow) -> Iterator[SimulatedEvaluation]:
        """Evaluate what is due by the message's time, and the message."""
        yield from self.until(row.cts)
        data = _decode(row.data)
        if (fields := self._values.get(row.device)) is not None:
            merge_message(fields, flat(data), row)
        self._position, self._at_ms = row.position, row.cts
        if row.device not in self._known:
            self._known[row.device] = self._tx.devices.device(row.device)
        device = self._known[row.device]
        if device is not None:
            message = CurrentMessage(row.device, device.device_type, device.owner, data)
            view = self._view(row.cts, message)
            yield self._happened(view, row, self._rule.on_message, self._rule.explain_message)

    def now(self, now_ms: Milliseconds, timers: dict[TimerKey, Timer]) -> Explanation:
        """How the conditions stand."""
        view = self._view(now_ms, None)
        return self._loaded(lambda: self._rule.explain_minute(view, timers))

    def _happened(
        self,
        view: StateView,
        row: MessageRow | None,
        evaluate: Callable[[StateView, dict[TimerKey, Timer]], Outcome],
        explain: Callable[[StateView, dict[TimerKey, Timer]], Explanation],
    ) -> SimulatedEvaluation:
        self._budget.check()
        explanation = self._loaded(lambda: explain(view, self.timers)) if self.explains else None
        outcome = self._loaded(lambda: evaluate(view, self.timers)) if explanation is None else explanation.outcome
        for key, timer in outcome.timers.items():
            if timer is None:
                self.timers.pop(key, None)
            else:
                self.timers[key] = timer
            if timer is None or timer.elapsed:
                self._due.drop(_RULE, key)
            else:
                self._due.set(_RULE, key, timer.due_ms)
        if (alarms := self.alarms) is not None:
            for slot, due_ms in self._loaded(lambda: alarms.follow(view, self.timers, outcome, row)):
                if due_ms is None:
                    self._due.drop(_RULE, slot)
                else:
                    self._due.set(_RULE, slot, due_ms)
        outgoing = self._outgoing(view, outcome.match) if self.sends and outcome.match is not None else ()
        return SimulatedEvaluation(view.now_ms, row, outcome, explanation, outgoing)

    def _outgoing(self, view: StateView, match: RuleMatch) -> Sequence[Outgoing]:
        return self._loaded(lambda: self._rule.outgoing(view, match))

    def _view(self, now_ms: Milliseconds, message: CurrentMessage | None) -> StateView:
        return StateView(now_ms, message, self._values, self._members, self._output)

    def _loaded(self, evaluate: Callable[[], T]) -> T:
        while True:
            try:
                return evaluate()
            except NotLoadedError as missing:
                for device in missing.devices:
                    self._budget.check()
                    self._values[device] = values_at(
                        self._tx,
                        device,
                        self._position,
                        upto_ms=Milliseconds(self._at_ms + _DAY_MS),  # a message's `ts` is hardly ahead of its `cts`
                        check=self._budget.check,
                    )
                if missing.members is not None:
                    self._members[missing.members] = members_of(self._tx, *missing.members, self._budget.check)


def watched_devices(tx: Transaction, rule: CompiledRule, budget: Budget) -> list[DeviceKey]:
    """The devices whose messages concern a rule. Raises TooManyDevicesError, TookTooLongError."""
    devices: set[DeviceKey] = set()
    for watch in rule.watches:
        if watch.device is not None:
            devices.add(watch.device)
        elif watch.device_type is not None:
            devices |= set(members_of(tx, rule.owner, watch.device_type, budget.check))
    if len(devices) > RULE_SIMULATED_DEVICES:
        raise TooManyDevicesError
    return sorted(devices)


def rows_of(
    tx: Transaction,
    devices: Sequence[DeviceKey],
    start_ms: Milliseconds,
    end_ms: Milliseconds,
    budget: Budget,
    *,
    until: Position | None = None,
    behind: Position = _NOTHING,
    descending: bool = False,
) -> list[MessageRow]:
    """The devices' messages of a time, in the order in which they came: the first 10,000, or the last ones.

    `behind` and `until` are bounds on their positions.
    """
    found: list[MessageRow] = []
    for index in range(0, len(devices), _DEVICES_AT_ONCE):
        budget.check()
        search = Range(
            start_ms,
            end_ms,
            limit=RULE_HISTORY_ROWS,
            behind=behind,
            until=until,
            by_arrival=True,
            descending=descending,
        )
        found += tx.message_searches.page(devices[index : index + _DEVICES_AT_ONCE], search)
        found.sort(key=lambda row: row.position, reverse=descending)
        del found[RULE_HISTORY_ROWS:]
        if len(found) == RULE_HISTORY_ROWS:  # no others are wanted
            behind, until = (found[-1].position, until) if descending else (behind, found[-1].position)
    return found[::-1] if descending else found


def simulated_before(
    tx: Transaction,
    rule: CompiledRule,
    row: MessageRow,
    since: Position,
    output: Output,
    budget: Budget,
    *,
    has_durations: bool,
) -> RuleSimulation:
    """A simulation that stands just before a message: of what came behind `since`, at most 10,000 messages and 31 days.

    Without durations nothing before the message matters but the last values.
    """
    if not has_durations:
        return RuleSimulation(tx, rule, Position(row.position - 1), row.cts, output, budget)
    start_ms = Milliseconds(max(0, row.cts - RULE_HISTORY_DAYS * _DAY_MS))
    devices = watched_devices(tx, rule, budget)
    last_ms = Milliseconds(max(row.ts, row.cts) + _DAY_MS)
    behind = since if since < row.position else _NOTHING
    until = Position(row.position - 1)
    before = rows_of(tx, devices, start_ms, last_ms, budget, until=until, behind=behind, descending=True)
    first = before[0] if before else row
    simulation = RuleSimulation(tx, rule, Position(first.position - 1), first.cts, output, budget)
    for one in before:
        for _ in simulation.message(one):
            pass
    return simulation


class SimulationSlots:
    """Slots for simulations, shared out by user, and the time that each may take (reference 12.9).

    Simulations take the processor from the event loop, and a reader from the store. Two run at once, of each user one,
    and each has a bound on its time.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._places = FairPlaces(_AT_ONCE, of_one=1)

    async def read(self, owner: UserKey, work: Callable[[Transaction, Budget], T]) -> T:
        """Run the simulation of a user's rule. It ends early when the caller is cancelled. Raises Conflict."""
        if self._places.held_by(owner) + self._places.waiting_of(owner) >= _WAITING_MAX:
            raise Conflict(TOO_MANY_AT_ONCE)
        budget = Budget()
        async with self._places.of(owner):
            try:
                return await self._database.read(partial(_begun, budget, work), interrupt=budget.end)
            except TooManyDevicesError:
                raise Conflict(TOO_MANY_DEVICES) from None
            except TookTooLongError:
                await trio.lowlevel.checkpoint_if_cancelled()
                raise Conflict(TOO_LONG) from None


def _begun(budget: Budget, work: Callable[[Transaction, Budget], T], tx: Transaction) -> T:
    budget.begin()
    return work(tx, budget)
