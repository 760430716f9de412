"""How many connections are open for one token, user, application and device, over all protocols that have sockets.

A connection of a stranger has a place (`strangers`). From the moment at which somebody has authenticated on it, it
counts for whom it serves, until it ends (reference 21.8). So nobody takes the descriptors of others: a holder has at
most a quarter of them, and the last tenth is for those who have few. All devices of an owner may have more, but none of
the last tenth: whoever makes many devices does not shut out others.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from broker.accounts.tokens import Caller, TokenKind
from broker.errors import TryLater
from broker.trace.refusals import Refusals
from config.settings import Limits

_RETRY_SECONDS: Final = 60
#: Who has fewer may open one of the last tenth of all descriptors.
_FEW: Final = 10

_Kind = Literal["token", "user", "application", "device", "owner"]


class Holder(NamedTuple):
    """Somebody for whom a connection counts; `id` is public, but for the hash of a token."""

    kind: _Kind
    id: str | bytes


@dataclass(eq=False)
class TooManyConnections(TryLater):
    """One connection too many for a token, a user, an application or a device."""

    template = "Too many {what} of this {kind}: at most {limit}"
    what: Literal["connections", "feeds"]
    kind: _Kind
    limit: int


@dataclass(frozen=True, slots=True)
class SocketStatistics:
    """Connections on which somebody is authenticated, those of them that are feeds, and what was refused."""

    connections: int
    feeds: int
    refused: int


def holders_of(caller: Caller) -> tuple[Holder, ...]:
    """For whom a connection counts that shows the caller's token."""
    if caller.kind is TokenKind.DEVICE:
        return holders_of_device(caller.device_id or "", caller.device_owner or "")
    return _holders_of_token(caller)


@lru_cache(maxsize=1024)  # a token may have thousands of connections, and each would hold its own
def _holders_of_token(caller: Caller) -> tuple[Holder, ...]:
    # Those of one user's trials are one, as anybody makes many.
    application = Holder("application", caller.payer or caller.application_id or "")
    token = Holder("token", caller.token)
    if caller.kind is TokenKind.APPLICATION:
        return token, application
    user = Holder("user", caller.user_id or "")
    return (token, user) if caller.is_console else (token, user, application)  # the console serves everybody


def holders_of_device(device: str, owner: str) -> tuple[Holder, ...]:
    """For whom a connection counts that a device has, by the ids of both: anybody makes many devices."""
    return Holder("device", device), Holder("owner", owner)


class Held:
    """One connection that counts, until `release`."""

    __slots__ = ("_sockets", "holders", "is_feed")

    def __init__(self, sockets: "Sockets", holders: tuple[Holder, ...], *, is_feed: bool) -> None:
        self._sockets = sockets
        self.holders = holders
        self.is_feed = is_feed

    def release(self) -> None:
        """Call it once."""
        self._sockets.forget(self)


class Sockets:
    def __init__(self, limits: Limits, descriptors: int, refusals: Refusals) -> None:
        """`descriptors`: how many files the process may have open. `refusals` names whose connections are too many."""
        self._refusals = refusals
        self._descriptors = descriptors
        self._open: Counter[Holder] = Counter()
        self._feeds: Counter[Holder] = Counter()
        self._connections = self._feed_count = self._refused = 0
        self.renew(limits)

    def renew(self, limits: Limits) -> None:
        """From now on these numbers count. Connections beyond them stay."""
        self._most: dict[_Kind, int] = {
            "token": limits.connections_per_token,
            "user": limits.connections_per_user,
            "application": limits.connections_per_application,
            "device": limits.connections_per_device,
        }
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
        for one in holders:
            most = self._descriptors  # an owner's devices may be all that there are
            if one.kind != "owner":
                most = min(self._most[one.kind], self._descriptors // 4)
            if self._connections >= self._descriptors * 9 // 10:
                most = min(most, _FEW)
            self._check("connections", one, holders, self._open[one], most, instead)
            if is_feed and (most_feeds := self._most_feeds.get(one.kind)) is not None:
                self._check("feeds", one, holders, self._feeds[one], most_feeds, instead)
        if instead is not None:
            instead.release()
        self._open.update(holders)
        self._connections += 1
        if is_feed:
            self._feeds.update(holders)
            self._feed_count += 1
        return Held(self, holders, is_feed=is_feed)

    def _check(
        self,
        what: Literal["connections", "feeds"],
        one: Holder,
        holders: tuple[Holder, ...],
        number: int,
        most: int,
        instead: Held | None,
    ) -> None:
        is_counted = instead is not None and one in instead.holders and (what == "connections" or instead.is_feed)
        if number - is_counted >= most:
            self._refused += 1
            error = TooManyConnections(_RETRY_SECONDS, what, one.kind, most)
            # A token is named by whose it is.
            named = next(other for other in (one, *holders) if other.kind != "token")
            holder = f"{named.kind} {named.id!s}"
            self._refusals.note("connections_rate_refused", reason=str(error), source=holder, holder=holder)
            raise error

    def forget(self, held: Held) -> None:
        """For `Held.release`."""
        self._connections -= 1
        _count_down(self._open, held.holders)
        if held.is_feed:
            self._feed_count -= 1
            _count_down(self._feeds, held.holders)

    def statistics(self) -> SocketStatistics:
        return SocketStatistics(self._connections, self._feed_count, self._refused)


def _count_down(counts: Counter[Holder], holders: tuple[Holder, ...]) -> None:
    for one in holders:
        counts[one] -= 1
        if not counts[one]:
            del counts[one]
