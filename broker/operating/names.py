"""Names for the ids on pages, as far as the user may know them, and the rules and subscriptions on a user's devices."""

from collections.abc import Sequence

from broker.accounts.operators import Operators
from broker.accounts.tokens import Caller
from broker.errors import PermissionDenied
from config.limits import AUTOMATIONS_SHOWN
from storage.database import Database
from storage.keys import UserKey
from storage.names import AutomationRecord, NameRecord


class Names:
    def __init__(self, database: Database, operators: Operators) -> None:
        self._database = database
        self._operators = operators

    async def of(self, caller: Caller, ids: Sequence[str]) -> list[NameRecord]:
        """The names of these ids that the caller's user may know; an operator at the console knows all."""
        user = caller.user or UserKey(0)
        knows_all = await self._is_operator(caller)
        return await self._database.read(lambda tx: tx.names.of(ids, user, knows_all=knows_all))

    async def _is_operator(self, caller: Caller) -> bool:
        try:
            await self._operators.require(caller)
        except PermissionDenied:
            return False
        return True

    async def automations(self, user: UserKey) -> list[AutomationRecord]:
        """The rules and scenes of a user, whichever application made them, and others' that name the user's devices."""
        return await self._database.read(lambda tx: tx.names.automations(user, limit=AUTOMATIONS_SHOWN))
