"""Alarms of rules (reference 12.12). The caller holds the transaction."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from storage.keys import ApplicationKey, DeviceKey, Milliseconds, Position, RuleKey, UserKey
from storage.sql import Store, record_values, sure


class AlarmRecord(msgspec.Struct, frozen=True):
    """An alarm. `device` is 0 without one; `cause` is JSON of broker/alarms.

    `cleared_on` is None while it is open. The ids of its owner, application and device are read from their tables.
    """

    key: int
    id: str
    rule: RuleKey
    rule_id: str
    rule_name: str
    owner: UserKey
    application: ApplicationKey
    device: DeviceKey
    severity: str
    text: str
    is_storm: bool
    raised_on: Milliseconds
    last_on: Milliseconds
    count: int
    position: Position
    message: Position | None
    cause: str
    acknowledged_on: Milliseconds | None = None
    acknowledged_by: str = ""
    cleared_on: Milliseconds | None = None
    cleared_by: str = ""
    tell_on: Milliseconds | None = None
    told: int = 0
    owner_id: str = ""
    application_id: str = ""
    device_id: str = ""


class OpenAlarm(msgspec.Struct, frozen=True):
    """As the rule's engine knows it."""

    device: DeviceKey
    is_storm: bool
    last_on: Milliseconds


class AlarmFilter(msgspec.Struct, frozen=True):
    """Which alarms are wanted; None and () match all. `application`: those of its rules only."""

    owner: UserKey
    application: ApplicationKey | None = None
    states: Collection[str] = ()
    severities: Collection[str] = ()
    rule_id: str | None = None
    device: DeviceKey | None = None
    start_ms: Milliseconds | None = None
    end_ms: Milliseconds | None = None


_READ: Final = ("owner_id", "application_id", "device_id")
_COLUMNS: Final = tuple(one for one in AlarmRecord.__struct_fields__ if one not in _READ)
_OF_ALARM: Final = ", ".join(f"m.{name}" for name in _COLUMNS)
_ALARM: Final = (
    f"SELECT {_OF_ALARM}, u.id AS owner_id, coalesce(a.id, '') AS application_id,"  # noqa: S608 - constants
    " coalesce(d.id, '') AS device_id FROM alarm AS m JOIN user AS u ON u.key = m.owner"
    " LEFT JOIN application AS a ON a.key = m.application LEFT JOIN device AS d ON d.key = m.device WHERE "
)
#: `state` of an alarm as REST has it.
_IN_STATE: Final[Mapping[str, str]] = {
    "raised": "(m.cleared_on IS NULL AND m.acknowledged_on IS NULL)",
    "acknowledged": "(m.cleared_on IS NULL AND m.acknowledged_on IS NOT NULL)",
    "cleared": "m.cleared_on IS NOT NULL",
}


class AlarmStore(Store):
    # One alarm

    def by_id(self, id_: str) -> AlarmRecord | None:
        return _one(self._db.execute(_ALARM + "m.id = :id", {"id": id_}).one())

    def by_ids(self, ids: Collection[str]) -> list[AlarmRecord]:
        given = {"ids": self._db.texts(ids)}
        return [_alarm(row) for row in self._db.execute(f"{_ALARM}m.id IN ({self._db.texts_in('ids')})", given)]

    def by_key(self, key: int) -> AlarmRecord | None:
        return _one(self._db.execute(_ALARM + "m.key = :key", {"key": key}).one())

    def add(self, alarm: AlarmRecord) -> int:
        """Return its key."""
        values = record_values(alarm, _COLUMNS[1:])
        values["is_storm"] = int(alarm.is_storm)
        return int(sure(self._insert("alarm", values, "RETURNING key").one())["key"])

    def count_on(
        self, rule: RuleKey, device: DeviceKey, *, is_storm: bool, last_on: Milliseconds, times: int
    ) -> int | None:
        """The rule has triggered again; return the key of the alarm that is open, if there is one."""
        row = self._db.execute(
            "UPDATE alarm SET count = count + :times, last_on = :last WHERE rule = :rule AND device = :device"
            " AND is_storm = :storm AND cleared_on IS NULL RETURNING key",
            {"rule": rule, "device": device, "storm": int(is_storm), "last": last_on, "times": times},
        ).one()
        return None if row is None else int(row["key"])

    def clear(self, rule: RuleKey, device: DeviceKey, *, is_storm: bool, at_ms: Milliseconds, by: str) -> int | None:
        """Clear the open alarm of a rule about a device; return its key, if there is one."""
        row = self._db.execute(
            "UPDATE alarm SET cleared_on = :at, cleared_by = :by, tell_on = NULL WHERE rule = :rule"
            " AND device = :device AND is_storm = :storm AND cleared_on IS NULL RETURNING key",
            {"rule": rule, "device": device, "storm": int(is_storm), "at": at_ms, "by": by},
        ).one()
        return None if row is None else int(row["key"])

    def clear_key(self, key: int, *, at_ms: Milliseconds, by: str) -> bool:
        """Return whether it was open. It lasts until `at_ms`, and not less than to where it was raised."""
        row = self._db.execute(
            "UPDATE alarm SET cleared_on = CASE WHEN raised_on > :at THEN raised_on ELSE :at END, cleared_by = :by,"
            " tell_on = NULL WHERE key = :key AND cleared_on IS NULL RETURNING key",
            {"key": key, "at": at_ms, "by": by},
        ).one()
        return row is not None

    def acknowledge(self, key: int, *, at_ms: Milliseconds, by: str) -> bool:
        """Return whether it was not acknowledged before, and open."""
        row = self._db.execute(
            "UPDATE alarm SET acknowledged_on = :at, acknowledged_by = :by, tell_on = NULL"
            " WHERE key = :key AND cleared_on IS NULL AND acknowledged_on IS NULL RETURNING key",
            {"key": key, "at": at_ms, "by": by},
        ).one()
        return row is not None

    # Several

    def find(self, wanted: AlarmFilter, *, offset: int, limit: int) -> tuple[list[AlarmRecord], int]:
        """A page, the last raised first, and how many there are in all."""
        where, given = _where(wanted)
        total = self._number_of(f"FROM alarm AS m WHERE {where}", given)
        rows = self._db.execute(
            f"{_ALARM}{where} ORDER BY m.raised_on DESC, m.key DESC LIMIT :limit OFFSET :offset",
            {**given, "limit": limit, "offset": offset},
        )
        return [_alarm(row) for row in rows], total

    def count_open(self) -> dict[str, int]:
        """Of all users, by severity."""
        rows = self._db.execute("SELECT severity, count(*) AS n FROM alarm WHERE cleared_on IS NULL GROUP BY severity")
        return {row["severity"]: int(row["n"]) for row in rows}

    def open_of_rule(self, rule: RuleKey) -> tuple[OpenAlarm, ...]:
        rows = self._db.execute(
            "SELECT device, is_storm, last_on FROM alarm WHERE rule = :rule AND cleared_on IS NULL"
            " ORDER BY device, is_storm",
            {"rule": rule},
        )
        return tuple(OpenAlarm(row["device"], bool(row["is_storm"]), row["last_on"]) for row in rows)

    def open_of_rules(self, rules: Collection[RuleKey]) -> dict[RuleKey, tuple[OpenAlarm, ...]]:
        rows = self._db.execute(
            "SELECT rule, device, is_storm, last_on FROM alarm"  # noqa: S608 - constants
            f" WHERE rule IN ({self._db.numbers_in('rules')}) AND cleared_on IS NULL ORDER BY rule, device, is_storm",
            {"rules": json.dumps(list(rules))},
        )
        found: dict[RuleKey, tuple[OpenAlarm, ...]] = {}
        for row in rows:
            one = OpenAlarm(row["device"], bool(row["is_storm"]), row["last_on"])
            found[row["rule"]] = (*found.get(row["rule"], ()), one)
        return found

    def open_keys_of_rule(self, rule: RuleKey) -> list[int]:
        rows = self._db.execute(
            "SELECT key FROM alarm WHERE rule = :rule AND cleared_on IS NULL ORDER BY key", {"rule": rule}
        )
        return [row["key"] for row in rows]

    def open_of_device(self, device: DeviceKey) -> list[AlarmRecord]:
        rows = self._db.execute(
            _ALARM + "m.device = :device AND m.cleared_on IS NULL ORDER BY m.key", {"device": device}
        )
        return [_alarm(row) for row in rows]

    def of_lost_devices(self, *, limit: int) -> list[int]:
        """The keys of open alarms about devices that are deleted, or that the owner may not see any more."""
        rows = self._db.execute(
            "SELECT m.key FROM alarm AS m LEFT JOIN device AS d ON d.key = m.device AND d.deleted_on IS NULL"
            " WHERE m.cleared_on IS NULL AND m.device <> 0 AND (d.key IS NULL OR (d.owner <> m.owner AND NOT EXISTS"
            " (SELECT 1 FROM device_share AS s WHERE s.device = d.key AND s.user = m.owner"
            " AND s.status = 'ACCEPTED'))) ORDER BY m.key LIMIT :limit",
            {"limit": limit},
        )
        return [row["key"] for row in rows]

    # Their end

    def remove_of(self, owner: UserKey) -> None:
        """Remove all of an owner."""
        self._db.execute("DELETE FROM alarm WHERE owner = :owner", {"owner": owner})

    def sweep(self, before_ms: int, *, limit: int) -> int:
        """Delete some that were cleared before this time; return how many."""
        return self._deleted(
            "SELECT key FROM alarm WHERE cleared_on IS NOT NULL AND cleared_on < :before"
            " ORDER BY cleared_on, key LIMIT :limit",
            {"before": before_ms, "limit": limit},
        )

    def trim(self, owner: UserKey, *, keep: int, limit: int) -> int:
        """Delete some of an owner who has more than `keep`, the ones cleared first. Return how many."""
        surplus = self._number_of("FROM alarm WHERE owner = :owner", {"owner": owner}) - keep
        if surplus <= 0:
            return 0
        return self._deleted(
            "SELECT key FROM alarm WHERE owner = :owner AND cleared_on IS NOT NULL"
            " ORDER BY cleared_on, key LIMIT :limit",
            {"owner": owner, "limit": min(limit, surplus)},
        )

    def owners_with_more_than(self, number: int) -> list[UserKey]:
        rows = self._db.execute(
            "SELECT owner FROM alarm GROUP BY owner HAVING count(*) > :number ORDER BY owner LIMIT 100",
            {"number": number},
        )
        return [row["owner"] for row in rows]

    def _deleted(self, which: str, given: Mapping[str, Any]) -> int:
        return len(list(self._db.execute(f"DELETE FROM alarm WHERE key IN ({which}) RETURNING key", given)))  # noqa: S608

    # Telling of them

    def due(self, now_ms: Milliseconds, *, limit: int) -> list[AlarmRecord]:
        """Open ones of which somebody is to be told by now, the first due first."""
        rows = self._db.execute(
            _ALARM + "m.tell_on <= :now AND m.cleared_on IS NULL ORDER BY m.tell_on, m.key LIMIT :limit",
            {"now": now_ms, "limit": limit},
        )
        return [_alarm(row) for row in rows]

    def next_due(self) -> Milliseconds | None:
        row = self._db.execute("SELECT min(tell_on) AS due FROM alarm WHERE tell_on IS NOT NULL").one()
        return None if row is None or row["due"] is None else Milliseconds(row["due"])

    def note_told(self, keys: Iterable[int], *, next_on: Milliseconds | None, was_told: bool) -> None:
        """They were told of, or are to be told of later; nobody is told of one that has ended or was acknowledged."""
        self._db.execute(
            "UPDATE alarm SET tell_on = CASE WHEN cleared_on IS NULL AND acknowledged_on IS NULL THEN"  # noqa: S608
            f" CAST(:next AS BIGINT) ELSE NULL END, told = told + :told WHERE key IN ({self._db.numbers_in('keys')})",
            {"next": next_on, "told": int(was_told), "keys": json.dumps(list(keys))},
        )

    def tell_again(self, owner: UserKey, now_ms: Milliseconds) -> None:
        """An owner is to be told again of what is open and was not acknowledged."""
        self._db.execute(
            "UPDATE alarm SET tell_on = :now WHERE owner = :owner AND cleared_on IS NULL AND acknowledged_on IS NULL",
            {"now": now_ms, "owner": owner},
        )


def _where(wanted: AlarmFilter) -> tuple[str, dict[str, Any]]:
    parts, given = ["m.owner = :owner"], dict[str, Any](owner=wanted.owner)
    if wanted.application is not None:
        parts.append("m.application = :application")
        given["application"] = wanted.application
    if wanted.states:
        parts.append(f"({' OR '.join(_IN_STATE[one] for one in sorted(set(wanted.states)))})")
    if wanted.severities:
        names = {f"severity_{index}": one for index, one in enumerate(sorted(set(wanted.severities)))}
        parts.append(f"m.severity IN ({', '.join(f':{name}' for name in names)})")
        given |= names
    for name, value in (("rule_id", wanted.rule_id), ("device", wanted.device)):
        if value is not None:
            parts.append(f"m.{name} = :{name}")
            given[name] = value
    if wanted.start_ms is not None:
        parts.append("m.raised_on >= :start")
        given["start"] = wanted.start_ms
    if wanted.end_ms is not None:
        parts.append("m.raised_on <= :end")
        given["end"] = wanted.end_ms
    return " AND ".join(parts), given


def _one(row: Mapping[str, Any] | None) -> AlarmRecord | None:
    return None if row is None else _alarm(row)


def _alarm(row: Mapping[str, Any]) -> AlarmRecord:
    values = dict(row)
    values["is_storm"] = bool(values["is_storm"])
    return AlarmRecord(**values)
