"""Devices that are offered to another user for good. The caller holds the transaction."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from config.mail import folded_address
from storage.keys import DeviceKey, Milliseconds, UserKey
from storage.sql import Store

#: Tables whose rows end when a device gets another owner: they are the former owner's, or given by the former owner.
_OF_THE_OWNER: Final = (
    "device_transfer",
    "device_share",
    "trial_device",
    "upgrade_token",
    "connector_state",
    "wanted",
    "alarm",
)


class TransferRecord(msgspec.Struct, frozen=True):
    """An offer to `user`, or without one to the holder of the address. `uid`: the user id by which it was made."""

    device: DeviceKey
    id: str
    email: str
    user: UserKey | None
    uid: str | None
    offered_on: Milliseconds
    expires_on: Milliseconds


class OfferedDevice(msgspec.Struct, frozen=True):
    """An offer as the user sees it to whom it was made."""

    transfer: TransferRecord
    device_id: str
    device_name: str
    owner_id: str
    owner_name: str


_NAMES: Final = TransferRecord.__struct_fields__
_OPEN: Final = (
    " FROM device_transfer AS t JOIN device AS d ON d.key = t.device AND d.deleted_on IS NULL"
    " JOIN user AS u ON u.key = d.owner WHERE t.expires_on > :now"
)


class TransferStore(Store):
    def put(self, transfer: TransferRecord, *, now_ms: int) -> None:
        """Add an offer, or replace the one of the device. Expired offers are deleted."""
        self._db.execute("DELETE FROM device_transfer WHERE expires_on <= :now", {"now": now_ms})
        values = [*(getattr(transfer, name) for name in _NAMES), folded_address(transfer.email)]
        self._db.put_many("device_transfer", (*_NAMES, "email_key"), ("device",), [values])

    def of_device(self, device: DeviceKey, *, now_ms: int) -> TransferRecord | None:
        row = self._db.execute(
            f"SELECT t.*{_OPEN} AND t.device = :device",
            {"device": device, "now": now_ms},
        ).one()
        return None if row is None else _transfer(row)

    def count_of_owner(self, owner: UserKey, *, now_ms: int) -> int:
        row = self._db.execute(
            f"SELECT count(*) AS n{_OPEN} AND d.owner = :owner",
            {"owner": owner, "now": now_ms},
        ).one()
        return int(row["n"]) if row else 0

    def offered_to(self, user: UserKey, email: str, *, now_ms: int, limit: int) -> list[OfferedDevice]:
        """Up to `limit` offers to the user, or to the address where they name no user: oldest first, owners in turn."""
        rows = self._db.execute(
            "SELECT * FROM (SELECT t.*, d.id AS device_id, d.name AS device_name, u.id AS owner_id,"  # noqa: S608 - constants
            " u.full_name AS owner_name, row_number() OVER (PARTITION BY d.owner ORDER BY t.offered_on, t.device)"
            " AS turn" + _OPEN + " AND (t.user = :user OR (t.user IS NULL AND t.email_key = :email))) AS offered"
            " ORDER BY turn, offered_on, device LIMIT :limit",
            {"user": user, "email": folded_address(email) if email else "", "now": now_ms, "limit": limit},
        )
        offered = [
            OfferedDevice(_transfer(row), row["device_id"], row["device_name"], row["owner_id"], row["owner_name"])
            for row in rows
        ]
        return sorted(offered, key=lambda one: (one.transfer.offered_on, one.transfer.device))

    def made_by(self, owner: UserKey, *, now_ms: int) -> list[TransferRecord]:
        rows = self._db.execute(
            f"SELECT t.*{_OPEN} AND d.owner = :owner ORDER BY t.offered_on, t.device",
            {"owner": owner, "now": now_ms},
        )
        return [_transfer(row) for row in rows]

    def remove(self, device: DeviceKey) -> None:
        self._db.execute("DELETE FROM device_transfer WHERE device = :device", {"device": device})

    def hand_over(self, device: DeviceKey, owner: UserKey) -> list[bytes]:
        """Give a device another owner, without what the former one gave to others.

        Returns the hash of its token, if that ended: a trial's application made it.
        """
        for table in _OF_THE_OWNER:
            self._db.execute(f"DELETE FROM {table} WHERE device = :device", {"device": device})  # noqa: S608 - constants
        self._db.execute("UPDATE device SET owner = :owner WHERE key = :device", {"owner": owner, "device": device})
        self._db.execute("UPDATE device_label SET is_open = 0 WHERE device = :device", {"device": device})
        # The former owner's edge neither fills it any more nor gets its Actions, also when it comes back.
        self._db.execute("UPDATE edge_device SET device = NULL WHERE device = :device", {"device": device})
        # Otherwise whoever began a registration could complete it with the former owner's device, and get the token.
        self._db.execute(
            "UPDATE registration SET pin = NULL, status = 'REVOKED' WHERE device = :device"
            " AND status = 'PENDING_DEVICE_COMPLETION'",
            {"device": device},
        )
        rows = self._db.execute(
            "DELETE FROM device_token WHERE device = :device AND application IN (SELECT application FROM trial)"
            " RETURNING hash",
            {"device": device},
        )
        return [row["hash"] for row in rows]


def _transfer(row: Mapping[str, Any]) -> TransferRecord:
    return TransferRecord(**{name: row[name] for name in _NAMES})
