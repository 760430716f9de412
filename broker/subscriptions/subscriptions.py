"""The subscriptions: creating, validating, pausing and removing them (reference 11.2).

All subscriptions are in memory: facts about devices and grants end them at once, and the reader of the log asks them
about each message. Changes are announced in the order of their commits.
"""

import hmac
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from broker.accounts.permissions import ADMINISTRATORS, Permissions
from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.errors import Conflict, NotFound, PermissionDenied
from broker.facts import DeviceDeleted, FactPhase, GrantsChanged, ProviderAuthRemoved, Router
from broker.ids import new_id
from broker.loops import Wakeup, repeat
from broker.mail import Mails
from broker.mail.kinds import Mail, StreamRemoved, SubscriptionSuspended
from broker.mail.letters import Letter
from broker.secrets import Vault
from broker.subscriptions.creation import Chosen, Creation, NewSubscription
from broker.subscriptions.secrets import OVERLAP_MS, new_webhook_secret
from broker.subscriptions.subscription import COLLECTING, Subscription, SubscriptionStatus
from broker.trace.audit import AuditEvent, note
from config.limits import SUBSCRIPTIONS_MAX, VALIDATION_HOURS
from storage.database import Database, Transaction
from storage.keys import ApplicationKey, DeviceKey, UserKey
from storage.records import NEW_KEY
from storage.subscriptions import CursorRecord, SubscriptionRecord

TOO_MANY: Final = f"An application has at most {SUBSCRIPTIONS_MAX} subscriptions for a user"
NOT_ACTIVE: Final = "The subscription is not active"
_HOUR_MS: Final = 3_600_000
_SWEEP_SECONDS: Final = 30.0
_log = structlog.get_logger(__name__)

#: Called with a subscription as it was and as it is now; None: it did not exist, or does not exist any more.
Changed = Callable[[Subscription | None, Subscription | None], None]


class Subscriptions:
    def __init__(
        self,
        database: Database,
        vault: Vault,
        clock: Clock,
        router: Router,
        permissions: Permissions,
        mails: Mails,
        creation: Creation,
        *,
        payload: str,
    ) -> None:
        """`payload` is that of subscriptions which do not name one."""
        self._database = database
        self._vault = vault
        self._clock = clock
        self._permissions = permissions
        self._mails = mails
        self._creation = creation
        self._payload = payload
        self._by_key: dict[int, Subscription] = {}
        self._by_id: dict[str, Subscription] = {}
        #: Those that ended by a fact, and why: they are gone for every caller, and removed from the store soon.
        self._ended: dict[int, str] = {}
        self._wakeup = Wakeup()
        self._listeners: list[Changed] = []
        router.subscribe(DeviceDeleted, self._device_deleted, FactPhase.STATE)
        router.subscribe(ProviderAuthRemoved, self._provider_auth_removed, FactPhase.STATE)
        router.subscribe(GrantsChanged, self._grants_changed, FactPhase.STATE)

    def on_change(self, listener: Changed) -> None:
        """Call `listener` on the loop after each change, and for each subscription that `load` finds."""
        self._listeners.append(listener)

    async def load(self) -> None:
        """Read all subscriptions. Those that lost their grants or their device while nobody watched end."""
        known, orphans = await self._database.read(lambda tx: (tx.subscriptions.in_use(), tx.subscriptions.orphans()))
        for record, names in known:
            self._put(Subscription(record, names))
        self._end(orphans, "the grants or the device are gone")

    def all(self) -> list[Subscription]:
        return list(self._by_key.values())

    def get(self, key: int) -> Subscription | None:
        return self._by_key.get(key)

    # For callers

    async def find(self, caller: Caller, id_: str) -> Subscription:
        """A subscription of the caller's application. Raises NotFound, PermissionDenied."""
        subscription = self._by_id.get(id_)
        if subscription is None:
            raise NotFound
        await self.require(caller, subscription.record)
        return subscription

    async def require(self, caller: Caller, record: SubscriptionRecord) -> None:
        """Raises PermissionDenied unless the subscription is of the caller's application and user."""
        if caller.application != record.application:
            raise PermissionDenied("a token of the subscription's application")
        await self._permissions.require_user(caller, record.user)

    def of_application(self, application: ApplicationKey, user: UserKey | None) -> list[Subscription]:
        """In the order of their creation."""
        return [
            one
            for one in self._by_key.values()
            if one.record.application == application and user in {None, one.record.user}
        ]

    async def create(self, caller: Caller, wanted: NewSubscription) -> Subscription:
        """Create a subscription. A callback gets its handshake soon; a stream is active at once, and its answer does
        not say so yet (reference 11.2).

        Raises ValidationFailed, PermissionDenied, NotFound, Conflict.
        """
        chosen = await self._creation.check(caller, wanted)
        if len(self.of_application(chosen.application, chosen.user)) >= SUBSCRIPTIONS_MAX:
            raise Conflict(TOO_MANY)
        record = self._new(wanted, chosen)
        now_ms = record.created_on

        def work(tx: Transaction) -> Subscription:
            added = tx.subscriptions.add(record)
            if added.is_stream:
                tx.subscriptions.put_cursors([CursorRecord(added.key, tx.messages.head(), is_behind=True)])
            note(tx, AuditEvent.SUBSCRIPTION_CREATED, f"subscription {added.id}", now_ms=now_ms)
            return Subscription(added, tx.subscriptions.names(added))

        return await self._database.write(work, announce=self._put)

    def _new(self, wanted: NewSubscription, chosen: Chosen) -> SubscriptionRecord:
        now_ms = self._clock.now_ms()
        sealed = None if wanted.stream_secret is None else self._vault.seal(wanted.stream_secret)
        return SubscriptionRecord(
            key=NEW_KEY,
            id=new_id(),
            application=chosen.application,
            user=chosen.user,
            message_type=wanted.message_type,
            spelling=wanted.spelling,
            device_type=chosen.device_type,
            source=chosen.source,
            destination=chosen.destination,
            include_shared=wanted.include_shared,
            description=wanted.description,
            payload=wanted.payload or self._payload,
            callback_url=wanted.callback_url,
            stream_key=wanted.stream_key,
            stream_secret=sealed,
            stream_region=wanted.stream_region,
            stream_name=wanted.stream_name,
            nonce=None if wanted.is_stream else self._vault.seal(new_id()),
            handshake_tries=0,
            handshake_on=None if wanted.is_stream else now_ms,
            webhook_secret=None,
            old_webhook_secret=None,
            old_secret_until=None,
            status=SubscriptionStatus.ACTIVE if wanted.is_stream else SubscriptionStatus.PENDING,
            created_on=now_ms,
            modified_on=now_ms,
        )

    async def validate(self, id_: str, application_id: str, nonce: str) -> Subscription:
        """Activate a subscription whose callback got this nonce; again, with the same values, changes nothing.

        Raises NotFound, PermissionDenied.
        """
        subscription = self._by_id.get(id_)
        if subscription is None:
            raise NotFound
        sealed = subscription.record.nonce
        given = f"{application_id} {nonce}".encode(errors="surrogatepass")
        # A stream has no nonce: what is compared then has the form of one, and nobody knows it.
        expected = f"{subscription.names.application_id} {new_id() if sealed is None else self._vault.open(sealed)}"
        if not hmac.compare_digest(given, expected.encode()):
            raise PermissionDenied("the nonce of this subscription")
        if subscription.record.status != SubscriptionStatus.PENDING:
            return subscription
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> Subscription:
            record = _standing(tx, subscription.key)
            if record.status == SubscriptionStatus.PENDING:
                record = replace(record, status=SubscriptionStatus.ACTIVE, handshake_on=None, modified_on=now_ms)
                tx.subscriptions.put(record)
                tx.subscriptions.put_cursors([CursorRecord(record.key, tx.messages.head(), is_behind=True)])
            return Subscription(record, subscription.names)

        return await self._database.write(work, announce=self._put)

    async def remove(self, subscription: Subscription) -> None:
        """Raises NotFound when it is removed meanwhile."""
        await self._remove([subscription.key], "deleted", must_be_there=True)

    async def set_paused(self, subscription: Subscription, *, paused: bool) -> Subscription:
        """Pause or resume. What comes meanwhile is delivered after the pause. Raises Conflict, NotFound."""
        now_ms, status = self._clock.now_ms(), SubscriptionStatus.PAUSED if paused else SubscriptionStatus.ACTIVE

        def work(tx: Transaction) -> Subscription:
            record = _standing(tx, subscription.key)
            if record.status not in COLLECTING:
                raise Conflict(NOT_ACTIVE)
            record = replace(record, status=status, modified_on=now_ms)
            tx.subscriptions.put(record)
            note(tx, AuditEvent.SUBSCRIPTION_CHANGED, f"subscription {record.id}", now_ms=now_ms, status=status.value)
            return Subscription(record, subscription.names)

        return await self._database.write(work, announce=self._put)

    async def renew_secret(self, subscription: Subscription) -> tuple[Subscription, str]:
        """Make a secret for the Standard Webhooks headers. The one before signs, too, for a day (reference 11.4).

        Raises NotFound.
        """
        now_ms, secret = self._clock.now_ms(), new_webhook_secret()
        sealed = self._vault.seal(secret)

        def work(tx: Transaction) -> Subscription:
            record = _standing(tx, subscription.key)
            old = record.webhook_secret
            record = replace(
                record,
                webhook_secret=sealed,
                old_webhook_secret=old,
                old_secret_until=None if old is None else now_ms + OVERLAP_MS,
                modified_on=now_ms,
            )
            tx.subscriptions.put(record)
            note(tx, AuditEvent.SUBSCRIPTION_CHANGED, f"subscription {record.id}", now_ms=now_ms, what="webhook secret")
            return Subscription(record, subscription.names)

        return await self._database.write(work, announce=self._put), secret

    # For the deliveries

    async def note_handshake(self, key: int, *, tries: int, next_on: int | None) -> None:
        """Note an attempt of a handshake, and when the next one is due; None: the handshake is over."""

        def work(tx: Transaction) -> Subscription | None:
            subscription, record = self._by_key.get(key), tx.subscriptions.by_key(key)
            if subscription is None or record is None or record.removed_on or record.handshake_on is None:
                return None
            record = replace(record, handshake_tries=tries, handshake_on=next_on)
            tx.subscriptions.put(record)
            return Subscription(record, subscription.names)

        await self._database.write(work, announce=lambda changed: None if changed is None else self._put(changed))

    async def suspend(self, subscription: Subscription, error: str) -> None:
        """Send and collect nothing any more, and tell the application's owners (reference 11.2)."""
        now_ms = self._clock.now_ms()
        mail = SubscriptionSuspended(subscription_id=subscription.id, last_error=error)
        letters = await self._letters(subscription, mail)

        def work(tx: Transaction) -> Subscription | None:
            record = tx.subscriptions.by_key(subscription.key)
            if record is None or record.removed_on or record.status not in COLLECTING:
                return None
            record = replace(record, status=SubscriptionStatus.SUSPENDED, last_error=error, modified_on=now_ms)
            tx.subscriptions.put(record)
            tx.subscriptions.forget_cursors([record.key])
            tx.deliveries.give_up(record.key)
            for letter in letters:
                self._mails.add(tx, letter)
            note(tx, AuditEvent.SUBSCRIPTION_SUSPENDED, f"subscription {record.id}", now_ms=now_ms, reason=error)
            return Subscription(record, subscription.names)

        def tell(changed: Subscription | None) -> None:
            if changed is not None:
                _log.warning("subscription_suspended", subscription=subscription.id, reason=error)
                self._put(changed)

        await self._database.write(work, announce=tell)

    async def reject(self, subscription: Subscription, error: str) -> None:
        """Remove a subscription whose stream refused a record for good, and tell the application's owners."""
        name = f"{subscription.record.stream_name} ({subscription.id})"
        letters = await self._letters(subscription, StreamRemoved(stream_id=name, last_error=error))

        def beside(tx: Transaction) -> None:
            for letter in letters:
                self._mails.add(tx, letter)

        _log.warning("subscription_stream_rejected", subscription=subscription.id, reason=error)
        await self._remove([subscription.key], error, beside=beside)

    async def _letters(self, subscription: Subscription, mail: Mail) -> list[Letter]:
        organization = subscription.names.organization
        addresses = await self._database.read(lambda tx: tx.accounts.addresses_of(organization, ADMINISTRATORS))
        return [self._mails.compose(address, mail, cause=subscription.id) for address in addresses]

    # What ends subscriptions

    def _device_deleted(self, fact: DeviceDeleted) -> None:
        self._end_of_device(fact.device, "the device was deleted")

    def _provider_auth_removed(self, fact: ProviderAuthRemoved) -> None:
        self._end_of_device(fact.device, "the device's authorization was revoked")

    def _end_of_device(self, device: DeviceKey, reason: str) -> None:
        named = [key for key, one in self._by_key.items() if device in {one.record.source, one.record.destination}]
        self._end(named, reason)

    def _grants_changed(self, fact: GrantsChanged) -> None:
        if not fact.grants:
            ended = [one.key for one in self.of_application(fact.application, fact.user)]
            self._end(ended, "the user revoked the application")

    def _end(self, keys: Iterable[int], reason: str) -> None:
        for key in keys:
            if (subscription := self._by_key.get(key)) is not None:
                self._ended[key] = reason
                self._drop(subscription)
                self._wakeup.set()

    async def sweep_forever(self) -> None:
        """Remove what has ended or was not validated in time."""
        await repeat(
            self.sweep,
            every=_SWEEP_SECONDS,
            wakeup=self._wakeup,
            at_once=True,
            failure="subscriptions_not_swept",
            retry_seconds=5,
        )

    async def sweep(self) -> None:
        """Raises StoreError."""
        for key, reason in list(self._ended.items()):
            await self._remove([key], reason)
            self._ended.pop(key, None)
        before_ms = self._clock.now_ms() - VALIDATION_HOURS * _HOUR_MS
        late = [
            key
            for key, one in self._by_key.items()
            if one.record.status == SubscriptionStatus.PENDING and one.record.created_on <= before_ms
        ]
        if late and self._clock.may_delete():
            await self._remove(late, "not validated in time")

    async def _remove(
        self,
        keys: list[int],
        reason: str,
        *,
        must_be_there: bool = False,
        beside: Callable[[Transaction], None] | None = None,
    ) -> None:
        now_ms = self._clock.now_ms()
        work = partial(_removed, keys, reason, now_ms, must_be_there, beside)
        await self._database.write(work, announce=self._forget)

    def _forget(self, keys: list[int]) -> None:
        for key in keys:
            if (subscription := self._by_key.get(key)) is not None:
                self._drop(subscription)

    def _drop(self, subscription: Subscription) -> None:
        del self._by_key[subscription.key], self._by_id[subscription.id]
        self._tell(subscription, None)

    def _put(self, subscription: Subscription) -> None:
        if subscription.key in self._ended:
            return
        before = self._by_key.get(subscription.key)
        self._by_key[subscription.key] = self._by_id[subscription.id] = subscription
        self._tell(before, subscription)

    def _tell(self, before: Subscription | None, after: Subscription | None) -> None:
        for listener in self._listeners:
            listener(before, after)


def _standing(tx: Transaction, key: int) -> SubscriptionRecord:
    record = tx.subscriptions.by_key(key)
    if record is None or record.removed_on is not None:
        raise NotFound
    return record


def _removed(
    keys: list[int],
    reason: str,
    now_ms: int,
    must_be_there: bool,
    beside: Callable[[Transaction], None] | None,
    tx: Transaction,
) -> list[int]:
    removed = []
    for key in keys:
        record = tx.subscriptions.by_key(key)
        if record is None or record.removed_on is not None:
            if must_be_there:
                raise NotFound
            continue
        tx.subscriptions.put(
            replace(record, removed_on=now_ms, modified_on=now_ms, handshake_on=None, last_error=reason)
        )
        note(tx, AuditEvent.SUBSCRIPTION_REMOVED, f"subscription {record.id}", now_ms=now_ms, reason=reason)
        removed.append(key)
    tx.subscriptions.forget_cursors(removed)
    for key in removed:
        tx.deliveries.give_up(key)
    if beside is not None and removed:
        beside(tx)
    return removed
