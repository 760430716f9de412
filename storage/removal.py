"""Removes deleted devices and their data for good. The caller holds the transaction.

Every step removes a bounded number of rows, because other writes wait for the step.
"""

from typing import Final

from storage.keys import DeviceKey
from storage.log_index import LogIndex, Table, joined
from storage.sql import Store

# Both have an index by device, so a step needs no scan. Failed messages have a retention of their own.
_LOGS: Final[tuple[Table, ...]] = ("message", "action")
_KEPT_ONCE: Final = (
    "snapshot",
    "presence",
    "device_token",
    "device_share",
    "property_set",
    "device_task",
    "lwm2m_action",
    "lwm2m_ended_action",
    "lwm2m_registration",
    "task_history",
    "scene_device",
    "model_device",
    "mqtt_delivery",
    "mqtt_received",
    "mqtt_subscription",
    "mqtt_session",
    "mqtt_will",
    "wanted",
    "alarm",
    "erasure",
)


class RemovalStore(Store):
    def deleted_before(self, before_ms: int, *, limit: int) -> list[DeviceKey]:
        """The keys of devices that were deleted before this time, the longest deleted first."""
        rows = self._db.execute(
            "SELECT key FROM device WHERE deleted_on IS NOT NULL AND deleted_on < :before ORDER BY deleted_on, key"
            " LIMIT :limit",
            {"before": before_ms, "limit": limit},
        )
        return [row["key"] for row in rows]

    def remove_some(self, device: DeviceKey, *, before_ms: int, limit: int) -> bool:
        """Remove about `limit` rows of a device; when none is left, the device. Return whether all was removed.

        A restored device is not touched.
        """
        still_due = self._db.execute(
            "SELECT key FROM device WHERE key = :device AND deleted_on < :before",
            {"device": device, "before": before_ms},
        ).one()
        if still_due is None:
            return True
        if any(self._remove_log(table, device, limit) for table in _LOGS) or self._remove_rollups(device, limit):
            return False
        for log in _LOGS:  # rows without an index entry
            self._db.execute(
                f"DELETE FROM {log} WHERE device = :device"  # noqa: S608 - constants
                " AND position > (SELECT coalesce(max(value), 0) FROM counter WHERE name = 'indexed')",
                {"device": device},
            )
        for table in _KEPT_ONCE:
            self._db.execute(f"DELETE FROM {table} WHERE device = :device", {"device": device})  # noqa: S608 - constants
        # Other alarms may have looked at its values. An id has no wildcards.
        self._db.execute(
            "UPDATE alarm SET cause = '[]', text = rule_name WHERE EXISTS"
            " (SELECT 1 FROM device AS d WHERE d.key = :device AND alarm.cause LIKE '%\"' || d.id || '\"%' ESCAPE '!')",
            {"device": device},
        )
        self._db.execute(
            "INSERT INTO counter (name, value) VALUES ('removed device', :device) ON CONFLICT (name)"
            " DO UPDATE SET value = excluded.value WHERE excluded.value > counter.value",
            {"device": device},
        )
        self._db.execute(
            "DELETE FROM provision_mark WHERE kind = 'device' AND object = (SELECT id FROM device WHERE key = :device)",
            {"device": device},
        )
        self._db.execute("DELETE FROM device WHERE key = :device", {"device": device})
        return True

    def forget_leftovers(self, device: DeviceKey) -> None:
        """Remove late rows of a removed device: sessions that had begun before its removal."""
        for table in (*_KEPT_ONCE, "rollup"):
            self._db.execute(f"DELETE FROM {table} WHERE device = :device", {"device": device})  # noqa: S608 - constants

    def _remove_log(self, table: Table, device: DeviceKey, limit: int) -> bool:
        """Remove rows of the log; return whether there were any."""
        found = LogIndex(self._db, table).forget(device, rows=limit)
        self._db.execute(
            f"DELETE FROM {table} WHERE device = :device"  # noqa: S608 - constants
            f" AND position IN ({self._db.numbers_in('positions')})",
            {"device": device, "positions": joined(found)},
        )
        return bool(found)

    def _remove_rollups(self, device: DeviceKey, limit: int) -> bool:
        """Remove the next buckets of the next field and level; return whether there were any."""
        first = self._db.execute(
            "SELECT field, level, bucket FROM rollup WHERE device = :device ORDER BY field, level, bucket LIMIT 1",
            {"device": device},
        ).one()
        if first is None:
            return False
        of_series = {"device": device, "field": first["field"], "level": first["level"], "limit": limit}
        self._db.execute(
            "DELETE FROM rollup WHERE device = :device AND field = :field AND level = :level AND bucket <="
            " (SELECT max(bucket) FROM (SELECT bucket FROM rollup WHERE device = :device AND field = :field"
            " AND level = :level ORDER BY bucket LIMIT :limit) AS oldest)",
            of_series,
        )
        return True
