"""Reads and writes of sessions, each step within a transaction."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from broker.cluster.kinds import SESSION_BEGAN, SESSION_EXPIRED, SessionBegin
from broker.device_sessions.session import DeviceSession, Written
from config.limits import MQTT_WAITING_BYTES, MQTT_WAITING_MESSAGES
from storage.keys import DeviceKey, Milliseconds, Position
from storage.mqtt_sessions import DeliveryRecord, MqttSessionRecord, TopicSubscriptionRecord
from storage.transaction import Transaction

SWEPT_AT_ONCE: Final = 500


def begin_session(
    session: DeviceSession,
    is_clean: bool,
    is_actions: Callable[[bytes], bool],
    written: Written,
    now_ms: Milliseconds,
    tx: Transaction,
) -> None:
    store, device = tx.mqtt_sessions, session.device
    known = store.session(device)
    is_present = (
        known is not None
        and not is_clean
        and known.client_id == session.client_id
        and (known.expires_on is None or known.expires_on > now_ms)
    )
    if known is not None and not is_present:
        store.remove(device)
    session.is_stored = session.expiry_seconds > 0 or is_present
    if is_present and known is not None:
        tx.mqtt_wills.forget(device, is_away=True)  # the device is back in time
        session.subscriptions = store.subscriptions(device)
        session.deliveries = store.deliveries(device)
        session.received = store.received(device)
        session.sent_until = known.sent_until
        session.actions_after = known.actions_after
        session.next_number = max([known.sent_until, *(one.number for one in session.deliveries)]) + 1
        take_actions(tx, session, is_actions, written)
    if session.is_stored:
        store.put(
            MqttSessionRecord(
                device,
                session.client_id,
                session.expiry_seconds,
                None,
                session.actions_after,
                session.sent_until,
                session.holder,
            )
        )
    tx.tell(SESSION_BEGAN, SessionBegin(device, session.number, is_present))


def take_actions(
    tx: Transaction, session: DeviceSession, is_actions: Callable[[bytes], bool], written: Written
) -> None:
    """Queue the Actions that came while the device was away. Of too many, the oldest deliveries go."""
    filters = [filter_ for filter_, one in session.subscriptions.items() if one.qos and is_actions(filter_)]
    found: Sequence[tuple[Position, str]] = ()
    topic = filters[-1] if filters else b""
    if session.actions_after is not None and filters:
        found = tx.message_searches.latest_actions_of(
            session.device, session.actions_after, limit=MQTT_WAITING_MESSAGES
        )
    for position, data in found:
        delivery = DeliveryRecord(session.next_number, topic, written(data), session.subscriptions[topic].qos)
        tx.mqtt_sessions.put_delivery(session.device, delivery)
        session.deliveries.append(delivery)
        session.next_number += 1
        session.actions_after = position
    size = sum(one.size for one in session.deliveries)
    while len(session.deliveries) > 1 and (
        len(session.deliveries) > MQTT_WAITING_MESSAGES or size > MQTT_WAITING_BYTES
    ):
        oldest = session.deliveries.pop(0)
        size -= oldest.size
        tx.mqtt_sessions.remove_delivery(session.device, oldest.number)


def if_held(device: DeviceKey, holder: str, work: Callable[[Transaction], None], tx: Transaction) -> bool:
    """Do it unless a newer connection, perhaps to another node, has the session: that one has read it as it was.
    Whether it was done."""
    if is_held := tx.mqtt_sessions.is_held_by(device, holder):
        work(tx)
    return is_held


def subscribe(
    device: DeviceKey,
    subscriptions: Mapping[bytes, TopicSubscriptionRecord],
    actions_after: Position | None,
    tx: Transaction,
) -> None:
    tx.mqtt_sessions.subscribe(device, subscriptions)
    tx.mqtt_sessions.set_actions_after(device, actions_after)


def unsubscribe(device: DeviceKey, filters: Sequence[bytes], actions_after: Position | None, tx: Transaction) -> None:
    for filter_ in filters:
        tx.mqtt_sessions.unsubscribe(device, filter_)
    tx.mqtt_sessions.set_actions_after(device, actions_after)


def deliver(device: DeviceKey, delivery: DeliveryRecord, position: Position, tx: Transaction) -> None:
    tx.mqtt_sessions.put_delivery(device, delivery)
    tx.mqtt_sessions.set_actions_after(device, position)


def settle(device: DeviceKey, number: int, tx: Transaction) -> None:
    tx.mqtt_sessions.remove_delivery(device, number)


def release(device: DeviceKey, number: int, tx: Transaction) -> None:
    tx.mqtt_sessions.release(device, number)


def note_packet_id(device: DeviceKey, packet_id: int, tx: Transaction) -> None:
    tx.mqtt_sessions.receive(device, packet_id)


def forget(device: DeviceKey, packet_id: int, tx: Transaction) -> None:
    tx.mqtt_sessions.forget_received(device, packet_id)


def end(device: DeviceKey, expires_on: Milliseconds, sent_until: int, tx: Transaction) -> None:
    tx.mqtt_sessions.end(device, expires_on=expires_on, sent_until=sent_until)


def remove_session(device: DeviceKey, tx: Transaction) -> None:
    tx.mqtt_sessions.remove(device)


def sweep(now_ms: Milliseconds, tx: Transaction) -> Sequence[DeviceKey]:
    expired = tx.mqtt_sessions.expired(now_ms, limit=SWEPT_AT_ONCE)
    for device in expired:
        tx.mqtt_sessions.remove(device)
        tx.tell(SESSION_EXPIRED, device)
    return expired


def every_session(tx: Transaction) -> list[DeviceSession]:
    """Read every session, as the session of an offline device."""
    found = []
    for record, last in tx.mqtt_sessions.all():
        session = DeviceSession(record.device, record.client_id, record.expiry_seconds)
        session.is_stored = True
        session.next_number = max(record.sent_until, last) + 1
        session.subscriptions = tx.mqtt_sessions.subscriptions(record.device)
        found.append(session)
    return found


def queue(device: DeviceKey, delivery: DeliveryRecord, tx: Transaction) -> None:
    tx.mqtt_sessions.put_delivery(device, delivery)


def trim(device: DeviceKey, tx: Transaction) -> None:
    tx.mqtt_sessions.trim(device, count=MQTT_WAITING_MESSAGES, size=MQTT_WAITING_BYTES)
