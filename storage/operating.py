"""Queries of the operator's page: people, devices, and samples of how busy the service was.

The caller holds the transaction.
"""

from typing import Any, Final

import msgspec

from storage.keys import Milliseconds
from storage.sql import Store, literal, sure


class SampleRecord(msgspec.Struct, frozen=True):
    """`commit_us` is the mean duration of the commits; counts are of the `seconds` before `at`."""

    at: Milliseconds
    seconds: int
    messages: int
    connections: int
    commits: int
    commit_us: int
    refusals: int
    store_bytes: int


class PersonRecord(msgspec.Struct, frozen=True):
    id: str
    email: str
    full_name: str
    account_type: str
    is_verified: bool
    is_disabled: bool
    created_on: Milliseconds
    devices: int
    organizations: str  # names, separated by commas


class OperatedDeviceRecord(msgspec.Struct, frozen=True):
    id: str
    name: str
    owner_id: str
    owner_email: str
    type_name: str
    enabled: bool
    created_on: Milliseconds


class OrganizationSizeRecord(msgspec.Struct, frozen=True):
    id: str
    name: str
    monthly_messages: int
    members: int
    types: int
    applications: int


_COLUMNS: Final = SampleRecord.__struct_fields__
_PERSON: Final = " FROM user AS u WHERE u.key NOT IN (SELECT user FROM leaving_user) AND ({found})"
_DEVICE: Final = (
    " FROM device AS d JOIN user AS u ON u.key = d.owner JOIN device_type AS t ON t.key = d.device_type"
    " WHERE d.deleted_on IS NULL AND ({found})"
)


def _like(columns: tuple[str, ...]) -> str:
    """The search, in which no sign has a meaning, is a part of one of the columns."""
    return ":search = '' OR " + " OR ".join(f"lower({one}) LIKE lower(:pattern) ESCAPE '!'" for one in columns)


class OperatingStore(Store):
    def add_sample(self, sample: SampleRecord, *, kept_from_ms: int) -> None:
        """Add a sample, and remove those before `kept_from_ms`."""
        self._db.put_many("operator_sample", _COLUMNS, ("at",), [[getattr(sample, name) for name in _COLUMNS]])
        self._db.execute("DELETE FROM operator_sample WHERE at < :at", {"at": kept_from_ms})

    def samples(self) -> list[SampleRecord]:
        """The oldest first."""
        rows = self._db.execute("SELECT * FROM operator_sample ORDER BY at")
        return [SampleRecord(**{name: row[name] for name in _COLUMNS}) for row in rows]

    def people(self, search: str, *, offset: int, limit: int) -> tuple[list[PersonRecord], int]:
        """A page of the users with this part in address, name or id, by address; and how many there are."""
        which = _PERSON.format(found=_like(("u.email", "u.full_name", "u.name", "u.id")))
        select = (
            "SELECT u.*, (SELECT count(*) FROM device AS d WHERE d.owner = u.key AND d.deleted_on IS NULL) AS devices"
        )
        rows, total = self._page(select, which, "u.email", search, offset, limit)
        return [PersonRecord(**self._person(row)) for row in rows], total

    def _person(self, row: Any) -> dict[str, Any]:
        memberships = self._db.execute(
            "SELECT o.name, m.role FROM membership AS m JOIN organization AS o ON o.key = m.organization"
            " WHERE m.user = :user ORDER BY o.name",
            {"user": row["key"]},
        )
        return {
            "id": row["id"],
            "email": row["email"],
            "full_name": row["full_name"],
            "account_type": row["account_type"],
            "is_verified": row["email_verified_on"] is not None,
            "is_disabled": row["disabled_on"] is not None,
            "created_on": row["created_on"],
            "devices": row["devices"],
            "organizations": ", ".join(f"{one['name']} ({one['role']})" for one in memberships),
        }

    def devices(self, search: str, *, offset: int, limit: int) -> tuple[list[OperatedDeviceRecord], int]:
        """A page of the devices with this part in name, id, the owner's address or the type's name; and how many."""
        which = _DEVICE.format(found=_like(("d.name", "d.id", "u.email", "t.unique_name")))
        select = (
            "SELECT d.id, d.name, u.id AS owner_id, u.email AS owner_email, t.unique_name AS type_name, d.enabled,"
            " d.created_on"
        )
        rows, total = self._page(select, which, "d.name, d.id", search, offset, limit)
        names = OperatedDeviceRecord.__struct_fields__
        return [
            OperatedDeviceRecord(**{name: row[name] for name in names} | {"enabled": bool(row["enabled"])})
            for row in rows
        ], total

    def organizations(self, *, limit: int) -> list[OrganizationSizeRecord]:
        """Organizations by name, except the ones that the service made for itself."""
        rows = self._db.execute(
            "SELECT o.id, o.name, o.monthly_messages,"
            " (SELECT count(*) FROM membership AS m WHERE m.organization = o.key) AS members,"
            " (SELECT count(*) FROM device_type AS t WHERE t.organization = o.key) AS types,"
            " (SELECT count(*) FROM application AS a WHERE a.organization = o.key AND a.deleted_on IS NULL)"
            " AS applications"
            " FROM organization AS o ORDER BY o.name LIMIT :limit",
            {"limit": limit},
        )
        names = OrganizationSizeRecord.__struct_fields__
        return [OrganizationSizeRecord(**{name: row[name] for name in names}) for row in rows]

    def _page(self, select: str, which: str, order: str, search: str, offset: int, limit: int) -> tuple[list[Any], int]:
        given: dict[str, object] = {"search": search, "pattern": f"%{literal(search)}%"}
        total = int(sure(self._db.execute(f"SELECT count(*) AS count{which}", given).one())["count"])
        rows = self._db.execute(
            f"{select}{which} ORDER BY {order} LIMIT :limit OFFSET :offset", given | {"limit": limit, "offset": offset}
        )
        return list(rows), total
