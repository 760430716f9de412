"""Secure registrations, and the authorities of device types. The caller holds the transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, UserKey
from storage.records import RegistrationRecord
from storage.sql import Store, record_values

_SELECT = (
    "SELECT r.*, t.id AS device_type_id, d.id AS device_id FROM registration AS r"
    " JOIN device_type AS t ON t.key = r.device_type"
    " LEFT JOIN device AS d ON d.key = r.device AND d.deleted_on IS NULL WHERE "
)

_WRITTEN = (
    "id", "device_type", "vendor_device_id", "certificate", "certificate_hash", "nonce_hash", "status", "created_on",
    "expires_on",
)  # fmt: skip


class RegistrationStore(Store):
    def by_id(self, id_: str) -> RegistrationRecord | None:
        return self._one("r.id = :value", {"value": id_})

    def by_pin(self, pin: str) -> RegistrationRecord | None:
        return self._one("r.pin = :value", {"value": pin})

    def of_device(self, device: DeviceKey) -> RegistrationRecord | None:
        """The latest registration of this device."""
        return self._one("r.device = :value ORDER BY r.key DESC LIMIT 1", {"value": device})

    def pending(self, device_type: DeviceTypeKey, vendor_device_id: str, *, now_ms: int) -> RegistrationRecord | None:
        """The pending registration of this vendor id."""
        return self._one(
            "r.device_type = :device_type AND r.vendor_device_id = :vendor_device_id"
            " AND r.status IN ('PENDING_USER_CONFIRMATION', 'PENDING_DEVICE_COMPLETION') AND r.expires_on > :now",
            {"device_type": device_type, "vendor_device_id": vendor_device_id, "now": now_ms},
        )

    def _one(self, condition: str, parameters: Mapping[str, object]) -> RegistrationRecord | None:
        row = self._db.execute(_SELECT + condition, parameters).one()
        return _registration(row) if row else None

    def add(self, registration: RegistrationRecord, *, pin: str) -> None:
        self._insert("registration", record_values(registration, _WRITTEN) | {"pin": pin})

    def confirm(self, id_: str, *, user: UserKey | None, application: ApplicationKey | None, device: DeviceKey) -> None:
        """Note the user who entered the PIN; the PIN cannot be used again."""
        self._db.execute(
            "UPDATE registration SET pin = NULL, status = 'PENDING_DEVICE_COMPLETION', user = :user,"
            " application = :application, device = :device WHERE id = :id",
            {"id": id_, "user": user, "application": application, "device": device},
        )

    def end(self, id_: str, status: str) -> None:
        self._db.execute(
            "UPDATE registration SET pin = NULL, status = :status WHERE id = :id", {"id": id_, "status": status}
        )

    def expire_pending_of(self, certificate_hash: bytes) -> None:
        """Expire the pending registrations of a device that begins a new one."""
        self._db.execute(
            "UPDATE registration SET pin = NULL, status = 'EXPIRED' WHERE certificate_hash = :hash"
            " AND status IN ('PENDING_USER_CONFIRMATION', 'PENDING_DEVICE_COMPLETION')",
            {"hash": certificate_hash},
        )

    def revoke_of_device(self, device: DeviceKey) -> int:
        """End what is registered or pending for the device; return the number of ended registrations."""
        rows = self._db.execute(
            "UPDATE registration SET pin = NULL, status = 'REVOKED' WHERE device = :device"
            " AND status IN ('PENDING_DEVICE_COMPLETION', 'REGISTERED') RETURNING key",
            {"device": device},
        )
        return len(list(rows))

    def release_pins(self, *, now_ms: int) -> None:
        """Release the PINs of expired registrations, so that a new registration may have the same PIN."""
        self._db.execute(
            "UPDATE registration SET pin = NULL WHERE pin IS NOT NULL AND expires_on <= :now", {"now": now_ms}
        )

    def purge(self, *, created_before_ms: int, limit: int) -> None:
        """Remove old registrations without a device, or whose device is gone."""
        self._db.execute(
            "DELETE FROM registration WHERE key IN (SELECT key FROM registration WHERE created_on < :before"
            " AND (status <> 'REGISTERED' OR device IS NULL) LIMIT :limit)",
            {"before": created_before_ms, "limit": limit},
        )

    def is_certificate_used(self, certificate_hash: bytes) -> bool:
        """Whether an existing device is registered with the certificate."""
        row = self._db.execute(
            "SELECT 1 FROM registration AS r JOIN device AS d ON d.key = r.device AND d.deleted_on IS NULL"
            " WHERE r.certificate_hash = :hash AND r.status = 'REGISTERED'",
            {"hash": certificate_hash},
        ).one()
        return row is not None

    # Authorities

    def authorities(self, device_type: DeviceTypeKey) -> tuple[bytes, ...]:
        rows = self._db.execute(
            "SELECT certificate FROM certificate_authority WHERE device_type = :device_type ORDER BY key",
            {"device_type": device_type},
        )
        return tuple(row["certificate"] for row in rows)

    def all_authorities(self) -> dict[DeviceTypeKey, list[bytes]]:
        """The authorities of every device type, by its key."""
        found: dict[DeviceTypeKey, list[bytes]] = {}
        for row in self._db.execute("SELECT device_type, certificate FROM certificate_authority ORDER BY key"):
            found.setdefault(row["device_type"], []).append(row["certificate"])
        return found

    def put_authorities(
        self, device_type: DeviceTypeKey, certificates: Sequence[bytes], *, issuer_dn: str | None
    ) -> None:
        """Replace the authorities of a device type; `issuer_dn` is that of the first authority."""
        self._db.execute("DELETE FROM certificate_authority WHERE device_type = :key", {"key": device_type})
        for certificate in certificates:
            self._insert("certificate_authority", {"device_type": device_type, "certificate": certificate})
        self._db.execute(
            "UPDATE device_type SET issuer_dn = :issuer_dn WHERE key = :key",
            {"key": device_type, "issuer_dn": issuer_dn},
        )


def _registration(row: Mapping[str, Any]) -> RegistrationRecord:
    return RegistrationRecord(
        id=row["id"],
        device_type=row["device_type"],
        device_type_id=row["device_type_id"],
        vendor_device_id=row["vendor_device_id"],
        certificate=row["certificate"],
        certificate_hash=row["certificate_hash"],
        nonce_hash=row["nonce_hash"],
        status=row["status"],
        user=row["user"],
        application=row["application"],
        device=row["device"],
        device_id=row["device_id"],
        created_on=row["created_on"],
        expires_on=row["expires_on"],
    )
