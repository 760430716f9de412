"""The delivery log: what became of each notification, its messages, and sending it again (reference 11.4 and 11.5)."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from broker.accounts.permissions import Permission, Permissions
from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.cluster.kinds import REPLAYED, Replay, publish
from broker.devices.readers import DataReaders
from broker.errors import Conflict, NotFound, ValidationFailed, invalid
from broker.facts import DeliveriesProgressed
from broker.subscriptions.entries import NotificationEntries, NotificationIds
from broker.subscriptions.port import Shown
from broker.subscriptions.subscription import Subscription, SubscriptionStatus
from broker.subscriptions.subscriptions import NOT_ACTIVE, Subscriptions
from broker.trace.audit import AuditEvent, note
from config.limits import DELIVERY_DAYS, REPLAY_NOTIFICATIONS
from storage.database import Database
from storage.deliveries import DELIVERED, FAILED, PENDING, UNDER_WAY, AttemptRecord, NotificationRecord
from storage.subscriptions import SubscriptionRecord
from storage.transaction import Transaction

_STATUSES: Final = (PENDING, DELIVERED, FAILED)
_DAY_MS: Final = 86_400_000


class Delivery(msgspec.Struct, frozen=True):
    """A notification in the log. `next_on` None: there is no further attempt."""

    id: str
    status: str
    attempts: tuple[AttemptRecord, ...]
    next_on: int | None


class ReadableNotification(msgspec.Struct, frozen=True):
    """A notification that a caller may read, and whether its entries are Actions."""

    record: NotificationRecord
    subscription: SubscriptionRecord


@dataclass(eq=False)
class DeliveryLog:
    """`flush` stores what is known of attempts."""

    _database: Database
    _clock: Clock
    _permissions: Permissions
    _subscriptions: Subscriptions
    _entries: NotificationEntries
    _ids: NotificationIds
    _flush: Callable[[], Awaitable[None]]
    _readers: DataReaders

    async def page(
        self, subscription: Subscription, status: str | None, *, offset: int, limit: int
    ) -> tuple[list[Delivery], int]:
        """Newest first, and the number of all."""
        await self._flush()
        found, total = await self._database.read(
            lambda tx: tx.deliveries.page(subscription.key, status, offset=offset, limit=limit)
        )
        return [
            # The first attempt is under way: it was due when the notification was made.
            Delivery(
                self._ids.id_of(one.key),
                one.status,
                one.attempts,
                one.created_on if one.next_on == UNDER_WAY else one.next_on,
            )
            for one in found
        ], total

    async def find(self, caller: Caller, id_: str) -> ReadableNotification:
        """A notification of the last 30 days. Raises NotFound, PermissionDenied."""
        key = self._ids.key_of(id_)
        if key is None:
            raise NotFound
        found = await self._database.read(partial(_found, key))
        if found is None or found.record.created_on < self._clock.now_ms() - DELIVERY_DAYS * _DAY_MS:
            raise NotFound
        await self._subscriptions.require(caller, found.subscription)
        return found

    async def entries(
        self, caller: Caller, found: ReadableNotification, *, order: Literal["asc", "desc"], offset: int, limit: int
    ) -> tuple[Sequence[Shown], int]:
        """A page of a notification's messages or Actions by `ts`, or its alarm. And the number of all that the caller
        may read."""
        reach = await self._permissions.reach(caller)
        if found.record.alarm is not None:
            shown = await self._entries.alarm(found.record, reach)
            return shown[offset : offset + limit], len(shown)
        are_actions = found.subscription.message_type == "action"
        rows = await self._entries.rows(found.record.positions, are_actions=are_actions)
        readable = [one for one in rows if reach.allows(one.device, Permission.READ)]
        readable.sort(key=lambda one: (one.row.ts, one.row.position), reverse=order == "desc")
        page = readable[offset : offset + limit]
        self._readers.note(caller, [one.device for one in page])
        return await self._entries.of(page), len(readable)

    async def replay(
        self, subscription: Subscription, *, ids: Sequence[str] | None, start_ms: int = 0, end_ms: int = 0
    ) -> list[str]:
        """Deliver notifications again, oldest first, with their ids. Return these ids.

        Args:
            subscription: an active or paused one.
            ids: the notifications; ones whose first attempt is under way are left out. A waiting retry begins now.
            start_ms, end_ms: without `ids`, up to `REPLAY_NOTIFICATIONS` notifications made in this time.

        Raises:
            ValidationFailed: an id is not one of this subscription.
            Conflict: the subscription is not active.
        """
        await self._flush()
        now_ms = self._clock.now_ms()
        keys = None if ids is None else [self._ids.key_of(one) for one in ids]

        def work(tx: Transaction) -> list[NotificationRecord]:
            record = tx.subscriptions.by_key(subscription.key)
            if record is None or record.removed_on is not None:
                raise NotFound
            if record.status not in {SubscriptionStatus.ACTIVE, SubscriptionStatus.PAUSED}:
                raise Conflict(NOT_ACTIVE)
            if keys is None:
                chosen = tx.deliveries.created_between(
                    record.key, start_ms=start_ms, end_ms=end_ms, statuses=_STATUSES, limit=REPLAY_NOTIFICATIONS
                )
            else:
                chosen = [_own(tx, record.key, key, index) for index, key in enumerate(keys)]
                chosen = sorted({one.key: one for one in chosen}.values(), key=lambda one: one.key)
            chosen = [one for one in chosen if one.next_on != UNDER_WAY]
            again = [_due_now(one, now_ms) for one in chosen]
            tx.deliveries.put(again)
            what = f"{len(again)} notifications again"
            note(tx, AuditEvent.SUBSCRIPTION_CHANGED, f"subscription {record.id}", now_ms=now_ms, what=what)
            tx.tell(REPLAYED, Replay(record.key, sum(one.next_on is None for one in chosen)))
            publish(tx, DeliveriesProgressed(record.key))
            return chosen

        return [self._ids.id_of(one.key) for one in await self._database.write(work)]


def _found(key: int, tx: Transaction) -> ReadableNotification | None:
    record = tx.deliveries.by_key(key)
    subscription = None if record is None else tx.subscriptions.by_key(record.subscription)
    return None if record is None or subscription is None else ReadableNotification(record, subscription)


def _due_now(record: NotificationRecord, now_ms: int) -> NotificationRecord:
    is_waiting = record.status == PENDING
    return replace(record, status=PENDING, tries=record.tries if is_waiting else 0, next_on=now_ms)


def _own(tx: Transaction, subscription: int, key: int | None, index: int) -> NotificationRecord:
    record = None if key is None else tx.deliveries.by_key(key)
    if record is None or record.subscription != subscription:
        raise ValidationFailed.of(f"ids.{index}", invalid("is no delivery of this subscription that is still kept"))
    return record
