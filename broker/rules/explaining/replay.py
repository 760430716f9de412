"""Runs a rule over history, dry: what it would have sent (reference 12.9)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from broker.errors import ValidationFailed, invalid
from broker.rules.explaining.simulated_alarms import ReplayedAlarm, SimulatedAlarms
from broker.rules.explaining.simulation import (
    Budget,
    RuleSimulation,
    SimulatedEvaluation,
    SimulationSlots,
    TookTooLongError,
    rows_of,
    watched_devices,
)
from broker.rules.language.actions import Outgoing
from broker.rules.language.rule import CompiledRule
from broker.rules.running.last_values import Output
from config.limits import RULE_HISTORY_DAYS, RULE_HISTORY_ROWS
from storage.keys import Milliseconds, Position
from storage.records import MessageRow
from storage.transaction import Transaction

SHOWN_MAX: Final = 100
SENT_MAX: Final = 100  # that are shown of one trigger
_EVALUATIONS_MAX: Final = 2 * RULE_HISTORY_ROWS
_DAY_MS: Final = 86_400_000


class Triggered(msgspec.Struct, frozen=True):
    at_ms: Milliseconds
    row: MessageRow | None  # None: the time was the cause
    outgoing: Sequence[Outgoing]


class Replayed(msgspec.Struct, frozen=True):
    """`triggered` counts all; `shown` has the first 100. `until_ms`: where the replay ended before its time did.

    `asks_models`: conditions asked models, as they are now. `alarms` has the first 100 of `alarms_raised`; None: the
    rule has no alarm.
    """

    messages: int
    evaluations: int
    triggered: int
    shown: Sequence[Triggered]
    until_ms: Milliseconds | None
    asks_models: bool
    alarms: Sequence[ReplayedAlarm] | None = None
    alarms_raised: int = 0


class Replays:
    def __init__(self, slots: SimulationSlots, output: Output) -> None:
        self._slots = slots
        self._output = output

    async def run(self, rule: CompiledRule, start_ms: Milliseconds, end_ms: Milliseconds) -> Replayed:
        """Run a rule over the messages from `start_ms` to `end_ms`, without durations that ran before.

        Raises:
            ValidationFailed: the times are in the wrong order, or more than 31 days apart.
            Conflict: the rule watches too many devices, nothing was ready in time, or others of the user's rules are
                simulated.
        """
        check_times(start_ms, end_ms)
        return await self._slots.read(rule.owner, partial(_replayed, rule, start_ms, end_ms, self._output))


def check_times(start_ms: Milliseconds, end_ms: Milliseconds) -> None:
    """Raises ValidationFailed."""
    if end_ms < start_ms or end_ms - start_ms > RULE_HISTORY_DAYS * _DAY_MS:
        raise ValidationFailed.of("endDate", invalid(f"must be at most {RULE_HISTORY_DAYS} days after startDate"))


def _replayed(
    rule: CompiledRule, start_ms: Milliseconds, end_ms: Milliseconds, output: Output, tx: Transaction, budget: Budget
) -> Replayed:
    """Raises TookTooLongError when nothing is ready in time."""
    rows = rows_of(tx, watched_devices(tx, rule, budget), start_ms, end_ms, budget)
    first = Position(rows[0].position - 1) if rows else tx.messages.head()
    simulation = RuleSimulation(tx, rule, first, rows[0].cts if rows else end_ms, output, budget)
    simulation.sends = True
    alarms = simulation.alarms = None if rule.alarm is None else SimulatedAlarms(rule)
    simulation.begin_minutes(Milliseconds(start_ms - 1))
    counts = _Counts(start_ms)
    is_whole = False
    try:
        is_whole = all(counts.takes(happened, simulation) for happened in _happenings(simulation, rows, end_ms, counts))
    except TookTooLongError:
        if not counts.evaluations:
            raise
    until_ms = None if is_whole and len(rows) < RULE_HISTORY_ROWS else counts.at_ms
    return Replayed(
        counts.messages,
        counts.evaluations,
        counts.triggered,
        counts.shown,
        until_ms,
        bool(rule.transformers),
        None if alarms is None else alarms.shown,
        0 if alarms is None else alarms.raised,
    )


@dataclass(slots=True)
class _Counts:
    at_ms: Milliseconds
    messages: int = 0
    evaluations: int = 0
    triggered: int = 0
    shown: list[Triggered] = field(default_factory=list)

    def takes(self, happened: SimulatedEvaluation, simulation: RuleSimulation) -> bool:
        """Count an evaluation. False: there may be no more of them."""
        self.evaluations += 1
        self.at_ms = happened.at_ms
        if happened.outcome.match is not None:
            self.triggered += 1
            if len(self.shown) < SHOWN_MAX:
                self.shown.append(Triggered(happened.at_ms, happened.row, happened.outgoing[:SENT_MAX]))
            simulation.sends = len(self.shown) < SHOWN_MAX
        return self.evaluations < _EVALUATIONS_MAX


def _happenings(
    simulation: RuleSimulation, rows: Sequence[MessageRow], end_ms: Milliseconds, counts: _Counts
) -> Iterator[SimulatedEvaluation]:
    for row in rows:
        yield from simulation.message(row)
        counts.messages += 1
    if len(rows) < RULE_HISTORY_ROWS:  # otherwise there may be more messages before the end
        yield from simulation.until(end_ms)
