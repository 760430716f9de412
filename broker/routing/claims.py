"""One persistent connection for each device token on several nodes together (reference 16.1).

Each connection of this node has a row in the store. A new one with the device's own token removes the row of the one
before, wherever that is, in the commit in which its first messages can be. The node of the former one hears of it
before it stores anything more, closes that connection, and what it has sent since is refused.
"""

from functools import partial
from itertools import count
from typing import Protocol

from broker.clock import Clock
from broker.cluster.kinds import AVAILABILITY, CONNECTION_REPLACED, Availability, ConnectionReplaced
from broker.cluster.news import News
from storage.database import CommitGroup, Database, Transaction
from storage.keys import DeviceKey, Milliseconds
from storage.sql import StoreError


class Claimed(Protocol):
    """A connection of a device to this node."""

    @property
    def key(self) -> DeviceKey: ...
    @property
    def is_exclusive(self) -> bool: ...
    def replaced_elsewhere(self) -> None:
        """The device has a newer connection to another node."""

    def not_claimed(self) -> None:
        """The store has no row of it: others would not know."""


class ConnectionClaims:
    def __init__(self, database: Database, news: News, node: str, clock: Clock | None = None) -> None:
        self._database = database
        self._node = node
        self._now_ms = (clock or Clock()).now_ms
        self._numbers = count(1)
        self._claimed: dict[int, Claimed] = {}
        self._number_of: dict[Claimed, int] = {}
        self._storing: dict[Claimed, CommitGroup] = {}
        news.listen_elsewhere(CONNECTION_REPLACED, self._replaced)

    def begin(self, link: Claimed) -> None:
        """Claim the device for this connection, in the commit to come."""
        number = next(self._numbers)
        self._claimed[number], self._number_of[link] = link, number
        group = self._database.open_group
        self._database.write_nowait(partial(_begin, self._node, number, link.key, link.is_exclusive, self._now_ms()))
        self._storing[link] = group
        group.callbacks.append(partial(self._ended, number, link))

    async def begun(self, link: Claimed) -> None:
        """Wait for the commit of the claim, so that who is told of the connection has it in the order of the others.

        Raises StoreError: it is not stored.
        """
        if (group := self._storing.get(link)) is not None:
            await group.ended.wait()
            if group.error is not None:
                raise group.error

    def _ended(self, number: int, link: Claimed, error: StoreError | None) -> None:
        del self._storing[link]
        if error is not None and number in self._claimed:
            link.not_claimed()

    def end(self, link: Claimed) -> None:
        """The connection has ended."""
        if (number := self._number_of.pop(link, None)) is not None:
            del self._claimed[number]
            self._database.write_nowait(partial(_end, self._node, number, link.key, self._now_ms()))

    def _replaced(self, replaced: ConnectionReplaced, _content: None) -> None:
        for node, number in replaced.replaced:
            link = self._claimed.pop(number, None) if node == self._node else None
            if link is not None:
                del self._number_of[link]
                link.replaced_elsewhere()


def _end(node: str, number: int, device: DeviceKey, now_ms: Milliseconds, tx: Transaction) -> None:
    if tx.device_connections.end(node, number) and not tx.device_connections.connected([device]):
        tx.tell(AVAILABILITY, Availability(node, device, "offline", now_ms))


def _begin(
    node: str, number: int, device: DeviceKey, is_exclusive: bool, now_ms: Milliseconds, tx: Transaction
) -> None:
    if not tx.device_connections.connected([device]):
        tx.tell(AVAILABILITY, Availability(node, device, "online", now_ms))
    replaced = tx.device_connections.begin(node, number, device, is_exclusive=is_exclusive)
    if others := tuple(one for one in replaced if one[0] != node):
        tx.tell(CONNECTION_REPLACED, ConnectionReplaced(device, others))
