"""MQTT packets as types: versions 3.1 (level 3), 3.1.1 (level 4) and 5.0 (level 5), as a server needs them.

Packet ids are kept as the two bytes of the wire (`b""` for QoS 0), and topics as bytes: both are only compared, looked
up and sent back. decoding.py parses packets, answers.py and encoding.py write the packets that a server sends.

A bracketed clause such as [MQTT-3.3.1-4] is the conformance statement of the OASIS 3.1.1 document that a peer broke;
one that only 5.0 has is that of the 5.0 document.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Self

import msgspec

from protocols.mqtt.values import NO_PROPERTIES, Properties

MQTT_3_1 = 3
MQTT_3_1_1 = 4
MQTT_5 = 5
SUBSCRIPTION_REFUSED = 0x80


class ReturnCode(IntEnum):
    """The return codes of CONNACK in version 3."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_CREDENTIALS = 4
    NOT_AUTHORIZED = 5


class ReasonCode(IntEnum):
    """The reason codes of version 5.0 (2.4). Inside the server every version has them; answers.py translates."""

    SUCCESS = 0x00
    DISCONNECT_WITH_WILL = 0x04
    NO_SUBSCRIPTION_EXISTED = 0x11
    UNSPECIFIED = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    BAD_CREDENTIALS = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    SHARED_NOT_SUPPORTED = 0x9E
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xA1
    WILDCARDS_NOT_SUPPORTED = 0xA2


# --- Packets ------------------------------------------------------------------------------------------------------


class Publish(msgspec.Struct, frozen=True, gc=False):
    """An application message. `head` is the first byte of the packet, where DUP and RETAIN are."""

    topic: bytes
    payload: bytes
    packet_id: bytes
    qos: int
    head: int

    @property
    def retain(self) -> bool:
        return self.head & 0x01 != 0


class PublishWithProperties(Publish, frozen=True, gc=False):
    """A PUBLISH of 5.0 that has properties; one without them is a `Publish`."""

    properties: Properties


class Will(msgspec.Struct, frozen=True, gc=False):
    """The message that is published when the client disappears without DISCONNECT."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: Properties = NO_PROPERTIES


class Connect(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`is_clean`: clean session, which is called clean start in 5.0."""

    level: int
    client_id: str
    is_clean: bool
    keep_alive_seconds: int
    will: Will | None
    user_name: str | None
    password: bytes | None
    properties: Properties = NO_PROPERTIES


class UnsupportedConnect(msgspec.Struct, frozen=True, gc=False):
    """A CONNECT of an unsupported version; only its level was read."""

    level: int


class _Acknowledgement(msgspec.Struct, frozen=True, gc=False):
    packet_id: bytes
    reason: int = 0
    properties: Properties = NO_PROPERTIES


class PubAck(_Acknowledgement, frozen=True, gc=False):
    pass


class PubRec(_Acknowledgement, frozen=True, gc=False):
    pass


class PubRel(_Acknowledgement, frozen=True, gc=False):
    pass


class PubComp(_Acknowledgement, frozen=True, gc=False):
    pass


class RequestedFilter(NamedTuple):
    """A topic filter of SUBSCRIBE with its options; all but `qos` are of 5.0."""

    topic: bytes
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    packet_id: bytes
    filters: tuple[RequestedFilter, ...]
    properties: Properties = NO_PROPERTIES


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    packet_id: bytes
    filters: tuple[bytes, ...]
    properties: Properties = NO_PROPERTIES


class PingRequest(msgspec.Struct, frozen=True, gc=False):
    pass


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    reason: int = 0
    properties: Properties = NO_PROPERTIES


class Auth(msgspec.Struct, frozen=True, gc=False):
    """AUTH of 5.0. No authentication method is served, so no AUTH is ever valid."""

    reason: int = 0
    properties: Properties = NO_PROPERTIES


Packet = (
    Publish
    | Connect
    | UnsupportedConnect
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | Unsubscribe
    | PingRequest
    | Disconnect
    | Auth
)


def weight_of(packet: Packet) -> int:
    """The cost of a packet's user properties beside the packet itself, in packets."""
    properties: Properties = getattr(packet, "properties", NO_PROPERTIES)
    return len(properties.user_properties) // 2


# --- Faults -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ProtocolError(Exception):
    """The peer broke the protocol. The connection ends, because no later byte can be trusted.

    `code` is what a peer that speaks 5.0 is told. `packets` are the valid packets of the same bytes before the error;
    they are processed. `is_of_connect`: the fault is in a CONNECT of 5.0, so that a CONNACK can name it.
    """

    reason: str
    clause: str = ""
    packets: Sequence[Packet] = ()
    code: ReasonCode = ReasonCode.PROTOCOL_ERROR
    is_of_connect: bool = False

    def __str__(self) -> str:
        return f"{self.reason} [{self.clause}]" if self.clause else self.reason

    def again(self) -> Self:
        """This error for a later call, without the packets."""
        return type(self)(self.reason, self.clause, code=self.code, is_of_connect=self.is_of_connect)


@dataclass(eq=False)
class MalformedPacket(ProtocolError):
    """These bytes are no MQTT packet."""

    code: ReasonCode = ReasonCode.MALFORMED_PACKET


@dataclass(eq=False)
class PacketTooLarge(ProtocolError):
    """The peer announced a packet over the maximum; no part of it is kept."""

    code: ReasonCode = ReasonCode.PACKET_TOO_LARGE


@dataclass(eq=False)
class TooManyFilters(ProtocolError):
    """A SUBSCRIBE or UNSUBSCRIBE has more topic filters than are taken (reference 16.2)."""

    code: ReasonCode = ReasonCode.QUOTA_EXCEEDED


@dataclass(eq=False)
class TooManyArriving(ProtocolError):
    """Too much memory is held for packets over the usual size that have not come whole (reference 16.6)."""

    code: ReasonCode = ReasonCode.QUOTA_EXCEEDED
