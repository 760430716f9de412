"""Reads that must not return what a change has overtaken."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")


class Changes:
    """Counts the changes that were announced, so that a cache is not filled with what was read before one of them."""

    def __init__(self) -> None:
        self._count = 0

    def note(self) -> None:
        """Something that may have been read already has changed."""
        self._count += 1

    async def settled(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """What `read` returned, read again for as long as a change is noted meanwhile."""
        while True:
            before = self._count
            found = await read()
            if self._count == before:
                return found
