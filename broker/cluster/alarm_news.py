"""Tells of a change of an alarm: its event (reference 12.12), and notifications of subscriptions (11.3)."""

from msgspec.structs import replace

from broker.cluster.kinds import REPLAYED, Replay, publish
from broker.facts import AlarmReported
from storage.alarms import AlarmRecord
from storage.keys import Milliseconds
from storage.transaction import Transaction


def tell_of_alarm(tx: Transaction, kind: str, alarm: AlarmRecord, at_ms: Milliseconds) -> None:
    """In the transaction of the change, so that no notification is missing or too many. `alarm`: as it is now."""
    publish(tx, AlarmReported.of(kind, alarm, at_ms))
    # The texts are read when it is sent, as far as the receiver may read them then.
    content = replace(alarm, text="", cause="[]", message=None)
    for subscription in tx.deliveries.add_of_alarm(content, at_ms):
        tx.tell(REPLAYED, Replay(subscription, 1))
