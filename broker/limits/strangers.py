"""Places for connections on which nobody is authenticated yet: so many in all, and so many of one address.

Each such connection costs memory and a descriptor, before the rate limits know whom to charge (reference 21.6). A
connection keeps its place for a moment at least. After that, it has to go when another connection needs the place:
those who authenticate do so at once, and those who stay silent are in the way.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from broker.trace.origin import address_key
from config.limits import UNAUTHENTICATED_SECONDS

_NOWHERE: Final = ""


@dataclass(frozen=True, slots=True)
class StrangerStatistics:
    connections: int
    refused: int
    ended_for_others: int


class Place:
    """The place of one connection. It is given back by `leave`, on authentication or at the connection's end."""

    __slots__ = ("_end", "_strangers", "key", "since")

    def __init__(self, strangers: "Strangers", key: str, end: Callable[[], None]) -> None:
        self._strangers = strangers
        self._end = end
        self.key = key
        self.since = trio.current_time()

    @property
    def is_kept(self) -> bool:
        """Whether no other connection may have this place yet."""
        return trio.current_time() < self.since + UNAUTHENTICATED_SECONDS

    def leave(self) -> None:
        """May be called more than once."""
        self._strangers.forget(self)

    def end_connection(self) -> None:
        self.leave()
        self._end()


class Strangers:
    """The places of all TCP listeners."""

    def __init__(self, *, in_all: int, of_one_address: int) -> None:
        self._in_all = in_all
        self._of_one_address = of_one_address
        self._places: OrderedDict[Place, None] = OrderedDict()
        self._by_address: dict[str, OrderedDict[Place, None]] = {}
        self._left = trio.Event()  # replaced when it is set
        self._refused = self._ended = 0

    async def wait_room(self) -> None:
        """Wait until a connection can have a place. Listeners accept no other one meanwhile."""
        while len(self._places) >= self._in_all and (oldest := next(iter(self._places))).is_kept:
            with trio.move_on_at(oldest.since + UNAUTHENTICATED_SECONDS):
                await self._left.wait()

    def enter(self, address: str | None, end: Callable[[], None]) -> Place | None:
        """A place for a new connection; None when there is none.

        Args:
            address: the IP address of the peer; None for a peer that others share, such as a trusted proxy.
            end: ends the connection at once, for another one that needs the place.
        """
        key = _NOWHERE if address is None else address_key(address)
        of_address = self._by_address.get(key, OrderedDict())
        is_full = key != _NOWHERE and len(of_address) >= self._of_one_address
        if (is_full and not self._make_room(of_address)) or (
            len(self._places) >= self._in_all and not self._make_room(self._places)
        ):
            self._refused += 1
            return None
        place = Place(self, key, end)
        self._places[place] = None
        self._by_address.setdefault(key, OrderedDict())[place] = None
        return place

    def _make_room(self, places: OrderedDict[Place, None]) -> bool:
        oldest = next(iter(places))
        if oldest.is_kept:
            return False
        self._ended += 1
        oldest.end_connection()
        return True

    def forget(self, place: Place) -> None:
        """For `Place.leave`."""
        if place not in self._places:
            return
        del self._places[place]
        of_address = self._by_address[place.key]
        del of_address[place]
        if not of_address:
            del self._by_address[place.key]
        self._left.set()
        self._left = trio.Event()

    def statistics(self) -> StrangerStatistics:
        return StrangerStatistics(len(self._places), self._refused, self._ended)
