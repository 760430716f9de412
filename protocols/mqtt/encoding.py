"""MQTT packets to bytes, for the packets that a server sends."""

from collections.abc import Collection, Iterable

PINGRESP = b"\xd0\x00"

_LARGEST_REMAINING_LENGTH = 0x0FFF_FFFF


def encode_connack(return_code: int) -> bytes:
    """CONNACK. Session-present is always 0: sessions are always clean (reference 16.2)."""
    return bytes((0x20, 2, 0, return_code))


def encode_publish(
    topic: bytes, payload: bytes, *, qos: int = 0, packet_id: bytes = b"", dup: bool = False, retain: bool = False
) -> bytes:
    head = 0x30 | dup << 3 | qos << 1 | retain
    length = 2 + len(topic) + len(packet_id) + len(payload)
    return b"".join((_fixed_header(head, length), len(topic).to_bytes(2), topic, packet_id, payload))


def encode_pubacks(packet_ids: Iterable[bytes]) -> bytes:
    """The PUBACKs of many messages, in order, as one byte string."""
    return _acknowledgements(b"\x40\x02", packet_ids)


def encode_pubrecs(packet_ids: Iterable[bytes]) -> bytes:
    return _acknowledgements(b"\x50\x02", packet_ids)


def encode_pubrec(packet_id: bytes) -> bytes:
    return b"\x50\x02" + packet_id


def encode_pubcomp(packet_id: bytes) -> bytes:
    return b"\x70\x02" + packet_id


def encode_suback(packet_id: bytes, return_codes: Collection[int]) -> bytes:
    """SUBACK: for each filter, in order, the granted QoS or `SUBSCRIPTION_REFUSED`."""
    return _fixed_header(0x90, 2 + len(return_codes)) + packet_id + bytes(return_codes)


def encode_unsuback(packet_id: bytes) -> bytes:
    return b"\xb0\x02" + packet_id


def _acknowledgements(header: bytes, packet_ids: Iterable[bytes]) -> bytes:
    joined = header.join(packet_ids)
    return header + joined if joined else b""


def _fixed_header(head: int, length: int) -> bytes:
    if length > _LARGEST_REMAINING_LENGTH:
        raise ValueError(f"{length} bytes do not fit into one MQTT packet")
    out = bytearray((head,))
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
