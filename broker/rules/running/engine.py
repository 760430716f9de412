"""Follows the message log and the time, and carries out what rules trigger (reference 12.4).

The states of the rules, the position in the log and the resulting Actions commit together, so that after a crash no
rule triggers twice and none is missed. Rows wait in a bounded queue; when it overflows, they are read from the log.
Nobody waits for the engine: a message is acknowledged when it is stored.

Where several nodes serve, the one with the lease knows the rules. It may hear of a rule after it has evaluated messages
that came behind it: then it goes back for this rule alone, and the state of the rule tells how far it has come.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Final

import msgspec
import structlog
import trio

from broker.accounts.permissions import Reach
from broker.alarms.changes import carry_out
from broker.clock import Clock
from broker.cluster.facts import FactLog
from broker.cluster.kinds import ALARM_ENDED, RULE, RULE_FAILED, AlarmEnded, publish
from broker.cluster.news import News
from broker.facts import FactPhase, MessagesStored, Router, RuleReported
from broker.loops import Wakeup
from broker.messages.follower import LogFollower
from broker.rules.language.rule import CompiledRule
from broker.rules.running.evaluator import Evaluator, PendingEffects
from broker.rules.running.index import RuleIndex, RunningRule
from broker.rules.sending.requests import RequestQueue
from broker.rules.sending.sender import FiringProblem, RuleSender
from config.limits import RULE_LOG_ROWS
from storage.commit_group import CommitGroup
from storage.database import Database
from storage.keys import Milliseconds, Position, RuleKey
from storage.leases import Holder
from storage.outages import Outage
from storage.records import MessageRow
from storage.rules import RuleProblem, RuleRecord, RuleState
from storage.sql import StoreError
from storage.transaction import Transaction

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
#: Of several nodes: so long after a moment the messages that others have received by then are stored, and are here.
_OF_OTHERS_MS: Final = Milliseconds(500)

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
    alarms: int


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
    #: Hear of the others, and publish their rows; None: no other node writes.
    _peers: FactLog | None = None
    _follower: LogFollower | None = None
    #: Called when alarms were raised.
    _alarms_raised: Callable[[], None] = lambda: None

    def __post_init__(self, news: News) -> None:
        self._held: deque[MessageRow] = deque()
        self._seen = Position(0)  # the last row of the log that is durable
        self._follows = False  # the held rows follow the evaluated ones without a gap
        self._is_whole = False  # everything that was evaluated is stored, or is in the states of the rules
        self._saved = Position(0)
        self._outage = Outage("rule_problem_not_saved")
        self._saved_at = 0
        self._must_restore = False
        self._is_open = self._peers is None  # takes rules
        self._is_placed = False  # knows the common position
        self._late: dict[RuleKey, RunningRule] = {}  # rules for which it has to go back
        self._new: set[RuleKey] = set()  # no state of them is stored: it is with the next common position
        self._common = Position(0)  # all rules have come to here, but for the late ones
        self._has_behind = False
        self._bound: tuple[CommitGroup, Sequence[RunningRule]] | None = None  # the last commit, and what triggered
        self._wakeup = Wakeup()
        self._told: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._triggered = self._actions = self._problems = self._stopped = self._raised = 0
        self._router.subscribe(MessagesStored, self._messages_stored, FactPhase.EFFECT)
        news.listen(RULE_FAILED, self._rule_failed)
        news.listen(ALARM_ENDED, self._alarm_ended)
        if self._peers is not None:
            self._peers.refuse_with(self._changed_meanwhile)
        if self._follower is not None:
            self._follower.tell_reader(self._has_rules, self._wakeup.set)

    # Rules

    @property
    def is_open(self) -> bool:
        return self._is_open

    def open(self) -> None:
        """Take rules from now on: this node runs them, and is about to load all."""
        self.forget_all()
        self._is_open = True

    def forget_all(self) -> None:
        """Another node runs the rules."""
        self._is_open = self._is_placed = False
        for running in list(self._index):
            self.remove(running.key)
        self._late.clear()
        self._new.clear()
        self._evaluator.forget()
        self._held, self._follows, self._is_whole = deque(), False, False

    def _changed_meanwhile(self, group: CommitGroup, told: Sequence[tuple[object, object]]) -> str | None:
        """A rule that has triggered in this commit was changed or removed before it."""
        if self._bound is None or self._bound[0] is not group:
            return None
        changed = {key for kind, key in told if kind is RULE}
        if any(one.key in changed and not self._index.has(one) for one in self._bound[1]):
            return "a rule that has triggered was changed on another node"
        return None

    def begin(self, record: RuleRecord, rule: CompiledRule, reach: Reach, state: RuleState) -> None:
        """Run a rule from now on, in place of the one with its key; or, as its record says, do not run it."""
        if not self._is_open:
            return
        known = self._late.get(record.key) or self._index.get(record.key)
        if not record.runs:
            self.remove(record.key)
            return
        is_known = known is not None and known.revision == record.revision
        if known is not None and is_known:
            state = known.state(known.behind)  # newer than the stored one
        running = RunningRule.made(record, rule, reach, state)
        if self._is_placed and not self._index and not self._late:  # rows up to here are not held
            self._evaluator.position = max(self._evaluator.position, self._seen)
        if not self._is_placed:
            self._run(running)
        elif known is not None and is_known:
            running.upto, running.behind = known.upto, known.behind
            self._take_place(running, is_late=record.key in self._late)
        elif running.behind is not None and running.since < self._evaluator.position:
            running.upto = running.behind = running.since
            self._take_place(running, is_late=True)
        else:
            running.upto, running.behind = running.since, None
            self._take_place(running, is_late=False)
            self._new.add(running.key)
        self._wakeup.set()

    def _take_place(self, running: RunningRule, *, is_late: bool) -> None:
        if is_late:
            self.remove(running.key)
            self._late[running.key] = running
            return
        if not self._index and not self._late:
            self._held.clear()
            self._follows, self._evaluator.position = True, max(self._evaluator.position, running.upto)
        self._run(running)

    def _run(self, running: RunningRule) -> None:
        self._index.put(running)
        # Minutes that begin from now on count; one that began just before a restart is caught up on.
        after_ms = max(running.minute or running.modified_on, Milliseconds(self._clock.now_ms() - _CAUGHT_UP_MS))
        self._evaluator.schedule(running, after_ms)

    def supersede(self, record: RuleRecord) -> None:
        """A rule is about to begin, in place of the one with its key that ends now."""
        known = self._late.get(record.key) or self._index.get(record.key)
        if known is not None and known.revision != record.revision:
            self.remove(record.key)

    def remove(self, key: RuleKey) -> None:
        self._late.pop(key, None)
        self._index.remove(key)
        self._evaluator.forget_rule(key)

    def _has_rules(self) -> bool:
        return self._is_open and bool(self._index or self._late)

    # The log

    def _messages_stored(self, fact: MessagesStored) -> None:
        self._seen = fact.rows[-1].position
        if not self._has_rules():  # the next rule counts from behind these rows
            return
        if self._follows and self._follower is None:
            self._held += fact.rows
            if len(self._held) > RULE_LOG_ROWS:
                self._held, self._follows = deque(), False
        self._wakeup.set()

    async def resume(self) -> None:
        """Read where the last run stood. The rules are there already."""
        if not self._is_open:
            return
        self._follows = False  # the first step reads the log
        self._saved = await self._database.read(_position)
        self._seen = await self._database.read(lambda tx: tx.messages.last_position())
        self._place()
        self._is_whole = True

    def _place(self) -> None:
        """Begin where the rules are that are behind, or at the common position. No rule looks at messages that came
        before it."""
        self._has_behind = False
        for running in self._index:
            was_behind = running.behind is not None
            running.follow(self._saved)
            if was_behind and running.behind is None:
                self._new.add(running.key)
            self._has_behind |= running.behind is not None
        self._evaluator.position = min((running.upto for running in self._index), default=self._saved)
        self._common, self._is_placed = self._saved, True

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        outage = Outage("rules_not_saved")
        # Where several nodes have the lease one after the other, what this one knows of the states may be old.
        self._must_restore = self._must_restore or self._peers is not None
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
        if due_ms is not None and self._peers is not None:
            due_ms = Milliseconds(due_ms + _OF_OTHERS_MS)
        seconds = _LONGEST_WAIT_SECONDS if due_ms is None else max(0.0, (due_ms - self._clock.now_ms()) / 1000)
        return min(seconds, _SAVE_SECONDS if self._evaluator.pending.changed else _LONGEST_WAIT_SECONDS)

    async def step(self) -> bool:
        """Evaluate some rows and due timers, and commit the effects. True: there is more to do at once."""
        evaluator = self._evaluator
        if self._must_restore:
            await self._restore()
        self._go_back()
        if not self._index and not evaluator.pending.changed:
            self._held.clear()
            self._follows, evaluator.position = True, max(evaluator.position, self._seen)
            return False
        evaluator.trim()
        now_ms = self._clock.now_ms()
        if self._peers is not None:
            now_ms = Milliseconds(now_ms - _OF_OTHERS_MS)
        due_ms = evaluator.timers.next_due()
        is_due = due_ms is not None and due_ms <= now_ms
        if is_due:
            # A message that was received by now may end the duration: this commit puts it among the held rows.
            await self._database.write(_nothing)
        self._is_whole = False
        is_behind = await self._evaluate(await self._next_rows())
        self._note_caught_up()
        if not is_behind:
            evaluator.advance_clock(now_ms)
        if is_due and not is_behind:
            await evaluator.run_due(now_ms, not_before_ms=now_ms)
        await self._commit()
        return is_behind

    def _go_back(self) -> None:
        """Take the rules that were made before messages that are evaluated already."""
        if not self._late:
            return
        late, self._late = self._late, {}
        self._common, self._has_behind = max(self._common, self._evaluator.position), True
        self._evaluator.go_back(min(running.upto for running in late.values()))
        for running in late.values():
            self._run(running)
        self._held, self._follows = deque(), False

    def _note_caught_up(self) -> None:
        """The rules that were behind have come to the common position."""
        if self._has_behind and self._evaluator.position >= self._common:
            for running in self._index:
                if running.behind is not None:
                    running.behind = None
                    self._evaluator.pending.changed.add(running.key)
            self._has_behind = False

    async def _next_rows(self) -> Sequence[MessageRow]:
        """The rows to evaluate next: the held ones; after a gap, or where other nodes store rows, too, those of the
        log."""
        if self._follower is not None or not self._follows:
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
        alarms = found.alarms.of(self._index.has, batch.refused)
        position = max(evaluator.position, self._common)
        states, now_ms = self._states(found), self._clock.now_ms()
        self._bound = self._database.open_group, [firing.running for firing in firings]
        self._saved, self._saved_at = position, steady_ms
        self._new.clear()

        def work(tx: Transaction) -> tuple[list[FiringProblem], int]:
            tx.messages.set_consumer_position(_CONSUMER, position)
            tx.rules.put_states(states)
            raised = carry_out(tx, alarms)
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
            return problems, raised

        # The Actions are in the store only if this node has the lease, too.
        problems, raised = await self._database.write_own(self._lease, work, with_rows=True)
        evaluator.alarms_stored(alarms)
        self._raised += raised
        if raised:
            self._alarms_raised()
        if batch.requests:
            self._requests.wake()
        for problem in problems:
            problem.running.failing = True
        self._problems += len(problems)
        self._stopped += len(batch.stops)
        for stop, _ in batch.stops:
            _log.warning("rule_stopped", rule=stop.running.id, reason=stop.reason)

    def _states(self, found: PendingEffects) -> list[RuleState]:
        changed = {*found.changed, *self._new, *(problem.running.key for problem in found.problems)}
        changed |= {firing.running.key for firing in found.firings}
        running = [self._index.get(key) for key in changed] + [stop.running for stop in found.stops]
        return [self._state_of(one) for one in running if one is not None]

    def _state_of(self, running: RunningRule) -> RuleState:
        position = self._evaluator.position
        return running.state(max(running.upto, position) if running.behind is not None else None)

    def _alarm_ended(self, ended: AlarmEnded, _content: None) -> None:
        running = self._late.get(ended.rule) or self._index.get(ended.rule)
        if running is not None:
            self._evaluator.alarm_ended(running, (ended.device, ended.is_storm))

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
        late, self._late = self._late, {}
        for running in late.values():
            self._run(running)
        keys = [running.key for running in self._index]
        self._saved, states = await self._database.read(lambda tx: (_position(tx), _states(keys, tx)))
        for running in list(self._index):
            state = states.get(running.key)
            if state is not None and state.revision == running.revision:
                running.take(state)
                self._evaluator.schedule(running, Milliseconds(self._clock.now_ms()))
        self._place()
        self._must_restore = False

    async def save(self) -> None:
        """Save where the rules stand, if everything that they triggered is stored. Raises StoreError."""
        evaluator = self._evaluator
        if not self._is_whole or evaluator.pending or evaluator.position <= self._saved:
            return
        states, position = self._states(evaluator.pending), max(evaluator.position, self._common)

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
            alarms=self._raised,
        )


def _position(tx: Transaction) -> Position:
    return tx.messages.consumer_position(_CONSUMER)


def _states(rules: Sequence[RuleKey], tx: Transaction) -> dict[RuleKey, RuleState]:
    return {state.rule: state for state in tx.rules.states(rules)}


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
