"""Reads that take a processor for a moment: searches with conditions or of many devices, and analytics.

Two run at once, and those of one user follow each other, so that a processor is left for everybody else.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from broker.trace.origin import on_whose_account
from storage.database import Database
from storage.fair_places import FairPlaces
from storage.transaction import Transaction

T = TypeVar("T")
_AT_ONCE: Final = 2


class HeavyReads:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._places = FairPlaces(_AT_ONCE, of_one=1)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a read transaction; see `Database.read`."""
        async with self._places.of(on_whose_account()):
            return await self._database.read(work)
