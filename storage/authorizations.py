"""Authorizations of users: families of tokens, their refresh tokens, and the codes that are exchanged for tokens.

The caller holds the transaction. Access tokens are in storage/accounts.py.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from storage.keys import ApplicationKey, UserKey
from storage.records import AuthorizationCodeRecord, DeviceCodeRecord, RefreshTokenRecord
from storage.signing_keys import SigningKeyStore
from storage.sql import Store, record_values

_KEPT_DEVICE_CODE_MS = 86_400_000  # until then an old code is answered as expired, afterwards as unknown


class AuthorizationStore(Store):
    @property
    def signing_keys(self) -> SigningKeyStore:
        """The keys that sign ID tokens."""
        return SigningKeyStore(self._db)

    # Families and refresh tokens

    def add_family(
        self, *, application: ApplicationKey, user: UserKey, method: str, now_ms: int, scope: str = ""
    ) -> int:
        values = {"application": application, "user": user, "method": method, "scope": scope}
        times = {"created_on": now_ms, "usable_until": now_ms}
        row = self._insert("token_family", {**values, **times}, "RETURNING key").one()
        return int(row["key"]) if row else 0

    def scope_of(self, family: int) -> str:
        """The scopes of OpenID Connect with which the family began."""
        row = self._db.execute("SELECT scope FROM token_family WHERE key = :key", {"key": family}).one()
        return str(row["scope"]) if row else ""

    def end_families(self, families: Collection[int]) -> list[bytes]:
        """Delete families, their refresh tokens and access tokens; return the hashes of the access tokens."""
        given, chosen = {"families": json.dumps(list(families))}, self._db.numbers_in("families")
        rows = self._db.execute(f"SELECT hash FROM token WHERE family IN ({chosen})", given)  # noqa: S608 - constants
        hashes = [row["hash"] for row in rows]
        self._db.execute(f"DELETE FROM token_family WHERE key IN ({chosen})", given)  # noqa: S608 - constants
        return hashes

    def holders_of(self, families: Collection[int]) -> list[tuple[str, str]]:
        """The ids of the application and the user of each family."""
        rows = self._db.execute(
            "SELECT a.id AS application_id, u.id AS user_id FROM token_family AS f"  # noqa: S608 - constants
            " JOIN application AS a ON a.key = f.application JOIN user AS u ON u.key = f.user"
            f" WHERE f.key IN ({self._db.numbers_in('families')}) ORDER BY f.key",
            {"families": json.dumps(list(families))},
        )
        return [(row["application_id"], row["user_id"]) for row in rows]

    def families_for(self, application: ApplicationKey, users: Collection[UserKey]) -> list[int]:
        """The families of these users for an application."""
        rows = self._db.execute(
            "SELECT key FROM token_family WHERE application = :application"  # noqa: S608 - constants
            f" AND user IN ({self._db.numbers_in('users')})",
            {"application": application, "users": json.dumps(list(users))},
        )
        return [row["key"] for row in rows]

    def families_of(self, user: UserKey, application: ApplicationKey | None = None) -> list[int]:
        """The families of a user, of one application or of all."""
        rows = self._db.execute(
            f"SELECT key FROM token_family WHERE user = :user{_of(application)}",  # noqa: S608 - constants
            {"user": user, "application": application},
        )
        return [row["key"] for row in rows]

    def forget_codes_of(self, user: UserKey, application: ApplicationKey | None = None) -> None:
        """Invalidate the codes that the user agreed to and that no application, or not this one, has exchanged yet."""
        named = {"user": user, "application": application}
        self._db.execute(
            f"DELETE FROM authorization_code WHERE user = :user AND used_on IS NULL{_of(application)}",  # noqa: S608
            named,
        )
        self._db.execute(
            "UPDATE device_code SET state = 'denied' WHERE user = :user AND state = 'approved'"  # noqa: S608
            + _of(application),
            named,
        )

    def shorten_tokens(self, family: int, *, but: bytes, until_ms: int) -> list[bytes]:
        """End access tokens of the family, except `but`, at that time if they expire later; return their hashes."""
        rows = self._db.execute(
            "UPDATE token SET expires_on = :until WHERE family = :family AND hash <> :but AND expires_on > :until"
            " RETURNING hash",
            {"family": family, "but": but, "until": until_ms},
        )
        return [row["hash"] for row in rows]

    def add_refresh_token(self, hash_: bytes, family: int, *, usable_until: int) -> None:
        self._insert("refresh_token", {"hash": hash_, "family": family, "usable_until": usable_until})
        self._db.execute(
            "UPDATE token_family SET usable_until = :until WHERE key = :family",
            {"family": family, "until": usable_until},
        )

    def refresh_token(self, hash_: bytes) -> RefreshTokenRecord | None:
        row = self._db.execute(
            "SELECT r.*, f.application, f.user, f.method FROM refresh_token AS r"
            " JOIN token_family AS f ON f.key = r.family WHERE r.hash = :hash",
            {"hash": hash_},
        ).one()
        return RefreshTokenRecord(**dict(row)) if row else None

    def use_refresh_token(self, hash_: bytes, *, salt: bytes, now_ms: int) -> None:
        self._db.execute(
            "UPDATE refresh_token SET used_on = :now, salt = :salt WHERE hash = :hash",
            {"hash": hash_, "now": now_ms, "salt": salt},
        )

    # Authorization codes

    def add_code(self, code: AuthorizationCodeRecord) -> None:
        names = ("hash", "application", "user", "redirect_uri", "code_challenge", "expires_on")
        self._insert("authorization_code", record_values(code, (*names, "scope", "nonce", "signed_in_on")))

    def code(self, hash_: bytes) -> AuthorizationCodeRecord | None:
        row = self._db.execute("SELECT * FROM authorization_code WHERE hash = :hash", {"hash": hash_}).one()
        return AuthorizationCodeRecord(**dict(row)) if row else None

    def use_code(self, hash_: bytes, *, family: int, now_ms: int) -> None:
        self._db.execute(
            "UPDATE authorization_code SET used_on = :now, family = :family WHERE hash = :hash",
            {"hash": hash_, "family": family, "now": now_ms},
        )

    # Device codes

    def add_device_code(self, code: DeviceCodeRecord) -> None:
        names = ("hash", "user_code", "application", "interval_seconds", "expires_on", "state")
        self._insert("device_code", record_values(code, names))

    def device_code(self, hash_: bytes) -> DeviceCodeRecord | None:
        row = self._db.execute("SELECT * FROM device_code WHERE hash = :hash", {"hash": hash_}).one()
        return _device_code(row) if row else None

    def device_code_shown_as(self, user_code: str) -> DeviceCodeRecord | None:
        row = self._db.execute("SELECT * FROM device_code WHERE user_code = :code", {"code": user_code}).one()
        return _device_code(row) if row else None

    def decide_device_code(self, hash_: bytes, *, state: str, user: UserKey | None) -> None:
        self._db.execute(
            "UPDATE device_code SET state = :state, user = :user WHERE hash = :hash",
            {"hash": hash_, "state": state, "user": user},
        )

    def poll_device_code(self, hash_: bytes, *, interval_seconds: int, polled_on: int) -> None:
        self._db.execute(
            "UPDATE device_code SET interval_seconds = :interval, polled_on = :on WHERE hash = :hash",
            {"hash": hash_, "interval": interval_seconds, "on": polled_on},
        )

    # Removing what has ended

    def purge(self, *, now_ms: int, refresh_window_ms: int, limit: int) -> bool:
        """Remove tokens and codes that can neither be used nor refreshed and need not be recognised as replayed.

        At most `limit` of each kind are removed. Returns whether there may be more.
        """
        ends = {
            "token": ("hash", "expires_on <= :token_end"),
            "refresh_token": ("hash", "usable_until <= :now"),
            "token_family": ("key", "usable_until <= :now"),
            # A used code is kept for as long as a replay of it has something to revoke.
            "authorization_code": ("hash", "expires_on <= :now AND family IS NULL"),
            "device_code": ("hash", "expires_on <= :device_code_end"),
        }
        parameters = {
            "now": now_ms,
            "token_end": now_ms - refresh_window_ms,
            "device_code_end": now_ms - _KEPT_DEVICE_CODE_MS,
            "limit": limit,
        }
        more = False
        for table, (key, over) in ends.items():
            chosen = f"SELECT {key} FROM {table} WHERE {over} LIMIT :limit"  # noqa: S608 - constants
            statement = f"DELETE FROM {table} WHERE {key} IN ({chosen}) RETURNING 1 AS gone"  # noqa: S608 - constants
            removed = sum(row["gone"] for row in self._db.execute(statement, parameters))
            more = more or removed >= limit
        return more


def _of(application: ApplicationKey | None) -> str:
    return "" if application is None else " AND application = :application"


def _device_code(row: Mapping[str, Any]) -> DeviceCodeRecord:
    return DeviceCodeRecord(**dict(row))
