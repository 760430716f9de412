"""The packets of an authenticated device on one connection, and the answers to them.

No method of the hot path waits: packets go to `Ingest` in the order of their arrival, answers go to the outbox. For
each read from the socket, one callback acknowledges all its messages once they are durable.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile

import trio

from broker.devices.registry import Device
from broker.errors import DomainError, PayloadTooLarge, StorageUnavailable
from broker.limits.meters import Meter
from broker.limits.overhead import Pace
from broker.limits.refusals import RateLimitExceeded
from broker.routing.connections import CloseReason
from broker.topics.space import SERVICE, Preparer, TopicSpace
from broker.topics.tree import is_topic
from broker.trace.refusals import Refusals
from config.limits import MAX_DATA_BYTES, MQTT_FILTERS_MAX, MQTT_TOPIC_ALIASES, MQTT_TOPIC_BYTES_MAX
from protocols.mqtt.answers import Reason, Reasons
from protocols.mqtt.deliveries import Deliveries, FilterRefused
from protocols.mqtt.errors import CLOSE_CODES, publish_reason
from protocols.mqtt.messages import message_of, own_time, will_record, with_topic
from protocols.mqtt.negotiation import session_seconds
from protocols.mqtt.packets import (
    MQTT_5,
    Connect,
    Packet,
    ProtocolError,
    Publish,
    PublishWithProperties,
    ReasonCode,
    Subscribe,
    Unsubscribe,
    Will,
    weight_of,
)
from protocols.mqtt.session import (
    RECEIVE_MAXIMUM,
    DeliveryAnswered,
    MqttSession,
    PeerLeft,
    PingReceived,
    PublishReceived,
    PublishReleased,
    SessionEvent,
    SubscribeRequested,
    UnsubscribeRequested,
)
from protocols.refusals import ProtocolBroken, PublishForbidden, device_text
from protocols.rooms import MqttRooms
from protocols.streams.outbox import Outbox
from storage.mqtt_wills import WillRecord
from storage.sql import StoreError

# Acknowledgements keep their order, so a refused message waits for the commit like any other, but it takes no room in
# the journal. This limit bounds the messages of one connection that wait while the store is slow.
MAX_UNACKNOWLEDGED = 20_000
# After this many deliveries, other connections have their turn before the remaining packets.
_DELIVERIES_OF_A_TURN = 48


class MqttExchange:
    """One device on one connection.

    `end` stops the task that reads from the connection, for a fault of the peer or the store, or when the broker closes
    the connection.
    """

    __slots__ = (
        "_aliases",
        "_answers",
        "_device",
        "_end",
        "_goes_on",
        "_had_will",
        "_ingest",
        "_meter",
        "_outbox",
        "_own_topics",
        "_prepared",
        "_reasons",
        "_receive_maximum",
        "_received",
        "_rooms",
        "_session",
        "_space",
        "_stored",
        "_unacknowledged",
        "_unready",
        "_will",
        "deliveries",
        "left",
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
        self._answers = session.answers
        self._outbox = outbox
        self._end = end
        topic = f"v1.1/messages/{device.id}".encode()
        self._own_topics = (topic, b"/" + topic)
        self.deliveries = Deliveries(rooms, device, session, outbox, end)
        self._stored: list[bytes] = []  # QoS 1 messages of this turn
        self._received: list[bytes] = []  # QoS 2 messages of this turn
        self._reasons: dict[bytes, Reason] | None = None  # why some of them were refused, for a peer that is told
        self._unacknowledged = 0  # messages whose acknowledgement waits for the commit
        self._receive_maximum = RECEIVE_MAXIMUM if session.level == MQTT_5 else math.inf  # version 3 has none
        self._space = rooms.topics.space
        self._aliases: dict[int, bytes] = {}
        #: The message that waits for `prepare`, the first one of `left`, with its topic.
        self._unready: tuple[Publish, bytes, Preparer] | None = None
        self._prepared: Publish | None = None  # goes on in the next turn, whatever was found
        self._goes_on = True  # until the device floods
        self._will: WillRecord | None = None  # until the connection has ended
        self._had_will = False
        #: Packets of the last turn that were not processed; the next call of `handle` must have them.
        self.left: Sequence[Packet] = ()
        line = rooms.limits.overhead
        self.pace: Pace = line.pace() if self._space is None else self._space.pace(device.key, line)

    async def begin(self, connect: Connect) -> None:
        """Accept the connection, with its session, when its will is stored. Raises StoreError."""
        wills, settings = self._rooms.wills, self._rooms.core.settings.mqtt
        if connect.will is not None and (topic := self._topic_of_will(connect.will)) is not None:
            delay = min(connect.will.properties.will_delay or 0, session_seconds(connect, settings))
            self._will = will_record(connect.will, self._device.key, topic, delay)
            if self._rooms.device_sessions.sessions is None:
                await wills.keep(self._will)
            else:
                wills.keep_with_next_commit(self._will)  # in the commit of the session
        await self.deliveries.begin(connect)

    def _topic_of_will(self, will: Will) -> bytes | None:
        """Empty when the will is a message of the device. None for a topic that the device cannot publish to: such a
        will is dropped (reference 16.2)."""
        if will.topic in self._own_topics:
            return b""
        is_open = self._space is not None and is_topic(will.topic) and not will.topic.startswith(SERVICE)
        return will.topic if is_open else None

    def handle(self, packets: Sequence[Packet]) -> None:
        """Process the packets of one turn; see `left`."""
        if not self._session.is_open:  # the broker has ended it
            return
        self.left = ()
        if len(packets) == 1 and type(packet := packets[0]) is Publish and packet.qos == 1 and self._space is None:
            # A device with one message in flight sends one packet per read.
            self._publish(packet)
            self._await_commit((packet.packet_id,), ())
            return
        self._outbox.cork()
        self._handle_all(packets)
        self._outbox.uncork()
        if self._stored or self._received:
            stored, received = self._stored, self._received
            self._stored, self._received = [], []
            self._await_commit(stored, received)

    def _handle_all(self, packets: Sequence[Packet]) -> None:
        stored, own = self._stored, self._own_topics
        together: list[Publish] = []  # `list[Publish]()` takes ten times as long
        for packet in packets if self._space is None else self._in_turn(packets):
            if type(packet) is Publish and packet.qos < 2:
                if packet.qos:
                    stored.append(packet.packet_id)
                if packet.topic in own:
                    together.append(packet)
                    continue
            if together:
                self._publish_all(together)
                together = []
            if type(packet) is Publish and packet.qos < 2:
                self._publish(packet)
            elif not self._receive(packet):
                break
        if together:
            self._publish_all(together)

    def _await_commit(self, stored: Sequence[bytes], received: Sequence[bytes]) -> None:
        """Have the messages with these packet ids acknowledged, as those of one turn, when they are durable."""
        reasons, self._reasons = self._reasons, None
        self._unacknowledged += len(stored) + len(received)
        self._ingest.after_commit(partial(self._acknowledge, stored, received, reasons))
        if self._unacknowledged > self._receive_maximum:
            self._fail(ProtocolError("over the receive maximum", code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED))

    def _in_turn(self, packets: Sequence[Packet]) -> Iterator[Packet]:
        """The packets of this turn: until their deliveries fill it, or one has to wait for `prepare`. `left` has the
        packets for the next turn."""
        self._search()
        prepared, self._prepared = self._prepared, None
        space = None if self._space is None or not self._space.preparers else self._space
        for index, packet in enumerate(packets):
            if self.pace.owed > _DELIVERIES_OF_A_TURN or self.deliveries.is_searching:
                self.left = packets[index:]
                return
            if space is not None and packet is not prepared and isinstance(packet, Publish):
                self._unready = self._unready_of(space, packet)
                if self._unready is not None:
                    self.left = packets[index:]
                    return
            yield packet

    def _unready_of(self, space: TopicSpace, packet: Publish) -> tuple[Publish, bytes, Preparer] | None:
        """A packet of an open topic for which a hearer is not ready, with the topic, and who sees to it."""
        topic = packet.topic
        if not topic and isinstance(packet, PublishWithProperties):
            topic = self._aliases.get(packet.properties.topic_alias or 0, b"")
        if topic in self._own_topics or topic.startswith(SERVICE) or not topic:
            return None
        preparer = space.unready(topic, packet.payload, self._device.key, self._device.owner)
        if preparer is None or not is_topic(topic) or not self._rooms.topics.access.may_publish(self._device, topic):
            return None
        return packet, topic, preparer

    async def prepare(self) -> None:
        """See to what is missing for the first message of `left`. It is not acknowledged before, and nothing behind it
        is read: the sender waits. If that fails, the connection ends, and the sender publishes it again."""
        if self._unready is None:
            return
        packet, topic, preparer = self._unready
        try:
            is_found = await preparer.make_ready(topic, packet.payload, self._device.key, self._device.owner)
        except (StoreError, StorageUnavailable):
            self.left = ()
            self._session.part(Reason(ReasonCode.UNSPECIFIED, "nothing can be stored"))
            self._end()
            return
        finally:
            self._unready = None
        if not is_found:
            self.pace.spend()
        self._prepared = packet

    def _receive(self, packet: Packet) -> bool:
        """Process a packet that is not of the hot path. Returns whether the connection goes on."""
        session = self._session
        overhead = session.overhead
        if weight := weight_of(packet):
            self.pace.spend(weight)
        try:
            events = session.receive(packet)
            events = tuple(map(self._checked, events))
        except ProtocolError as fault:
            self._fail(fault)
            return False
        self._outbox.put(session.take_output())
        refusal = self._spend_overhead(session.overhead - overhead)
        for event in events:
            self._answer(event, refusal)
        return self._goes_on and not session.is_closed

    def _spend_overhead(self, overhead: int) -> RateLimitExceeded | None:
        """Count and pace packets that carry no message; a flood of them ends the connection."""
        refusal = self._count(overhead)
        if refusal is not None and self.pace.floods(overhead):
            about = f"{refusal}; the connection is closed"
            self._rooms.core.refusals.note("mqtt_rate_refused", reason=about, caller=f"device {self._device.id}")
            self._session.part(Reason(ReasonCode.MESSAGE_RATE_TOO_HIGH, about))
            self._goes_on = False
            self._end()
        return refusal

    def note(self, fault: ProtocolError) -> None:
        """Leave a trace of what ends the connection: in the log, and for the device's owner."""
        note_fault(self._rooms.core.refusals, fault)
        self._ingest.refused.note(self._device, ProtocolBroken(str(fault)))

    def _fail(self, fault: ProtocolError) -> None:
        self.note(fault)
        self._session.fail(fault)
        self._end()

    def _count(self, overhead: int) -> RateLimitExceeded | None:
        """Count a packet that is no message; `overhead` is 0 for one that belongs to a message (reference 16.3)."""
        if overhead:
            self.pace.spend(overhead)
            try:
                if self._meter is not None:
                    self._meter.count_overhead()
            except RateLimitExceeded as refusal:
                return refusal
        return None

    @property
    def has_more(self) -> bool:
        """Whether `handle` has something to do without new packets."""
        return bool(self.left) or self.deliveries.is_searching

    @property
    def must_prepare(self) -> bool:
        """Whether `prepare` has something to do before the next packet, or does it now."""
        return self._unready is not None

    @property
    def has_room(self) -> bool:
        return self._unacknowledged < MAX_UNACKNOWLEDGED

    @property
    def may_read(self) -> bool:
        """Whether more packets may come: nothing of the last ones is left, and nothing is to be waited for."""
        return not (self.left or self.pace.owed or (self._space is not None and self.deliveries.is_searching)) and (
            self._unacknowledged < MAX_UNACKNOWLEDGED
        )

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

    def _publish_all(self, packets: Sequence[Publish]) -> None:
        """Publish several messages of the device, in their order; see `_publish`."""
        if len(packets) == 1:
            self._publish(packets[0])
            return
        meter = self._meter
        counted = packets if meter is None else list(takewhile(lambda _packet: meter.try_count(), packets))
        for index, tickets in self._ingest.submit_all(self._device, [packet.payload for packet in counted]):
            if not tickets:
                self._offer(counted[index])
        for packet in packets[len(counted) :]:
            self._publish(packet)

    def _publish(self, packet: Publish) -> None:
        try:
            if self._meter is not None:  # also for messages that are refused
                self._meter.count()
        except RateLimitExceeded as error:
            self._refuse(packet, error)
        else:
            self._offer(packet)

    def _offer(self, packet: Publish) -> None:
        device, payload = self._device, packet.payload
        try:
            if packet.topic not in self._own_topics:
                self._publish_openly(packet)
                return
            if len(payload) > MAX_DATA_BYTES:  # reference 9.1: on MQTT, the size of the payload as received
                raise PayloadTooLarge(organization_id=device.type.record.organization_id, device_id=device.id)
            ts = None if type(packet) is Publish else own_time(packet)
            if self._ingest.submit(device, payload, ts) == self._ingest.failed_ticket:
                self._tell_lost()
        except DomainError as error:
            self._refuse(packet, error)

    def _publish_openly(self, packet: Publish) -> None:
        """Publish in the open topic space. Raises PublishForbidden, BadRequest, TooManyRetained."""
        space = self._space
        if space is None or packet.topic.startswith(SERVICE) or not is_topic(packet.topic):
            raise PublishForbidden
        if not self._rooms.topics.access.may_publish(self._device, packet.topic):
            raise PublishForbidden
        message = message_of(packet, self._rooms.core.clock.now_ms())
        space.distribute(message, self._device.key, self._device.owner, self.pace)

    def _refuse(self, packet: Publish, error: DomainError) -> None:
        self.pace.spend()
        self._ingest.refused.note(self._device, error)
        self.deliveries.tell(error)
        if packet.qos:
            reason = publish_reason(error)
            if self._space is not None and not is_topic(packet.topic):
                reason = Reason(ReasonCode.TOPIC_NAME_INVALID, reason.text)
            self._reasons = self._reasons or {}
            self._reasons[packet.packet_id] = reason

    def _checked(self, event: SessionEvent) -> SessionEvent:
        """The event, with the topic that a topic alias stands for. Raises ProtocolError for what a peer that speaks 5.0
        must not ask for, because the CONNACK said so."""
        match event:
            case PublishReceived(packet=PublishWithProperties(properties=properties) as packet):
                if (alias := properties.topic_alias) is None:
                    return event
                if self._space is None or alias > MQTT_TOPIC_ALIASES:
                    raise ProtocolError("a topic alias over the maximum", code=ReasonCode.TOPIC_ALIAS_INVALID)
                topic = self._aliases[alias] = packet.topic or self._aliases.get(alias, b"")
                if not topic:
                    raise ProtocolError("a topic alias that stands for nothing", code=ReasonCode.TOPIC_ALIAS_INVALID)
                if len(topic) > MQTT_TOPIC_BYTES_MAX:  # the connection would keep it
                    raise ProtocolError(
                        "a topic alias for a topic that is too long", code=ReasonCode.TOPIC_NAME_INVALID
                    )
                return PublishReceived(packet=with_topic(packet, topic))
            case SubscribeRequested(packet=packet) if packet.properties.subscription_ids and self._space is None:
                code = ReasonCode.SUBSCRIPTION_IDS_NOT_SUPPORTED
                raise ProtocolError("a subscription identifier, and none is taken", code=code)
            case _:
                return event

    def _answer(self, event: SessionEvent, refusal: RateLimitExceeded | None) -> None:
        match event:
            case PublishReceived(packet=packet):
                self._publish(packet)
                if packet.qos == 2:
                    self._received.append(packet.packet_id)
                    # When a message was refused, and the device is told so, its packet id is free again.
                    if self._session.level != MQTT_5 or packet.packet_id not in (self._reasons or {}):
                        self.deliveries.received(packet.packet_id)
                elif packet.qos:
                    self._stored.append(packet.packet_id)
            case SubscribeRequested(packet=packet):
                self._subscribe(packet, refusal)
            case UnsubscribeRequested(packet=packet):
                self._unsubscribe(packet)
            case DeliveryAnswered(packet=packet):
                if not self.deliveries.answered(packet):
                    self._spend_overhead(1)
            case PublishReleased(packet_id=packet_id):
                self.deliveries.released(packet_id)
            case PingReceived():
                self._rooms.devices.presence.touch(self._device.key)
            case PeerLeft(will=will, session_expiry=seconds):
                if seconds is not None:
                    self.deliveries.expire(seconds)
                if self._will is not None:
                    self._end_will(self._will, is_due=will is not None)
            case _:  # events of CONNECT cannot come any more
                pass

    def _subscribe(self, packet: Subscribe, refusal: RateLimitExceeded | None) -> None:
        """Answer each filter with the granted QoS, or with the reason of its refusal (reference 16.3)."""
        if refusal is not None:
            over = [ReasonCode.QUOTA_EXCEEDED] * len(packet.filters)
            self._outbox.put(self._answers.suback(packet.packet_id, over, device_text(refusal)))
            self.deliveries.tell(refusal)
            return
        subscription_id = (*packet.properties.subscription_ids, 0)[0]
        answers = self.deliveries.subscribe(packet.filters, subscription_id)
        refused = [one.error for one in answers if isinstance(one, FilterRefused)]
        codes: list[int] = [one.code if isinstance(one, FilterRefused) else one for one in answers]
        text = "; ".join(dict.fromkeys(map(device_text, refused)))
        self._outbox.put(self._answers.suback(packet.packet_id, codes, text))
        for error in refused[:MQTT_FILTERS_MAX]:  # the codes are in SUBACK
            self.deliveries.tell(error)
        if self.deliveries.has_new_wanted(packet.filters):
            self.deliveries.tell_all_wanted()
        self._search()

    def _search(self) -> None:
        if self.deliveries.is_searching and (cost := self.deliveries.search()):
            self.pace.spend(cost)

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        codes = self.deliveries.unsubscribe(packet.filters)
        self._outbox.put(self._answers.unsuback(packet.packet_id, codes))

    def _acknowledge(
        self,
        stored: Sequence[bytes],
        received: Sequence[bytes],
        reasons: Reasons | None,
        error: StoreError | None,
    ) -> None:
        """The messages of one turn are durable: acknowledge them. After an error, end the connection without that."""
        self._unacknowledged -= len(stored) + len(received)
        if error is not None:
            self._session.part(Reason(ReasonCode.UNSPECIFIED, "nothing can be stored"))
            self._end()
            return
        answer = self._answers.pubacks(stored, reasons)
        if received:
            answer += self._session.acknowledge_received(received, reasons)
        self._outbox.put(answer)

    def _tell_lost(self) -> None:
        """The latest message is stored as a failed one (reference 9.7)."""
        if (lost := self._ingest.nothing_remained(self._device)) is not None:
            self.deliveries.tell(lost)

    def close(self, reason: CloseReason) -> None:
        """The broker ends the connection."""
        self._session.part(Reason(CLOSE_CODES[reason], reason.value))
        # The will is stored here, so that it comes before the first message of a newer connection.
        may_speak = reason in {CloseReason.REPLACED, CloseReason.SHUTDOWN, CloseReason.NOT_STORED}
        self.leave(may_speak=may_speak)
        self._end()

    def leave(self, *, may_speak: bool = True) -> None:
        """The connection has ended: publish the will, unless the peer has sent DISCONNECT or `may_speak` is False."""
        (event,) = self._session.connection_lost() or (None,)
        if self._will is not None:
            is_due = event is not None and event.will is not None and may_speak
            self._end_will(self._will, is_due=is_due)
        self.deliveries.leave()

    def _end_will(self, will: WillRecord, *, is_due: bool) -> None:
        """The connection has ended: publish its will, now or after its delay, or forget it."""
        self._will, self._had_will = None, True
        seconds = self.deliveries.seconds_until_due(will.delay_seconds)
        self._rooms.wills.leave(self._device, will, is_due=is_due, seconds=seconds, meter=self._meter)

    async def finish(self) -> None:
        """After `leave`: what goes on for a session that outlives the connection. The connection is closed when it is
        durable what becomes of its will."""
        if self._had_will:
            await self._wait_committed()
        while self.deliveries.is_searching:
            await trio.lowlevel.checkpoint()
            self._search()
            await self.pace.wait()


def note_fault(refusals: Refusals, fault: ProtocolError) -> None:
    refusals.note("mqtt_protocol_error", reason=str(fault))
