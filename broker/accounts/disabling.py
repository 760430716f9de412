"""Switching accounts off and on again, by the operator (reference 27.15)."""

from broker.accounts.issuance import Issuance
from broker.accounts.tokens import Tokens
from broker.accounts.users import user_named
from broker.errors import UserNotFound
from storage.records import UserRecord


class Disabling:
    """A disabled user cannot sign in, and has no tokens. The user's devices go on."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def disable(self, name: str) -> UserRecord:
        """End the user's browser sessions and all tokens of applications for the user, also provisioned ones.

        Args:
            name: e-mail address, id or user name.

        Raises:
            UserNotFound
        """

        def work(issuance: Issuance) -> UserRecord:
            user = _found(issuance, name)
            if user.disabled_on is None:
                issuance.tx.accounts.set_disabled(user.key, issuance.now_ms)
            issuance.end_everything_of(user.key)
            for token in issuance.tx.accounts.tokens_of_user(user.key):
                issuance.end_token(token)
            return _found(issuance, user.id)

        return await self._tokens.change(work)

    async def enable(self, name: str) -> UserRecord:
        """The user may sign in again. Raises UserNotFound."""

        def work(issuance: Issuance) -> UserRecord:
            user = _found(issuance, name)
            issuance.tx.accounts.set_disabled(user.key, None)
            return _found(issuance, user.id)

        return await self._tokens.change(work)


def _found(issuance: Issuance, name: str) -> UserRecord:
    user = user_named(issuance.tx, name)
    if user is None:
        raise UserNotFound
    return user
