"""Whether the daemon's key belongs to its store (reference 27.5): a wrong pair is refused before anything is served."""

from collections.abc import Sequence
from typing import Final

from cryptography.fernet import InvalidToken

from broker.secrets import Vault
from storage.database import Database
from storage.sealed import SEALED_COLUMNS, STORE_KEY, SealedColumn, SealedStore, one_of_each
from storage.sql import StoreConnection, StoreError
from storage.transaction import Transaction

_SECRET: Final = "trunkline"  # noqa: S105 - only its seal matters


async def check_store_key(database: Database, vault: Vault) -> None:
    """Compare the key with the store, by one secret of each kind.

    Raises:
        StoreError: the store has secrets, and the key opens none of them.
    """
    if not await database.read(lambda tx: opens_secrets(tx.connection, vault)):
        raise StoreError(
            "the key and the store do not belong together: the key opens none of the store's secrets."
            " Restore both from the same backup"
        )


def opens_secrets(store: StoreConnection, vault: Vault, *, columns: Sequence[SealedColumn] = SEALED_COLUMNS) -> bool:
    """Whether the key belongs to the store: it opens a secret of some kind, or there are none."""
    found = one_of_each(store, columns)
    return not found or any(_opens(vault, sealed) for sealed in found)


async def mark_store_key(database: Database, vault: Vault) -> None:
    """Put a secret into the store whose only use is to recognise the key, also while there are no accounts."""

    def work(tx: Transaction) -> None:
        marks = SealedStore(tx.connection, STORE_KEY)
        if not marks.after(None, limit=1):
            marks.add(vault.seal(_SECRET))

    await database.write(work)


def _opens(vault: Vault, sealed: bytes) -> bool:
    try:
        vault.open(sealed)
    except InvalidToken:
        return False
    return True
