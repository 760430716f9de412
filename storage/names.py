"""Names for ids, as far as a user may know them, and the rules and subscriptions that act on the user's devices.

The caller holds the transaction.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from storage.keys import UserKey
from storage.sql import Store

Kind = Literal["device", "device type", "user", "application", "organization", "rule", "scene", "trial", "subscription"]


class NameRecord(msgspec.Struct, frozen=True):
    """`is_gone`: a device that was deleted and can still be restored."""

    kind: Kind
    id: str
    name: str
    is_gone: bool = False


class AutomationRecord(msgspec.Struct, frozen=True):
    """A rule or a scene. `devices` are the (id, name) of the devices of the user that it names.

    `owner_id` and `owner_name` are of the user whose rule it is, and the application that made it is known by id and
    name.
    """

    kind: Literal["rule", "scene"]
    id: str
    name: str
    owner: UserKey
    owner_id: str
    owner_name: str
    application_id: str
    application_name: str
    enabled: bool
    devices: tuple[tuple[str, str], ...]


_MINE: Final = "(:all = 1 OR {owner} = :user)"
_SHARED: Final = "SELECT device FROM device_share WHERE user = :user AND status = 'ACCEPTED'"
_OURS: Final = "SELECT organization FROM membership WHERE user = :user"
_OUR_APPLICATIONS: Final = f"SELECT a.key FROM application AS a WHERE a.organization IN ({_OURS})"  # noqa: S608 - constants
_WHERE_TO: Final = "COALESCE(NULLIF(t.description, ''), t.callback_url, t.stream_name, t.spelling)"
_WHO: Final = "CASE WHEN u.full_name <> '' THEN u.full_name ELSE u.email END"
_USER: Final = f"SELECT t.id, {_WHO.replace('u.', 't.')} AS name, NULL AS deleted_on FROM user AS t"  # noqa: S608 - constants
_COLLEAGUES: Final = f"SELECT m.user FROM membership AS m WHERE m.organization IN ({_OURS})"  # noqa: S608 - constants
_LENDERS: Final = f"SELECT d.owner FROM device AS d WHERE d.deleted_on IS NULL AND d.key IN ({_SHARED})"  # noqa: S608
_BORROWERS: Final = (
    "SELECT s.user FROM device_share AS s JOIN device AS d ON d.key = s.device"
    " WHERE d.owner = :user AND d.deleted_on IS NULL AND s.status = 'ACCEPTED'"
)
_IN_TRIAL: Final = "SELECT trial FROM trial_member WHERE user = :user"
#: How to find each kind of id, and the condition under which the user may know its name.
_KINDS: Final[dict[Kind, tuple[str, str]]] = {
    "device": (
        "SELECT t.id, t.name, t.deleted_on FROM device AS t",
        f"({_MINE.format(owner='t.owner')} OR t.key IN ({_SHARED}))",
    ),
    "device type": (
        "SELECT t.id, t.name, NULL AS deleted_on FROM device_type AS t",
        f"(:all = 1 OR t.published = 1 OR t.organization IN ({_OURS}))",
    ),
    "user": (
        _USER,
        " OR ".join(
            (_MINE.format(owner="t.key"), *(f"t.key IN ({one})" for one in (_COLLEAGUES, _LENDERS, _BORROWERS)))
        ),
    ),
    "application": ("SELECT t.id, t.name, t.deleted_on FROM application AS t", "1 = 1"),
    "organization": (
        "SELECT t.id, t.name, NULL AS deleted_on FROM organization AS t",
        f"(:all = 1 OR t.key IN ({_OURS}))",
    ),
    "rule": ("SELECT t.id, t.name, NULL AS deleted_on FROM rule AS t", _MINE.format(owner="t.owner")),
    "scene": ("SELECT t.id, t.name, NULL AS deleted_on FROM scene AS t", _MINE.format(owner="t.user")),
    "subscription": (
        f"SELECT t.id, {_WHERE_TO} AS name, NULL AS deleted_on FROM subscription AS t",  # noqa: S608 - constants
        f"({_MINE.format(owner='t.user')} OR t.application IN ({_OUR_APPLICATIONS}))",
    ),
    "trial": (
        "SELECT t.id, t.name, NULL AS deleted_on FROM trial AS t",
        f"({_MINE.format(owner='t.owner')} OR t.key IN ({_IN_TRIAL}))",
    ),
}
_RULES: Final = (
    f"SELECT r.key, r.id, r.name, r.owner, u.id AS owner_id, {_WHO} AS owner_name, a.id AS application_id,"  # noqa: S608 - constants
    " a.name AS application_name, r.enabled FROM rule AS r JOIN user AS u ON u.key = r.owner"
    " JOIN application AS a ON a.key = r.application WHERE r.owner = :user OR (r.invalidated_on IS NULL AND r.key IN"
    " (SELECT o.rule FROM device AS d JOIN rule_use AS o ON o.kind = 'device' AND o.object = d.key"
    " WHERE d.owner = :user AND d.deleted_on IS NULL)) ORDER BY r.key LIMIT :limit"
)
_SCENES: Final = (
    f"SELECT s.key, s.id, s.name, s.user AS owner, u.id AS owner_id, {_WHO} AS owner_name, a.id AS application_id,"  # noqa: S608 - constants
    " a.name AS application_name, 1 AS enabled FROM scene AS s JOIN user AS u ON u.key = s.user"
    " JOIN application AS a ON a.key = s.application WHERE s.user = :user OR (s.invalidated_on IS NULL AND s.key IN"
    " (SELECT o.scene FROM device AS d JOIN scene_device AS o ON o.device = d.key"
    " WHERE d.owner = :user AND d.deleted_on IS NULL)) ORDER BY s.key LIMIT :limit"
)
_DEVICES: Final = {
    "rule": (
        "SELECT o.rule AS key, d.id, d.name FROM device AS d JOIN rule_use AS o ON o.kind = 'device'"
        " AND o.object = d.key WHERE d.owner = :user AND d.deleted_on IS NULL ORDER BY d.name, d.id"
    ),
    "scene": (
        "SELECT o.scene AS key, d.id, d.name FROM device AS d JOIN scene_device AS o ON o.device = d.key"
        " WHERE d.owner = :user AND d.deleted_on IS NULL ORDER BY d.name, d.id"
    ),
}


class NameStore(Store):
    def of(self, ids: Sequence[str], user: UserKey, *, knows_all: bool) -> list[NameRecord]:
        """The names of these ids. `knows_all`: the user operates the service."""
        if not ids:
            return []
        given = {f"id_{index}": id_ for index, id_ in enumerate(ids)}
        listed = ", ".join(f":{name}" for name in given)
        parameters = {**given, "user": user, "all": int(knows_all)}
        found = []
        for kind, (select, allowed) in _KINDS.items():
            rows = self._db.execute(f"{select} WHERE t.id IN ({listed}) AND ({allowed})", parameters)
            found += [NameRecord(kind, row["id"], row["name"], row["deleted_on"] is not None) for row in rows]
        return found

    def automations(self, user: UserKey, *, limit: int) -> list[AutomationRecord]:
        """The user's rules and scenes, of every application, and those of others that name devices of the user."""
        return [*self._automations("rule", _RULES, user, limit), *self._automations("scene", _SCENES, user, limit)]

    def _automations(
        self, kind: Literal["rule", "scene"], select: str, user: UserKey, limit: int
    ) -> Iterable[AutomationRecord]:
        devices: dict[int, list[tuple[str, str]]] = {}
        for row in self._db.execute(_DEVICES[kind], {"user": user}):
            devices.setdefault(row["key"], []).append((row["id"], row["name"]))
        for row in self._db.execute(select, {"user": user, "limit": limit}):
            yield AutomationRecord(
                kind=kind,
                id=row["id"],
                name=row["name"],
                owner=UserKey(row["owner"]),
                owner_id=row["owner_id"],
                owner_name=row["owner_name"],
                application_id=row["application_id"],
                application_name=row["application_name"],
                enabled=bool(row["enabled"]),
                devices=tuple(devices.get(row["key"], ())),
            )
