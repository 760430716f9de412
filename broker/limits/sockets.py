"""Bounds on open connections of one token, user, application and device, over all protocols that have sockets.

A connection of a stranger has a place (`strangers`). From the moment at which somebody has authenticated on it, it
counts for whom it serves, until it ends (reference 21.8). So nobody takes the descriptors of others: a holder has at
most a quarter of them, and the last tenth is for holders of few. All devices of an owner may have more, but none of
the last tenth: a user with many devices does not shut out others.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import msgspec

from broker.accounts.tokens import Caller, TokenKind
from broker.errors import TryLater
from broker.trace.refusals import Refusals
from config.settings import Limits

_RETRY_SECONDS: Final = 60
#: A holder of fewer may open one of the last tenth of all descriptors.
_FEW: Final = 10

_Kind = Literal["token", "user", "application", "device", "owner"]
#: Somebody for whom a connection counts: the kind, and the id, which is public, but for the hash of a token.
Holder = tuple[_Kind, str | bytes]


@dataclass(eq=False)
class TooManyConnections(TryLater):
    """One connection too many for a token, a user, an application or a device."""

    template = "Too many {what} of this {kind}: at most {limit}"
    what: Literal["connections", "feeds"]
    kind: _Kind
    limit: int


class SocketStatistics(msgspec.Struct, frozen=True):
    """Numbers of authenticated connections, of feeds among them, and of refusals."""

    connections: int
    feeds: int
    refused: int


def holders_of(caller: Caller) -> tuple[Holder, ...]:
    """The holders that a connection with the caller's token counts for."""
    if caller.kind is TokenKind.DEVICE:
        return holders_of_device(caller.device_id or "", caller.device_owner or "")
    return _holders_of_token(caller)


@lru_cache(maxsize=1024)  # a token may have thousands of connections, and each would hold its own
def _holders_of_token(caller: Caller) -> tuple[Holder, ...]:
    # The applications of one user's trials count as one, because anybody can make many.
    application: Holder = ("application", caller.payer or caller.application_id or "")
    token: Holder = ("token", caller.token)
    if caller.kind is TokenKind.APPLICATION:
        return token, application
    user: Holder = ("user", caller.user_id or "")
    return (token, user) if caller.is_console else (token, user, application)  # the console serves everybody


def holders_of_device(device: str, owner: str) -> tuple[Holder, ...]:
    """The holders that a connection of a device counts for. The owner is one: anybody can make many devices."""
    return ("device", device), ("owner", owner)


class Held:
    """One connection that counts, until `Sockets.release`."""

    __slots__ = ("holders", "is_feed")

    def __init__(self, holders: tuple[Holder, ...], *, is_feed: bool) -> None:
        self.holders = holders
        self.is_feed = is_feed


class Sockets:
    def __init__(self, limits: Limits, descriptors: int, refusals: Refusals) -> None:
        """`descriptors`: how many files the process may have open. `refusals` names whose connections are too many."""
        self._refusals = refusals
        self._descriptors = descriptors
        self._open: defaultdict[Holder, int] = defaultdict(int)
        self._feeds: defaultdict[Holder, int] = defaultdict(int)
        self._connections = self._feed_count = self._refused = 0
        self.renew(limits)

    def renew(self, limits: Limits) -> None:
        """Replace the numbers. Connections beyond them stay."""
        most: dict[_Kind, int] = {
            "token": limits.connections_per_token,
            "user": limits.connections_per_user,
            "application": limits.connections_per_application,
            "device": limits.connections_per_device,
        }
        self._most: dict[_Kind, int] = {kind: min(number, self._descriptors // 4) for kind, number in most.items()}
        self._most["owner"] = self._descriptors  # an owner's devices may be all that there are
        self._most_of_few: dict[_Kind, int] = {kind: min(number, _FEW) for kind, number in self._most.items()}
        self._most_feeds: dict[_Kind, int] = {
            "token": limits.feeds_per_token,
            "user": limits.feeds_per_user,
            "application": limits.feeds_per_application,
        }

    def hold(self, holders: tuple[Holder, ...], *, is_feed: bool = False, instead: Held | None = None) -> Held:
        """Count a connection. Raises TooManyConnections.

        Args:
            holders: for whom it counts.
            is_feed: it is one of `/live` or `/events`.
            instead: what the same connection counted as until now; it is released when this counts.
        """
        is_last_tenth = self._connections >= self._descriptors * 9 // 10
        most = self._most_of_few if is_last_tenth else self._most
        opened, feeds = self._open, self._feeds
        for one in holders:
            if one in opened and opened[one] >= most[one[0]]:
                self._refuse("connections", one, holders, opened[one], most[one[0]], instead)
            if is_feed and one[0] in self._most_feeds and feeds.get(one, 0) >= (most_feeds := self._most_feeds[one[0]]):
                self._refuse("feeds", one, holders, feeds[one], most_feeds, instead)
        if instead is not None:
            self.release(instead)
        self._connections += 1
        for one in holders:
            opened[one] += 1
        if is_feed:
            self._feed_count += 1
            for one in holders:
                feeds[one] += 1
        return Held(holders, is_feed=is_feed)

    def _refuse(
        self,
        what: Literal["connections", "feeds"],
        one: Holder,
        holders: tuple[Holder, ...],
        number: int,
        most: int,
        instead: Held | None,
    ) -> None:
        """Raises TooManyConnections, unless it is the connection that counts `instead` which is one too many."""
        is_counted = instead is not None and one in instead.holders and (what == "connections" or instead.is_feed)
        if number - is_counted >= most:
            self._refused += 1
            error = TooManyConnections(_RETRY_SECONDS, what, one[0], most)
            # A token is named by whose it is.
            kind, named = next(other for other in (one, *holders) if other[0] != "token")
            holder = f"{kind} {named!s}"
            self._refusals.note("connections_rate_refused", reason=str(error), source=holder, holder=holder)
            raise error

    def release(self, held: Held) -> None:
        """The connection has ended. Call it once."""
        self._connections -= 1
        _count_down(self._open, held.holders)
        if held.is_feed:
            self._feed_count -= 1
            _count_down(self._feeds, held.holders)

    def statistics(self) -> SocketStatistics:
        return SocketStatistics(self._connections, self._feed_count, self._refused)


def _count_down(counts: defaultdict[Holder, int], holders: tuple[Holder, ...]) -> None:
    for one in holders:
        if counts[one] > 1:
            counts[one] -= 1
        else:
            del counts[one]
