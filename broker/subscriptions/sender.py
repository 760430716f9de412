"""Delivers notifications: attempts, retries, and their outcomes (reference 11.5).

Each attempt is a task of its own, at most five for each subscription, so none waits for another subscription. The
notifications of one device begin in their order: each one waits until the one before was answered, or for a second,
because an attempt that hangs must not hold back those after it.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.devices.readers import DataReaders
from broker.facts import DeliveriesProgressed, Router
from broker.loops import Loop, Wakeup
from broker.subscriptions.endings import Endings
from broker.subscriptions.entries import NotificationEntries, NotificationIds
from broker.subscriptions.outlets import InFlight, Outlet, Outlets, Taken
from broker.subscriptions.port import (
    AttemptOutcome,
    CallbackNotification,
    Callbacks,
    Entry,
    Shown,
    StreamFailed,
    StreamRejected,
    Streams,
    StreamTarget,
)
from broker.subscriptions.reader import Formed
from broker.subscriptions.secrets import Signers
from config.limits import FAILING_DAYS, NOTIFICATIONS_IN_FLIGHT, RETRY_SECONDS
from storage.database import Database
from storage.deliveries import DELIVERED, FAILED, PENDING, AttemptRecord, NotificationRecord
from storage.keys import DeviceKey
from storage.leases import Holder
from storage.outages import Outage
from storage.sql import StoreError
from storage.transaction import Transaction

GONE: Final = 410
_ORDER_SECONDS: Final = 1.0
_DUE_AT_ONCE: Final = 500
_LOOK_SECONDS: Final = 60.0  # the longest wait for due notifications: the wall clock may be set
_ATTEMPTS_KEPT: Final = 20
_DAY_MS: Final = 86_400_000
_LONGEST_DELAY_MS: Final = int(max(RETRY_SECONDS) * 1000 * 1.2)  # delays vary by a tenth
_STORE_SECONDS: Final = 1.0
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class SenderCounts:
    """Since the start."""

    attempts: int = 0
    delivered: int = 0
    failures: int = 0
    given_up: int = 0


@dataclass(eq=False)
class NotificationSender:
    """Send notifications. Without `callbacks` or `streams`, every attempt on them fails."""

    _database: Database
    _lease: Holder
    _clock: Clock
    _router: Router
    _endings: Endings
    _outlets: Outlets
    _entries: NotificationEntries
    _ids: NotificationIds
    _signers: Signers
    _callbacks: Callbacks | None
    _streams: Streams | None
    _readers: DataReaders

    def __post_init__(self) -> None:
        self._outage = Outage("subscription_not_suspended")
        self._tasks: trio.Nursery | None = None
        self._under_way: set[int] = set()
        #: Outcomes that are not stored yet, by key; and since when subscriptions fail, and why.
        self._settled: dict[int, NotificationRecord] = {}
        self._failing: dict[int, tuple[int | None, str | None]] = {}
        self._settled_wakeup, self._due_wakeup = Wakeup(), Wakeup()
        #: Whether notifications of any outlet may be due; and the outlets with due ones that have room again.
        self._must_look = False
        self._looked_on = self._clock.now_ms()  # when the store was asked last for all that was due
        self._with_room: dict[Outlet, None] = {}
        self.look_at: Callable[[Outlet], None] = lambda _outlet: None
        self.counts = SenderCounts()

    async def send_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as tasks:
            self._tasks = tasks
            # Notifications under way when the last run ended go before new ones.
            await self.retry_due()
            tasks.start_soon(
                Loop(
                    self.flush,
                    wakeup=self._settled_wakeup,
                    failure="deliveries_not_saved",
                    retry_seconds=_STORE_SECONDS,
                ).run
            )
            tasks.start_soon(self._retry_forever)
            task_status.started()

    def forget_all(self) -> None:
        """Another node sends. The results of the last attempts are stored, or they are made again."""
        self._tasks = None
        self._under_way.clear()
        self._settled, self._failing, self._with_room = {}, {}, {}

    # Attempts

    def send(self, formed: Sequence[Formed]) -> None:
        """Make the first attempts of notifications that are stored."""
        for one in formed:
            self._begin(one.outlet, one.record, one.taken)

    def _begin(self, outlet: Outlet, record: NotificationRecord, taken: list[Taken]) -> None:
        """The outlet has counted the attempt already. Called in the order in which notifications are to arrive."""
        assert self._tasks is not None  # noqa: S101 - the reader runs within the sender
        self._under_way.add(record.key)
        # Changes of alarms go in their order, whatever device they are about.
        devices = {DeviceKey(0)} if record.alarm is not None else {one.row.device for one in taken}
        earlier = {last for device in devices if (last := outlet.last_of.get(device)) is not None}
        sending = InFlight()
        for device in devices:
            outlet.last_of[device] = sending
        self._tasks.start_soon(self._attempt, outlet, record, taken, sending, earlier, devices)

    async def _attempt(
        self,
        outlet: Outlet,
        record: NotificationRecord,
        taken: list[Taken],
        sending: InFlight,
        earlier: set[InFlight],
        devices: set[DeviceKey],
    ) -> None:
        try:
            for one in earlier:
                await one.started.wait()
                with trio.move_on_after(float("inf") if outlet.subscription.record.is_stream else _ORDER_SECONDS):
                    await one.done.wait()
            sending.started.set()
            started, ts = self._clock.steady_ms(), self._clock.now_ms()
            self.counts.attempts += 1
            try:
                outcome = await self._deliver(outlet, record, taken)
            except Exception as error:  # noqa: BLE001 - a bug that one notification triggers must not stop the others
                _log.exception("notification_not_sent", subscription=outlet.subscription.id)
                outcome = AttemptOutcome(error=type(error).__name__)
            took = max(self._clock.steady_ms() - started, 0)
            attempt = AttemptRecord(ts, took, outcome.http_status, outcome.error, outcome.excerpt)
            await self._settle(outlet, record, attempt, outcome)
        finally:
            sending.started.set()
            sending.done.set()
            for device in devices:
                if outlet.last_of.get(device) is sending:
                    del outlet.last_of[device]
            outlet.in_flight -= 1
            self.look_at(outlet)
            if outlet.has_due_retry:
                self._with_room[outlet] = None
                self._due_wakeup.set()

    async def _deliver(self, outlet: Outlet, record: NotificationRecord, taken: list[Taken]) -> AttemptOutcome:
        if outlet.is_closed:
            return AttemptOutcome(error="the subscription has ended")
        subscription = outlet.subscription
        if subscription.record.is_stream:
            return self._noted(outlet, taken, await self._write(outlet, await self._entries.of(taken)))
        if self._callbacks is None:
            return AttemptOutcome(error="callbacks are switched off")
        entries: Sequence[Shown] | None = None
        if subscription.record.payload == "messages":
            of_alarm = record.alarm is not None
            entries = await (self._entries.alarm(record, outlet.reach) if of_alarm else self._entries.of(taken))
        notification = CallbackNotification(
            id=self._ids.id_of(record.key),
            ts=record.created_on,
            type=subscription.record.message_type,
            subscription_id=subscription.id,
            query=subscription.query,
            start_date=record.start_ts,
            end_date=record.end_ts,
            entries=entries,
        )
        outcome = await self._callbacks.notify(await self._signers.callback(subscription), notification)
        return outcome if notification.entries is None else self._noted(outlet, taken, outcome)

    def _noted(self, outlet: Outlet, taken: Sequence[Taken], outcome: AttemptOutcome) -> AttemptOutcome:
        """The application reads what was delivered."""
        if outcome.is_delivered:
            record = outlet.subscription.record
            self._readers.note_by(record.application, record.user, {one.device.owner for one in taken})
        return outcome

    async def _write(self, outlet: Outlet, entries: Sequence[Entry]) -> AttemptOutcome:
        record = outlet.subscription.record
        if self._streams is None or record.stream_secret is None:
            return AttemptOutcome(error="cloud streams are not installed (trunkline[streams])")
        secret = self._signers.opened(record.stream_secret)
        target = StreamTarget(record.stream_name or "", record.stream_region or "", record.stream_key or "", secret)
        try:
            await self._streams.put(target, entries)
        except StreamRejected as error:
            await self._endings.reject(outlet.subscription, str(error))
            return AttemptOutcome(error=str(error))
        except StreamFailed as error:
            return AttemptOutcome(error=str(error))
        return AttemptOutcome(http_status=200)

    async def _settle(
        self, outlet: Outlet, record: NotificationRecord, attempt: AttemptRecord, outcome: AttemptOutcome
    ) -> None:
        """Note what became of an attempt. It is stored soon."""
        now_ms = self._clock.now_ms()
        attempts = (*record.attempts, attempt)[-_ATTEMPTS_KEPT:]
        if outcome.is_delivered:
            self.counts.delivered += 1
            if outlet.note_success():
                self._failing[outlet.key] = (None, None)
            settled = replace(record, status=DELIVERED, attempts=attempts, next_on=None)
        else:
            self.counts.failures += 1
            if outlet.note_failure(trio.current_time(), now_ms):
                self._failing[outlet.key] = (outlet.failing_since, outcome.text)
            settled = replace(_failed(record, now_ms), attempts=attempts)
            if outlet.is_closed or outcome.http_status == GONE:
                settled = replace(settled, status=FAILED, next_on=None)
        if settled.next_on is None:
            outlet.pending -= 1
            self.counts.given_up += settled.status == FAILED
        else:
            self._due_wakeup.set()
        self._settled[record.key] = settled
        self._settled_wakeup.set()
        if not outcome.is_delivered and not outlet.is_closed:
            await self._suspend_if_hopeless(outlet, outcome, now_ms)

    async def _suspend_if_hopeless(self, outlet: Outlet, outcome: AttemptOutcome, now_ms: int) -> None:
        is_gone = outcome.http_status == GONE
        is_hopeless = now_ms - (outlet.failing_since or now_ms) >= FAILING_DAYS * _DAY_MS
        if is_gone or (is_hopeless and self._clock.may_delete()):
            text = outcome.text if is_gone else f"no success for {FAILING_DAYS} days: {outcome.text}"
            try:
                await self.flush()  # what is settled by now is not given up
                await self._endings.suspend(outlet.subscription, text, waiting=len(outlet.waiting))
                self._outage.succeeded()
            except StoreError as error:  # the next attempt tells the same
                self._outage.failed(error, subscription=outlet.subscription.id)

    async def flush(self) -> None:
        """Store the outcomes. Raises StoreError; then they still wait."""
        if not self._settled and not self._failing:
            return
        settled, self._settled = self._settled, {}
        failing, self._failing = self._failing, {}
        try:
            await self._database.write_own(self._lease, partial(_store, list(settled.values()), failing))
        except StoreError:
            self._settled = settled | self._settled
            self._failing = failing | self._failing
            raise
        # Until now they were due in the store, and must not be taken for waiting ones.
        self._under_way -= settled.keys()
        for subscription in {one.subscription for one in settled.values()}:
            self._router.publish(DeliveriesProgressed(subscription))
        latest_ms = self._clock.now_ms() + _LONGEST_DELAY_MS
        times = [one.next_on for one in settled.values() if one.next_on is not None]
        if any(not self._looked_on < next_on <= latest_ms for next_on in times):
            self.look_for_due()  # it became due before it was stored, or the clock was set back

    # Retries

    def look_for_due(self) -> None:
        """Notifications may be due."""
        self._must_look = True
        self._due_wakeup.set()

    async def _retry_forever(self) -> None:
        outage = Outage("notifications_not_read")
        while True:
            seconds = _STORE_SECONDS
            with_room, self._with_room = self._with_room, {}
            try:
                if self._must_look:
                    self._must_look = False
                    await self.retry_due()
                else:
                    await self._retry_of(with_room)
                seconds = await self._seconds_to_next()
                outage.succeeded()
            except StoreError as error:
                self._must_look = True
                outage.failed(error)
            ends = trio.current_time() + seconds
            await self._due_wakeup.wait(seconds)
            self._must_look = self._must_look or trio.current_time() >= ends

    async def _seconds_to_next(self) -> float:
        now_ms = self._clock.now_ms()
        looked_on = min(self._looked_on, now_ms)  # what has become due since then was not looked at
        next_on = await self._database.read(lambda tx: tx.deliveries.next_due(looked_on))
        times = [next_on, *(one.next_on for one in self._settled.values())]
        due_on = min((one for one in times if one is not None), default=None)
        return _LOOK_SECONDS if due_on is None else min(max(due_on - now_ms, 10) / 1000, _LOOK_SECONDS)

    async def retry_due(self) -> None:
        """Begin every attempt that is due and has room, the oldest notifications first. Raises StoreError."""
        self._looked_on = now_ms = self._clock.now_ms()
        # One subscription may have very many: as soon as it has no room, its others are left out.
        full = {outlet.key for outlet in self._outlets if outlet.has_due_retry and outlet.free <= 0}
        for outlet in self._outlets:
            outlet.has_due_retry = outlet.key in full
        after, is_last = 0, False
        while not is_last:
            due = await self._database.read(partial(_due, now_ms=now_ms, after=after, without=tuple(full)))
            is_last = len(due) < _DUE_AT_ONCE
            after = due[-1].key if due else after
            await self._retry(due, full)

    async def _retry_of(self, outlets: Iterable[Outlet]) -> None:
        """Retry the oldest notifications of some outlets. Raises StoreError."""
        now_ms = self._clock.now_ms()
        for outlet in outlets:
            outlet.has_due_retry = False
            # Notifications under way are due in the store, too. One row beyond the room tells whether others still
            # wait.
            limit = len(self._under_way) + NOTIFICATIONS_IN_FLIGHT + 1
            due = await self._database.read(partial(_due_of, outlet.key, now_ms, limit))
            await self._retry(due, set())

    async def _retry(self, due: Sequence[NotificationRecord], full: set[int]) -> None:
        """Begin what has room; the subscriptions that have none are added to `full`."""
        chosen: list[tuple[Outlet, NotificationRecord]] = []
        for one in due:
            if (outlet := self._may_begin(one)) is not None:
                chosen.append((outlet, one))
            elif one.key not in self._under_way:
                full.add(one.subscription)
        rows: Sequence[list[Taken] | None] = [None] * len(chosen)
        try:
            rows = await self._entries.taken([record for _outlet, record in chosen], self._outlets)
        finally:
            for (outlet, record), taken in zip(chosen, rows, strict=True):
                if taken is None or outlet.is_closed:  # not read, or ended since: it is as if nothing had begun
                    outlet.in_flight -= 1
                    self._under_way.discard(record.key)
                    self.look_for_due()
                else:
                    self._begin(outlet, record, taken)

    def _may_begin(self, record: NotificationRecord) -> Outlet | None:
        """The outlet that has room for an attempt, which counts as one that is under way; None: there is no room."""
        outlet = self._outlets.get(record.subscription)
        if outlet is None or not outlet.is_active or record.key in self._under_way:
            return None
        if outlet.free <= 0:
            outlet.has_due_retry = True
            return None
        outlet.in_flight += 1
        self._under_way.add(record.key)
        return outlet


def _failed(record: NotificationRecord, now_ms: int) -> NotificationRecord:
    """After one more failure: with the time of the next attempt, or given up."""
    tries = record.tries + 1
    if tries > len(RETRY_SECONDS):
        return replace(record, status=FAILED, tries=tries, next_on=None)
    delay_ms = RETRY_SECONDS[tries - 1] * 1000 * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load
    return replace(record, status=PENDING, tries=tries, next_on=now_ms + int(delay_ms))


def _due(tx: Transaction, *, now_ms: int, after: int, without: Sequence[int]) -> list[NotificationRecord]:
    too_far_ms = now_ms + _LONGEST_DELAY_MS
    return tx.deliveries.due(now_ms, too_far_ms=too_far_ms, after=after, limit=_DUE_AT_ONCE, without=without)


def _due_of(subscription: int, now_ms: int, limit: int, tx: Transaction) -> list[NotificationRecord]:
    return tx.deliveries.due_of(subscription, now_ms, too_far_ms=now_ms + _LONGEST_DELAY_MS, limit=limit)


def _store(
    settled: Sequence[NotificationRecord], failing: dict[int, tuple[int | None, str | None]], tx: Transaction
) -> None:
    tx.deliveries.put(settled)
    for key, (since, error) in failing.items():
        tx.subscriptions.note_failing(key, since, error)
