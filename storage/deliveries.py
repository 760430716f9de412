"""Notifications of subscriptions and the attempts to deliver them. The caller holds the transaction."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from storage.alarms import AlarmRecord
from storage.keys import Milliseconds, Position
from storage.sql import Store, sure

PENDING: Final = "PENDING"
DELIVERED: Final = "DELIVERED"
FAILED: Final = "FAILED"

#: `next_on` of a new notification, whose first attempt is under way.
UNDER_WAY: Final = 2**62

#: Bytes of a row beside its texts, with its entries in two indexes.
_ROW_BYTES = 100


class AttemptRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One attempt. `error` and `http_status` exclude each other; `excerpt` is the beginning of a refusal's body."""

    ts: int
    duration_ms: int
    http_status: int | None = None
    error: str | None = None
    excerpt: str | None = None


_attempts = msgspec.json.Decoder(tuple[AttemptRecord, ...]).decode
_positions = msgspec.json.Decoder(tuple[int, ...]).decode
_alarm = msgspec.json.Decoder(AlarmRecord).decode
_text = msgspec.json.Encoder().encode


class NotificationRecord(msgspec.Struct, frozen=True):
    """A notification of the messages or Actions at `positions`, or of an alarm as it was, without its texts.

    `next_on` is set while its status is PENDING.
    """

    key: int
    subscription: int
    status: str
    created_on: Milliseconds
    start_ts: Milliseconds
    end_ts: Milliseconds
    positions: tuple[Position, ...]
    attempts: tuple[AttemptRecord, ...] = ()
    tries: int = 0  # failures of the present series of attempts
    next_on: int | None = None
    alarm: AlarmRecord | None = None


_COLUMNS = NotificationRecord.__struct_fields__
_DUE = "next_on IS NOT NULL AND (next_on <= :now OR (next_on > :too_far AND next_on < :under_way))"


#: The notifications of a status, as the indexes of few of them have them.
_OF_STATUS: Final[Mapping[str | None, str]] = {
    None: "",
    PENDING: f" AND status = '{PENDING}' AND next_on IS NOT NULL",
    DELIVERED: f" AND status = '{DELIVERED}'",
    FAILED: f" AND status = '{FAILED}'",
}


class DeliveryStore(Store):
    def take_keys(self, number: int) -> int:
        """Take the keys of new notifications; return the first one."""
        row = self._db.execute(
            "INSERT INTO counter (name, value) VALUES ('notifications', :number)"
            " ON CONFLICT (name) DO UPDATE SET value = counter.value + excluded.value RETURNING value",
            {"number": number},
        ).one()
        return int(sure(row)["value"]) - number + 1

    def add_of_alarm(self, alarm: AlarmRecord, at_ms: Milliseconds) -> list[int]:
        """Add a notification that is due for each subscription to the owner's alarms that collects. Return these."""
        rows = self._db.execute(
            "SELECT key FROM subscription WHERE message_type = 'alarm' AND user = :user AND application = :application"
            " AND removed_on IS NULL AND status IN ('ACTIVE', 'PAUSED') ORDER BY key",
            {"user": alarm.owner, "application": alarm.application},
        )
        subscriptions = [int(row["key"]) for row in rows]
        if subscriptions:
            first = self.take_keys(len(subscriptions))
            self.put(
                [
                    NotificationRecord(first + index, one, PENDING, at_ms, at_ms, at_ms, (), next_on=at_ms, alarm=alarm)
                    for index, one in enumerate(subscriptions)
                ]
            )
        return subscriptions

    def put(self, notifications: Sequence[NotificationRecord]) -> None:
        """Add notifications, or replace those with the same keys."""
        rows = [
            (
                one.key,
                one.subscription,
                one.status,
                one.created_on,
                one.start_ts,
                one.end_ts,
                _text(one.positions).decode(),
                _text(one.attempts).decode(),
                one.tries,
                one.next_on,
                None if one.alarm is None else _text(one.alarm).decode(),
            )
            for one in notifications
        ]
        self._db.put_many("notification", _COLUMNS, ("key",), rows)

    def by_key(self, key: int) -> NotificationRecord | None:
        row = self._db.execute("SELECT * FROM notification WHERE key = :key", {"key": key}).one()
        return _record(row) if row else None

    def release(self, now_ms: int) -> None:
        """At a start: the notifications that were under way are due now."""
        self._db.execute(
            "UPDATE notification SET next_on = :now WHERE next_on = :under_way",
            {"now": now_ms, "under_way": UNDER_WAY},
        )

    def due(
        self, now_ms: int, *, too_far_ms: int, after: int, limit: int, without: Collection[int] = ()
    ) -> list[NotificationRecord]:
        """Pending notifications whose time has come and whose key is higher than `after`, oldest first; `without` those
        of some subscriptions.

        No attempt is planned later than `too_far_ms`, unless the clock was ahead when it was planned: it is due, too.
        """
        names = {f"without_{index}": key for index, key in enumerate(without)}
        others = f" AND subscription NOT IN ({', '.join(f':{name}' for name in names)})" if names else ""
        rows = self._db.execute(
            f"SELECT * FROM notification WHERE key > :after AND {_DUE}{others} ORDER BY key LIMIT :limit",  # noqa: S608 - names
            {"now": now_ms, "too_far": too_far_ms, "under_way": UNDER_WAY, "after": after, "limit": limit} | names,
        )
        return [_record(row) for row in rows]

    def due_of(self, subscription: int, now_ms: int, *, too_far_ms: int, limit: int) -> list[NotificationRecord]:
        """The due notifications of one subscription."""
        rows = self._db.execute(
            f"SELECT * FROM notification WHERE subscription = :subscription AND {_DUE} ORDER BY key LIMIT :limit",  # noqa: S608 - a constant
            {
                "subscription": subscription,
                "now": now_ms,
                "too_far": too_far_ms,
                "under_way": UNDER_WAY,
                "limit": limit,
            },
        )
        return [_record(row) for row in rows]

    def next_due(self, after_ms: int) -> int | None:
        """The next time after this one at which a notification is due."""
        row = self._db.execute(
            "SELECT min(next_on) AS next_on FROM notification WHERE next_on IS NOT NULL AND next_on > :after"
            " AND next_on < :under_way",
            {"after": after_ms, "under_way": UNDER_WAY},
        ).one()
        return row["next_on"] if row else None

    def count_pending(self, subscription: int) -> int:
        row = self._db.execute(
            "SELECT count(*) AS n FROM notification WHERE subscription = :subscription AND next_on IS NOT NULL",
            {"subscription": subscription},
        ).one()
        return int(row["n"]) if row else 0

    def page(
        self, subscription: int, status: str | None, *, offset: int, limit: int
    ) -> tuple[list[NotificationRecord], int]:
        """A page of a subscription's notifications, newest first, and the number of all."""
        given = {"subscription": subscription, "offset": offset, "limit": limit}
        where = f" FROM notification WHERE subscription = :subscription{_OF_STATUS[status]}"
        rows = self._db.execute(f"SELECT *{where} ORDER BY key DESC LIMIT :limit OFFSET :offset", given)
        found = [_record(row) for row in rows]
        if status == DELIVERED:  # the other ones have an index
            number = self._count(subscription, None) - sum(self._count(subscription, one) for one in (PENDING, FAILED))
            return found, number
        return found, self._count(subscription, status)

    def _count(self, subscription: int, status: str | None) -> int:
        row = self._db.execute(
            f"SELECT count(*) AS n FROM notification WHERE subscription = :subscription{_OF_STATUS[status]}",  # noqa: S608 - constants
            {"subscription": subscription},
        ).one()
        return int(row["n"]) if row else 0

    def created_between(
        self, subscription: int, *, start_ms: int, end_ms: int, statuses: Collection[str], limit: int
    ) -> list[NotificationRecord]:
        """Notifications of this time with one of these statuses, oldest first."""
        rows = self._db.execute(
            "SELECT * FROM notification WHERE subscription = :subscription AND created_on BETWEEN :start AND :end"  # noqa: S608 - names
            f" AND status IN ({', '.join(f':status_{index}' for index in range(len(statuses)))})"
            " ORDER BY key LIMIT :limit",
            {"subscription": subscription, "start": start_ms, "end": end_ms, "limit": limit}
            | {f"status_{index}": status for index, status in enumerate(statuses)},
        )
        return [_record(row) for row in rows]

    def give_up(self, subscription: int) -> int:
        """End every pending notification of a subscription. Return how many."""
        rows = self._db.execute(
            "UPDATE notification SET status = :failed, next_on = NULL WHERE subscription = :subscription"
            " AND next_on IS NOT NULL RETURNING key",
            {"failed": FAILED, "subscription": subscription},
        )
        return sum(1 for _ in rows)

    def give_up_orphans(self) -> int:
        """Give up the notifications of removed or suspended subscriptions, and delete their cursors."""
        ended = "SELECT key FROM subscription WHERE removed_on IS NULL AND status IN ('ACTIVE', 'PAUSED')"
        self._db.execute(f"DELETE FROM subscription_cursor WHERE subscription NOT IN ({ended})")  # noqa: S608 - constants
        rows = self._db.execute(
            "UPDATE notification SET status = :failed, next_on = NULL WHERE next_on IS NOT NULL"  # noqa: S608 - constants
            f" AND subscription NOT IN ({ended}) RETURNING key",
            {"failed": FAILED},
        )
        return sum(1 for _ in rows)

    # How long they are kept

    def remove_oldest(self, *, before_ms: int | None, limit: int) -> int:
        """Look at the `limit` oldest notifications and delete all but the pending ones. Return how many were deleted.

        `before_ms` None: whatever their age.
        """
        aged = "" if before_ms is None else " AND created_on < :before"
        rows = self._db.execute(
            "DELETE FROM notification WHERE key IN (SELECT key FROM notification WHERE next_on IS NULL"  # noqa: S608 - constants
            f" ORDER BY key LIMIT :limit){aged} RETURNING key",
            {"limit": limit, "before": before_ms},
        )
        return sum(1 for _ in rows)

    def size_bytes(self) -> tuple[int, float]:
        """About how many bytes all notifications take, and one of the last ones."""
        row = self._db.execute(
            "SELECT (SELECT count(*) FROM notification) AS n,"
            " (SELECT avg(length(positions) + length(attempts) + coalesce(length(alarm), 0)) FROM"
            " (SELECT positions, attempts, alarm FROM notification ORDER BY key DESC LIMIT 200) AS latest) AS mean"
        ).one()
        mean = float((row and row["mean"]) or 0) + _ROW_BYTES
        return int((row["n"] if row else 0) * mean), mean


def _record(row: Mapping[str, Any]) -> NotificationRecord:
    values = {name: row[name] for name in _COLUMNS}
    values["positions"] = _positions(values["positions"])
    values["attempts"] = _attempts(values["attempts"])
    values["alarm"] = None if values["alarm"] is None else _alarm(values["alarm"])
    return NotificationRecord(**values)
