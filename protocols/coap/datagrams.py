"""What can be read of a DTLS datagram without any key (RFC 6347 sections 4.1 and 4.2.2). Nothing here can fail."""

import re
from collections.abc import Iterable
from typing import Final

RECORD_HEADER_BYTES = 13
APPLICATION_DATA = 23
_HANDSHAKE_HEADER_BYTES = 12
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_CLIENT_KEY_EXCHANGE = b"\x10"
_IN_CLEAR = b"\0\0"  # epoch 0
_RANDOM: Final = slice(RECORD_HEADER_BYTES + _HANDSHAKE_HEADER_BYTES + 2, 59)
_IDENTITY: Final = re.compile(rb"[0-9a-f]{32}")


def records(datagram: bytes) -> list[bytes]:
    """The whole records of a datagram: GnuTLS would take the beginning of the next datagram for the rest of one."""
    found, at, length = [], 0, len(datagram)
    while at + RECORD_HEADER_BYTES <= length:
        end = at + RECORD_HEADER_BYTES + int.from_bytes(datagram[at + 11 : at + RECORD_HEADER_BYTES], "big")
        if end <= length:
            found.append(datagram[at:end])
        at = end
    return found


def is_client_hello(record: bytes) -> bool:
    """The epoch counts: what is encrypted may look like anything."""
    return (
        len(record) > RECORD_HEADER_BYTES
        and record[0] == _HANDSHAKE
        and record[3:5] == _IN_CLEAR
        and record[RECORD_HEADER_BYTES] == _CLIENT_HELLO
    )


def client_random(hello: bytes) -> bytes:
    """What tells one handshake from another of the same peer."""
    return hello[_RANDOM]


def psk_identity(flight: Iterable[bytes]) -> bytes | None:
    """The identity in a ClientKeyExchange, if it can be one of our devices (RFC 4279 section 2, RFC 5489 section 2)."""
    for record in flight:
        kind = record[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + 1]
        if record[0] == _HANDSHAKE and record[3:5] == _IN_CLEAR and kind == _CLIENT_KEY_EXCHANGE:
            body = record[RECORD_HEADER_BYTES + _HANDSHAKE_HEADER_BYTES :]
            identity = body[2 : 2 + int.from_bytes(body[:2], "big")]
            return identity if _IDENTITY.fullmatch(identity) else None
    return None
