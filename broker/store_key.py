"""Whether the daemon's key belongs to its store (reference 27.5): a wrong pair is refused before anything is served."""

from typing import Final

from cryptography.fernet import InvalidToken

from broker.secrets import Vault
from storage.database import Database, Transaction
from storage.sealed import SEALED_COLUMNS, STORE_KEY, SealedStore
from storage.sql import StoreError

_SECRET: Final = "trunkline"  # noqa: S105 - only its seal matters


async def check_store_key(database: Database, vault: Vault) -> None:
    """Compare the key with the store, by one secret of each kind.

    Raises:
        StoreError: the store has secrets, and the key opens none of them.
    """
    found = await database.read(_one_of_each)
    if found and not any(_opens(vault, sealed) for sealed in found):
        raise StoreError(
            "the key and the store do not belong together: the key opens none of the store's secrets."
            " Restore both from the same backup"
        )


async def mark_store_key(database: Database, vault: Vault) -> None:
    """Put a secret into the store whose only use is to recognise the key, also while there are no accounts."""

    def work(tx: Transaction) -> None:
        marks = SealedStore(tx.connection, STORE_KEY)
        if not marks.after(None, limit=1):
            marks.add(vault.seal(_SECRET))

    await database.write(work)


def _one_of_each(tx: Transaction) -> list[bytes]:
    stores = (SealedStore(tx.connection, column) for column in SEALED_COLUMNS)
    return [sealed for store in stores for _, sealed in store.after(None, limit=1)]


def _opens(vault: Vault, sealed: bytes) -> bool:
    try:
        vault.open(sealed)
    except InvalidToken:
        return False
    return True
