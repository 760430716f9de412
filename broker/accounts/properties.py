"""Application properties: one text that an application stores for each user (reference 5.2)."""

from broker.accounts.applications import require_application
from broker.accounts.tokens import Caller
from broker.errors import NotFound, PermissionDenied
from storage.database import Database
from storage.keys import ApplicationKey, UserKey
from storage.transaction import Transaction


class ApplicationProperties:
    """Properties of the caller's own application. Callers check `Permissions.require_user` first."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, caller: Caller, user: UserKey) -> str:
        """Raises NotFound when there are none."""
        application = application_of(caller)
        found = await self._database.read(lambda tx: tx.accounts.properties(user, application))
        if found is None:
            raise NotFound
        return found

    async def put(self, caller: Caller, user: UserKey, properties: str) -> None:
        """Create or replace."""
        application = application_of(caller)

        def work(tx: Transaction) -> None:
            require_application(tx, application)
            tx.accounts.put_properties(user, application, properties)

        await self._database.write(work)

    async def remove(self, caller: Caller, user: UserKey) -> None:
        """Raises NotFound when there are none."""
        application = application_of(caller)
        if not await self._database.write(lambda tx: tx.accounts.remove_properties(user, application)):
            raise NotFound


def application_of(caller: Caller) -> ApplicationKey:
    if caller.application is None:
        raise PermissionDenied("a token of an application")
    return caller.application
