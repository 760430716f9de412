"""Secrets: sealed if they must be readable again, else hashed."""

import hashlib
import hmac
from dataclasses import replace
from typing import Final

from argon2 import Parameters, PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from config.limits import PASSWORD_MEMORY_MIB


class Vault:
    """Encrypts at rest the secrets that must be readable again. A key is 32 bytes in URL-safe Base64."""

    def __init__(self, key: bytes, *older: bytes) -> None:
        """`key` seals and opens; the `older` ones only open (`trunkline key rotate`). Raises ValueError: not a key."""
        self._newest = Fernet(key)
        self._key = key
        self._every = MultiFernet([self._newest, *map(Fernet, older)])

    @staticmethod
    def new_key() -> bytes:
        return Fernet.generate_key()

    def seal(self, secret: str) -> bytes:
        return self._newest.encrypt(secret.encode())

    def open(self, sealed: bytes) -> str:
        """Decrypt. Raises cryptography's InvalidToken when another key sealed the secret."""
        return self._every.decrypt(sealed).decode()

    def derived(self, purpose: str) -> bytes:
        """A key of 32 bytes for another purpose, the same wherever this vault's newest key is."""
        return hmac.digest(self._key, purpose.encode(), "sha256")

    def resealed(self, sealed: bytes) -> bytes:
        """The secret under the newest key; `sealed` itself if that key sealed it. Raises InvalidToken as `open`."""
        try:
            self._newest.decrypt(sealed)
        except InvalidToken:
            return self._every.rotate(sealed)
        return sealed


def token_hash(token: str) -> bytes:
    """The SHA-256 under which a token is stored and found. A token has 128 random bits: no slow hash is needed."""
    return hashlib.sha256(token.encode()).digest()


#: 2 passes over 19 MiB with 1 lane: the least that OWASP's Password Storage Cheat Sheet recommends. A gateway with
#: little memory can afford it, and strangers decide when a password is hashed (reference 4.2).
ARGON2_COST: Final = Parameters(
    type=Type.ID,
    version=19,
    salt_len=16,
    hash_len=32,
    time_cost=2,
    memory_cost=PASSWORD_MEMORY_MIB * 1024,
    parallelism=1,
)


class Passwords:
    """Argon2id. Both methods take tens of milliseconds of CPU: run them in a worker thread."""

    def __init__(self, cost: Parameters | None = None) -> None:
        """`cost` is ARGON2_COST if it is None."""
        self._hasher = PasswordHasher.from_parameters(cost or ARGON2_COST)

    @classmethod
    def taking(cls, memory_mib: int) -> "Passwords":
        """Argon2id at ARGON2_COST, with more memory."""
        is_usual = memory_mib == PASSWORD_MEMORY_MIB
        return cls(ARGON2_COST if is_usual else replace(ARGON2_COST, memory_cost=memory_mib * 1024))

    def hash(self, password: str) -> str:
        return self._hasher.hash(password)

    def is_outdated(self, hashed: str) -> bool:
        """Whether a hash that `matches` was made at another cost, and should be replaced."""
        return self._hasher.check_needs_rehash(hashed)

    def matches(self, hashed: str, password: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except (VerificationError, InvalidHashError):
            return False
