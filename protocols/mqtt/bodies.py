"""The bodies of all packets but PUBLISH, which decoding.py parses itself.

Version 3.1 allows more than 3.1.1 in places, and 5.0 adds properties and reason codes; `level` says which of the three
a connection speaks.
"""

from collections.abc import Callable, Sequence
from typing import Final

from protocols.mqtt.fields import Fields
from protocols.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Auth,
    Connect,
    Disconnect,
    MalformedPacket,
    Packet,
    PingRequest,
    ProtocolError,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    ReasonCode,
    RequestedFilter,
    Subscribe,
    TooManyFilters,
    Unsubscribe,
    UnsupportedConnect,
    Will,
)
from protocols.mqtt.properties import In, decode_properties
from protocols.mqtt.values import NO_PROPERTIES, Properties

_LEVELS: Final = {(b"MQIsdp", MQTT_3_1), (b"MQTT", MQTT_3_1_1), (b"MQTT", MQTT_5)}
_PROTOCOL_NAMES: Final = {name for name, _ in _LEVELS}
#: The reason codes that a client may send (MQTT 5.0, tables of 3.4 to 3.7 and 3.14).
_RECEIVED_CODES: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASED_CODES: Final = frozenset({0x00, 0x92})
_DISCONNECT_CODES: Final = frozenset({0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)})


def decode_connect(fields: Fields, _: int) -> Connect | UnsupportedConnect:
    name = fields.binary()
    if name not in _PROTOCOL_NAMES:
        raise MalformedPacket("CONNECT for another protocol", "MQTT-3.1.2-1")
    level = fields.byte()
    if (name, level) not in _LEVELS:
        fields.skip()
        return UnsupportedConnect(level)
    try:
        return _decode_connect(fields, level)
    except ProtocolError as fault:
        fault.is_of_connect = level == MQTT_5
        raise


def _decode_connect(fields: Fields, level: int) -> Connect:
    flags = fields.byte()
    _check_connect_flags(flags, level)
    keep_alive_seconds = fields.short()
    properties = decode_properties(fields, In.CONNECT) if level == MQTT_5 else NO_PROPERTIES
    client_id = fields.text("MQTT-3.1.3-4")
    will = None
    if flags & 0x04:
        of_will = decode_properties(fields, In.WILL) if level == MQTT_5 else NO_PROPERTIES
        topic = fields.topic("MQTT-3.1.3-10")
        will = Will(topic, fields.binary(), flags >> 3 & 3, flags & 0x20 != 0, of_will)
        _check_will(will)
    # Version 3.1, section 3.1: the remaining length takes precedence over the two flags.
    may_be_missing = level == MQTT_3_1
    user_name = password = None
    if flags & 0x80 and not (may_be_missing and fields.is_at_end):
        user_name = fields.text("MQTT-3.1.3-11")
    if flags & 0x40 and not (may_be_missing and fields.is_at_end):
        password = fields.binary()
    fields.finish()
    return Connect(
        level=level,
        client_id=client_id,
        is_clean=flags & 0x02 != 0,
        keep_alive_seconds=keep_alive_seconds,
        will=will,
        user_name=user_name,
        password=password,
        properties=properties,
    )


def _check_will(will: Will) -> None:
    if b"+" in will.topic or b"#" in will.topic:
        raise MalformedPacket("a will topic with wildcards", "MQTT-3.3.2-2", code=ReasonCode.TOPIC_NAME_INVALID)
    if will.properties.payload_format == 1:
        try:
            will.payload.decode()
        except UnicodeDecodeError:
            reason = "a will that is not the text that it is said to be"
            raise ProtocolError(reason, code=ReasonCode.PAYLOAD_FORMAT_INVALID) from None


def _check_connect_flags(flags: int, level: int) -> None:
    if flags & 0x18 == 0x18:
        raise MalformedPacket("CONNECT with will QoS 3", "MQTT-3.1.2-14")
    if flags & 0xC0 == 0x40 and level != MQTT_5:
        raise MalformedPacket("CONNECT with a password and no user name", "MQTT-3.1.2-22")
    if level == MQTT_3_1:  # it calls the bits below unused, not reserved
        return
    if flags & 0x01:
        raise MalformedPacket("CONNECT with the reserved flag", "MQTT-3.1.2-3")
    if not flags & 0x04 and flags & 0x18:
        raise MalformedPacket("CONNECT with a will QoS and no will", "MQTT-3.1.2-13")
    if not flags & 0x04 and flags & 0x20:
        raise MalformedPacket("CONNECT with will retain and no will", "MQTT-3.1.2-15")


def _check_filters(filters: Sequence[object], most: int) -> None:
    """Before one more is read, so that a packet of thousands costs no more than one of the most."""
    if len(filters) >= most:
        raise TooManyFilters(f"more than {most} topic filters in one packet")


def _decode_subscribe(fields: Fields, level: int) -> Subscribe:
    packet_id = fields.packet_id("MQTT-2.3.1-1")
    properties = decode_properties(fields, In.SUBSCRIBE) if level == MQTT_5 else NO_PROPERTIES
    filters: list[RequestedFilter] = []
    while not fields.is_at_end:
        _check_filters(filters, fields.most_filters)
        topic = fields.topic("MQTT-3.8.3-1")
        options = fields.byte()
        if options & 3 == 3 or options & (0xC0 if level == MQTT_5 else 0xFC):
            raise MalformedPacket(
                f"SUBSCRIBE asks for QoS byte {options:#x}", "MQTT-3-8.3-4"
            )  # the document's spelling
        if options & 0x30 == 0x30:
            raise ProtocolError("SUBSCRIBE with retain handling 3")
        is_local = options & 0x04 != 0
        if is_local and topic.startswith(b"$share/"):
            raise ProtocolError("a shared subscription with No Local", "MQTT-3.8.3-4")
        filters.append(RequestedFilter(topic, options & 3, is_local, options & 0x08 != 0, options >> 4 & 3))
    if not filters:
        raise MalformedPacket("SUBSCRIBE without a topic filter", "MQTT-3.8.3-3")
    return Subscribe(packet_id, tuple(filters), properties)


def _decode_unsubscribe(fields: Fields, level: int) -> Unsubscribe:
    packet_id = fields.packet_id("MQTT-2.3.1-1")
    properties = decode_properties(fields, In.UNSUBSCRIBE) if level == MQTT_5 else NO_PROPERTIES
    filters: list[bytes] = []
    while not fields.is_at_end:
        _check_filters(filters, fields.most_filters)
        filters.append(fields.topic("MQTT-3.10.3-1"))
    if not filters:
        raise MalformedPacket("UNSUBSCRIBE without a topic filter", "MQTT-3.10.3-2")
    return Unsubscribe(packet_id, tuple(filters), properties)


_Acknowledgement = type[PubAck] | type[PubRec] | type[PubRel] | type[PubComp]


def _acknowledgement(kind: _Acknowledgement, codes: frozenset[int]) -> Callable[[Fields, int], Packet]:
    def decode(fields: Fields, level: int) -> Packet:
        packet_id = fields.packet_id("MQTT-2.3.1-6")
        if level != MQTT_5 or fields.is_at_end:
            return kind(packet_id)
        return kind(packet_id, *_reason(fields, codes, In.ANSWER))

    return decode


def _reason(fields: Fields, codes: frozenset[int], packet: In) -> tuple[int, Properties]:
    """A reason code and properties, of which the latter, or both, may be missing at the end of a packet."""
    if fields.is_at_end:
        return 0, NO_PROPERTIES
    code = fields.byte()
    if code not in codes:
        raise ProtocolError(f"reason code {code:#04x} in a packet that cannot have it")
    return code, NO_PROPERTIES if fields.is_at_end else decode_properties(fields, packet)


def _decode_disconnect(fields: Fields, level: int) -> Disconnect:
    return Disconnect(*_reason(fields, _DISCONNECT_CODES, In.DISCONNECT)) if level == MQTT_5 else Disconnect()


def _decode_auth(fields: Fields, level: int) -> Auth:
    if level != MQTT_5:
        raise MalformedPacket("packet type 15 is not one a client sends")
    return Auth(*_reason(fields, frozenset({0x00, 0x18, 0x19}), In.AUTH))


# Packet type: the flags its fixed header must have, the clause that says so, and its decoder.
DECODERS: Final[dict[int, tuple[int, str, Callable[[Fields, int], Packet]]]] = {
    1: (0, "MQTT-2.2.2-2", decode_connect),
    4: (0, "MQTT-2.2.2-2", _acknowledgement(PubAck, _RECEIVED_CODES)),
    5: (0, "MQTT-2.2.2-2", _acknowledgement(PubRec, _RECEIVED_CODES)),
    6: (2, "MQTT-3.6.1-1", _acknowledgement(PubRel, _RELEASED_CODES)),
    7: (0, "MQTT-2.2.2-2", _acknowledgement(PubComp, _RELEASED_CODES)),
    8: (2, "MQTT-3.8.1-1", _decode_subscribe),
    10: (2, "MQTT-3.10.1-1", _decode_unsubscribe),
    12: (0, "MQTT-2.2.2-2", lambda *_: PingRequest()),
    14: (0, "MQTT-3.14.1-1", _decode_disconnect),
    15: (0, "MQTT-3.15.1-1", _decode_auth),
}
