"""Device types, their tags and the versions of their Manifests. The caller holds the transaction."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from storage.failed_readings import FailedReadingStore
from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, OrganizationKey, UserKey
from storage.records import DeviceTypeRecord, FailedMessageRow, ManifestRecord
from storage.sql import Store, literal, record_values, replacing, sure

_STANDS_IN = (
    "(SELECT min(m.user) FROM membership AS m WHERE m.organization = t.organization AND m.role = 'administrator')"
)
_FROM = (
    " FROM device_type AS t JOIN organization AS o ON o.key = t.organization"
    f" LEFT JOIN user AS u ON u.key = coalesce(t.owner, {_STANDS_IN})"
)
_COLUMNS = (
    "SELECT t.*, o.id AS organization_id, u.id AS owner_id,"
    " (SELECT max(m.version) FROM manifest AS m WHERE m.device_type = t.key AND m.approved = 1) AS latest_version,"
    " (SELECT m.approved FROM manifest AS m WHERE m.device_type = t.key ORDER BY m.version DESC LIMIT 1) AS approved,"
    " (SELECT p.id FROM monetization_plan AS p WHERE p.device_type = t.key AND p.status = 'APPROVED'"
    " ORDER BY p.version DESC LIMIT 1) AS billing_subscription_id"
)
_SELECT = f"{_COLUMNS}{_FROM} WHERE "
_MEMBER = "EXISTS (SELECT 1 FROM membership AS m WHERE m.organization = t.organization AND m.user = {user})"
_SHARED = (
    "EXISTS (SELECT 1 FROM device_share AS s JOIN device AS d ON d.key = s.device"
    " WHERE d.device_type = t.key AND d.deleted_on IS NULL AND s.status = 'ACCEPTED' AND s.user = {user})"
)
_OWNED = "EXISTS (SELECT 1 FROM device AS d WHERE d.device_type = t.key AND d.deleted_on IS NULL AND d.owner = {user})"
_OWN = f"u.key = {{user}} OR {_MEMBER}"
# A grant on every type covers the types that the user who gave it may use or has devices of.
_OF_USER = " OR ".join(("t.published = 1", *(f"({one})" for one in (_OWN, _OWNED, _SHARED))))
_OF_GRANTER = _OF_USER.format(user="a.user")
_TAGGED = "EXISTS (SELECT 1 FROM device_type_tag AS g WHERE g.device_type = t.key AND g.tag {test})"


class Viewer(msgspec.Struct, frozen=True):
    """The viewer of a list of types: the keys of a token's user, application and application's organization."""

    user: UserKey | None
    application: ApplicationKey | None
    organization: OrganizationKey | None
    needs_no_grant: bool = False  # the console sees what its user may see


class TypeSearch(msgspec.Struct, frozen=True):
    """Conditions that a listed type must all meet. None, False and empty mean no condition."""

    visible_to: Viewer | None = None  # published, or the viewer's own, if the viewer may read it
    usable_by: Viewer | None = None  # the viewer may add devices of the type
    reached_by: Viewer | None = None  # published, or the viewer may read it
    texts: tuple[str, ...] = ()  # case-folded; each must be in the name or the unique name
    tags: tuple[str, ...] = ()  # all of them
    categories: tuple[str, ...] = ()  # any of them
    with_connector: bool = False
    owner: UserKey | None = None
    or_of_organizations: bool = False  # besides the owner's: those of the owner's organizations
    or_shared: bool = False  # and those of devices shared with the owner
    ids: tuple[str, ...] | None = None

    def conditions(self) -> Iterator[str]:
        if self.visible_to is not None:
            own = f"t.organization = :viewing_organization OR {_OWN.format(user=':viewer')}"
            yield f"(t.published = 1 OR (({own}) AND ({_readable(self.visible_to)})))"
        if self.usable_by is not None:
            usable = f"((t.published = 1 AND t.protected = 0) OR {_OWN.format(user=':viewer')})"
            if self.usable_by.user is not None:
                usable += f" AND {_granted(self.usable_by, 'can_write')}"
            yield f"(t.organization = :viewing_organization OR ({usable}))"
        if self.reached_by is not None:
            yield f"(t.published = 1 OR {_readable(self.reached_by)})"
        for index in range(len(self.texts)):
            yield f"(t.folded_name LIKE :like_{index} ESCAPE '!' OR lower(t.unique_name) LIKE :like_{index} ESCAPE '!')"
        for index in range(len(self.tags)):
            yield _TAGGED.format(test=f"= :tag_{index}")
        if self.categories:
            yield _TAGGED.format(test=f"IN ({_listed('category', self.categories)})")
        if self.with_connector:
            yield "t.has_cloud_connector = 1"
        if self.owner is not None:
            yield f"({' OR '.join(self._of_owner())})"
        if self.ids is not None:
            yield f"t.id IN ({_listed('id', self.ids)})" if self.ids else "1 = 0"

    def _of_owner(self) -> Iterator[str]:
        yield "u.key = :owner"
        if self.or_of_organizations:
            yield _MEMBER.format(user=":owner")
        if self.or_shared:
            shared = _SHARED.format(user=":owner")
            # A shared type is visible by grant alone, also when it is published.
            yield shared if self.reached_by is None else f"{shared} AND ({_readable(self.reached_by)})"

    def parameters(self) -> dict[str, Any]:
        viewer = self.visible_to or self.usable_by or self.reached_by or Viewer(None, None, None)
        return {
            "viewer": viewer.user,
            "viewing": viewer.application,
            "viewing_organization": viewer.organization,
            "owner": self.owner,
            **{f"like_{index}": f"%{literal(text)}%" for index, text in enumerate(self.texts)},
            **{f"text_{index}": text for index, text in enumerate(self.texts)},
            **{f"tag_{index}": tag for index, tag in enumerate(self.tags)},
            **{f"category_{index}": tag for index, tag in enumerate(self.categories)},
            **{f"id_{index}": id_ for index, id_ in enumerate(self.ids or ())},
        }

    def exact_match(self) -> str:
        """Whether a type is called exactly so."""
        called = (f"t.folded_name = :text_{index} OR t.unique_name = :text_{index}" for index in range(len(self.texts)))
        return " OR ".join(called) or "1 = 0"


def _readable(viewer: Viewer) -> str:
    return f"t.organization = :viewing_organization OR {_granted(viewer, 'can_read')}"


def _granted(viewer: Viewer, permission: str) -> str:
    """Whether the viewer's user, or of an application any user, granted this on the type to the application."""
    if viewer.needs_no_grant:
        return f"({_OF_USER.format(user=':viewer')})"
    # Written into the statement, so that the index on the user is used.
    of_user = "" if viewer.user is None else " AND a.user = :viewer"
    return (
        f"EXISTS (SELECT 1 FROM access_grant AS a WHERE a.application = :viewing{of_user}"  # noqa: S608 - constants
        f" AND a.{permission} = 1 AND t.protected = 0"
        f" AND (a.device_type = t.key OR (a.device_type IS NULL AND ({_OF_GRANTER}))))"
    )


def _listed(name: str, values: Collection[str]) -> str:
    return ", ".join(f":{name}_{index}" for index in range(len(values)))


class DeviceTypeStore(Store):
    def device_type(self, key: DeviceTypeKey) -> DeviceTypeRecord | None:
        return self._one("t.key = :value", key)

    def with_keys(self, keys: Iterable[DeviceTypeKey]) -> list[DeviceTypeRecord]:
        """The device types with these keys, in no order."""
        rows = self._db.execute(f"{_SELECT}t.key IN ({self._db.numbers_in('keys')})", {"keys": json.dumps(list(keys))})
        return [_device_type(row) for row in rows]

    def by_id_or_name(self, text: str) -> DeviceTypeRecord | None:
        """A dtid may be given as the unique name, too (reference 1.1)."""
        return self.by_id(text) or self.by_unique_name(text)

    def by_id(self, id_: str) -> DeviceTypeRecord | None:
        return self._one("t.id = :value", id_)

    def by_unique_name(self, unique_name: str) -> DeviceTypeRecord | None:
        return self._one("t.unique_name = :value", unique_name)

    def _one(self, condition: str, value: object) -> DeviceTypeRecord | None:
        row = self._db.execute(_SELECT + condition, {"value": value}).one()
        return _device_type(row) if row else None

    # Lists

    def total(self, search: TypeSearch) -> int:
        row = self._db.execute(f"SELECT count(*) AS total{_FROM} WHERE {_where(search)}", search.parameters()).one()
        return int(row["total"]) if row else 0

    def page(self, search: TypeSearch, *, count: int, offset: int) -> list[DeviceTypeRecord]:
        """A page of the types that are found, exact matches first, then by name."""
        rows = self._db.execute(
            f"{_SELECT}{_where(search)} ORDER BY CASE WHEN {search.exact_match()} THEN 0 ELSE 1 END,"
            " t.folded_name, t.key LIMIT :count OFFSET :offset",
            {**search.parameters(), "count": count, "offset": offset},
        )
        return [_device_type(row) for row in rows]

    def published_names(self, organization: OrganizationKey, *, limit: int) -> list[str]:
        """The names of the types that an organization shows to others, in order."""
        rows = self._db.execute(
            "SELECT name FROM device_type WHERE organization = :organization AND published = 1 ORDER BY name, key"
            " LIMIT :limit",
            {"organization": organization, "limit": limit},
        )
        return [row["name"] for row in rows]

    def number_of(self, organization: OrganizationKey) -> int:
        """How many types an organization has."""
        row = self._db.execute(
            "SELECT count(*) AS n FROM device_type WHERE organization = :organization", {"organization": organization}
        ).one()
        return int(row["n"]) if row else 0

    def types_owned_by(self, viewer: Viewer) -> set[DeviceTypeKey]:
        """The keys of the types of the user's devices that the viewer may read."""
        of_devices = "SELECT device_type FROM device WHERE owner = :viewer AND deleted_on IS NULL"
        rows = self._db.execute(
            f"SELECT t.key{_FROM} WHERE t.key IN ({of_devices}) AND ({_readable(viewer)})",
            TypeSearch(reached_by=viewer).parameters(),
        )
        return {row["key"] for row in rows}

    def tags(self, search: TypeSearch, *, prefix: str = "", limit: int) -> list[str]:
        """The tags of the types that are found, by name; the most used ones when there are more than `limit`."""
        rows = self._db.execute(
            f"SELECT tag FROM (SELECT x.tag, count(*) AS uses{_FROM} JOIN device_type_tag AS x ON x.device_type = t.key"  # noqa: S608 - constants
            f" WHERE {_where(search)} AND lower(x.tag) LIKE lower(:prefix) ESCAPE '!'"
            " GROUP BY x.tag ORDER BY uses DESC, x.tag LIMIT :limit) AS used ORDER BY tag",
            {**search.parameters(), "prefix": f"{literal(prefix)}%", "limit": limit},
        )
        return [row["tag"] for row in rows]

    def put_device_type(self, device_type: DeviceTypeRecord) -> DeviceTypeKey:
        """Add a device type, or change the one with its id, and return the key that the store gave it.

        Only the columns of the device type's own table are written.
        """
        values = {
            "id": device_type.id,
            "unique_name": device_type.unique_name,
            "name": device_type.name,
            "folded_name": device_type.name.casefold(),
            "organization": device_type.organization,
            "published": int(device_type.published),
            "protected": int(device_type.protected),
            "rsp": int(device_type.rsp),
            "description": device_type.description,
            "tags": json.dumps(device_type.tags),
            "owner": device_type.owner,
            "vid": device_type.vid,
            "in_store": None if device_type.in_store is None else int(device_type.in_store),
        }
        then = f"ON CONFLICT (id) DO UPDATE SET {replacing(values)} RETURNING key"
        row = self._insert("device_type", values | {"created_on": device_type.created_on}, then).one()
        key = DeviceTypeKey(sure(row)["key"])
        self._db.execute("DELETE FROM device_type_tag WHERE device_type = :key", {"key": key})
        self._db.insert_many(
            "device_type_tag", ("tag", "device_type"), [(tag, key) for tag in dict.fromkeys(device_type.tags)]
        )
        return key

    # Manifests

    def manifests(self, device_type: DeviceTypeKey) -> list[ManifestRecord]:
        rows = self._db.execute(
            "SELECT * FROM manifest WHERE device_type = :device_type ORDER BY version", {"device_type": device_type}
        )
        return [ManifestRecord(**{**dict(row), "approved": bool(row["approved"])}) for row in rows]

    def newest_version(self, device_type: DeviceTypeKey) -> int:
        """The number of the newest Manifest; 0 without one."""
        row = self._db.execute(
            "SELECT max(version) AS version FROM manifest WHERE device_type = :device_type",
            {"device_type": device_type},
        ).one()
        return int((row and row["version"]) or 0)

    def newest_manifest(self, device_type: DeviceTypeKey) -> ManifestRecord | None:
        row = self._db.execute(
            "SELECT * FROM manifest WHERE device_type = :device_type ORDER BY version DESC LIMIT 1",
            {"device_type": device_type},
        ).one()
        return None if row is None else ManifestRecord(**{**dict(row), "approved": bool(row["approved"])})

    def add_manifest(self, manifest: ManifestRecord) -> None:
        self._insert("manifest", record_values(manifest) | {"approved": int(manifest.approved)})
        if manifest.approved:
            self._in_use(manifest.device_type, manifest.version, now_ms=manifest.created_on)

    def approve_manifest(self, device_type: DeviceTypeKey, version: int, *, now_ms: int) -> None:
        self._db.execute(
            "UPDATE manifest SET approved = 1 WHERE device_type = :device_type AND version = :version",
            {"device_type": device_type, "version": version},
        )
        self._in_use(device_type, version, now_ms=now_ms)

    def _in_use(self, device_type: DeviceTypeKey, version: int, *, now_ms: int) -> None:
        """Devices use this version from now on; messages that failed with the one before are read again."""
        self._db.execute(
            "UPDATE device_type SET last_updated = :now WHERE key = :key", {"key": device_type, "now": now_ms}
        )
        FailedReadingStore(self._db).begin(device_type, version, now_ms=now_ms)

    def failed_messages(
        self, *, device_type: DeviceTypeKey | None, device: DeviceKey | None, limit: int
    ) -> list[tuple[str, FailedMessageRow]]:
        """The last failed messages of one type or of one device, newest first, each with the id of its device."""
        condition = "d.device_type = :device_type" if device is None else "d.key = :device"
        rows = self._db.execute(
            "SELECT d.id, f.* FROM device AS d JOIN failed_message AS f ON f.device = d.key"  # noqa: S608 - constants
            f" WHERE d.deleted_on IS NULL AND {condition} ORDER BY f.position DESC LIMIT :limit",
            {"device_type": device_type, "device": device, "limit": limit},
        )
        return [(row["id"], FailedMessageRow(*(row[name] for name in _FAILED))) for row in rows]


_FAILED = ("position", "device", "cts", "reason", "payload")


def _where(search: TypeSearch) -> str:
    return " AND ".join(search.conditions()) or "1 = 1"


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
        owner=row["owner"],
        owner_id=row["owner_id"],
        vid=row["vid"],
        in_store=None if row["in_store"] is None else bool(row["in_store"]),
        issuer_dn=row["issuer_dn"],
        latest_version=row["latest_version"] or 0,
        approved=bool(row["approved"]),
        billing_subscription_id=row["billing_subscription_id"],
    )
