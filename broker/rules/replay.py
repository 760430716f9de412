"""Runs a rule over history, dry: what it would have sent (reference 12.9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.errors import INVALID, Conflict, ValidationFailed
from broker.rules.rule import Outgoing, Rule
from broker.rules.simulation import Happened, Simulation, TooManyDevicesError, rows_of, watched_devices
from config.limits import RULE_HISTORY_DAYS, RULE_HISTORY_ROWS
from storage.database import Database, Transaction
from storage.keys import Milliseconds, Position
from storage.records import MessageRow

SHOWN_MAX: Final = 100
TOO_MANY_DEVICES: Final = "The rule watches more than 1000 devices"
_EVALUATIONS_MAX: Final = 2 * RULE_HISTORY_ROWS
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Triggered:
    at_ms: Milliseconds
    row: MessageRow | None  # None: the time was the cause
    outgoing: Sequence[Outgoing]


@dataclass(frozen=True, slots=True)
class Replayed:
    """`triggered` counts all; `shown` has the first 100. `until_ms`: where the replay ended before its time did."""

    messages: int
    evaluations: int
    triggered: int
    shown: Sequence[Triggered]
    until_ms: Milliseconds | None


class Replays:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self, rule: Rule, start_ms: Milliseconds, end_ms: Milliseconds) -> Replayed:
        """Run a rule over the messages from `start_ms` to `end_ms`, without durations that ran before.

        Raises:
            ValidationFailed: the times are in the wrong order, or more than 31 days apart.
            Conflict: the rule watches too many devices.
        """
        check_times(start_ms, end_ms)
        try:
            return await self._database.read(lambda tx: _replayed(tx, rule, start_ms, end_ms))
        except TooManyDevicesError:
            raise Conflict(TOO_MANY_DEVICES) from None


def check_times(start_ms: Milliseconds, end_ms: Milliseconds) -> None:
    """Raises ValidationFailed."""
    if end_ms < start_ms or end_ms - start_ms > RULE_HISTORY_DAYS * _DAY_MS:
        raise ValidationFailed.of("endDate", INVALID)


def _replayed(tx: Transaction, rule: Rule, start_ms: Milliseconds, end_ms: Milliseconds) -> Replayed:
    rows = rows_of(tx, watched_devices(tx, rule), start_ms, end_ms)
    first = rows[0].position if rows else tx.messages.head() + 1
    simulation = Simulation(tx, rule, Position(first - 1))
    simulation.begin_minutes(Milliseconds(start_ms - 1))
    evaluations = triggered = 0
    shown: list[Triggered] = []

    def count(happened: Happened) -> None:
        nonlocal evaluations, triggered
        evaluations += 1
        if happened.outcome.match is not None:
            triggered += 1
            if len(shown) < SHOWN_MAX:
                shown.append(Triggered(happened.at_ms, happened.row, happened.outgoing))

    for done, row in enumerate(rows):
        for happened in simulation.message(row):
            count(happened)
            if evaluations >= _EVALUATIONS_MAX:
                return Replayed(done, evaluations, triggered, shown, happened.at_ms)
    if len(rows) == RULE_HISTORY_ROWS:
        return Replayed(len(rows), evaluations, triggered, shown, rows[-1].cts)
    for happened in simulation.until(end_ms):
        count(happened)
        if evaluations >= _EVALUATIONS_MAX:
            return Replayed(len(rows), evaluations, triggered, shown, happened.at_ms)
    return Replayed(len(rows), evaluations, triggered, shown, None)
