"""The rules of users: found, made, changed and removed, and stored with what they name (reference 12.1)."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import tomli_w
from msgspec.structs import replace

from broker.accounts.applications import MadeByApplication, name_of_application, require_application
from broker.accounts.issuance import Issuance
from broker.accounts.permissions import Permissions, Reach
from broker.accounts.tokens import CONSOLE_ID, Caller, TokenKind
from broker.alarms.changes import clear_all_of_rule
from broker.clock import Clock
from broker.cluster.kinds import RULE
from broker.conditional import require_unchanged, tag_of
from broker.errors import Conflict, Finding, NotFound, PermissionDenied, ValidationFailed, too_long
from broker.ids import new_id
from broker.nesting import check_nesting, without_nulls
from broker.rules.language.body_reader import INVALID_RULE, ResolvedNames
from broker.rules.language.compiler import compile_rule
from broker.rules.language.rule import CompiledRule
from broker.rules.running.index import acting, through
from broker.rules.running.loader import PreparedRule, RuleLoader
from broker.rules.running.models import ConditionModels
from broker.rules.running.names import NameResolver
from broker.trace.audit import AuditEvent, note
from config.limits import RULE_BODY_BYTES, RULES_OF_USER
from storage.database import Database
from storage.keys import Milliseconds, Position, RuleKey, UserKey
from storage.records import NEW_KEY, ApplicationRecord, UserRecord
from storage.rules import RuleRecord, RuleState, UseKind
from storage.transaction import Transaction

THIS_APPLICATION: Final = "thisApplication"
ALL_APPLICATIONS: Final = "allApplications"
SCOPES: Final = (ALL_APPLICATIONS, THIS_APPLICATION)
OTHER_APPLICATIONS: Final = "otherApplications"  # no scope of a rule, but a choice of lists
CHANGED_MEANWHILE: Final = "The rule was changed meanwhile"
TOO_MANY_RULES: Final = f"At most {RULES_OF_USER} rules for each user"


class NewRule(msgspec.Struct, frozen=True):
    """`body` is the JSON text of the member `rule`."""

    name: str
    body: bytes
    description: str = ""
    enabled: bool = True
    scope: str = THIS_APPLICATION


class RuleChanges(msgspec.Struct, frozen=True):
    """The members that change; None: it stays."""

    name: str | None = None
    body: bytes | None = None
    description: str | None = None
    enabled: bool | None = None
    scope: str | None = None


class _Checked(msgspec.Struct, frozen=True):
    """A rule that may be stored, with the body and names that it was compiled from."""

    body: Any
    names: ResolvedNames
    rule: CompiledRule
    reach: Reach

    def with_key(self, key: RuleKey) -> CompiledRule:
        return self.rule if self.rule.key == key else compile_rule(self.body, self.names, key=key)


@dataclass(slots=True, eq=False, repr=False)
class Rulebook:
    _database: Database
    _clock: Clock
    _permissions: Permissions
    _names: NameResolver
    loader: RuleLoader
    models: ConditionModels

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
        """A page of the user's rules as far as `scopes` has them: for all applications, the caller's, and others'."""

        def work(tx: Transaction) -> tuple[list[RuleRecord], int]:
            return tx.rules.rules_of(
                owner,
                application=caller.application,
                scopes=scopes,
                only_enabled=only_enabled,
                offset=offset,
                limit=count,
            )

        return await self._database.read(work)

    async def create(self, caller: Caller, owner: UserRecord, new: NewRule) -> RuleRecord:
        """Make a rule of a user.

        Raises:
            PermissionDenied: a device or type is not the caller's to use.
            ValidationFailed: the body is not valid; all findings.
            Conflict: the user has too many rules.
        """
        record = self._new(caller, owner, new)
        checked = await self._checked(record)

        def work(tx: Transaction) -> RuleRecord:
            added = add_rule(tx, record, checked.rule, self.models)
            tx.tell(RULE, added.key)
            return added

        with self._prepared(record, checked):
            return await self._database.write(work)

    async def unsaved(self, caller: Caller, owner: UserRecord, body: bytes) -> CompiledRule:
        """A rule of a user that is not stored. Raises PermissionDenied and ValidationFailed as `create`."""
        return (await self._checked(self._new(caller, owner, NewRule("", body)))).rule

    def _new(self, caller: Caller, owner: UserRecord, new: NewRule) -> RuleRecord:
        """Raises PermissionDenied, ValidationFailed."""
        application, organization = caller.application, caller.application_organization
        if application is None or organization is None:
            raise PermissionDenied("a token of an application")
        now_ms = self._clock.now_ms()
        return RuleRecord(
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

    async def findings(self, caller: Caller, owner: UserRecord, body: Any) -> tuple[Finding, ...]:
        """All findings about a body. Raises PermissionDenied."""
        of_owner = replace(caller, user=owner.key, user_id=owner.id, kind=TokenKind.USER)
        try:
            await self._names.require_names(of_owner, body)
            compile_rule(body, await self._names.resolve(owner.key, body), key=0)
        except ValidationFailed as error:
            return error.findings
        return ()

    async def change(self, caller: Caller, record: RuleRecord, changes: RuleChanges) -> RuleRecord:
        """Change a rule. A rule that was invalid or stopped runs again.

        Running durations go on if neither the body nor `enabled` changes. The caller's application must be allowed to
        use the devices and types that the changed rule names: the rule runs with the grants of the application that
        made it.

        Raises:
            PermissionDenied: a device or type is not the rule's to use.
            ValidationFailed: the body, or the stored one, is not valid.
            NotFound: another call has removed it.
            Conflict: another call has changed the body.
            ChangedMeanwhile: it is not the rule that the caller has seen.
        """
        given: dict[str, Any] = {"name": changes.name, "description": changes.description, "enabled": changes.enabled}
        given |= {"scope": changes.scope, "body": None if changes.body is None else rule_text(changes.body)}
        given = {name: value for name, value in given.items() if value is not None}
        wanted = replace(record, **given)
        checked = await self._checked(wanted)
        if caller.application != record.application:
            await self._names.require(checked.rule, through(caller, record))
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> RuleRecord:
            known = tx.rules.rule(record.id)
            if known is None:
                raise NotFound
            require_unchanged(rule_tag(known))
            changed = replace(known, **given)
            if changed.body != wanted.body:
                raise Conflict(CHANGED_MEANWHILE)
            tx.tell(RULE, known.key)
            return put_rule(tx, known, changed, checked.rule, self.models, now_ms)

        with self._prepared(wanted, checked):
            return await self._database.write(work)

    async def remove(self, record: RuleRecord) -> None:
        """Raises NotFound: another call has removed it."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            if tx.rules.rule(record.id) is None:
                raise NotFound
            self._remove(tx, record, now_ms)

        await self._database.write(work)

    def _remove(self, tx: Transaction, record: RuleRecord, now_ms: int) -> None:
        self.models.remove(tx, record.key)
        clear_all_of_rule(tx, record.key, at_ms=Milliseconds(now_ms))
        tx.rules.remove(record.key)
        tx.tell(RULE, record.key)
        note(tx, AuditEvent.RULE_REMOVED, f"rule {record.id}", now_ms=now_ms, owner=record.owner_id)

    async def made_by_applications(self, owner: UserKey) -> list[MadeByApplication]:
        """A user's rules that were not made in the console, in the order of their creation."""

        def work(tx: Transaction) -> list[MadeByApplication]:
            return [
                MadeByApplication(rule.name, name_of_application(tx, rule.application))
                for rule in _of_applications(tx, owner)
            ]

        return await self._database.read(work)

    async def end_made_by_applications(self, owner: UserKey) -> None:
        """Remove these, all at once."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            for rule in _of_applications(tx, owner):
                self._remove(tx, rule, now_ms)

        await self._database.write(work)

    def end_all_of(self, issuance: Issuance, user: UserRecord) -> Sequence[str]:
        """Remove a user's rules in the caller's transaction (`broker/accounts/claims.py: Ender`)."""
        rules = issuance.tx.rules.all_of(user.key)
        self._end(issuance, rules)
        return [rule.name for rule in rules]

    def end_all_of_application(self, issuance: Issuance, application: ApplicationRecord) -> None:
        """Remove the rules that an application made (`broker/accounts/application_ends.py: Ender`)."""
        self._end(issuance, issuance.tx.rules.of_application(application.key))

    def _end(self, issuance: Issuance, rules: Sequence[RuleRecord]) -> None:
        for rule in rules:
            self._remove(issuance.tx, rule, issuance.now_ms)

    async def _checked(self, record: RuleRecord) -> _Checked:
        """Compile a rule and check its permissions. Raises PermissionDenied, ValidationFailed."""
        body, caller = msgspec.json.decode(record.body), acting(record)
        await self._names.require_names(caller, body)
        names = await self._names.resolve(record.owner, body)
        rule = compile_rule(body, names, key=record.key)
        await self._names.require(rule, caller)
        return _Checked(body, names, rule, await self._permissions.reach(caller))

    def _prepared(self, record: RuleRecord, checked: _Checked) -> AbstractContextManager[None]:
        return self.loader.prepared({(record.id, record.body): PreparedRule(checked.with_key, checked.reach)})


def _of_applications(tx: Transaction, owner: UserKey) -> list[RuleRecord]:
    return [rule for rule in tx.rules.all_of(owner) if rule.application_id != CONSOLE_ID]


# In a transaction


def rule_text(body: bytes) -> str:
    """The text of a body without blanks. Raises ValidationFailed when it is too long, nests too deeply or has too large
    a number."""
    try:
        check_nesting(body)
        msgspec.json.decode(body)
        compact = msgspec.json.format(body, indent=-1)
        text = compact.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValidationFailed.of("rule", INVALID_RULE) from error
    if len(compact) > RULE_BODY_BYTES:
        raise ValidationFailed.of("rule", too_long(RULE_BODY_BYTES))
    return text


def rule_tag(rule: RuleRecord) -> str:
    """The tag of the parts of a rule that a call can change."""
    return tag_of(rule.name, rule.description, rule.body, rule.enabled, rule.scope)


def add_rule(tx: Transaction, record: RuleRecord, rule: CompiledRule, models: ConditionModels) -> RuleRecord:
    """Add a rule that was checked. Raises Conflict: its owner has too many."""
    require_application(tx, record.application)
    if tx.rules.count_of(record.owner) >= RULES_OF_USER:
        raise Conflict(TOO_MANY_RULES)
    added = replace(record, since=tx.messages.head())
    added = replace(added, key=tx.rules.add(added))
    tx.rules.begin_state(RuleState(added.key, added.revision))
    tx.rules.put_uses(added.key, uses_of(tx, rule))
    models.put(tx, added, rule.transformers)
    note(tx, AuditEvent.RULE_CREATED, f"rule {added.id}", now_ms=added.created_on, owner=added.owner_id)
    return added


def put_rule(
    tx: Transaction,
    known: RuleRecord,
    wanted: RuleRecord,
    rule: CompiledRule,
    models: ConditionModels,
    now_ms: Milliseconds,
) -> RuleRecord:
    """Change a rule to what was checked. It restarts unless it goes on with the same body."""
    changed = replace(
        wanted, modified_on=now_ms, invalidated_on=None, findings="", stopped_on=None, stop_reason="",
        revision=known.revision, since=known.since,
    )  # fmt: skip
    if not (known.runs and changed.runs and known.body == changed.body):
        changed = replace(changed, revision=known.revision + 1, since=tx.messages.head())
        state = tx.rules.state(known.key) or RuleState(known.key, known.revision)
        tx.rules.begin_state(RuleState(known.key, changed.revision, state.triggered, state.last_on))
        clear_all_of_rule(tx, known.key, at_ms=now_ms)
        tx.rules.forget_problems(known.key)
    tx.rules.put(changed)
    tx.rules.put_uses(known.key, uses_of(tx, rule))
    if known.body != changed.body:
        models.remove(tx, known.key)
    models.put(tx, changed, rule.transformers)
    note(tx, AuditEvent.RULE_CHANGED, f"rule {known.id}", now_ms=now_ms, owner=known.owner_id)
    return changed


def uses_of(tx: Transaction, rule: CompiledRule) -> set[tuple[UseKind, int]]:
    """The devices and types that a rule names, and the types of the devices."""
    devices = rule.reads | rule.writes
    uses: set[tuple[UseKind, int]] = {("device", key) for key in devices}
    uses |= {("type", key) for key in rule.type_reads | rule.type_writes}
    records = (tx.devices.device(key) for key in devices)
    return uses | {("type", record.device_type) for record in records if record is not None}


def rule_provision_text(record: RuleRecord) -> str:
    """The rule as the table `[[rules]]` of a provision file (reference 26.2).

    Applied on the same store, it changes nothing; on another one, it creates the rule.
    """
    entry = {
        "id": record.id,
        "owner": record.owner_id,
        "application": record.application_id,
        "name": record.name,
        "description": record.description,
        "scope": record.scope,
        "enabled": record.enabled,
        "rule": without_nulls(msgspec.json.decode(record.body)),
    }
    return tomli_w.dumps({"rules": [entry]})
