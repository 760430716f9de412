"""Scenes: named lists of Actions (reference 12.5). The caller holds the transaction."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from storage.keys import ApplicationKey, DeviceKey, Milliseconds, UserKey
from storage.sql import Store, record_values, sure


class SceneRecord(msgspec.Struct, frozen=True):
    """A row of `scene`.

    `actions` is the JSON list as its maker sent it. `findings` is None for a valid scene; else a JSON list that has the
    field and the text of each finding.
    """

    key: int
    id: str
    user: UserKey
    application: ApplicationKey
    name: str
    description: str
    actions: str
    created_on: Milliseconds
    modified_on: Milliseconds
    invalidated_on: Milliseconds | None = None
    findings: str | None = None
    # Of the tables of users and applications; not written.
    user_id: str = ""
    application_id: str = ""


_WRITTEN: Final = (
    *("id", "user", "application", "name", "description", "actions"),
    *("created_on", "modified_on", "invalidated_on", "findings"),
)
_CHANGED: Final = ("name", "description", "actions", "modified_on", "invalidated_on", "findings")
_SCENES: Final = (
    "SELECT s.*, u.id AS user_id, a.id AS application_id FROM scene AS s JOIN user AS u ON u.key = s.user"
    " JOIN application AS a ON a.key = s.application WHERE "
)


class SceneStore(Store):
    def add(self, scene: SceneRecord, devices: Iterable[DeviceKey]) -> SceneRecord:
        """Add a scene whose Actions name these devices; return it with its key."""
        key = int(sure(self._insert("scene", record_values(scene, _WRITTEN), "RETURNING key").one())["key"])
        self._put_devices(key, devices)
        found = self.scene(key)
        assert found is not None, "it was just added"  # noqa: S101 - an invariant of the store
        return found

    def change(self, scene: SceneRecord, devices: Iterable[DeviceKey] | None) -> None:
        """Write the changeable columns of a scene. `devices`: the devices its Actions name; None: unchanged."""
        self._db.execute(
            f"UPDATE scene SET {', '.join(f'{name} = :{name}' for name in _CHANGED)} WHERE key = :key",  # noqa: S608 - constants
            record_values(scene, ("key", *_CHANGED)),
        )
        if devices is not None:
            self._db.execute("DELETE FROM scene_device WHERE scene = :scene", {"scene": scene.key})
            self._put_devices(scene.key, devices)

    def _put_devices(self, scene: int, devices: Iterable[DeviceKey]) -> None:
        for device in devices:
            self._insert("scene_device", {"device": device, "scene": scene}, "ON CONFLICT (device, scene) DO NOTHING")

    def invalidate(self, scene: SceneRecord, *, now_ms: int, findings: str) -> None:
        """Mark a scene as invalid, unless it is marked already or its Actions have changed since it was read."""
        self._db.execute(
            "UPDATE scene SET invalidated_on = :now, findings = :findings"
            " WHERE key = :key AND actions = :actions AND invalidated_on IS NULL",
            {"key": scene.key, "actions": scene.actions, "now": now_ms, "findings": findings},
        )

    def remove(self, key: int) -> None:
        self._db.execute("DELETE FROM scene_device WHERE scene = :key", {"key": key})
        self._db.execute("DELETE FROM scene WHERE key = :key", {"key": key})

    def scene(self, key: int) -> SceneRecord | None:
        return self._one("s.key = :key", {"key": key})

    def by_id(self, id_: str) -> SceneRecord | None:
        return self._one("s.id = :id", {"id": id_})

    def of_user(self, user: UserKey) -> list[SceneRecord]:
        """All scenes of a user, oldest first. Their number is bounded (reference 12.5)."""
        return [_scene(row) for row in self._db.execute(_SCENES + "s.user = :user ORDER BY s.key", {"user": user})]

    def of_application(self, application: ApplicationKey) -> list[SceneRecord]:
        """The scenes that an application made, of every user."""
        rows = self._db.execute(_SCENES + "s.application = :application ORDER BY s.key", {"application": application})
        return [_scene(row) for row in rows]

    def count_of_user(self, user: UserKey) -> int:
        row = self._db.execute("SELECT count(*) AS n FROM scene WHERE user = :user", {"user": user}).one()
        return int(sure(row)["n"])

    def valid_with_device(self, device: DeviceKey, *, after: int, limit: int) -> list[SceneRecord]:
        """Valid scenes whose Actions name this device, by key, from the one behind the key `after`."""
        rows = self._db.execute(
            f"{_SCENES}s.key IN (SELECT scene FROM scene_device WHERE device = :device AND scene > :after)"  # noqa: S608 - constants
            " AND s.invalidated_on IS NULL ORDER BY s.key LIMIT :limit",
            {"device": device, "after": after, "limit": limit},
        )
        return [_scene(row) for row in rows]

    def _one(self, where: str, given: Mapping[str, object]) -> SceneRecord | None:
        row = self._db.execute(_SCENES + where, given).one()
        return _scene(row) if row else None


def _scene(row: Mapping[str, Any]) -> SceneRecord:
    return SceneRecord(**{name: row[name] for name in SceneRecord.__struct_fields__})
