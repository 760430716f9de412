"""Bytes to MQTT packets.

`PacketReader.feed` parses every complete packet in the bytes that the socket delivered. PUBLISH is the hot path and is
parsed in place; bodies.py has the decoders of all other packets.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from functools import partial
from itertools import islice
from typing import Final, Protocol

from config.limits import MQTT_FILTERS_MAX, MQTT_PACKET_BYTES, PACKETS_PER_TURN
from protocols.mqtt.bodies import DECODERS
from protocols.mqtt.fields import Fields, check_topic, truncated
from protocols.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Connect,
    MalformedPacket,
    Packet,
    PacketTooLarge,
    ProtocolError,
    Publish,
    PublishWithProperties,
    ReasonCode,
    Subscribe,
    TooManyArriving,
    Unsubscribe,
    weight_of,
)
from protocols.mqtt.properties import In, decode_properties

_NO_ID = b"\x00\x00"
#: Packets that end the turn of their connection, because each may have many filters.
_LONG_WORK: Final[frozenset[type[Packet]]] = frozenset({Subscribe, Unsubscribe})


class ArrivingPackets(Protocol):
    """The memory for packets over the usual size that have not come whole, shared with other connections."""

    def take(self, size: int) -> bool:
        """Hold `size` bytes; False, and nothing held, if there is no room."""

    def give_back(self, size: int) -> None: ...


@dataclass(eq=False, slots=True, kw_only=True)
class PacketReader:
    """Parses the byte stream of one connection.

    After an error the reader cannot go on: every later call raises the same error, without packets.

    `waits_for_admission`: what follows CONNECT is read after `admit`, which says how large it may be.
    """

    maximum_packet_size: int = MQTT_PACKET_BYTES
    level: int = MQTT_3_1_1  # of the last CONNECT; a peer may send more packets before it gets its CONNACK
    packets_per_turn: int = PACKETS_PER_TURN
    waits_for_admission: InitVar[bool] = False
    _last_of_turn: frozenset[type[Packet]] = field(init=False)
    _most_filters: int = MQTT_FILTERS_MAX
    _arriving: ArrivingPackets | None = None
    _held: int = 0  # bytes for a packet over the usual size that has not come whole
    _rest: bytearray = field(default_factory=bytearray)
    _needed: int = 2
    _topic: bytes | None = None  # the last valid topic; a device publishes to one topic, so it is checked once
    _fault: ProtocolError | None = None
    is_behind: bool = False  # more packets may have arrived: feed the reader nothing to get them

    def __post_init__(self, waits_for_admission: bool) -> None:
        self._last_of_turn = _LONG_WORK | {Connect} if waits_for_admission else _LONG_WORK

    def admit(self, *, maximum_packet_size: int, most_filters: int, arriving: ArrivingPackets) -> None:
        """Allow larger packets with more filters, because the peer is authenticated. `arriving` bounds the
        memory for those over the usual size."""
        self.maximum_packet_size, self._most_filters, self._arriving = maximum_packet_size, most_filters, arriving

    def end(self) -> None:
        """Note the end of the bytes."""
        if self._held and self._arriving is not None:
            self._arriving.give_back(self._held)
            self._held = 0

    def _await(self, size: int) -> None:
        """Wait for the rest of a packet of `size` bytes."""
        self._needed = size
        if size > MQTT_PACKET_BYTES and self._arriving is not None:
            if not self._arriving.take(size):
                raise TooManyArriving("too many large packets of the owner's devices arrive at once")
            self._held = size

    def feed(self, received: bytes | bytearray) -> list[Packet]:
        """The next packets, in order: as many as one turn of a connection may have. The rest is kept for the next call.

        Raises:
            ProtocolError: the bytes are not MQTT; its `packets` are the valid ones before the error.
        """
        if self._fault is not None:
            raise self._fault.again()
        if self._rest:
            self._rest += received
            if len(self._rest) < self._needed:
                self.is_behind = False
                return []
            data = bytes(self._rest)
        else:
            data = bytes(received)
        if self._held:  # the packet has come
            self.end()
        packets: list[Packet] = []
        try:
            used = self._parse(data, packets)
        except ProtocolError as fault:
            fault.packets = packets
            self._fault = fault.again()  # a new object: the raised one refers to its frames, and they to this reader
            self._rest = bytearray()
            raise
        if self._rest or used < len(data):
            self._rest = bytearray(data[used:])
        return packets

    def _parse(self, data: bytes, packets: list[Packet]) -> int:
        """Append the packets of `data`; return where the first incomplete one begins."""
        at = 0
        end = len(data)
        maximum = self.maximum_packet_size
        topic = self._topic
        turn = iter(range(self.packets_per_turn))
        publish = partial(_publish_5, turn) if self.level == MQTT_5 else Publish
        append = packets.append
        self._needed = 2
        self.is_behind = False
        for _ in turn:
            if end - at < 2:
                break
            head = data[at]
            start = at + 2
            length = data[at + 1]
            if length > 0x7F:
                if end - at > 2 and data[at + 2] < 0x80:  # two bytes: every usual message over 127 bytes
                    length, start = length & 0x7F | data[at + 2] << 7, at + 3
                else:
                    length, start = _long_length(data, at + 1)
                    if not start:
                        self._needed = end - at + 1
                        break
            stop = start + length
            if stop - at > maximum:
                raise PacketTooLarge(f"a packet of {stop - at} bytes, and at most {maximum} are taken")
            if stop > end:
                self._await(stop - at)
                break
            if head & 0xF0 != 0x30:
                append(packet := self._decode(head, data[start:stop]))
                _spend(turn, packet)
                # Behind a CONNECT, another version may begin.
                if type(packet) in self._last_of_turn or (self.level == MQTT_5) is (publish is Publish):
                    at, self.is_behind = stop, stop < end
                    break
            elif length < 3:
                raise truncated("PUBLISH")
            else:
                # The hot path: each statement here runs for each message. Unusual packets are checked elsewhere.
                topic_stop = start + 2 + (data[start] << 8 | data[start + 1])
                qos = head >> 1 & 3
                payload_start = topic_stop + 2 if qos else topic_stop
                packet_id = data[topic_stop:payload_start]
                if payload_start > stop:
                    raise truncated("PUBLISH")
                sent_to = data[start + 2 : topic_stop]
                if sent_to != topic or packet_id == _NO_ID or head > 0x35:
                    _check_publish(head, sent_to, packet_id, self.level)
                    topic = self._topic = sent_to
                # Messages to one topic share one bytes object, which caches its hash.
                append(publish(topic, data[payload_start:stop], packet_id, qos, head))
            at = stop
        else:
            self.is_behind = at < end
        return at

    def _decode(self, head: int, body: bytes) -> Packet:
        known = DECODERS.get(head >> 4)
        if known is None:
            raise MalformedPacket(f"packet type {head >> 4} is not one a client sends")
        flags, clause, decode = known
        # In version 3.1 PUBREL, SUBSCRIBE and UNSUBSCRIBE carry DUP when they are sent again.
        unused = 0x08 if flags and self.level == MQTT_3_1 else 0
        if head & 0x0F & ~unused != flags:
            raise MalformedPacket(f"the fixed header of packet type {head >> 4} has flags {head & 0x0F:#x}", clause)
        fields = Fields(body, most_filters=self._most_filters)
        packet = decode(fields, self.level)
        fields.finish()
        if isinstance(packet, Connect):
            self.level = packet.level
        return packet


def _long_length(data: bytes, at: int) -> tuple[int, int]:
    """A remaining length of several bytes and the index behind it; index 0 when it has not arrived completely."""
    length = shift = 0
    for index in range(at, min(at + 4, len(data))):
        byte = data[index]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, index + 1
        shift += 7
    if len(data) - at < 4:
        return 0, 0
    raise MalformedPacket("the remaining length has a fifth byte (section 2.2.3)")


def _check_publish(head: int, topic: bytes, packet_id: bytes, level: int) -> None:
    qos = head >> 1 & 3
    if qos == 3:
        raise MalformedPacket("PUBLISH with QoS 3", "MQTT-3.3.1-4")
    if qos == 0 and head & 0x08 and level != MQTT_3_1:
        raise MalformedPacket("PUBLISH with QoS 0 and DUP", "MQTT-3.3.1-2")
    if packet_id == _NO_ID:
        raise MalformedPacket("PUBLISH with packet id 0", "MQTT-2.3.1-1")
    if topic or level != MQTT_5:  # in 5.0, a topic alias may stand for it
        check_topic(topic, "MQTT-3.3.2-1")
    if b"+" in topic or b"#" in topic:
        raise MalformedPacket("PUBLISH to a topic with wildcards", "MQTT-3.3.2-2", code=ReasonCode.TOPIC_NAME_INVALID)


def _spend(turn: Iterator[int], packet: Packet) -> None:
    """A packet with many user properties takes the place of several in its turn."""
    if weight := weight_of(packet):
        deque(islice(turn, weight), maxlen=0)


def _publish_5(turn: Iterator[int], topic: bytes, body: bytes, packet_id: bytes, qos: int, head: int) -> Publish:
    """A PUBLISH of 5.0, whose `body` has the properties before the payload."""
    if topic and body[:1] == b"\x00":
        return Publish(topic, body[1:], packet_id, qos, head)
    fields = Fields(body)
    properties = decode_properties(fields, In.PUBLISH)
    if properties.subscription_ids:
        raise ProtocolError("PUBLISH of a client with a subscription identifier", "MQTT-3.3.4-6")
    if not topic and properties.topic_alias is None:
        raise ProtocolError("an empty topic without a topic alias", "MQTT-4.7.3-1")
    packet = PublishWithProperties(topic, body[fields.at :], packet_id, qos, head, properties)
    _spend(turn, packet)
    return packet
