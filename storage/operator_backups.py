"""Backups that operators have begun on the pages of several nodes. The caller holds the transaction."""

import msgspec

from storage.sql import Store


class OperatorBackupRecord(msgspec.Struct, frozen=True):
    """The latest backup of a node. `instance`: the process that makes it; `kept`: JSON, the backups of its folder."""

    node: str
    instance: str
    status: str
    started_on: int
    ended_on: int | None
    done: int
    total: int
    file: str
    problem: str
    kept: str


_COLUMNS = OperatorBackupRecord.__struct_fields__


class OperatorBackupStore(Store):
    def all(self) -> list[OperatorBackupRecord]:
        """The latest first."""
        rows = self._db.execute("SELECT * FROM operator_backup ORDER BY started_on DESC, node")
        return [OperatorBackupRecord(**{name: row[name] for name in _COLUMNS}) for row in rows]

    def put(self, record: OperatorBackupRecord) -> None:
        self._db.put_many("operator_backup", _COLUMNS, ("node",), [[getattr(record, name) for name in _COLUMNS]])
