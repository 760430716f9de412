"""Stores rules in a transaction: added, changed, and what they name (reference 12.1)."""

from dataclasses import replace
from typing import Final

import msgspec

from broker.conditional import tag_of
from broker.errors import Conflict, ValidationFailed, too_long
from broker.nesting import check_nesting
from broker.rules.models_of_rules import ConditionModels
from broker.rules.rule import Rule
from broker.rules.validation import INVALID_RULE
from broker.trace.audit import AuditEvent, note
from config.limits import RULE_BODY_BYTES, RULES_OF_USER
from storage.database import Transaction
from storage.keys import Milliseconds
from storage.rules import RuleRecord, RuleState, UseKind

TOO_MANY_RULES: Final = f"At most {RULES_OF_USER} rules for each user"


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


def rule_tag(rule: RuleRecord) -> str:
    """Of what a call can change of a rule."""
    return tag_of(rule.name, rule.description, rule.body, rule.enabled, rule.scope)


def add_rule(tx: Transaction, record: RuleRecord, rule: Rule, models: ConditionModels) -> tuple[RuleRecord, RuleState]:
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
    tx: Transaction, known: RuleRecord, wanted: RuleRecord, rule: Rule, models: ConditionModels, now_ms: Milliseconds
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
