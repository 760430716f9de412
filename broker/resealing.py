"""Sealing every secret of a store with the newest key (reference 27.5). It can be interrupted after any transaction."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.fernet import InvalidToken

from broker.secrets import Vault
from storage.engines.port import EngineConnection
from storage.sealed import SEALED_COLUMNS, SealedColumn, SealedStore

_AT_ONCE: Final = 100  # secrets in one transaction


@dataclass(slots=True)
class Resealing:
    """How many secrets were found, and how many that no key opens, by column. The latter are left as they are."""

    secrets: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)


def reseal(store: EngineConnection, vault: Vault, *, columns: tuple[SealedColumn, ...] = SEALED_COLUMNS) -> Resealing:
    """Seal every secret with the newest key of `vault`, in small transactions. A second run changes nothing.

    Raises:
        StoreError: the store cannot be read or written. Earlier commits stay.
    """
    done = Resealing()
    for column in columns:
        after: Any = None
        while (last := _reseal_some(store, vault, column, after, done)) is not None:
            after = last
    return done


def _reseal_some(store: EngineConnection, vault: Vault, column: SealedColumn, after: Any, done: Resealing) -> Any:
    """Reseal the next secrets of a column. Returns the last key; None when there are no more."""
    sealed_store = SealedStore(store, column)
    last: Any = None
    store.begin(write=True)
    try:
        for last, sealed in sealed_store.after(after, limit=_AT_ONCE):
            done.secrets += 1
            try:
                resealed = vault.resealed(sealed)
            except InvalidToken:
                done.unreadable[str(column)] += 1
                continue
            if resealed != sealed:
                sealed_store.replace(last, resealed)
        store.commit()
    except BaseException:  # whatever it is: the transaction must not stay open; raised again
        store.rollback()
        raise
    return last


def told(unreadable: Mapping[str, int]) -> str:
    return ", ".join(f"{count} in {column}" for column, count in sorted(unreadable.items()))
