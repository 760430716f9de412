"""The packet reader, compared with amqtt's codec, with streams cut and damaged anywhere, and clause by clause."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from config.limits import MQTT_FILTERS_MAX, MQTT_PACKET_BYTES, PACKETS_PER_TURN
from protocols.mqtt.decoding import PacketReader
from protocols.mqtt.encoding import encode_publish
from protocols.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Connect,
    MalformedPacket,
    Packet,
    PacketTooLarge,
    PingRequest,
    ProtocolError,
    Publish,
    PubRel,
    ReasonCode,
    RequestedFilter,
    Subscribe,
    TooManyFilters,
    Unsubscribe,
    UnsupportedConnect,
)
from tests.protocols.mqtt.packets_by_amqtt import (
    CONNECT,
    TOPIC,
    client_packets,
    decode_one,
    encoded_again,
    publishes,
    unhurried,
)
from tests.protocols.mqtt.peers import PINGREQ, subscribe, unsubscribe
from tests.rows import each_row


@unhurried
@given(client_packets)
def test_what_amqtt_writes_is_read_as_it_was_meant(pair: tuple[bytes, Packet]) -> None:
    wire, packet = pair
    assert decode_one(bytes(wire)) == packet


# --- Any cut, any damage --------------------------------------------------------------------------------------------

Outcome = tuple[list[Packet], tuple[type[ProtocolError], str, str] | None]


def outcome_of(pieces: Sequence[bytes]) -> Outcome:
    reader = PacketReader()
    packets: list[Packet] = []
    for piece in pieces:
        try:
            packets += reader.feed(piece)
            while reader.is_behind:
                packets += reader.feed(b"")
        except ProtocolError as fault:
            packets += fault.packets
            return packets, (type(fault), fault.reason, fault.clause)
    return packets, None


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


streams = st.lists(client_packets, max_size=8).map(lambda pairs: b"".join(bytes(wire) for wire, _ in pairs))
places = st.lists(st.integers(0, 600), max_size=12)


@st.composite
def damaged_streams(draw: st.DrawFn) -> bytes:
    stream = bytearray(draw(streams.filter(bool)))
    for index, byte in draw(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4)):
        stream[index % len(stream)] = byte
    return bytes(stream)


@unhurried
@given(st.lists(client_packets, max_size=8), places)
def test_packets_do_not_depend_on_how_the_stream_was_cut(pairs: list[tuple[bytes, Packet]], places: list[int]) -> None:
    # A CONNECT of 3.1 makes the reader more lenient for what follows, never less: amqtt only writes strict packets.
    stream = b"".join(bytes(wire) for wire, _ in pairs)
    assert outcome_of(cut(stream, places)) == ([packet for _, packet in pairs], None)


@unhurried
@given(streams)
def test_a_stream_byte_by_byte_gives_the_same_packets(stream: bytes) -> None:
    assert outcome_of([stream[index : index + 1] for index in range(len(stream))]) == outcome_of([stream])


@unhurried
@given(st.one_of(st.binary(max_size=200), damaged_streams()), places)
@example(b"\x32\x05\x00\x00\x00\x01x", [])
@example(b"\x30\x00", [])
@example(b"\x30\x01\x00", [1])
@example(b"\x30\xff\xff\xff", [2])
def test_garbage_gives_packets_or_a_protocol_error_and_the_same_ones_for_any_cut(
    data: bytes, places: list[int]
) -> None:
    assert outcome_of(cut(data, places)) == outcome_of([data])


def test_one_turn_has_a_bounded_number_of_packets_and_the_rest_stands_for_the_next() -> None:
    reader = PacketReader()
    assert reader.feed(PINGREQ * (2 * PACKETS_PER_TURN + 1)) == [PingRequest()] * PACKETS_PER_TURN
    assert reader.is_behind
    assert reader.feed(b"") == [PingRequest()] * PACKETS_PER_TURN
    assert reader.feed(PINGREQ) == [PingRequest()] * 2
    assert not reader.is_behind


@pytest.mark.parametrize("packet", [subscribe(b"a", b"b"), unsubscribe(b"a", b"b")])
def test_a_packet_with_filters_ends_the_turn(packet: bytes) -> None:
    reader = PacketReader()
    assert len(reader.feed(PINGREQ + packet + packet)) == 2
    assert reader.is_behind
    assert len(reader.feed(b"")) == 1
    assert not reader.is_behind


@pytest.mark.parametrize("rest", [b"\xc0", b"\x82\x80", b"\x82\x08\x00"])
def test_the_beginning_of_a_packet_behind_a_turn_waits_for_its_rest(rest: bytes) -> None:
    """Else the reader would be asked again and again for what has not come."""
    reader = PacketReader()
    assert len(reader.feed(subscribe(b"a") + rest)) == 1
    assert reader.feed(b"") == []
    assert not reader.is_behind


@pytest.mark.parametrize("build", [subscribe, unsubscribe])
def test_a_packet_has_a_bounded_number_of_filters(build: Callable[..., bytes]) -> None:
    most = [b"/v1.1/actions/%d" % number for number in range(MQTT_FILTERS_MAX)]
    (packet,) = PacketReader().feed(build(*most))
    assert isinstance(packet, Subscribe | Unsubscribe)
    assert len(packet.filters) == MQTT_FILTERS_MAX
    with pytest.raises(TooManyFilters, match="more than 50 topic filters in one packet"):
        PacketReader().feed(build(*most, b"one more"))


@unhurried
@given(publishes())
def test_a_publish_survives_the_round_trip(pair: tuple[bytes, Packet]) -> None:
    _, packet = pair
    assert decode_one(encoded_again(packet)) == packet


# --- The reader -----------------------------------------------------------------------------------------------------


def test_valid_packets_before_a_fault_are_returned_with_it() -> None:
    reader = PacketReader()
    with pytest.raises(MalformedPacket) as caught:
        reader.feed(CONNECT + b"\xc0\x00" + b"\xf0\x00" + b"\xc0\x00")
    assert [type(packet) for packet in caught.value.packets] == [Connect, PingRequest]


def test_a_reader_that_has_failed_fails_again_and_returns_packets_once() -> None:
    reader = PacketReader()
    with pytest.raises(PacketTooLarge):
        reader.feed(b"\xc0\x00\x30\xff\xff\xff\x7f")
    with pytest.raises(PacketTooLarge) as caught:
        reader.feed(b"\xc0\x00")
    assert caught.value.packets == ()


def test_received_bytes_may_be_a_bytearray() -> None:
    (packet,) = PacketReader().feed(bytearray(encode_publish(TOPIC, b"{}")))
    assert isinstance(packet, Publish)
    assert (type(packet.topic), type(packet.payload)) == (bytes, bytes)


def test_messages_to_one_topic_share_one_topic_object() -> None:
    reader = PacketReader()
    first, second = reader.feed(encode_publish(TOPIC, b"1") + encode_publish(TOPIC, b"2"))
    (third,) = reader.feed(encode_publish(TOPIC, b"3"))
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert isinstance(third, Publish)
    assert first.topic is second.topic is third.topic


@each_row("payload_size", [0, 1, 76, 77, 78, 79, 80, 16_300, 16_331, 16_332, 16_333, 16_334, 60_000])
def test_a_publish_of_any_length_field_size(payload_size: int) -> None:
    wire = encode_publish(TOPIC, b"x" * payload_size, qos=1, packet_id=b"\x00\x01")
    assert decode_one(wire) == Publish(TOPIC, b"x" * payload_size, b"\x00\x01", 1, 0x32)


def test_a_packet_of_exactly_the_maximum_is_taken() -> None:
    wire = encode_publish(b"t", b"x" * (MQTT_PACKET_BYTES - 7))
    assert len(wire) == MQTT_PACKET_BYTES
    assert isinstance(decode_one(wire), Publish)


@pytest.mark.parametrize("arrived", [4, 5, 100, MQTT_PACKET_BYTES + 1])
def test_a_packet_over_the_maximum_is_refused_from_its_length_alone(arrived: int) -> None:
    wire = encode_publish(b"t", b"x" * (MQTT_PACKET_BYTES - 6))
    assert len(wire) == MQTT_PACKET_BYTES + 1
    with pytest.raises(PacketTooLarge, match="65537"):
        PacketReader().feed(wire[:arrived])


def test_the_maximum_can_be_set() -> None:
    with pytest.raises(PacketTooLarge):
        PacketReader(maximum_packet_size=20).feed(encode_publish(TOPIC, b""))


def test_a_remaining_length_with_leading_zeros_is_still_a_length() -> None:
    assert decode_one(b"\xc0\x80\x80\x80\x00") == PingRequest()


def test_a_complete_packet_is_returned_without_waiting_for_more_bytes() -> None:
    reader = PacketReader()
    assert reader.feed(b"\xc0\x80") == []
    assert reader.feed(b"\x00\x30\xff\xff") == [PingRequest()]
    with pytest.raises(PacketTooLarge):
        reader.feed(b"\x7f")


@each_row("qos", [0, 1, 2])
@each_row("topic", [b"/+", b"/#", b"#", b"a+", b"$SYS/#"])
@each_row("level", [MQTT_3_1, MQTT_3_1_1, MQTT_5])
def test_a_message_to_a_topic_with_wildcards_is_malformed(topic: bytes, qos: int, level: int) -> None:
    properties = b"\x00" if level == MQTT_5 else b""
    usual, wild = (
        encode_publish(to, b"{}", qos=qos, packet_id=b"\0\1" if qos else b"", properties=properties)
        for to in (b"a", topic)
    )
    reader = PacketReader(level=level)
    with pytest.raises(MalformedPacket) as caught:
        reader.feed(usual + wild + usual)
    assert (caught.value.clause, caught.value.code) == ("MQTT-3.3.2-2", ReasonCode.TOPIC_NAME_INVALID)
    assert len(caught.value.packets) == 1


# --- CONNECT and its versions ---------------------------------------------------------------------------------------


@each_row(
    ("name", "level"),
    [(b"MQTT", 6), (b"MQTT", 3), (b"MQIsdp", 4), (b"MQTT", 0x84), (b"MQIsdp", 0x83), (b"MQTT", 0)],
)
def test_a_connect_of_another_version_is_recognised(name: bytes, level: int) -> None:
    body = len(name).to_bytes(2) + name + bytes((level,)) + b"whatever that version has here"
    assert decode_one(bytes((0x10, len(body))) + body) == UnsupportedConnect(level)


def connect(flags: int, rest: bytes, *, level: int = MQTT_3_1_1) -> bytes:
    name = b"\x00\x06MQIsdp" if level == MQTT_3_1 else b"\x00\x04MQTT"
    body = name + bytes((level, flags)) + b"\x00\x00" + rest
    return bytes((0x10, len(body))) + body


@pytest.mark.parametrize(
    ("flags", "rest", "user_name", "password"),
    [
        (0xC2, b"\x00\x00", None, None),
        (0xC2, b"\x00\x00\x00\x01u", "u", None),
        (0xC2, b"\x00\x00\x00\x01u\x00\x01p", "u", b"p"),
    ],
)
def test_version_3_1_allows_announced_credentials_to_be_missing(
    flags: int, rest: bytes, user_name: str | None, password: bytes | None
) -> None:
    packet = decode_one(connect(flags, rest, level=MQTT_3_1))
    assert isinstance(packet, Connect)
    assert (packet.user_name, packet.password) == (user_name, password)


@pytest.mark.parametrize("flags", [0x01, 0x08, 0x20])
def test_version_3_1_has_unused_connect_flags_where_3_1_1_has_reserved_ones(flags: int) -> None:
    assert isinstance(decode_one(connect(flags, b"\x00\x00", level=MQTT_3_1)), Connect)


@pytest.mark.parametrize(
    ("data", "packet"),
    [
        (b"\x6a\x02\x00\x01", PubRel(b"\x00\x01")),
        (b"\x8a\x06\x00\x01\x00\x01a\x00", Subscribe(b"\x00\x01", (RequestedFilter(b"a", 0),))),
        (b"\xaa\x05\x00\x01\x00\x01a", Unsubscribe(b"\x00\x01", (b"a",))),
        (b"\x38\x03\x00\x01a", Publish(b"a", b"", b"", 0, 0x38)),
    ],
)
def test_version_3_1_allows_dup_on_repeated_packets(data: bytes, packet: Packet) -> None:
    assert decode_one(data, level=MQTT_3_1) == packet
    with pytest.raises(MalformedPacket):
        decode_one(data, level=MQTT_3_1_1)


def test_version_3_1_allows_dup_on_no_other_packet() -> None:
    with pytest.raises(MalformedPacket):
        decode_one(b"\xc8\x00", level=MQTT_3_1)


def test_the_version_is_taken_from_the_connect_in_the_same_bytes() -> None:
    reader = PacketReader()
    old_connect = connect(0x02, b"\x00\x00", level=MQTT_3_1)
    assert len(reader.feed(old_connect + b"\x6a\x02\x00\x01")) == 2
    assert reader.level == MQTT_3_1


def test_a_password_is_bytes_and_a_byte_order_mark_stays() -> None:
    packet = decode_one(connect(0xC2, b"\x00\x03\xef\xbb\xbf\x00\x01u\x00\x02\xff\x00"))  # [MQTT-1.5.3-3]
    assert isinstance(packet, Connect)
    assert (packet.client_id, packet.password) == ("\ufeff", b"\xff\x00")


# --- What is malformed, clause by clause ----------------------------------------------------------------------------

MALFORMED = [
    # Fixed header
    ("the remaining length has five bytes", "30 8080808001", ""),
    ("the remaining length says that a fifth byte follows", "30 80808080", ""),
    ("reserved packet type 0", "00 00", ""),
    ("reserved packet type 15", "f0 00", ""),
    ("CONNACK from a client", "20 02 0000", ""),
    ("SUBACK from a client", "90 03 0001 00", ""),
    ("UNSUBACK from a client", "b0 02 0001", ""),
    ("PINGRESP from a client", "d0 00", ""),
    ("flags on CONNECT", "11 0c 0004 4d515454 04 02 003c 0000", "MQTT-2.2.2-2"),
    ("flags on PUBACK", "42 02 0001", "MQTT-2.2.2-2"),
    ("flags on PUBREC", "52 02 0001", "MQTT-2.2.2-2"),
    ("flags on PUBCOMP", "72 02 0001", "MQTT-2.2.2-2"),
    ("flags on PINGREQ", "c1 00", "MQTT-2.2.2-2"),
    ("no flags on PUBREL", "60 02 0001", "MQTT-3.6.1-1"),
    ("DUP on PUBREL", "6a 02 0001", "MQTT-3.6.1-1"),
    ("no flags on SUBSCRIBE", "80 06 0001 000161 00", "MQTT-3.8.1-1"),
    ("no flags on UNSUBSCRIBE", "a0 05 0001 000161", "MQTT-3.10.1-1"),
    ("flags on DISCONNECT", "e8 00", "MQTT-3.14.1-1"),
    # CONNECT
    ("another protocol", "10 0c 0004 4d515458 04 02 003c 0000", "MQTT-3.1.2-1"),
    ("a protocol name in lower case", "10 0c 0004 6d717474 04 02 003c 0000", "MQTT-3.1.2-1"),
    ("the reserved connect flag", "10 0c 0004 4d515454 04 03 003c 0000", "MQTT-3.1.2-3"),
    ("a will QoS without a will", "10 0c 0004 4d515454 04 0a 003c 0000", "MQTT-3.1.2-13"),
    ("will QoS 3", "10 12 0004 4d515454 04 1e 003c 0000 000174 000170", "MQTT-3.1.2-14"),
    ("will retain without a will", "10 0c 0004 4d515454 04 22 003c 0000", "MQTT-3.1.2-15"),
    ("a password without a user name", "10 0f 0004 4d515454 04 42 003c 0000 000170", "MQTT-3.1.2-22"),
    ("a client id that is not UTF-8", "10 0d 0004 4d515454 04 02 003c 0001ff", "MQTT-3.1.3-4"),
    ("a client id with U+0000", "10 0d 0004 4d515454 04 02 003c 000100", "MQTT-1.5.3-2"),
    ("a will topic that is not UTF-8", "10 12 0004 4d515454 04 06 003c 0000 0001ff 000170", "MQTT-3.1.3-10"),
    ("an empty will topic", "10 11 0004 4d515454 04 06 003c 0000 0000 000170", "MQTT-4.7.3-1"),
    ("a user name that is not UTF-8", "10 0f 0004 4d515454 04 82 003c 0000 0001c0", "MQTT-3.1.3-11"),
    ("a user name with a surrogate", "10 11 0004 4d515454 04 82 003c 0000 0003eda080", "MQTT-3.1.3-11"),
    ("an announced user name is missing", "10 0c 0004 4d515454 04 82 003c 0000", "MQTT-4.8.0-1"),
    ("an announced password is missing", "10 0f 0004 4d515454 04 c2 003c 0000 000175", "MQTT-4.8.0-1"),
    ("no client id", "10 0a 0004 4d515454 04 02 003c", "MQTT-4.8.0-1"),
    ("an empty CONNECT", "10 00", "MQTT-4.8.0-1"),
    ("bytes behind CONNECT", "10 0d 0004 4d515454 04 02 003c 0000 00", "MQTT-4.8.0-1"),
    # PUBLISH
    ("QoS 3", "36 05 0001 74 0001", "MQTT-3.3.1-4"),
    ("QoS 3 and DUP", "3e 05 0001 74 0001", "MQTT-3.3.1-4"),
    ("DUP with QoS 0", "38 03 0001 74", "MQTT-3.3.1-2"),
    ("packet id 0 with QoS 1", "32 05 0001 74 0000", "MQTT-2.3.1-1"),
    ("packet id 0 with QoS 2", "34 05 0001 74 0000", "MQTT-2.3.1-1"),
    ("a topic that is not UTF-8", "30 03 0001 ff", "MQTT-3.3.2-1"),
    ("a topic with a surrogate", "30 05 0003 eda080", "MQTT-3.3.2-1"),
    ("a topic with U+0000", "30 04 0002 7400", "MQTT-1.5.3-2"),
    ("an empty topic", "30 03 0000 7b", "MQTT-4.7.3-1"),
    ("an empty topic with QoS 1", "32 04 0000 0001", "MQTT-4.7.3-1"),
    ("an empty PUBLISH", "30 00", "MQTT-4.8.0-1"),
    ("a topic longer than the packet", "30 03 0002 74", "MQTT-4.8.0-1"),
    ("a topic longer than the packet, with another behind", "30 03 0002 74 c000", "MQTT-4.8.0-1"),
    ("half a packet id", "32 04 0001 74 00", "MQTT-4.8.0-1"),
    ("no packet id", "32 03 0001 74", "MQTT-4.8.0-1"),
    # Acknowledgements
    ("PUBACK with packet id 0", "40 02 0000", "MQTT-2.3.1-6"),
    ("PUBREC with packet id 0", "50 02 0000", "MQTT-2.3.1-6"),
    ("PUBREL with packet id 0", "62 02 0000", "MQTT-2.3.1-6"),
    ("PUBCOMP with packet id 0", "70 02 0000", "MQTT-2.3.1-6"),
    ("PUBACK without packet id", "40 00", "MQTT-4.8.0-1"),
    ("PUBREL with half a packet id", "62 01 00", "MQTT-4.8.0-1"),
    ("bytes behind PUBACK", "40 03 0001 00", "MQTT-4.8.0-1"),
    # SUBSCRIBE and UNSUBSCRIBE
    ("SUBSCRIBE with packet id 0", "82 06 0000 000161 00", "MQTT-2.3.1-1"),
    ("SUBSCRIBE without a filter", "82 02 0001", "MQTT-3.8.3-3"),
    ("SUBSCRIBE with QoS 3", "82 06 0001 000161 03", "MQTT-3-8.3-4"),
    ("SUBSCRIBE with reserved bits", "82 06 0001 000161 80", "MQTT-3-8.3-4"),
    ("SUBSCRIBE without a QoS", "82 05 0001 000161", "MQTT-4.8.0-1"),
    ("SUBSCRIBE to no UTF-8", "82 06 0001 0001ff 00", "MQTT-3.8.3-1"),
    ("SUBSCRIBE to U+0000", "82 06 0001 000100 00", "MQTT-1.5.3-2"),
    ("SUBSCRIBE to an empty filter", "82 05 0001 0000 00", "MQTT-4.7.3-1"),
    ("SUBSCRIBE ends inside its second filter", "82 08 0001 000161 00 0001", "MQTT-4.8.0-1"),
    ("UNSUBSCRIBE with packet id 0", "a2 05 0000 000161", "MQTT-2.3.1-1"),
    ("UNSUBSCRIBE without a filter", "a2 02 0001", "MQTT-3.10.3-2"),
    ("UNSUBSCRIBE from no UTF-8", "a2 05 0001 0001ff", "MQTT-3.10.3-1"),
    ("UNSUBSCRIBE from an empty filter", "a2 04 0001 0000", "MQTT-4.7.3-1"),
    ("UNSUBSCRIBE ends inside a filter", "a2 05 0001 000261", "MQTT-4.8.0-1"),
    # Packets without content
    ("bytes in PINGREQ", "c0 01 00", "MQTT-4.8.0-1"),
    ("bytes in DISCONNECT", "e0 01 00", "MQTT-4.8.0-1"),
]


@each_row(("data", "clause"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED])
def test_malformed(data: str, clause: str) -> None:
    with pytest.raises(MalformedPacket) as caught:
        PacketReader().feed(bytes.fromhex(data))
    assert caught.value.clause == clause
    assert caught.value.packets == []


@pytest.mark.parametrize("bad", ["32 05 0001 74 0000", "36 05 0001 74 0001", "38 03 0001 74", "30 03 0000 7b"])
def test_a_known_topic_does_not_hide_other_faults(bad: str) -> None:
    reader = PacketReader()
    reader.feed(encode_publish(b"t", b"{}"))
    with pytest.raises(MalformedPacket):
        reader.feed(bytes.fromhex(bad))
