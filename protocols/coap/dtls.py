"""The CoAP listener over DTLS: handshakes, and a straight way for what is said after them.

- **Before the cookie** a peer has cost a hash and left nothing; only so many first hellos are looked at for each
  wake-up, so that a flood of them does not starve the sessions.
- **A handshake** is a task. The keys of devices lie in the store, and GnuTLS does not wait for them; so what names an
  identity is held back until its key was read.
- **A session** has no task. What its peer says is decrypted where it is read, so that all that came in one go is
  submitted together, and answers are encrypted where they are given. A new handshake from its address leaves it alone
  until it is done: whoever repeats an old hello of a peer disturbs nobody.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog
import trio

from broker.services import Services
from config.limits import COAP_IDLE_SECONDS
from config.settings import Address
from protocols.coap.datagrams import (
    APPLICATION_DATA,
    CHANGE_CIPHER_SPEC,
    hello_key,
    is_client_hello,
    is_in_clear,
    psk_identity,
    records,
)
from protocols.coap.dtls_connection import ConnectionOver, DtlsConnection, DtlsContext
from protocols.coap.dtls_self_test import self_test
from protocols.coap.endpoint import Endpoint
from protocols.coap.gnutls import Prestate
from protocols.coap.server import say_goodbye
from protocols.coap.session import Session, SessionLimits
from protocols.coap.sockets import DatagramSocket, PeerAddress, read_forever
from protocols.coap.statistics import DtlsStatistics
from protocols.tls import Chain, require_two_kinds

HANDSHAKE_SECONDS = 30.0
HELLOS_PER_WAKE_UP = 64
_MAX_WAITING_DATAGRAMS = 16
_KEYS_AT_ONCE = 2
_KEYS_PER_HANDSHAKE = 4
#: GnuTLS sets each of them aside, 4 KiB a time. A client sends one with each of its flights.
_CHANGES_PER_HANDSHAKE = 16
#: GnuTLS calls a flight overdue while it waits for the rest of the peer's.
_SOONEST_RETRANSMISSION_SECONDS = 0.25

_log = structlog.get_logger(__name__)


class DtlsListener:
    """One UDP socket and its DTLS sessions."""

    def __init__(self, services: Services, *, endpoint: Endpoint | None = None, limits: SessionLimits | None = None):
        self._services = services
        # 10,000 sessions, for which GnuTLS holds 110 MiB beside the `bytes_held` of our limits.
        self._limits = limits or SessionLimits()
        self.endpoint = endpoint or Endpoint(services, limits=self._limits)
        self._peers: _Peers | None = None

    async def serve(
        self, bind: Address, first: Chain, second: Chain | None = None, *, task_status: trio.TaskStatus[Address]
    ) -> None:
        """As `serve_coap_dtls`."""
        if second is not None:
            require_two_kinds(first, second)
        self_test()
        context = DtlsContext([first] if second is None else [first, second], now=trio.current_time)
        with await DatagramSocket.bound(bind) as sock:
            try:
                async with trio.open_nursery() as nursery:
                    self.endpoint.start(nursery)
                    peers = self._peers = _Peers(self._services, self.endpoint, self._limits, sock, context, nursery)
                    task_status.started(sock.address)
                    await read_forever(sock, self._services.messages.ingest, peers.take, peers.taken)
            finally:
                # Sessions outlive the reading by what there is to tell them.
                await say_goodbye(self._services, self.endpoint)
                self.endpoint.close_all()

    def statistics(self) -> DtlsStatistics:
        return DtlsStatistics() if self._peers is None else self._peers.statistics()


async def serve_coap_dtls(
    services: Services,
    bind: Address,
    certificate: Path,
    key: Path,
    *,
    second: Chain | None = None,
    listener: DtlsListener | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; then tell every observer.

    Args:
        services: the broker.
        bind: where to listen.
        certificate: the server's chain in PEM, ECDSA or RSA.
        key: its private key.
        second: another chain and its key, of the other kind.
        listener: one to look into from outside; by default one of its own.
        task_status: told the bound address.

    Raises:
        DtlsUnavailable: there is no GnuTLS, or the self-test failed; nothing was opened.
        OSError: the address cannot be bound, or the certificate cannot be used.
    """
    listener = listener or DtlsListener(services)
    await listener.serve(bind, (certificate, key), second, task_status=task_status)


class _Open(NamedTuple):
    """A session: who takes its records, and by which hello it began."""

    take: Callable[[bytes], None]
    hello: int


class _HalfOpen(NamedTuple):
    """A handshake under way."""

    hello: int
    arrived: trio.MemorySendChannel[list[bytes]]
    scope: trio.CancelScope


class _Peers:
    """Everybody who speaks to one socket."""

    def __init__(
        self,
        services: Services,
        endpoint: Endpoint,
        limits: SessionLimits,
        sock: DatagramSocket,
        context: DtlsContext,
        nursery: trio.Nursery,
    ) -> None:
        """Handshakes are tasks of `nursery`."""
        self._services = services
        self._endpoint = endpoint
        self._limits = limits
        self._socket = sock
        self._context = context
        self._nursery = nursery
        self._half_open: OrderedDict[PeerAddress, _HalfOpen] = OrderedDict()
        self._sessions: dict[PeerAddress, _Open] = {}
        self._keys_at_once = trio.CapacityLimiter(_KEYS_AT_ONCE)
        self._hellos = 0  # since the last wake-up
        self._handshakes = self._failed = self._evicted = self._hellos_dropped = self._lost = 0

    # --- In ----------------------------------------------------------------------------------------------------------

    def take(self, datagram: bytes, address: PeerAddress) -> None:
        """A datagram from the network."""
        found = records(datagram)
        if not found:
            return
        if found[0][0] != APPLICATION_DATA:
            if is_client_hello(found[0]):
                self._take_hello(found[0], address)
                return
            half_open = self._half_open.get(address)
            if half_open is not None:
                with suppress(trio.WouldBlock):  # otherwise it is lost, and will be sent again
                    half_open.arrived.send_nowait(found)
                if is_in_clear(found[0]):
                    return
                # It may be the goodbye of the session before; whom it is not for, drops it.
        session = self._sessions.get(address)
        if session is not None:
            for record in found:
                session.take(record)

    def taken(self) -> None:
        """All datagrams of one wake-up have been taken."""
        self._hellos = 0
        self._endpoint.submitted()

    def _send(self, address: PeerAddress, datagram: bytes) -> None:
        """Sent or lost, at once: DTLS and CoAP both send again."""
        try:
            self._socket.send(datagram, address)
        except OSError:
            self._lost += 1

    # --- Handshakes --------------------------------------------------------------------------------------------------

    def _take_hello(self, hello: bytes, address: PeerAddress) -> None:
        self._hellos += 1
        if self._hellos > HELLOS_PER_WAKE_UP:
            self._hellos_dropped += 1
            return
        name = repr(address).encode()
        prestate = self._context.prestate(hello, name)
        if prestate is None:
            self._send(address, self._context.challenge(name))
            return
        key, former = hello_key(hello), self._half_open.get(address)
        for known in (former, self._sessions.get(address)):
            if known is not None and known.hello == key:
                return  # said again; so will our flight be, when its time has come
        if former is not None:
            del self._half_open[address]
            former.scope.cancel()
        arrived, arriving = trio.open_memory_channel[list[bytes]](_MAX_WAITING_DATAGRAMS)
        arrived.send_nowait([hello])
        scope = trio.CancelScope(deadline=trio.current_time() + HANDSHAKE_SECONDS)
        half_open = self._half_open[address] = _HalfOpen(key, arrived, scope)
        self._nursery.start_soon(self._shake_hands, address, half_open, prestate, arriving)
        if len(self._half_open) > self._limits.half_open_handshakes:
            self._half_open.popitem(last=False)[1].scope.cancel()
            self._evicted += 1

    async def _shake_hands(
        self,
        address: PeerAddress,
        half_open: _HalfOpen,
        prestate: Prestate,
        arriving: trio.MemoryReceiveChannel[list[bytes]],
    ) -> None:
        """The edge of one peer: what is raised in it ends it and touches nothing else."""
        connection: DtlsConnection | None = None
        try:
            with half_open.scope:
                connection = await self._connect(address, prestate, arriving)
            if connection is not None:
                self._handshakes += 1
                self._open_session(address, connection, half_open.hello)
        except ConnectionOver:
            pass  # it gave up, or could not show what it had to show
        except Exception:  # noqa: BLE001 - the one catch for bugs of ours in a handshake
            _log.exception("coap_handshake_failed")
        if self._half_open.get(address) is half_open:
            del self._half_open[address]
        if connection is None:
            self._failed += 1

    async def _connect(
        self, address: PeerAddress, prestate: Prestate, arriving: trio.MemoryReceiveChannel[list[bytes]]
    ) -> DtlsConnection:
        connection = DtlsConnection(self._context, partial(self._send, address), prestate)
        identities: set[bytes] = set()
        changes = 0
        while True:
            flight: list[bytes] = []
            with trio.move_on_after(max(connection.retransmits_in, _SOONEST_RETRANSMISSION_SECONDS)):
                flight = await arriving.receive()
            for record in flight or (None,):  # None: it is time to send again
                if record is not None:
                    changes += record[0] == CHANGE_CIPHER_SPEC
                    if changes > _CHANGES_PER_HANDSHAKE:
                        raise ConnectionOver("too many records")
                    identity = psk_identity(record)
                    if identity is not None and identity not in identities and len(identities) < _KEYS_PER_HANDSHAKE:
                        identities.add(identity)
                        connection.key = await self._find_key(identity) or connection.key
                if connection.shake_hands(record):
                    return connection

    async def _find_key(self, identity: bytes) -> tuple[bytes, bytes] | None:
        """A device and its key, read anew for each handshake; None when there is none.

        Raises ConnectionOver when it cannot be told, so that no device takes itself for an unknown one.
        """
        async with self._keys_at_once:
            try:
                key = await self._services.devices.registry.pre_shared_key(identity.decode(), self._services.core.vault)
            except Exception as error:
                _log.exception("coap_key_not_read", device=identity.decode())
                raise ConnectionOver("its key could not be read") from error
        return None if key is None else (identity, key)

    # --- Sessions ----------------------------------------------------------------------------------------------------

    def _open_session(self, address: PeerAddress, connection: DtlsConnection, hello: int) -> None:
        endpoint = self._endpoint
        if self._sessions.pop(address, None) is not None and (former := endpoint.find(address)) is not None:
            self._close(former)  # its peer has begun anew
        self._sessions[address] = _Open(_ignore, hello)  # so that it is told if it has to go at once
        session = endpoint.open(
            address,
            partial(self._send_in, connection),
            partial(self._end, address, connection),
            idle_seconds=COAP_IDLE_SECONDS,
            is_verified=True,
            certificate=connection.certificate,
        )
        if not session.is_closed:
            self._sessions[address] = _Open(partial(self._take, connection, session), hello)

    def _take(self, connection: DtlsConnection, session: Session, record: bytes) -> None:
        try:
            message = connection.receive(record)
            if message:
                self._endpoint.receive(session, message)
        except ConnectionOver:
            self._close(session)
        except Exception:  # noqa: BLE001 - the one catch for bugs of ours in a session
            _log.exception("coap_session_failed")
            self._close(session)

    def _close(self, session: Session) -> None:
        try:
            self._endpoint.close(session)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("coap_session_failed")
            session.end()

    def _send_in(self, connection: DtlsConnection, message: bytes) -> None:
        try:
            connection.send(message)
        except ConnectionOver:  # it is over, or its peer takes only shorter ones
            self._lost += 1

    def _end(self, address: PeerAddress, connection: DtlsConnection) -> None:
        if self._sessions.pop(address, None) is not None:  # otherwise its peer knows
            with suppress(ConnectionOver):
                connection.say_goodbye()
        connection.close()

    def statistics(self) -> DtlsStatistics:
        return DtlsStatistics(
            sessions=len(self._sessions),
            half_open=len(self._half_open),
            handshakes=self._handshakes,
            handshakes_failed=self._failed,
            half_open_evicted=self._evicted,
            hellos_dropped=self._hellos_dropped,
            datagrams_lost=self._lost,
        )


def _ignore(_record: bytes) -> None:
    """Of a session that is about to be opened."""
