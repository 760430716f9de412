"""Follows the message log for all subscriptions together, and forms their notifications.

One reading of the log serves every outlet that is not behind; the outlets that are behind share a second one.
Notifications are stored before they are sent, together with the positions up to which their outlets have come, so a
crash loses none.
"""

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from functools import partial
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound
from broker.facts import ActionStored, DeviceChanged, FactPhase, GrantsChanged, MessagesStored, Router, SharesChanged
from broker.loops import Loop, Wakeup
from broker.messages.follower import LogFollower
from broker.subscriptions.outlets import Outlet, Outlets, Row, Taken
from broker.subscriptions.subscription import Subscription
from storage.database import Database
from storage.deliveries import PENDING, UNDER_WAY, NotificationRecord
from storage.keys import DeviceKey, Milliseconds, Position
from storage.leases import Holder
from storage.outages import Outage
from storage.records import NEW_KEY, ActionRow
from storage.sql import StoreError
from storage.subscriptions import CONSUMER, CursorRecord
from storage.transaction import Transaction

_BLOCK: Final = 1_000  # rows of one table that one step reads
_SAVE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_NEVER: Final = float("inf")
_POSITION: Final = attrgetter("position")
_log = structlog.get_logger(__name__)


class Formed(msgspec.Struct, frozen=True):
    """A notification that is stored and not sent yet."""

    outlet: Outlet
    record: NotificationRecord
    taken: list[Taken]


#: A part of the log: its rows, and up to where there are no others.
_Block = tuple[list[Row], Position]


@dataclass(eq=False)
class Reader:
    """`send` takes notifications that are stored."""

    _database: Database
    _lease: Holder
    _clock: Clock
    router: InitVar[Router]
    _devices: Devices
    _outlets: Outlets
    _send: Callable[[Sequence[Formed]], None]
    follower: InitVar[LogFollower | None] = None

    def __post_init__(self, router: Router, follower: LogFollower | None) -> None:
        self._position = Position(0)
        self._wakeup = Wakeup()
        #: Outlets that may be able to form a notification now, and outlets that can at a later time.
        self._to_look_at: dict[Outlet, None] = {}
        self._later: list[tuple[float, int]] = []
        self._behind: dict[Outlet, None] = {}
        self._has_reader_row = False
        self.formed = 0
        if follower is not None:
            follower.tell_reader(lambda: bool(self._outlets), self._wakeup.set)
        router.subscribe(MessagesStored, self._log_grew, FactPhase.EFFECT)
        router.subscribe(ActionStored, self._log_grew, FactPhase.EFFECT)
        router.subscribe(DeviceChanged, self._device_changed, FactPhase.STATE)
        router.subscribe(SharesChanged, self._device_changed, FactPhase.STATE)
        router.subscribe(GrantsChanged, lambda _fact: self._outlets.forget(), FactPhase.STATE)

    @property
    def position(self) -> Position:
        return self._position

    def _log_grew(self, _fact: MessagesStored | ActionStored) -> None:
        if self._outlets:
            self._wakeup.set()

    def _device_changed(self, fact: DeviceChanged | SharesChanged) -> None:
        self._outlets.forget(fact.device)

    # Outlets

    async def resume(self) -> None:
        """Read where the last run stopped, before the outlets are added."""
        position, head = await self._database.read(lambda tx: (tx.subscriptions.reader_position(), tx.messages.head()))
        self._has_reader_row = position is not None
        self._position = head if position is None else position

    def add(self, outlet: Outlet) -> None:
        """Read on for this outlet, too, from where it stopped."""
        if not self._outlets:  # nobody has read since the last one was removed
            self._position = max(self._position, outlet.read_upto)
        outlet.is_behind = outlet.read_upto < self._position or not outlet.is_active
        if outlet.is_behind:
            self._behind[outlet] = None
        self._outlets.add(outlet)
        self.look_at(outlet)

    def change(self, outlet: Outlet, subscription: Subscription) -> None:
        """Take what the subscription is now. While it is paused, its rows stay in the log."""
        outlet.subscription = subscription
        if not outlet.is_active:
            self._leave_behind(outlet)
        self.look_at(outlet)

    def _leave_behind(self, outlet: Outlet) -> None:
        if not outlet.is_behind:
            outlet.fall_behind(self._position)
        self._behind[outlet] = None

    def remove(self, key: int) -> None:
        if (outlet := self._outlets.get(key)) is not None:
            self._to_look_at.pop(outlet, None)
            self._behind.pop(outlet, None)
            self._outlets.remove(key)

    def look_at(self, outlet: Outlet) -> None:
        """Look at an outlet that has changed: it may be able to form a notification."""
        if not outlet.is_closed:
            self._to_look_at[outlet] = None
            self._wakeup.set()

    def forget_all(self) -> None:
        """Another node reads."""
        for outlet in list(self._outlets):
            self.remove(outlet.key)
        self._to_look_at, self._later, self._behind = {}, [], {}

    # Reading

    async def read_forever(self) -> None:
        outage = Outage("subscriptions_not_read")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Loop(self.save, every=_SAVE_SECONDS, failure="subscriptions_not_saved").run)
            while True:
                try:
                    await self.step()
                    outage.succeeded()
                except StoreError as error:
                    outage.failed(error)
                    await trio.sleep(_RETRY_SECONDS)
                    self._wakeup.set()
                await self._wakeup.wait(self._seconds_to_next())

    def _seconds_to_next(self) -> float:
        return max(self._later[0][0] - trio.current_time(), 0) if self._later else float("inf")

    async def step(self) -> None:
        """Read everything that is new, and form what can be formed. Raises StoreError."""
        while self._outlets:
            is_behind = await self._read_on()
            has_more = await self._catch_up()
            await self._form()
            if not is_behind and not has_more:
                return

    async def _read_on(self) -> bool:
        """Read the next block for all that are not behind. Return whether there is more."""
        rows, upto = await self._database.read(partial(_block, self._position))
        now = trio.current_time()
        for row, device in await self._with_devices(rows):
            for outlet in self._outlets.interested(row, device):
                if outlet.is_behind:
                    continue
                if outlet.take(row, device, now):
                    self._to_look_at[outlet] = None
                else:
                    self._behind[outlet] = None
        self._position = max(self._position, upto)
        return len(rows) >= _BLOCK

    async def _catch_up(self) -> bool:
        """Read a block for the outlets that are behind and have room. Return whether there is more."""
        wanting = {one: None for one in self._behind if one.wants_more}
        if not wanting:
            return False
        begin = min(one.read_upto for one in wanting)
        rows, upto = await self._database.read(partial(_block, begin))
        now = trio.current_time()
        for row, device in await self._with_devices(rows):
            for outlet in self._outlets.interested(row, device):
                if outlet in wanting and not outlet.take(row, device, now):
                    del wanting[outlet]
                    self._to_look_at[outlet] = None
        for outlet in wanting:
            if outlet.is_active:  # not paused or removed since
                outlet.read_upto = max(outlet.read_upto, upto)
                outlet.is_behind = outlet.read_upto < self._position
                self._to_look_at[outlet] = None
                if not outlet.is_behind:
                    del self._behind[outlet]
        return any(one.wants_more for one in self._behind)

    async def _with_devices(self, rows: Sequence[Row]) -> list[tuple[Row, Device]]:
        """The rows with their devices, in their order, without those of deleted devices."""
        devices: dict[DeviceKey, Device | None] = {}
        for key in {row.device for row in rows}:
            try:
                devices[key] = self._devices.get_nowait(key) or await self._devices.get(key)
            except DeviceNotFound:
                devices[key] = None
        return [(row, device) for row in rows if (device := devices[row.device]) is not None]

    # Forming

    async def _form(self) -> None:
        now = trio.current_time()
        while self._later and self._later[0][0] <= now:
            if (outlet := self._outlets.get(heappop(self._later)[1])) is not None:
                outlet.planned_at = _NEVER
                self._to_look_at[outlet] = None
        formed: list[Formed] = []
        advanced: list[Outlet] = []
        looked_at, self._to_look_at = self._to_look_at, {}
        for outlet in looked_at:
            before = outlet.formed_upto
            while (at := outlet.ready_at(now)) <= now:
                if taken := outlet.form():
                    formed.append(self._notification(outlet, taken))
            if at < min(outlet.planned_at, _NEVER):
                outlet.planned_at = at
                heappush(self._later, (at, outlet.key))
            if outlet.formed_upto != before:
                advanced.append(outlet)
        if advanced:
            await self._store(formed, advanced)

    def _notification(self, outlet: Outlet, taken: list[Taken]) -> Formed:
        times = [one.row.ts for one in taken]
        record = NotificationRecord(
            key=NEW_KEY,
            subscription=outlet.key,
            status=PENDING,
            created_on=self._clock.now_ms(),
            start_ts=Milliseconds(min(times)),
            end_ts=Milliseconds(max(times)),
            positions=tuple(one.row.position for one in taken),
            next_on=UNDER_WAY,
        )
        outlet.in_flight += 1
        outlet.pending += 1
        return Formed(outlet, record, taken)

    async def _store(self, formed: list[Formed], advanced: list[Outlet]) -> None:
        # `is_behind` stays set in the store until `save` clears it together with the common position.
        cursors = [
            CursorRecord(one.key, one.formed_upto, is_behind=one.is_behind or one.saved_behind) for one in advanced
        ]
        for outlet in advanced:
            if outlet.is_behind:
                outlet.saved_behind = True
                outlet.times_saved_behind += 1

        def work(tx: Transaction) -> list[Formed]:
            tx.subscriptions.put_cursors(cursors)
            if not formed:
                return []
            first = tx.deliveries.take_keys(len(formed))
            stored = [replace(one, record=replace(one.record, key=first + i)) for i, one in enumerate(formed)]
            tx.deliveries.put([one.record for one in stored])
            return stored

        try:
            with trio.CancelScope(shield=True):  # whether it was stored must be known, also at the end
                stored = await self._database.write_own(self._lease, work)
        except StoreError:
            self._give_back(formed)
            raise
        await trio.lowlevel.checkpoint_if_cancelled()  # at the end nothing is begun any more
        self.formed += len(stored)
        self._send(stored)

    def _give_back(self, formed: list[Formed]) -> None:
        """Give back the rows of a notification that was not stored: they wait again."""
        for one in reversed(formed):
            outlet = one.outlet
            outlet.waiting.extendleft(reversed(one.taken))
            outlet.formed_upto = Position(one.taken[0].row.position - 1)
            outlet.in_flight -= 1
            outlet.pending -= 1
            self._to_look_at[outlet] = None

    # The common position

    async def save(self) -> None:
        """Store up to where the log is read. Raises StoreError."""
        outlets = list(self._outlets)
        self._outlets.forget()  # no fact tells of a type that is protected from now on, or no longer
        if not outlets and not self._has_reader_row:
            return
        position = self._position
        changed: list[Outlet] = []
        for outlet in outlets:
            if not outlet.is_behind:
                position = min(position, outlet.safe_position)
            if outlet.is_behind or outlet.saved_behind:
                changed.append(outlet)
        cursors = [
            CursorRecord(one.key, max(one.formed_upto, one.safe_position), is_behind=one.is_behind) for one in changed
        ]
        states = [(one, one.is_behind, one.times_saved_behind) for one in changed]
        await self._database.write_own(self._lease, partial(_save, position if outlets else None, cursors))
        self._has_reader_row = bool(outlets)
        for outlet, is_behind, times in states:
            if outlet.times_saved_behind == times:  # else it has fallen behind, and the store says so
                outlet.saved_behind = is_behind


def _save(position: Position | None, cursors: Sequence[CursorRecord], tx: Transaction) -> None:
    tx.subscriptions.put_cursors(cursors)
    if position is None:
        tx.subscriptions.forget_reader()
    else:
        tx.messages.set_consumer_position(CONSUMER, position)


def _block(after: Position, tx: Transaction) -> _Block:
    """The next rows of the log, and up to which position these are all."""
    messages = tx.messages.after(after, limit=_BLOCK)
    actions: list[ActionRow] = tx.messages.actions_after(after, limit=_BLOCK)
    upto = max(tx.messages.head(), after)
    for rows in (messages, actions):
        if len(rows) == _BLOCK:
            upto = min(upto, Position(rows[-1].position))
    rows_of_both: list[Row] = [*messages, *actions]
    return sorted((row for row in rows_of_both if row.position <= upto), key=_POSITION), upto
