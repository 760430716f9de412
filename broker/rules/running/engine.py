"""Follows the message log and the time, and carries out what rules trigger (reference 12.4).

The states of the rules, the position in the log and the resulting Actions commit together, so that after a crash no
rule triggers twice and none is missed. Rows wait in a bounded queue; when it overflows, they are read from the log.
Nobody waits for the engine: a message is acknowledged when it is stored.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Final

import msgspec
import structlog
import trio

from broker.accounts.permissions import Reach
from broker.clock import Clock
from broker.cluster.kinds import RULE_FAILED, publish
from broker.cluster.news import News
from broker.facts import FactPhase, MessagesStored, Router, RuleReported
from broker.loops import Wakeup
from broker.rules.language.rule import CompiledRule
from broker.rules.running.evaluator import Evaluator, PendingEffects
from broker.rules.running.index import RuleIndex, RunningRule, remembered
from broker.rules.sending.requests import RequestQueue
from broker.rules.sending.sender import FiringProblem, RuleSender
from config.limits import RULE_LOG_ROWS
from storage.database import Database, Transaction
from storage.keys import Milliseconds, Position, RuleKey
from storage.leases import Holder
from storage.outages import Outage
from storage.records import MessageRow
from storage.rules import RuleProblem, RuleRecord, RuleState
from storage.sql import StoreError

_CONSUMER: Final = "rules"
_STEP_ROWS: Final = 500
_STEP_FIRINGS: Final = 200
_TURN_SECONDS: Final = 0.001  # then the other tasks of the daemon have their turn
_SAVE_ROWS: Final = 5_000  # rows that are evaluated again after a crash, at most, when no rule triggers
_SAVE_SECONDS: Final = 5.0
_LONGEST_WAIT_SECONDS: Final = 30.0  # the wall clock may be set during a wait
_RETRY_SECONDS: Final = 1.0
_CAUGHT_UP_MS: Final = 60_000
_TOLD_MAX: Final = 10_000
_TOLD_MS: Final = 1_000

_log = structlog.get_logger(__name__)


class EngineStatistics(msgspec.Struct, frozen=True):
    """`waiting_rows`: stored messages that are not evaluated yet; the counts are since the start."""

    rules: int
    timers: int
    position: Position
    waiting_rows: int
    evaluated: int
    triggered: int
    actions: int
    problems: int
    stopped: int


@dataclass(eq=False)
class RuleEngine:
    _database: Database
    _lease: Holder
    _clock: Clock
    _router: Router
    news: InitVar[News]
    _index: RuleIndex
    _evaluator: Evaluator
    _sending: RuleSender
    _requests: RequestQueue

    def __post_init__(self, news: News) -> None:
        self._held: deque[MessageRow] = deque()
        self._seen = Position(0)  # the last row of the log that is durable
        self._follows = False  # the held rows follow the evaluated ones without a gap
        self._is_whole = False  # everything that was evaluated is stored, or is in the states of the rules
        self._saved = Position(0)
        self._outage = Outage("rule_problem_not_saved")
        self._saved_at = 0
        self._must_restore = False
        self._wakeup = Wakeup()
        self._told: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._triggered = self._actions = self._problems = self._stopped = 0
        self._router.subscribe(MessagesStored, self._messages_stored, FactPhase.EFFECT)
        news.listen(RULE_FAILED, self._rule_failed)

    # Rules

    def begin(self, record: RuleRecord, rule: CompiledRule, reach: Reach, state: RuleState) -> None:
        """Run a rule from now on, in place of the one with its key; or, as its record says, do not run it."""
        known = self._index.get(record.key)
        if not record.runs:
            self.remove(record.key)
            return
        if known is not None and known.revision == record.revision:
            state = known.state  # newer than the stored one
        running = RunningRule.made(record, rule, reach, state)
        if not self._index:
            self._held.clear()
            self._follows, self._evaluator.position = True, max(self._evaluator.position, running.since)
        self._index.put(running)
        # Minutes that begin from now on count; one that began just before a restart is caught up on.
        after_ms = max(running.minute or record.modified_on, Milliseconds(self._clock.now_ms() - _CAUGHT_UP_MS))
        self._evaluator.schedule(running, after_ms)
        self._wakeup.set()

    def remove(self, key: RuleKey) -> None:
        self._index.remove(key)
        self._evaluator.forget_rule(key)

    # The log

    def _messages_stored(self, fact: MessagesStored) -> None:
        self._seen = fact.rows[-1].position
        if not self._index:  # the next rule counts from behind these rows
            return
        if self._follows:
            self._held += fact.rows
            if len(self._held) > RULE_LOG_ROWS:
                self._held, self._follows = deque(), False
        self._wakeup.set()

    async def resume(self) -> None:
        """Read where the last run stood. The rules are there already."""
        self._follows = False  # the first step reads the log
        self._saved = await self._database.read(_position)
        # No rule looks at messages that came before it.
        first = min((running.since for running in self._index), default=self._saved)
        self._evaluator.position = max(self._saved, first)
        self._seen = await self._database.read(lambda tx: tx.messages.last_position())
        self._is_whole = True

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        outage = Outage("rules_not_saved")
        # Where several nodes have the lease one after the other, what this one knows of the states may be old.
        self._must_restore = self._must_restore or self._lease.held is not None
        while True:
            try:
                goes_on = await self.step()
                outage.succeeded()
                if goes_on:
                    continue
            except StoreError as error:
                outage.failed(error)
                self._must_restore = True
            except Exception:  # noqa: BLE001 - a bug must not end the daemon, and nothing may be lost
                _log.exception("rules_failed")
                self._must_restore = True
            if self._must_restore:
                await trio.sleep(_RETRY_SECONDS)
                continue
            await self._wakeup.wait(self._wait_seconds())

    def _wait_seconds(self) -> float:
        due_ms = self._evaluator.timers.next_due()
        seconds = _LONGEST_WAIT_SECONDS if due_ms is None else max(0.0, (due_ms - self._clock.now_ms()) / 1000)
        return min(seconds, _SAVE_SECONDS if self._evaluator.pending.changed else _LONGEST_WAIT_SECONDS)

    async def step(self) -> bool:
        """Evaluate some rows and due timers, and commit the effects. True: there is more to do at once."""
        evaluator = self._evaluator
        if self._must_restore:
            await self._restore()
        if not self._index and not evaluator.pending.changed:
            self._held.clear()
            self._follows, evaluator.position = True, self._seen
            return False
        evaluator.trim()
        now_ms = self._clock.now_ms()
        due_ms = evaluator.timers.next_due()
        is_due = due_ms is not None and due_ms <= now_ms
        if is_due:
            # A message that was received by now may end the duration: this commit puts it among the held rows.
            await self._database.write(_nothing)
        self._is_whole = False
        is_behind = await self._evaluate(await self._next_rows())
        if not is_behind:
            evaluator.advance_clock(now_ms)
        if is_due and not is_behind:
            await evaluator.run_due(now_ms, not_before_ms=now_ms)
        await self._commit()
        return is_behind

    async def _next_rows(self) -> Sequence[MessageRow]:
        """The rows to evaluate next: the held ones, or after a gap those of the log."""
        if not self._follows:
            # From now on every commit is held. A row that is held and read counts once, because positions are compared.
            self._held, self._follows = deque(), True
            rows = await self._database.read(partial(_after, self._evaluator.position))
            if len(rows) == _STEP_ROWS:
                self._held, self._follows = deque(), False
            return rows
        held = self._held
        return [held.popleft() for _ in range(min(len(held), _STEP_ROWS))]

    async def _evaluate(self, rows: Sequence[MessageRow]) -> bool:
        """Evaluate rows until all are done or much is triggered. True: there are more rows."""
        evaluator = self._evaluator
        await evaluator.prefetch(rows)
        turn_ends = trio.current_time() + _TURN_SECONDS
        for done, row in enumerate(rows):
            if row.position > evaluator.position:
                if not evaluator.skips(row):
                    await evaluator.evaluate(row)
                if len(evaluator.pending.firings) >= _STEP_FIRINGS:
                    if self._follows:
                        self._held.extendleft(reversed(rows[done + 1 :]))
                    return True
                if trio.current_time() > turn_ends:
                    await trio.lowlevel.checkpoint()
                    turn_ends = trio.current_time() + _TURN_SECONDS
        return bool(self._held) or not self._follows

    async def _commit(self) -> None:
        """Write the pending effects together with the position, if there are any or it is time to save the position."""
        evaluator = self._evaluator
        found = evaluator.pending
        steady_ms = self._clock.steady_ms()
        is_time = (
            evaluator.position - self._saved >= _SAVE_ROWS
            or (found.changed and steady_ms - self._saved_at >= _SAVE_SECONDS * 1000)
        )  # fmt: skip
        if not found and not is_time:
            self._is_whole = True
            return
        known = await self._sending.addressees(found.firings, found.stops)
        # From here to the write there is no wait: the Actions are in the group of the work that stores the position.
        self._is_whole = True
        found = evaluator.take_pending()
        firings = [firing for firing in found.firings if self._index.has(firing.running)]
        batch = self._sending.submit(firings, found.stops, known)
        batch.problems += found.problems
        for firing in firings:
            firing.running.failing = False
        for problem in batch.problems:
            problem.running.failing = True
        self._triggered += len(firings)
        self._actions += batch.actions
        states, position, now_ms = self._states(found), evaluator.position, self._clock.now_ms()
        self._saved, self._saved_at = position, steady_ms

        def work(tx: Transaction) -> list[FiringProblem]:
            tx.messages.set_consumer_position(_CONSUMER, position)
            tx.rules.put_states(states)
            problems = self._sending.write(tx, batch, now_ms)
            if problems:
                tx.rules.set_failing({problem.running.key for problem in problems})
            for problem in problems:
                if (failed := _failed(problem.running, problem.field, problem.text, problem.at_ms)) is not None:
                    tx.tell(RULE_FAILED, failed)
            for stop, _ in batch.stops:
                stopped = _reported(stop.running, "stopped", "rule", stop.reason, stop.at_ms)
                if stopped is not None:
                    publish(tx, stopped)
            return problems

        problems = await self._database.write_own(self._lease, work)
        if batch.requests:
            self._requests.wake()
        for problem in problems:
            problem.running.failing = True
        self._problems += len(problems)
        self._stopped += len(batch.stops)
        for stop, _ in batch.stops:
            _log.warning("rule_stopped", rule=stop.running.id, reason=stop.reason)

    def _states(self, found: PendingEffects) -> list[RuleState]:
        changed = {*found.changed, *(problem.running.key for problem in found.problems)}
        changed |= {firing.running.key for firing in found.firings}
        running = [self._index.get(key) for key in changed] + [stop.running for stop in found.stops]
        return [one.state for one in running if one is not None]

    def _rule_failed(self, failed: RuleReported, _content: None) -> None:
        """Publish this; the same problem at most once a second."""
        what = (failed.rule_id, failed.field, failed.text)
        steady_ms = self._clock.steady_ms()
        if steady_ms - self._told.get(what, steady_ms - _TOLD_MS) < _TOLD_MS:
            return
        self._told[what] = steady_ms
        self._told.move_to_end(what)
        if len(self._told) > _TOLD_MAX:
            self._told.popitem(last=False)
        self._router.publish(failed)

    async def note(self, rule: RuleKey, field: str, text: str) -> None:
        """An HTTP request of a rule has failed."""
        now_ms, running = self._clock.now_ms(), self._index.get(rule)
        failed = None if running is None else _failed(running, field, text, now_ms)

        def work(tx: Transaction) -> None:
            if tx.rules.state(rule) is not None:
                tx.rules.note_problems([RuleProblem(rule, field, text, now_ms, now_ms, 1)])
                tx.rules.set_failing([rule])
            if failed is not None:
                tx.tell(RULE_FAILED, failed)

        try:
            await self._database.write(work)
        except StoreError as error:
            self._outage.failed(error)
            if failed is not None:
                self._rule_failed(failed, None)
        else:
            self._outage.succeeded()
        self._problems += 1
        if running is not None:
            running.failing = True

    async def _restore(self) -> None:
        """Go back to the stored state: a commit has failed."""
        self._evaluator.forget()
        self._held, self._follows = deque(), False
        self._saved = await self._database.read(_position)
        first = min((running.since for running in self._index), default=self._saved)
        self._evaluator.position = max(self._saved, first)
        for running in list(self._index):
            state = await self._database.read(partial(_state, running.key))
            if state is not None and self._index.has(running):
                running.triggered, running.last_on, running.failing = state.triggered, state.last_on, state.failing
                running.timers, running.minute = remembered(state)
                self._evaluator.schedule(running, Milliseconds(self._clock.now_ms()))
        self._must_restore = False

    async def save(self) -> None:
        """Save where the rules stand, if everything that they triggered is stored. Raises StoreError."""
        evaluator = self._evaluator
        if not self._is_whole or evaluator.pending or evaluator.position <= self._saved:
            return
        states, position = self._states(evaluator.pending), evaluator.position

        def work(tx: Transaction) -> None:
            tx.messages.set_consumer_position(_CONSUMER, position)
            tx.rules.put_states(states)

        await self._database.write_own(self._lease, work)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            rules=len(self._index),
            timers=len(self._evaluator.timers),
            position=self._evaluator.position,
            waiting_rows=len(self._held) if self._follows else self._seen - self._evaluator.position,
            evaluated=self._evaluator.evaluated,
            triggered=self._triggered,
            actions=self._actions,
            problems=self._problems,
            stopped=self._stopped,
        )


def _position(tx: Transaction) -> Position:
    return tx.messages.consumer_position(_CONSUMER)


def _state(rule: RuleKey, tx: Transaction) -> RuleState | None:
    return tx.rules.state(rule)


def _after(position: Position, tx: Transaction) -> list[MessageRow]:
    return tx.messages.after(position, limit=_STEP_ROWS)


def _nothing(tx: Transaction) -> None:
    """A write without a change: it is durable after everything that was accepted before it."""


def _failed(running: RunningRule, field: str, text: str, at_ms: Milliseconds) -> RuleReported | None:
    return _reported(running, "failed", field, text, at_ms)


def _reported(running: RunningRule, kind: str, field: str, text: str, at_ms: Milliseconds) -> RuleReported | None:
    """None: no application made the rule."""
    caller = running.reach.caller
    if caller.application is None:
        return None
    return RuleReported(
        kind,
        running.id,
        running.owner,
        running.owner_id,
        caller.application,
        caller.application_id or "",
        field,
        text,
        at_ms,
    )
