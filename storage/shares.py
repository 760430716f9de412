"""Shares of devices: offers and acceptances. The caller holds the transaction.

The shares of a deleted device are kept with the device, but no query returns them.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from config.mail import folded_address
from storage.keys import DeviceKey, DeviceTypeKey, UserKey
from storage.records import ShareRecord
from storage.sql import Store, record_values, replacing

_FROM = " FROM device_share AS s JOIN device AS d ON d.key = s.device AND d.deleted_on IS NULL WHERE "
_SELECT = f"SELECT s.*{_FROM}"
# A share is offered to the user it names; without one, to the user who has its address.
_OFFERED_TO = "(s.user = :user OR (s.user IS NULL AND s.email_key = :email))"


class OfferRow(msgspec.Struct, frozen=True):
    """A share as shown to the user to whom the device is offered."""

    share: ShareRecord
    device_id: str
    device_name: str
    owner_id: str
    owner_name: str


class ShareStore(Store):
    def by_id(self, id_: str) -> ShareRecord | None:
        return self._one("s.id = :value", {"value": id_})

    def by_code(self, code_hash: bytes) -> ShareRecord | None:
        return self._one("s.code_hash = :value", {"value": code_hash})

    def accepted_by(self, user: UserKey, device: DeviceKey) -> ShareRecord | None:
        condition = "s.device = :device AND s.user = :user AND s.status = 'ACCEPTED'"
        return self._one(condition, {"device": device, "user": user})

    def standing(self, device: DeviceKey, email: str, user: UserKey | None) -> ShareRecord | None:
        """A share that this user has not refused, sent to the user's present address or to an earlier one."""
        return self._one(
            "s.device = :device AND s.status <> 'REJECTED' AND (s.email_key = :email OR s.user = :user)",
            {"device": device, "user": user, "email": folded_address(email)},
        )

    def _one(self, condition: str, parameters: Mapping[str, object]) -> ShareRecord | None:
        row = self._db.execute(_SELECT + condition, parameters).one()
        return _share(row) if row else None

    def users_of(self, device: DeviceKey) -> frozenset[UserKey]:
        """The keys of the users who accepted a share of the device."""
        rows = self._db.execute(
            "SELECT user FROM device_share WHERE device = :device AND status = 'ACCEPTED'", {"device": device}
        )
        return frozenset(row["user"] for row in rows)

    def count_standing(self, device: DeviceKey) -> int:
        """The number of the device's shares that are not refused."""
        row = self._db.execute(
            "SELECT count(*) AS count FROM device_share WHERE device = :device AND status <> 'REJECTED'",
            {"device": device},
        ).one()
        return int(row["count"]) if row else 0

    def page_of(self, device: DeviceKey, *, offset: int, limit: int) -> tuple[list[ShareRecord], int]:
        """A page of a device's shares, oldest first, and the number of all."""
        parameters = {"device": device, "offset": offset, "limit": limit}
        rows = self._db.execute(f"{_SELECT}s.device = :device ORDER BY s.key LIMIT :limit OFFSET :offset", parameters)
        return [_share(row) for row in rows], self._number_of(f"{_FROM}s.device = :device", parameters)

    def types_offered_to(self, user: UserKey, email: str) -> set[DeviceTypeKey]:
        """The types of the devices that are, or were, offered to this user."""
        rows = self._db.execute(
            f"SELECT DISTINCT d.device_type{_FROM}{_OFFERED_TO}",
            {"user": user, "email": folded_address(email)},
        )
        return {row["device_type"] for row in rows}

    def offered_to(
        self,
        user: UserKey,
        email: str,
        *,
        statuses: Collection[str],
        types: Collection[DeviceTypeKey],
        offset: int,
        limit: int,
    ) -> tuple[list[OfferRow], int]:
        """A page of the shares of devices of these types that are offered to this user, oldest first; and how many."""
        named: dict[str, object] = {f"status_{index}": status for index, status in enumerate(statuses)}
        condition = f"{_OFFERED_TO} AND s.status IN ({', '.join(f':{name}' for name in named)})"
        of_types = {f"type_{index}": key for index, key in enumerate(types)}
        condition += f" AND d.device_type IN ({', '.join(f':{name}' for name in of_types)})"
        named |= of_types
        parameters = {"user": user, "email": folded_address(email), "offset": offset, "limit": limit, **named}
        rows = self._db.execute(
            "SELECT s.*, d.id AS device_id, d.name AS device_name,"  # noqa: S608 - constants
            " (SELECT u.id FROM user AS u WHERE u.key = d.owner) AS owner_id,"
            f" (SELECT u.full_name FROM user AS u WHERE u.key = d.owner) AS owner_name{_FROM}{condition}"
            " ORDER BY s.key LIMIT :limit OFFSET :offset",
            parameters,
        )
        found = [
            OfferRow(_share(row), row["device_id"], row["device_name"], row["owner_id"], row["owner_name"])
            for row in rows
        ]
        return found, self._number_of(_FROM + condition, parameters)

    def remove_all_of(self, user: UserKey) -> list[DeviceKey]:
        """Remove the shares of a user's devices and those with the user, and offers to hand over such devices.

        Returns the devices of others that were shared.
        """
        self._db.execute(
            "DELETE FROM device_transfer WHERE user = :user OR device IN (SELECT key FROM device WHERE owner = :user)",
            {"user": user},
        )
        self._db.execute(
            "DELETE FROM device_share WHERE device IN (SELECT key FROM device WHERE owner = :user)", {"user": user}
        )
        rows = self._db.execute("DELETE FROM device_share WHERE user = :user RETURNING device", {"user": user})
        return sorted({row["device"] for row in rows})

    def put(self, share: ShareRecord) -> None:
        """Add a share, or change the user and the status of the share with its id."""
        values = record_values(share) | {"email_key": folded_address(share.email)}
        then = f"ON CONFLICT (id) DO UPDATE SET {replacing(('user', 'status', 'code_hash'))}"
        self._insert("device_share", values, then)

    def remove(self, id_: str) -> None:
        self._db.execute("DELETE FROM device_share WHERE id = :id", {"id": id_})


def _share(row: Mapping[str, Any]) -> ShareRecord:
    return ShareRecord(
        id=row["id"],
        device=row["device"],
        email=row["email"],
        user=row["user"],
        status=row["status"],
        shared_on=row["shared_on"],
        code_hash=row["code_hash"],
        uid=row["uid"],
    )
