"""Operators of this service: the users that the setting `console.operators` names (reference 27.21)."""

from broker.accounts.tokens import Caller
from broker.errors import PermissionDenied
from config.mail import folded_address
from storage.database import Database
from storage.records import UserRecord


class Operators:
    """An address counts once its user has proved to own it: else anybody could sign up with it to be an operator."""

    def __init__(self, database: Database, addresses: tuple[str, ...]) -> None:
        self._database = database
        self._addresses = frozenset(map(folded_address, addresses))

    def has(self, user: UserRecord) -> bool:
        return user.email_verified_on is not None and folded_address(user.email) in self._addresses

    async def require(self, caller: Caller) -> None:
        """The caller is an operator at the console: no application gets this right. Raises PermissionDenied."""
        user = caller.user
        if caller.is_console and user is not None:
            found = await self._database.read(lambda tx: tx.accounts.user(user))
            if found is not None and self.has(found):
                return
        raise PermissionDenied("an operator of this service, at the console")
