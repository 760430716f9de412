"""Why a rule triggered or did not: for a message, for a time, and now (reference 12.9)."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import Conflict, DeviceNotFound, NotFound, ValidationFailed, invalid
from broker.messages.mids import Mids
from broker.rules.explaining.replay import check_times
from broker.rules.explaining.simulation import (
    Budget,
    RuleSimulation,
    SimulatedEvaluation,
    SimulationSlots,
    TookTooLongError,
    rows_of,
    simulated_before,
    watched_devices,
)
from broker.rules.language.evaluation import ConditionReport, Explanation
from broker.rules.language.rule import CompiledRule
from broker.rules.language.sentences import conditions_of, sentence
from broker.rules.language.values import Seen
from broker.rules.running.index import RuleIndex, remembered
from broker.rules.running.last_values import Output, members_of
from config.limits import RULE_HISTORY_ROWS
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import MessageRow
from storage.rules import RuleRecord
from storage.transaction import Transaction

SHOWN_MAX: Final = 100
REASONS_MAX: Final = 5  # in a sentence


class ConditionWhy(msgspec.Struct, frozen=True):
    """How a condition came out, with ids in the place of keys, and one sentence."""

    report: ConditionReport
    device_id: str | None
    seen: tuple[tuple[str, Seen], ...]
    sentence: str


class Why(msgspec.Struct, frozen=True):
    """An explanation of one evaluation: of the message `row`, or at a time. `counts`: the rule was there already."""

    at_ms: Milliseconds
    row: MessageRow | None
    triggers: bool
    counts: bool
    conditions: tuple[ConditionWhy, ...]


@dataclass(eq=False)
class RuleExplainer:
    _database: Database
    _clock: Clock
    _mids: Mids
    _index: RuleIndex
    _slots: SimulationSlots
    _output: Output
    _devices: Devices
    _reason: Callable[[Device, str], Awaitable[str]]  # why no value of a field comes now; empty when nothing is known

    async def of_message(self, record: RuleRecord, rule: CompiledRule, mid: str) -> Why:
        """Why a message triggered the rule or did not.

        Raises:
            NotFound: there is no such message.
            ValidationFailed: the rule does not look at messages of its device.
            Conflict: the rule watches too many devices, it takes too long, or others of the user's rules are simulated.
        """
        position = self._mids.position(mid)
        if position is None:
            raise NotFound
        work = partial(_of_message, record, rule, position, self._output)
        return await self._with_reasons(await self._slots.read(record.owner, work))

    async def of_time(
        self, record: RuleRecord, rule: CompiledRule, start_ms: Milliseconds, end_ms: Milliseconds
    ) -> tuple[list[Why], Milliseconds | None]:
        """Why the messages of a time, and the durations that ended in it, triggered the rule or did not.

        Returns the first 100 evaluations, and where to go on when these are not all. Raises ValidationFailed, Conflict.
        """
        check_times(start_ms, end_ms)
        work = partial(_of_time, record, rule, start_ms, end_ms, self._output)
        found, until = await self._slots.read(record.owner, work)
        return [await self._with_reasons(one) for one in found], until

    async def now(self, record: RuleRecord, rule: CompiledRule) -> Why | None:
        """How the conditions stand now. None: the rule watches too many devices, or others of the user's rules
        are simulated.
        """
        running, now_ms = self._index.get(record.key), self._clock.now_ms()
        held = None if running is None else dict(running.timers)

        def work(tx: Transaction, budget: Budget) -> Why:
            state = tx.rules.state(record.key)
            timers = held if held is not None else {} if state is None else remembered(state)[0]
            simulation = RuleSimulation(tx, rule, tx.messages.head(), now_ms, self._output, budget)
            explanation = simulation.now(now_ms, timers)
            return _why(tx, record, now_ms, None, explanation)

        if not rule.type_reads:  # it looks at few values
            return await self._with_reasons(await self._database.read(lambda tx: work(tx, Budget())), is_now=True)
        try:
            found = await self._slots.read(record.owner, partial(_within_bounds, rule, work))
        except Conflict:
            return None
        return await self._with_reasons(found, is_now=True)

    async def _with_reasons(self, why: Why, *, is_now: bool = False) -> Why:
        """Add to each condition why a value that it looks at does not come: of values that are not known, and in an
        explanation of now also of older ones."""
        conditions = []
        for condition in why.conditions:
            reasons = list[str]()
            for did, one in condition.seen:
                if one.value is not None and not is_now:
                    continue
                if reason := await self._reason_of(one):
                    reasons.append(f"no value of {one.field} of {did} comes now: {reason}")
            if reasons:
                sentence = "; ".join((condition.sentence, *reasons[:REASONS_MAX]))
                condition = replace(condition, sentence=sentence)  # noqa: PLW2901 - the same one, with more to say
            conditions.append(condition)
        return replace(why, conditions=tuple(conditions))

    async def _reason_of(self, seen: Seen) -> str:
        device = self._devices.get_nowait(seen.device)
        if device is None:
            try:
                device = await self._devices.get(seen.device)
            except DeviceNotFound:
                return ""
        return await self._reason(device, seen.field)


def _within_bounds(
    rule: CompiledRule, work: Callable[[Transaction, Budget], Why], tx: Transaction, budget: Budget
) -> Why:
    """Raises TooManyDevicesError, TookTooLongError."""
    watched_devices(tx, rule, budget)
    return work(tx, budget)


def _of_message(
    record: RuleRecord, rule: CompiledRule, position: Position, output: Output, tx: Transaction, budget: Budget
) -> Why:
    row = tx.messages.message(position)
    if row is None or tx.devices.device(row.device) is None:
        raise NotFound
    if not _watches(tx, rule, row.device, budget):
        raise ValidationFailed.of("mid", invalid("is a message of a device that the rule does not look at"))
    simulation = simulated_before(tx, rule, row, record.since, output, budget, has_durations=has_durations(record))
    simulation.explains = True
    *_, happened = simulation.message(row)
    assert happened.explanation is not None  # noqa: S101 - the simulation was asked for it
    return _why(tx, record, happened.at_ms, row, happened.explanation)


def _of_time(
    record: RuleRecord,
    rule: CompiledRule,
    start_ms: Milliseconds,
    end_ms: Milliseconds,
    output: Output,
    tx: Transaction,
    budget: Budget,
) -> tuple[list[Why], Milliseconds | None]:
    rows = rows_of(tx, watched_devices(tx, rule, budget), start_ms, end_ms, budget)
    if rows:
        durations = has_durations(record)
        simulation = simulated_before(tx, rule, rows[0], record.since, output, budget, has_durations=durations)
    else:
        simulation = RuleSimulation(tx, rule, tx.messages.head(), end_ms, output, budget)
    simulation.explains = True
    simulation.begin_minutes(Milliseconds(start_ms - 1))
    found: list[Why] = []
    reached = start_ms

    def is_full(happened: SimulatedEvaluation) -> bool:
        nonlocal reached
        if happened.at_ms < start_ms:
            return False
        reached = happened.at_ms
        if len(found) == SHOWN_MAX:
            return True
        assert happened.explanation is not None  # noqa: S101 - the simulation was asked for it
        found.append(_why(tx, record, happened.at_ms, happened.row, happened.explanation))
        return False

    try:
        for row in rows:
            if any(map(is_full, simulation.message(row))):
                return found, reached
        if len(rows) < RULE_HISTORY_ROWS and not any(map(is_full, simulation.until(end_ms))):
            return found, None
    except TookTooLongError:
        if not found:
            raise
    return found, reached


def _watches(tx: Transaction, rule: CompiledRule, device: DeviceKey, budget: Budget) -> bool:
    return any(
        watch.device == device
        or (watch.device_type is not None and device in members_of(tx, rule.owner, watch.device_type, budget.check))
        for watch in rule.watches
    )


def has_durations(record: RuleRecord) -> bool:
    return any(condition.get("duration") is not None for condition in conditions_of(record.body))


def _why(
    tx: Transaction, record: RuleRecord, at_ms: Milliseconds, row: MessageRow | None, explanation: Explanation
) -> Why:
    ids: dict[DeviceKey, str] = {}

    def id_of(device: DeviceKey) -> str:
        if device not in ids:
            ids[device] = tx.devices.id_of(device) or ""
        return ids[device]

    conditions = []
    for report, condition in zip(explanation.conditions, conditions_of(record.body), strict=True):
        seen = tuple((id_of(one.device), one) for one in report.seen)
        device_id = None if report.device is None else id_of(report.device)
        conditions.append(ConditionWhy(report, device_id, seen, sentence(condition, report, seen, at_ms)))
    counts = row is None or row.position > record.since
    return Why(at_ms, row, explanation.outcome.match is not None, counts, tuple(conditions))
