"""Subscriptions, and up to where the message log has been read for each of them. The caller holds the transaction."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, OrganizationKey, Position, UserKey
from storage.sql import Store, record_values, sure

CONSUMER: Final = "subscriptions"


class SubscriptionRecord(msgspec.Struct, frozen=True):
    """A subscription: of an application, to the devices of a user.

    `spelling` is the `subscriptionType` of its creation. The secrets are sealed.
    """

    key: int
    id: str
    application: ApplicationKey
    user: UserKey
    message_type: str  # message | action
    spelling: str  # httpCallback | cloudStream | awsKinesis
    device_type: DeviceTypeKey | None
    source: DeviceKey | None
    destination: DeviceKey | None
    include_shared: bool
    description: str | None
    payload: str  # messages | notification
    callback_url: str | None
    stream_key: str | None
    stream_secret: bytes | None
    stream_region: str | None
    stream_name: str | None
    nonce: bytes | None
    handshake_tries: int
    handshake_on: int | None  # when the handshake is tried next; None: it is over
    webhook_secret: bytes | None
    old_webhook_secret: bytes | None  # the former ones (broker/subscriptions/secrets.py)
    old_secret_until: int | None  # until when the latest of them signs
    status: str
    created_on: int
    modified_on: int
    failing_since: int | None = None  # of the first failure after the last success
    last_error: str | None = None
    removed_on: int | None = None

    @property
    def is_stream(self) -> bool:
        return self.callback_url is None


_COLUMNS = SubscriptionRecord.__struct_fields__


class SubscriptionNames(msgspec.Struct, frozen=True):
    """The ids of the objects that a subscription refers to, as clients see them."""

    application_id: str
    organization: OrganizationKey
    user_id: str
    device_type_id: str | None
    source_id: str | None
    destination_id: str | None


class CursorRecord(msgspec.Struct, frozen=True):
    subscription: int
    position: Position
    is_behind: bool


class SubscriptionStore(Store):
    # Subscriptions

    def add(self, record: SubscriptionRecord) -> SubscriptionRecord:
        """Add a subscription. The store gives its key."""
        values = record_values(record, _COLUMNS[1:]) | {"include_shared": int(record.include_shared)}
        return _record(sure(self._insert("subscription", values, "RETURNING *").one()))

    def put(self, record: SubscriptionRecord) -> None:
        values = [getattr(record, name) for name in _COLUMNS]
        values[_COLUMNS.index("include_shared")] = int(record.include_shared)
        self._db.put_many("subscription", _COLUMNS, ("key",), [values])

    def by_key(self, key: int) -> SubscriptionRecord | None:
        """A subscription, also a removed one."""
        row = self._db.execute("SELECT * FROM subscription WHERE key = :key", {"key": key}).one()
        return _record(row) if row else None

    def by_id(self, id_: str) -> SubscriptionRecord | None:
        """A subscription, also a removed one."""
        row = self._db.execute("SELECT * FROM subscription WHERE id = :id", {"id": id_}).one()
        return _record(row) if row else None

    def of_user(self, application: ApplicationKey, user: UserKey) -> list[SubscriptionRecord]:
        """An application's subscriptions for a user that are not removed, in the order of their creation."""
        rows = self._db.execute(
            "SELECT * FROM subscription WHERE removed_on IS NULL AND application = :application AND user = :user"
            " ORDER BY key",
            {"application": application, "user": user},
        )
        return [_record(row) for row in rows]

    def keys_of(self, user: UserKey) -> list[int]:
        """The keys of all subscriptions of the user, in all applications."""
        rows = self._db.execute(
            "SELECT key FROM subscription WHERE user = :user AND removed_on IS NULL ORDER BY key", {"user": user}
        )
        return [row["key"] for row in rows]

    def of_application(self, application: ApplicationKey) -> list[SubscriptionRecord]:
        """The application's subscriptions of all users that are not removed."""
        rows = self._db.execute(
            "SELECT * FROM subscription WHERE removed_on IS NULL AND application = :application ORDER BY key",
            {"application": application},
        )
        return [_record(row) for row in rows]

    def count_of(self, application: ApplicationKey, user: UserKey) -> int:
        row = self._db.execute(
            "SELECT count(*) AS n FROM subscription WHERE removed_on IS NULL AND application = :application"
            " AND user = :user",
            {"application": application, "user": user},
        ).one()
        return int(sure(row)["n"])

    def in_use(self) -> list[tuple[SubscriptionRecord, SubscriptionNames]]:
        """All subscriptions that are not removed, in the order of their creation."""
        rows = self._db.execute("SELECT * FROM subscription WHERE removed_on IS NULL ORDER BY key")
        return [(record, self.names(record)) for record in map(_record, rows)]

    def failing(self) -> dict[int, str]:
        """The last error of each failing subscription, by its key: one with no success since that error."""
        rows = self._db.execute(
            "SELECT key, last_error FROM subscription WHERE removed_on IS NULL AND failing_since IS NOT NULL"
        )
        return {row["key"]: row["last_error"] or "" for row in rows}

    def note_failing(self, key: int, since_ms: int | None, error: str | None) -> None:
        """Note since when every attempt fails, and the last error; None: the last attempt succeeded."""
        self._db.execute(
            "UPDATE subscription SET failing_since = :since, last_error = :error WHERE key = :key",
            {"key": key, "since": since_ms, "error": error},
        )

    def names(self, record: SubscriptionRecord) -> SubscriptionNames:
        row = self._db.execute(
            "SELECT a.id AS application_id, a.organization, u.id AS user_id,"
            " (SELECT id FROM device_type WHERE key = :type) AS device_type_id,"
            " (SELECT id FROM device WHERE key = :source) AS source_id,"
            " (SELECT id FROM device WHERE key = :destination) AS destination_id"
            " FROM application AS a, user AS u WHERE a.key = :application AND u.key = :user",
            {
                "type": record.device_type,
                "source": record.source,
                "destination": record.destination,
                "application": record.application,
                "user": record.user,
            },
        ).one()
        return SubscriptionNames(**dict(sure(row)))

    def orphans(self) -> list[int]:
        """Subscriptions whose user took back every grant, or whose device is deleted.

        Where a new password ended the grants, they wait: the user decides about them.
        """
        rows = self._db.execute(
            "SELECT s.key FROM subscription AS s WHERE s.removed_on IS NULL AND (NOT EXISTS (SELECT 1 FROM access_grant"
            " AS g WHERE g.user = s.user AND g.application = s.application) AND NOT EXISTS (SELECT 1 FROM ended_consent"
            " AS e WHERE e.user = s.user AND e.application = s.application AND e.by_user = 0)"
            " OR (coalesce(s.source, s.destination) IS NOT NULL AND NOT EXISTS (SELECT 1 FROM device AS d"
            " WHERE d.key = coalesce(s.source, s.destination)"
            " AND d.deleted_on IS NULL)))"
        )
        return [row["key"] for row in rows]

    def forget_removed(self, before_ms: int, *, limit: int) -> int:
        """Delete the rows of subscriptions that were removed before this time. Return how many."""
        rows = self._db.execute(
            "DELETE FROM subscription WHERE key IN"
            " (SELECT key FROM subscription WHERE removed_on < :before LIMIT :limit) RETURNING key",
            {"before": before_ms, "limit": limit},
        )
        return sum(1 for _ in rows)

    # The log and its readers

    def reader_position(self) -> Position | None:
        """Up to where the log is read for the subscriptions that are not behind; None before the first one."""
        row = self._db.execute("SELECT position FROM consumer WHERE name = :name", {"name": CONSUMER}).one()
        return Position(row["position"]) if row else None

    def forget_reader(self) -> None:
        """Delete the reader's position: without subscriptions, no row of the log waits for it."""
        self._db.execute("DELETE FROM consumer WHERE name = :name", {"name": CONSUMER})

    def cursor(self, subscription: int) -> CursorRecord | None:
        row = self._db.execute(
            "SELECT * FROM subscription_cursor WHERE subscription = :key", {"key": subscription}
        ).one()
        return CursorRecord(subscription, row["position"], bool(row["is_behind"])) if row else None

    def put_cursors(self, cursors: Sequence[CursorRecord]) -> None:
        rows = [(one.subscription, one.position, int(one.is_behind)) for one in cursors]
        self._db.put_many("subscription_cursor", ("subscription", "position", "is_behind"), ("subscription",), rows)

    def forget_cursors(self, subscriptions: Collection[int]) -> None:
        for key in subscriptions:
            self._db.execute("DELETE FROM subscription_cursor WHERE subscription = :key", {"key": key})


def _record(row: Mapping[str, Any]) -> SubscriptionRecord:
    values = {name: row[name] for name in _COLUMNS}
    values["include_shared"] = bool(values["include_shared"])
    return SubscriptionRecord(**values)
