"""Ends of subscriptions: by facts, by time, and by receivers that are gone for good (reference 11.2)."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import structlog
from msgspec.structs import replace

from broker.accounts.permissions import ADMINISTRATORS
from broker.clock import Clock
from broker.cluster.kinds import SUBSCRIPTION, publish
from broker.errors import ValidationFailed
from broker.facts import (
    DeviceDeleted,
    DeviceHandedOver,
    FactPhase,
    GrantsChanged,
    ProviderAuthRemoved,
    Router,
    SubscriptionReported,
)
from broker.loops import Loop, Wakeup
from broker.mail import Mails
from broker.mail.kinds import Mail, StreamRemoved, SubscriptionSuspended
from broker.subscriptions.subscription import COLLECTING, Subscription, SubscriptionStatus
from broker.subscriptions.subscriptions import Subscriptions
from broker.trace.audit import AuditEvent, note
from config.limits import VALIDATION_HOURS
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds
from storage.transaction import Transaction

_HOUR_MS: Final = 3_600_000
_SWEEP_SECONDS: Final = 30.0
_log = structlog.get_logger(__name__)


class Endings:
    def __init__(
        self, database: Database, clock: Clock, router: Router, mails: Mails, subscriptions: Subscriptions
    ) -> None:
        self._database = database
        self._clock = clock
        self._mails = mails
        self._subscriptions = subscriptions
        self._wakeup = Wakeup()
        router.subscribe(DeviceDeleted, self._device_deleted, FactPhase.STATE)
        router.subscribe(DeviceHandedOver, self._device_handed_over, FactPhase.STATE)
        router.subscribe(ProviderAuthRemoved, self._provider_auth_removed, FactPhase.STATE)
        router.subscribe(GrantsChanged, self._grants_changed, FactPhase.STATE)
        #: Removes what has ended or was not validated in time.
        self.sweep_forever = Loop(
            self.sweep,
            every=_SWEEP_SECONDS,
            wakeup=self._wakeup,
            at_once=True,
            failure="subscriptions_not_swept",
            retry_seconds=5,
            deletes=True,
        ).run

    # Receivers

    async def suspend(self, subscription: Subscription, error: str, *, waiting: int) -> None:
        """Send and collect nothing any more, and tell the application's owners (reference 11.2).

        `waiting` messages are in no notification yet.
        """
        now_ms = self._clock.now_ms()
        addresses = await self._addresses(subscription)

        def work(tx: Transaction) -> int | None:
            record = tx.subscriptions.by_key(subscription.key)
            if record is None or record.removed_on or record.status not in COLLECTING:
                return None
            record = replace(record, status=SubscriptionStatus.SUSPENDED, last_error=error, modified_on=now_ms)
            tx.subscriptions.put(record)
            tx.subscriptions.forget_cursors([record.key])
            backlog = tx.deliveries.give_up(record.key) + waiting
            # The path of a callback may have a secret of its server.
            receiver = record.description or urlsplit(record.callback_url or "").hostname or ""
            mail = SubscriptionSuspended(
                subscription_id=record.id, receiver=receiver, last_error=error, backlog=backlog
            )
            self._post(tx, subscription, addresses, mail)
            note(tx, AuditEvent.SUBSCRIPTION_SUSPENDED, f"subscription {record.id}", now_ms=now_ms, reason=error)
            tx.tell(SUBSCRIPTION, record.key)
            publish(tx, _reported(subscription, "suspended", error, backlog, now_ms))
            return backlog

        if (backlog := await self._database.write(work)) is not None:
            _log.warning("subscription_suspended", subscription=subscription.id, reason=error, backlog=backlog)

    async def reject(self, subscription: Subscription, error: str) -> None:
        """Remove a subscription whose stream refused a record for good, and tell the application's owners."""
        now_ms = self._clock.now_ms()
        name = f"{subscription.record.stream_name} ({subscription.id})"
        addresses = await self._addresses(subscription)

        def beside(tx: Transaction) -> None:
            self._post(tx, subscription, addresses, StreamRemoved(stream_id=name, last_error=error))
            publish(tx, _reported(subscription, "removed", error, 0, now_ms))

        _log.warning("subscription_stream_rejected", subscription=subscription.id, reason=error)
        await self._subscriptions.forget([subscription.key], error, beside=beside)

    async def _addresses(self, subscription: Subscription) -> list[str]:
        organization = subscription.names.organization
        return list(await self._database.read(lambda tx: tx.accounts.addresses_of(organization, ADMINISTRATORS)))

    def _post(self, tx: Transaction, subscription: Subscription, addresses: Iterable[str], mail: Mail) -> None:
        for address in addresses:
            with suppress(ValidationFailed):  # no address that a mail can be sent to
                self._mails.add(tx, self._mails.compose(address, mail, cause=subscription.id))

    # Facts

    def _device_deleted(self, fact: DeviceDeleted) -> None:
        self._end_of_device(fact.device, "the device was deleted")

    def _device_handed_over(self, fact: DeviceHandedOver) -> None:
        self._end_of_device(fact.device, "the device has another owner")

    def _provider_auth_removed(self, fact: ProviderAuthRemoved) -> None:
        self._end_of_device(fact.device, "the device's authorization was revoked")

    def _end_of_device(self, device: DeviceKey, reason: str) -> None:
        named = [one.key for one in self._subscriptions.all() if device in {one.record.source, one.record.destination}]
        self._end(named, reason)

    def _grants_changed(self, fact: GrantsChanged) -> None:
        if not fact.grants and fact.revoked:
            ended = [one.key for one in self._subscriptions.of_application(fact.application, fact.user)]
            self._end(ended, "the user revoked the application")

    def _end(self, keys: Iterable[int], reason: str) -> None:
        if self._subscriptions.end(keys, reason):
            self._wakeup.set()

    # Time

    async def sweep(self) -> None:
        """Raises StoreError."""
        for key, reason in list(self._subscriptions.ended.items()):
            await self._subscriptions.forget([key], reason)
            self._subscriptions.ended.pop(key, None)
        before_ms = self._clock.now_ms() - VALIDATION_HOURS * _HOUR_MS
        late = [
            one.key
            for one in self._subscriptions.all()
            if one.record.status == SubscriptionStatus.PENDING and one.record.created_on <= before_ms
        ]
        if late and self._clock.may_delete():
            await self._subscriptions.forget(late, "not validated in time")


def _reported(
    subscription: Subscription, kind: str, error: str, backlog: int, at_ms: Milliseconds
) -> SubscriptionReported:
    record, names = subscription.record, subscription.names
    return SubscriptionReported(
        kind, record.id, record.user, names.user_id, record.application, names.application_id, error, backlog, at_ms
    )
