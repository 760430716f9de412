"""Compiles stored rules and lets them run, or marks them as invalid (reference 12.3)."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec
import trio

from broker.accounts.permissions import Permissions, Reach
from broker.clock import Clock
from broker.errors import DomainError, Finding, ValidationFailed
from broker.facts import Router, RuleReported
from broker.mail import Letter, Mails, RuleStopped
from broker.rules.engine import Engine
from broker.rules.looking_up import LookingUp
from broker.rules.models_of_rules import ConditionModels
from broker.rules.rule import Rule
from broker.rules.running import acting
from storage.database import Database, Transaction
from storage.keys import Milliseconds, RuleKey
from storage.rules import RuleRecord, RuleState

_PAGE: Final = 500
_JUDGED_AT_ONCE: Final = 50  # then others have their turn

_encode_findings = msgspec.json.Encoder().encode
_decode_findings = msgspec.json.Decoder(tuple[Finding, ...]).decode


class Judging:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        permissions: Permissions,
        looking_up: LookingUp,
        engine: Engine,
        models: ConditionModels,
        mails: Mails,
        router: Router,
    ) -> None:
        self._database = database
        self._clock = clock
        self._permissions = permissions
        self._looking_up = looking_up
        self._engine = engine
        self._models = models
        self._mails = mails
        self._router = router

    def run(self, record: RuleRecord, rule: Rule, reach: Reach, state: RuleState) -> None:
        """A rule was made, changed or judged, and that is durable."""
        self._models.changed(record.key, rule.transformers)
        self._engine.begin(record, rule, reach, state)

    def end(self, key: RuleKey) -> None:
        """A rule was removed, and that is durable."""
        self._engine.remove(key)
        self._models.changed(key, ())

    async def begin_all(self) -> None:
        """Run all rules that are enabled. A rule that is not valid any more is marked so."""
        after = RuleKey(0)
        while records := await self._database.read(partial(_page_after, after)):
            after = records[-1].key
            await self._judge([record for record in records if record.runs])

    async def judge(self, keys: Iterable[RuleKey]) -> int:
        """Compile rules anew, because something that they name has changed. Returns how many are not valid any more."""
        invalid, waiting = 0, list(keys)
        for start in range(0, len(waiting), _JUDGED_AT_ONCE):
            some = waiting[start : start + _JUDGED_AT_ONCE]
            records = await self._database.read(partial(_with_keys, some))
            invalid += await self._judge([record for record in records if record.invalidated_on is None])
        return invalid

    async def _judge(self, records: Iterable[RuleRecord]) -> int:
        """Run rules, or mark them as invalid. Returns how many are."""
        invalid, valid = 0, list[tuple[RuleRecord, Rule, Reach]]()
        for record in records:
            await trio.lowlevel.checkpoint()  # a body takes its time, and there may be thousands
            reach = await self._permissions.reach(acting(record))
            try:
                valid.append((record, await self._looking_up.compiled(record), reach))
            except ValidationFailed as error:
                await self._invalidate(record, error.findings)
                invalid += 1

        def work(tx: Transaction) -> list[RuleState | None]:
            """The states of the rules; None for one that was changed or removed meanwhile."""
            return [
                self._state(tx, record, rule) if tx.rules.rule(record.id) == record else None
                for record, rule, _ in valid
            ]

        def tell(states: list[RuleState | None]) -> None:
            for (record, rule, reach), state in zip(valid, states, strict=True):
                if state is not None:
                    self.run(record, rule, reach, state)

        if valid:  # a write, because `tell` must come in the order of the commits
            await self._database.write(work, announce=tell)
        return invalid

    def _state(self, tx: Transaction, record: RuleRecord, rule: Rule) -> RuleState:
        """The state of a rule that begins to run; devices of its types that came later get their models."""
        if rule.transformers:
            try:
                self._models.put(tx, record, rule.transformers)
            except DomainError as error:
                tx.rules.note_problem(record.key, "rule.if", str(error), self._clock.now_ms())
        return tx.rules.state(record.key) or RuleState(record.key, record.revision)

    async def _invalidate(self, record: RuleRecord, findings: tuple[Finding, ...]) -> None:
        now_ms = self._clock.now_ms()
        reason = "; ".join(f"{one.field}: {', '.join(one.messages)}" for one in findings)
        letter = await self._letter(record, reason)

        def work(tx: Transaction) -> bool:
            if tx.rules.rule(record.id) != record:  # it was changed meanwhile, and that checked it
                return False
            text = _encode_findings(findings).decode()
            tx.rules.put(replace(record, invalidated_on=now_ms, findings=text))
            if letter is not None:
                self._mails.add(tx, letter)
            return True

        def tell(done: bool) -> None:
            if done:
                self._engine.remove(record.key)
                self._router.publish(reported(record, "invalidated", findings[0].field, reason, now_ms))

        await self._database.write(work, announce=tell)

    async def _letter(self, record: RuleRecord, reason: str) -> Letter | None:
        owner = await self._database.read(lambda tx: tx.accounts.user(record.owner))
        mail = RuleStopped(rule=record.name, rule_id=record.id, reason=reason)
        try:
            return None if owner is None else self._mails.compose(owner.email, mail, cause=f"user {owner.id}")
        except ValidationFailed:  # no address that a mail can be sent to
            return None


def _page_after(key: RuleKey, tx: Transaction) -> list[RuleRecord]:
    return tx.rules.rules_after(key, limit=_PAGE)


def _with_keys(keys: Iterable[RuleKey], tx: Transaction) -> list[RuleRecord]:
    return tx.rules.rules_with(keys)


def findings_of(record: RuleRecord) -> tuple[Finding, ...]:
    """What is wrong with an invalid rule."""
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
