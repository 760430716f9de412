"""MQTT packets to bytes, for the packets that a server sends. answers.py chooses among the forms of the versions."""

from collections.abc import Collection, Iterable

from protocols.mqtt.properties import encode_properties, encode_variable
from protocols.mqtt.values import NO_PROPERTIES, Properties

PINGRESP = b"\xd0\x00"

_LARGEST_REMAINING_LENGTH = 0x0FFF_FFFF


def encode_connack(return_code: int, *, is_present: bool = False) -> bytes:
    """CONNACK of version 3. `is_present`: a session of an earlier connection goes on."""
    return bytes((0x20, 2, is_present, return_code))


def encode_connack_5(reason: int, properties: Properties, *, is_present: bool = False) -> bytes:
    return _packet(0x20, bytes((is_present, reason)) + encode_properties(properties))


def encode_publish(
    topic: bytes,
    payload: bytes,
    *,
    qos: int = 0,
    packet_id: bytes = b"",
    dup: bool = False,
    retain: bool = False,
    properties: bytes = b"",
) -> bytes:
    """`properties` are encoded, with their length; version 3 has none."""
    head = 0x30 | dup << 3 | qos << 1 | retain
    length = 2 + len(topic) + len(packet_id) + len(properties) + len(payload)
    return b"".join((_fixed_header(head, length), len(topic).to_bytes(2), topic, packet_id, properties, payload))


def encode_pubacks(packet_ids: Iterable[bytes]) -> bytes:
    """The PUBACKs of many messages, in order, as one byte string. Version 5.0 has the same form for success."""
    return _acknowledgements(b"\x40\x02", packet_ids)


def encode_pubrecs(packet_ids: Iterable[bytes]) -> bytes:
    return _acknowledgements(b"\x50\x02", packet_ids)


def encode_pubrel(packet_id: bytes) -> bytes:
    return b"\x62\x02" + packet_id


def encode_pubcomp(packet_id: bytes) -> bytes:
    return b"\x70\x02" + packet_id


def encode_acknowledgement_5(head: int, packet_id: bytes, reason: int, properties: Properties = NO_PROPERTIES) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP, by the first byte of the packet."""
    if properties is NO_PROPERTIES:
        return _packet(head, packet_id + bytes((reason,)) if reason else packet_id)
    return _packet(head, packet_id + bytes((reason,)) + encode_properties(properties))


def encode_suback(packet_id: bytes, return_codes: Collection[int]) -> bytes:
    """SUBACK: for each filter, in order, the granted QoS or `SUBSCRIPTION_REFUSED`."""
    return _fixed_header(0x90, 2 + len(return_codes)) + packet_id + bytes(return_codes)


def encode_suback_5(packet_id: bytes, reasons: Collection[int], properties: Properties = NO_PROPERTIES) -> bytes:
    return _packet(0x90, packet_id + encode_properties(properties) + bytes(reasons))


def encode_unsuback(packet_id: bytes) -> bytes:
    return b"\xb0\x02" + packet_id


def encode_unsuback_5(packet_id: bytes, reasons: Collection[int], properties: Properties = NO_PROPERTIES) -> bytes:
    return _packet(0xB0, packet_id + encode_properties(properties) + bytes(reasons))


def encode_disconnect_5(reason: int, properties: Properties = NO_PROPERTIES) -> bytes:
    if properties is NO_PROPERTIES:
        return _packet(0xE0, bytes((reason,)) if reason else b"")
    return _packet(0xE0, bytes((reason,)) + encode_properties(properties))


def _acknowledgements(header: bytes, packet_ids: Iterable[bytes]) -> bytes:
    joined = header.join(packet_ids)
    return header + joined if joined else b""


def _packet(head: int, body: bytes) -> bytes:
    return _fixed_header(head, len(body)) + body


def _fixed_header(head: int, length: int) -> bytes:
    if length > _LARGEST_REMAINING_LENGTH:
        raise ValueError(f"{length} bytes do not fit into one MQTT packet")
    return bytes((head,)) + encode_variable(length)
