"""What can be read of a DTLS datagram without any key (RFC 6347 sections 4.1 and 4.2.2). Nothing here can fail.

A ClientHello in fragments has no cookie where it is looked for, and is asked for one for ever; no client is known that
would send one.
"""

import re
from typing import Final

RECORD_HEADER_BYTES = 13
APPLICATION_DATA = 23
CHANGE_CIPHER_SPEC = 20
_HANDSHAKE_HEADER_BYTES = 12
_HANDSHAKE = 22
_MAX_RECORDS = 32
#: The shortest hello: both headers, version, random, no session, no cookie, one cipher suite, one compression method.
_HELLO_BYTES = RECORD_HEADER_BYTES + _HANDSHAKE_HEADER_BYTES + 2 + 32 + 1 + 1 + 4 + 2
_CLIENT_HELLO = 1
_CLIENT_KEY_EXCHANGE = 16
_IN_CLEAR = b"\0\0"  # epoch 0
_IDENTITY: Final = re.compile(rb"[0-9a-f]{32}")


def records(datagram: bytes) -> list[bytes]:
    """The whole records of a datagram that have something in them, if there are not too many.

    GnuTLS would take the beginning of the next datagram for the rest of one that is cut short.
    """
    found: list[bytes] = []
    at, length = 0, len(datagram)
    while at + RECORD_HEADER_BYTES < length and len(found) < _MAX_RECORDS:
        end = at + RECORD_HEADER_BYTES + int.from_bytes(datagram[at + 11 : at + RECORD_HEADER_BYTES], "big")
        if at + RECORD_HEADER_BYTES < end <= length:
            found.append(datagram[at:end])
        at = end
    return found


def is_in_clear(record: bytes) -> bool:
    return record[3:5] == _IN_CLEAR


def is_client_hello(record: bytes) -> bool:
    """The epoch counts: what is encrypted may look like anything. So does the length, as it is answered unseen."""
    return (
        record[0] == _HANDSHAKE
        and is_in_clear(record)
        and len(record) >= _HELLO_BYTES
        and record[RECORD_HEADER_BYTES] == _CLIENT_HELLO
    )


def hello_key(hello: bytes) -> int:
    """The same for a hello that is said again, in another record. Its cookie counts.

    So a device whose random numbers are the same after each start gets in with its next cookie at the latest.
    """
    return hash(hello[RECORD_HEADER_BYTES + _HANDSHAKE_HEADER_BYTES :])


def psk_identity(record: bytes) -> bytes | None:
    """The identity in a ClientKeyExchange, if it can be one of our devices (RFC 4279 section 2, RFC 5489 section 2)."""
    if record[0] != _HANDSHAKE or not is_in_clear(record) or record[RECORD_HEADER_BYTES] != _CLIENT_KEY_EXCHANGE:
        return None
    body = record[RECORD_HEADER_BYTES + _HANDSHAKE_HEADER_BYTES :]
    identity = body[2 : 2 + int.from_bytes(body[:2], "big")]
    return identity if _IDENTITY.fullmatch(identity) else None
