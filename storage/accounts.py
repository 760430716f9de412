"""Organizations, users, applications, their tokens and grants. The caller holds the transaction."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from storage.records import ApplicationRecord, GrantRecord, OrganizationRecord, TokenRecord, UserRecord
from storage.sql import Connection


class AccountStore:
    def __init__(self, db: Connection) -> None:
        self._db = db

    # Organizations

    def organization_named(self, name: str) -> OrganizationRecord | None:
        row = self._db.execute("SELECT * FROM organization WHERE name = :name", {"name": name}).one()
        return OrganizationRecord(**dict(row)) if row else None

    def add_organization(self, id_: str, name: str, monthly_messages: int) -> OrganizationRecord:
        row = self._db.execute(
            "INSERT INTO organization (id, name, monthly_messages) VALUES (:id, :name, :monthly) RETURNING *",
            {"id": id_, "name": name, "monthly": monthly_messages},
        ).one()
        return OrganizationRecord(**dict(_sure(row)))

    def set_monthly_messages(self, organization: int, monthly_messages: int) -> None:
        self._db.execute(
            "UPDATE organization SET monthly_messages = :monthly WHERE key = :key",
            {"key": organization, "monthly": monthly_messages},
        )

    def set_role(self, organization: int, user: int, role: str) -> None:
        self._db.execute(
            "INSERT INTO membership (organization, user, role) VALUES (:organization, :user, :role)"
            " ON CONFLICT (organization, user) DO UPDATE SET role = excluded.role",
            {"organization": organization, "user": user, "role": role},
        )

    def role_of(self, organization: int, user: int) -> str | None:
        row = self._db.execute(
            "SELECT role FROM membership WHERE organization = :organization AND user = :user",
            {"organization": organization, "user": user},
        ).one()
        return str(row["role"]) if row else None

    # Users

    def user(self, key: int) -> UserRecord | None:
        return self._user("key = :value", key)

    def user_by_id(self, id_: str) -> UserRecord | None:
        return self._user("id = :value", id_)

    def user_by_email(self, email: str) -> UserRecord | None:
        return self._user("email = :value", email)

    def user_named(self, name: str) -> UserRecord | None:
        return self._user("name = :value", name)

    def _user(self, condition: str, value: object) -> UserRecord | None:
        row = self._db.execute(f"SELECT * FROM user WHERE {condition}", {"value": value}).one()  # noqa: S608 - ours
        return UserRecord(**dict(row)) if row else None

    def add_user(
        self, id_: str, *, email: str, name: str, full_name: str, password_hash: str | None, now_ms: int
    ) -> UserRecord:
        row = self._db.execute(
            "INSERT INTO user (id, email, name, full_name, account_type, password_hash, created_on, modified_on)"
            " VALUES (:id, :email, :name, :full_name, 'LOCAL', :password_hash, :now, :now) RETURNING *",
            {
                "id": id_,
                "email": email,
                "name": name,
                "full_name": full_name,
                "password_hash": password_hash,
                "now": now_ms,
            },
        ).one()
        return UserRecord(**dict(_sure(row)))

    def change_user(self, user: int, *, full_name: str, password_hash: str | None, now_ms: int) -> None:
        self._db.execute(
            "UPDATE user SET full_name = :full_name, password_hash = :password_hash, modified_on = :now"
            " WHERE key = :key",
            {"key": user, "full_name": full_name, "password_hash": password_hash, "now": now_ms},
        )

    # Applications

    def application(self, key: int) -> ApplicationRecord | None:
        row = self._db.execute("SELECT * FROM application WHERE key = :key", {"key": key}).one()
        return _application(row) if row else None

    def application_by_id(self, id_: str) -> ApplicationRecord | None:
        row = self._db.execute("SELECT * FROM application WHERE id = :id", {"id": id_}).one()
        return _application(row) if row else None

    def put_application(
        self,
        id_: str,
        *,
        organization: int,
        name: str,
        secret: bytes,
        methods: Sequence[str],
        redirect_uris: Sequence[str],
        permissions: Sequence[Mapping[str, object]],
    ) -> ApplicationRecord:
        row = self._db.execute(
            "INSERT INTO application (id, organization, name, secret, methods, redirect_uris, permissions)"
            " VALUES (:id, :organization, :name, :secret, :methods, :redirect_uris, :permissions)"
            " ON CONFLICT (id) DO UPDATE SET organization = excluded.organization, name = excluded.name,"
            " secret = excluded.secret, methods = excluded.methods, redirect_uris = excluded.redirect_uris,"
            " permissions = excluded.permissions RETURNING *",
            {
                "id": id_,
                "organization": organization,
                "name": name,
                "secret": secret,
                "methods": json.dumps(list(methods)),
                "redirect_uris": json.dumps(list(redirect_uris)),
                "permissions": json.dumps(list(permissions)),
            },
        ).one()
        return _application(_sure(row))

    # Tokens

    def token(self, hash_: bytes) -> TokenRecord | None:
        row = self._db.execute("SELECT * FROM token WHERE hash = :hash", {"hash": hash_}).one()
        return TokenRecord(**dict(row)) if row else None

    def put_token(self, token: TokenRecord) -> None:
        self._db.execute(
            "INSERT INTO token (hash, application, user, created_on, expires_on)"
            " VALUES (:hash, :application, :user, :created_on, :expires_on)"
            " ON CONFLICT (hash) DO UPDATE SET application = excluded.application, user = excluded.user,"
            " expires_on = excluded.expires_on",
            {
                "hash": token.hash,
                "application": token.application,
                "user": token.user,
                "created_on": token.created_on,
                "expires_on": token.expires_on,
            },
        )

    # Grants

    def grants(self, application: int, user: int | None = None) -> list[GrantRecord]:
        """What users, or one user, allow an application."""
        rows = self._db.execute(
            "SELECT * FROM access_grant WHERE application = :application AND (:user IS NULL OR user = :user)",
            {"application": application, "user": user},
        )
        return [
            GrantRecord(
                row["user"], row["application"], row["device_type"], bool(row["can_read"]), bool(row["can_write"])
            )
            for row in rows
        ]

    def put_grant(self, grant: GrantRecord) -> None:
        self._db.execute(
            "INSERT INTO access_grant (user, application, device_type, can_read, can_write)"
            " VALUES (:user, :application, :device_type, :read, :write)"
            " ON CONFLICT (user, application, coalesce(device_type, 0))"
            " DO UPDATE SET can_read = excluded.can_read, can_write = excluded.can_write",
            {
                "user": grant.user,
                "application": grant.application,
                "device_type": grant.device_type,
                "read": int(grant.read),
                "write": int(grant.write),
            },
        )


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
    )


def _sure(row: Mapping[str, Any] | None) -> Mapping[str, Any]:
    assert row is not None, "RETURNING gives the row it wrote"  # noqa: S101 - an invariant of the statement
    return row
