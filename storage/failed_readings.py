"""Failed messages that are read again after a new version of the Manifest. The caller holds the transaction."""

import json
from collections.abc import Collection

import msgspec

from storage.keys import DeviceTypeKey, Milliseconds, Position
from storage.records import FailedMessageRow
from storage.sql import Store


class FailedReadingRecord(msgspec.Struct, frozen=True):
    """The reading of a type's failed messages with a version: up to `position`, `fit` of `looked` are messages now.

    `ended_on` is None while it goes on.
    """

    device_type: DeviceTypeKey
    version: int
    position: Position
    looked: int
    fit: int
    began_on: Milliseconds
    ended_on: Milliseconds | None


_COLUMNS = ", ".join(FailedReadingRecord.__struct_fields__)


class FailedReadingStore(Store):
    def begin(self, device_type: DeviceTypeKey, version: int, *, now_ms: int) -> None:
        """Begin from the first failed message, unless there is none. A reading with an older version ends."""
        self._db.execute(
            "INSERT INTO failed_reading (device_type, version, position, looked, fit, began_on)"
            " SELECT :type, :version, 0, 0, 0, :now WHERE EXISTS (SELECT 1 FROM failed_message)"
            " ON CONFLICT (device_type) DO UPDATE SET version = excluded.version, position = 0, looked = 0, fit = 0,"
            " began_on = excluded.began_on, ended_on = NULL",
            {"type": device_type, "version": version, "now": now_ms},
        )

    def of_type(self, device_type: DeviceTypeKey) -> FailedReadingRecord | None:
        found = self._db.execute(
            f"SELECT {_COLUMNS} FROM failed_reading WHERE device_type = :type",  # noqa: S608 - constants
            {"type": device_type},
        )
        return next((FailedReadingRecord(*row) for row in found.tuples()), None)

    def open(self) -> list[FailedReadingRecord]:
        """The readings that go on, the oldest first."""
        found = self._db.execute(
            f"SELECT {_COLUMNS} FROM failed_reading WHERE ended_on IS NULL ORDER BY began_on, device_type"  # noqa: S608 - constants
        )
        return [FailedReadingRecord(*row) for row in found.tuples()]

    def page(self, after: Position, *, limit: int) -> list[tuple[FailedMessageRow, DeviceTypeKey | None]]:
        """The next failed messages of all types in the order of the log, each with its type; None: its device is
        deleted."""
        found = self._db.execute(
            "SELECT f.position, f.device, f.cts, f.reason, f.payload, f.ts,"
            " (SELECT d.device_type FROM device AS d WHERE d.key = f.device AND d.deleted_on IS NULL) AS type"
            " FROM failed_message AS f WHERE f.position > :after ORDER BY f.position LIMIT :limit",
            {"after": after, "limit": limit},
        )
        return [(FailedMessageRow(*row[:-1]), row[-1]) for row in found.tuples()]

    def go_on(self, reading: FailedReadingRecord, upto: Position, *, looked: int, fit: Collection[Position]) -> None:
        """The failed messages up to here were looked at; `fit` are messages, and failed ones no more."""
        if fit:
            self._db.execute(
                f"DELETE FROM failed_message WHERE position IN ({self._db.numbers_in('positions')})",  # noqa: S608 - constants
                {"positions": json.dumps(list(fit))},
            )
        self._db.execute(
            "UPDATE failed_reading SET position = :upto, looked = looked + :looked, fit = fit + :fit"
            " WHERE device_type = :type AND version = :version AND began_on = :began",
            {
                "upto": upto,
                "looked": looked,
                "fit": len(fit),
                "type": reading.device_type,
                "version": reading.version,
                "began": reading.began_on,
            },
        )

    def end(self, reading: FailedReadingRecord, *, now_ms: int) -> None:
        self._db.execute(
            "UPDATE failed_reading SET ended_on = :now WHERE device_type = :type AND version = :version"
            " AND began_on = :began",
            {
                "now": now_ms,
                "type": reading.device_type,
                "version": reading.version,
                "began": reading.began_on,
            },
        )
