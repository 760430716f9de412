"""Registrations of LWM2M, of several nodes (reference 27.25). The caller holds the transaction.

Only the node that serves a registration changes its row, with the number that it gave it: another one that has taken
the device over since has its own number in the row, and nothing is changed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from storage.keys import DeviceKey, Milliseconds, OrganizationKey, Position
from storage.sql import Store, record_values


class Lwm2mRegistrationRecord(msgspec.Struct, frozen=True):
    """A registration. `unobserved`, why resources are not observed, by path, and `offers`, paths, are JSON."""

    device: DeviceKey
    node: str
    number: int
    since: Milliseconds
    ended_on: Milliseconds | None
    has_queue_mode: bool
    is_ready: bool
    unobserved: str
    offers: str
    actions_after: Position
    actions_until: Position | None


class EndedActionRecord(msgspec.Struct, frozen=True):
    """An Action that was carried out or has failed."""

    device: DeviceKey
    position: Position
    mid: str
    name: str
    at_ms: Milliseconds
    state: str
    text: str


_REGISTRATION = Lwm2mRegistrationRecord.__struct_fields__
_ACTION = EndedActionRecord.__struct_fields__
_OF = " WHERE device = :device AND node = :node AND number = :number"


class Lwm2mStore(Store):
    def registration(self, device: DeviceKey) -> Lwm2mRegistrationRecord | None:
        return self.registrations([device]).get(device)

    def registrations(self, devices: Sequence[DeviceKey]) -> dict[DeviceKey, Lwm2mRegistrationRecord]:
        rows = self._db.execute(
            f"SELECT * FROM lwm2m_registration WHERE device IN ({self._db.numbers_in('devices')})",  # noqa: S608 - of the engine
            {"devices": f"[{','.join(map(str, devices))}]"},
        )
        return {row["device"]: _registration(row) for row in rows}

    def of_organization(self, organization: OrganizationKey, *, limit: int) -> list[Lwm2mRegistrationRecord]:
        """Registrations of devices of the organization's types that have not ended, the last ones first."""
        rows = self._db.execute(
            "SELECT r.* FROM lwm2m_registration AS r JOIN device AS d ON d.key = r.device"
            " JOIN device_type AS t ON t.key = d.device_type WHERE t.organization = :organization"
            " AND r.ended_on IS NULL AND r.is_ready = 1 AND d.deleted_on IS NULL ORDER BY r.since DESC LIMIT :limit",
            {"organization": organization, "limit": limit},
        )
        return [_registration(row) for row in rows]

    def put(self, record: Lwm2mRegistrationRecord) -> None:
        self._db.put_many(
            "lwm2m_registration", _REGISTRATION, ("device",), [[_value(record, name) for name in _REGISTRATION]]
        )

    def is_held(self, device: DeviceKey, node: str, number: int) -> bool:
        row = self._db.execute(
            f"SELECT 1 AS held FROM lwm2m_registration{_OF} AND ended_on IS NULL",  # noqa: S608 - constants
            {"device": device, "node": node, "number": number},
        ).one()
        return row is not None

    def change(self, device: DeviceKey, node: str, number: int, **values: Any) -> bool:
        """Change columns of a registration; False: another one has taken its place."""
        assignments = ", ".join(f"{name} = :{name}" for name in values)
        row = self._db.execute(
            f"UPDATE lwm2m_registration SET {assignments}{_OF} RETURNING device",  # noqa: S608 - columns
            {"device": device, "node": node, "number": number, **values},
        ).one()
        return row is not None

    def is_of(self, device: DeviceKey, node: str, number: int) -> bool:
        """Whether it is the latest one of the device; it may have ended."""
        row = self._db.execute(
            f"SELECT 1 AS found FROM lwm2m_registration{_OF}",  # noqa: S608 - constants
            {"device": device, "node": node, "number": number},
        ).one()
        return row is not None

    def took(self, device: DeviceKey, node: str, number: int, position: Position) -> bool:
        """Actions up to here wait, or have ended. False: another one has taken its place."""
        row = self._db.execute(
            "UPDATE lwm2m_registration SET actions_after = CASE WHEN actions_after < :position THEN :position"  # noqa: S608 - constants
            f" ELSE actions_after END{_OF} RETURNING device",
            {"device": device, "node": node, "number": number, "position": position},
        ).one()
        return row is not None

    def end_all(self, node: str, *, now_ms: Milliseconds, head: Position) -> None:
        """A node has gone, or begins."""
        self._db.execute(
            "UPDATE lwm2m_registration SET ended_on = :now, actions_until = :head, is_ready = 0"
            " WHERE node = :node AND ended_on IS NULL",
            {"node": node, "now": now_ms, "head": head},
        )

    def forget_all(self) -> None:
        """This daemon is the only one on the store from now on, and keeps registrations in memory."""
        self._db.execute("DELETE FROM lwm2m_registration")
        self._db.execute("DELETE FROM lwm2m_ended_action")

    # Actions

    def ended(self, device: DeviceKey) -> list[EndedActionRecord]:
        """The last ones that have ended, in the order in which they did."""
        rows = self._db.execute(
            "SELECT * FROM lwm2m_ended_action WHERE device = :device ORDER BY at_ms, position", {"device": device}
        )
        return [EndedActionRecord(**{name: row[name] for name in _ACTION}) for row in rows]

    def put_ended(self, record: EndedActionRecord, *, kept: int) -> None:
        """Add one that has ended; the oldest beyond `kept` go."""
        names = record_values(record, _ACTION)
        self._insert("lwm2m_ended_action", names, "ON CONFLICT (device, position) DO NOTHING")
        self._db.execute(
            "DELETE FROM lwm2m_ended_action WHERE device = :device AND position IN"
            " (SELECT position FROM lwm2m_ended_action"
            " WHERE device = :device ORDER BY at_ms DESC, position DESC LIMIT 1000 OFFSET :kept)",
            {"device": record.device, "kept": kept},
        )

    def forget_actions(self, device: DeviceKey, head: Position) -> None:
        """The device has another owner, who has sent none of its Actions up to here."""
        self._db.execute("DELETE FROM lwm2m_ended_action WHERE device = :device", {"device": device})
        self._db.execute(
            "UPDATE lwm2m_registration SET actions_after = :head WHERE device = :device",
            {"device": device, "head": head},
        )


def _registration(row: Mapping[str, Any]) -> Lwm2mRegistrationRecord:
    values = {name: row[name] for name in _REGISTRATION}
    return Lwm2mRegistrationRecord(**values | {name: bool(values[name]) for name in ("has_queue_mode", "is_ready")})


def _value(record: Lwm2mRegistrationRecord, name: str) -> Any:
    value = getattr(record, name)
    return int(value) if isinstance(value, bool) else value
