"""What an authenticated device says over one connection, and what it is told.

Nothing here waits: packets go to `Ingest` in the order in which they came, answers go to the outbox. One callback per
read acknowledges everything of it once it is durable.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import structlog

from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import DomainError, PayloadTooLarge, StorageUnavailable
from broker.limits.meters import Meter
from broker.routing.connections import CloseReason
from broker.services import Services
from config.limits import MAX_DATA_BYTES
from protocols.mqtt.encoding import encode_pubacks, encode_publish, encode_suback
from protocols.mqtt.errors import error_message
from protocols.mqtt.packets import SUBSCRIPTION_REFUSED, Packet, ProtocolError, Publish, RequestedFilter
from protocols.mqtt.session import Event, MqttSession, PingReceived, PublishReceived, SubscribeRequested, Unsubscribed
from protocols.outbox import Outbox
from protocols.refusals import PublishForbidden, SubscribeForbidden

# A refused message waits for the commit like any other, because acknowledgements keep their order, but takes no room in
# the journal. So this bounds what one connection may have under way while the store is slow.
MAX_UNACKNOWLEDGED = 20_000

_log = structlog.get_logger(__name__)


class Exchange:
    """`end` stops the connection's reader: the peer, the store or the broker has made it pointless to read on."""

    __slots__ = (
        "_actions_topics",
        "_device",
        "_end",
        "_errors_topics",
        "_ingest",
        "_meter",
        "_outbox",
        "_own_topics",
        "_received",
        "_sends_bare_actions",
        "_services",
        "_session",
        "_unacknowledged",
    )

    def __init__(
        self,
        services: Services,
        device: Device,
        meter: Meter | None,
        session: MqttSession,
        outbox: Outbox,
        end: Callable[[], None],
    ) -> None:
        self._services = services
        self._ingest = services.messages.ingest
        self._device = device
        self._meter = meter
        self._session = session
        self._outbox = outbox
        self._end = end
        topic = f"v1.1/messages/{device.id}".encode()
        self._own_topics = (topic, b"/" + topic)
        # Subscriptions in the client's spelling. Of two spellings of one topic the later one is delivered to.
        self._actions_topics: list[bytes] = []
        self._errors_topics: list[bytes] = []
        self._sends_bare_actions = services.core.settings.mqtt.action_payload == "array"
        self._received: list[bytes] = []  # QoS 2 messages of this read
        self._unacknowledged = 0  # messages whose acknowledgement waits for the commit

    def handle(self, packets: Sequence[Packet]) -> None:
        """Everything that was read in one go."""
        session = self._session
        is_open = session.is_open
        if not is_open:  # the broker ended it while these were read
            return
        stored: list[bytes] = []
        self._outbox.cork()
        for packet in packets:
            if type(packet) is Publish and packet.qos < 2:
                self._publish(packet.topic, packet.payload)
                if packet.qos:
                    stored.append(packet.packet_id)
                continue
            try:
                events = session.receive(packet)
            except ProtocolError as fault:
                log_fault(fault)
                self._end()
                break
            self._outbox.put(session.take_output())
            for event in events:
                self._answer(event)
            if session.is_closed:
                break
        self._outbox.uncork()
        received, self._received = self._received, []
        if stored or received:
            self._unacknowledged += len(stored) + len(received)
            self._ingest.after_commit(partial(self._acknowledge, stored, received))

    @property
    def has_room(self) -> bool:
        return self._unacknowledged < MAX_UNACKNOWLEDGED

    async def wait_room(self) -> None:
        while not self.has_room:
            await self._wait_committed()

    async def wait_acknowledged(self) -> None:
        """Return when no acknowledgement waits for the store any more."""
        while self._unacknowledged:
            await self._wait_committed()

    async def _wait_committed(self) -> None:
        with suppress(StorageUnavailable):  # which `_acknowledge` hears, too
            await self._ingest.wait_committed()

    def _publish(self, topic: bytes, payload: bytes) -> None:
        device = self._device
        try:
            if self._meter is not None:  # valid or not
                self._meter.count()
            if topic not in self._own_topics:
                raise PublishForbidden
            if len(payload) > MAX_DATA_BYTES:  # reference 9.1: on MQTT what counts is the payload as received
                raise PayloadTooLarge(organization_id=device.type.record.organization_id, device_id=device.id)
            self._ingest.submit(device, payload)
        except DomainError as error:
            self._tell(error)

    def _answer(self, event: Event) -> None:
        match event:
            case PublishReceived(topic=topic, payload=payload, packet_id=packet_id):
                self._publish(topic, payload)
                self._received.append(packet_id)
            case SubscribeRequested(packet_id=packet_id, filters=filters):
                self._subscribe(packet_id, filters)
            case Unsubscribed(filters=topics):
                for topic in topics:
                    self._forget(topic)
            case PingReceived():
                self._services.devices.presence.touch(self._device.key)
            case _:  # it has left; what belongs to CONNECT cannot come any more
                pass

    def _subscribe(self, packet_id: bytes, filters: Sequence[RequestedFilter]) -> None:
        """QoS 0 is all that is granted (reference 16.3)."""
        codes = []
        for topic, _ in filters:
            topics = self._subscriptions_like(topic)
            if topics is not None:
                self._forget(topic)
                topics.append(topic)
            codes.append(SUBSCRIPTION_REFUSED if topics is None else 0)
        self._outbox.put(encode_suback(packet_id, codes))
        for _ in range(codes.count(SUBSCRIPTION_REFUSED)):
            self._tell(SubscribeForbidden())

    def _forget(self, topic: bytes) -> None:
        topics = self._subscriptions_like(topic)
        if topics and topic in topics:
            topics.remove(topic)

    def _subscriptions_like(self, topic: bytes) -> list[bytes] | None:
        """Where a subscription to this topic is kept; None when the device may not subscribe to it."""
        kind, _, device_id = topic.removeprefix(b"/").rpartition(b"/")
        if device_id != self._device.id.encode():
            return None
        return {b"v1.1/actions": self._actions_topics, b"v1.1/errors": self._errors_topics}.get(kind)

    def _acknowledge(self, stored: list[bytes], received: list[bytes], error: StorageUnavailable | None) -> None:
        """What was read in one go is durable, or could not be stored: then the peer must send it again elsewhere."""
        self._unacknowledged -= len(stored) + len(received)
        if error is not None:
            _log.error("mqtt_messages_not_stored", device=self._device.id, reason=error.reason)
            self._end()
            return
        answer = encode_pubacks(stored)
        if received:
            answer += self._session.acknowledge_received(received)
        self._outbox.put(answer)

    def _tell(self, error: DomainError) -> None:
        if self._errors_topics and self._outbox.has_room:
            self._outbox.put(encode_publish(self._errors_topics[-1], error_message(error)))

    def deliver(self, action: Action) -> bool:
        """An Action for the device, if it wants Actions and keeps up with them."""
        if not self._actions_topics:
            return False
        payload = action.data
        if self._sends_bare_actions:
            payload = payload.removeprefix('{"actions":').removesuffix("}")
        return self._outbox.offer(encode_publish(self._actions_topics[-1], payload.encode()))

    def close(self, reason: CloseReason) -> None:
        """The broker ends the connection."""
        # The will goes into the log here, so that it stands before the first message of a newer connection.
        may_speak = reason in {CloseReason.REPLACED, CloseReason.SHUTDOWN}
        self.leave(may_speak=may_speak)
        self._end()

    def leave(self, *, may_speak: bool = True) -> None:
        """The connection has ended, for whatever reason: a will is due if the peer did not say goodbye."""
        for event in self._session.connection_lost():
            # reference 16.2: a will to any other topic than the device's own is accepted and dropped.
            if may_speak and event.will is not None and event.will.topic in self._own_topics:
                self._publish(event.will.topic, event.will.payload)


def log_fault(fault: ProtocolError) -> None:
    _log.info("mqtt_protocol_error", reason=str(fault))
