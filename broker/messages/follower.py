"""Publishes the rows that other nodes store, so that this one's capabilities hear of the whole log.

Rows are published in the order of their positions, without a gap. Positions are given under a lock that lasts until the
commit, so what a reader sees has no row before it that comes later. The rows of this node are published at its commits
(broker/messages/ingest.py), each after the rows of others that come before it.

That is so while somebody here needs each message at once, as live feeds do. Otherwise only Actions are read, which may
go to a device that is connected to this node, and messages are passed over. Actions always keep their order: a session
of MQTT has come to the position of its last one. Whoever reads the log by itself is told
when it has grown.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec
import trio

from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound
from broker.facts import ActionStored, MessagesStored, Router
from broker.messages.history import action_of
from broker.messages.mids import Mids
from storage.database import Database
from storage.facts import FactPage
from storage.keys import BY_CLOUD, DeviceKey, Position
from storage.records import ActionRow, MessageRow
from storage.transaction import Transaction

_R = TypeVar("_R", MessageRow, ActionRow)
#: Rows of each table that are read in one transaction.
_BLOCK: Final = 2_000
#: A reader that is `ready` begins to need messages by then.
_READY_SECONDS: Final = 10.0


class _Block(msgspec.Struct, frozen=True):
    """The rows of both tables up to a position, or the Actions alone. `own_heads`: positions that commits of this node
    have given last, the lowest first."""

    messages: Sequence[MessageRow]
    actions: Sequence[ActionRow]
    upto: Position
    is_whole: bool
    own_heads: Sequence[int] = ()


class _Commit(NamedTuple):
    """One of this node, whose rows are published."""

    first: Position
    last: Position


class _Reader(NamedTuple):
    """Reads the log by itself while it `wants` to, and `hears` that it has grown."""

    wants: Callable[[], bool]
    hears: Callable[[], None]


class FollowerStatistics(msgspec.Struct, frozen=True):
    """`position`: of the last row that was published or passed over. `rows`: those of other nodes that were read, since
    the start. `reads_messages`: whether somebody here needs each message."""

    position: Position
    rows: int
    reads_messages: bool


class LogFollower:
    def __init__(
        self, database: Database, router: Router, devices: Devices, mids: Mids, instance: str, head: Position
    ) -> None:
        """`instance`: the name of this process. `head`: rows up to here are known already."""
        self._database = database
        self._router = router
        self._devices = devices
        self._mids = mids
        self._instance = instance
        self._position = head
        #: While messages are passed over: own commits behind `_position`, the last of which is at the end.
        self._own: deque[_Commit] = deque()
        self._rows = 0
        self._turn = trio.Lock()  # one task at a time reads and publishes
        self._ready_until = float("-inf")
        #: Whether somebody now needs each message.
        self.wants_messages: list[Callable[[], bool]] = []
        self._readers: list[_Reader] = []
        #: Called when somebody begins to need what others store.
        self.on_begin: Callable[[], None] = lambda: None

    def tell_reader(self, wants: Callable[[], bool], hears: Callable[[], None]) -> None:
        """Call `hears` when others have stored messages, while `wants` says so."""
        self._readers.append(_Reader(wants, hears))

    def reads_messages(self) -> bool:
        return trio.current_time() < self._ready_until or any(wants() for wants in self.wants_messages)

    @property
    def is_hearing(self) -> bool:
        """Whether somebody needs to know at once that others have stored messages."""
        return self.reads_messages() or any(reader.wants() for reader in self._readers)

    async def ready(self) -> None:
        """Somebody is about to need each message: from here on none is passed over. Raises StoreError."""
        async with self._turn:
            is_reading, self._ready_until = self.reads_messages(), trio.current_time() + _READY_SECONDS
            if is_reading:
                return
            while not is_reading:
                block = await self._next(with_messages=False)
                await self._hold_and_publish(block)
                is_reading = block.is_whole
        self.on_begin()

    async def before(self, first: Position, last: Position, *, has_actions: bool) -> None:
        """Publish what comes before a commit of this node with these positions. Raises StoreError."""
        if not has_actions and not self.reads_messages():  # Actions of others wait for no messages
            if self._own and self._own[-1].last == first - 1:
                first = self._own.pop().first
            self._own.append(_Commit(first, last))
            return
        async with self._turn:
            while self._position < first - 1:
                with_messages = self.reads_messages()
                between = partial(_rows, behind=self._position, upto=Position(first - 1), with_messages=with_messages)
                block = await self._database.look_up(between)
                devices = await self._held(block)
                if with_messages or not self.reads_messages():
                    self._publish(block, block.upto, devices)
            self._move(last)

    async def read_on(
        self, heard: int | None = None, take: Callable[[FactPage], Awaitable[object]] | None = None
    ) -> None:
        """Publish what the others have stored. Raises StoreError.

        `take` gets the facts after the number `heard`, which are read with the rows, before these are published."""
        before, is_behind = self._position, True
        while is_behind:
            async with self._turn:
                with_messages = self.reads_messages()
                if heard is not None and take is not None:
                    block, facts = await self._next_and_facts(heard, with_messages=with_messages)
                    await take(facts)
                    heard = None
                else:
                    block = await self._next(with_messages=with_messages)
                devices = await self._held(block)
                if self.reads_messages() and not with_messages:
                    continue  # somebody has begun to need messages, and perhaps has read the log before this was read
                upto = self._bounded(block)
                self._publish(block, upto, devices)
                is_behind = not block.is_whole and upto == block.upto
        if self._position != before:
            self._tell_readers()

    async def messages_came(self) -> None:
        """Others have stored messages, and nothing else. Raises StoreError."""
        if self.reads_messages():
            await self.read_on()
        else:
            self._tell_readers()

    def leave_out(self) -> None:
        """A row that comes before a commit of this node cannot be read. The node ends, and until then publishes no row:
        feeds would leave rows out."""
        self._router.end(MessagesStored, ActionStored)

    def _tell_readers(self) -> None:
        for reader in self._readers:
            if reader.wants():
                reader.hears()

    @property
    def _own_upto(self) -> Position:
        """The last row of this node that is published."""
        return max(self._own[-1].last, self._position) if self._own else self._position

    async def _next(self, *, with_messages: bool) -> _Block:
        read = partial(_block, self._position, self._own_upto, self._instance, with_messages=with_messages)
        return await self._database.look_up(read)

    async def _next_and_facts(self, heard: int, *, with_messages: bool) -> tuple[_Block, FactPage]:
        read = _block_and_facts if with_messages else _actions_and_facts
        return await self._database.look_up(partial(read, heard, self._position, self._own_upto, self._instance))

    async def _hold_and_publish(self, block: _Block) -> None:
        devices = await self._held(block)
        self._publish(block, self._bounded(block), devices)

    def _bounded(self, block: _Block) -> Position:
        """Up to where the rows are published now: a commit of this node publishes its rows itself."""
        head = next((head for head in block.own_heads if head > self._own_upto), None)
        own = None if head is None else self._database.own_rows_from(head)
        return block.upto if own is None else Position(min(block.upto, own - 1))

    def _publish(self, block: _Block, upto: Position, devices: dict[DeviceKey, Device]) -> None:
        messages = self._of_others(block.messages, upto)
        actions = self._of_others(block.actions, upto)
        begun = 0
        for row in actions:
            end = next(
                (at for at in range(begun, len(messages)) if messages[at].position > row.position), len(messages)
            )
            self._tell(messages[begun:end])
            begun = end
            if (fact := self._action(row, devices)) is not None:
                self._router.publish(fact)
        self._tell(messages[begun:])
        self._rows += len(messages) + len(actions)
        self._move(upto)

    def _of_others(self, rows: Sequence[_R], upto: Position) -> list[_R]:
        """The rows up to a position that no commit of this node has published."""
        found = [row for row in rows if row.position <= upto]
        if not found or not self._own:
            return found
        own = [one for one in self._own if one.first <= found[-1].position]
        return [row for row in found if not any(one.first <= row.position <= one.last for one in own)]

    def _move(self, upto: Position) -> None:
        self._position = max(self._position, upto)
        while self._own and self._own[0].last <= self._position:
            self._own.popleft()

    def _tell(self, rows: list[MessageRow]) -> None:
        if rows:
            self._router.publish(MessagesStored(rows, is_own=False))

    async def _held(self, block: _Block) -> dict[DeviceKey, Device]:
        """The devices of the rows, which are in memory until these are published."""
        keys = {key for row in block.actions for key in (row.device, row.source)}
        keys |= {row.device for row in block.messages}
        found = {}
        for key in keys:
            try:
                found[key] = self._devices.get_nowait(key) or await self._devices.get(key)
            except DeviceNotFound:
                continue
        return found

    def _action(self, row: ActionRow, devices: dict[DeviceKey, Device]) -> ActionStored | None:
        if (destination := devices.get(row.device)) is None:  # deleted since
            return None
        source = devices.get(row.source, destination)  # as for one that is read later (broker/messages/history.py)
        action = action_of(row, source.id, destination, self._mids)
        is_sent = row.source != BY_CLOUD
        sender = row.source if is_sent else row.device
        return ActionStored(action=action, source=sender, destination=row.device, is_sent=is_sent, is_own=False)

    def statistics(self) -> FollowerStatistics:
        return FollowerStatistics(self._position, self._rows, self.reads_messages())


def _block(behind: Position, own_upto: Position, instance: str, tx: Transaction, *, with_messages: bool) -> _Block:
    head, own_heads = tx.facts.heads(instance, own_upto)
    if head <= behind:
        return _Block((), (), behind, is_whole=True)
    return msgspec.structs.replace(
        _rows(tx, behind, Position(head), with_messages=with_messages), own_heads=tuple(own_heads)
    )


def _block_and_facts(
    heard: int, behind: Position, own_upto: Position, instance: str, tx: Transaction
) -> tuple[_Block, FactPage]:
    facts = tx.facts.after(heard)
    return _block(behind, own_upto, instance, tx, with_messages=True), facts


def _actions_and_facts(
    heard: int, behind: Position, own_upto: Position, instance: str, tx: Transaction
) -> tuple[_Block, FactPage]:
    """Where messages are passed over, in one statement."""
    tip = tx.facts.tip(heard, behind=behind, instance=instance, own_behind=own_upto, limit=_BLOCK)
    is_whole = len(tip.actions) < _BLOCK
    upto = Position(max(behind, tip.head)) if is_whole else tip.actions[-1].position
    return _Block((), tip.actions, upto, is_whole=is_whole, own_heads=tip.own_heads), tip.facts


def _rows(tx: Transaction, behind: Position, upto: Position, *, with_messages: bool) -> _Block:
    messages = tx.messages.after(behind, limit=_BLOCK) if with_messages else []
    actions = tx.messages.actions_after(behind, limit=_BLOCK)
    full = [rows[-1].position for rows in (messages, actions) if len(rows) == _BLOCK]
    end = Position(max(behind, min([upto, *full])))
    return _Block(
        [row for row in messages if row.position <= end],
        [row for row in actions if row.position <= end],
        end,
        is_whole=not full,
    )
