"""paho's codec as the independent one for version 5.0, and packets of 5.0 written by it."""

from typing import Any

import msgspec
from hypothesis import strategies as st
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.reasoncodes import ReasonCode as PahoReason
from paho.mqtt.subscribeoptions import SubscribeOptions

from protocols.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    Publish,
    PublishWithProperties,
    RequestedFilter,
    Subscribe,
    Unsubscribe,
    Will,
)
from protocols.mqtt.values import NO_PROPERTIES, Properties
from tests.protocols.mqtt.packets_by_amqtt import names, packet_ids, payloads, qualities, texts, topics

_bytes = st.integers(0, 1)
_shorts = st.integers(1, 0xFFFF)
_longs = st.integers(1, 0xFFFF_FFFF)
_pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)

#: Each property: paho's name for it, its values, and the packets of paho's that may have it.
TABLE: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "payload_format": ("PayloadFormatIndicator", _bytes),
    "message_expiry": ("MessageExpiryInterval", _longs),
    "content_type": ("ContentType", texts),
    "response_topic": ("ResponseTopic", topics),
    "correlation_data": ("CorrelationData", st.binary(max_size=40)),
    "subscription_ids": ("SubscriptionIdentifier", st.integers(1, 0x0FFF_FFFF).map(lambda one: (one,))),
    "session_expiry": ("SessionExpiryInterval", _longs),
    "assigned_client_id": ("AssignedClientIdentifier", texts),
    "server_keep_alive": ("ServerKeepAlive", _shorts),
    "authentication_method": ("AuthenticationMethod", texts),
    "authentication_data": ("AuthenticationData", st.binary(max_size=40)),
    "request_problem_information": ("RequestProblemInformation", _bytes),
    "will_delay": ("WillDelayInterval", _longs),
    "request_response_information": ("RequestResponseInformation", _bytes),
    "response_information": ("ResponseInformation", texts),
    "server_reference": ("ServerReference", texts),
    "reason_string": ("ReasonString", texts),
    "receive_maximum": ("ReceiveMaximum", _shorts),
    "topic_alias_maximum": ("TopicAliasMaximum", _shorts),
    "topic_alias": ("TopicAlias", _shorts),
    "maximum_qos": ("MaximumQoS", _bytes),
    "retain_available": ("RetainAvailable", _bytes),
    "user_properties": ("UserProperty", _pairs),
    "maximum_packet_size": ("MaximumPacketSize", st.integers(1, 0x0FFF_FFFF)),  # paho takes no larger one
    "wildcard_available": ("WildcardSubscriptionAvailable", _bytes),
    "subscription_ids_available": ("SubscriptionIdentifierAvailable", _bytes),
    "shared_available": ("SharedSubscriptionAvailable", _bytes),
}


def paho_properties(packet_type: int) -> PahoProperties:
    return PahoProperties(packet_type)  # type: ignore[no-untyped-call]


_SPACED = {name.replace(" ", ""): number for name, number in paho_properties(PacketTypes.CONNECT).names.items()}
_ALLOWED = paho_properties(PacketTypes.CONNECT).properties


def fields_of(packet_type: int) -> list[str]:
    """The properties that such a packet may have, by paho's table."""
    return [field for field, (name, _) in TABLE.items() if packet_type in _ALLOWED[_SPACED[name]][1]]


def to_paho(properties: Properties, packet_type: int) -> PahoProperties:
    theirs = paho_properties(packet_type)
    for field, (name, _) in TABLE.items():
        value = getattr(properties, field)
        if field == "subscription_ids":
            value = value[0] if value else None
        if field == "user_properties":
            value = list(value) or None
        if value is not None:
            setattr(theirs, name, value)
    return theirs


def packed(properties: Properties, packet_type: int) -> bytes:
    return bytes(to_paho(properties, packet_type).pack())  # type: ignore[no-untyped-call]


def from_paho(wire: bytes, packet_type: int) -> Properties:
    theirs = paho_properties(packet_type)
    theirs.unpack(wire)  # type: ignore[no-untyped-call]
    found: dict[str, Any] = {}
    for field, (name, _) in TABLE.items():
        if hasattr(theirs, name):
            value = getattr(theirs, name)
            found[field] = tuple(map(tuple, value)) if field == "user_properties" else value
            if field == "subscription_ids":
                found[field] = tuple(value) if isinstance(value, list) else (value,)
    return Properties(**found)


def properties_of(packet_type: int, *, without: frozenset[str] = frozenset()) -> st.SearchStrategy[Properties]:
    wanted = {field: TABLE[field][1] for field in fields_of(packet_type) if field not in without}
    some = st.fixed_dictionaries({}, optional=wanted)
    return some.map(lambda found: Properties(**found)).map(lambda one: NO_PROPERTIES if one == NO_PROPERTIES else one)


class _NoSocket:
    """paho writes nothing without a socket."""

    def close(self) -> None:
        pass


class Writer(Client):
    """A paho client whose packets are kept instead of sent."""

    def __init__(self, client_id: str = "", **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5, **options)
        self.written = b""
        self._sock = _NoSocket()  # type: ignore[assignment]

    def _packet_queue(self, _command: Any, packet: Any, *_: Any) -> Any:
        self.written = bytes(packet)
        return 0

    def _mid_generate(self) -> int:
        return self.next_mid

    next_mid = 1


@st.composite
def publishes_5(draw: st.DrawFn) -> tuple[bytes, Packet]:
    properties = draw(properties_of(PacketTypes.PUBLISH, without=frozenset({"subscription_ids"})))
    topic, payload, qos = draw(topics), draw(payloads), draw(qualities)
    dup, retain = draw(st.booleans()) and qos > 0, draw(st.booleans())
    number = draw(packet_ids)
    writer = Writer()
    writer._send_publish(
        number, topic.encode(), payload, qos, retain, dup, None, to_paho(properties, PacketTypes.PUBLISH)
    )
    head = 0x30 | dup << 3 | qos << 1 | retain
    packet_id = number.to_bytes(2) if qos else b""
    if properties is NO_PROPERTIES:
        return writer.written, Publish(topic.encode(), payload, packet_id, qos, head)
    return writer.written, PublishWithProperties(topic.encode(), payload, packet_id, qos, head, properties)


@st.composite
def connects_5(draw: st.DrawFn) -> tuple[bytes, Packet]:
    properties = draw(properties_of(PacketTypes.CONNECT))
    if properties.authentication_method is None:
        properties = msgspec.structs.replace(properties, authentication_data=None)
    client_id, keep_alive, clean = draw(texts), draw(st.integers(0, 0xFFFF)), draw(st.booleans())
    user_name, password = draw(st.none() | texts), draw(st.none() | texts)
    if user_name is None:
        password = None
    writer = Writer(client_id)
    writer._client_id = client_id.encode()
    writer._clean_start = clean
    writer._connect_properties = to_paho(properties, PacketTypes.CONNECT)
    writer.username_pw_set(user_name, password)
    will = None
    if draw(st.booleans()):
        of_will = draw(properties_of(PacketTypes.WILLMESSAGE))
        payload = draw(texts).encode() if of_will.payload_format == 1 else draw(payloads)
        will = Will(draw(topics).encode(), payload, draw(qualities), draw(st.booleans()), of_will)
        theirs = to_paho(of_will, PacketTypes.WILLMESSAGE)
        writer.will_set(will.topic.decode(), will.payload, will.qos, will.retain, theirs)
    writer._send_connect(keep_alive)
    return writer.written, Connect(
        level=5,
        client_id=client_id,
        is_clean=clean,
        keep_alive_seconds=keep_alive,
        will=will,
        user_name=user_name,
        password=None if password is None else password.encode(),
        properties=properties,
    )


_options = st.builds(
    SubscribeOptions, qos=qualities, noLocal=st.booleans(), retainAsPublished=st.booleans(), retainHandling=qualities
)


@st.composite
def subscribes_5(draw: st.DrawFn) -> tuple[bytes, Packet]:
    properties, number = draw(properties_of(PacketTypes.SUBSCRIBE)), draw(packet_ids)
    filters = draw(st.lists(st.tuples(names, _options), min_size=1, max_size=5))
    writer = Writer()
    writer.next_mid = number
    asked = [(topic.encode(), options) for topic, options in filters]
    writer._send_subscribe(0, asked, to_paho(properties, PacketTypes.SUBSCRIBE))
    requested = tuple(
        RequestedFilter(topic, one.QoS, one.noLocal, one.retainAsPublished, one.retainHandling) for topic, one in asked
    )
    return writer.written, Subscribe(number.to_bytes(2), requested, properties)


@st.composite
def unsubscribes_5(draw: st.DrawFn) -> tuple[bytes, Packet]:
    properties, number = draw(properties_of(PacketTypes.UNSUBSCRIBE)), draw(packet_ids)
    filters = [topic.encode() for topic in draw(st.lists(names, min_size=1, max_size=5))]
    writer = Writer()
    writer.next_mid = number
    writer._send_unsubscribe(0, filters, to_paho(properties, PacketTypes.UNSUBSCRIBE))
    return writer.written, Unsubscribe(number.to_bytes(2), tuple(filters), properties)


@st.composite
def disconnects_5(draw: st.DrawFn) -> tuple[bytes, Packet]:
    properties = draw(properties_of(PacketTypes.DISCONNECT, without=frozenset({"server_reference"})))
    code = draw(st.sampled_from([0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]))
    writer = Writer()
    theirs = to_paho(properties, PacketTypes.DISCONNECT)
    writer._send_disconnect(PahoReason(PacketTypes.DISCONNECT, identifier=code), theirs)
    return writer.written, Disconnect(code, properties)


packets_5: st.SearchStrategy[tuple[bytes, Packet]] = st.one_of(
    publishes_5(), subscribes_5(), unsubscribes_5(), disconnects_5()
)
