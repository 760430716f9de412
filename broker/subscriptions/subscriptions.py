"""The subscriptions: creating, validating, pausing and removing them (reference 11.2).

All subscriptions are in memory: facts about devices and grants end them at once (`endings`), and the reader of the log
asks them about each message.
"""

import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from broker.accounts.applications import MadeByApplication, name_of_application
from broker.accounts.issuance import Issuance
from broker.accounts.organizations import DEVELOPERS, require_administrator
from broker.accounts.permissions import Permissions
from broker.accounts.tokens import Caller, TokenKind
from broker.clock import Clock
from broker.cluster.kinds import SUBSCRIPTION
from broker.errors import Conflict, NotFound, PermissionDenied
from broker.ids import new_id
from broker.secrets import Vault
from broker.subscriptions.creation import Creation, NewSubscription
from broker.subscriptions.secrets import OVERLAP_MS, FormerSecret, former_secrets, new_webhook_secret, packed_former
from broker.subscriptions.storing import add_subscription, new_record, removed, standing
from broker.subscriptions.subscription import COLLECTING, Subscription, SubscriptionStatus
from broker.trace.audit import AuditEvent, note
from config.limits import WEBHOOK_SECRETS
from storage.database import Database
from storage.keys import ApplicationKey, UserKey
from storage.records import ApplicationRecord, UserRecord
from storage.subscriptions import CursorRecord, SubscriptionNames, SubscriptionRecord
from storage.transaction import Transaction

NOT_ACTIVE: Final = "The subscription is not active"

#: Called with a subscription as it was and as it is now; None: it did not exist, or does not exist any more.
Changed = Callable[[Subscription | None, Subscription | None], None]


@dataclass(eq=False)
class Subscriptions:
    """`payload` is that of subscriptions which name none; `allow_private` allows addresses of this machine."""

    _database: Database
    _vault: Vault
    _clock: Clock
    _permissions: Permissions
    _creation: Creation
    payload: str
    allow_private: bool

    def __post_init__(self) -> None:
        self.has_streams = self._creation.has_streams
        self._by_key: dict[int, Subscription] = {}
        self._by_id: dict[str, Subscription] = {}
        #: Reasons of subscriptions that a fact ended: they are gone for every caller, and removed from the store soon.
        self.ended: dict[int, str] = {}
        self._listeners: list[Changed] = []

    def on_change(self, listener: Changed) -> None:
        """Call `listener` on the loop after each change, and for each subscription that `load` finds."""
        self._listeners.append(listener)

    async def load(self) -> None:
        """Read all subscriptions. End the ones that lost their grants or their device while the daemon did not run."""
        known, orphans = await self._database.read(lambda tx: (tx.subscriptions.in_use(), tx.subscriptions.orphans()))
        for record, names in known:
            self._put(Subscription(record, names))
        self.end(orphans, "the grants or the device are gone")

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
            if caller.is_console:  # a developer of the organization looks after its applications
                owner = await self._database.read(lambda tx: _application_of(tx, record))
                if owner is not None:
                    await self._permissions.require_organization(caller, owner.organization, DEVELOPERS)
                    return
            raise PermissionDenied("a token of the subscription's application")
        await self._permissions.require_user(caller, record.user)

    def of_application(self, application: ApplicationKey, user: UserKey | None) -> list[Subscription]:
        """The subscriptions of an application, in the order of their creation."""
        return [
            one
            for one in self._by_key.values()
            if one.record.application == application and user in {None, one.record.user}
        ]

    async def failing(self) -> dict[int, str]:
        """The last error of each subscription whose deliveries fail, by key."""
        return await self._database.read(lambda tx: tx.subscriptions.failing())

    async def create(self, caller: Caller, wanted: NewSubscription) -> Subscription:
        """Create a subscription. A callback gets its handshake soon; a stream is active at once, and its answer does
        not say so yet (reference 11.2).

        Raises ValidationFailed, PermissionDenied, NotFound, Conflict.
        """
        chosen = await self._creation.check(caller, wanted)
        payload, now_ms = wanted.payload or self.payload, self._clock.now_ms()
        record = new_record(self._vault, wanted, chosen, payload=payload, now_ms=now_ms)

        def work(tx: Transaction) -> Subscription:
            added = add_subscription(tx, record)
            tx.tell(SUBSCRIPTION, added.key)
            return Subscription(added, tx.subscriptions.names(added))

        return await self._database.write(work)

    async def create_for(self, caller: Caller, application: ApplicationRecord, wanted: NewSubscription) -> Subscription:
        """A developer creates a subscription of an application of the organization, as `create`.

        For the developer's own devices, as far as the developer let the application in. For those of other users as the
        application itself, which needs an administrator.
        """
        is_own = wanted.uid in {"self", caller.user_id}

        def check(tx: Transaction) -> None:
            if not is_own:
                require_administrator(tx, caller, application.organization)
            elif not tx.accounts.grants(application.key, caller.user):
                raise PermissionDenied("a sign-in of yours to this application")

        await self._database.read(check)
        acting = Caller(
            kind=TokenKind.USER if is_own else TokenKind.APPLICATION,
            token=b"",
            expires_on=None,
            user=caller.user if is_own else None,
            user_id=caller.user_id if is_own else None,
            application=application.key,
            application_id=application.id,
            application_organization=application.organization,
        )
        return await self.create(acting, wanted)

    async def validate(self, id_: str, application_id: str, nonce: str) -> Subscription:
        """Activate a subscription whose callback got this nonce; again, with the same values, changes nothing.

        Raises NotFound, PermissionDenied.
        """
        subscription = self._by_id.get(id_)
        if subscription is None:
            raise NotFound
        sealed = subscription.record.nonce
        given = f"{application_id} {nonce}".encode(errors="surrogatepass")
        # A stream has no nonce: compare with a random one that nobody knows.
        expected = f"{subscription.names.application_id} {new_id() if sealed is None else self._vault.open(sealed)}"
        if not hmac.compare_digest(given, expected.encode()):
            raise PermissionDenied("the nonce of this subscription")
        if subscription.record.status != SubscriptionStatus.PENDING:
            return subscription
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> Subscription:
            record = standing(tx, subscription.key)
            if record.status == SubscriptionStatus.PENDING:
                record = replace(record, status=SubscriptionStatus.ACTIVE, handshake_on=None, modified_on=now_ms)
                tx.subscriptions.put(record)
                tx.subscriptions.put_cursors([CursorRecord(record.key, tx.messages.head(), is_behind=True)])
                tx.tell(SUBSCRIPTION, record.key)
            return Subscription(record, subscription.names)

        return await self._database.write(work)

    async def remove(self, subscription: Subscription) -> None:
        """Remove a subscription. Raises NotFound: it is already removed."""
        await self.forget([subscription.key], "deleted", must_be_there=True)

    async def set_paused(self, subscription: Subscription, *, paused: bool) -> Subscription:
        """Pause or resume. Messages of the pause are delivered after it. Raises Conflict, NotFound."""
        now_ms, status = self._clock.now_ms(), SubscriptionStatus.PAUSED if paused else SubscriptionStatus.ACTIVE

        def work(tx: Transaction) -> Subscription:
            record = standing(tx, subscription.key)
            if record.status not in COLLECTING:
                raise Conflict(NOT_ACTIVE)
            record = replace(record, status=status, modified_on=now_ms)
            tx.subscriptions.put(record)
            note(tx, AuditEvent.SUBSCRIPTION_CHANGED, f"subscription {record.id}", now_ms=now_ms, status=status.value)
            tx.tell(SUBSCRIPTION, record.key)
            return Subscription(record, subscription.names)

        return await self._database.write(work)

    async def renew_secret(self, subscription: Subscription) -> tuple[Subscription, str]:
        """Make a secret for the Standard Webhooks headers. The two before sign, too, for a day each (reference 11.4).

        Raises NotFound.
        """
        now_ms, secret = self._clock.now_ms(), new_webhook_secret()
        sealed = self._vault.seal(secret)

        def work(tx: Transaction) -> Subscription:
            record = standing(tx, subscription.key)
            former = self._former(record, now_ms)
            record = replace(
                record,
                webhook_secret=sealed,
                old_webhook_secret=self._vault.seal(packed_former(former)) if former else None,
                old_secret_until=former[0].until_ms if former else None,
                modified_on=now_ms,
            )
            tx.subscriptions.put(record)
            note(tx, AuditEvent.SUBSCRIPTION_CHANGED, f"subscription {record.id}", now_ms=now_ms, what="webhook secret")
            tx.tell(SUBSCRIPTION, record.key)
            return Subscription(record, subscription.names)

        return await self._database.write(work), secret

    def _former(self, record: SubscriptionRecord, now_ms: int) -> list[FormerSecret]:
        """The secrets that sign beside the next one, the latest first."""
        if record.webhook_secret is None:
            return []
        former = [FormerSecret(self._vault.open(record.webhook_secret), now_ms + OVERLAP_MS)]
        if record.old_webhook_secret is not None:
            until_ms = record.old_secret_until or 0
            before = former_secrets(self._vault.open(record.old_webhook_secret), until_ms=until_ms)
            former += [one for one in before if one.until_ms > now_ms]
        return former[: WEBHOOK_SECRETS - 1]

    # For the deliveries

    async def note_handshake(self, key: int, *, tries: int, next_on: int | None) -> None:
        """Note an attempt of a handshake, and when the next one is due; None: the handshake is over."""

        def work(tx: Transaction) -> None:
            record = tx.subscriptions.by_key(key)
            if record is None or record.removed_on or record.handshake_on is None:
                return
            tx.subscriptions.put(replace(record, handshake_tries=tries, handshake_on=next_on))
            tx.tell(SUBSCRIPTION, key)

        await self._database.write(work)

    # Ends of subscriptions

    def end(self, keys: Iterable[int], reason: str) -> bool:
        """Hide these from every caller; `forget` removes them from the store. Return whether any was hidden."""
        known = [subscription for key in keys if (subscription := self._by_key.get(key)) is not None]
        for subscription in known:
            self.ended[subscription.key] = reason
            self._drop(subscription)
        return bool(known)

    async def forget(
        self,
        keys: list[int],
        reason: str,
        *,
        must_be_there: bool = False,
        beside: Callable[[Transaction], None] | None = None,
    ) -> bool:
        """Remove subscriptions; return whether there were any. `beside` is called in the transaction if so.

        Raises NotFound, StoreError.
        """
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> list[int]:
            return removed(tx, keys, reason, now_ms=now_ms, must_be_there=must_be_there, beside=beside)

        gone: list[int] = await self._database.write(work)
        return bool(gone)

    async def made_for(self, user: UserKey) -> list[MadeByApplication]:
        """Subscriptions that applications made for a user's devices, in the order of their creation."""
        mine = [one for one in self._by_key.values() if one.record.user == user]

        def work(tx: Transaction) -> list[MadeByApplication]:
            return [
                MadeByApplication(_shown(one.record), name_of_application(tx, one.record.application)) for one in mine
            ]

        return await self._database.read(work)

    async def end_made_for(self, user: UserKey) -> None:
        """Remove these, all at once."""
        await self.forget([one.key for one in self._by_key.values() if one.record.user == user], "the user ended them")

    def end_all_of(self, issuance: Issuance, user: UserRecord) -> Sequence[str]:
        """Remove a user's subscriptions in the caller's transaction (`broker/accounts/claims.py: Ender`)."""
        tx = issuance.tx
        keys = tx.subscriptions.keys_of(user.key)
        found = [record for key in keys if (record := tx.subscriptions.by_key(key)) is not None]
        removed(tx, keys, "the account was closed", now_ms=issuance.now_ms, must_be_there=False, beside=None)
        return [_shown(one) for one in found]

    def end_all_of_application(self, issuance: Issuance, application: ApplicationRecord) -> None:
        """Remove an application's subscriptions (`broker/accounts/application_ends.py: Ender`)."""
        keys = [one.key for one in issuance.tx.subscriptions.of_application(application.key)]
        reason = "the application was deleted"
        removed(issuance.tx, keys, reason, now_ms=issuance.now_ms, must_be_there=False, beside=None)

    def _drop(self, subscription: Subscription) -> None:
        del self._by_key[subscription.key], self._by_id[subscription.id]
        self._tell(subscription, None)

    def changed(self, key: int, stored: tuple[SubscriptionRecord, SubscriptionNames] | None) -> None:
        """A subscription was made or changed; None: it was removed."""
        if stored is not None:
            self._put(Subscription(*stored))
        elif (subscription := self._by_key.get(key)) is not None:
            self._drop(subscription)

    def _put(self, subscription: Subscription) -> None:
        if subscription.key in self.ended:
            return
        before = self._by_key.get(subscription.key)
        self._by_key[subscription.key] = self._by_id[subscription.id] = subscription
        self._tell(before, subscription)

    def _tell(self, before: Subscription | None, after: Subscription | None) -> None:
        for listener in self._listeners:
            listener(before, after)


def _shown(record: SubscriptionRecord) -> str:
    """The members by which a person recognizes a subscription."""
    return record.description or record.callback_url or record.stream_name or record.id


def _application_of(tx: Transaction, record: SubscriptionRecord) -> ApplicationRecord | None:
    """The application of a subscription, unless it is that of a trial, which has administrators of its own."""
    is_of_trial = tx.trials.of_application(record.application) is not None
    return None if is_of_trial else tx.accounts.application(record.application)
