"""The table `rules` of the provision file: rules with their bodies as on the wire (reference 12.1)."""

import msgspec
from msgspec.structs import replace

from broker.errors import Conflict, Finding, ValidationFailed
from broker.ids import new_id
from broker.nesting import without_nulls
from broker.provisioning.document import RuleEntry
from broker.provisioning.reading import EntryLocation
from broker.provisioning.report import ChangedKey, compared
from broker.provisioning.run import ProvisioningRun, given
from broker.rules.language.compiler import compile_rule
from broker.rules.language.rule import CompiledRule
from broker.rules.rulebook import THIS_APPLICATION, add_rule, put_rule, rule_text
from broker.rules.running.models import ConditionModels
from broker.rules.running.names import resolve_in
from storage.keys import Position, RuleKey, UserKey
from storage.records import NEW_KEY, ApplicationRecord, UserRecord
from storage.rules import RuleRecord
from storage.sql import ALL_ROWS


class RuleTables:
    def __init__(self, run: ProvisioningRun, models: ConditionModels) -> None:
        self._run = run
        self._models = models

    def put_rule(self, at: EntryLocation, entry: RuleEntry) -> None:
        """Add or change a rule. Without an id, it stands for the one of its owner and application with its name."""
        run = self._run
        owner, application = run.user_of(at, "owner", entry.owner), run.application_of(at, entry.application)
        body, rule = self._checked(at, entry, owner.key)
        known = self._known(at, entry, owner, application)
        if known is None:
            new = self._new(at, entry, body, owner, application)
            try:
                added = add_rule(run.tx, new, rule, self._models)
            except Conflict as error:
                raise at.refusal("owner", str(error)) from error
            run.rules.append(added.key)
            return run.created(at, added.id, entry.name)
        wanted = replace(known, **given(entry, "name", "description", "enabled", "scope"))
        keys = compared(known, wanted, ("name", "description", "enabled", "scope"))
        if (former := without_nulls(msgspec.json.decode(known.body))) != (rewritten := without_nulls(entry.rule)):
            wanted = replace(wanted, body=body)
            keys.append(ChangedKey("rule", former, rewritten))
        if known.invalidated_on is not None or known.stopped_on is not None:
            keys.append(ChangedKey("running", False, True))
        if keys:
            put_rule(run.tx, known, wanted, rule, self._models, run.now_ms)
            run.rules.append(known.key)
        return run.found(at, known.id, known.name, keys)

    def _checked(self, at: EntryLocation, entry: RuleEntry, owner: UserKey) -> tuple[str, CompiledRule]:
        """The text of the body, and the rule. Raises ValidationFailed with all findings."""
        try:
            body = rule_text(msgspec.json.encode(entry.rule))
            return body, compile_rule(entry.rule, resolve_in(self._run.tx, owner, entry.rule), key=0)
        except ValidationFailed as error:
            raise ValidationFailed(
                tuple(Finding(f"{at}.{finding.field}", finding.messages) for finding in error.findings)
            ) from error

    def _known(
        self, at: EntryLocation, entry: RuleEntry, owner: UserRecord, application: ApplicationRecord
    ) -> RuleRecord | None:
        rules = self._run.tx.rules
        if entry.id is None:
            of_owner, _ = rules.rules_of(owner.key, application=application.key, limit=ALL_ROWS)
            return self._run.only(at, [one for one in of_owner if one.name == entry.name])
        known = rules.rule(entry.id)
        if known is not None and known.owner != owner.key:
            raise at.refusal("id", "a rule of another user has this id")
        if known is not None and known.application != application.key:
            raise at.refusal("id", "a rule of another application has this id")
        return known

    def _new(
        self, at: EntryLocation, entry: RuleEntry, body: str, owner: UserRecord, application: ApplicationRecord
    ) -> RuleRecord:
        run = self._run
        return RuleRecord(
            key=RuleKey(NEW_KEY),
            id=entry.id or run.generate(at, entry.name, "id", new_id()),
            owner=owner.key,
            application=application.key,
            scope=entry.scope or THIS_APPLICATION,
            name=entry.name,
            description=entry.description or "",
            body=body,
            enabled=entry.enabled is not False,
            since=Position(0),
            created_on=run.now_ms,
            modified_on=run.now_ms,
            owner_id=owner.id,
            application_id=application.id,
            application_organization=application.organization,
        )
