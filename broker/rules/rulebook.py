"""The rules of users: made, changed, removed, and marked as invalid (reference 12.1 and 12.3)."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec

from broker.accounts.permissions import Permissions, Reach
from broker.accounts.tokens import Caller, TokenKind
from broker.clock import Clock
from broker.errors import Conflict, Finding, NotFound, PermissionDenied, ValidationFailed, too_long
from broker.facts import Router, RuleReported
from broker.ids import new_id
from broker.mail import Letter, Mails, RuleStopped
from broker.nesting import check_nesting
from broker.rules.engine import Engine
from broker.rules.language import compile_rule
from broker.rules.looking_up import LookingUp
from broker.rules.rule import Rule
from broker.rules.running import acting
from broker.rules.transformers import Transformers
from broker.rules.validation import INVALID_RULE
from broker.rules.world import World
from broker.trace.audit import AuditEvent, note
from config.limits import RULE_BODY_BYTES, RULES_OF_USER
from storage.database import Database, Transaction
from storage.keys import Milliseconds, Position, RuleKey, UserKey
from storage.records import NEW_KEY, UserRecord
from storage.rules import RuleRecord, RuleState, UseKind

THIS_APPLICATION: Final = "thisApplication"
ALL_APPLICATIONS: Final = "allApplications"
SCOPES: Final = (ALL_APPLICATIONS, THIS_APPLICATION)
CHANGED_MEANWHILE: Final = "The rule was changed meanwhile"
TOO_MANY_RULES: Final = f"At most {RULES_OF_USER} rules for each user"
_PAGE: Final = 500

_encode_findings = msgspec.json.Encoder().encode
_decode_findings = msgspec.json.Decoder(tuple[Finding, ...]).decode


@dataclass(frozen=True, slots=True)
class NewRule:
    """`body` is the JSON text of the member `rule`."""

    name: str
    body: bytes
    description: str = ""
    enabled: bool = True
    scope: str = THIS_APPLICATION


@dataclass(frozen=True, slots=True)
class RuleChanges:
    """What changes; None: it stays."""

    name: str | None = None
    body: bytes | None = None
    description: str | None = None
    enabled: bool | None = None
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class _Checked:
    """A rule that may be stored, and what it was compiled of."""

    body: Any
    world: World
    rule: Rule
    reach: Reach


class Rulebook:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        permissions: Permissions,
        looking_up: LookingUp,
        engine: Engine,
        models: Transformers,
        mails: Mails,
        router: Router,
    ) -> None:
        self._database = database
        self._clock = clock
        self._permissions = permissions
        self._looking_up = looking_up
        self._engine = engine
        self.models = models
        self._mails = mails
        self._router = router

    async def find(self, rule_id: str) -> RuleRecord:
        """Raises NotFound."""
        found = await self._database.read(lambda tx: tx.rules.rule(rule_id))
        if found is None:
            raise NotFound
        return found

    async def made_by(self, caller: Caller, owner: UserKey, *, offset: int, count: int) -> tuple[list[RuleRecord], int]:
        """A page of the user's rules that the caller's application made, and how many there are."""
        application = caller.application
        return await self._database.read(
            lambda tx: tx.rules.rules_of(owner, application=application, offset=offset, limit=count)
        )

    async def of_user(
        self,
        caller: Caller,
        owner: UserKey,
        *,
        scopes: Collection[str],
        only_enabled: bool,
        offset: int,
        count: int,
    ) -> tuple[list[RuleRecord], int]:
        """A page of the user's rules for all applications and of those of the caller's, as far as `scopes` has them."""
        application = caller.application if THIS_APPLICATION in scopes else None

        def work(tx: Transaction) -> tuple[list[RuleRecord], int]:
            return tx.rules.rules_of(
                owner,
                application=application,
                also_for_all=ALL_APPLICATIONS in scopes,
                only_enabled=only_enabled,
                offset=offset,
                limit=count,
            )

        return await self._database.read(work)

    async def compiled(self, record: RuleRecord) -> Rule:
        """The rule as it is now. Raises ValidationFailed when it is not valid any more."""
        body = msgspec.json.decode(record.body)
        return compile_rule(body, await self._looking_up.world(record.owner, body), key=record.key)

    async def create(self, caller: Caller, owner: UserRecord, new: NewRule) -> RuleRecord:
        """Make a rule of a user.

        Raises:
            PermissionDenied: a device or type is not the caller's to use.
            ValidationFailed: the body is not valid; all findings.
            Conflict: the user has too many rules.
        """
        application, organization = caller.application, caller.application_organization
        if application is None or organization is None:
            raise PermissionDenied("a token of an application")
        now_ms = self._clock.now_ms()
        record = RuleRecord(
            key=RuleKey(NEW_KEY),
            id=new_id(),
            owner=owner.key,
            application=application,
            scope=new.scope,
            name=new.name,
            description=new.description,
            body=rule_text(new.body),
            enabled=new.enabled,
            since=Position(0),
            created_on=now_ms,
            modified_on=now_ms,
            owner_id=owner.id,
            application_id=caller.application_id or "",
            application_organization=organization,
        )
        checked = await self._checked(record)

        def work(tx: Transaction) -> tuple[RuleRecord, RuleState]:
            return add_rule(tx, record, checked.rule, self.models)

        stored: tuple[RuleRecord, RuleState] = await self._database.write(work, announce=partial(self._begin, checked))
        return stored[0]

    async def findings(self, caller: Caller, owner: UserRecord, body: Any) -> tuple[Finding, ...]:
        """What is wrong with a body, for a caller who learns of all at once. Raises PermissionDenied."""
        of_owner = replace(caller, user=owner.key, user_id=owner.id, kind=TokenKind.USER)
        try:
            await self._looking_up.require_names(of_owner, body)
            compile_rule(body, await self._looking_up.world(owner.key, body), key=0)
        except ValidationFailed as error:
            return error.findings
        return ()

    async def change(self, record: RuleRecord, changes: RuleChanges) -> RuleRecord:
        """Change a rule. A rule that was invalid or stopped runs again.

        Running durations go on if neither the body nor `enabled` changes.

        Raises:
            PermissionDenied: a device or type is not the rule's to use.
            ValidationFailed: the body, or the stored one, is not valid.
            NotFound: it was removed meanwhile.
            Conflict: another call changed the body meanwhile.
        """
        given: dict[str, Any] = {"name": changes.name, "description": changes.description, "enabled": changes.enabled}
        given |= {"scope": changes.scope, "body": None if changes.body is None else rule_text(changes.body)}
        given = {name: value for name, value in given.items() if value is not None}
        wanted = replace(record, **given)
        checked = await self._checked(wanted)
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> tuple[RuleRecord, RuleState]:
            known = tx.rules.rule(record.id)
            if known is None:
                raise NotFound
            changed = replace(known, **given)
            if changed.body != wanted.body:
                raise Conflict(CHANGED_MEANWHILE)
            return put_rule(tx, known, changed, checked.rule, self.models, now_ms)

        stored: tuple[RuleRecord, RuleState] = await self._database.write(work, announce=partial(self._begin, checked))
        return stored[0]

    async def remove(self, record: RuleRecord) -> None:
        """Raises NotFound: it was removed meanwhile."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            if tx.rules.rule(record.id) is None:
                raise NotFound
            self.models.remove(tx, record.key)
            tx.rules.remove(record.key)
            note(tx, AuditEvent.RULE_REMOVED, f"rule {record.id}", now_ms=now_ms, owner=record.owner_id)

        def tell(_: None) -> None:
            self._engine.remove(record.key)
            self.models.changed(record.key, ())
            self.models.begin(record.key, ())

        await self._database.write(work, announce=tell)

    async def _checked(self, record: RuleRecord) -> _Checked:
        """Compile a rule and check its permissions. Raises PermissionDenied, ValidationFailed."""
        body, caller = msgspec.json.decode(record.body), acting(record)
        await self._looking_up.require_names(caller, body)
        world = await self._looking_up.world(record.owner, body)
        rule = compile_rule(body, world, key=record.key)
        await self._looking_up.require(rule, caller)
        return _Checked(body, world, rule, await self._permissions.reach(caller))

    def _begin(self, checked: _Checked, stored: tuple[RuleRecord, RuleState]) -> None:
        """A rule was made or changed, and that is durable."""
        record, state = stored
        rule = checked.rule
        if rule.key != record.key:  # a new rule has its number only now
            rule = compile_rule(checked.body, checked.world, key=record.key)
        self._run(record, rule, checked.reach, state)

    def _run(self, record: RuleRecord, rule: Rule, reach: Reach, state: RuleState) -> None:
        self.models.changed(record.key, rule.transformers)
        self.models.begin(record.key, rule.transformers)
        self._engine.begin(record, rule, reach, state)

    # Running

    async def begin_all(self) -> None:
        """Run all rules that are enabled. A rule that is not valid any more is marked so."""
        after = RuleKey(0)
        while records := await self._database.read(partial(_page_after, after)):
            after = records[-1].key
            await self._judge([record for record in records if record.runs])

    async def judge(self, keys: Iterable[RuleKey]) -> int:
        """Compile rules anew, because something that they name has changed. Returns how many are not valid any more."""
        records = await self._database.read(lambda tx: tx.rules.rules_with(keys))
        return await self._judge([record for record in records if record.invalidated_on is None])

    async def _judge(self, records: Iterable[RuleRecord]) -> int:
        """Run rules, or mark them as invalid. Returns how many are."""
        invalid, valid = 0, list[tuple[RuleRecord, Rule, Reach]]()
        for record in records:
            reach = await self._permissions.reach(acting(record))
            try:
                valid.append((record, await self.compiled(record), reach))
            except ValidationFailed as error:
                await self._invalidate(record, error.findings)
                invalid += 1

        def work(tx: Transaction) -> list[RuleState | None]:
            """The states of the rules; None for one that was changed or removed meanwhile."""
            return [_state(record, tx) if tx.rules.rule(record.id) == record else None for record, _, _ in valid]

        def tell(states: list[RuleState | None]) -> None:
            for (record, rule, reach), state in zip(valid, states, strict=True):
                if state is not None:
                    self._run(record, rule, reach, state)

        if valid:  # a write, because `tell` must come in the order of the commits
            await self._database.write(work, announce=tell)
        return invalid

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


def _state(record: RuleRecord, tx: Transaction) -> RuleState:
    return tx.rules.state(record.key) or RuleState(record.key, record.revision)


def findings_of(record: RuleRecord) -> tuple[Finding, ...]:
    """What is wrong with an invalid rule."""
    return _decode_findings(record.findings) if record.findings else ()


def rule_text(body: bytes) -> str:
    """The text of a body. Raises ValidationFailed when it is too long, nests too deeply or has too large a number."""
    if len(body) > RULE_BODY_BYTES:
        raise ValidationFailed.of("rule", too_long(RULE_BODY_BYTES))
    try:
        check_nesting(body)
        msgspec.json.decode(body)
        return body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValidationFailed.of("rule", INVALID_RULE) from error


def add_rule(tx: Transaction, record: RuleRecord, rule: Rule, models: Transformers) -> tuple[RuleRecord, RuleState]:
    """Add a rule that was checked. Raises Conflict: its owner has too many."""
    if tx.rules.count_of(record.owner) >= RULES_OF_USER:
        raise Conflict(TOO_MANY_RULES)
    added = replace(record, since=tx.messages.head())
    added = replace(added, key=tx.rules.add(added))
    state = RuleState(added.key, added.revision)
    tx.rules.begin_state(state)
    tx.rules.put_uses(added.key, uses_of(tx, rule))
    models.put(tx, added, rule.transformers)
    note(tx, AuditEvent.RULE_CREATED, f"rule {added.id}", now_ms=added.created_on, owner=added.owner_id)
    return added, state


def put_rule(
    tx: Transaction, known: RuleRecord, wanted: RuleRecord, rule: Rule, models: Transformers, now_ms: Milliseconds
) -> tuple[RuleRecord, RuleState]:
    """Change a rule to what was checked. It starts anew unless it goes on with the same body."""
    changed = replace(
        wanted, modified_on=now_ms, invalidated_on=None, findings="", stopped_on=None, stop_reason="",
        revision=known.revision, since=known.since,
    )  # fmt: skip
    state = tx.rules.state(known.key) or RuleState(known.key, known.revision)
    if not (known.runs and changed.runs and known.body == changed.body):
        changed = replace(changed, revision=known.revision + 1, since=tx.messages.head())
        state = RuleState(known.key, changed.revision, state.triggered, state.last_on)
        tx.rules.begin_state(state)
        tx.rules.forget_problems(known.key)
    tx.rules.put(changed)
    tx.rules.put_uses(known.key, uses_of(tx, rule))
    if known.body != changed.body:
        models.remove(tx, known.key)
    models.put(tx, changed, rule.transformers)
    note(tx, AuditEvent.RULE_CHANGED, f"rule {known.id}", now_ms=now_ms, owner=known.owner_id)
    return changed, state


def uses_of(tx: Transaction, rule: Rule) -> set[tuple[UseKind, int]]:
    """The devices and types that a rule names, and the types of the devices."""
    devices = rule.reads | rule.writes
    uses: set[tuple[UseKind, int]] = {("device", key) for key in devices}
    uses |= {("type", key) for key in rule.type_reads | rule.type_writes}
    records = (tx.devices.device(key) for key in devices)
    return uses | {("type", record.device_type) for record in records if record is not None}


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
