"""Rules, what the engine knows of them, and the HTTP requests that they send. The caller holds the transaction."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from storage.alarms import AlarmStore, OpenAlarm
from storage.keys import ApplicationKey, Milliseconds, OrganizationKey, Position, RuleKey, UserKey
from storage.sql import Store, record_values, sure

UseKind = Literal["device", "type"]
_PROBLEMS_KEPT: Final = 20  # of one rule


class RuleRecord(msgspec.Struct, frozen=True):
    """A rule. `body` is the JSON text as it was sent, `findings` JSON of what is wrong with an invalid rule, or ''.

    The ids of its owner and its application are read from their tables.
    """

    key: RuleKey
    id: str
    owner: UserKey
    application: ApplicationKey
    scope: str
    name: str
    description: str
    body: str
    enabled: bool
    since: Position
    created_on: Milliseconds
    modified_on: Milliseconds
    invalidated_on: Milliseconds | None = None
    findings: str = ""
    stopped_on: Milliseconds | None = None
    stop_reason: str = ""
    revision: int = 0
    owner_id: str = ""
    application_id: str = ""
    application_organization: OrganizationKey = OrganizationKey(0)

    @property
    def runs(self) -> bool:
        """Whether the engine evaluates it."""
        return self.enabled and self.invalidated_on is None and self.stopped_on is None


class RuleState(msgspec.Struct, frozen=True):
    """State of a rule as of its position. `memory` is JSON of broker/rules: the running durations.

    Its open alarms are read from their table, and written there.
    """

    rule: RuleKey
    revision: int
    triggered: int = 0
    last_on: Milliseconds | None = None
    failing: bool = False
    memory: str = ""
    alarms: tuple[OpenAlarm, ...] = ()


class RuleProblem(msgspec.Struct, frozen=True):
    """Something that went wrong when the rule was triggered. `field` is the place in the rule, as in findings."""

    rule: RuleKey
    field: str
    text: str
    first_on: Milliseconds
    last_on: Milliseconds
    times: int


class RuleRequest(msgspec.Struct, frozen=True):
    key: int
    rule: RuleKey
    owner: UserKey
    field: str
    content: str
    created_on: Milliseconds


_READ: Final = ("owner_id", "application_id", "application_organization")
_COLUMNS: Final = tuple(one for one in RuleRecord.__struct_fields__ if one not in _READ)
_STATE: Final = tuple(one for one in RuleState.__struct_fields__ if one != "alarms")
_PROBLEM: Final = RuleProblem.__struct_fields__
_OF_RULE: Final = (
    f"SELECT {', '.join(f'r.{name}' for name in _COLUMNS)}, u.id AS owner_id, a.id AS application_id,"
    " a.organization AS application_organization"
)
_FROM_RULE: Final = " FROM rule AS r JOIN user AS u ON u.key = r.owner JOIN application AS a ON a.key = r.application"
_RULE: Final = f"{_OF_RULE}{_FROM_RULE} WHERE "
_RULE_AND_STATE: Final = (
    f"{_OF_RULE}, {', '.join(f's.{name} AS state_{name}' for name in _STATE)}{_FROM_RULE}"
    " LEFT JOIN rule_state AS s ON s.rule = r.key WHERE r.key = :key"
)
_IN_SCOPE: Final = {
    "allApplications": "r.scope = 'allApplications'",
    "thisApplication": "r.application = :application AND r.scope = 'thisApplication'",
    "otherApplications": "r.application <> :application",
}


class RuleStore(Store):
    # Rules

    def rule(self, rule_id: str) -> RuleRecord | None:
        row = self._db.execute(_RULE + "r.id = :id", {"id": rule_id}).one()
        return _rule(row) if row else None

    def rules_after(self, key: RuleKey, *, limit: int) -> list[RuleRecord]:
        """All rules with a higher key, in the order of their keys."""
        rows = self._db.execute(_RULE + "r.key > :key ORDER BY r.key LIMIT :limit", {"key": key, "limit": limit})
        return [_rule(row) for row in rows]

    def rules_with(self, keys: Iterable[RuleKey]) -> list[RuleRecord]:
        """The rules with these keys, in the order of their keys; a key without one is left out."""
        rows = self._db.execute(
            f"{_RULE} r.key IN ({self._db.numbers_in('keys')}) ORDER BY r.key", {"keys": json.dumps(list(keys))}
        )
        return [_rule(row) for row in rows]

    def rule_and_state(self, key: RuleKey) -> tuple[RuleRecord, RuleState] | None:
        """The rule with this key, and its state; a new one if it has none."""
        row = self._db.execute(_RULE_AND_STATE, {"key": key}).one()
        if row is None:
            return None
        record = _rule({name: row[name] for name in RuleRecord.__struct_fields__})
        if row["state_rule"] is None:
            return record, RuleState(key, record.revision)
        alarms = AlarmStore(self._db).open_of_rule(key)
        return record, _state({name: row[f"state_{name}"] for name in _STATE}, alarms)

    def rules_of(
        self,
        owner: UserKey,
        *,
        application: ApplicationKey | None,
        scopes: Collection[str] = (),
        only_enabled: bool = False,
        offset: int = 0,
        limit: int,
    ) -> tuple[list[RuleRecord], int]:
        """A page of a user's rules in the order of creation, and how many there are in all.

        Args:
            owner: the user.
            application: its rules.
            scopes: none: whatever their scope. Otherwise any of `thisApplication`, its rules with that scope,
                `allApplications`, the rules of any application with that scope, and `otherApplications`, the rules of
                other applications.
            only_enabled: leave out disabled rules.
            offset, limit: the page.
        """
        which = " OR ".join(_IN_SCOPE[one] for one in sorted(scopes)) if scopes else "r.application = :application"
        which = f"({which})"
        which += " AND r.enabled = 1" if only_enabled else ""
        which = f"r.owner = :owner AND {which}"
        parameters = {"owner": owner, "application": application or 0, "offset": offset, "limit": limit}
        counted = self._db.execute(f"SELECT count(*) AS count FROM rule AS r WHERE {which}", parameters)  # noqa: S608
        rows = self._db.execute(f"{_RULE}{which} ORDER BY r.key LIMIT :limit OFFSET :offset", parameters)
        return [_rule(row) for row in rows], int(sure(counted.one())["count"])

    def all_of(self, owner: UserKey) -> list[RuleRecord]:
        """The rules of a user, of every application, in the order of creation."""
        return [_rule(row) for row in self._db.execute(_RULE + "r.owner = :owner ORDER BY r.key", {"owner": owner})]

    def of_application(self, application: ApplicationKey) -> list[RuleRecord]:
        """The rules that an application made, of every user."""
        rows = self._db.execute(_RULE + "r.application = :application ORDER BY r.key", {"application": application})
        return [_rule(row) for row in rows]

    def count_of(self, owner: UserKey) -> int:
        row = self._db.execute("SELECT count(*) AS count FROM rule WHERE owner = :owner", {"owner": owner}).one()
        return int(sure(row)["count"])

    def index_of(self, rule: RuleRecord) -> int:
        """The rule's place among the rules of its owner, counted from 0 in the order of creation."""
        row = self._db.execute(
            "SELECT count(*) AS count FROM rule WHERE owner = :owner AND key < :key",
            {"owner": rule.owner, "key": rule.key},
        ).one()
        return int(sure(row)["count"])

    def add(self, rule: RuleRecord) -> RuleKey:
        """Add a rule; its key is assigned."""
        return RuleKey(sure(self._insert("rule", record_values(rule, _COLUMNS[1:]), "RETURNING key").one())["key"])

    def put(self, rule: RuleRecord) -> None:
        changes = ", ".join(f"{name} = :{name}" for name in _COLUMNS[1:])
        self._db.execute(
            f"UPDATE rule SET {changes} WHERE key = :key",  # noqa: S608 - constants
            record_values(rule, _COLUMNS),
        )

    def remove(self, rule: RuleKey) -> None:
        for table in ("rule_state", "rule_use", "rule_problem"):
            self._db.execute(f"DELETE FROM {table} WHERE rule = :rule", {"rule": rule})  # noqa: S608 - constants
        # The rows stay: the rates of the owner are counted from them.
        self._db.execute("UPDATE rule_request SET content = NULL WHERE rule = :rule", {"rule": rule})
        self._db.execute("DELETE FROM rule WHERE key = :rule", {"rule": rule})

    def stop(self, rule: RuleKey, on_ms: Milliseconds, reason: str) -> None:
        self._db.execute(
            "UPDATE rule SET stopped_on = :on, stop_reason = :reason WHERE key = :rule",
            {"rule": rule, "on": on_ms, "reason": reason},
        )

    # References of rules

    def put_uses(self, rule: RuleKey, uses: Iterable[tuple[UseKind, int]]) -> None:
        self._db.execute("DELETE FROM rule_use WHERE rule = :rule", {"rule": rule})
        for kind, key in set(uses):
            self._insert("rule_use", {"rule": rule, "kind": kind, "object": key})

    def users_of(self, kind: UseKind, key: int) -> list[RuleKey]:
        """The rules that name this device or device type."""
        rows = self._db.execute(
            "SELECT rule FROM rule_use WHERE kind = :kind AND object = :object", {"kind": kind, "object": key}
        )
        return [row["rule"] for row in rows]

    def with_deleted_devices(self) -> list[RuleKey]:
        """The rules that count as valid and name a device that is deleted."""
        rows = self._db.execute(
            "SELECT DISTINCT r.key FROM rule_use AS u JOIN rule AS r ON r.key = u.rule AND r.invalidated_on IS NULL"
            " LEFT JOIN device AS d ON d.key = u.object AND d.deleted_on IS NULL"
            " WHERE u.kind = 'device' AND d.key IS NULL"
        )
        return [row["key"] for row in rows]

    # States of rules

    def state(self, rule: RuleKey) -> RuleState | None:
        row = self._db.execute("SELECT * FROM rule_state WHERE rule = :rule", {"rule": rule}).one()
        return _state(row) if row else None

    def states(self, rules: Collection[RuleKey]) -> list[RuleState]:
        rows = self._db.execute(
            f"SELECT * FROM rule_state WHERE rule IN ({self._db.numbers_in('rules')})",  # noqa: S608 - constants
            {"rules": json.dumps(list(rules))},
        )
        alarms = AlarmStore(self._db).open_of_rules(rules)
        return [_state(row, alarms.get(row["rule"], ())) for row in rows]

    def begin_state(self, state: RuleState) -> None:
        """Replace the state of a rule: the rule is new, or restarts."""
        self._db.put_many("rule_state", _STATE, ("rule",), [_values(state)])

    def put_states(self, states: Collection[RuleState]) -> None:
        """Update the states of rules that still have these revisions."""
        if not states:
            return
        given, parameters = self._db.given("rule_state", _STATE, list(map(_values, states)))
        self._db.execute(
            "UPDATE rule_state SET triggered = given.triggered, last_on = given.last_on, failing = given.failing,"  # noqa: S608 - constants
            f" memory = given.memory FROM ({given}) AS given"
            " WHERE rule_state.rule = given.rule AND rule_state.revision = given.revision",
            parameters,
        )

    def set_failing(self, rules: Collection[RuleKey]) -> None:
        self._db.execute(
            f"UPDATE rule_state SET failing = 1 WHERE rule IN ({self._db.numbers_in('rules')})",  # noqa: S608 - constants
            {"rules": json.dumps(list(rules))},
        )

    def note_problems(self, problems: Sequence[RuleProblem]) -> None:
        """Count problems, of which no two have the same rule, field and text. Of one rule the latest 20 are kept."""
        if not problems:
            return
        rows = [list(record_values(one).values()) for one in problems]
        given, parameters = self._db.given("rule_problem", _PROBLEM, rows)
        self._db.execute(
            f"INSERT INTO rule_problem ({', '.join(_PROBLEM)}) SELECT * FROM ({given}) AS given WHERE TRUE"  # noqa: S608 - constants
            " ON CONFLICT (rule, field, text)"
            " DO UPDATE SET last_on = excluded.last_on, times = rule_problem.times + excluded.times",
            parameters,
        )
        self._db.execute(
            f"DELETE FROM rule_problem WHERE rule IN ({self._db.numbers_in('rules')})"  # noqa: S608 - constants
            " AND last_on < (SELECT min(last_on) FROM (SELECT last_on FROM rule_problem AS other"
            " WHERE other.rule = rule_problem.rule ORDER BY last_on DESC LIMIT :kept) AS latest)",
            {"rules": json.dumps(sorted({one.rule for one in problems})), "kept": _PROBLEMS_KEPT},
        )

    def problems(self, rule: RuleKey) -> list[RuleProblem]:
        """The latest first."""
        rows = self._db.execute(
            "SELECT * FROM rule_problem WHERE rule = :rule ORDER BY last_on DESC, field, text LIMIT :kept",
            {"rule": rule, "kept": _PROBLEMS_KEPT},
        )
        return [RuleProblem(**dict(row)) for row in rows]

    def forget_problems(self, rule: RuleKey) -> None:
        self._db.execute("DELETE FROM rule_problem WHERE rule = :rule", {"rule": rule})

    # Requests

    def requests_since(self, owner: UserKey, *, minute_ms: int, day_ms: int) -> tuple[int, int]:
        """How many requests of this user's rules were added after `minute_ms`, and from `day_ms` on."""
        row = self._db.execute(
            "SELECT count(CASE WHEN created_on > :minute THEN 1 END) AS minute,"
            " count(CASE WHEN created_on >= :day THEN 1 END) AS day"
            " FROM rule_request WHERE owner = :owner AND created_on >= :since",
            {"owner": owner, "minute": minute_ms, "day": day_ms, "since": min(minute_ms, day_ms)},
        ).one()
        return (int(row["minute"]), int(row["day"])) if row else (0, 0)

    def add_request(self, rule: RuleKey, owner: UserKey, field: str, content: str, now_ms: Milliseconds) -> None:
        values = {"rule": rule, "owner": owner, "field": field, "content": content, "created_on": now_ms}
        self._insert("rule_request", values)

    def waiting_requests(self, *, of_one: int, limit: int) -> list[RuleRequest]:
        """The oldest requests of each user that are not finished, at most `of_one`: first the oldest one of each."""
        rows = self._db.execute(
            "SELECT key, rule, owner, field, content, created_on FROM (SELECT *, row_number() OVER"
            " (PARTITION BY owner ORDER BY key) AS turn FROM rule_request WHERE content IS NOT NULL) AS waiting"
            " WHERE turn <= :of_one ORDER BY turn, key LIMIT :limit",
            {"of_one": of_one, "limit": limit},
        )
        return [RuleRequest(**dict(row)) for row in rows]

    def finish_request(self, key: int) -> None:
        """Mark a request as finished and erase its content."""
        self._db.execute("UPDATE rule_request SET content = NULL WHERE key = :key", {"key": key})

    def forget_requests(self, before_ms: int) -> None:
        self._db.execute(
            "DELETE FROM rule_request WHERE content IS NULL AND created_on < :before", {"before": before_ms}
        )


def _rule(row: Mapping[str, Any]) -> RuleRecord:
    values = dict(row)
    values["enabled"] = bool(values["enabled"])
    return RuleRecord(**values)


def _state(row: Mapping[str, Any], alarms: tuple[OpenAlarm, ...] = ()) -> RuleState:
    values = dict(row)
    values["failing"] = bool(values["failing"])
    return RuleState(**values, alarms=alarms)


def _values(state: RuleState) -> list[Any]:
    return [getattr(state, name) if name != "failing" else int(state.failing) for name in _STATE]
