"""The records of DTLS datagrams, as far as they can be read without a key (RFC 6347, 4.1 and 4.2.2).

Nothing here raises. A ClientHello in fragments is not supported: no cookie is found in it, so the listener answers each
time with another HelloVerifyRequest. No client is known to send one.
"""

import re
from typing import Final

RECORD_HEADER_BYTES = 13
APPLICATION_DATA = 23
CHANGE_CIPHER_SPEC = 20
_HANDSHAKE_HEADER_BYTES = 12
_HANDSHAKE = 22
_MAX_RECORDS = 32
#: The shortest ClientHello: two headers, version, random, no session id, no cookie, one cipher, one compression method.
_HELLO_BYTES = RECORD_HEADER_BYTES + _HANDSHAKE_HEADER_BYTES + 2 + 32 + 1 + 1 + 4 + 2
_CLIENT_HELLO = 1
_CLIENT_KEY_EXCHANGE = 16
_IN_CLEAR = b"\0\0"  # epoch 0
_IDENTITY: Final = re.compile(rb"[0-9a-f]{32}")


def records(datagram: bytes) -> list[bytes]:
    """The complete records of a datagram that are not empty, at most _MAX_RECORDS.

    A truncated record is left out: GnuTLS would take the beginning of the next datagram for the rest of it.
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
    """Whether the record is of epoch 0, which is not encrypted."""
    return record[3:5] == _IN_CLEAR


def is_client_hello(record: bytes) -> bool:
    """Whether the record is a ClientHello.

    It must be of epoch 0, because an encrypted record may contain any bytes. It must not be shorter than a ClientHello
    can be, because the answer, which goes to an unverified address, would be longer.
    """
    return (
        record[0] == _HANDSHAKE
        and is_in_clear(record)
        and len(record) >= _HELLO_BYTES
        and record[RECORD_HEADER_BYTES] == _CLIENT_HELLO
    )


def hello_key(hello: bytes) -> int:
    """Equal for a ClientHello and its retransmission, which is in another record.

    The key includes the cookie. So a device that sends the same random number after each start begins a new handshake
    with its next cookie at the latest.
    """
    return hash(hello[RECORD_HEADER_BYTES + _HANDSHAKE_HEADER_BYTES :])


def session_id(hello: bytes) -> bytes:
    """The id of the session that a ClientHello asks to resume; empty when it asks for none (RFC 5246, 7.4.1.2)."""
    at = RECORD_HEADER_BYTES + _HANDSHAKE_HEADER_BYTES + 2 + 32
    return hello[at + 1 : at + 1 + hello[at]]


def psk_identity(record: bytes) -> bytes | None:
    """The identity in a ClientKeyExchange, if it has the form of a device id (RFC 4279, 2; RFC 5489, 2)."""
    if record[0] != _HANDSHAKE or not is_in_clear(record) or record[RECORD_HEADER_BYTES] != _CLIENT_KEY_EXCHANGE:
        return None
    body = record[RECORD_HEADER_BYTES + _HANDSHAKE_HEADER_BYTES :]
    identity = body[2 : 2 + int.from_bytes(body[:2], "big")]
    return identity if _IDENTITY.fullmatch(identity) else None
