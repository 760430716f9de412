"""Counters of rate limits and quotas, as they stood when they were last saved."""

from collections.abc import Mapping, Sequence

from storage.keys import OrganizationKey
from storage.records import CallsRecord, TallyRecord
from storage.sql import Store

_TALLY = ("name", "since_ms", "until_ms", "used")
_USAGE = ("organization", "day_ms", "used")
_CALLS = ("name", "at_ms", "calls", "node")


class LimitStore(Store):
    """The caller holds the transaction."""

    def monthly(self) -> dict[OrganizationKey, int]:
        """The monthly limit of each organization by its key, in units; -1 is unlimited."""
        rows = self._db.execute("SELECT key, monthly_messages FROM organization")
        return {row["key"]: row["monthly_messages"] for row in rows}

    def put_usage(self, day_ms: int, used: Mapping[OrganizationKey, int]) -> None:
        rows = [(organization, day_ms, units) for organization, units in used.items()]
        self._db.put_many("usage_day", _USAGE, ("organization", "day_ms"), rows)

    def usage(self, organization: OrganizationKey, *, since_ms: int) -> list[tuple[int, int]]:
        """Days from this one on, and how much of its month the organization had used at the end of each."""
        rows = self._db.execute(
            "SELECT day_ms, used FROM usage_day WHERE organization = :key AND day_ms >= :since ORDER BY day_ms",
            {"key": organization, "since": since_ms},
        )
        return [(row["day_ms"], row["used"]) for row in rows]

    def forget_usage(self, *, before_ms: int) -> None:
        self._db.execute("DELETE FROM usage_day WHERE day_ms < :before", {"before": before_ms})

    def tallies(self, *, now_ms: int) -> list[TallyRecord]:
        """The counters of periods that have not ended."""
        rows = self._db.execute(
            "SELECT name, since_ms, until_ms, used FROM tally WHERE until_ms > :now", {"now": now_ms}
        )
        return [TallyRecord(*row) for row in rows.tuples()]

    def put_tallies(self, tallies: Sequence[TallyRecord]) -> None:
        rows = [(one.name, one.since_ms, one.until_ms, one.used) for one in tallies]
        self._db.put_many("tally", _TALLY, ("name",), rows)

    def forget_tallies(self, *, ended_by_ms: int) -> None:
        self._db.execute("DELETE FROM tally WHERE until_ms <= :ended", {"ended": ended_by_ms})

    def calls(self, *, after_ms: int) -> list[CallsRecord]:
        """The calls after this time, oldest first."""
        rows = self._db.execute(
            "SELECT name, at_ms, calls FROM recent_call WHERE at_ms > :after ORDER BY at_ms", {"after": after_ms}
        )
        return [CallsRecord(*row) for row in rows.tuples()]

    def put_calls(self, calls: Sequence[CallsRecord], *, forget_before_ms: int, node: str = "") -> None:
        self._db.execute("DELETE FROM recent_call WHERE at_ms <= :before", {"before": forget_before_ms})
        rows = [(one.name, one.at_ms, one.calls, node) for one in calls]
        self._db.put_many("recent_call", _CALLS, ("name", "at_ms", "node"), rows)

    # Of several nodes

    def add_to_tallies(self, tallies: Sequence[TallyRecord]) -> None:
        """Add what was used of these. A counter of an earlier period restarts; what was used in one before is over."""
        if not tallies:
            return
        rows = [(one.name, one.since_ms, one.until_ms, one.used) for one in tallies]
        given, parameters = self._db.given("tally", _TALLY, rows)
        self._db.execute(
            f"INSERT INTO tally ({', '.join(_TALLY)}) SELECT * FROM ({given}) AS given WHERE TRUE"  # noqa: S608 - constants
            " ON CONFLICT (name) DO UPDATE SET since_ms = excluded.since_ms, until_ms = excluded.until_ms,"
            " used = excluded.used + CASE WHEN tally.since_ms = excluded.since_ms THEN tally.used ELSE 0 END"
            " WHERE excluded.since_ms >= tally.since_ms",
            parameters,
        )

    def tallies_with(self, names: Sequence[str], *, like: str) -> list[TallyRecord]:
        """The counters with these names, and all whose names begin like this."""
        rows = self._db.execute(
            "SELECT name, since_ms, until_ms, used FROM tally"  # noqa: S608 - an expression of the engine
            f" WHERE name IN ({self._db.texts_in('names')}) OR (name >= :first AND name < :behind)",
            {"names": self._db.texts(names), "first": like, "behind": like + "\x7f"},
        )
        return [TallyRecord(*row) for row in rows.tuples()]

    def calls_of_others(self, node: str, *, after_ms: int) -> list[tuple[str, CallsRecord]]:
        """The calls that other nodes got after this time, oldest first, with the nodes."""
        rows = self._db.execute(
            "SELECT node, name, at_ms, calls FROM recent_call WHERE at_ms > :after AND node <> :node ORDER BY at_ms",
            {"after": after_ms, "node": node},
        )
        return [(of, CallsRecord(name, at_ms, calls)) for of, name, at_ms, calls in rows.tuples()]
