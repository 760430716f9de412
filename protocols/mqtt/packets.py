"""MQTT packets as types: versions 3.1 (level 3) and 3.1.1 (level 4), as a server needs them.

Packet ids stay the two bytes they are on the wire (`b""` for QoS 0) and topics stay bytes: both are only compared,
looked up and sent back. decoding.py makes packets of bytes, encoding.py the bytes that a server sends.

A bracketed clause such as [MQTT-3.3.1-4] is the conformance statement of the OASIS 3.1.1 document that a peer broke.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Self

import msgspec

MQTT_3_1 = 3
MQTT_3_1_1 = 4
SUBSCRIPTION_REFUSED = 0x80


class ReturnCode(IntEnum):
    """What CONNACK says in version 3."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_CREDENTIALS = 4
    NOT_AUTHORIZED = 5


# --- Packets ------------------------------------------------------------------------------------------------------


class Publish(msgspec.Struct, frozen=True, gc=False):
    """An application message. `head` is the first byte of the packet, where DUP and RETAIN are."""

    topic: bytes
    payload: bytes
    packet_id: bytes
    qos: int
    head: int

    @property
    def is_duplicate(self) -> bool:
        return self.head & 0x08 != 0

    @property
    def is_retained(self) -> bool:
        return self.head & 0x01 != 0


class Will(msgspec.Struct, frozen=True, gc=False):
    """The message a client leaves behind for the case that it disappears without DISCONNECT."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool


class Connect(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    level: int
    client_id: str
    is_clean: bool
    keep_alive_seconds: int
    will: Will | None
    user_name: str | None
    password: bytes | None


class UnsupportedConnect(msgspec.Struct, frozen=True, gc=False):
    """A CONNECT of a version that is not spoken here; only its level could be read."""

    level: int


class PubAck(msgspec.Struct, frozen=True, gc=False):
    packet_id: bytes


class PubRec(msgspec.Struct, frozen=True, gc=False):
    packet_id: bytes


class PubRel(msgspec.Struct, frozen=True, gc=False):
    packet_id: bytes


class PubComp(msgspec.Struct, frozen=True, gc=False):
    packet_id: bytes


class RequestedFilter(NamedTuple):
    topic: bytes
    qos: int


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    packet_id: bytes
    filters: tuple[RequestedFilter, ...]


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    packet_id: bytes
    filters: tuple[bytes, ...]


class PingRequest(msgspec.Struct, frozen=True, gc=False):
    pass


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    pass


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
)


# --- Faults -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ProtocolError(Exception):
    """The peer broke the protocol; the connection ends, because nothing after this point can be trusted.

    `packets` are the good ones that arrived in the same bytes before the fault: they count.
    """

    reason: str
    clause: str = ""
    packets: Sequence[Packet] = ()

    def __str__(self) -> str:
        return f"{self.reason} [{self.clause}]" if self.clause else self.reason

    def again(self) -> Self:
        """The same fault for a later call: without packets, which are handed out once."""
        return type(self)(self.reason, self.clause)


class MalformedPacket(ProtocolError):
    """These bytes are no MQTT packet."""


class PacketTooLarge(ProtocolError):
    """The peer announced a packet over the maximum; nothing of it is kept."""
