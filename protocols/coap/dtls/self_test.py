"""The self-test of GnuTLS before a listener opens: a handshake in memory, and a test for a known vulnerability."""

import time
from typing import Final

from protocols.coap.dtls.client import ClientContext
from protocols.coap.dtls.connection import DtlsConnection, DtlsContext
from protocols.coap.dtls.errors import ConnectionOver, DtlsUnavailable
from protocols.coap.dtls.records import records

_IDENTITY: Final = b"0" * 32
_KEY: Final = bytes(range(16))
_MAX_FLIGHTS: Final = 10


def self_test() -> None:
    """Test a handshake, a message and the fix of CVE-2026-33845. Raises DtlsUnavailable when one of them fails."""
    try:
        answer = _exchange_messages()
        is_flawed = _takes_a_fragment_of_another_length()
    except ConnectionOver as error:
        raise DtlsUnavailable(f"the self-test failed: {error}") from error
    if answer != b"pong":
        raise DtlsUnavailable("the self-test failed: the message was lost")
    if is_flawed:
        raise DtlsUnavailable(
            "this GnuTLS has CVE-2026-33845, a buffer overflow before authentication; update it (to 3.8.13, or to"
            " Debian's 3.7.9-2+deb12u7)"
        )


def _takes_a_fragment_of_another_length() -> bool:
    """Whether GnuTLS has CVE-2026-33845. Its version does not tell: distributions fix it without a new version number.

    Two fragments of one message state different lengths of the message. A vulnerable GnuTLS accepts both and writes the
    second into a buffer of the first's length. The second fragment here lies within this buffer.
    """
    to_server, to_client = list[bytes](), list[bytes]()
    _, server = _begin(to_server, to_client)
    server.shake_hands(to_server.pop())
    try:
        for number, (length, offset) in enumerate(((100, 0), (200, 50)), start=10):
            server.shake_hands(_fragment(number, length, offset, bytes(50)))
    except ConnectionOver:
        return False
    return True


def _fragment(record: int, length: int, offset: int, part: bytes) -> bytes:
    """A fragment of a handshake message that is not due yet, in a record of epoch 0 (RFC 6347, 4.2.2)."""
    body = (
        b"\x0f" + length.to_bytes(3, "big") + b"\0\5" + offset.to_bytes(3, "big") + len(part).to_bytes(3, "big") + part
    )
    return b"\x16\xfe\xfd\0\0" + record.to_bytes(6, "big") + len(body).to_bytes(2, "big") + body


def _begin(to_server: list[bytes], to_client: list[bytes]) -> tuple[DtlsConnection, DtlsConnection]:
    """A client and a server after the cookie exchange. The client's second hello is in `to_server`."""
    address = b"here"
    context = DtlsContext((), now=time.monotonic)
    client = DtlsConnection(ClientContext(_IDENTITY, _KEY), to_server.append)
    client.shake_hands()
    if context.prestate(to_server.pop(), address) is not None:
        raise ConnectionOver("a hello without a cookie was accepted")
    client.shake_hands(context.challenge(address))
    prestate = context.prestate(to_server[0], address)
    if prestate is None:
        raise ConnectionOver("a valid cookie was not accepted")
    server = DtlsConnection(context, to_client.append, prestate)
    server.key = _IDENTITY, _KEY
    return client, server


def _exchange_messages() -> bytes:
    """The answer of the server to the client, after a handshake."""
    to_server, to_client = list[bytes](), list[bytes]()
    client, server = _begin(to_server, to_client)
    if not _shake_hands(server, to_server, client, to_client):
        raise ConnectionOver("the handshake does not end")
    client.send(b"ping")
    if server.receive(to_server.pop()) != b"ping":
        return b""
    server.send(b"pong")
    return client.receive(to_client.pop())


def _shake_hands(
    server: DtlsConnection, to_server: list[bytes], client: DtlsConnection, to_client: list[bytes]
) -> bool:
    """Pass flights between both until both are done. Returns whether they are."""
    are_done = {server: False, client: False}
    for _ in range(_MAX_FLIGHTS):
        for one, flight in ((server, to_server), (client, to_client)):
            datagrams = flight.copy()
            flight.clear()
            for record in (record for datagram in datagrams for record in records(datagram)):
                are_done[one] = are_done[one] or one.shake_hands(record)
        if all(are_done.values()):
            return True
    return False
