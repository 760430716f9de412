"""Counters of rate limits and quotas, as they stood when they were last saved."""

from collections.abc import Mapping, Sequence

from storage.keys import OrganizationKey
from storage.records import CallsRecord, TallyRecord
from storage.sql import Store

_TALLY = ("name", "since_ms", "until_ms", "used")
_USAGE = ("organization", "day_ms", "used")
_CALLS = ("name", "at_ms", "calls")


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

    def put_calls(self, calls: Sequence[CallsRecord], *, forget_before_ms: int) -> None:
        self._db.execute("DELETE FROM recent_call WHERE at_ms <= :before", {"before": forget_before_ms})
        self._db.put_many("recent_call", _CALLS, ("name", "at_ms"), [(one.name, one.at_ms, one.calls) for one in calls])
