"""One-time codes of an authenticator app (RFC 6238: six digits, 30 s, SHA-1), recovery codes, and their check."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyotp
from pyotp.utils import strings_equal

from broker.accounts.permissions import Role
from broker.errors import DomainError
from broker.secrets import Vault, token_hash
from config.limits import RECOVERY_CODES
from config.settings import Accounts
from storage.keys import UserKey
from storage.transaction import Transaction

STEP_SECONDS: Final = 30
_DIGITS: Final = 6
#: RFC 6238, 5.2: clocks may differ by one step.
_STEPS_OFF: Final = (-1, 0, 1)
# Without 0, i, l and o, which look like others. 16 of 32 characters are 80 random bits: no slow hash is needed.
_ALPHABET: Final = "123456789abcdefghjkmnpqrstuvwxyz"
_RECOVERY_CHARACTERS: Final = 16
_IGNORED: Final = str.maketrans("", "", " -\t\u00a0")


def new_secret() -> str:
    """160 random bits in Base32 (RFC 4226, 4: the length that it recommends)."""
    return pyotp.random_base32(32)


def step_of(secret: str, code: str, now_ms: int) -> int | None:
    """The time step that the code belongs to, near the present; None for a wrong code."""
    code = tidied(code)
    if len(code) != _DIGITS or not code.isascii() or not code.isdigit():
        return None
    generator, now = pyotp.TOTP(secret), now_ms // 1000 // STEP_SECONDS
    found = [now + off for off in _STEPS_OFF if strings_equal(generator.generate_otp(now + off), code)]
    return found[-1] if found else None


def otpauth_uri(secret: str, *, account: str, issuer: str) -> str:
    """The `otpauth` address that authenticator apps read from the picture."""
    return pyotp.TOTP(secret).provisioning_uri(name=account, issuer_name=issuer.replace(":", " "))


def new_recovery_codes() -> tuple[str, ...]:
    return tuple(_new_recovery_code() for _ in range(RECOVERY_CODES))


def _new_recovery_code() -> str:
    text = "".join(secrets.choice(_ALPHABET) for _ in range(_RECOVERY_CHARACTERS))
    return "-".join(_in_fours(text))


def _in_fours(text: str) -> Iterator[str]:
    for start in range(0, len(text), 4):
        yield text[start : start + 4]


def spaced(secret: str) -> str:
    """A secret in groups of four, as a person types it."""
    return " ".join(_in_fours(secret))


def tidied(code: str) -> str:
    """A code as it is compared: case, blanks and dashes do not matter."""
    return code.translate(_IGNORED).lower()


@dataclass(eq=False)
class WrongCode(DomainError):
    """Not a code of this moment, a code that was used before, or no recovery code of this person."""

    status = 403
    template = "This code is not right. The app shows a new one every 30 seconds, and each is good once."


class FactorCheck:
    def __init__(self, vault: Vault, settings: Accounts) -> None:
        self._vault = vault
        self._wanted_of_administrators = settings.second_factor == "administrators"

    def is_wanted(self, tx: Transaction, user: UserKey) -> bool:
        """The operator wants this user to have a second factor."""
        return self._wanted_of_administrators and tx.accounts.has_role(user, Role.ADMINISTRATOR)

    def proves(self, tx: Transaction, user: UserKey, code: str, now_ms: int) -> bool:
        """The code is one of the user's app or a recovery code, and was not used before; now it is used."""
        factor = tx.second_factors.of(user)
        if factor is None:
            return False
        step = step_of(self._vault.open(factor.secret), code, now_ms)
        if step is not None:
            return tx.second_factors.use_step(user, step)
        return tx.second_factors.use_recovery_code(user, recovery_hash(code))


def recovery_hash(code: str) -> bytes:
    return token_hash(tidied(code))
