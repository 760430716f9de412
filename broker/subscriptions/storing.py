"""Records of subscriptions: adding, replacing and removing them."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from broker.accounts.applications import require_application
from broker.cluster.kinds import SUBSCRIPTION
from broker.errors import Conflict, NotFound
from broker.ids import new_id
from broker.secrets import Vault
from broker.subscriptions.creation import NewSubscription, SubscribedObjects
from broker.subscriptions.subscription import SubscriptionStatus
from broker.trace.audit import AuditEvent, note
from config.limits import SUBSCRIPTIONS_MAX
from storage.records import NEW_KEY
from storage.subscriptions import CursorRecord, SubscriptionRecord
from storage.transaction import Transaction

TOO_MANY: Final = f"An application has at most {SUBSCRIPTIONS_MAX} subscriptions for a user"


def new_record(
    vault: Vault, wanted: NewSubscription, chosen: SubscribedObjects, *, payload: str, now_ms: int
) -> SubscriptionRecord:
    """A stream is active at once, a callback when it is validated."""
    sealed = None if wanted.stream_secret is None else vault.seal(wanted.stream_secret)
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
        payload=payload,
        callback_url=wanted.callback_url,
        stream_key=wanted.stream_key,
        stream_secret=sealed,
        stream_region=wanted.stream_region,
        stream_name=wanted.stream_name,
        nonce=None if wanted.is_stream else vault.seal(new_id()),
        handshake_tries=0,
        handshake_on=None if wanted.is_stream else now_ms,
        webhook_secret=None,
        old_webhook_secret=None,
        old_secret_until=None,
        status=SubscriptionStatus.ACTIVE if wanted.is_stream else SubscriptionStatus.PENDING,
        created_on=now_ms,
        modified_on=now_ms,
    )


def add_subscription(tx: Transaction, record: SubscriptionRecord) -> SubscriptionRecord:
    """Add a subscription; one that is active collects from now on.

    Raises Conflict: there are too many; Unauthorized: the application was deleted.
    """
    require_application(tx, record.application)
    if tx.subscriptions.count_of(record.application, record.user) >= SUBSCRIPTIONS_MAX:
        raise Conflict(TOO_MANY)
    added = tx.subscriptions.add(record)
    if added.status == SubscriptionStatus.ACTIVE:
        begin_collecting(tx, added)
    note(tx, AuditEvent.SUBSCRIPTION_CREATED, f"subscription {added.id}", now_ms=added.created_on)
    return added


def begin_collecting(tx: Transaction, record: SubscriptionRecord) -> None:
    """Collect messages for the subscription from the present end of the log on."""
    tx.subscriptions.put_cursors([CursorRecord(record.key, tx.messages.head(), is_behind=True)])


def standing(tx: Transaction, key: int) -> SubscriptionRecord:
    """Raises NotFound."""
    record = tx.subscriptions.by_key(key)
    if record is None or record.removed_on is not None:
        raise NotFound
    return record


def removed(
    tx: Transaction,
    keys: list[int],
    reason: str,
    *,
    now_ms: int,
    must_be_there: bool,
    beside: Callable[[Transaction], None] | None,
) -> list[int]:
    """Remove subscriptions; return which ones were there."""
    gone = []
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
        tx.tell(SUBSCRIPTION, key)
        gone.append(key)
    tx.subscriptions.forget_cursors(gone)
    for key in gone:
        tx.deliveries.give_up(key)
    if beside is not None and gone:
        beside(tx)
    return gone
