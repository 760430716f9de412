"""One persistent connection for each device token on several nodes together (reference 16.1).

Each connection of this node has a row in the store. A new one with the device's own token removes the row of the one
before, wherever that is, in the commit in which its first messages can be. The node of the former one hears of it
before it stores anything more, closes that connection, and what it has sent since is refused.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Final, Protocol

import trio

from broker.clock import Clock
from broker.cluster.kinds import AVAILABILITY, CONNECTION_REPLACED, Availability, ConnectionReplaced
from broker.cluster.news import News
from broker.loops import Loop
from storage.commit_group import CommitGroup, StoreWork
from storage.database import Database
from storage.device_connections import Sort
from storage.keys import DeviceKey, Milliseconds
from storage.sql import StoreError
from storage.transaction import Transaction

#: How often places are ended whose end was not stored.
_AGAIN_SECONDS: Final = 1.0


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
        self._storing: dict[Claimed, tuple[CommitGroup, StoreWork]] = {}
        #: Ended, and the store does not know it: the device would look connected until it connects again.
        self._left: dict[int, DeviceKey] = {}
        news.listen_elsewhere(CONNECTION_REPLACED, self._replaced)

    def begin(self, link: Claimed, *, is_registration: bool = False) -> None:
        """Claim the device for this connection, in the commit to come. A registration takes the place of another."""
        sort = Sort.REGISTRATION if is_registration else Sort.EXCLUSIVE if link.is_exclusive else Sort.SHARED
        number = next(self._numbers)
        self._claimed[number], self._number_of[link] = link, number
        group, begin = self._database.open_group, partial(_begin, self._node, number, link.key, sort)
        work = self._database.write_nowait(partial(begin, self._now_ms()))
        self._storing[link] = group, work
        group.callbacks.append(partial(self._ended, number, link, work))

    async def begun(self, link: Claimed) -> None:
        """Wait for the commit of the claim, so that who is told of the connection has it in the order of the others.

        Raises StoreError: it is not stored.
        """
        if (storing := self._storing.get(link)) is not None:
            group, work = storing
            await group.ended.wait()
            if (error := _error_of(work, group.error)) is not None:
                raise error

    def when_begun(self, link: Claimed, call: Callable[[], None]) -> None:
        """Call this when the commit of the claim has ended, however: at once if it has."""
        if (storing := self._storing.get(link)) is not None:
            group, _ = storing
            group.callbacks.append(lambda _error: call())
        else:
            call()

    def _ended(self, number: int, link: Claimed, work: StoreWork, error: StoreError | None) -> None:
        del self._storing[link]
        if _error_of(work, error) is not None and number in self._claimed:
            link.not_claimed()

    def end(self, link: Claimed) -> None:
        """The connection has ended."""
        if (number := self._number_of.pop(link, None)) is not None:
            del self._claimed[number]
            ended = {number: link.key}
            group = self._database.open_group
            work = self._database.write_nowait(partial(_end, self._node, ended, self._now_ms()))
            group.callbacks.append(partial(self._end_stored, ended, work))

    def _end_stored(self, ended: Mapping[int, DeviceKey], work: StoreWork, error: StoreError | None) -> None:
        if _error_of(work, error) is not None:  # such as other rows of the commit that another node has overtaken
            self._left |= ended

    async def end_again_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End the places whose end was not stored."""
        await Loop(self.end_again, every=_AGAIN_SECONDS, failure="connections_not_ended").run(task_status=task_status)

    async def end_again(self) -> None:
        """Raises StoreError."""
        if ended := dict(self._left):
            await self._database.write(partial(_end, self._node, ended, self._now_ms()))
            for number in ended:
                del self._left[number]

    def _replaced(self, replaced: ConnectionReplaced, _content: None) -> None:
        for node, number in replaced.replaced:
            link = self._claimed.pop(number, None) if node == self._node else None
            if link is not None:
                del self._number_of[link]
                link.replaced_elsewhere()


def _error_of(work: StoreWork, error: StoreError | None) -> BaseException | None:
    """Why a work is not stored: its group is not, or only the work itself, which a permission has ended."""
    return error if error is not None else work.error


def _end(node: str, ended: Mapping[int, DeviceKey], now_ms: Milliseconds, tx: Transaction) -> None:
    for number, device in ended.items():
        if tx.device_connections.end(node, number) and not tx.device_connections.connected([device]):
            tx.tell(AVAILABILITY, Availability(device, "offline", now_ms))


def _begin(node: str, number: int, device: DeviceKey, sort: Sort, now_ms: Milliseconds, tx: Transaction) -> None:
    if not tx.device_connections.connected([device]):
        tx.tell(AVAILABILITY, Availability(device, "online", now_ms))
    replaced = tx.device_connections.begin(node, number, device, sort)
    if others := tuple(one for one in replaced if one[0] != node):
        tx.tell(CONNECTION_REPLACED, ConnectionReplaced(device, others))
