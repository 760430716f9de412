"""Reads the mail queue of a store, for tests."""

from collections.abc import Mapping
from typing import Any

from storage.records import MailRecord
from storage.transaction import Transaction


def waiting_mails(tx: Transaction) -> list[MailRecord]:
    """The mails that are neither sent nor given up, the next one first."""
    rows = tx.connection.execute("SELECT * FROM mail WHERE next_on IS NOT NULL ORDER BY next_on, key")
    return [_record(row) for row in rows]


def mail_record(tx: Transaction, message_id: str) -> MailRecord | None:
    row = tx.connection.execute("SELECT * FROM mail WHERE message_id = :id", {"id": message_id}).one()
    return _record(row) if row else None


def _record(row: Mapping[str, Any]) -> MailRecord:
    return MailRecord(**{name: row[name] for name in MailRecord.__struct_fields__})
