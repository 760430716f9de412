"""The key of a store under a passphrase, for backups that leave the machine. The numbers belong to format 1."""

import base64
import os
from typing import Final

from argon2.low_level import Type, hash_secret_raw
from cryptography.fernet import Fernet, InvalidToken

_SALT_BYTES: Final = 16
#: Argon2id as RFC 9106 (4) recommends where memory is scarce. It runs once for each backup, not for each sign-in.
_PASSES: Final = 3
_MEMORY_KIB: Final = 64 * 1024


class WrongPassphraseError(Exception):
    """The passphrase does not open the key, or the sealed key was changed."""


def seal_key(key: bytes, passphrase: str) -> bytes:
    """The salt and the sealed key."""
    salt = os.urandom(_SALT_BYTES)
    return salt + _fernet(passphrase, salt).encrypt(key)


def open_key(sealed: bytes, passphrase: str) -> bytes:
    """Open a key that `seal_key` sealed. Raises WrongPassphraseError."""
    salt, content = sealed[:_SALT_BYTES], sealed[_SALT_BYTES:]
    if len(salt) < _SALT_BYTES:
        raise WrongPassphraseError
    try:
        return _fernet(passphrase, salt).decrypt(content)
    except InvalidToken:
        raise WrongPassphraseError from None


def _fernet(passphrase: str, salt: bytes) -> Fernet:
    derived = hash_secret_raw(
        passphrase.encode(), salt, time_cost=_PASSES, memory_cost=_MEMORY_KIB, parallelism=1, hash_len=32, type=Type.ID
    )
    return Fernet(base64.urlsafe_b64encode(derived))
