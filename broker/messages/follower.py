"""Publishes the rows that other nodes store, so that this one's capabilities hear of the whole log.

Rows are published in the order of their positions, without a gap. Positions are given under a lock that lasts until the
commit, so what a reader sees has no row before it that comes later. The rows of this node are published at its commits
(broker/messages/ingest.py), each after the rows of others that come before it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
import trio

from broker.devices.registry import Device, Devices
from broker.envelope import Action
from broker.errors import DeviceNotFound
from broker.facts import ActionStored, MessagesStored, Router
from broker.messages.mids import Mids
from storage.database import Database, Transaction
from storage.keys import DeviceKey, Position
from storage.records import ActionRow, MessageRow

#: Rows of each table that are read in one transaction.
_BLOCK: Final = 2_000


class _Block(msgspec.Struct, frozen=True):
    """The rows of both tables up to a position. `own_head`: a commit of this node that is in it gave this position."""

    messages: Sequence[MessageRow]
    actions: Sequence[ActionRow]
    upto: Position
    own_head: int | None
    is_whole: bool


class FollowerStatistics(msgspec.Struct, frozen=True):
    """`position`: of the last row that was published. `rows`: those of other nodes, since the start."""

    position: Position
    rows: int


class LogFollower:
    def __init__(
        self, database: Database, router: Router, devices: Devices, mids: Mids, instance: str, head: Position
    ) -> None:
        """`instance`: the name of this process. `head`: who hears of rows has read those up to here."""
        self._database = database
        self._router = router
        self._devices = devices
        self._mids = mids
        self._instance = instance
        self._position = head
        self._rows = 0
        self._turn = trio.Lock()  # who has it reads and publishes
        #: Whether somebody now needs the devices of rows.
        self.wants_devices: list[Callable[[], bool]] = []

    async def before(self, first: Position, last: Position) -> None:
        """Publish what comes before a commit of this node with these positions. Raises StoreError."""
        async with self._turn:
            while self._position < first - 1:
                block = await self._database.look_up(
                    partial(_block, self._position, Position(first - 1), self._instance)
                )
                await self._publish(block, block.upto)
            self._position = max(self._position, last)

    async def read_on(self) -> None:
        """Publish what the others have stored. Raises StoreError."""
        is_behind = True
        while is_behind:
            async with self._turn:
                block = await self._database.look_up(partial(_block, self._position, None, self._instance))
                upto = block.upto
                own = None if block.own_head is None else self._database.own_rows_from(block.own_head)
                if own is not None:  # this commit publishes its rows itself
                    upto = Position(min(upto, own - 1))
                await self._publish(block, upto)
                is_behind = not block.is_whole and upto == block.upto

    def leave_out(self) -> None:
        """A row that comes before a commit of this node cannot be read. The node ends, and until then publishes no row:
        feeds would leave rows out, and rules would store that they have come further."""
        self._router.end(MessagesStored, ActionStored)

    async def _publish(self, block: _Block, upto: Position) -> None:
        messages = [row for row in block.messages if row.position <= upto]
        actions = [row for row in block.actions if row.position <= upto]
        devices = await self._held(messages, actions)
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
        self._position = max(self._position, upto)

    def _tell(self, rows: list[MessageRow]) -> None:
        if rows:
            self._router.publish(MessagesStored(rows, is_own=False))

    async def _held(self, messages: Sequence[MessageRow], actions: Sequence[ActionRow]) -> dict[DeviceKey, Device]:
        """The devices that are needed, which are in memory until the rows are published."""
        keys = {key for row in actions for key in (row.device, row.source)}
        if any(wants() for wants in self.wants_devices):
            keys |= {row.device for row in messages}
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
        action = Action(
            position=row.position,
            mid=self._mids.mid(row.position),
            sdid=source.id,
            ddid=destination.id,
            ddtid=destination.type.id,
            uid=destination.owner_id,
            boid=destination.type.record.organization_id,
            ts=row.ts,
            cts=row.cts,
            mv=row.mv,
            data=row.data,
        )
        return ActionStored(action=action, source=row.source, destination=row.device)

    def statistics(self) -> FollowerStatistics:
        return FollowerStatistics(self._position, self._rows)


def _block(behind: Position, upto: Position | None, instance: str, tx: Transaction) -> _Block:
    own_head = None if upto is not None else tx.facts.first_own_head(instance, behind)
    messages = tx.messages.after(behind, limit=_BLOCK)
    actions = tx.messages.actions_after(behind, limit=_BLOCK)
    last = tx.messages.head() if upto is None else upto
    full = [rows[-1].position for rows in (messages, actions) if len(rows) == _BLOCK]
    end = Position(max(behind, min([last, *full])))
    return _Block(
        [row for row in messages if row.position <= end],
        [row for row in actions if row.position <= end],
        end,
        own_head,
        is_whole=not full,
    )
