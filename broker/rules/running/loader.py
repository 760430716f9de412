"""Loads stored rules into the engine, or marks them as invalid; again when something that they name changes.

Reference 12.3.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

import msgspec
import trio
from msgspec.structs import replace

from broker.accounts.permissions import Permissions, Reach
from broker.alarms.changes import clear_all_of_rule
from broker.clock import Clock
from broker.cluster.kinds import RULE, RULE_COMPILED, publish
from broker.errors import DomainError, Finding, ValidationFailed
from broker.facts import (
    DeviceCreated,
    DeviceDeleted,
    DeviceFact,
    DeviceHandedOver,
    DeviceTakenOver,
    DeviceTypeChanged,
    DeviceUpdated,
    FactPhase,
    Router,
    RuleReported,
    SharesChanged,
)
from broker.loops import Loop, Wakeup
from broker.mail import Letter, Mails, RuleStopped
from broker.rules.language.rule import CompiledRule
from broker.rules.running.engine import RuleEngine
from broker.rules.running.evaluator import Evaluator
from broker.rules.running.index import RuleIndex, acting
from broker.rules.running.models import ConditionModels
from broker.rules.running.names import NameResolver
from storage.database import Database
from storage.keys import Milliseconds, RuleKey
from storage.rules import RuleProblem, RuleRecord, RuleState, UseKind
from storage.transaction import Transaction

_PAGE: Final = 500
_LOADED_AT_ONCE: Final = 50  # then others have their turn

_encode_findings = msgspec.json.Encoder().encode
_decode_findings = msgspec.json.Decoder(tuple[Finding, ...]).decode


class PreparedRule(msgspec.Struct, frozen=True):
    """A body that was compiled, and the reach of its rule. A new rule has its number only when it is stored."""

    compiled: Callable[[RuleKey], CompiledRule]
    reach: Reach


@dataclass(slots=True, eq=False, repr=False)
class RuleLoader:
    """Runs rules when it hears of them: at once if they were prepared, else as soon as they are compiled."""

    _database: Database
    _clock: Clock
    _permissions: Permissions
    _names: NameResolver
    _engine: RuleEngine
    _models: ConditionModels
    _mails: Mails
    #: By the id and the body of the rule, while it is being stored.
    _prepared: dict[tuple[str, str], PreparedRule] = field(default_factory=dict, init=False)
    #: Called with a rule that is to be compiled.
    _compile: Callable[[RuleKey], None] | None = field(default=None, init=False)

    def set_compiler(self, compile_: Callable[[RuleKey], None]) -> None:
        self._compile = compile_

    @contextmanager
    def prepared(self, rules: Mapping[tuple[str, str], PreparedRule]) -> Iterator[None]:
        """Rules that are stored in this block run when their commit is heard of."""
        self._prepared.update(rules)
        try:
            yield
        finally:
            for name, mine in rules.items():
                if self._prepared.get(name) is mine:
                    del self._prepared[name]

    def changed(self, key: RuleKey, stored: tuple[RuleRecord, RuleState] | None) -> None:
        """A rule was made, changed or compiled again; None: it was removed."""
        if stored is None or not stored[0].runs:
            self._engine.remove(key)
            return
        record, state = stored
        if not self._engine.is_open:  # the node that runs it hears of it
            return
        prepared = self._prepared.get((record.id, record.body))
        if prepared is not None:
            self._engine.begin(record, prepared.compiled(key), prepared.reach, state)
        elif self._compile is not None:  # it was made on another node, or the task that asked for it was cancelled
            self._engine.supersede(record)
            self._compile(key)

    async def load_all(self) -> None:
        """Run all rules that are enabled. A rule that is not valid any more is marked so."""
        after = RuleKey(0)
        while records := await self._database.read(partial(_page_after, after)):
            after = records[-1].key
            await self._load([record for record in records if record.runs])

    async def reload(self, keys: Iterable[RuleKey]) -> int:
        """Compile rules again, because something that they name has changed. Returns how many are invalid now."""
        invalid, waiting = 0, list(keys)
        for start in range(0, len(waiting), _LOADED_AT_ONCE):
            some = waiting[start : start + _LOADED_AT_ONCE]
            records = await self._database.read(partial(_with_keys, some))
            invalid += await self._load([record for record in records if record.invalidated_on is None])
        return invalid

    async def _load(self, records: Sequence[RuleRecord]) -> int:
        """Run rules, or mark them as invalid. Returns how many are."""
        invalid, valid = 0, list[tuple[RuleRecord, CompiledRule]]()
        prepared: dict[tuple[str, str], PreparedRule] = {}
        devices = await self._names.devices_of(records)
        for record in records:
            await trio.lowlevel.checkpoint()  # a body takes its time, and there may be thousands
            reach = await self._permissions.reach(acting(record))
            try:
                rule = await self._names.compiled(record)
                valid.append((record, rule))
                prepared[record.id, record.body] = PreparedRule(partial(_same, rule), reach)
            except ValidationFailed as error:
                await self._invalidate(record, error.findings)
                invalid += 1

        del devices

        def work(tx: Transaction) -> None:
            present = {one.key: one for one in tx.rules.rules_with([record.key for record, _ in valid])}
            for record, rule in valid:
                if present.get(record.key) == record:  # it was not changed or removed since it was read
                    self._make_models(tx, record, rule)
                    tx.tell(RULE_COMPILED, record.key)

        if valid:  # a write, because the rules must begin in the order of the commits
            with self.prepared(prepared):
                await self._database.write(work)
        return invalid

    def _make_models(self, tx: Transaction, record: RuleRecord, rule: CompiledRule) -> None:
        """Devices of the rule's types that came later get their models."""
        if rule.transformers:
            try:
                self._models.put(tx, record, rule.transformers)
            except DomainError as error:
                now_ms = self._clock.now_ms()
                tx.rules.note_problems([RuleProblem(record.key, "rule.if", str(error), now_ms, now_ms, 1)])

    async def _invalidate(self, record: RuleRecord, findings: tuple[Finding, ...]) -> None:
        now_ms = self._clock.now_ms()
        reason = "; ".join(f"{one.field}: {', '.join(one.messages)}" for one in findings)
        letter = await self._letter(record, reason)

        def work(tx: Transaction) -> None:
            if tx.rules.rule(record.id) != record:  # a change since then has checked it
                return
            text = _encode_findings(findings).decode()
            tx.rules.put(replace(record, invalidated_on=now_ms, findings=text))
            clear_all_of_rule(tx, record.key, at_ms=now_ms)
            if letter is not None:
                self._mails.add(tx, letter)
            tx.tell(RULE, record.key)
            publish(tx, reported(record, "invalidated", findings[0].field, reason, now_ms))

        await self._database.write(work)

    async def _letter(self, record: RuleRecord, reason: str) -> Letter | None:
        owner = await self._database.read(lambda tx: tx.accounts.user(record.owner))
        mail = RuleStopped(rule=record.name, rule_id=record.id, reason=reason)
        try:
            return None if owner is None else self._mails.compose(owner.email, mail, cause=f"user {owner.id}")
        except ValidationFailed:  # no address that a mail can be sent to
            return None


def _same(rule: CompiledRule, _key: RuleKey) -> CompiledRule:
    return rule


def _page_after(key: RuleKey, tx: Transaction) -> list[RuleRecord]:
    return tx.rules.rules_after(key, limit=_PAGE)


def _with_keys(keys: Iterable[RuleKey], tx: Transaction) -> list[RuleRecord]:
    return tx.rules.rules_with(keys)


def findings_of(record: RuleRecord) -> tuple[Finding, ...]:
    """The findings of an invalid rule."""
    return _decode_findings(record.findings) if record.findings else ()


def reported(record: RuleRecord, kind: str, field: str, text: str, at_ms: Milliseconds) -> RuleReported:
    return RuleReported(
        kind,
        record.id,
        record.owner,
        record.owner_id,
        record.application,
        record.application_id,
        field,
        text,
        at_ms,
    )


_Kind = UseKind | Literal["rule"]
_WAITING_MAX: Final = 10_000
_RETRY_SECONDS: Final = 5.0


class InvalidationStatistics(msgspec.Struct, frozen=True):
    """`invalidated`: rules that became invalid since the start."""

    invalidated: int
    waiting: int


class RuleInvalidator:
    """Reloads rules when a device that they name is deleted or not shared any more, or a Manifest changes."""

    def __init__(
        self,
        database: Database,
        router: Router,
        loader: RuleLoader,
        index: RuleIndex,
        evaluator: Evaluator,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_open`: whether this node runs the rules."""
        self._is_open = is_open
        self._database = database
        self._loader = loader
        self._index = index
        self._evaluator = evaluator
        self._waiting: dict[tuple[_Kind, int], None] = {}
        self._all_wait = False
        self._wakeup = Wakeup()
        self._invalidated = 0
        router.subscribe(DeviceCreated, self._members_changed, FactPhase.EFFECT)
        router.subscribe(DeviceDeleted, self._members_changed, FactPhase.EFFECT)
        router.subscribe(DeviceHandedOver, self._members_changed, FactPhase.EFFECT)
        router.subscribe(DeviceTakenOver, self._members_changed, FactPhase.EFFECT)
        router.subscribe(DeviceDeleted, self._device_changed, FactPhase.EFFECT)
        router.subscribe(DeviceUpdated, self._device_changed, FactPhase.EFFECT)
        router.subscribe(SharesChanged, self._device_changed, FactPhase.EFFECT)
        router.subscribe(DeviceTypeChanged, lambda fact: self._put("type", fact.device_type), FactPhase.EFFECT)
        # A device may have been deleted just before a crash: `load_all` checked the rules that run, this the others.
        self.run_forever = Loop(
            self.step, wakeup=self._wakeup, at_once=True, failure="rules_not_loaded", retry_seconds=_RETRY_SECONDS
        ).run

    def compile(self, key: RuleKey) -> None:
        """Compile a rule that was made or changed, and run it."""
        self._put("rule", key)

    def _members_changed(self, fact: DeviceFact) -> None:
        self._evaluator.forget_members(fact.owner, fact.device_type)
        for running in self._index.of_type(fact.owner, fact.device_type):
            if any(one.device_type == fact.device_type for one in running.rule.transformers):
                self._put("rule", running.key)  # each device of the type has a model of its own

    def _device_changed(self, fact: DeviceDeleted | DeviceUpdated | SharesChanged) -> None:
        self._put("device", fact.device)

    def _put(self, kind: _Kind, key: int) -> None:
        if not self._is_open():
            return
        if len(self._waiting) < _WAITING_MAX:
            self._waiting[kind, key] = None
        else:
            self._all_wait = True
        self._wakeup.set()

    async def step(self) -> bool:
        """Reload the rules that changes concern; return whether more changes wait."""
        # Taken before the first wait: changes that come during it are for the next step.
        waiting, self._waiting = self._waiting, {}
        all_wait, self._all_wait = self._all_wait, False
        try:
            if all_wait:
                waiting.clear()
                await self._loader.load_all()
            keys = set(await self._database.read(lambda tx: tx.rules.with_deleted_devices()))
            for one in waiting:
                keys |= set(await self._database.read(partial(_users_of, *one)))
            self._invalidated += await self._loader.reload(sorted(keys))
        except BaseException:  # whatever it is; raised again
            self._waiting |= waiting
            self._all_wait = self._all_wait or all_wait
            raise
        return bool(self._waiting) or self._all_wait

    def statistics(self) -> InvalidationStatistics:
        return InvalidationStatistics(self._invalidated, len(self._waiting))


def _users_of(kind: _Kind, key: int, tx: Transaction) -> list[RuleKey]:
    return [RuleKey(key)] if kind == "rule" else tx.rules.users_of(kind, key)
