"""Places for connections that are not authenticated yet: limited in all, and for each address.

Each such connection costs memory and a descriptor, before the rate limits know whom to charge (reference 21.6). A
connection keeps its place for a moment at least. After that, it has to go when another connection needs the place:
honest peers authenticate at once, and silent ones are in the way.

Many devices, or the calls of one application, may come from one address at once. So a connection whose address has no
place left waits for one, in the order of arrival; until then nothing is read from it.

While all places are taken, an address that has fewer than its share gets one at once: of the address that has the most
beyond its share. One that has its share waits for its own places, without holding up a listener.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

import msgspec
import trio

from broker.trace.origin import address_key
from config.limits import UNAUTHENTICATED_SECONDS, UNAUTHENTICATED_WAIT_SECONDS, UNAUTHENTICATED_WAITING

_NOWHERE: Final = ""
#: An honest peer is authenticated by then, so that many devices behind few addresses may connect at once.
_POLITE_SECONDS: Final = UNAUTHENTICATED_SECONDS / 4


class StrangerStatistics(msgspec.Struct, frozen=True):
    connections: int
    waiting: int
    refused: int
    ended_for_others: int


def _key(address: str | None) -> str:
    return _NOWHERE if address is None else address_key(address)


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

    def pass_on(self, end: Callable[[], None]) -> None:
        """Set the function that ends the connection. It may be called once more when the connection has ended."""
        self._end = end

    def end_connection(self) -> None:
        self.leave()
        self._end()


class _Waiting:
    """A connection that waits for a place of its address."""

    __slots__ = ("end", "place", "turn")

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end
        self.turn = trio.Event()  # it is the first in its line, or has its place
        self.place: Place | None = None


class Strangers:
    """The places of all TCP listeners."""

    def __init__(self, *, in_all: int, of_one_address: int, waiting: int = UNAUTHENTICATED_WAITING) -> None:
        """`waiting` is the number of connections that may wait for a place of their address."""
        self._in_all = in_all
        self._waiting_max = waiting
        self._of_one_address = of_one_address
        self._places: OrderedDict[Place, None] = OrderedDict()
        self._by_address: dict[str, OrderedDict[Place, None]] = {}
        self._lines: dict[str, deque[_Waiting]] = {}  # by address
        self._left = trio.Event()  # replaced when it is set
        self._waiting = self._refused = self._ended = 0

    async def wait_room(self, address: str | None) -> None:
        """Wait until a connection can have a place, `enter` refuses it, or it is to wait for one of its own address
        (`wait_place`). Until it returns, listeners accept no other connection."""
        while len(self._places) >= self._in_all and (oldest := next(iter(self._places))).is_kept:
            key = _key(address)
            if self._greedy(key) is not None or (self.may_wait and self._has_share(key)):
                return
            refused_at = self._refused_at(key)
            if trio.current_time() >= refused_at:
                return
            with trio.move_on_at(min(oldest.since + UNAUTHENTICATED_SECONDS, refused_at)):
                await self._left.wait()

    def _refused_at(self, key: str) -> float:
        """From when on an address must not wait for more places: all are taken, and it has its share of them."""
        if key == _NOWHERE or self._of_one_address >= self._in_all or len(self._places) < self._in_all:
            return math.inf
        of_address = self._by_address.get(key)
        if not of_address or len(of_address) < self._in_all // len(self._by_address):
            return math.inf
        return next(iter(of_address)).since + _POLITE_SECONDS

    def _share(self, key: str) -> int:
        """The share of an address in all places."""
        return max(self._in_all // (len(self._by_address) + (key not in self._by_address)), 1)

    def _has_share(self, key: str) -> bool:
        of_address = self._by_address.get(key)
        is_full = len(self._places) >= self._in_all
        return key != _NOWHERE and is_full and of_address is not None and len(of_address) >= self._share(key)

    def _greedy(self, key: str) -> OrderedDict[Place, None] | None:
        """The places of the address that has the most beyond its share, while all are taken and this address has fewer
        than its share."""
        held, share = len(self._by_address.get(key, ())), self._share(key)
        if len(self._places) < self._in_all or key == _NOWHERE or held >= share:
            return None
        most = max((some for one, some in self._by_address.items() if one != _NOWHERE), key=len, default=None)
        return most if most is not None and len(most) > max(share, held + 1) else None

    def enter(self, address: str | None, end: Callable[[], None]) -> Place | None:
        """A place for a new connection; None when there is none now.

        Args:
            address: the IP address of the peer; None for a peer that others share, such as a trusted proxy.
            end: ends the connection at once, for another one that needs the place.
        """
        key = _key(address)
        of_address = self._by_address.get(key, OrderedDict())
        is_full = key != _NOWHERE and len(of_address) >= self._of_one_address
        is_full = is_full or trio.current_time() >= self._refused_at(key)
        if (
            key in self._lines
            or (is_full and not self._make_room(of_address))
            or (len(self._places) >= self._in_all and not self._make_room_for(key))
        ):
            return None
        return self._given(key, end)

    def _given(self, key: str, end: Callable[[], None]) -> Place:
        place = Place(self, key, end)
        self._places[place] = None
        self._by_address.setdefault(key, OrderedDict())[place] = None
        return place

    @property
    def may_wait(self) -> bool:
        """Whether one more connection may wait for a place of its address."""
        return self._waiting < self._waiting_max

    async def wait_place(self, address: str | None, end: Callable[[], None]) -> Place | None:
        """Enter, and wait for a place of the address if all are taken; see `enter`. None if that takes too long, when
        too many wait already, or when there is no place in all."""
        key = _key(address)
        if (place := self.enter(address, end)) is not None:
            return place
        is_of_its_address = len(self._by_address.get(key, ())) >= self._of_one_address or self._has_share(key)
        if not self.may_wait or not is_of_its_address:
            self._refused += 1
            return None
        one, line = _Waiting(end), self._lines.setdefault(key, deque())
        if not line:
            one.turn.set()
        line.append(one)
        self._waiting += 1
        try:
            with trio.move_on_after(UNAUTHENTICATED_WAIT_SECONDS):
                await self._wait_turn(key, one)
        except trio.Cancelled:  # the daemon stops
            if one.place is not None:
                one.place.leave()
            raise
        finally:
            self._waiting -= 1
            if one.place is None:
                line.remove(one)
                self._next_turn(key)
        self._refused += one.place is None
        return one.place

    def _next_turn(self, key: str) -> None:
        if line := self._lines[key]:
            line[0].turn.set()
        else:
            del self._lines[key]

    async def _wait_turn(self, key: str, one: _Waiting) -> None:
        """Wait until the connection has a place, or its address has lost all of its places to others.

        Only the first in the line looks at the clock: hundreds that did would all wake up at the same moment.
        """
        await one.turn.wait()
        while one.place is None and (of_address := self._by_address.get(key)):
            one.turn = trio.Event()
            oldest = next(iter(of_address))
            if oldest.is_kept:
                with trio.move_on_at(oldest.since + UNAUTHENTICATED_SECONDS):
                    await one.turn.wait()
            else:
                self._ended += 1
                oldest.end_connection()  # the first in the line gets its place

    def _make_room_for(self, key: str) -> bool:
        if (greedy := self._greedy(key)) is None:
            return self._make_room(self._places)
        self._end(next(iter(greedy)))
        return True

    def _make_room(self, places: OrderedDict[Place, None]) -> bool:
        oldest = next(iter(places))
        if oldest.is_kept:
            return False
        self._end(oldest)
        return True

    def _end(self, place: Place) -> None:
        self._ended += 1
        self._remove(place)  # and nobody of its address gets the place
        place.end_connection()

    def forget(self, place: Place) -> None:
        """Forget a place; called by `Place.leave`."""
        if place not in self._places:
            return
        self._remove(place)
        if (line := self._lines.get(place.key)) is not None:
            first = line.popleft()
            first.place = self._given(place.key, first.end)
            first.turn.set()
            self._next_turn(place.key)
            return
        self._left.set()
        self._left = trio.Event()

    def _remove(self, place: Place) -> None:
        del self._places[place]
        of_address = self._by_address[place.key]
        del of_address[place]
        if not of_address:
            del self._by_address[place.key]

    def renew(self, *, in_all: int, of_one_address: int) -> None:
        """Replace the numbers of places. Connections beyond them keep theirs."""
        self._in_all, self._of_one_address = in_all, of_one_address
        self._left.set()  # whatever waits for room looks again
        self._left = trio.Event()

    def statistics(self) -> StrangerStatistics:
        return StrangerStatistics(len(self._places), self._waiting, self._refused, self._ended)
