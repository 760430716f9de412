"""The properties of MQTT 5.0 packets (MQTT 5.0, 2.2.2): what they are, and bytes to properties and back."""

from collections.abc import Callable
from enum import Flag, auto
from typing import Any, Final

import msgspec

from config.limits import MQTT_PROPERTIES_MAX
from protocols.mqtt.fields import Fields
from protocols.mqtt.packets import MalformedPacket, ProtocolError, ReasonCode
from protocols.mqtt.values import NO_PROPERTIES, Properties


class In(Flag):
    """The packets that may have a property."""

    CONNECT = auto()
    WILL = auto()
    CONNACK = auto()
    PUBLISH = auto()
    ANSWER = auto()  # PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK
    SUBSCRIBE = auto()
    UNSUBSCRIBE = auto()
    DISCONNECT = auto()
    AUTH = auto()


class _Form(msgspec.Struct, frozen=True):
    read: Callable[[Fields], Any]
    write: Callable[[Any], bytes]


def encode_variable(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_binary(value: bytes) -> bytes:
    return len(value).to_bytes(2) + value


def encode_text(value: str) -> bytes:
    return encode_binary(value.encode())


_UTF_8: Final = "MQTT-1.5.4-1"
_BYTE: Final = _Form(Fields.byte, lambda value: value.to_bytes(1))
_SHORT: Final = _Form(Fields.short, lambda value: value.to_bytes(2))
_LONG: Final = _Form(Fields.long, lambda value: value.to_bytes(4))
_VARIABLE: Final = _Form(Fields.variable, encode_variable)
_BINARY: Final = _Form(Fields.binary, encode_binary)
_TEXT: Final = _Form(lambda fields: fields.text(_UTF_8), encode_text)
_PAIR: Final = _Form(
    lambda fields: (fields.text(_UTF_8), fields.text(_UTF_8)),
    lambda pair: encode_text(pair[0]) + encode_text(pair[1]),
)
_MESSAGE: Final = In.PUBLISH | In.WILL

# Identifier: the field of `Properties`, its form, and the packets that may have it (MQTT 5.0, table 2-4).
_TABLE: Final[dict[int, tuple[str, _Form, In]]] = {
    0x01: ("payload_format", _BYTE, _MESSAGE),
    0x02: ("message_expiry", _LONG, _MESSAGE),
    0x03: ("content_type", _TEXT, _MESSAGE),
    0x08: ("response_topic", _TEXT, _MESSAGE),
    0x09: ("correlation_data", _BINARY, _MESSAGE),
    0x0B: ("subscription_ids", _VARIABLE, In.PUBLISH | In.SUBSCRIBE),
    0x11: ("session_expiry", _LONG, In.CONNECT | In.CONNACK | In.DISCONNECT),
    0x12: ("assigned_client_id", _TEXT, In.CONNACK),
    0x13: ("server_keep_alive", _SHORT, In.CONNACK),
    0x15: ("authentication_method", _TEXT, In.CONNECT | In.CONNACK | In.AUTH),
    0x16: ("authentication_data", _BINARY, In.CONNECT | In.CONNACK | In.AUTH),
    0x17: ("request_problem_information", _BYTE, In.CONNECT),
    0x18: ("will_delay", _LONG, In.WILL),
    0x19: ("request_response_information", _BYTE, In.CONNECT),
    0x1A: ("response_information", _TEXT, In.CONNACK),
    0x1C: ("server_reference", _TEXT, In.CONNACK | In.DISCONNECT),
    0x1F: ("reason_string", _TEXT, In.CONNACK | In.ANSWER | In.DISCONNECT | In.AUTH),
    0x21: ("receive_maximum", _SHORT, In.CONNECT | In.CONNACK),
    0x22: ("topic_alias_maximum", _SHORT, In.CONNECT | In.CONNACK),
    0x23: ("topic_alias", _SHORT, In.PUBLISH),
    0x24: ("maximum_qos", _BYTE, In.CONNACK),
    0x25: ("retain_available", _BYTE, In.CONNACK),
    0x26: ("user_properties", _PAIR, ~In(0)),
    0x27: ("maximum_packet_size", _LONG, In.CONNECT | In.CONNACK),
    0x28: ("wildcard_available", _BYTE, In.CONNACK),
    0x29: ("subscription_ids_available", _BYTE, In.CONNACK),
    0x2A: ("shared_available", _BYTE, In.CONNACK),
}
#: Properties that a packet may have more than once.
_REPEATED: Final = frozenset({"user_properties"})
_NOT_ZERO: Final = frozenset({"receive_maximum", "maximum_packet_size", "subscription_ids", "topic_alias"})
_LISTS: Final = frozenset({"user_properties", "subscription_ids"})


def decode_properties(fields: Fields, packet: In) -> Properties:
    """The properties that come next in a packet's body.

    Raises:
        MalformedPacket: one is unknown, stands in the wrong packet, or cannot be read.
        ProtocolError: one comes twice, or has a value that the standard forbids.
    """
    length = fields.variable()
    if not length:
        return NO_PROPERTIES
    own = Fields(fields.take(length))
    found: dict[str, Any] = {}
    count = 0
    while not own.is_at_end:
        count += 1
        if count > MQTT_PROPERTIES_MAX:
            raise ProtocolError(f"more than {MQTT_PROPERTIES_MAX} properties", code=ReasonCode.QUOTA_EXCEEDED)
        number = own.byte()
        name, form, where = _TABLE.get(number, ("", _BYTE, In(0)))
        if not where & packet:
            raise MalformedPacket(f"property {number:#04x} in a packet that cannot have it")
        value = form.read(own)
        _check(name, form, value)
        if name in _LISTS:
            before = found.get(name, ())
            if before and name not in _REPEATED and not packet & In.PUBLISH:
                raise ProtocolError(f"the property {name} twice")
            found[name] = (*before, value)
        elif name in found:
            raise ProtocolError(f"the property {name} twice")
        else:
            found[name] = value
    if "authentication_data" in found and "authentication_method" not in found:
        raise ProtocolError("authentication data without a method")
    return Properties(**found)


def _check(name: str, form: _Form, value: Any) -> None:
    if form is _BYTE and value > 1:
        raise ProtocolError(f"the property {name} is {value}")
    if name == "response_topic" and not {"+", "#"}.isdisjoint(value):
        raise ProtocolError("a response topic with wildcards", "MQTT-3.3.2-14")
    if name in _NOT_ZERO and value == 0:
        code = ReasonCode.TOPIC_ALIAS_INVALID if name == "topic_alias" else ReasonCode.PROTOCOL_ERROR
        raise ProtocolError(f"the property {name} is 0", code=code)


def encode_properties(properties: Properties) -> bytes:
    """The properties with their length, in the order of their identifiers."""
    if properties is NO_PROPERTIES:
        return b"\x00"
    out: list[bytes] = []
    for number, (name, form, _) in _TABLE.items():
        value = getattr(properties, name)
        if value is None or value == ():
            continue
        out.extend(bytes((number,)) + form.write(one) for one in (value if name in _LISTS else (value,)))
    joined = b"".join(out)
    return encode_variable(len(joined)) + joined


def changed(properties: Properties, **changes: Any) -> Properties:
    """These properties with changes."""
    return msgspec.structs.replace(properties, **changes)
