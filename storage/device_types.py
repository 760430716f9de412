"""Device types and the versions of their Manifests. The caller holds the transaction."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from storage.records import DeviceTypeRecord, ManifestRecord
from storage.sql import Connection

_SELECT = (
    "SELECT t.*, o.id AS organization_id FROM device_type AS t JOIN organization AS o ON o.key = t.organization WHERE "
)


class DeviceTypeStore:
    def __init__(self, db: Connection) -> None:
        self._db = db

    def device_type(self, key: int) -> DeviceTypeRecord | None:
        return self._one("t.key = :value", key)

    def by_id_or_name(self, text: str) -> DeviceTypeRecord | None:
        """compatibility.md 1.1: wherever a dtid is accepted, the unique name is, too."""
        return self.by_id(text) or self.by_unique_name(text)

    def by_id(self, id_: str) -> DeviceTypeRecord | None:
        return self._one("t.id = :value", id_)

    def by_unique_name(self, unique_name: str) -> DeviceTypeRecord | None:
        return self._one("t.unique_name = :value", unique_name)

    def _one(self, condition: str, value: object) -> DeviceTypeRecord | None:
        row = self._db.execute(_SELECT + condition, {"value": value}).one()
        return _device_type(row) if row else None

    def put_device_type(
        self,
        id_: str,
        *,
        unique_name: str,
        name: str,
        organization: int,
        published: bool,
        protected: bool,
        rsp: bool,
        description: str | None,
        tags: Sequence[str],
        now_ms: int,
    ) -> int:
        row = self._db.execute(
            "INSERT INTO device_type"
            " (id, unique_name, name, organization, published, protected, rsp, description, tags, created_on)"
            " VALUES (:id, :unique_name, :name, :organization, :published, :protected, :rsp, :description, :tags, :now)"
            " ON CONFLICT (id) DO UPDATE SET unique_name = excluded.unique_name, name = excluded.name,"
            " organization = excluded.organization, published = excluded.published, protected = excluded.protected,"
            " rsp = excluded.rsp, description = excluded.description, tags = excluded.tags RETURNING key",
            {
                "id": id_,
                "unique_name": unique_name,
                "name": name,
                "organization": organization,
                "published": int(published),
                "protected": int(protected),
                "rsp": int(rsp),
                "description": description,
                "tags": json.dumps(list(tags)),
                "now": now_ms,
            },
        ).one()
        return int(row["key"]) if row else 0

    def manifests(self, device_type: int) -> list[ManifestRecord]:
        rows = self._db.execute(
            "SELECT * FROM manifest WHERE device_type = :device_type ORDER BY version", {"device_type": device_type}
        )
        return [ManifestRecord(**{**dict(row), "approved": bool(row["approved"])}) for row in rows]

    def add_manifest(self, manifest: ManifestRecord) -> None:
        self._db.execute(
            "INSERT INTO manifest (device_type, version, document, approved, created_on)"
            " VALUES (:device_type, :version, :document, :approved, :created_on)",
            {
                "device_type": manifest.device_type,
                "version": manifest.version,
                "document": manifest.document,
                "approved": int(manifest.approved),
                "created_on": manifest.created_on,
            },
        )


def _device_type(row: Mapping[str, Any]) -> DeviceTypeRecord:
    return DeviceTypeRecord(
        key=row["key"],
        id=row["id"],
        unique_name=row["unique_name"],
        name=row["name"],
        organization=row["organization"],
        organization_id=row["organization_id"],
        published=bool(row["published"]),
        protected=bool(row["protected"]),
        rsp=bool(row["rsp"]),
        description=row["description"],
        tags=tuple(json.loads(row["tags"])),
        created_on=row["created_on"],
        has_cloud_connector=bool(row["has_cloud_connector"]),
        last_updated=row["last_updated"] or row["created_on"],
    )
