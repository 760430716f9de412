"""Bytes to MQTT packets.

`PacketReader.feed` parses every complete packet in the bytes that the socket delivered. PUBLISH is the hot path and is
parsed in place; each other packet type has a small decoder. Version 3.1 allows more than 3.1.1 in places; `level` says
which of the two versions a connection speaks.
"""

from collections.abc import Callable, Sequence

from config.limits import MQTT_FILTERS_MAX, MQTT_PACKET_BYTES, PACKETS_PER_TURN

from .packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    Connect,
    Disconnect,
    MalformedPacket,
    Packet,
    PacketTooLarge,
    PingRequest,
    ProtocolError,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RequestedFilter,
    Subscribe,
    TooManyFilters,
    Unsubscribe,
    UnsupportedConnect,
    Will,
)

_LEVELS = {(b"MQIsdp", MQTT_3_1), (b"MQTT", MQTT_3_1_1)}
_PROTOCOL_NAMES = {name for name, _ in _LEVELS}
_NO_ID = b"\x00\x00"
#: Packets that end the turn of their connection, because each may have many filters.
_LONG_WORK = frozenset({Subscribe, Unsubscribe})


class PacketReader:
    """Parses the byte stream of one connection.

    After an error the reader cannot go on: every later call raises the same error, without packets.
    """

    __slots__ = ("_fault", "_maximum", "_needed", "_rest", "_topic", "is_behind", "level")

    def __init__(self, *, maximum_packet_size: int = MQTT_PACKET_BYTES, level: int = MQTT_3_1_1) -> None:
        self.level = level  # of the last CONNECT; a peer may send more packets before it gets its CONNACK
        self._maximum = maximum_packet_size
        self._rest = bytearray()
        self._needed = 2
        self._topic: bytes | None = None  # the last valid topic; a device publishes to one topic, so it is checked once
        self._fault: ProtocolError | None = None
        self.is_behind = False  # more packets may have arrived: feed the reader nothing to get them

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
        maximum = self._maximum
        topic = self._topic
        append = packets.append
        self._needed = 2
        self.is_behind = False
        for _ in range(PACKETS_PER_TURN):
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
                self._needed = stop - at
                break
            if head & 0xF0 != 0x30:
                append(packet := self._decode(head, data[start:stop]))
                if type(packet) in _LONG_WORK:
                    at, self.is_behind = stop, stop < end
                    break
            elif length < 3:
                raise _truncated("PUBLISH")
            else:
                # The hot path: each statement here runs for each message. Unusual packets are checked elsewhere.
                topic_stop = start + 2 + (data[start] << 8 | data[start + 1])
                qos = head >> 1 & 3
                payload_start = topic_stop + 2 if qos else topic_stop
                packet_id = data[topic_stop:payload_start]
                if payload_start > stop:
                    raise _truncated("PUBLISH")
                sent_to = data[start + 2 : topic_stop]
                if sent_to != topic or packet_id == _NO_ID or head > 0x35:
                    _check_publish(head, sent_to, packet_id, self.level)
                    topic = self._topic = sent_to
                # Messages to one topic share one bytes object, which caches its hash.
                append(Publish(topic, data[payload_start:stop], packet_id, qos, head))
            at = stop
        else:
            self.is_behind = at < end
        return at

    def _decode(self, head: int, body: bytes) -> Packet:
        known = _DECODERS.get(head >> 4)
        if known is None:
            raise MalformedPacket(f"packet type {head >> 4} is not one a client sends")
        flags, clause, decode = known
        # In version 3.1 PUBREL, SUBSCRIBE and UNSUBSCRIBE carry DUP when they are sent again.
        unused = 0x08 if flags and self.level == MQTT_3_1 else 0
        if head & 0x0F & ~unused != flags:
            raise MalformedPacket(f"the fixed header of packet type {head >> 4} has flags {head & 0x0F:#x}", clause)
        fields = _Fields(body)
        packet = decode(fields)
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
    # [MQTT-3.3.2-2] forbids wildcards, too. reference 16.3 treats such a topic as any other topic that is not the
    # device's own: refused with an error message, and the connection stays open.
    qos = head >> 1 & 3
    if qos == 3:
        raise MalformedPacket("PUBLISH with QoS 3", "MQTT-3.3.1-4")
    if qos == 0 and head & 0x08 and level != MQTT_3_1:
        raise MalformedPacket("PUBLISH with QoS 0 and DUP", "MQTT-3.3.1-2")
    if packet_id == _NO_ID:
        raise MalformedPacket("PUBLISH with packet id 0", "MQTT-2.3.1-1")
    _check_topic(topic, "MQTT-3.3.2-1")


def _check_topic(topic: bytes, clause: str) -> None:
    if not topic:
        raise MalformedPacket("an empty topic", "MQTT-4.7.3-1")
    _text(topic, clause)


def _text(raw: bytes, clause: str) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket("a string that is not UTF-8", clause) from error
    if "\x00" in text:
        raise MalformedPacket("a string with U+0000", "MQTT-1.5.3-2")
    return text


def _truncated(what: str) -> MalformedPacket:
    return MalformedPacket(f"{what} ends inside one of its fields", "MQTT-4.8.0-1")


class _Fields:
    """The body of a packet, read field by field. Not for the hot path."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._body)

    def take(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if self._at > len(self._body):
            raise _truncated("the packet")
        return self._body[start : self._at]

    def byte(self) -> int:
        return self.take(1)[0]

    def short(self) -> int:
        return int.from_bytes(self.take(2))

    def binary(self) -> bytes:
        return self.take(self.short())

    def text(self, clause: str) -> str:
        return _text(self.binary(), clause)

    def topic(self, clause: str) -> bytes:
        topic = self.binary()
        _check_topic(topic, clause)
        return topic

    def packet_id(self, clause: str) -> bytes:
        packet_id = self.take(2)
        if packet_id == _NO_ID:
            raise MalformedPacket("packet id 0", clause)
        return packet_id

    def finish(self) -> None:
        if not self.is_at_end:
            raise MalformedPacket("bytes behind the last field", "MQTT-4.8.0-1")

    def skip(self) -> None:
        self._at = len(self._body)


def _decode_connect(fields: _Fields) -> Connect | UnsupportedConnect:
    name = fields.binary()
    if name not in _PROTOCOL_NAMES:
        raise MalformedPacket("CONNECT for another protocol", "MQTT-3.1.2-1")
    level = fields.byte()
    if (name, level) not in _LEVELS:
        fields.skip()
        return UnsupportedConnect(level)
    flags = fields.byte()
    _check_connect_flags(flags, level)
    keep_alive_seconds = fields.short()
    client_id = fields.text("MQTT-3.1.3-4")
    will = None
    if flags & 0x04:
        topic = fields.topic("MQTT-3.1.3-10")
        will = Will(topic, fields.binary(), flags >> 3 & 3, flags & 0x20 != 0)
    # Version 3.1, section 3.1: the remaining length takes precedence over the two flags.
    may_be_missing = level == MQTT_3_1
    user_name = password = None
    if flags & 0x80 and not (may_be_missing and fields.is_at_end):
        user_name = fields.text("MQTT-3.1.3-11")
    if flags & 0x40 and not (may_be_missing and fields.is_at_end):
        password = fields.binary()
    return Connect(
        level=level,
        client_id=client_id,
        is_clean=flags & 0x02 != 0,
        keep_alive_seconds=keep_alive_seconds,
        will=will,
        user_name=user_name,
        password=password,
    )


def _check_connect_flags(flags: int, level: int) -> None:
    if flags & 0x18 == 0x18:
        raise MalformedPacket("CONNECT with will QoS 3", "MQTT-3.1.2-14")
    if flags & 0xC0 == 0x40:
        raise MalformedPacket("CONNECT with a password and no user name", "MQTT-3.1.2-22")
    if level == MQTT_3_1:  # it calls the bits below unused, not reserved
        return
    if flags & 0x01:
        raise MalformedPacket("CONNECT with the reserved flag", "MQTT-3.1.2-3")
    if not flags & 0x04 and flags & 0x18:
        raise MalformedPacket("CONNECT with a will QoS and no will", "MQTT-3.1.2-13")
    if not flags & 0x04 and flags & 0x20:
        raise MalformedPacket("CONNECT with will retain and no will", "MQTT-3.1.2-15")


def _check_filters(filters: Sequence[object]) -> None:
    """Before one more is read, so that a packet of thousands costs no more than one of the most."""
    if len(filters) >= MQTT_FILTERS_MAX:
        raise TooManyFilters(f"more than {MQTT_FILTERS_MAX} topic filters in one packet")


def _decode_subscribe(fields: _Fields) -> Subscribe:
    packet_id = fields.packet_id("MQTT-2.3.1-1")
    filters: list[RequestedFilter] = []
    while not fields.is_at_end:
        _check_filters(filters)
        topic = fields.topic("MQTT-3.8.3-1")
        qos = fields.byte()
        if qos > 2:
            raise MalformedPacket(f"SUBSCRIBE asks for QoS byte {qos:#x}", "MQTT-3-8.3-4")  # the document's spelling
        filters.append(RequestedFilter(topic, qos))
    if not filters:
        raise MalformedPacket("SUBSCRIBE without a topic filter", "MQTT-3.8.3-3")
    return Subscribe(packet_id, tuple(filters))


def _decode_unsubscribe(fields: _Fields) -> Unsubscribe:
    packet_id = fields.packet_id("MQTT-2.3.1-1")
    filters: list[bytes] = []
    while not fields.is_at_end:
        _check_filters(filters)
        filters.append(fields.topic("MQTT-3.10.3-1"))
    if not filters:
        raise MalformedPacket("UNSUBSCRIBE without a topic filter", "MQTT-3.10.3-2")
    return Unsubscribe(packet_id, tuple(filters))


# Packet type: the flags its fixed header must have, the clause that says so, and its decoder.
_DECODERS: dict[int, tuple[int, str, Callable[[_Fields], Packet]]] = {
    1: (0, "MQTT-2.2.2-2", _decode_connect),
    4: (0, "MQTT-2.2.2-2", lambda fields: PubAck(fields.packet_id("MQTT-2.3.1-6"))),
    5: (0, "MQTT-2.2.2-2", lambda fields: PubRec(fields.packet_id("MQTT-2.3.1-6"))),
    6: (2, "MQTT-3.6.1-1", lambda fields: PubRel(fields.packet_id("MQTT-2.3.1-6"))),
    7: (0, "MQTT-2.2.2-2", lambda fields: PubComp(fields.packet_id("MQTT-2.3.1-6"))),
    8: (2, "MQTT-3.8.1-1", _decode_subscribe),
    10: (2, "MQTT-3.10.1-1", _decode_unsubscribe),
    12: (0, "MQTT-2.2.2-2", lambda _: PingRequest()),
    14: (0, "MQTT-3.14.1-1", lambda _: Disconnect()),
}
