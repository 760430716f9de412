"""Readers of the messages of users' devices, and how often they have read. The caller holds the transaction."""

from collections.abc import Iterable
from typing import Final

import msgspec

from storage.keys import ApplicationKey, DeviceTypeKey, UserKey
from storage.sql import Store

#: Of a read with a device's token.
NO_APPLICATION: Final = ApplicationKey(0)
#: The application reads for itself.
ITSELF: Final = UserKey(0)


class ReaderRecord(msgspec.Struct, frozen=True):
    """`count` reads of an application for a user, `reader`, of the messages of devices of `owner`."""

    owner: UserKey
    application: ApplicationKey
    reader: UserKey
    count: int
    first_on: int
    last_on: int


_NAMES: Final = ReaderRecord.__struct_fields__


class DataReaderStore(Store):
    def add_all(self, reads: Iterable[ReaderRecord]) -> None:
        """Add to what is known."""
        for one in reads:
            self._db.execute(
                "INSERT INTO data_reader (owner, application, reader, count, first_on, last_on)"
                " VALUES (:owner, :application, :reader, :count, :first_on, :last_on)"
                " ON CONFLICT (owner, application, reader) DO UPDATE SET count = data_reader.count + excluded.count,"
                " last_on = CASE WHEN excluded.last_on > data_reader.last_on THEN excluded.last_on"
                " ELSE data_reader.last_on END",
                {name: getattr(one, name) for name in _NAMES},
            )

    def of_owner(self, owner: UserKey, *, limit: int) -> list[ReaderRecord]:
        """The latest ones first."""
        rows = self._db.execute(
            "SELECT * FROM data_reader WHERE owner = :owner ORDER BY last_on DESC, application, reader LIMIT :limit",
            {"owner": owner, "limit": limit},
        )
        return [ReaderRecord(**{name: row[name] for name in _NAMES}) for row in rows]

    def sent_by_type(
        self, device_type: DeviceTypeKey, start_ms: int, end_ms: int, *, devices: int
    ) -> tuple[int, int, int]:
        """Of the newest devices of a type: how many sent messages in these whole days, on how many days of one device,
        and how many messages."""
        row = self._db.execute(
            "SELECT count(DISTINCT r.device) AS devices, count(*) AS days, coalesce(sum(r.count), 0) AS messages"
            " FROM (SELECT key FROM device WHERE device_type = :type AND deleted_on IS NULL ORDER BY key DESC"
            " LIMIT :devices) AS d JOIN rollup AS r ON r.device = d.key"
            " AND r.field = (SELECT key FROM field WHERE path = '') AND r.level = 'day'"
            " AND r.bucket >= :start AND r.bucket < :end",
            {"type": device_type, "start": start_ms, "end": end_ms, "devices": devices},
        ).one()
        return (int(row["devices"]), int(row["days"]), int(row["messages"])) if row else (0, 0, 0)
