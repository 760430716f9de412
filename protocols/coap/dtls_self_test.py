"""The proof at the start that this GnuTLS does what DTLS needs: a handshake with ourselves, in memory."""

import time
from ctypes import byref, c_void_p
from typing import Final
from weakref import finalize

from protocols.coap import gnutls
from protocols.coap.dtls_connection import ConnectionOver, DtlsConnection, DtlsContext
from protocols.coap.gnutls import Datum, DtlsUnavailable

_IDENTITY: Final = b"0" * 32
_KEY: Final = bytes(range(16))
_MAX_FLIGHTS: Final = 10


class _ClientContext(DtlsContext):
    """That of a client with a pre-shared key."""

    side = gnutls.CLIENT

    def __init__(self) -> None:
        super().__init__((), now=time.monotonic)
        library, self._own_key, key = self.library, c_void_p(), Datum.of(_KEY)
        self._check(library.gnutls_psk_allocate_client_credentials(byref(self._own_key)))
        finalize(self, library.gnutls_psk_free_client_credentials, self._own_key).atexit = False
        self._check(library.gnutls_psk_set_client_credentials(self._own_key, _IDENTITY, byref(key), gnutls.RAW_KEY))

    def equip(self, handle: c_void_p) -> None:
        self._check(self.library.gnutls_priority_set(handle, self._priorities))
        self._check(self.library.gnutls_credentials_set(handle, gnutls.PSK_CREDENTIALS, self._own_key))


def self_test() -> None:
    """Shake hands with ourselves and exchange a message. Raises DtlsUnavailable."""
    try:
        answer = _talk_to_ourselves()
    except ConnectionOver as error:
        raise DtlsUnavailable(f"the self-test failed: {error}") from error
    if answer != b"pong":
        raise DtlsUnavailable("the self-test failed: the message was lost")


def _talk_to_ourselves() -> bytes:
    address = b"here"
    to_server, to_client = list[bytes](), list[bytes]()
    context = DtlsContext((), now=time.monotonic)
    client = DtlsConnection(_ClientContext(), to_server.append)
    client.shake_hands()
    if context.prestate(to_server[0], address) is not None:
        raise ConnectionOver("a hello without a cookie was let in")
    to_server.clear()
    client.shake_hands(context.challenge(address))
    prestate = context.prestate(to_server[0], address)
    if prestate is None:
        raise ConnectionOver("a good cookie was not let in")
    server = DtlsConnection(context, to_client.append, prestate)
    server.key = _IDENTITY, _KEY
    if not _exchange(server, to_server, client, to_client):
        raise ConnectionOver("the handshake does not end")
    client.send(b"ping")
    if server.receive(to_server.pop()) != b"ping":
        return b""
    server.send(b"pong")
    return client.receive(to_client.pop())


def _exchange(server: DtlsConnection, to_server: list[bytes], client: DtlsConnection, to_client: list[bytes]) -> bool:
    """Hand over flights until both are done."""
    are_done = {server: False, client: False}
    for _ in range(_MAX_FLIGHTS):
        for one, flight in ((server, to_server), (client, to_client)):
            datagrams = flight.copy()
            flight.clear()
            for datagram in datagrams:
                are_done[one] = are_done[one] or one.shake_hands(datagram)
        if all(are_done.values()):
            return True
    return False
