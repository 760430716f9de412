"""How types are managed, and the properties of devices. The caller holds the transaction."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds
from storage.sql import Store


class ManagementRecord(msgspec.Struct, frozen=True):
    """How the devices of a type are managed (reference 15.1). `pmin`, `pmax` and `task_expires_after` are seconds."""

    device_type: DeviceTypeKey
    device_properties_enabled: bool
    pmin: int
    pmax: int
    task_expires_after: int
    created_on: Milliseconds
    modified_on: Milliseconds


class PropertySetRecord(msgspec.Struct, frozen=True):
    """Properties of a device. Values are nested JSON, times are JSON by the dotted path of the leaf."""

    device: DeviceKey
    server: str = "{}"
    server_times: str = "{}"
    reported: str = "{}"
    reported_times: str = "{}"
    registered_on: Milliseconds | None = None  # its first registration for device management


class PropertyMatch(msgspec.Struct, frozen=True):
    """One condition of a filter: a property of `kind` (`system`, `server` or `reported`) at a dotted path."""

    kind: str
    path: str
    value: str


_MANAGEMENT = ManagementRecord.__struct_fields__
_SET = PropertySetRecord.__struct_fields__
_FROM = (
    " FROM device AS d LEFT JOIN property_set AS p ON p.device = d.key LEFT JOIN presence AS s ON s.device = d.key"
    " WHERE d.device_type = :device_type AND d.deleted_on IS NULL"
)
_COLUMNS: Mapping[str, str] = {
    "did": "d.id",
    "createdOn": "d.created_on",
    "connection.connected": "s.is_connected",
    "connection.protocol": "s.protocol",
    "connection.lastSeenOn": "s.last_seen_on",
}


class DeviceManagementStore(Store):
    # Types

    def management(self, device_type: DeviceTypeKey) -> ManagementRecord | None:
        row = self._db.execute("SELECT * FROM management WHERE device_type = :key", {"key": device_type}).one()
        if row is None:
            return None
        values = {name: row[name] for name in _MANAGEMENT}
        values["device_properties_enabled"] = bool(values["device_properties_enabled"])
        return ManagementRecord(**values)

    def put_management(self, management: ManagementRecord) -> None:
        values = [int(getattr(management, name)) for name in _MANAGEMENT]
        self._db.put_many("management", _MANAGEMENT, ("device_type",), [values])

    # Properties

    def properties(self, device: DeviceKey) -> PropertySetRecord | None:
        row = self._db.execute("SELECT * FROM property_set WHERE device = :device", {"device": device}).one()
        return _set(row) if row else None

    def put_properties(self, properties: PropertySetRecord) -> None:
        values = [getattr(properties, name) for name in _SET]
        self._db.put_many("property_set", _SET, ("device",), [values])

    def matching(
        self, device_type: DeviceTypeKey, matches: Sequence[PropertyMatch], *, offset: int, limit: int
    ) -> tuple[list[tuple[DeviceKey, PropertySetRecord]], int]:
        """A page of the type's devices that fit every condition, in the order of their creation; the number of all."""
        conditions, parameters = self._conditions(device_type, matches)
        rows = self._db.execute(
            f"SELECT d.key AS found, p.*{_FROM}{conditions} ORDER BY d.created_on, d.id LIMIT :limit OFFSET :offset",
            parameters | {"limit": limit, "offset": offset},
        )
        found = [
            (row["found"], PropertySetRecord(row["found"]) if row["device"] is None else _set(row)) for row in rows
        ]
        counted = self._db.execute(f"SELECT count(*) AS count{_FROM}{conditions}", parameters).one()
        return found, int(counted["count"]) if counted else 0

    def add_device_tasks(
        self, task: int, device_type: DeviceTypeKey, matches: Sequence[PropertyMatch], *, acceptance: str, now_ms: int
    ) -> None:
        """Give the task an entry for each of the type's devices that fits every condition."""
        conditions, parameters = self._conditions(device_type, matches)
        self._db.execute(
            "INSERT INTO device_task (task, device, status, ts, attempts, acceptance, step, tries, restarts, fetched)"
            f" SELECT :task, d.key, 'REQUESTED', :now, 0, :acceptance, '', 0, 0, 0{_FROM}{conditions}"
            " ORDER BY d.created_on, d.id",
            parameters | {"task": task, "acceptance": acceptance, "now": now_ms},
        )

    def _conditions(
        self, device_type: DeviceTypeKey, matches: Sequence[PropertyMatch]
    ) -> tuple[str, dict[str, object]]:
        parameters: dict[str, object] = {"device_type": device_type}
        conditions = ""
        for index, match in enumerate(matches):
            path, text, number = f"path{index}", f"text{index}", f"number{index}"
            if match.kind == "system":
                column = _COLUMNS.get(match.path, "NULL")
                value = {"true": "1", "false": "0"}.get(match.value, "") if match.path.endswith("connected") else None
                conditions += f" AND CAST({column} AS TEXT) = :{text}"
                parameters[text] = match.value if value is None else value
            else:
                conditions += f" AND {self._db.json_matches(f'p.{match.kind}', path, text, number)}"
                parameters |= {path: match.path, text: match.value, number: _number(match.value)}
        return conditions, parameters

    def registered_on(self, devices: Sequence[DeviceKey]) -> dict[DeviceKey, Milliseconds]:
        """When each of the devices first registered for device management. Devices that never did are left out."""
        rows = self._db.execute(
            "SELECT device, registered_on FROM property_set WHERE registered_on IS NOT NULL"  # noqa: S608 - constants
            f" AND device IN ({self._db.numbers_in('devices')})",
            {"devices": json.dumps(list(devices))},
        )
        return {row["device"]: row["registered_on"] for row in rows}


def _number(text: str) -> str | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return text.strip() if number == number and abs(number) != float("inf") else None  # noqa: PLR0124 - not NaN


def _set(row: Mapping[str, Any]) -> PropertySetRecord:
    return PropertySetRecord(**{name: row[name] for name in _SET})
