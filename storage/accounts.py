"""Organizations, users, applications, their tokens and grants. The caller holds the transaction."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from config.mail import folded_address
from storage.keys import ApplicationKey, OrganizationKey, UserKey
from storage.records import ApplicationRecord, GrantRecord, OrganizationRecord, TokenRecord, UserRecord, user_record
from storage.sql import Store, record_values, replacing, sure

# A key is never given again: what is remembered of a removed user would change hands.
_NEXT_USER = (
    "(SELECT coalesce(max(known.key), 0) + 1 FROM (SELECT max(key) AS key FROM user"
    " UNION ALL SELECT value FROM counter WHERE name = 'removed user') AS known)"
)
_APPLICATIONS = "SELECT * FROM application WHERE deleted_on IS NULL"
_GRANT = ("user", "application", "device_type", "can_read", "can_write", "can_write_profile", "can_manage_trials")
_PERMISSIONS = _GRANT[3:]


class AccountStore(Store):
    # Organizations

    def organization_by_id(self, id_: str) -> OrganizationRecord | None:
        row = self._db.execute("SELECT * FROM organization WHERE id = :id", {"id": id_}).one()
        return OrganizationRecord(**dict(row)) if row else None

    def organization(self, key: OrganizationKey) -> OrganizationRecord | None:
        row = self._db.execute("SELECT * FROM organization WHERE key = :key", {"key": key}).one()
        return OrganizationRecord(**dict(row)) if row else None

    def organization_named(self, name: str) -> OrganizationRecord | None:
        row = self._db.execute("SELECT * FROM organization WHERE name = :name", {"name": name}).one()
        return OrganizationRecord(**dict(row)) if row else None

    def add_organization(self, id_: str, name: str, monthly_messages: int) -> OrganizationRecord:
        row = self._insert(
            "organization", {"id": id_, "name": name, "monthly_messages": monthly_messages}, "RETURNING *"
        ).one()
        return OrganizationRecord(**dict(sure(row)))

    def change_organization(self, organization: OrganizationKey, *, name: str, monthly_messages: int) -> None:
        self._db.execute(
            "UPDATE organization SET name = :name, monthly_messages = :monthly WHERE key = :key",
            {"key": organization, "name": name, "monthly": monthly_messages},
        )

    def set_role(self, organization: OrganizationKey, user: UserKey, role: str) -> None:
        values = {"organization": organization, "user": user, "role": role}
        self._insert("membership", values, "ON CONFLICT (organization, user) DO UPDATE SET role = excluded.role")

    def role_of(self, organization: OrganizationKey, user: UserKey) -> str | None:
        row = self._db.execute(
            "SELECT role FROM membership WHERE organization = :organization AND user = :user",
            {"organization": organization, "user": user},
        ).one()
        return str(row["role"]) if row else None

    def memberships(self, user: UserKey) -> list[tuple[OrganizationRecord, str]]:
        """The organizations of a user by name, each with the user's role."""
        rows = self._db.execute(
            "SELECT o.*, m.role AS held FROM membership AS m JOIN organization AS o ON o.key = m.organization"
            " WHERE m.user = :user ORDER BY o.name, o.key",
            {"user": user},
        )
        return [
            (OrganizationRecord(row["key"], row["id"], row["name"], row["monthly_messages"]), str(row["held"]))
            for row in rows
        ]

    def has_role(self, user: UserKey, role: str) -> bool:
        """The user has this role in some organization."""
        row = self._db.execute(
            "SELECT user FROM membership WHERE user = :user AND role = :role LIMIT 1", {"user": user, "role": role}
        ).one()
        return row is not None

    def addresses_of(self, organization: OrganizationKey, roles: Collection[str]) -> list[str]:
        """The e-mail addresses of the members in these roles."""
        rows = self._db.execute(
            "SELECT u.email, m.role FROM membership AS m JOIN user AS u ON u.key = m.user"
            " WHERE m.organization = :organization ORDER BY u.key",
            {"organization": organization},
        )
        return [row["email"] for row in rows if row["role"] in roles]

    # Users

    def user(self, key: UserKey) -> UserRecord | None:
        return self._user("key = :value", key)

    def users_with(self, keys: Iterable[UserKey]) -> dict[UserKey, UserRecord]:
        """The users with these keys, by key."""
        rows = self._db.execute(
            f"SELECT * FROM user WHERE key IN ({self._db.numbers_in('keys')})"  # noqa: S608 - constants
            " AND key NOT IN (SELECT user FROM leaving_user)",
            {"keys": json.dumps(list(keys))},
        )
        return {user.key: user for user in map(user_record, rows)}

    def user_by_id(self, id_: str) -> UserRecord | None:
        return self._user("id = :value", id_)

    def user_by_email(self, email: str) -> UserRecord | None:
        """The user with this address as written in the account, else with its form for comparison (reference 5.1)."""
        as_written = self._user("lower(email) = lower(:value)", email)
        return as_written or self._user("email_key = :value", folded_address(email))

    def without_address_key(self, *, limit: int) -> list[tuple[UserRecord, UserRecord | None]]:
        """The first accounts of an older store whose address is that of another account, and the other one."""
        rows = list(
            self._db.execute("SELECT * FROM user WHERE email_key IS NULL ORDER BY key LIMIT :limit", {"limit": limit})
        )
        found = [user_record(row) for row in rows]
        return [(one, self._user("email_key = :value", folded_address(one.email))) for one in found]

    def user_named(self, name: str) -> UserRecord | None:
        return self._user("name = :value", name)

    def _user(self, condition: str, value: object) -> UserRecord | None:
        # A user who is being deleted is gone for everybody (storage/leaving.py).
        row = self._db.execute(
            f"SELECT * FROM user WHERE {condition} AND key NOT IN (SELECT user FROM leaving_user)",  # noqa: S608 - constants
            {"value": value},
        ).one()
        return user_record(row) if row else None

    def users(self, *, limit: int) -> list[UserRecord]:
        """The first users, by e-mail address."""
        rows = self._db.execute(
            "SELECT * FROM user WHERE key NOT IN (SELECT user FROM leaving_user) ORDER BY lower(email) LIMIT :limit",
            {"limit": limit},
        )
        return [user_record(row) for row in rows]

    def add_user(self, user: UserRecord) -> UserRecord:
        """Add a user; the store gives the key. Raises StoreError when the id, address or name is taken."""
        row = self._db.execute(
            "INSERT INTO user (key, id, email, name, full_name, account_type, password_hash, created_on, modified_on,"  # noqa: S608 - constants
            f" email_verified_on, email_key) VALUES ({_NEXT_USER}, :id, :email, :name, :full_name, :account_type,"
            " :password_hash, :created_on, :modified_on, :email_verified_on, :email_key) RETURNING *",
            {
                "id": user.id,
                "email": user.email,
                "name": user.name,
                "full_name": user.full_name,
                "account_type": user.account_type,
                "password_hash": user.password_hash,
                "created_on": user.created_on,
                "modified_on": user.modified_on,
                "email_verified_on": user.email_verified_on,
                "email_key": folded_address(user.email),
            },
        ).one()
        return user_record(sure(row))

    def verify_email(self, user: UserKey, *, now_ms: int) -> None:
        """Note that the user has proved to own the address."""
        self._db.execute(
            "UPDATE user SET email_verified_on = :now WHERE key = :key AND email_verified_on IS NULL",
            {"key": user, "now": now_ms},
        )

    def change_user(self, user: UserKey, *, email: str, full_name: str, password_hash: str | None, now_ms: int) -> None:
        self._db.execute(
            "UPDATE user SET email_key = CASE WHEN lower(email) = lower(:email) THEN email_key ELSE :email_key END,"
            " email = :email, full_name = :full_name, password_hash = :password_hash, modified_on = :now"
            " WHERE key = :key",
            {
                "key": user,
                "email": email,
                "email_key": folded_address(email),
                "full_name": full_name,
                "password_hash": password_hash,
                "now": now_ms,
            },
        )

    def rename_user(self, user: UserKey, full_name: str, *, now_ms: int) -> None:
        self._db.execute(
            "UPDATE user SET full_name = :full_name, modified_on = :now WHERE key = :key",
            {"key": user, "full_name": full_name, "now": now_ms},
        )

    def set_language(self, user: UserKey, language: str | None, *, now_ms: int) -> None:
        """Set the language of the pages; None: as the browser wants it."""
        self._db.execute(
            "UPDATE user SET language = :language, modified_on = :now WHERE key = :key",
            {"key": user, "language": language, "now": now_ms},
        )

    def set_sign_in(self, user: UserKey, *, account_type: str, password_hash: str | None, now_ms: int) -> None:
        """Set how the user signs in from now on."""
        self._db.execute(
            "UPDATE user SET account_type = :type, password_hash = :hash, modified_on = :now WHERE key = :key",
            {"key": user, "type": account_type, "hash": password_hash, "now": now_ms},
        )

    def renew_password_hash(self, user: UserKey, password_hash: str) -> None:
        """Set another hash of the same password: for the user nothing has changed."""
        self._db.execute("UPDATE user SET password_hash = :hash WHERE key = :key", {"key": user, "hash": password_hash})

    def close_user(self, user: UserKey, *, id_: str, email: str, name: str, disabled_on: int) -> None:
        """Take address, user name and password from a user, for good: the address belongs to another one from now on.

        What other stores have of the user ends by itself; here: memberships, properties and names at providers.
        """
        self._db.execute(
            "UPDATE user SET id = :id, email = :email, email_key = :email, name = :name, password_hash = NULL,"
            " disabled_on = :disabled_on,"
            " modified_on = :disabled_on WHERE key = :key",
            {"key": user, "id": id_, "email": email, "name": name, "disabled_on": disabled_on},
        )
        for table in ("membership", "application_properties", "external_identity"):
            self._db.execute(f"DELETE FROM {table} WHERE user = :user", {"user": user})  # noqa: S608 - constants

    def set_disabled(self, user: UserKey, disabled_on: int | None) -> None:
        self._db.execute("UPDATE user SET disabled_on = :on WHERE key = :key", {"key": user, "on": disabled_on})

    # Applications: one that was deleted is never found

    def application(self, key: ApplicationKey) -> ApplicationRecord | None:
        row = self._db.execute(f"{_APPLICATIONS} AND key = :key", {"key": key}).one()
        return _application(row) if row else None

    def application_by_id(self, id_: str) -> ApplicationRecord | None:
        row = self._db.execute(f"{_APPLICATIONS} AND id = :id", {"id": id_}).one()
        return _application(row) if row else None

    def applications_named(self, name: str) -> list[ApplicationRecord]:
        rows = self._db.execute(f"{_APPLICATIONS} AND name = :name ORDER BY key", {"name": name})
        return [_application(row) for row in rows]

    def applications(self, *, limit: int) -> list[ApplicationRecord]:
        """The first applications, by name."""
        rows = self._db.execute(f"{_APPLICATIONS} ORDER BY name, key LIMIT :limit", {"limit": limit})
        return [_application(row) for row in rows]

    def applications_of(self, organization: OrganizationKey) -> list[ApplicationRecord]:
        """The applications of an organization, by name."""
        rows = self._db.execute(
            f"{_APPLICATIONS} AND organization = :organization ORDER BY name, key", {"organization": organization}
        )
        return [_application(row) for row in rows]

    def redirect_uris(self) -> set[str]:
        """The redirect URIs of every application."""
        rows = self._db.execute("SELECT redirect_uris FROM application")
        return {uri for row in rows for uri in json.loads(row["redirect_uris"])}

    def put_application(self, application: ApplicationRecord) -> ApplicationRecord:
        """Add an application, or replace the one with its id, also one that was deleted; the store gives the key."""
        values = {
            "id": application.id,
            "organization": application.organization,
            "name": application.name,
            "secret": application.secret,
            "methods": json.dumps(application.methods),
            "redirect_uris": json.dumps(application.redirect_uris),
            "permissions": json.dumps(application.permissions),
            "any_loopback_port": int(application.any_loopback_port),
            "manages_organization": int(application.manages_organization),
        }
        then = f"ON CONFLICT (id) DO UPDATE SET {replacing(values)}, deleted_on = NULL RETURNING *"
        return _application(sure(self._insert("application", values, then).one()))

    # Tokens

    def token(self, hash_: bytes) -> TokenRecord | None:
        row = self._db.execute("SELECT * FROM token WHERE hash = :hash", {"hash": hash_}).one()
        return TokenRecord(**dict(row)) if row else None

    def tokens_of_user(self, user: UserKey) -> list[TokenRecord]:
        """The user's tokens for all applications, without the tokens of the console's pages."""
        rows = self._db.execute("SELECT * FROM token WHERE user = :user AND session IS NULL", {"user": user})
        return [TokenRecord(**dict(row)) for row in rows]

    def put_token(self, token: TokenRecord) -> None:
        values = record_values(token)
        self._insert("token", values, f"ON CONFLICT (hash) DO UPDATE SET {replacing(values)}")

    def remove_token(self, hash_: bytes) -> None:
        self._db.execute("DELETE FROM token WHERE hash = :hash", {"hash": hash_})

    def remove_tokens_of(
        self, application: ApplicationKey, users: Collection[UserKey] | None
    ) -> list[tuple[bytes, UserKey | None]]:
        """Remove the tokens of these users for an application, or with None those of the application itself, but none
        of the console's pages. Returns hash and user of each."""
        whose = "user IS NULL" if users is None else f"user IN ({self._db.numbers_in('users')})"
        rows = self._db.execute(
            f"DELETE FROM token WHERE application = :application AND session IS NULL AND {whose} RETURNING hash, user",  # noqa: S608 - constants
            {"application": application, "users": json.dumps(list(users or ()))},
        )
        return [(row["hash"], row["user"]) for row in rows]

    def expired_tokens(self, *, after_ms: int, until_ms: int) -> list[bytes]:
        rows = self._db.execute(
            "SELECT hash FROM token WHERE expires_on > :after AND expires_on <= :until",
            {"after": after_ms, "until": until_ms},
        )
        return [row["hash"] for row in rows]

    # Grants

    def grants(self, application: ApplicationKey, user: UserKey | None = None) -> list[GrantRecord]:
        """The grants of all users, or of one user, for an application."""
        condition = "application = :application" if user is None else "application = :application AND user = :user"
        rows = self._db.execute(
            f"SELECT * FROM access_grant WHERE {condition}",  # noqa: S608 - constants
            {"application": application, "user": user},
        )
        return [_grant(row) for row in rows]

    def grants_of(self, user: UserKey) -> list[GrantRecord]:
        """The user's grants to all applications."""
        return [
            _grant(row) for row in self._db.execute("SELECT * FROM access_grant WHERE user = :user", {"user": user})
        ]

    def grants_of_users(
        self, application: ApplicationKey, users: Collection[UserKey]
    ) -> dict[UserKey, tuple[GrantRecord, ...]]:
        """The grants of each of these users to an application; of some there are none."""
        rows = self._db.execute(
            f"SELECT * FROM access_grant WHERE application = :application AND user IN ({self._db.numbers_in('users')})",  # noqa: S608 - constants
            {"application": application, "users": json.dumps(list(users))},
        )
        found: dict[UserKey, list[GrantRecord]] = {user: [] for user in users}
        for grant in map(_grant, rows):
            found[grant.user].append(grant)
        return {user: tuple(grants) for user, grants in found.items()}

    def put_grant(self, grant: GrantRecord) -> None:
        self._put_grants([grant], replacing(_PERMISSIONS))

    def add_grant(self, grant: GrantRecord) -> None:
        """Like `put_grant`, but a permission that is granted already is kept."""
        self.add_grants([grant])

    def add_grants(self, grants: Sequence[GrantRecord]) -> None:
        """As `add_grant`, of grants of which no two have the same user, application and device type."""
        kept = (f"{one} = CASE WHEN excluded.{one} = 1 THEN 1 ELSE access_grant.{one} END" for one in _PERMISSIONS)
        self._put_grants(grants, ", ".join(kept))

    def _put_grants(self, grants: Sequence[GrantRecord], change: str) -> None:
        if grants:
            given, parameters = self._db.given("access_grant", _GRANT, list(map(_grant_values, grants)))
            self._db.execute(
                f"INSERT INTO access_grant ({', '.join(_GRANT)}) SELECT * FROM ({given}) AS given WHERE TRUE"  # noqa: S608 - constants
                f" ON CONFLICT (user, application, coalesce(device_type, 0)) DO UPDATE SET {change}",
                parameters,
            )

    def remove_grants(self, user: UserKey, application: ApplicationKey) -> None:
        self.remove_grants_of([user], application)

    def remove_grants_of(self, users: Collection[UserKey], application: ApplicationKey) -> None:
        self._db.execute(
            f"DELETE FROM access_grant WHERE application = :application AND user IN ({self._db.numbers_in('users')})",  # noqa: S608 - constants
            {"application": application, "users": json.dumps(list(users))},
        )

    # User application properties

    def properties(self, user: UserKey, application: ApplicationKey) -> str | None:
        row = self._db.execute(
            "SELECT properties FROM application_properties WHERE user = :user AND application = :application",
            {"user": user, "application": application},
        ).one()
        return str(row["properties"]) if row else None

    def put_properties(self, user: UserKey, application: ApplicationKey, properties: str) -> None:
        self._insert(
            "application_properties",
            {"user": user, "application": application, "properties": properties},
            "ON CONFLICT (user, application) DO UPDATE SET properties = excluded.properties",
        )

    def remove_properties(self, user: UserKey, application: ApplicationKey) -> bool:
        """Return whether there were any."""
        row = self._db.execute(
            "DELETE FROM application_properties WHERE user = :user AND application = :application RETURNING user",
            {"user": user, "application": application},
        ).one()
        return row is not None


def _application(row: Mapping[str, Any]) -> ApplicationRecord:
    return ApplicationRecord(
        key=row["key"],
        id=row["id"],
        organization=row["organization"],
        name=row["name"],
        secret=row["secret"],
        methods=tuple(json.loads(row["methods"])),
        redirect_uris=tuple(json.loads(row["redirect_uris"])),
        permissions=tuple(json.loads(row["permissions"])),
        any_loopback_port=bool(row["any_loopback_port"]),
        manages_organization=bool(row["manages_organization"]),
    )


def _grant(row: Mapping[str, Any]) -> GrantRecord:
    return GrantRecord(
        user=row["user"],
        application=row["application"],
        device_type=row["device_type"],
        read=bool(row["can_read"]),
        write=bool(row["can_write"]),
        profile=bool(row["can_write_profile"]),
        trials=bool(row["can_manage_trials"]),
    )


def _grant_values(grant: GrantRecord) -> list[int | None]:
    permissions = (grant.read, grant.write, grant.profile, grant.trials)
    return [grant.user, grant.application, grant.device_type, *map(int, permissions)]
