"""Secrets: sealing those that must be readable again, hashing the others."""

import hashlib
from typing import Final

from argon2 import Parameters, PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.profiles import RFC_9106_LOW_MEMORY
from cryptography.fernet import Fernet, InvalidToken, MultiFernet


class Vault:
    """Encrypts at rest the secrets that must be readable again. A key is 32 bytes in URL-safe Base64."""

    def __init__(self, key: bytes, *older: bytes) -> None:
        """`key` seals and opens; the `older` ones only open (`trunkline key rotate`). Raises ValueError: not a key."""
        self._newest = Fernet(key)
        self._every = MultiFernet([self._newest, *map(Fernet, older)])

    @staticmethod
    def new_key() -> bytes:
        return Fernet.generate_key()

    def seal(self, secret: str) -> bytes:
        return self._newest.encrypt(secret.encode())

    def open(self, sealed: bytes) -> str:
        """Decrypt. Raises cryptography's InvalidToken when another key sealed the secret."""
        return self._every.decrypt(sealed).decode()

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


#: 3 passes over 64 MiB with 4 lanes: the second recommended option of RFC 9106, 4.
ARGON2_COST: Final = RFC_9106_LOW_MEMORY


class Passwords:
    """Argon2id. Both methods take tens of milliseconds of CPU: run them in a worker thread."""

    def __init__(self, cost: Parameters | None = None) -> None:
        """`cost` is ARGON2_COST if it is None."""
        self._hasher = PasswordHasher.from_parameters(cost or ARGON2_COST)

    def hash(self, password: str) -> str:
        return self._hasher.hash(password)

    def matches(self, hashed: str, password: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except (VerificationError, InvalidHashError):
            return False
