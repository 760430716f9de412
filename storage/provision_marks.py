"""Marks by which a provision file finds again what it has made (reference 26.3). The caller holds the transaction."""

from collections.abc import Iterator, Mapping
from typing import Final

from storage.sql import Store


class ProvisionMarkStore(Store):
    def object_of(self, kind: str, name: str) -> str | None:
        row = self._db.execute(
            "SELECT object FROM provision_mark WHERE kind = :kind AND name = :name", {"kind": kind, "name": name}
        ).one()
        return None if row is None else str(row["object"])

    def name_of(self, kind: str, object_: str) -> str | None:
        """The name that the object has; one of them, if it has several."""
        row = self._db.execute(
            "SELECT name FROM provision_mark WHERE kind = :kind AND object = :object ORDER BY name LIMIT 1",
            {"kind": kind, "object": object_},
        ).one()
        return None if row is None else str(row["name"])

    def all_of(self, kind: str) -> list[str]:
        """The names."""
        rows = self._db.execute("SELECT name FROM provision_mark WHERE kind = :kind ORDER BY name", {"kind": kind})
        return [row["name"] for row in rows]

    def put(self, kind: str, name: str, object_: str) -> None:
        self._db.execute(
            "INSERT INTO provision_mark (kind, name, object) VALUES (:kind, :name, :object)"
            " ON CONFLICT (kind, name) DO UPDATE SET object = excluded.object",
            {"kind": kind, "name": name, "object": object_},
        )

    def put_all(self, kind: str, objects: Mapping[str, str]) -> None:
        """Put marks of several objects, by their names; see `put`."""
        rows = [(kind, name, object_) for name, object_ in objects.items()]
        self._db.put_many("provision_mark", ("kind", "name", "object"), ("kind", "name"), rows)

    def remove(self, kind: str, name: str) -> None:
        self._db.execute("DELETE FROM provision_mark WHERE kind = :kind AND name = :name", {"kind": kind, "name": name})

    def all_named(self, table: str, *, limit: int) -> Iterator[tuple[int | str, str]]:
        """The first objects of a table of the provision file: what identifies each in the store, and its name."""
        for row in self._db.execute(f"{_NAMED[table]} ORDER BY name, identity LIMIT :limit", {"limit": limit}):
            yield row["identity"], row["name"]


#: Tables of the file whose objects have names. Tokens, grants, shares and invitations are left to people.
_NAMED: Final[Mapping[str, str]] = {
    "organizations": "SELECT key AS identity, name AS name FROM organization",
    "users": "SELECT key AS identity, email AS name FROM user",
    "device_types": "SELECT key AS identity, unique_name AS name FROM device_type",
    "connectors": "SELECT t.key AS identity, t.unique_name AS name FROM connector c"
    " JOIN device_type t ON t.key = c.device_type",
    "applications": "SELECT key AS identity, name AS name FROM application"
    " WHERE deleted_on IS NULL AND key NOT IN (SELECT application FROM trial WHERE application IS NOT NULL)",
    "devices": "SELECT key AS identity, name || ' (id ' || id || ')' AS name FROM device WHERE deleted_on IS NULL",
    "plans": "SELECT DISTINCT t.key AS identity, t.unique_name AS name FROM monetization_plan p"
    " JOIN device_type t ON t.key = p.device_type WHERE p.status = 'APPROVED'",
    "firmware": "SELECT i.id AS identity, t.unique_name || ' ' || i.type || ' ' || i.version AS name"
    " FROM firmware_image i JOIN device_type t ON t.key = i.device_type",
    "rules": "SELECT id AS identity, name AS name FROM rule",
    "scenes": "SELECT id AS identity, name AS name FROM scene",
}
NAMED_TABLES: Final = tuple(_NAMED)
