"""The columns that hold sealed secrets (broker/secrets.py: Vault). The caller holds the transaction.

A test compares the list with the schema: a column of bytes that is not in the list must be known to hold no secret.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from storage.sql import StoreConnection


class SealedColumn(msgspec.Struct, frozen=True):
    table: str
    column: str
    key: str  # the table's primary key

    def __str__(self) -> str:
        return f"{self.table}.{self.column}"


#: Says which key the store belongs to (broker/store_key.py).
STORE_KEY: Final = SealedColumn("store_key", "sealed", "key")

SEALED_COLUMNS: Final = (
    SealedColumn("alarm_notice", "sealed", "key"),
    SealedColumn("alarm_telling", "sealed", "user"),
    SealedColumn("application", "secret", "key"),
    SealedColumn("connector", "terms", "device_type"),
    SealedColumn("connector_job", "requests", "key"),
    SealedColumn("connector_link", "sealed", "device"),
    SealedColumn("connector_state", "sealed", "key"),
    SealedColumn("device_token", "sealed", "device"),
    SealedColumn("external_sign_in", "content", "hash"),
    SealedColumn("mail", "content", "key"),
    SealedColumn("second_factor", "secret", "user"),
    SealedColumn("signing_key", "sealed", "key"),
    STORE_KEY,
    SealedColumn("subscription", "nonce", "key"),
    SealedColumn("subscription", "old_webhook_secret", "key"),
    SealedColumn("subscription", "stream_secret", "key"),
    SealedColumn("subscription", "webhook_secret", "key"),
)


def one_of_each(db: StoreConnection, columns: Sequence[SealedColumn]) -> Sequence[bytes]:
    """The first sealed value of each column that has some, in one statement."""
    parts = (
        f"SELECT sealed FROM (SELECT {at.column} AS sealed FROM {at.table} WHERE {at.column} IS NOT NULL"  # noqa: S608
        f" ORDER BY {at.key} LIMIT 1) AS first_{number}"
        for number, at in enumerate(columns)
    )
    sql = " UNION ALL ".join(parts)
    return [row["sealed"] for row in db.execute(sql)] if sql else []


class SealedStore:
    """Reads and replaces the sealed values of one column. The names in the SQL are those of `SEALED_COLUMNS`."""

    def __init__(self, db: StoreConnection, at: SealedColumn) -> None:
        self._db = db
        self._at = at

    def after(self, key: object, *, limit: int) -> Sequence[tuple[Any, bytes]]:
        """The next keys and sealed values, in the order of the keys; `key` None stands for the beginning."""
        at = self._at
        rows = self._db.execute(
            f"SELECT {at.key} AS row_key, {at.column} AS sealed FROM {at.table} WHERE {at.column} IS NOT NULL"  # noqa: S608
            f"{'' if key is None else f' AND {at.key} > :key'} ORDER BY {at.key} LIMIT :limit",
            {"limit": limit} if key is None else {"limit": limit, "key": key},
        )
        return [(row["row_key"], row["sealed"]) for row in rows]

    def add(self, sealed: bytes) -> None:
        """Add a row, to a table that has only this column and its key."""
        self._db.execute(f"INSERT INTO {self._at.table} ({self._at.column}) VALUES (:sealed)", {"sealed": sealed})  # noqa: S608

    def replace(self, key: object, sealed: bytes) -> None:
        self._db.execute(
            f"UPDATE {self._at.table} SET {self._at.column} = :sealed WHERE {self._at.key} = :key",  # noqa: S608
            {"sealed": sealed, "key": key},
        )
