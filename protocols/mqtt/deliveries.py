"""Subscriptions of a device, deliveries to it, and the state of both in its session.

Errors, and Actions with QoS 0, are sent at once or not at all. Where sessions may outlive connections, a device may
subscribe to Actions with QoS 1 and 2: such an Action is sent as soon as it is durable that it waits for the device.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any, Final, NamedTuple

from broker.device_sessions.session import DeviceSession
from broker.device_sessions.sessions import DeviceSessions
from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import DomainError
from broker.ids import new_id
from broker.messages.losses import NothingRemained
from broker.topics.space import SERVICE, Search, TopicSpace, is_subscribable
from broker.topics.tree import without_group
from config.limits import MQTT_TOPIC_BYTES_MAX, MQTT_TOPIC_LEVELS_MAX
from protocols.mqtt.errors import error_message
from protocols.mqtt.flow import WINDOW, Flow
from protocols.mqtt.messages import packet_of
from protocols.mqtt.negotiation import connack_properties, session_seconds
from protocols.mqtt.packets import (
    MQTT_5,
    Connect,
    PubAck,
    PubComp,
    PubRec,
    ReasonCode,
    RequestedFilter,
)
from protocols.mqtt.session import MqttSession
from protocols.mqtt.values import NO_PROPERTIES, Properties
from protocols.refusals import SubscribeForbidden, error_id_of, note_refusal
from protocols.rooms import MqttRooms
from protocols.streams.outbox import Outbox
from storage.keys import Position
from storage.mqtt_sessions import DeliveryRecord, TopicSubscriptionRecord
from storage.mqtt_topics import RetainedRecord
from storage.sql import StoreError

#: Retained messages that are compared with a filter in the time that a frame of overhead may take, and how many are
#: compared, and sent, in one turn.
_LOOKS_OF_A_FRAME: Final = 50
_LOOKS_OF_A_TURN: Final = 1_000
_SENT_IN_A_TURN: Final = 16


class InvalidFilter(DomainError):
    status = 400
    template = (
        f"A topic filter has 1 to {MQTT_TOPIC_BYTES_MAX} bytes and at most {MQTT_TOPIC_LEVELS_MAX} levels,"
        " and wildcards stand for whole levels"
    )


class FilterRefused(NamedTuple):
    """Why a filter of SUBSCRIBE is refused: what version 5.0 is told, and the rest."""

    code: ReasonCode
    error: DomainError


class Deliveries:
    """The subscriptions and deliveries of one connection. `end` as for `MqttExchange`."""

    __slots__ = (
        "_access",
        "_actions",
        "_answers",
        "_device",
        "_end",
        "_errors",
        "_flow",
        "_ingest",
        "_lasting",
        "_now_ms",
        "_outbox",
        "_refusals",
        "_searches",
        "_session",
        "_sessions",
        "_settings",
        "_space",
        "_topics_of_wanted",
        "_wanted",
    )

    def __init__(
        self, rooms: MqttRooms, device: Device, session: MqttSession, outbox: Outbox, end: Callable[[], None]
    ) -> None:
        self._settings = rooms.core.settings.mqtt
        self._now_ms = rooms.core.clock.now_ms
        self._sessions = rooms.device_sessions.sessions
        self._ingest = rooms.messages.ingest
        self._refusals = rooms.core.refusals
        self._device = device
        self._session = session
        self._answers = session.answers
        self._outbox = outbox
        self._end = end
        # Subscriptions as the client wrote them, and their QoS. Of two forms of one topic, deliveries go to the later.
        self._actions: dict[bytes, int] = {}
        self._errors: dict[bytes, int] = {}
        self._topics_of_wanted: dict[bytes, int] = {}
        self._wanted = rooms.wanted
        self._space = rooms.topics.space
        self._access = rooms.topics.access
        # For the retained messages of new subscriptions, which are sent behind SUBACK.
        self._searches: list[tuple[TopicSubscriptionRecord, Search]] = []  # an empty deque takes 600 bytes
        # Where sessions may outlive connections: the session, and its deliveries of QoS 1 and 2.
        self._lasting: DeviceSession | None = None
        self._flow: Flow | None = None

    # --- The session ---

    async def begin(self, connect: Connect) -> None:
        """Accept the connection, with a session that begins or goes on. Raises StoreError."""
        client_id = connect.client_id or (new_id() if connect.level == MQTT_5 else "")
        is_told = connect.level == MQTT_5
        properties = connack_properties(connect, client_id, self._settings) if is_told else NO_PROPERTIES
        if self._sessions is None:
            if not self._session.is_closed:  # the connection may have ended while its will was stored
                self._outbox.put(self._session.accept(properties))
            return
        await self._sessions.begin(
            DeviceSession(self._device.key, client_id, session_seconds(connect, self._settings)),
            is_clean=connect.is_clean,
            is_actions=lambda topic: self._like(topic) is self._actions,
            written=self._written,
            begun=partial(self._begun, self._sessions, connect, properties),
        )

    def _begun(
        self,
        sessions: DeviceSessions,
        connect: Connect,
        properties: Properties,
        lasting: DeviceSession,
        is_present: bool,
    ) -> None:
        if self._session.is_closed:  # the connection has ended while its session was read
            sessions.end(lasting)
            return
        self._lasting = lasting
        lasting.outlet = self
        for topic, subscription in lasting.subscriptions.items():
            if (topics := self._like(topic)) is not None:
                topics[topic] = subscription.qos
        self._flow = Flow(
            answers=self._answers,
            window=connect.properties.receive_maximum or (0xFFFF if connect.level == MQTT_5 else WINDOW),
            dropped=partial(sessions.drop, lasting),
            settled=partial(sessions.settle, lasting),
            sent_until=lasting.sent_until,
            now_ms=self._now_ms,
            queued=None if self._space is None else self._space.queued(self._device),
        )
        if lasting.is_stored:
            self._session.resume(lasting.received)
        self._outbox.put(self._session.accept(properties, is_present=is_present))
        self._outbox.put(self._flow.resume(lasting.deliveries))
        lasting.deliveries = []
        self.tell_all_wanted()

    def leave(self) -> None:
        """The connection has ended. A search goes on for a session that outlives it: the subscription is answered."""
        if self._lasting is not None and self._sessions is not None:
            if self._flow is not None:
                self._lasting.sent_until = self._flow.sent_until
                self._flow.end()
            self._sessions.end(self._lasting)
        if self._lasting is None or not self._lasting.expiry_seconds:
            self._searches.clear()

    def expire(self, seconds: int) -> None:
        """The device has changed its mind about how long its session outlives the connection."""
        if self._lasting is not None:
            self._lasting.expiry_seconds = min(seconds, self._settings.session_max_seconds)

    def seconds_until_due(self, will_delay: int) -> int:
        """Seconds that a will waits: at most as long as the session outlives the connection."""
        return 0 if self._lasting is None else min(will_delay, self._lasting.expiry_seconds)

    # --- Messages of QoS 2 from the device ---

    def received(self, packet_id: bytes) -> None:
        """A message was submitted in this turn."""
        if self._lasting is not None and self._sessions is not None:
            self._sessions.receive(self._lasting, int.from_bytes(packet_id))

    def released(self, packet_id: bytes) -> None:
        """Send PUBCOMP when it is durable that the packet id is free: the device may use it again at once."""
        if self._lasting is not None and self._sessions is not None:
            self._sessions.forget_received(self._lasting, int.from_bytes(packet_id))
        self._put_after_commit(self._answers.pubcomp(packet_id))

    # --- Subscriptions ---

    def subscribe(self, filters: Sequence[RequestedFilter], subscription_id: int = 0) -> "list[int | FilterRefused]":
        """Subscribe to topics; return for each the granted QoS, or why it is refused."""
        taken: dict[bytes, TopicSubscriptionRecord] = {}
        answers = [self._subscribe(requested, subscription_id, taken) for requested in filters]
        if taken and self._lasting is not None and self._sessions is not None:
            self._sessions.subscribe(self._lasting, taken, actions_from=self._actions_from)
        return answers

    def _subscribe(
        self, requested: RequestedFilter, subscription_id: int, taken: dict[bytes, TopicSubscriptionRecord]
    ) -> "int | FilterRefused":
        topics = self._like(requested.topic)
        if topics is None and self._space is not None:
            return self._subscribe_openly(self._space, requested, subscription_id, taken)
        if topics is None:
            if requested.topic.startswith(b"$share/"):
                return FilterRefused(ReasonCode.SHARED_NOT_SUPPORTED, SubscribeForbidden())
            has_wildcard = b"+" in requested.topic or b"#" in requested.topic
            code = ReasonCode.WILDCARDS_NOT_SUPPORTED if has_wildcard else ReasonCode.NOT_AUTHORIZED
            return FilterRefused(code, SubscribeForbidden())
        has_qos = self._lasting is not None and topics is self._actions
        qos = requested.qos if has_qos and self._settings.persistent_sessions == "on" else 0
        topics.pop(requested.topic, None)  # the latest one stands last
        topics[requested.topic] = qos
        taken[requested.topic] = TopicSubscriptionRecord(qos)
        return qos

    @property
    def _actions_from(self) -> Position | None:
        """From where in the log Actions wait for a device that subscribes now; None when they need not wait."""
        qos = next(reversed(self._actions.values()), 0)
        return self._ingest.head if qos else None

    def _subscribe_openly(
        self,
        space: TopicSpace,
        requested: RequestedFilter,
        subscription_id: int,
        taken: dict[bytes, TopicSubscriptionRecord],
    ) -> "int | FilterRefused":
        """Subscribe in the open topic space."""
        topic, device = requested.topic, self._device
        if without_group(topic).startswith(SERVICE):
            return FilterRefused(ReasonCode.NOT_AUTHORIZED, SubscribeForbidden())
        if not is_subscribable(topic):
            return FilterRefused(ReasonCode.TOPIC_FILTER_INVALID, InvalidFilter())
        if not self._access.may_subscribe(device, topic):
            return FilterRefused(ReasonCode.NOT_AUTHORIZED, SubscribeForbidden())
        subscription = TopicSubscriptionRecord(
            requested.qos, requested.no_local, requested.retain_as_published, subscription_id
        )
        try:
            search = space.subscribe(
                device.key, device.owner, topic, subscription, retain_handling=requested.retain_handling
            )
        except DomainError as error:
            return FilterRefused(ReasonCode.QUOTA_EXCEEDED, error)
        taken[topic] = subscription
        self._searches.append((subscription, search))
        return requested.qos

    @property
    def is_searching(self) -> bool:
        """Whether retained messages are still to be sent to new subscriptions."""
        return bool(self._searches)

    def search(self) -> int:
        """Send retained messages of new subscriptions, for one turn; return what that cost, in frames of overhead."""
        looked = sent = 0
        while self._searches:
            subscription, search = self._searches[0]
            for message in search:
                looked += 1
                if message is not None:
                    sent += 1
                    self._send_retained(subscription, message)
                if looked >= _LOOKS_OF_A_TURN or sent >= _SENT_IN_A_TURN:
                    break
            else:
                self._searches.pop(0)
                continue
            break
        return sent + looked // _LOOKS_OF_A_FRAME

    def _send_retained(self, subscription: TopicSubscriptionRecord, message: RetainedRecord) -> None:
        if self._sessions is not None:
            self._sessions.send(
                self._device.key,
                topic=message.topic,
                payload=message.payload,
                qos=min(subscription.qos, message.qos),
                retain=True,
                properties=message.properties,
                subscription_ids=[subscription.subscription_id] if subscription.subscription_id else [],
                expires_on=message.expires_on,
            )

    def unsubscribe(self, filters: Sequence[bytes]) -> list[ReasonCode]:
        """The answer for each filter."""
        existed = [self._unsubscribe(topic) for topic in filters]
        ended = list(compress(filters, existed))
        if ended and self._lasting is not None and self._sessions is not None:
            self._sessions.unsubscribe(self._lasting, ended, wants_actions=self._actions_from is not None)
        return [ReasonCode.SUCCESS if one else ReasonCode.NO_SUBSCRIPTION_EXISTED for one in existed]

    def _unsubscribe(self, topic: bytes) -> bool:
        """Returns whether there was such a subscription."""
        topics = self._like(topic)
        if topics is None and self._space is not None:
            return self._space.unsubscribe(self._device.key, topic)
        return topics is not None and topics.pop(topic, None) is not None

    def _like(self, topic: bytes) -> dict[bytes, int] | None:
        """The place of subscriptions to this topic; None if the device may not subscribe to it."""
        kind, _, device_id = topic.removeprefix(b"/").rpartition(b"/")
        if device_id != self._device.id.encode():
            return None
        if kind == b"v1.1/wanted":
            return self._topics_of_wanted
        return {b"v1.1/actions": self._actions, b"v1.1/errors": self._errors}.get(kind)

    # --- Deliveries ---

    def tell(self, error: DomainError) -> None:
        """Log what the device was refused, and tell a device that has subscribed to errors."""
        error_id = error_id_of(error)
        about: dict[str, Any] = {"caller": f"device {self._device.id}", "error_id": error_id, "status": error.status}
        if isinstance(error, NothingRemained):  # its reason may show what the message had
            self._refusals.note("mqtt_nothing_remained", reason="nothing of the message was kept", **about)
        else:
            note_refusal(self._refusals, "mqtt", error, **about)
        if self._errors and self._outbox.has_room:
            self._outbox.put(self._answers.publish(next(reversed(self._errors)), error_message(error, error_id)))

    def has_new_wanted(self, filters: Sequence[RequestedFilter]) -> bool:
        """Whether one of these subscribes to the wanted values."""
        return any(one.topic in self._topics_of_wanted for one in filters)

    def tell_all_wanted(self) -> None:
        """Send what is wanted of the device, if anything is, to a device that has subscribed to that."""
        if self._topics_of_wanted and (document := self._wanted.document(self._device.key)) is not None:
            self.tell_wanted(document)

    def tell_wanted(self, document: bytes) -> None:
        """Send a change of that. A device that does not keep up gets it with its next connection."""
        if not self._topics_of_wanted:
            return
        packet = self._answers.publish(next(reversed(self._topics_of_wanted)), document)
        if packet and self._outbox.offer(packet):
            self._wanted.given(self._device.key)

    def deliver(self, action: Action) -> bool:
        """Send an Action to the device; False when it has not subscribed to Actions or does not keep up."""
        if not self._actions:
            return False
        topic, payload = next(reversed(self._actions)), self._written(action.data)
        if self._actions[topic]:
            return self._deliver_surely(action, topic, payload)
        packet = self._answers.publish(topic, payload)
        return packet != b"" and self._outbox.offer(packet)

    def _written(self, actions: str) -> bytes:
        """The payload of Actions."""
        if self._settings.action_payload == "array":
            actions = actions.removeprefix('{"actions":').removesuffix("}")
        return actions.encode()

    def _deliver_surely(self, action: Action, topic: bytes, payload: bytes) -> bool:
        sessions, lasting = self._sessions, self._lasting
        if sessions is None or lasting is None:
            return False
        delivery = sessions.deliver(lasting, action, topic, payload, self._actions[topic])
        if delivery is None:
            return False
        self.send(delivery)
        return True

    def send(self, delivery: DeliveryRecord) -> None:
        """Send with QoS 1 or 2, as soon as it is durable that the delivery waits."""
        if self._lasting is not None and self._lasting.is_stored:
            self._ingest.after_commit(partial(self._send, delivery))
        else:
            self._send(delivery, None)

    def offer(self, delivery: DeliveryRecord) -> bool:
        """Send with QoS 0; False when the device does not keep up."""
        packet = packet_of(self._answers, delivery, self._now_ms())
        return packet != b"" and self._outbox.offer(packet)

    def _send(self, delivery: DeliveryRecord, error: StoreError | None) -> None:
        if error is None and self._flow is not None and not self._session.is_closed:
            self._outbox.put(self._flow.add(delivery))

    def answered(self, packet: PubAck | PubRec | PubComp) -> bool:
        """The device has answered a delivery; False when there was none."""
        flow, sent = self._flow, None
        if flow is not None:
            match packet:
                case PubAck(packet_id):
                    sent = flow.puback(packet_id)
                case PubComp(packet_id):
                    sent = flow.pubcomp(packet_id)
                case PubRec(packet_id) if packet.reason >= ReasonCode.UNSPECIFIED:
                    sent = flow.refused(packet_id)
                case PubRec(packet_id):
                    if (number := flow.pubrec(packet_id)) is not None:
                        self._release(packet_id, number)
                        return True
        if sent is not None:
            self._outbox.put(sent)
            return True
        # Version 3 has no answer to that, and 5.0 one to PUBREC.
        if self._session.level == MQTT_5 and isinstance(packet, PubRec) and packet.reason < ReasonCode.UNSPECIFIED:
            self._outbox.put(self._answers.pubrel(packet.packet_id, ReasonCode.PACKET_ID_NOT_FOUND))
        return False

    def _release(self, packet_id: bytes, number: int) -> None:
        """Send PUBREL when it is durable that the delivery must not be sent again."""
        if self._lasting is not None and self._lasting.is_stored and self._sessions is not None:
            is_stored = self._sessions.release(self._lasting, number)
            self._ingest.after_commit(partial(self._put_released, self._answers.pubrel(packet_id), is_stored))
        else:
            self._outbox.put(self._answers.pubrel(packet_id))

    def _put_released(self, pubrel: bytes, is_stored: Callable[[], bool], error: StoreError | None) -> None:
        if error is None and not is_stored():
            self._end()  # a newer connection has the session, and sends the delivery again
        else:
            self._put_durable(pubrel, error)

    def _put_after_commit(self, data: bytes) -> None:
        self._ingest.after_commit(partial(self._put_durable, data))

    def _put_durable(self, data: bytes, error: StoreError | None) -> None:
        if error is not None:
            self._end()
        elif not self._session.is_closed:
            self._outbox.put(data)
