"""Counters of rate limits and quotas, as they stood when they were last saved."""

from collections.abc import Sequence

from storage.keys import OrganizationKey
from storage.records import CallsRecord, TallyRecord
from storage.sql import StoreConnection

_TALLY = ("name", "since_ms", "until_ms", "used")
_CALLS = ("name", "at_ms", "calls")


class LimitStore:
    """The caller holds the transaction."""

    def __init__(self, db: StoreConnection) -> None:
        self._db = db

    def monthly(self) -> dict[OrganizationKey, int]:
        """The monthly limit of each organization by its key, in units; -1 is unlimited."""
        rows = self._db.execute("SELECT key, monthly_messages FROM organization")
        return {row["key"]: row["monthly_messages"] for row in rows}

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
