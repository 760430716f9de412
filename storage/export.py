"""Exports: the request, the progress and the outcome. The caller holds the transaction."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from storage.keys import ApplicationKey, DeviceKey, UserKey
from storage.records import ExportRecord
from storage.sql import Store

_NAMES = ExportRecord.__struct_fields__
_LATEST_MS: Final = 2**62


class ExportsOf(msgspec.Struct, frozen=True):
    """Exports of one owner: number of unfinished ones, bytes of archives, and when the first archive expires."""

    waiting: int
    kept_bytes: int
    first_expires_on: int


class ExportStore(Store):
    def put(self, export: ExportRecord) -> None:
        """Add an export, or replace the one with its id."""
        self._db.put_many("export", _NAMES, ("id",), [tuple(getattr(export, name) for name in _NAMES)])

    def by_id(self, id_: str) -> ExportRecord | None:
        row = self._db.execute("SELECT * FROM export WHERE id = :id", {"id": id_}).one()
        return _record(row) if row else None

    def first_of_each_owner(self, statuses: Sequence[str]) -> list[ExportRecord]:
        """The oldest export in one of two statuses of each user, and of each application for itself."""
        rows = self._db.execute(
            "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY user, CASE WHEN user IS NULL THEN application END"
            " ORDER BY key) AS turn FROM export WHERE status IN (:one, :other)) AS waiting WHERE turn = 1 ORDER BY key",
            dict(zip(("one", "other"), statuses, strict=True)),
        )
        return [_record(row) for row in rows]

    def of_owner(self, export: ExportRecord, to_do: Sequence[str], kept: Sequence[str]) -> ExportsOf:
        """The exports of the user, or of the application itself. `to_do` and `kept` are two statuses each."""
        condition = "e.user = :user" if export.user is not None else "e.user IS NULL AND e.application = :application"
        return self._count(condition, export, to_do, kept)

    def of_organization(self, export: ExportRecord, to_do: Sequence[str], kept: Sequence[str]) -> ExportsOf:
        """The exports of all applications in the organization of the export's application; empty without one."""
        condition = (
            "e.application IN (SELECT key FROM application WHERE organization ="
            " (SELECT organization FROM application WHERE key = :application))"
        )
        return self._count(condition, export, to_do, kept)

    def _count(self, condition: str, export: ExportRecord, to_do: Sequence[str], kept: Sequence[str]) -> ExportsOf:
        row = self._db.execute(
            "SELECT count(CASE WHEN e.status IN (:begun, :waits) THEN 1 END) AS waiting,"  # noqa: S608 - constants
            " coalesce(sum(CASE WHEN e.status IN (:done, :served) THEN e.file_size END), 0) AS kept_bytes,"
            " coalesce(min(CASE WHEN e.status IN (:done, :served) THEN e.expires_on END), 0) AS first_expires_on"
            f" FROM export AS e WHERE e.status IN (:begun, :waits, :done, :served) AND {condition}",
            {
                "user": export.user,
                "application": export.application,
                **dict(zip(("begun", "waits"), to_do, strict=True)),
                **dict(zip(("done", "served"), kept, strict=True)),
            },
        ).one()
        return ExportsOf(**dict(row)) if row else ExportsOf(0, 0, 0)

    def expired(self, status: str, now_ms: int) -> list[ExportRecord]:
        rows = self._db.execute(
            "SELECT * FROM export WHERE status = :status AND expires_on <= :now ORDER BY key",
            {"status": status, "now": now_ms},
        )
        return [_record(row) for row in rows]

    def of_user(self, user: UserKey) -> list[ExportRecord]:
        rows = self._db.execute("SELECT * FROM export WHERE user = :user ORDER BY key", {"user": user})
        return [_record(row) for row in rows]

    def put_devices(self, id_: str, devices: Collection[DeviceKey], *, start_ms: int, end_ms: int) -> None:
        """Note which devices' messages an export has or will have, and of which times."""
        self._db.execute(
            "INSERT INTO export_device (device, export, start_ms, end_ms)"  # noqa: S608 - constants
            " SELECT given.value, (SELECT key FROM export WHERE id = :id), :start, :end"
            f" FROM ({self._db.numbers_in('devices')}) AS given",
            {"id": id_, "devices": json.dumps(list(devices)), "start": start_ms, "end": end_ms},
        )

    def forget_devices(self, id_: str) -> None:
        self._db.execute(
            "DELETE FROM export_device WHERE export = (SELECT key FROM export WHERE id = :id)", {"id": id_}
        )

    def of_devices(
        self,
        devices: Collection[DeviceKey],
        statuses: Collection[str],
        *,
        start_ms: int = 0,
        end_ms: int = _LATEST_MS,
        limit: int,
    ) -> list[ExportRecord]:
        """Some exports in one of these states that have messages of one of the devices, of times in this range."""
        named = {f"status_{index}": status for index, status in enumerate(statuses)}
        rows = self._db.execute(
            "SELECT e.* FROM export AS e JOIN export_device AS d ON d.export = e.key"  # noqa: S608 - parameters
            f" WHERE d.device IN ({self._db.numbers_in('devices')}) AND d.start_ms <= :end AND d.end_ms >= :start"
            f" AND e.status IN ({', '.join(f':{name}' for name in named)}) LIMIT :limit",
            {"devices": json.dumps(list(devices)), "start": start_ms, "end": end_ms, "limit": limit, **named},
        )
        return [_record(row) for row in rows]

    def of_application(self, application: ApplicationKey) -> list[ExportRecord]:
        rows = self._db.execute(
            "SELECT * FROM export WHERE application = :application ORDER BY key", {"application": application}
        )
        return [_record(row) for row in rows]

    def remove(self, id_: str) -> None:
        self._db.execute("DELETE FROM export WHERE id = :id", {"id": id_})

    def page(
        self, *, user: UserKey | None, application: ApplicationKey | None, trial: str | None, offset: int, limit: int
    ) -> tuple[list[ExportRecord], int]:
        """A page of what an application exported for a user, or for itself, newest first; and the number of all."""
        owner = "user = :user" if user is not None else "user IS NULL"
        condition = f"{owner} AND application = :application" + (" AND trial = :trial" if trial is not None else "")
        parameters = {"user": user, "application": application, "trial": trial, "offset": offset, "limit": limit}
        rows = self._db.execute(
            f"SELECT * FROM export WHERE {condition} ORDER BY key DESC LIMIT :limit OFFSET :offset",  # noqa: S608 - constants
            parameters,
        )
        found = [_record(row) for row in rows]
        counted = self._db.execute(f"SELECT count(*) AS count FROM export WHERE {condition}", parameters).one()  # noqa: S608
        return found, int(counted["count"]) if counted else 0


def _record(row: Mapping[str, Any]) -> ExportRecord:
    return ExportRecord(**{name: row[name] for name in _NAMES})
