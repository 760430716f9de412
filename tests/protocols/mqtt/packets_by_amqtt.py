"""amqtt's codec as the independent one, and packets of every kind written by it."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from amqtt.adapters import BufferReader
from amqtt.mqtt import packet_class
from amqtt.mqtt.connect import ConnectPacket, ConnectPayload, ConnectVariableHeader
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.mqtt.pingreq import PingReqPacket
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.pubcomp import PubcompPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.pubrec import PubrecPacket
from amqtt.mqtt.pubrel import PubrelPacket
from amqtt.mqtt.subscribe import SubscribePacket
from amqtt.mqtt.unsubscribe import UnsubscribePacket
from hypothesis import settings
from hypothesis import strategies as st

from protocols.mqtt.decoding import PacketReader
from protocols.mqtt.encoding import encode_publish
from protocols.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Connect,
    Disconnect,
    Packet,
    PingRequest,
    PubAck,
    PubComp,
    Publish,
    PublishWithProperties,
    PubRec,
    PubRel,
    RequestedFilter,
    Subscribe,
    Unsubscribe,
    Will,
)
from protocols.mqtt.properties import encode_properties
from protocols.mqtt.values import NO_PROPERTIES

T = TypeVar("T")

unhurried = settings(deadline=None)  # a busy machine is no failure

TOPIC = b"/v1.1/messages/0123456789abcdef0123456789abcdef"
CONNECT = bytes.fromhex("10 0c 0004 4d515454 04 02 003c 0000")  # MQTT, level 4, clean session, 60 s, no client id


def decode_one(data: bytes, *, level: int = MQTT_3_1_1) -> Packet:
    (packet,) = PacketReader(level=level).feed(data)
    return packet


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of amqtt's codec; over a buffer it never waits."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("amqtt's codec waited for input")


def amqtt_decode(data: bytes) -> Any:
    reader = BufferReader(data)
    header = finished(MQTTFixedHeader.from_stream(reader))
    assert header is not None
    packet = finished(packet_class(header).from_stream(reader, fixed_header=header))
    assert finished(reader.read()) == b"", "amqtt left bytes"
    return packet


def amqtt_connect(
    *,
    name: str,
    level: int,
    client_id: str,
    clean: bool,
    keep_alive: int,
    will: Will | None,
    user_name: str | None,
    password: str | None,
) -> bytes:
    header = ConnectVariableHeader(keep_alive=keep_alive, proto_name=name, proto_level=level)
    header.clean_session_flag = clean
    payload = ConnectPayload(client_id=client_id)
    if will is not None:
        header.will_flag, header.will_qos, header.will_retain_flag = True, will.qos, will.retain
        payload.will_topic, payload.will_message = will.topic.decode(), will.payload
    if user_name is not None:
        header.username_flag, payload.username = True, user_name
    if password is not None:
        header.password_flag, payload.password = True, password
    return bytes(ConnectPacket(variable_header=header, payload=payload).to_bytes())


packet_ids = st.integers(1, 0xFFFF)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40)
names = texts.filter(bool)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\x00+#"), min_size=1, max_size=60)
payloads = st.binary(max_size=300)
qualities = st.sampled_from([0, 1, 2])


@st.composite
def publishes(draw: st.DrawFn) -> tuple[bytes, Packet]:
    topic, payload, qos = draw(topics), draw(payloads), draw(qualities)
    dup, retain = draw(st.booleans()) and qos > 0, draw(st.booleans())
    number = draw(packet_ids) if qos else None
    wire = PublishPacket.build(topic, payload, number, dup, qos, retain).to_bytes()
    packet_id = number.to_bytes(2) if number else b""
    return wire, Publish(topic.encode(), payload, packet_id, qos, 0x30 | dup << 3 | qos << 1 | retain)


@st.composite
def connects(draw: st.DrawFn) -> tuple[bytes, Packet]:
    name, level = draw(st.sampled_from([("MQIsdp", 3), ("MQTT", 4)]))
    will = draw(
        st.none()
        | st.builds(Will, topics.map(str.encode), st.binary(min_size=1, max_size=50), qualities, st.booleans())
    )
    user_name = draw(st.none() | texts)
    password = None if user_name is None else draw(st.none() | texts)
    client_id, keep_alive, clean = draw(texts), draw(st.integers(0, 0xFFFF)), draw(st.booleans())
    wire = amqtt_connect(
        name=name,
        level=level,
        client_id=client_id,
        clean=clean,
        keep_alive=keep_alive,
        will=will,
        user_name=user_name,
        password=password,
    )
    return wire, Connect(
        level=level,
        client_id=client_id,
        is_clean=clean,
        keep_alive_seconds=keep_alive,
        will=will,
        user_name=user_name,
        password=None if password is None else password.encode(),
    )


def acknowledged(theirs: Any, ours: Any) -> st.SearchStrategy[tuple[bytes, Packet]]:
    return packet_ids.map(lambda number: (theirs.build(number).to_bytes(), ours(number.to_bytes(2))))


def subscribed(number: int, filters: list[tuple[str, int]]) -> tuple[bytes, Packet]:
    requested = tuple(RequestedFilter(topic.encode(), qos) for topic, qos in filters)
    return SubscribePacket.build(filters, number).to_bytes(), Subscribe(number.to_bytes(2), requested)


def unsubscribed(number: int, filters: list[str]) -> tuple[bytes, Packet]:
    names = tuple(topic.encode() for topic in filters)
    return UnsubscribePacket.build(filters, number).to_bytes(), Unsubscribe(number.to_bytes(2), names)


client_packets: st.SearchStrategy[tuple[bytes, Packet]] = st.one_of(
    publishes(),
    connects(),
    acknowledged(PubackPacket, PubAck),
    acknowledged(PubrecPacket, PubRec),
    acknowledged(PubrelPacket, PubRel),
    acknowledged(PubcompPacket, PubComp),
    st.builds(subscribed, packet_ids, st.lists(st.tuples(names, qualities), min_size=1, max_size=5)),
    st.builds(unsubscribed, packet_ids, st.lists(names, min_size=1, max_size=5)),
    st.just((PingReqPacket().to_bytes(), PingRequest())),
    st.just((DisconnectPacket().to_bytes(), Disconnect())),
)


def encoded_again(packet: Packet, *, level: int = MQTT_3_1_1) -> bytes:
    """A PUBLISH, as it is written to a peer that speaks this version."""
    assert isinstance(packet, Publish)
    told = packet.properties if isinstance(packet, PublishWithProperties) else NO_PROPERTIES
    properties = encode_properties(told) if level == MQTT_5 else b""
    return encode_publish(
        packet.topic,
        packet.payload,
        qos=packet.qos,
        packet_id=packet.packet_id,
        dup=packet.head & 0x08 != 0,
        retain=packet.head & 0x01 != 0,
        properties=properties,
    )
