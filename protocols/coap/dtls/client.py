"""DTLS clients with a pre-shared key: for the self-test, and for simulated devices."""

import time
from ctypes import byref, c_void_p
from types import TracebackType
from typing import Final, Self
from weakref import finalize

import trio

from config.settings import Address
from protocols.coap.dtls import gnutls
from protocols.coap.dtls.connection import DtlsConnection, DtlsContext
from protocols.coap.dtls.errors import ConnectionOver
from protocols.coap.dtls.gnutls import Datum
from protocols.coap.dtls.records import records

_HANDSHAKE_SECONDS: Final = 30.0
_SOONEST_RETRANSMISSION_SECONDS: Final = 0.25
_DATAGRAM_BYTES: Final = 65_536


class ClientContext(DtlsContext):
    """The context of a client with a pre-shared key."""

    side = gnutls.CLIENT

    def __init__(self, identity: bytes, key: bytes) -> None:
        """A context for one identity. Raises DtlsUnavailable."""
        super().__init__((), now=time.monotonic)
        library, self._own_key, datum = self.library, c_void_p(), Datum.of(key)
        self._check(library.gnutls_psk_allocate_client_credentials(byref(self._own_key)))
        finalize(self, library.gnutls_psk_free_client_credentials, self._own_key).atexit = False
        self._check(library.gnutls_psk_set_client_credentials(self._own_key, identity, byref(datum), gnutls.RAW_KEY))

    def equip(self, handle: c_void_p) -> None:
        self._check(self.library.gnutls_priority_set(handle, self._priorities))
        self._check(self.library.gnutls_credentials_set(handle, gnutls.PSK_CREDENTIALS, self._own_key))


class DtlsClient:
    """One connection over a UDP socket of its own. A context manager, which ends it with close_notify."""

    def __init__(self, address: Address, identity: bytes, key: bytes) -> None:
        """A client before its handshake. Raises DtlsUnavailable."""
        self._address = address
        self._context = ClientContext(identity, key)
        self._socket: trio.socket.SocketType | None = None
        self._connection = DtlsConnection(self._context, self._send)
        self._waiting: list[bytes] = []
        self._unsent: list[bytes] = []

    def _send(self, datagram: bytes) -> None:
        self._unsent.append(datagram)

    async def __aenter__(self) -> Self:
        """Shake hands.

        Raises:
            ConnectionOver: the server refused, or did not answer in time.
            OSError: there is no way to the server.
        """
        found = await trio.socket.getaddrinfo(self._address.host, self._address.port, type=trio.socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        self._socket = trio.socket.socket(family, kind, protocol)
        try:
            await self._socket.connect(address)
            with trio.move_on_after(_HANDSHAKE_SECONDS) as scope:
                await self._shake_hands()
            if scope.cancelled_caught:
                raise ConnectionOver("no answer to the handshake")
        except BaseException:
            self._close()
            raise
        return self

    async def _shake_hands(self) -> None:
        is_done = self._connection.shake_hands()
        while not is_done:
            await self._flush()
            due = max(self._connection.retransmits_in, _SOONEST_RETRANSMISSION_SECONDS)
            record: bytes | None = None
            with trio.move_on_after(due):
                record = await self._record()
            is_done = self._connection.shake_hands(record)
        await self._flush()

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            self._connection.send_close_notify()
            with trio.move_on_after(1, shield=True):
                await self._flush()
        except (ConnectionOver, OSError):
            pass  # it has ended already
        finally:
            self._close()

    def _close(self) -> None:
        self._connection.close()
        if self._socket is not None:
            self._socket.close()

    async def _record(self) -> bytes:
        assert self._socket is not None  # noqa: S101 - `__aenter__` has run
        while not self._waiting:
            self._waiting = records(await self._socket.recv(_DATAGRAM_BYTES))
        return self._waiting.pop(0)

    async def _flush(self) -> None:
        assert self._socket is not None  # noqa: S101 - `__aenter__` has run
        unsent, self._unsent = self._unsent, []
        for datagram in unsent:
            await self._socket.send(datagram)

    async def send(self, message: bytes) -> None:
        """Send a message. Raises ConnectionOver or OSError."""
        self._connection.send(message)
        await self._flush()

    async def receive(self) -> bytes:
        """The next message. Raises ConnectionOver or OSError."""
        while True:
            message = self._connection.receive(await self._record())
            if message:
                return message
            await self._flush()
