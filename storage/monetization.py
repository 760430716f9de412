"""Monetization: plans, their tiers, the tier of each device, and payments. The caller holds the transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

from storage.keys import DeviceKey, DeviceTypeKey
from storage.records import PaymentRecord, PlanRecord, TierRecord, UpgradeTokenRecord
from storage.sql import Store, record_values, sure

_TIER = ", ".join(f"t.{name}" for name in TierRecord.__struct_fields__)
# The free tier that a device without a tier of its own is on.
_LATEST_FREE = (
    "SELECT p.device_type, t.key AS tier, t.message_limit FROM monetization_plan AS p"
    " JOIN monetization_tier AS t ON t.plan = p.key AND t.type = 'free'"
    " WHERE p.status = 'APPROVED' AND p.version = (SELECT max(newest.version) FROM monetization_plan AS newest"
    " WHERE newest.device_type = p.device_type AND newest.status = 'APPROVED')"
)


class MonetizationStore(Store):
    # Plans

    def approved_version(self, device_type: DeviceTypeKey) -> int | None:
        """The version of the type's latest approved plan."""
        row = self._db.execute(
            "SELECT max(version) AS version FROM monetization_plan WHERE device_type = :type AND status = 'APPROVED'",
            {"type": device_type},
        ).one()
        return None if row is None else row["version"]

    def add_plan(self, plan: PlanRecord, tiers: Sequence[TierRecord]) -> PlanRecord:
        """Add the next version of the type's plan. The store gives `key`, `version` and the tiers' `key` and `plan`."""
        row = self._db.execute(
            "INSERT INTO monetization_plan (id, device_type, version, status, contact_email, contact_phone, comments,"
            " revenue_share_percent, created_on, modified_on) VALUES (:id, :device_type,"
            " (SELECT coalesce(max(version), 0) + 1 FROM monetization_plan WHERE device_type = :device_type),"
            " :status, :contact_email, :contact_phone, :comments, :revenue_share_percent, :created_on, :modified_on)"
            " RETURNING *",
            record_values(plan),
        ).one()
        added = PlanRecord(**dict(sure(row)))
        for tier in tiers:
            self._insert(
                "monetization_tier", record_values(tier, TierRecord.__struct_fields__[1:]) | {"plan": added.key}
            )
        return added

    def plans(self, device_type: DeviceTypeKey) -> list[PlanRecord]:
        """The plans of a type, newest first."""
        rows = self._db.execute(
            "SELECT * FROM monetization_plan WHERE device_type = :device_type ORDER BY version DESC",
            {"device_type": device_type},
        )
        return [PlanRecord(**dict(row)) for row in rows]

    def plan_version(self, device_type: DeviceTypeKey, version: int) -> PlanRecord | None:
        row = self._db.execute(
            "SELECT * FROM monetization_plan WHERE device_type = :device_type AND version = :version",
            {"device_type": device_type, "version": version},
        ).one()
        return PlanRecord(**dict(row)) if row else None

    def plan(self, key: int) -> PlanRecord | None:
        row = self._db.execute("SELECT * FROM monetization_plan WHERE key = :key", {"key": key}).one()
        return PlanRecord(**dict(row)) if row else None

    def undecided_plans(self) -> list[PlanRecord]:
        rows = self._db.execute("SELECT * FROM monetization_plan WHERE status IN ('NEW', 'PENDING') ORDER BY key")
        return [PlanRecord(**dict(row)) for row in rows]

    def set_plan_status(self, plan: int, status: str, comments: str, *, now_ms: int) -> None:
        self._db.execute(
            "UPDATE monetization_plan SET status = :status, comments = :comments, modified_on = :now WHERE key = :plan",
            {"plan": plan, "status": status, "comments": comments, "now": now_ms},
        )

    # Tiers

    def tiers(self, plan: int) -> list[TierRecord]:
        """The tiers of a plan, free ones first."""
        rows = self._db.execute("SELECT * FROM monetization_tier WHERE plan = :plan ORDER BY type, key", {"plan": plan})
        return [TierRecord(**dict(row)) for row in rows]

    def tier(self, key: int) -> TierRecord | None:
        row = self._db.execute("SELECT * FROM monetization_tier WHERE key = :key", {"key": key}).one()
        return TierRecord(**dict(row)) if row else None

    def tier_of(self, device: DeviceKey) -> TierRecord | None:
        """The active tier of a device; None for a device that is on no plan."""
        row = self._db.execute(
            f"SELECT {_TIER} FROM device AS d LEFT JOIN device_tier AS own ON own.device = d.key"  # noqa: S608 - constants
            f" LEFT JOIN ({_LATEST_FREE}) AS free ON free.device_type = d.device_type"
            " JOIN monetization_tier AS t ON t.key = coalesce(own.tier, free.tier) WHERE d.key = :device",
            {"device": device},
        ).one()
        return TierRecord(**dict(row)) if row else None

    def set_tier(self, device: DeviceKey, tier: int, *, now_ms: int) -> None:
        self._insert(
            "device_tier",
            {"device": device, "tier": tier, "since": now_ms},
            "ON CONFLICT (device) DO UPDATE SET tier = excluded.tier, since = excluded.since",
        )

    def keep_tiers(self, device_type: DeviceTypeKey, *, now_ms: int) -> None:
        """Save the tier of every device of the type: a newer plan must not move existing devices."""
        self._db.execute(
            "INSERT INTO device_tier (device, tier, since) SELECT d.key, free.tier, :now FROM device AS d"  # noqa: S608
            f" JOIN ({_LATEST_FREE}) AS free ON free.device_type = d.device_type"
            " WHERE d.device_type = :device_type ON CONFLICT (device) DO NOTHING",
            {"device_type": device_type, "now": now_ms},
        )

    def limits(self, device_type: DeviceTypeKey | None = None) -> dict[DeviceKey, int]:
        """Messages a day of every device that is on a plan, or of those of one type; -1 on a paid tier."""
        condition = "" if device_type is None else " AND d.device_type = :device_type"
        rows = self._db.execute(
            "SELECT d.key, CASE t.type WHEN 'paid' THEN -1 ELSE coalesce(t.message_limit, free.message_limit) END"  # noqa: S608
            " AS message_limit FROM device AS d"
            " LEFT JOIN device_tier AS own ON own.device = d.key LEFT JOIN monetization_tier AS t ON t.key = own.tier"
            f" LEFT JOIN ({_LATEST_FREE}) AS free ON free.device_type = d.device_type"
            f" WHERE d.deleted_on IS NULL AND coalesce(t.key, free.tier) IS NOT NULL{condition}",
            {"device_type": device_type},
        )
        return {row["key"]: row["message_limit"] for row in rows}

    # Upgrades and payments

    def add_upgrade_token(self, token: UpgradeTokenRecord) -> None:
        self._db.execute(
            "DELETE FROM upgrade_token WHERE expires_on < :expires - 86400000", {"expires": token.expires_on}
        )
        self._insert("upgrade_token", record_values(token))

    def upgrade_token(self, hash_: bytes) -> UpgradeTokenRecord | None:
        row = self._db.execute("SELECT * FROM upgrade_token WHERE hash = :hash", {"hash": hash_}).one()
        return UpgradeTokenRecord(**dict(row)) if row else None

    def use_upgrade_token(self, hash_: bytes, *, now_ms: int) -> None:
        self._db.execute("UPDATE upgrade_token SET used_on = :now WHERE hash = :hash", {"hash": hash_, "now": now_ms})

    def add_payment(self, payment: PaymentRecord) -> None:
        self._insert("payment", record_values(payment))

    def payment(self, id_: str) -> PaymentRecord | None:
        return self._payment("id = :value", id_)

    def payment_by_code(self, hash_: bytes) -> PaymentRecord | None:
        return self._payment("code_hash = :value", hash_)

    def _payment(self, condition: str, value: object) -> PaymentRecord | None:
        row = self._db.execute(f"SELECT * FROM payment WHERE {condition}", {"value": value}).one()  # noqa: S608 - constants
        return _payment(row) if row else None

    def payments_in(self, status: str, *, limit: int) -> list[PaymentRecord]:
        """The payments in this status, oldest first."""
        rows = self._db.execute(
            "SELECT * FROM payment WHERE status = :status ORDER BY key LIMIT :limit", {"status": status, "limit": limit}
        )
        return [_payment(row) for row in rows]

    def payments_of(self, device: DeviceKey, status: str) -> list[PaymentRecord]:
        rows = self._db.execute(
            "SELECT * FROM payment WHERE device = :device AND status = :status ORDER BY key",
            {"device": device, "status": status},
        )
        return [_payment(row) for row in rows]

    def has_paid(self, device: DeviceKey, tier: int) -> bool:
        row = self._db.execute(
            "SELECT key FROM payment WHERE device = :device AND tier = :tier AND status = 'accepted' LIMIT 1",
            {"device": device, "tier": tier},
        ).one()
        return row is not None

    def set_external_id(self, id_: str, external_id: str) -> bool:
        """Return False when the payment is decided already."""
        row = self._db.execute(
            "UPDATE payment SET external_id = :value WHERE id = :id AND status = 'pending' RETURNING key",
            {"id": id_, "value": external_id},
        ).one()
        return row is not None

    def set_return_address(self, id_: str, code_hash: bytes, redirect_uri: str) -> None:
        """Set the address and the code of the browser that waits for the payment from now on."""
        self._db.execute(
            "UPDATE payment SET code_hash = :hash, redirect_uri = :redirect_uri WHERE id = :id",
            {"id": id_, "hash": code_hash, "redirect_uri": redirect_uri},
        )

    def decide_payment(self, id_: str, status: str, *, now_ms: int) -> None:
        self._db.execute(
            "UPDATE payment SET status = :status, decided_on = :now WHERE id = :id",
            {"id": id_, "status": status, "now": now_ms},
        )


def _payment(row: Mapping[str, Any]) -> PaymentRecord:
    return PaymentRecord(**{name: row[name] for name in PaymentRecord.__struct_fields__})
