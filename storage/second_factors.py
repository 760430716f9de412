"""Second factors of users, and their recovery codes. The caller holds the transaction."""

from collections.abc import Iterable

from storage.keys import UserKey
from storage.records import SecondFactorRecord
from storage.sql import Store, record_values


class SecondFactorStore(Store):
    def of(self, user: UserKey) -> SecondFactorRecord | None:
        row = self._db.execute("SELECT * FROM second_factor WHERE user = :user", {"user": user}).one()
        return SecondFactorRecord(**dict(row)) if row else None

    def add(self, factor: SecondFactorRecord, recovery_codes: Iterable[bytes]) -> None:
        """Raises StoreError when the user has one. `recovery_codes` are hashes."""
        self._insert("second_factor", record_values(factor))
        for hash_ in recovery_codes:
            self._insert("recovery_code", {"user": factor.user, "hash": hash_})

    def use_step(self, user: UserKey, step: int) -> bool:
        """Use up the codes of this time step and of all before. False when they were used already."""
        row = self._db.execute(
            "UPDATE second_factor SET last_step = :step WHERE user = :user AND last_step < :step RETURNING user",
            {"user": user, "step": step},
        ).one()
        return row is not None

    def use_recovery_code(self, user: UserKey, hash_: bytes) -> bool:
        """Use up a recovery code. False when the user has none with this hash."""
        row = self._db.execute(
            "DELETE FROM recovery_code WHERE user = :user AND hash = :hash RETURNING user",
            {"user": user, "hash": hash_},
        ).one()
        return row is not None

    def recovery_codes_left(self, user: UserKey) -> int:
        row = self._db.execute("SELECT count(*) AS n FROM recovery_code WHERE user = :user", {"user": user}).one()
        return int(row["n"]) if row else 0

    def remove(self, user: UserKey) -> bool:
        """Remove the factor and its recovery codes. Returns whether there was one."""
        row = self._db.execute("DELETE FROM second_factor WHERE user = :user RETURNING user", {"user": user}).one()
        return row is not None
