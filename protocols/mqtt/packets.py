"""MQTT packets as types: versions 3.1 (level 3) and 3.1.1 (level 4), as a server needs them.

Packet ids are kept as the two bytes of the wire (`b""` for QoS 0), and topics as bytes: both are only compared, looked
up and sent back. decoding.py parses packets, encoding.py writes those that a server sends.

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
    """The return codes of CONNACK in version 3."""

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


class Will(msgspec.Struct, frozen=True, gc=False):
    """The message that is published when the client disappears without DISCONNECT."""

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
    """A CONNECT of an unsupported version; only its level was read."""

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
    """The peer broke the protocol. The connection ends, because no later byte can be trusted.

    `packets` are the valid packets of the same bytes before the error; they are processed.
    """

    reason: str
    clause: str = ""
    packets: Sequence[Packet] = ()

    def __str__(self) -> str:
        return f"{self.reason} [{self.clause}]" if self.clause else self.reason

    def again(self) -> Self:
        """The same error for a later call, without the packets."""
        return type(self)(self.reason, self.clause)


class MalformedPacket(ProtocolError):
    """These bytes are no MQTT packet."""


class PacketTooLarge(ProtocolError):
    """The peer announced a packet over the maximum; no part of it is kept."""


class TooManyFilters(ProtocolError):
    """A SUBSCRIBE or UNSUBSCRIBE has more topic filters than are taken (reference 16.2)."""
