"""Slots for simulations of rules, shared out by user, and the time that each may take (reference 12.9).

Simulations take the processor from the event loop, and a reader from the store. Two run at once, of each user one, and
each has a bound on its time.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import trio

from broker.errors import Conflict
from broker.rules.simulation import Budget, TookTooLongError, TooManyDevicesError
from config.limits import RULE_HISTORY_SECONDS, RULE_SIMULATED_DEVICES
from storage.database import Database, Transaction
from storage.fair_places import FairPlaces
from storage.keys import UserKey

TOO_MANY_DEVICES: Final = f"The rule watches more than {RULE_SIMULATED_DEVICES} devices"
TOO_LONG: Final = f"Nothing was ready after {RULE_HISTORY_SECONDS} seconds of processor time; ask for less"
TOO_MANY_AT_ONCE: Final = "Other explanations and replays of this user's rules are not ready yet"
_AT_ONCE: Final = 2
_WAITING_MAX: Final = 4  # of one user, the one that runs included

T = TypeVar("T")


class Turns:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._places = FairPlaces(_AT_ONCE, of_one=1)

    async def read(self, owner: UserKey, work: Callable[[Transaction, Budget], T]) -> T:
        """Run the simulation of a user's rule. It ends early when the caller is cancelled. Raises Conflict."""
        if self._places.held_by(owner) + self._places.waiting_of(owner) >= _WAITING_MAX:
            raise Conflict(TOO_MANY_AT_ONCE)
        budget = Budget()
        async with self._places.of(owner):
            try:
                return await self._database.read(partial(_begun, budget, work), interrupt=budget.end)
            except TooManyDevicesError:
                raise Conflict(TOO_MANY_DEVICES) from None
            except TookTooLongError:
                await trio.lowlevel.checkpoint_if_cancelled()
                raise Conflict(TOO_LONG) from None


def _begun(budget: Budget, work: Callable[[Transaction, Budget], T], tx: Transaction) -> T:
    budget.begin()
    return work(tx, budget)
