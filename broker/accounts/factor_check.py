"""Whether a code proves a user's second factor, and who must have one (reference 4.9)."""

from dataclasses import dataclass

from broker.accounts.one_time_codes import step_of, tidied
from broker.accounts.permissions import Role
from broker.errors import DomainError
from broker.secrets import Vault, token_hash
from config.settings import Accounts
from storage.database import Transaction
from storage.keys import UserKey


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
