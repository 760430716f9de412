"""The status of a rule: its state, when it triggered last, what it waits for, what went wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from broker.clock import Clock
from broker.errors import Finding, ValidationFailed
from broker.rules.explaining.why import RuleExplainer
from broker.rules.language.rule import CompiledRule
from broker.rules.running.loader import findings_of
from broker.rules.running.models import ConditionModels, ModelWarning
from broker.rules.running.names import NameResolver
from storage.database import Database
from storage.keys import Milliseconds
from storage.rules import RuleProblem, RuleRecord, RuleState
from storage.transaction import Transaction


class RunState(StrEnum):
    RUNNING = "running"
    #: Something went wrong when it was triggered last.
    FAILING = "failing"
    DISABLED = "disabled"
    INVALID = "invalid"
    STOPPED = "stopped"
    #: On the present local date, an event of the sun that a condition wants does not happen.
    NO_SUN = "noSun"


class RuleStatus(msgspec.Struct, frozen=True):
    """`waits_for` has a sentence for each condition that does not hold; None where it was not asked for."""

    record: RuleRecord
    index: int
    run_state: RunState
    is_testable: bool
    triggered: int
    last_on: Milliseconds | None
    findings: tuple[Finding, ...]
    warnings: Sequence[ModelWarning]
    problems: Sequence[RuleProblem]
    waits_for: tuple[str, ...] | None = None


_Known = tuple[int, RuleState | None, list[RuleProblem]]


@dataclass(slots=True, eq=False, repr=False)
class RuleStatuses:
    _database: Database
    _clock: Clock
    _explainer: RuleExplainer
    _names: NameResolver
    _models: ConditionModels

    async def status(self, record: RuleRecord, *, with_waiting: bool = False) -> RuleStatus:
        rule = await self._compiled(record)
        transformers = () if rule is None else rule.transformers

        def work(tx: Transaction) -> tuple[_Known, Callable[[], Sequence[ModelWarning]]]:
            return _known(tx, record), self._models.warnings(tx, record.key, transformers)

        (index, state, problems), warnings = await self._database.read(work)
        return RuleStatus(
            record=record,
            index=index,
            run_state=self._run_state_of(record, state, rule),
            is_testable=rule is not None and rule.is_testable,
            triggered=0 if state is None else state.triggered,
            last_on=None if state is None else state.last_on,
            findings=findings_of(record),
            warnings=warnings(),
            problems=problems,
            waits_for=await self._waits_for(record, rule) if with_waiting and rule is not None else None,
        )

    def _run_state_of(self, record: RuleRecord, state: RuleState | None, rule: CompiledRule | None) -> RunState:
        run_state = run_state_of(record, state)
        if run_state is RunState.RUNNING and rule is not None and rule.lacks_sun(self._clock.now_ms()):
            return RunState.NO_SUN
        return run_state

    async def _compiled(self, record: RuleRecord) -> CompiledRule | None:
        try:
            return await self._names.compiled(record)
        except ValidationFailed:
            return None

    async def _waits_for(self, record: RuleRecord, rule: CompiledRule) -> tuple[str, ...] | None:
        if not record.runs:
            return None
        why = await self._explainer.now(record, rule)
        if why is None:
            return None
        return tuple(f"{one.report.path}: {one.sentence}" for one in why.conditions if one.report.held is not True)

    async def executions(self, record: RuleRecord) -> tuple[int, Milliseconds | None]:
        """How often the rule was triggered, and when last."""
        state = await self._database.read(lambda tx: tx.rules.state(record.key))
        return (0, None) if state is None else (state.triggered, state.last_on)


def run_state_of(record: RuleRecord, state: RuleState | None) -> RunState:
    if record.invalidated_on is not None:
        return RunState.INVALID
    if record.stopped_on is not None:
        return RunState.STOPPED
    if not record.enabled:
        return RunState.DISABLED
    return RunState.FAILING if state is not None and state.failing else RunState.RUNNING


def _known(tx: Transaction, record: RuleRecord) -> _Known:
    return tx.rules.index_of(record), tx.rules.state(record.key), tx.rules.problems(record.key)
