"""The codec of version 5.0: what paho writes is read, what is written paho reads, and what breaks the standard is not
taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes

from config.limits import MQTT_PROPERTIES_MAX
from protocols.mqtt.decoding import PacketReader
from protocols.mqtt.encoding import encode_publish
from protocols.mqtt.fields import Fields
from protocols.mqtt.packets import (
    MQTT_5,
    Connect,
    MalformedPacket,
    Packet,
    ProtocolError,
    Publish,
    PublishWithProperties,
    Subscribe,
)
from protocols.mqtt.properties import In, decode_properties, encode_properties
from protocols.mqtt.values import NO_PROPERTIES, Properties
from tests.protocols.mqtt.packets_by_amqtt import decode_one, encoded_again, unhurried
from tests.protocols.mqtt.packets_by_paho import (
    connects_5,
    from_paho,
    packed,
    packets_5,
    properties_of,
    publishes_5,
)
from tests.protocols.mqtt.peers import PINGREQ
from tests.protocols.mqtt.test_decoding import cut, places
from tests.rows import each_row

_KINDS = {
    PacketTypes.CONNECT: In.CONNECT,
    PacketTypes.CONNACK: In.CONNACK,
    PacketTypes.PUBLISH: In.PUBLISH,
    PacketTypes.PUBACK: In.ANSWER,
    PacketTypes.SUBACK: In.ANSWER,
    PacketTypes.DISCONNECT: In.DISCONNECT,
    PacketTypes.WILLMESSAGE: In.WILL,
}


@unhurried
@given(connects_5() | packets_5)
def test_what_paho_writes_is_read_as_it_was_meant(pair: tuple[bytes, Packet]) -> None:
    wire, packet = pair
    assert decode_one(wire, level=MQTT_5) == packet


@unhurried
@given(st.data())
def test_properties_are_written_as_paho_writes_them_and_read_again(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(_KINDS)))
    ours = data.draw(properties_of(kind))
    wire = encode_properties(ours)
    assert from_paho(wire, kind) == ours
    assert wire == packed(ours, kind)
    if ours.authentication_data is None or ours.authentication_method is not None:
        assert decode_properties(Fields(wire), _KINDS[kind]) == ours


@unhurried
@given(publishes_5())
def test_a_publish_is_written_as_paho_writes_it(pair: tuple[bytes, Packet]) -> None:
    wire, packet = pair
    assert encoded_again(packet, level=MQTT_5) == wire


@unhurried
@given(st.lists(packets_5, max_size=6), places)
def test_packets_do_not_depend_on_how_the_stream_was_cut(pairs: list[tuple[bytes, Packet]], places: list[int]) -> None:
    reader = PacketReader(level=MQTT_5)
    packets: list[Packet] = []
    for piece in cut(b"".join(wire for wire, _ in pairs), places):
        packets += reader.feed(piece)
        while reader.is_behind:
            packets += reader.feed(b"")
    assert packets == [packet for _, packet in pairs]


@unhurried
@given(st.binary(max_size=200), st.lists(packets_5, min_size=1, max_size=3), st.data())
def test_garbage_gives_packets_or_a_protocol_error(
    garbage: bytes, pairs: list[tuple[bytes, Packet]], data: st.DataObject
) -> None:
    damaged = bytearray(b"".join(wire for wire, _ in pairs))
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    for stream in (garbage, bytes(damaged)):
        reader = PacketReader(level=MQTT_5)
        try:
            reader.feed(stream)
            while reader.is_behind:
                reader.feed(b"")
        except ProtocolError as fault:
            assert fault.code >= 0x80  # noqa: PT017 - both outcomes are right


def test_the_version_changes_behind_a_connect_in_the_same_bytes() -> None:
    connect = bytes.fromhex("10 0d 0004 4d515454 05 02 003c 00 0000")
    reader = PacketReader()
    (packet,) = reader.feed(connect + encode_publish(b"t", b"\x00x") + PINGREQ)
    assert isinstance(packet, Connect)
    assert reader.is_behind
    publish, _ = reader.feed(b"")
    assert publish == Publish(b"t", b"x", b"", 0, 0x30)


def test_a_topic_alias_may_stand_for_the_topic() -> None:
    wire = encode_publish(b"", b"x", properties=encode_properties(Properties(topic_alias=1)))
    assert decode_one(wire, level=MQTT_5) == PublishWithProperties(b"", b"x", b"", 0, 0x30, Properties(topic_alias=1))


def test_the_options_of_a_filter_are_read() -> None:
    packet = decode_one(bytes.fromhex("82 07 0001 00 000161 2d"), level=MQTT_5)
    assert isinstance(packet, Subscribe)
    assert packet.filters == ((b"a", 1, True, True, 2),)


def test_a_packet_has_a_bounded_number_of_properties() -> None:
    most = Properties(user_properties=(("a", "b"),) * MQTT_PROPERTIES_MAX)
    assert decode_properties(Fields(encode_properties(most)), In.PUBLISH) == most
    more = Properties(user_properties=(("a", "b"),) * (MQTT_PROPERTIES_MAX + 1))
    with pytest.raises(ProtocolError, match="more than 50") as caught:
        decode_properties(Fields(encode_properties(more)), In.PUBLISH)
    assert caught.value.code == 0x97


def test_packets_with_many_properties_make_a_turn_short() -> None:
    heavy = encode_publish(b"t", b"", properties=encode_properties(Properties(user_properties=(("a", "b"),) * 50)))
    reader = PacketReader(level=MQTT_5, packets_per_turn=27)
    assert len(reader.feed(heavy * 3)) == 2  # each takes the place of 26
    assert reader.is_behind
    assert len(reader.feed(b"")) == 1
    assert not reader.is_behind


BROKEN = [
    # Properties (2.2.2)
    ("an unknown property", "30 06 0001 74 02 7f00", 0x81),
    ("a property of another packet", "30 08 0001 74 04 21 0001 7b", 0x81),
    ("a property twice", "30 08 0001 74 04 0100 0101", 0x82),
    ("a property that ends behind the others", "30 06 0001 74 02 0200", 0x81),
    ("a property length behind the packet", "30 05 0001 74 09 01", 0x81),
    ("a property length in five bytes", "30 08 0001 74 8080808001", 0x81),
    ("a property length in more bytes than it needs", "30 05 0001 74 8000", 0x81),
    ("payload format 2", "30 06 0001 74 02 0102", 0x82),
    ("a content type that is not UTF-8", "30 08 0001 74 04 03 0001 ff", 0x81),
    ("a user property with U+0000", "30 0a 0001 74 06 26 000100 0000", 0x81),
    ("a response topic with a wildcard", "30 08 0001 74 04 08 0001 23", 0x82),
    ("a response topic that is not UTF-8", "30 08 0001 74 04 08 0001 ff", 0x81),
    ("topic alias 0", "30 07 0001 74 03 23 0000", 0x94),
    ("no topic and no alias", "30 03 0000 00", 0x82),
    ("no topic and properties without an alias", "30 05 0000 02 0100", 0x82),
    ("a subscription identifier in a client's PUBLISH", "30 06 0001 74 02 0b01", 0x82),
    ("subscription identifier 0", "82 09 0001 02 0b00 000161 00", 0x82),
    ("two subscription identifiers", "82 0b 0001 04 0b01 0b02 000161 00", 0x82),
    # Fields
    ("QoS 3 in a subscription", "82 07 0001 00 000161 03", 0x81),
    ("retain handling 3", "82 07 0001 00 000161 30", 0x82),
    ("reserved bits in the options", "82 07 0001 00 000161 40", 0x81),
    ("No Local on a shared subscription", "82 10 0001 00 000a 2473686172652f672f61 04", 0x82),
    ("a SUBSCRIBE without a filter", "82 03 0001 00", 0x81),
    ("an UNSUBSCRIBE without a filter", "a2 03 0001 00", 0x81),
    ("a reason that PUBACK has not", "40 03 0001 92", 0x82),
    ("a reason that PUBREL has not", "62 03 0001 80", 0x82),
    ("a reason that only servers have", "e0 01 8d", 0x82),
    ("bytes behind DISCONNECT", "e0 03 00 00 00", 0x81),
    ("flags on AUTH", "f1 00", 0x81),
    ("AUTH with the reason of another packet", "f0 01 04", 0x82),
    ("receive maximum 0", "10 10 0004 4d515454 05 02 003c 03 210000 0000", 0x82),
    ("maximum packet size 0", "10 12 0004 4d515454 05 02 003c 05 2700000000 0000", 0x82),
    ("authentication data without a method", "10 10 0004 4d515454 05 02 003c 03 160000 0000", 0x82),
    ("bytes behind CONNECT", "10 0e 0004 4d515454 05 02 003c 00 0000 00", 0x81),
    ("a will QoS without a will", "10 0d 0004 4d515454 05 0a 003c 00 0000", 0x81),
    ("will QoS 3", "10 14 0004 4d515454 05 1e 003c 00 0000 00 000174 000170", 0x81),
    ("will retain without a will", "10 0d 0004 4d515454 05 22 003c 00 0000", 0x81),
    ("an announced password is missing", "10 0d 0004 4d515454 05 42 003c 00 0000", 0x81),
]


@each_row(("data", "code"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_what_breaks_the_standard_has_its_reason_code(data: str, code: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_one(bytes.fromhex(data), level=MQTT_5)
    assert caught.value.code == code
    assert caught.value.is_of_connect is data.startswith("10")
    assert isinstance(caught.value, MalformedPacket) is (code == 0x81)


def test_a_packet_without_properties_shares_one_object() -> None:
    assert decode_properties(Fields(b"\x00"), In.PUBLISH) is NO_PROPERTIES
    packet = decode_one(b"\x40\x02\x00\x01", level=MQTT_5)
    assert getattr(packet, "properties", None) is NO_PROPERTIES
