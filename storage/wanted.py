"""Values that are wanted of devices, until a message reports them. The caller holds the transaction."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, Position, UserKey
from storage.sql import Store

_FOLLOWED: Final = "wanted"


class WantedRecord(msgspec.Struct, frozen=True):
    """A field of a device for which a value is wanted; `value` and `reported` are JSON.

    `revision` grows with each change of the device's wanted values. `author` is an actor, such as `user …`, or the rule
    or scene. Messages behind `position` are looked at. `ended_on` is None while it is open.
    """

    device: DeviceKey
    field: str
    value: str
    tolerance: float | None
    revision: int
    since: Milliseconds
    author: str
    expires_on: Milliseconds
    state: str
    sent_on: Milliseconds | None
    ended_on: Milliseconds | None
    reported: str | None
    reason: str
    position: Position


class WantedEnd(msgspec.Struct, frozen=True):
    """The end of an open one, if it is still the one with this revision and time."""

    device: DeviceKey
    field: str
    revision: int
    since: Milliseconds
    state: str
    reported: str | None = None
    reason: str = ""


_NAMES: Final = WantedRecord.__struct_fields__
_COLUMNS: Final = ", ".join(_NAMES)
#: The users who have a device.
_HOLDERS: Final = (
    "(SELECT d.owner FROM device AS d WHERE d.key = :device UNION"
    " SELECT s.user FROM device_share AS s WHERE s.device = :device AND s.status = 'ACCEPTED' AND s.user IS NOT NULL)"
)


def _is_of(kind: str, found: str) -> str:
    """An author of a kind, for whose id nothing is found."""
    begin = f"{kind} "
    return (
        f"(substr(author, 1, {len(begin)}) = '{begin}'"
        f" AND NOT EXISTS ({found.format(id=f'substr(wanted.author, {len(begin) + 1})', holders=_HOLDERS)}))"
    )


_OF_FORMER: Final = " OR ".join(
    (
        _is_of("user", "SELECT 1 FROM user AS u WHERE u.id = {id} AND u.key IN {holders}"),
        _is_of("rule", "SELECT 1 FROM rule AS r WHERE r.id = {id} AND r.owner IN {holders}"),
        _is_of("scene", "SELECT 1 FROM scene AS c WHERE c.id = {id} AND c.user IN {holders}"),
        _is_of(
            "application",
            "SELECT 1 FROM application AS a JOIN access_grant AS g ON g.application = a.key"
            " WHERE a.id = {id} AND g.can_write = 1 AND g.user IN {holders}",
        ),
    )
)


class WantedStore(Store):
    def of_device(self, device: DeviceKey) -> list[WantedRecord]:
        """By field; ended ones, too."""
        return self._find("device = :device ORDER BY field", {"device": device})

    def open_of(self, device: DeviceKey) -> list[WantedRecord]:
        return self._find("device = :device AND ended_on IS NULL ORDER BY field", {"device": device})

    def open_of_type(self, device_type: DeviceTypeKey) -> list[WantedRecord]:
        """Of all devices of a type."""
        return self._find(
            "ended_on IS NULL AND device IN (SELECT key FROM device WHERE device_type = :type) ORDER BY device, field",
            {"type": device_type},
        )

    def types(self) -> list[DeviceTypeKey]:
        """The types of devices with open ones."""
        found = self._db.execute(
            "SELECT DISTINCT device_type FROM device WHERE key IN (SELECT device FROM wanted WHERE ended_on IS NULL)"
        )
        return [DeviceTypeKey(row["device_type"]) for row in found]

    def all_open(self) -> list[WantedRecord]:
        return self._find("ended_on IS NULL ORDER BY device, field", {})

    def _find(self, where: str, given: dict[str, object]) -> list[WantedRecord]:
        found = self._db.execute(f"SELECT {_COLUMNS} FROM wanted WHERE {where}", given)  # noqa: S608 - constants
        return [WantedRecord(*row) for row in found.tuples()]

    def number_of_owner(self, owner: UserKey) -> int:
        """How many are open for a user's devices."""
        return self._number_of(
            "FROM wanted WHERE ended_on IS NULL AND device IN (SELECT key FROM device WHERE owner = :owner)",
            {"owner": owner},
        )

    def put(self, records: Iterable[WantedRecord]) -> None:
        rows = [[getattr(record, name) for name in _NAMES] for record in records]
        if rows:
            self._db.put_many("wanted", _NAMES, ("device", "field"), rows)

    def withdraw(self, device: DeviceKey, field: str) -> None:
        self._db.execute(
            "DELETE FROM wanted WHERE device = :device AND field = :field", {"device": device, "field": field}
        )

    def drop(self, device: DeviceKey) -> bool:
        """Remove all of a device; return whether there were any."""
        found = self._db.execute("DELETE FROM wanted WHERE device = :device RETURNING field", {"device": device})
        return bool(list(found))

    def withdraw_of_former(self, device: DeviceKey) -> bool:
        """Withdraw what users want who neither own the device nor share it, what their rules and scenes want, and what
        applications want to which no owner or guest of it gives the right to write; return whether there was any."""
        found = self._db.execute(
            f"DELETE FROM wanted WHERE device = :device AND ended_on IS NULL AND ({_OF_FORMER}) RETURNING field",  # noqa: S608 - constants
            {"device": device},
        )
        return bool(list(found))

    def sent(self, device: DeviceKey, upto: int, *, now_ms: int, field: str | None = None) -> bool:
        """The device was given the values, or that of a field, up to this revision; return whether that is new."""
        of_field = "" if field is None else " AND field = :field"
        found = self._db.execute(
            "UPDATE wanted SET state = 'sent', sent_on = :now WHERE device = :device AND state = 'waiting'"  # noqa: S608 - constants
            f" AND revision <= :upto{of_field} RETURNING field",
            {"device": device, "upto": upto, "now": now_ms, **({} if field is None else {"field": field})},
        )
        return bool(list(found))

    def end(self, end: WantedEnd, *, now_ms: int) -> bool:
        """Return whether it was open."""
        found = self._db.execute(
            "UPDATE wanted SET state = :state, ended_on = :now, reported = :reported, reason = :reason"
            " WHERE device = :device AND field = :field AND revision = :revision AND since = :since"
            " AND ended_on IS NULL RETURNING field",
            {**msgspec.structs.asdict(end), "now": now_ms},
        )
        return bool(list(found))

    def due(self, now_ms: int, *, limit: int) -> list[WantedRecord]:
        """Open ones whose time is over, the oldest first."""
        return self._find(
            "ended_on IS NULL AND expires_on <= :now ORDER BY expires_on, device, field LIMIT :limit",
            {"now": now_ms, "limit": limit},
        )

    def next_due(self, after_ms: int) -> Milliseconds | None:
        """When the next one expires after this time."""
        found = self._db.execute(
            "SELECT expires_on FROM wanted WHERE ended_on IS NULL AND expires_on > :after ORDER BY expires_on LIMIT 1",
            {"after": after_ms},
        ).one()
        return None if found is None else Milliseconds(found["expires_on"])

    def sweep(self, before_ms: int, *, limit: int) -> int:
        """Remove some that ended before this time; return how many."""
        found: Sequence[object] = list(
            self._db.execute(
                "DELETE FROM wanted WHERE (device, field) IN (SELECT device, field FROM wanted"
                " WHERE ended_on IS NOT NULL AND ended_on < :before ORDER BY ended_on, device, field LIMIT :limit)"
                " RETURNING field",
                {"before": before_ms, "limit": limit},
            )
        )
        return len(found)

    def position(self) -> Position:
        """All messages up to here were compared with the open ones."""
        row = self._db.execute("SELECT value FROM counter WHERE name = :name", {"name": _FOLLOWED}).one()
        return Position(0 if row is None else row["value"])

    def note_position(self, position: Position) -> None:
        self._db.execute(
            "INSERT INTO counter (name, value) VALUES (:name, :position) ON CONFLICT (name)"
            " DO UPDATE SET value = excluded.value WHERE excluded.value > counter.value",
            {"name": _FOLLOWED, "position": position},
        )
