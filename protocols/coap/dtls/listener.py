"""The CoAP listener over DTLS: handshakes and sessions.

- **Before the cookie** a peer costs one hash and leaves no connection. `DatagramStrangers` bounds how many ClientHellos
  are answered, so a flood of them does not starve the sessions.
- **A handshake** is a task. A thread takes its steps, which are long, one handshake at a time. Device keys are in the
  store, and GnuTLS cannot wait for them, so a record that names an identity is passed to GnuTLS after its key was read.
- **A session** has no task. Its records are decrypted as they are read, so all messages of one wake-up are submitted
  together. Its responses are encrypted as they are sent. A handshake from the address of a session does not affect the
  session until it is complete, so an attacker who sends a peer's old ClientHello again does no harm.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import trio

from broker.messages.claims import WRONG
from broker.registration.certificates import ClientCertificate
from broker.threads import RunInThread, finish_in_thread
from broker.trace.origin import Origin, concerning, current_origin, enter
from config.limits import COAP_IDLE_SECONDS
from config.settings import Address
from protocols.coap.containment import Failure, contain_async
from protocols.coap.dtls.connection import PRIORITIES, DtlsConnection, DtlsContext
from protocols.coap.dtls.errors import ConnectionOver
from protocols.coap.dtls.gnutls import Prestate
from protocols.coap.dtls.records import (
    APPLICATION_DATA,
    CHANGE_CIPHER_SPEC,
    hello_key,
    is_client_hello,
    is_in_clear,
    psk_identity,
    records,
    session_id,
)
from protocols.coap.dtls.resumption import KeptSession, KeptSessions
from protocols.coap.dtls.self_test import self_test
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.recvmmsg import PeerAddress
from protocols.coap.session import CoapSession, S, SessionLimits
from protocols.coap.sockets import STRANGER_WEIGHT, DatagramSockets, read_forever
from protocols.coap.statistics import DtlsStatistics, EndpointStatistics
from protocols.coap.strangers import HELLOS_PER_SECOND, DatagramStrangers
from protocols.rooms import CoapRooms
from protocols.streams.tls import Chain, require_two_kinds

_HANDSHAKE_SECONDS = 30.0
_MAX_WAITING_DATAGRAMS = 16
_EARLY_DATAGRAMS = 4
_KEYS_AT_ONCE = 2
_KEYS_PER_HANDSHAKE = 4
#: A client sends one ChangeCipherSpec with each of its flights. GnuTLS keeps each early one, which takes 4 KiB.
_CHANGES_PER_HANDSHAKE = 16
#: A lower bound, because GnuTLS also calls a flight overdue while it waits for the rest of the peer's flight.
_SOONEST_RETRANSMISSION_SECONDS = 0.25


class DtlsEndpoint(Protocol[S]):
    """Interface of the endpoint behind a listener; `SessionEndpoint` explains the methods."""

    contained: Callable[..., object]
    submitted: Callable[[], None]
    now: Callable[[], float]

    def open(
        self,
        key: Hashable,
        send: Callable[[bytes], None],
        end: Callable[[], None],
        *,
        idle_seconds: float,
        is_address_verified: bool,
        certificate: ClientCertificate | None,
    ) -> S: ...

    def find(self, key: Hashable) -> S | None: ...

    def close(self, session: S) -> None: ...

    def replaced(self, former: S, session: S) -> None: ...

    def receive(self, session: S, datagram: bytes) -> None: ...

    def tick(self, now: float) -> None: ...

    def start(self, nursery: trio.Nursery) -> None: ...

    async def stop(self) -> None: ...

    def statistics(self) -> EndpointStatistics: ...


class DtlsListener:
    """One UDP socket and its DTLS sessions."""

    def __init__(
        self,
        rooms: CoapRooms,
        *,
        endpoint: DtlsEndpoint[Any] | None = None,
        limits: SessionLimits | None = None,
        priorities: bytes = PRIORITIES,
        run: RunInThread = finish_in_thread,
    ) -> None:
        """`run` runs the steps of handshakes."""
        self._rooms = rooms
        self._run = run
        self._priorities = priorities
        # For the default of 10,000 sessions GnuTLS holds 110 MiB, which `bytes_held` does not count.
        self._limits = limits or SessionLimits()
        self.endpoint: DtlsEndpoint[Any] = endpoint or CoapEndpoint(rooms, limits=self._limits)
        self._peers: _Peers | None = None

    async def serve(
        self, bind: Address, first: Chain | None, second: Chain | None = None, *, task_status: trio.TaskStatus[Address]
    ) -> None:
        """Serve until cancelled, as `serve_coap_dtls`; without a chain for pre-shared keys only."""
        if first is not None and second is not None:
            require_two_kinds(first, second)
        self_test()
        context = self._context(first, second)
        with await DatagramSockets.bound(bind) as sock:
            try:
                async with trio.open_nursery() as nursery:
                    self.endpoint.start(nursery)
                    peers = _Peers(self._rooms, self.endpoint, self._limits, sock, context, nursery, self._run)
                    self._peers = peers
                    task_status.started(sock.address)
                    await read_forever(sock, self._rooms.messages.ingest, peers.take, peers.taken)
            finally:
                await self.endpoint.stop()

    def _context(self, first: Chain | None, second: Chain | None) -> DtlsContext:
        chains = [chain for chain in (first, second) if chain is not None]
        return DtlsContext(chains, now=trio.current_time, priorities=self._priorities)

    def prepare(self, first: Chain | None, second: Chain | None) -> Callable[[], None]:
        """Read other certificates; the function that is returned puts them into use for handshakes to come.

        Raises:
            OSError: a certificate cannot be used.
        """
        if first is not None and second is not None:
            require_two_kinds(first, second)
        context, peers = self._context(first, second), self._peers

        def put_into_use() -> None:
            if peers is not None:
                peers.use(context)

        return put_into_use

    def statistics(self) -> DtlsStatistics:
        return DtlsStatistics() if self._peers is None else self._peers.statistics()


async def serve_coap_dtls(
    rooms: CoapRooms,
    bind: Address,
    certificate: Path,
    key: Path,
    *,
    second: Chain | None = None,
    listener: DtlsListener | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, then tell every observer and end every session with close_notify.

    Args:
        rooms: the broker.
        bind: where to listen.
        certificate: the server's chain in PEM, ECDSA or RSA.
        key: its private key.
        second: another chain and its key, of the other kind.
        listener: what serves, for a caller that reads its statistics; by default a new one.
        task_status: gets the bound address.

    Raises:
        DtlsUnavailable: GnuTLS is missing or the self-test failed. Nothing was opened.
        OSError: the address cannot be bound, or a certificate cannot be used.
    """
    listener = listener or DtlsListener(rooms)
    await listener.serve(bind, (certificate, key), second, task_status=task_status)


class _DtlsSession(NamedTuple):
    """Receiver of a session's records, and the key of the ClientHello that began it."""

    take: Callable[[bytes], object]
    hello: int


class _Handshake(NamedTuple):
    """A handshake under way, and the key of the ClientHello that began it."""

    hello: int
    arrived: trio.MemorySendChannel[list[bytes]]
    scope: trio.CancelScope
    #: The session that the peer asks to resume.
    session_id: bytes
    #: Records of messages: a peer that resumes a session sends the first one behind its Finished.
    early: list[list[bytes]]


@dataclass(eq=False)
class _Peers:
    """The handshakes and sessions on one socket, by the address of the peer.

    No peers yet. Handshakes will be tasks of `nursery`, and `run` runs their steps.
    """

    _rooms: CoapRooms
    _endpoint: DtlsEndpoint[Any]
    _limits: SessionLimits
    _socket: DatagramSockets
    _context: DtlsContext
    _nursery: trio.Nursery
    _run: RunInThread

    def __post_init__(self) -> None:
        self._kept = KeptSessions(self._endpoint.now)
        self._half_open: OrderedDict[PeerAddress, _Handshake] = OrderedDict()
        self._sessions: dict[PeerAddress, _DtlsSession] = {}
        self._keys_at_once = trio.CapacityLimiter(_KEYS_AT_ONCE)
        self._one_step = trio.Lock()
        self._one_thread = trio.CapacityLimiter(1)
        self._hellos = DatagramStrangers(self._endpoint.now, per_second=HELLOS_PER_SECOND)
        self._handshakes = self._resumed = self._failed = self._evicted = self._lost = 0

    def use(self, context: DtlsContext) -> None:
        """Handshakes to come have this context, and are full ones: the former certificate may be known to others."""
        self._context = context
        self._kept = KeptSessions(self._endpoint.now)

    # --- In ----------------------------------------------------------------------------------------------------------

    def take(self, address: PeerAddress, datagram: bytes) -> int:
        """Take a datagram from an address. Returns its weight, as `read_forever` needs it."""
        found = records(datagram)
        if not found:
            return 1
        if found[0][0] != APPLICATION_DATA:
            if is_client_hello(found[0]):
                if not self._hellos.admits(address):
                    return 0
                self._take_hello(found[0], address)
                return STRANGER_WEIGHT
            half_open = self._half_open.get(address)
            if half_open is not None:
                with suppress(trio.WouldBlock):  # then it is lost, and the peer sends it again
                    half_open.arrived.send_nowait(found)
                if is_in_clear(found[0]):
                    return 1
                # An encrypted record may also be the close_notify of the session. Each side drops what is not for it.
        elif (half_open := self._half_open.get(address)) is not None and len(half_open.early) < _EARLY_DATAGRAMS:
            half_open.early.append(found)
        session = self._sessions.get(address)
        if session is not None:
            for record in found:
                session.take(record)
        return len(found)

    def taken(self) -> None:
        """All datagrams of one wake-up have been taken."""
        self._endpoint.submitted()

    def _send(self, address: PeerAddress, datagram: bytes) -> None:
        """Send a datagram or lose it. Handshakes and CoAP have retransmissions."""
        try:
            self._socket.send(datagram, address)
        except OSError:
            self._lost += 1

    # --- Handshakes --------------------------------------------------------------------------------------------------

    def _take_hello(self, hello: bytes, address: PeerAddress) -> None:
        name = repr(address).encode()
        prestate = self._context.prestate(hello, name)
        if prestate is None:
            self._send(address, self._context.challenge(name))
            return
        key, former = hello_key(hello), self._half_open.get(address)
        for known in (former, self._sessions.get(address)):
            if known is not None and known.hello == key:
                return  # a retransmission; the flight that answers it has its own
        if former is not None:
            del self._half_open[address]
            former.scope.cancel()
        arrived, arriving = trio.open_memory_channel[list[bytes]](_MAX_WAITING_DATAGRAMS)
        arrived.send_nowait([hello])
        scope = trio.CancelScope(deadline=trio.current_time() + _HANDSHAKE_SECONDS)
        handshake = self._half_open[address] = _Handshake(key, arrived, scope, session_id(hello), [])
        self._nursery.start_soon(self._shake_hands, address, handshake, prestate, arriving)
        if len(self._half_open) > self._limits.half_open_handshakes:
            self._half_open.popitem(last=False)[1].scope.cancel()
            self._evicted += 1

    async def _shake_hands(
        self,
        address: PeerAddress,
        handshake: _Handshake,
        prestate: Prestate,
        arriving: trio.MemoryReceiveChannel[list[bytes]],
    ) -> None:
        is_done = await contain_async(
            "coap_handshake_failed", address, self._complete, address, handshake, prestate, arriving
        )
        if self._half_open.get(address) is handshake:
            del self._half_open[address]
        if is_done is not True:
            self._failed += 1

    async def _complete(
        self,
        address: PeerAddress,
        handshake: _Handshake,
        prestate: Prestate,
        arriving: trio.MemoryReceiveChannel[list[bytes]],
    ) -> bool:
        """Shake hands and open a session. Returns whether the peer has done its part in time."""
        enter(Origin(address[0]))
        connection: DtlsConnection | None = None
        reason = "took too long"
        try:
            with handshake.scope:
                connection = await self._connect(address, prestate, arriving, handshake.session_id)
        except ConnectionOver as over:
            reason = str(over)
        if connection is None:
            # A handshake that was cancelled has made room for another, and is not refused.
            if not handshake.scope.cancelled_caught or trio.current_time() >= handshake.scope.deadline:
                self._rooms.core.refusals.note("dtls_refused", reason=reason)
                if named := current_origin().account:  # records under a wrong key are as if they had not come
                    self._rooms.messages.claims.note_unproven(named, f"DTLS: {WRONG}, or its records were lost")
            return False
        self._handshakes += 1
        self._open_session(address, connection, handshake.hello)
        for found in handshake.early:
            if (session := self._sessions.get(address)) is not None:
                for record in found:
                    session.take(record)
        if handshake.early:
            self.taken()
        return True

    async def _connect(
        self,
        address: PeerAddress,
        prestate: Prestate,
        arriving: trio.MemoryReceiveChannel[list[bytes]],
        session_id: bytes,
    ) -> DtlsConnection:
        context = self._context
        kept, known = await self._resumable(address, session_id)
        connection = DtlsConnection(
            context, partial(self._send, address), prestate, resumes=None if kept is None else kept.session
        )
        identities: set[bytes] = set()
        changes = 0
        while True:
            flight: list[bytes] = []
            with trio.move_on_after(max(connection.retransmits_in, _SOONEST_RETRANSMISSION_SECONDS)):
                flight = await arriving.receive()
            for record in flight or (None,):  # None: the flight is overdue, send it again
                if record is not None:
                    changes += record[0] == CHANGE_CIPHER_SPEC
                    if changes > _CHANGES_PER_HANDSHAKE:
                        raise ConnectionOver("too many records")
                    identity = psk_identity(record)
                    if identity is not None and identity not in identities and len(identities) < _KEYS_PER_HANDSHAKE:
                        identities.add(identity)
                        connection.key = await self._find_key(address, identity) or connection.key
                is_done = await self._step(connection, record)
                if is_done:
                    if connection.is_resumed:
                        connection.used_key = known
                        self._resumed += 1
                    return connection

    async def _resumable(
        self, address: PeerAddress, id_: bytes
    ) -> tuple[KeptSession | None, tuple[bytes, bytes] | None]:
        """The session of a peer, and its identity and key if it has a pre-shared one, which must be the one of now.

        Raises:
            ConnectionOver: the key could not be read.
        """
        kept = self._kept.find(id_)
        if kept is None or kept.key is None:
            return kept, None
        known = await self._find_key(address, kept.device.encode())
        if known is not None and kept.has(known[1]):
            return kept, known
        self._kept.forget(id_)
        return None, None

    async def _step(self, connection: DtlsConnection, record: bytes | None) -> bool:
        """Continue a handshake. Returns whether it is done, at once: the peer may send its first message already.

        Raises:
            ConnectionOver: the handshake has failed.
        """
        async with self._one_step:
            is_done = False
            try:
                is_done = await self._run(partial(connection.go_on, record), limiter=self._one_thread)
            finally:
                connection.handshake_stepped(is_done=is_done)
            return is_done

    async def _find_key(self, address: PeerAddress, identity: bytes) -> tuple[bytes, bytes] | None:
        """A device id and its key, from the store; None when the device does not exist.

        Raises:
            ConnectionOver: the key could not be read. An alert would tell the device that it does not exist.
        """
        device, read = identity.decode(), self._rooms.devices.registry.pre_shared_key
        async with self._keys_at_once:
            key = await contain_async(
                "coap_key_not_read", address, read, device, self._rooms.core.vault, details={"device": device}
            )
        if isinstance(key, Failure):
            raise ConnectionOver("its key could not be read")
        if key is None:
            return None
        concerning(device)
        return identity, key

    # --- Sessions ----------------------------------------------------------------------------------------------------

    def _open_session(self, address: PeerAddress, connection: DtlsConnection, hello: int) -> None:
        endpoint = self._endpoint
        former = endpoint.find(address) if self._sessions.pop(address, None) is not None else None
        if former is not None:
            endpoint.close(former)  # without close_notify: its peer has begun a new connection
        self._sessions[address] = _DtlsSession(_ignore, hello)  # `_end` needs an entry if `open` ends it at once
        session = endpoint.open(
            address,
            partial(self._send_in, connection),
            partial(self._end, address, connection),
            idle_seconds=COAP_IDLE_SECONDS,
            is_address_verified=True,
            certificate=connection.certificate,
        )
        session.pre_shared_key = connection.used_key
        if not session.is_closed:
            id_ = self._keep(connection, session)
            take = partial(endpoint.contained, address, self._take, connection, session, id_)
            self._sessions[address] = _DtlsSession(take, hello)
            if former is not None:
                endpoint.replaced(former, session)

    def _keep(self, connection: DtlsConnection, session: CoapSession) -> bytes:
        """Keep a session to be resumed, as soon as its peer has proved which device it is. Returns its id."""
        begun, connection.resumable = connection.resumable, None
        resumed, connection.resumes = connection.resumes, None
        if begun is None:
            return b"" if resumed is None else resumed.id
        if (used := connection.used_key) is not None:
            self._kept.keep(begun, used[1], used[0].decode())
        else:
            session.keep = partial(self._kept.keep, begun, None)
        return begun.id

    def _take(self, connection: DtlsConnection, session: CoapSession, id_: bytes, record: bytes) -> None:
        try:
            message = connection.receive(record)
            if message:
                self._endpoint.receive(session, message)
        except ConnectionOver:
            if connection.has_failed:  # RFC 5246, 7.2.2
                self._kept.forget(id_)
            self._endpoint.close(session)

    def _send_in(self, connection: DtlsConnection, message: bytes) -> None:
        try:
            connection.send(message)
        except ConnectionOver:  # it has ended, or the message is too long for its peer
            self._lost += 1

    def _end(self, address: PeerAddress, connection: DtlsConnection) -> None:
        try:
            if self._sessions.pop(address, None) is not None:  # otherwise the peer has begun a new connection
                with suppress(ConnectionOver):
                    connection.send_close_notify()
        finally:
            connection.close()

    def statistics(self) -> DtlsStatistics:
        return DtlsStatistics(
            sessions=len(self._sessions),
            half_open=len(self._half_open),
            handshakes=self._handshakes,
            handshakes_resumed=self._resumed,
            handshakes_failed=self._failed,
            half_open_evicted=self._evicted,
            hellos_dropped=self._hellos.dropped,
            datagrams_lost=self._lost,
        )


def _ignore(_record: bytes) -> None:
    """Takes the records of a session while it is being opened: none can come."""
