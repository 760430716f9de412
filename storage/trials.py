"""Trials: their members, device types and connected devices. The caller holds the transaction."""

import json
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, Milliseconds, OrganizationKey, UserKey
from storage.records import UserRecord, user_record
from storage.sql import Store, record_values, sure


class TrialRecord(msgspec.Struct, frozen=True):
    key: int
    id: str
    owner: UserKey
    name: str
    description: str | None
    application: ApplicationKey
    started_on: Milliseconds
    ended_on: Milliseconds | None = None  # None: it goes on
    made_through: ApplicationKey | None = None  # None: not known


class TrialDeviceRow(msgspec.Struct, frozen=True):
    """A device that its owner connected to a trial."""

    device: DeviceKey
    user: UserKey
    connected_on: Milliseconds


_TRIAL: Final = TrialRecord.__struct_fields__
_CONNECTED: Final = (
    " FROM trial_device AS t JOIN device AS d ON d.key = t.device AND d.deleted_on IS NULL WHERE t.trial = :trial"
)


class TrialStore(Store):
    # Trials

    def add(self, trial: TrialRecord) -> TrialRecord:
        """Add a trial. The store gives its key."""
        row = sure(self._insert("trial", record_values(trial, _TRIAL[1:]), "RETURNING *").one())
        return TrialRecord(**dict(row))

    def put(self, trial: TrialRecord) -> None:
        """Change name, description and end of the trial with this key."""
        self._db.execute(
            "UPDATE trial SET name = :name, description = :description, ended_on = :ended_on WHERE key = :key",
            record_values(trial, ("name", "description", "ended_on", "key")),
        )

    def remove(self, trial: int) -> None:
        """Delete a trial and all that belongs to it."""
        self._db.execute("DELETE FROM trial WHERE key = :key", {"key": trial})

    def by_id(self, id_: str) -> TrialRecord | None:
        return self._trial("id = :value", id_)

    def trial(self, key: int) -> TrialRecord | None:
        return self._trial("key = :value", key)

    def of_application(self, application: ApplicationKey) -> TrialRecord | None:
        return self._trial("application = :value", application)

    def _trial(self, condition: str, value: object) -> TrialRecord | None:
        row = self._db.execute(f"SELECT * FROM trial WHERE {condition}", {"value": value}).one()  # noqa: S608 - constants
        return TrialRecord(**dict(row)) if row else None

    def count_of_owner(self, owner: UserKey) -> int:
        return self._number_of(" FROM trial WHERE owner = :owner", {"owner": owner})

    def tally(self, user: UserKey, *, day: int) -> int:
        """Count one more trial that the user created on this day; return how many there are."""
        row = self._db.execute(
            "INSERT INTO trial_tally (user, day, created) VALUES (:user, :day, 1) ON CONFLICT (user) DO UPDATE SET"
            " created = CASE WHEN trial_tally.day = excluded.day THEN trial_tally.created + 1 ELSE 1 END,"
            " day = excluded.day RETURNING created",
            {"user": user, "day": day},
        ).one()
        return int(sure(row)["created"])

    def page_of_user(
        self, user: UserKey, roles: Sequence[str], *, offset: int, limit: int
    ) -> tuple[list[TrialRecord], int]:
        """A page of the trials in which the user has one of the roles, oldest first, and the number of all."""
        named: dict[str, object] = {f"role_{index}": role for index, role in enumerate(roles)}
        where = (
            " FROM trial AS t WHERE EXISTS (SELECT 1 FROM trial_member AS m WHERE m.trial = t.key AND m.user = :user"  # noqa: S608 - parameters
            f" AND m.role IN ({', '.join(f':{name}' for name in named)}))"
        )
        given = {"user": user, "offset": offset, "limit": limit, **named}
        rows = self._db.execute(f"SELECT t.*{where} ORDER BY t.key LIMIT :limit OFFSET :offset", given)
        return [TrialRecord(**dict(row)) for row in rows], self._number_of(where, given)

    def of_owner(self, owner: UserKey) -> list[TrialRecord]:
        rows = self._db.execute("SELECT * FROM trial WHERE owner = :owner ORDER BY key", {"owner": owner})
        return [TrialRecord(**dict(row)) for row in rows]

    def roles_of(self, user: UserKey) -> list[tuple[TrialRecord, str]]:
        """The trials of which the user is a member, once for each role."""
        rows = self._db.execute(
            "SELECT t.*, m.role AS held FROM trial_member AS m JOIN trial AS t ON t.key = m.trial"
            " WHERE m.user = :user ORDER BY m.key",
            {"user": user},
        )
        return [(TrialRecord(**{name: row[name] for name in _TRIAL}), str(row["held"])) for row in rows]

    # Applications

    def personal_organization(self, user: UserKey) -> OrganizationKey | None:
        row = self._db.execute(
            "SELECT organization FROM personal_organization WHERE user = :user", {"user": user}
        ).one()
        return OrganizationKey(row["organization"]) if row else None

    def put_personal_organization(self, user: UserKey, organization: OrganizationKey) -> None:
        self._insert("personal_organization", {"user": user, "organization": organization})

    def organization_of(self, user: UserKey) -> OrganizationKey | None:
        """The first organization of which the user is a member."""
        row = self._db.execute(
            "SELECT organization FROM membership WHERE user = :user ORDER BY organization LIMIT 1", {"user": user}
        ).one()
        return OrganizationKey(row["organization"]) if row else None

    def rename_application(self, application: ApplicationKey, *, id_: str, secret: bytes) -> None:
        """Give the application another id and secret. The former id is no application any more."""
        self._db.execute(
            "UPDATE application SET id = :id, secret = :secret WHERE key = :key",
            {"key": application, "id": id_, "secret": secret},
        )

    def set_methods(self, application: ApplicationKey, methods: str) -> None:
        """Set how the application may get tokens: an array, as JSON."""
        self._db.execute(
            "UPDATE application SET methods = :methods WHERE key = :key", {"key": application, "methods": methods}
        )

    def name_application(self, application: ApplicationKey, name: str) -> None:
        self._db.execute("UPDATE application SET name = :name WHERE key = :key", {"key": application, "name": name})

    def token_holders(self, application: ApplicationKey) -> list[UserKey]:
        """The users who have tokens of the application."""
        rows = self._db.execute(
            "SELECT user FROM token WHERE application = :application AND user IS NOT NULL UNION"
            " SELECT user FROM token_family WHERE application = :application",
            {"application": application},
        )
        return [row["user"] for row in rows]

    def remove_tokens_of_devices(
        self, users: Collection[UserKey], application: ApplicationKey
    ) -> list[tuple[DeviceKey, bytes]]:
        """Remove the tokens that the application made for devices of these users; return device and hash of each."""
        rows = self._db.execute(
            "DELETE FROM device_token WHERE application = :application AND device IN (SELECT key FROM device"  # noqa: S608 - constants
            f" WHERE owner IN ({self._db.numbers_in('users')})) RETURNING device, hash",
            {"users": json.dumps(list(users)), "application": application},
        )
        return sorted((row["device"], row["hash"]) for row in rows)

    def remove_type_grants(self, application: ApplicationKey, device_type: DeviceTypeKey) -> list[UserKey]:
        """Remove all grants of an application on a device type; return whose they were."""
        rows = self._db.execute(
            "DELETE FROM access_grant WHERE application = :application AND device_type = :type RETURNING user",
            {"application": application, "type": device_type},
        )
        return [row["user"] for row in rows]

    # Members

    def add_member(
        self, trial: int, user: UserKey, role: str, *, now_ms: int, application: ApplicationKey | None = None
    ) -> None:
        """`application`: with whose token the user accepted; None: on the page of the invitation."""
        given = {"trial": trial, "user": user, "role": role, "since": now_ms, "application": application}
        self._insert("trial_member", given)

    def remove_member(self, trial: int, user: UserKey, role: str) -> None:
        self._db.execute(
            "DELETE FROM trial_member WHERE trial = :trial AND user = :user AND role = :role",
            {"trial": trial, "user": user, "role": role},
        )

    def has_role(self, trial: int, user: UserKey, role: str) -> bool:
        row = self._db.execute(
            "SELECT 1 FROM trial_member WHERE trial = :trial AND role = :role AND user = :user",
            {"trial": trial, "user": user, "role": role},
        ).one()
        return row is not None

    def members(self, trial: int, role: str) -> list[UserKey]:
        rows = self._db.execute(
            "SELECT user FROM trial_member WHERE trial = :trial AND role = :role ORDER BY key",
            {"trial": trial, "role": role},
        )
        return [row["user"] for row in rows]

    def participants(self, trial: int) -> list[tuple[UserKey, ApplicationKey | None]]:
        """The participants, each with the application of `add_member`."""
        rows = self._db.execute(
            "SELECT user, application FROM trial_member WHERE trial = :trial AND role = 'participant' ORDER BY key",
            {"trial": trial},
        )
        return [(row["user"], row["application"]) for row in rows]

    def administered_by(self, user: UserKey) -> list[TrialRecord]:
        """The trials that the user administers."""
        rows = self._db.execute(
            "SELECT t.* FROM trial_member AS m JOIN trial AS t ON t.key = m.trial"
            " WHERE m.user = :user AND m.role = 'administrator' ORDER BY m.key",
            {"user": user},
        )
        return [TrialRecord(**dict(row)) for row in rows]

    def count_members(self, trial: int, role: str) -> int:
        return self._number_of(
            " FROM trial_member WHERE trial = :trial AND role = :role", {"trial": trial, "role": role}
        )

    def page_of_members(self, trial: int, role: str, *, offset: int, limit: int) -> tuple[list[UserRecord], int]:
        """A page of the users with this role, in the order in which they came, and the number of all."""
        where = " FROM trial_member AS m JOIN user AS u ON u.key = m.user WHERE m.trial = :trial AND m.role = :role"
        given = {"trial": trial, "role": role, "offset": offset, "limit": limit}
        rows = self._db.execute(f"SELECT u.*{where} ORDER BY m.key LIMIT :limit OFFSET :offset", given)
        return [user_record(row) for row in rows], self._number_of(where, given)

    # Device types

    def add_type(self, trial: int, device_type: DeviceTypeKey) -> None:
        given = {"trial": trial, "device_type": device_type}
        self._insert("trial_device_type", given)

    def remove_type(self, trial: int, device_type: DeviceTypeKey) -> None:
        """Take the type out of the trial, and its devices."""
        given = {"trial": trial, "type": device_type}
        self._db.execute("DELETE FROM trial_device_type WHERE trial = :trial AND device_type = :type", given)
        self._db.execute(
            "DELETE FROM trial_device WHERE trial = :trial AND device IN"
            " (SELECT key FROM device WHERE device_type = :type)",
            given,
        )

    def types(self, trial: int) -> list[DeviceTypeKey]:
        """The device types of a trial, in the order in which they were added."""
        rows = self._db.execute(
            "SELECT device_type FROM trial_device_type WHERE trial = :trial ORDER BY key", {"trial": trial}
        )
        return [row["device_type"] for row in rows]

    def is_type_of_application(self, application: ApplicationKey, device_type: DeviceTypeKey) -> bool:
        """The application is that of a trial which has the device type."""
        row = self._db.execute(
            "SELECT 1 FROM trial AS t JOIN trial_device_type AS y ON y.trial = t.key"
            " WHERE t.application = :application AND y.device_type = :type",
            {"application": application, "type": device_type},
        ).one()
        return row is not None

    # Devices

    def connect(self, trial: int, user: UserKey, device: DeviceKey, *, now_ms: int) -> None:
        given = {"trial": trial, "user": user, "device": device, "connected_on": now_ms}
        self._insert("trial_device", given)

    def disconnect(self, trial: int, device: DeviceKey) -> None:
        self._db.execute(
            "DELETE FROM trial_device WHERE trial = :trial AND device = :device", {"trial": trial, "device": device}
        )

    def disconnect_all(self, trial: int, user: UserKey) -> None:
        """Disconnect every device of the user, also deleted ones, which may be restored."""
        self._db.execute(
            "DELETE FROM trial_device WHERE trial = :trial AND user = :user", {"trial": trial, "user": user}
        )

    def disconnect_ungranted(self, trial: int, application: ApplicationKey) -> None:
        """Disconnect the devices that the application may not read."""
        self._db.execute(
            "DELETE FROM trial_device WHERE trial = :trial AND NOT EXISTS (SELECT 1 FROM device AS d"
            " JOIN access_grant AS g ON g.user = d.owner AND g.device_type = d.device_type"
            " WHERE d.key = trial_device.device AND g.application = :application AND g.can_read = 1)",
            {"trial": trial, "application": application},
        )

    def is_connected(self, trial: int, device: DeviceKey) -> bool:
        return self._number_of(f"{_CONNECTED} AND t.device = :device", {"trial": trial, "device": device}) > 0

    def count_devices(self, trial: int, user: UserKey | None = None) -> int:
        """The number of devices of the user, or of all participants, also deleted ones."""
        where = " FROM trial_device WHERE trial = :trial" + ("" if user is None else " AND user = :user")
        return self._number_of(where, {"trial": trial, "user": user})

    def devices(self, trial: int) -> list[TrialDeviceRow]:
        """All devices, in the order in which they were connected."""
        rows = self._db.execute(f"SELECT t.device, t.user, t.connected_on{_CONNECTED} ORDER BY t.key", {"trial": trial})
        return [TrialDeviceRow(**dict(row)) for row in rows]

    def page_of_devices(
        self, trial: int, user: UserKey | None, *, offset: int, limit: int
    ) -> tuple[list[TrialDeviceRow], int]:
        """A page of the devices of one participant or of all, and the number of all."""
        where = _CONNECTED + ("" if user is None else " AND t.user = :user")
        given = {"trial": trial, "user": user, "offset": offset, "limit": limit}
        rows = self._db.execute(
            f"SELECT t.device, t.user, t.connected_on{where} ORDER BY t.key LIMIT :limit OFFSET :offset", given
        )
        return [TrialDeviceRow(**dict(row)) for row in rows], self._number_of(where, given)
