"""Outgoing mails: waiting ones, and finished ones for two days, because rates are counted from them."""

from collections.abc import Mapping
from typing import Any, Literal

from storage.records import MailRecord
from storage.sql import Store, record_values


class MailStore(Store):
    """The caller holds the transaction. Mails are added through `broker.mail.Mails.add`, which enforces the rates."""

    def add(self, mail: MailRecord) -> None:
        self._insert("mail", record_values(mail))

    def count_waiting(self) -> int:
        row = self._db.execute("SELECT count(*) AS count FROM mail WHERE next_on IS NOT NULL").one()
        return int(row["count"]) if row else 0

    def next(self) -> MailRecord | None:
        """The waiting mail that is due first, whether it is due already or not."""
        row = self._db.execute("SELECT * FROM mail WHERE next_on IS NOT NULL ORDER BY next_on, key LIMIT 1").one()
        return _record(row) if row else None

    def is_waiting(self, message_id: str) -> bool:
        """Whether the mail is to be sent still: its recipient or its cause may have been deleted."""
        row = self._db.execute(
            "SELECT 1 FROM mail WHERE message_id = :id AND next_on IS NOT NULL", {"id": message_id}
        ).one()
        return row is not None

    def count_since(
        self, kind: str, column: Literal["recipient", "cause"], value: str, *, minute_ms: int, day_ms: int, now_ms: int
    ) -> tuple[int, int]:
        """How many mails of this kind were added after `minute_ms`, and from `day_ms` on, up to `now_ms`."""
        row = self._db.execute(
            "SELECT count(CASE WHEN created_on > :minute THEN 1 END) AS minute,"  # noqa: S608 - the column is a constant
            " count(CASE WHEN created_on >= :day THEN 1 END) AS day"
            f" FROM mail WHERE kind = :kind AND {column} = :value AND created_on BETWEEN :since AND :now",
            {
                "kind": kind,
                "value": value,
                "minute": minute_ms,
                "day": day_ms,
                "since": min(minute_ms, day_ms),
                "now": now_ms,
            },
        ).one()
        return (int(row["minute"]), int(row["day"])) if row else (0, 0)

    def planned(self, like: MailRecord, *, after_ms: int, until_ms: int) -> MailRecord | None:
        """The latest mail of the same kind, recipient and cause that is to be sent for the first time in this span."""
        row = self._db.execute(
            "SELECT * FROM mail WHERE kind = :kind AND recipient = :recipient AND cause = :cause"
            " AND created_on > :after AND created_on <= :until AND next_on = created_on"
            " ORDER BY created_on DESC, key DESC LIMIT 1",
            {
                "kind": like.kind,
                "recipient": like.recipient,
                "cause": like.cause,
                "after": after_ms,
                "until": until_ms,
            },
        ).one()
        return _record(row) if row else None

    def set_content(self, message_id: str, content: bytes) -> None:
        self._db.execute(
            "UPDATE mail SET content = :content WHERE message_id = :id", {"id": message_id, "content": content}
        )

    def defer(self, message_id: str, *, next_on: int, attempts: int, last_error: str) -> None:
        self._db.execute(
            "UPDATE mail SET next_on = :next_on, attempts = :attempts, last_error = :error WHERE message_id = :id",
            {"id": message_id, "next_on": next_on, "attempts": attempts, "error": last_error},
        )

    def finish(
        self, message_id: str, outcome: Literal["sent", "given up", "withdrawn"], *, last_error: str | None = None
    ) -> None:
        """Mark the mail as finished and erase its content."""
        self._db.execute(
            "UPDATE mail SET next_on = NULL, content = NULL, outcome = :outcome,"
            " last_error = coalesce(:error, last_error) WHERE message_id = :id",
            {"id": message_id, "outcome": outcome, "error": last_error},
        )

    def give_up_older(self, until_ms: int, *, last_error: str) -> list[MailRecord]:
        """Give up the mails that have waited since `until_ms` or longer, and return them."""
        rows = self._db.execute(
            "UPDATE mail SET next_on = NULL, content = NULL, outcome = 'given up', last_error = :error"
            " WHERE next_on IS NOT NULL AND created_on <= :until RETURNING *",
            {"until": until_ms, "error": last_error},
        )
        return [_record(row) for row in rows]

    def forget_done(self, before_ms: int) -> None:
        self._db.execute("DELETE FROM mail WHERE next_on IS NULL AND created_on < :before", {"before": before_ms})


def _record(row: Mapping[str, Any]) -> MailRecord:
    return MailRecord(**{name: row[name] for name in MailRecord.__struct_fields__})
