"""Addresses that changed hands, and consents that ended. The caller holds the transaction."""

import msgspec

from storage.keys import ApplicationKey, DeviceKey, Milliseconds, UserKey
from storage.sql import Store, record_values


class ClaimRecord(msgspec.Struct, frozen=True):
    """A row of `account_claim`. `content` is JSON of broker/accounts/claims.py."""

    user: UserKey
    former: str
    claimed_on: Milliseconds
    content: str


class ClaimStore(Store):
    def put(self, claim: ClaimRecord) -> None:
        self._insert("account_claim", record_values(claim))

    def of(self, user: UserKey) -> ClaimRecord | None:
        row = self._db.execute("SELECT * FROM account_claim WHERE user = :user", {"user": user}).one()
        return ClaimRecord(**dict(row)) if row else None

    def devices_of_former(self, *, limit: int) -> list[DeviceKey]:
        """The first devices of closed accounts that are not deleted."""
        rows = self._db.execute(
            "SELECT d.key FROM account_claim AS c JOIN user AS u ON u.id = c.former JOIN device AS d ON d.owner = u.key"
            " WHERE d.deleted_on IS NULL ORDER BY d.key LIMIT :limit",
            {"limit": limit},
        )
        return [row["key"] for row in rows]

    # Consents that ended

    def end_consent(self, user: UserKey, application: ApplicationKey, *, by_user: bool) -> None:
        self._insert(
            "ended_consent",
            {"user": user, "application": application, "by_user": int(by_user)},
            "ON CONFLICT (user, application) DO UPDATE SET by_user = excluded.by_user",
        )

    def consent_ended(self, user: UserKey, application: ApplicationKey) -> bool:
        row = self._db.execute(
            "SELECT by_user FROM ended_consent WHERE user = :user AND application = :application",
            {"user": user, "application": application},
        ).one()
        return row is not None

    def consented_again(self, user: UserKey, application: ApplicationKey) -> None:
        self._db.execute(
            "DELETE FROM ended_consent WHERE user = :user AND application = :application",
            {"user": user, "application": application},
        )
