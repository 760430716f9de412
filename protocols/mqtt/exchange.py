"""The packets of an authenticated device on one connection, and the answers to them.

No method of the hot path waits: packets go to `Ingest` in the order of their arrival, answers go to the outbox. For
each read from the socket, one callback acknowledges all its messages once they are durable.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import DomainError, PayloadTooLarge, StorageUnavailable
from broker.limits.meters import Meter
from broker.limits.overhead import Pace
from broker.limits.refusals import RateLimitExceeded
from broker.routing.connections import CloseReason
from broker.trace.refusals import Refusals
from config.limits import MAX_DATA_BYTES
from protocols.mqtt.encoding import encode_pubacks, encode_publish, encode_suback
from protocols.mqtt.errors import error_message
from protocols.mqtt.packets import SUBSCRIPTION_REFUSED, Packet, ProtocolError, Publish, RequestedFilter
from protocols.mqtt.rooms import MqttRooms
from protocols.mqtt.session import (
    MqttSession,
    PingReceived,
    PublishReceived,
    SessionEvent,
    SubscribeRequested,
    Unsubscribed,
)
from protocols.outbox import Outbox
from protocols.refusals import PublishForbidden, SubscribeForbidden

# Acknowledgements keep their order, so a refused message waits for the commit like any other, but it takes no room in
# the journal. This limit bounds the messages of one connection that wait while the store is slow.
MAX_UNACKNOWLEDGED = 20_000


class MqttExchange:
    """One device on one connection.

    `end` stops the task that reads from the connection, for a fault of the peer or the store, or when the broker closes
    the connection.
    """

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
        "_rooms",
        "_sends_bare_actions",
        "_session",
        "_unacknowledged",
        "pace",
    )

    def __init__(
        self,
        rooms: MqttRooms,
        device: Device,
        meter: Meter | None,
        session: MqttSession,
        outbox: Outbox,
        end: Callable[[], None],
    ) -> None:
        self._rooms = rooms
        self._ingest = rooms.messages.ingest
        self._device = device
        self._meter = meter
        self._session = session
        self._outbox = outbox
        self._end = end
        topic = f"v1.1/messages/{device.id}".encode()
        self._own_topics = (topic, b"/" + topic)
        # Subscriptions as the client wrote them. Of two forms of one topic, deliveries go to the later one.
        self._actions_topics: list[bytes] = []
        self._errors_topics: list[bytes] = []
        self._sends_bare_actions = rooms.core.settings.mqtt.action_payload == "array"
        self._received: list[bytes] = []  # QoS 2 messages of this read
        self._unacknowledged = 0  # messages whose acknowledgement waits for the commit
        self.pace: Pace = rooms.limits.overhead.pace()

    def handle(self, packets: Sequence[Packet]) -> None:
        """Process the packets of one turn."""
        session = self._session
        is_open = session.is_open
        if not is_open:  # the broker has ended it meanwhile
            return
        stored: list[bytes] = []
        self._outbox.cork()
        for packet in packets:
            if type(packet) is Publish and packet.qos < 2:
                self._publish(packet.topic, packet.payload)
                if packet.qos:
                    stored.append(packet.packet_id)
            elif not self._receive(packet):
                break
        self._outbox.uncork()
        received, self._received = self._received, []
        if stored or received:
            self._unacknowledged += len(stored) + len(received)
            self._ingest.after_commit(partial(self._acknowledge, stored, received))

    def _receive(self, packet: Packet) -> bool:
        """Process a packet that is not of the hot path. Returns whether the connection goes on."""
        session = self._session
        overhead = session.overhead
        try:
            events = session.receive(packet)
        except ProtocolError as fault:
            note_fault(self._rooms.core.refusals, fault)
            self._end()
            return False
        self._outbox.put(session.take_output())
        overhead = session.overhead - overhead
        refusal = self._count(overhead)
        if refusal is not None and self.pace.floods(overhead):
            about = f"{refusal}; the connection is closed"
            self._rooms.core.refusals.note("mqtt_rate_refused", reason=about, caller=f"device {self._device.id}")
            self._end()
            return False
        for event in events:
            self._answer(event, refusal)
        return not session.is_closed

    def _count(self, overhead: int) -> RateLimitExceeded | None:
        """Count a packet that is no message; `overhead` is 0 for one that belongs to a message (reference 21.1)."""
        if overhead:
            self.pace.spend(overhead)
            try:
                if self._meter is not None:
                    self._meter.count()
            except RateLimitExceeded as refusal:
                return refusal
        return None

    @property
    def has_room(self) -> bool:
        return self._unacknowledged < MAX_UNACKNOWLEDGED

    async def wait_room(self) -> None:
        while not self.has_room:
            await self._wait_committed()

    async def wait_acknowledged(self) -> None:
        """Wait until no acknowledgement waits for the store."""
        while self._unacknowledged:
            await self._wait_committed()

    async def _wait_committed(self) -> None:
        with suppress(StorageUnavailable):  # `_acknowledge` gets it, too
            await self._ingest.wait_committed()

    def _publish(self, topic: bytes, payload: bytes) -> None:
        device = self._device
        try:
            if self._meter is not None:  # also for messages that are refused
                self._meter.count()
            if topic not in self._own_topics:
                raise PublishForbidden
            if len(payload) > MAX_DATA_BYTES:  # reference 9.1: on MQTT, the size of the payload as received
                raise PayloadTooLarge(organization_id=device.type.record.organization_id, device_id=device.id)
            if self._ingest.submit(device, payload) == self._ingest.failed_position:
                self._tell_lost()
        except DomainError as error:
            self.pace.spend()
            self._ingest.refused.note(device, error)
            self._tell(error)

    def _answer(self, event: SessionEvent, refusal: RateLimitExceeded | None) -> None:
        match event:
            case PublishReceived(topic=topic, payload=payload, packet_id=packet_id):
                self._publish(topic, payload)
                self._received.append(packet_id)
            case SubscribeRequested(packet_id=packet_id, filters=filters):
                self._subscribe(packet_id, filters, refusal)
            case Unsubscribed(filters=topics):
                for topic in topics:
                    self._forget(topic)
            case PingReceived():
                self._rooms.devices.presence.touch(self._device.key)
            case _:  # PeerLeft; events of CONNECT cannot come any more
                pass

    def _subscribe(
        self, packet_id: bytes, filters: Sequence[RequestedFilter], refusal: RateLimitExceeded | None
    ) -> None:
        """Grant QoS 0, whatever was asked for (reference 16.3)."""
        if refusal is not None:
            self._outbox.put(encode_suback(packet_id, [SUBSCRIPTION_REFUSED] * len(filters)))
            self._tell(refusal)
            return
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
        """The list that holds subscriptions to this topic; None when the device may not subscribe to it."""
        kind, _, device_id = topic.removeprefix(b"/").rpartition(b"/")
        if device_id != self._device.id.encode():
            return None
        return {b"v1.1/actions": self._actions_topics, b"v1.1/errors": self._errors_topics}.get(kind)

    def _acknowledge(self, stored: list[bytes], received: list[bytes], error: StorageUnavailable | None) -> None:
        """The messages of one turn are durable: acknowledge them. After an error, end the connection without that."""
        self._unacknowledged -= len(stored) + len(received)
        if error is not None:
            self._end()
            return
        answer = encode_pubacks(stored)
        if received:
            answer += self._session.acknowledge_received(received)
        self._outbox.put(answer)

    def _tell_lost(self) -> None:
        """The latest message is stored as a failed one (reference 9.7)."""
        if (lost := self._ingest.nothing_remained(self._device)) is not None:
            self._tell(lost)

    def _tell(self, error: DomainError) -> None:
        if self._errors_topics and self._outbox.has_room:
            self._outbox.put(encode_publish(self._errors_topics[-1], error_message(error)))

    def deliver(self, action: Action) -> bool:
        """Send an Action to the device; False when it has not subscribed to Actions or does not keep up."""
        if not self._actions_topics:
            return False
        payload = action.data
        if self._sends_bare_actions:
            payload = payload.removeprefix('{"actions":').removesuffix("}")
        return self._outbox.offer(encode_publish(self._actions_topics[-1], payload.encode()))

    def close(self, reason: CloseReason) -> None:
        """The broker ends the connection."""
        # The will is stored here, so that it comes before the first message of a newer connection.
        may_speak = reason in {CloseReason.REPLACED, CloseReason.SHUTDOWN}
        self.leave(may_speak=may_speak)
        self._end()

    def leave(self, *, may_speak: bool = True) -> None:
        """The connection has ended: publish the will, unless the peer has sent DISCONNECT or `may_speak` is False."""
        for event in self._session.connection_lost():
            # reference 16.2: a will to any other topic than the device's own is accepted and dropped.
            if may_speak and event.will is not None and event.will.topic in self._own_topics:
                self._publish(event.will.topic, event.will.payload)


def note_fault(refusals: Refusals, fault: ProtocolError) -> None:
    refusals.note("mqtt_protocol_error", reason=str(fault))
