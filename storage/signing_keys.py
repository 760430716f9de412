"""The keys that sign ID tokens (reference 4.11). The caller holds the transaction."""

import msgspec

from storage.sql import Store, record_values


class SigningKeyRecord(msgspec.Struct, frozen=True):
    """`id`: the `kid` of its signatures. `sealed`: the private key as PEM."""

    id: str
    sealed: bytes
    created_on: int


class SigningKeyStore(Store):
    def newest(self) -> SigningKeyRecord | None:
        row = self._db.execute("SELECT id, sealed, created_on FROM signing_key ORDER BY key DESC LIMIT 1").one()
        return SigningKeyRecord(**dict(row)) if row else None

    def add(self, record: SigningKeyRecord) -> None:
        self._insert("signing_key", record_values(record, ("id", "sealed", "created_on")))

    def remove_all(self) -> None:
        self._db.execute("DELETE FROM signing_key")
