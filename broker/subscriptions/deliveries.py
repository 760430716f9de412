"""The workers of all deliveries: one outlet for each subscription that collects messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import trio

from broker.accounts.permissions import Permissions
from broker.accounts.tokens import user_through
from broker.clock import Clock
from broker.loops import Loop, Wakeup
from broker.subscriptions.endings import Endings
from broker.subscriptions.handshakes import Handshakes
from broker.subscriptions.outlets import Outlet, Outlets
from broker.subscriptions.port import Callbacks
from broker.subscriptions.reader import Reader
from broker.subscriptions.sender import NotificationSender
from broker.subscriptions.subscription import COLLECTING, Subscription, SubscriptionStatus
from broker.subscriptions.subscriptions import Subscriptions
from broker.subscriptions.upkeep import Upkeep
from storage.database import Database
from storage.keys import Position
from storage.leases import Holder
from storage.subscriptions import CursorRecord
from storage.transaction import Transaction

#: The cursor of a subscription, and the number of its pending notifications.
_Standing = dict[int, tuple[CursorRecord | None, int]]


class SubscriptionStatistics(msgspec.Struct, frozen=True):
    """Subscriptions by status, waiting notifications, and counts since the start.

    `backlog` is the number of messages and Actions that wait for their first attempt in memory, `behind` that of the
    subscriptions for which more wait in the log. `pending` counts notifications that are neither delivered nor given
    up, `in_flight` those of them whose attempt is under way.
    """

    active: int
    unvalidated: int
    paused: int
    suspended: int
    backlog: int
    behind: int
    pending: int
    in_flight: int
    formed: int
    attempts: int
    delivered: int
    failed_attempts: int
    given_up: int
    log_bytes: int
    log_removed: int


@dataclass(eq=False)
class DeliveryWorkers:
    _database: Database
    _lease: Holder
    _clock: Clock
    _permissions: Permissions
    _subscriptions: Subscriptions
    _endings: Endings
    _outlets: Outlets
    _reader: Reader
    _sender: NotificationSender
    _handshakes: Handshakes
    _upkeep: Upkeep
    _callbacks: Callbacks | None
    _batch_seconds: int

    def __post_init__(self) -> None:
        #: Subscriptions that collect and have no outlet yet, as they became so: what was read for one holds as long as
        #: the same object is here.
        self._to_open: dict[int, Subscription] = {}
        self._wakeup = Wakeup()
        #: Whether what is in memory goes on from what the store said; else the store knows better.
        self._has_resumed = False
        self._sender.look_at = self._reader.look_at
        self._subscriptions.on_change(self._changed)

    def _changed(self, before: Subscription | None, after: Subscription | None) -> None:
        subscription = after or before
        if subscription is None:
            return
        key = subscription.key
        if after is None or after.record.status not in COLLECTING:
            self._to_open.pop(key, None)
            self._reader.remove(key)
        elif (outlet := self._outlets.get(key)) is not None:
            self._reader.change(outlet, after)
            self._sender.look_for_due()
        else:
            self._to_open[key] = after
            self._wakeup.set()

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._endings.sweep_forever)
            nursery.start_soon(self._upkeep.sweep_forever)
            if self._callbacks is not None:
                await self._resume()
                await nursery.start(self._callbacks.keep_forever)
                await nursery.start(self._sender.send_forever)
                nursery.start_soon(self._reader.read_forever)
                nursery.start_soon(self._handshakes.shake_forever)
                nursery.start_soon(
                    Loop(self.open_new, wakeup=self._wakeup, failure="subscriptions_not_opened", retry_seconds=1).run
                )
            task_status.started()

    async def _resume(self) -> None:
        now_ms = self._clock.now_ms()
        await self._database.write_own(self._lease, lambda tx: tx.deliveries.release(now_ms))
        await self._reader.resume()
        # Subscriptions that fell behind follow later: the reader goes on from where it was for the others.
        await self.open_new()
        self._has_resumed = True

    def forget_all(self) -> None:
        """Another node delivers."""
        self._has_resumed = False
        self._reader.forget_all()
        self._sender.forget_all()
        self._to_open = {one.key: one for one in self._subscriptions.all() if one.record.status in COLLECTING}

    async def open_new(self) -> None:
        """Open the outlets of subscriptions that collect from now on. Raises StoreError."""
        opening = dict(self._to_open)
        if not opening:
            return
        cursors = await self._database.read(partial(_standing, tuple(opening)))
        # In the order of their cursors: the reader begins with the first one. Subscriptions added or changed since
        # have woken the worker.
        for key in sorted(opening, key=lambda one: _position(cursors, one)):
            subscription = opening[key]
            cursor, pending = cursors[key]
            if cursor is None:  # it was removed since
                self._opened(subscription)
                continue
            outlet = await self._outlet(subscription, cursor, pending)
            if self._opened(subscription):
                self._reader.add(outlet)
        self._sender.look_for_due()

    def _opened(self, subscription: Subscription) -> bool:
        """Take it from the waiting ones, and return whether it was still one of them, unchanged."""
        if self._to_open.get(subscription.key) is not subscription:
            return False
        del self._to_open[subscription.key]
        return True

    async def _outlet(self, subscription: Subscription, cursor: CursorRecord, pending: int) -> Outlet:
        record, names = subscription.record, subscription.names
        # A subscription sees the devices that its user granted the application, whoever created it (reference 11.2).
        caller = user_through(record.user, names.user_id, record.application, names.application_id, names.organization)
        position = cursor.position if cursor.is_behind else max(cursor.position, self._reader.position)
        return Outlet(
            subscription,
            await self._permissions.reach(caller),
            read_upto=position,
            saved_behind=cursor.is_behind,
            pending=pending,
            batch_seconds=self._batch_seconds,
        )

    async def save(self) -> None:
        """Store what became of the last attempts, and up to where the log is read. Raises StoreError.

        Nothing, when the lease has gone before all was read again: without subscriptions in memory, the position up to
        which their rows are read would be deleted.
        """
        if self._has_resumed:
            await self._sender.flush()
            await self._reader.save()

    def statistics(self) -> SubscriptionStatistics:
        statuses = [one.record.status for one in self._subscriptions.all()]
        outlets, counts = list(self._outlets), self._sender.counts
        return SubscriptionStatistics(
            active=statuses.count(SubscriptionStatus.ACTIVE),
            unvalidated=statuses.count(SubscriptionStatus.PENDING),
            paused=statuses.count(SubscriptionStatus.PAUSED),
            suspended=statuses.count(SubscriptionStatus.SUSPENDED),
            backlog=sum(len(one.waiting) for one in outlets),
            behind=sum(one.is_behind for one in outlets),
            pending=sum(one.pending for one in outlets),
            in_flight=sum(one.in_flight for one in outlets),
            formed=self._reader.formed,
            attempts=counts.attempts,
            delivered=counts.delivered,
            failed_attempts=counts.failures,
            given_up=counts.given_up,
            log_bytes=self._upkeep.log_bytes,
            log_removed=self._upkeep.removed,
        )


def _standing(keys: Sequence[int], tx: Transaction) -> _Standing:
    return {key: (tx.subscriptions.cursor(key), tx.deliveries.count_pending(key)) for key in keys}


def _position(cursors: _Standing, key: int) -> Position:
    cursor, _pending = cursors[key]
    return Position(0) if cursor is None else cursor.position
