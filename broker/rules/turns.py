"""Who may run a simulation now, and for how long (reference 12.9).

Simulations take the processor from the event loop, and a reader from the store. Two run at once, of each user one, and
each has a bound on its processor time.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import trio

from broker.errors import Conflict
from broker.rules.simulation import TookTooLongError, TooManyDevicesError
from config.limits import RULE_HISTORY_SECONDS, RULE_SIMULATED_DEVICES
from storage.database import Database, Transaction
from storage.keys import UserKey

TOO_MANY_DEVICES: Final = f"The rule watches more than {RULE_SIMULATED_DEVICES} devices"
TOO_LONG: Final = f"That takes more than {RULE_HISTORY_SECONDS} seconds of processor time; ask for less"
TOO_MANY_AT_ONCE: Final = "Other explanations and replays of this user's rules are not ready yet"
_AT_ONCE: Final = 2
_WAITING_MAX: Final = 4  # of one user, the one that runs included

T = TypeVar("T")


class Turns:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._places = trio.CapacityLimiter(_AT_ONCE)
        self._of_users: dict[UserKey, trio.Lock] = {}
        self._waiting: Counter[UserKey] = Counter()

    async def read(self, owner: UserKey, work: Callable[[Transaction], T]) -> T:
        """Run the simulation of a user's rule. Raises Conflict."""
        if self._waiting[owner] >= _WAITING_MAX:
            raise Conflict(TOO_MANY_AT_ONCE)
        self._waiting[owner] += 1
        try:
            async with self._of_users.setdefault(owner, trio.Lock()), self._places:
                return await self._database.read(work)
        except TooManyDevicesError:
            raise Conflict(TOO_MANY_DEVICES) from None
        except TookTooLongError:
            raise Conflict(TOO_LONG) from None
        finally:
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner], self._of_users[owner]
