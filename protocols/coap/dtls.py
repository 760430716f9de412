"""The CoAP listener over DTLS: `trio.DTLSEndpoint` for handshakes and endings, and a straight way for what is said.

trio answers first ClientHellos without holding anything and gives us a channel for each peer that has shown its cookie.
Its task does the handshake and then waits for alerts. What the peers say is decrypted where it is read, so that all
that came in one go is submitted together, and answers are encrypted where they are given. Whatever OpenSSL raises about
a peer, its close_notify included, ends that peer's session only.
"""

from collections import OrderedDict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, cast

import structlog
import trio
from OpenSSL import SSL

from broker.services import Services
from config.limits import COAP_IDLE_SECONDS
from config.settings import Address
from protocols.coap.datagrams import DtlsDatagrams
from protocols.coap.endpoint import Endpoint
from protocols.coap.handshakes import (
    PreSharedKeys,
    client_certificate,
    decrypted,
    encrypted,
    self_test,
    server_context,
)
from protocols.coap.server import say_goodbye
from protocols.coap.session import Session, SessionLimits
from protocols.coap.sockets import DatagramSocket, PeerAddress, read_forever
from protocols.coap.statistics import DtlsStatistics
from protocols.tls import Chain

HANDSHAKE_SECONDS: Final = 30.0
WAITING_PER_SESSION: Final = 64
#: OpenSSL 4.0 holds 63 KiB for each: 21 are a buffer for handshakes that it keeps, 13 are its record layers.
MAX_SESSIONS: Final = 5_000
_KEY_WORKERS = 2

_log = structlog.get_logger(__name__)


async def serve_coap_dtls(
    services: Services,
    bind: Address,
    certificate: Path,
    key: Path,
    *,
    second: Chain | None = None,
    listener: "DtlsListener | None" = None,
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
        DtlsUnavailable: the self-test failed; nothing was opened.
        OSError: the address cannot be bound, or the certificate cannot be read.
    """
    listener = listener or DtlsListener(services)
    await listener.serve(bind, (certificate, key), second, task_status=task_status)


class DtlsListener:
    """One UDP socket and its DTLS sessions."""

    def __init__(self, services: Services, *, endpoint: Endpoint | None = None, limits: SessionLimits | None = None):
        self._services = services
        self._limits = limits or SessionLimits(sessions=MAX_SESSIONS)
        self.endpoint = endpoint or Endpoint(services, limits=self._limits)
        self._keys = PreSharedKeys()
        self._half_open: OrderedDict[PeerAddress, trio.CancelScope] = OrderedDict()
        self._datagrams: DtlsDatagrams | None = None
        self._sessions = self._handshakes = self._failed = self._evicted = 0

    async def serve(
        self, bind: Address, first: Chain, second: Chain | None = None, *, task_status: trio.TaskStatus[Address]
    ) -> None:
        context = server_context(first, second, self._keys)
        await self_test()
        with await DatagramSocket.bound(bind) as sock:
            async with trio.open_nursery() as nursery:
                serving: trio.CancelScope = await nursery.start(self._serve_sessions, sock, context)
                task_status.started(sock.address)
                try:
                    await trio.sleep_forever()
                finally:
                    # Sessions outlive the listener by what there is to tell them.
                    await say_goodbye(self._services, self.endpoint)
                    serving.cancel()

    async def _serve_sessions(
        self, sock: DatagramSocket, context: SSL.Context, *, task_status: trio.TaskStatus[trio.CancelScope]
    ) -> None:
        datagrams = self._datagrams = DtlsDatagrams(sock, self._half_open)
        dtls = trio.DTLSEndpoint(cast("trio.socket.SocketType", datagrams), incoming_packets_buffer=WAITING_PER_SESSION)
        with dtls, trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as nursery:
                self.endpoint.start(nursery)
                nursery.start_soon(read_forever, sock, self._services.ingest, datagrams.take, self._taken)
                for _ in range(_KEY_WORKERS):
                    nursery.start_soon(self._find_keys_forever, datagrams)
                await nursery.start(dtls.serve, context, partial(self._contain, datagrams))
                task_status.started(scope)

    # --- Sessions ----------------------------------------------------------------------------------------------------

    async def _contain(self, datagrams: DtlsDatagrams, channel: trio.DTLSChannel) -> None:
        """The edge of one peer: what is raised in it ends it and touches nothing else."""
        try:
            if await self._shake_hands(channel):
                await self._converse(datagrams, channel)
        except (SSL.Error, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # it said goodbye, began anew, or made no sense
        except Exception:  # noqa: BLE001 - the one catch for bugs of ours in a session
            _log.exception("coap_session_failed")

    async def _shake_hands(self, channel: trio.DTLSChannel) -> bool:
        address = channel.peer_address
        with trio.move_on_after(HANDSHAKE_SECONDS) as scope:
            self._half_open[address] = scope
            if len(self._half_open) > self._limits.half_open_handshakes:
                self._half_open.popitem(last=False)[1].cancel()
                self._evicted += 1
            try:
                await channel.do_handshake()
            except (SSL.Error, trio.BrokenResourceError):
                self._failed += 1
                return False
            finally:
                if self._half_open.get(address) is scope:
                    del self._half_open[address]
            self._handshakes += 1
            return True
        self._failed += 1
        return False

    async def _converse(self, datagrams: DtlsDatagrams, channel: trio.DTLSChannel) -> None:
        endpoint, address, shown = self.endpoint, channel.peer_address, client_certificate(channel)
        with trio.CancelScope() as scope:
            send = partial(self._send, datagrams, channel)
            session = endpoint.open(channel, send, scope.cancel, idle_seconds=COAP_IDLE_SECONDS, is_verified=True)
            session.certificate = shown
            take = datagrams.sessions[address] = partial(self._take, session, channel, scope)
            self._sessions += 1
            try:
                while True:  # what came before it was known here; and an alert ends it
                    endpoint.receive(session, await channel.receive())
                    endpoint.submitted()
            finally:
                self._sessions -= 1
                if datagrams.sessions.get(address) is take:
                    del datagrams.sessions[address]
                endpoint.close(session)

    def _take(self, session: Session, channel: trio.DTLSChannel, scope: trio.CancelScope, record: bytes) -> None:
        try:
            datagram = decrypted(channel, record)
            if datagram:
                self.endpoint.receive(session, datagram)
        except SSL.Error:
            scope.cancel()
        except Exception:  # noqa: BLE001 - as in `_contain`
            _log.exception("coap_session_failed")
            scope.cancel()

    def _taken(self) -> None:
        if self._datagrams is not None:
            self._datagrams.taken()
        self.endpoint.submitted()

    @staticmethod
    def _send(datagrams: DtlsDatagrams, channel: trio.DTLSChannel, datagram: bytes) -> None:
        with suppress(SSL.Error):  # the session is over
            datagrams.send(encrypted(channel, datagram), channel.peer_address)

    # --- Keys --------------------------------------------------------------------------------------------------------

    async def _find_keys_forever(self, datagrams: DtlsDatagrams) -> None:
        async for address, identity in datagrams.held:
            key: bytes | None = None
            try:
                key = await self._services.devices.pre_shared_key(identity.decode(), self._services.vault)
            except Exception:  # noqa: BLE001 - a store or a secret that cannot be read: this handshake fails, others need not
                _log.exception("coap_key_not_read", device=identity.decode())
            self._keys.put(identity, key)
            datagrams.release(address)

    def statistics(self) -> DtlsStatistics:
        datagrams = self._datagrams
        return DtlsStatistics(
            sessions=self._sessions,
            half_open=len(self._half_open),
            handshakes=self._handshakes,
            handshakes_failed=self._failed,
            half_open_evicted=self._evicted,
            hellos_dropped=0 if datagrams is None else datagrams.hellos_dropped,
            datagrams_lost=0 if datagrams is None else datagrams.lost,
        )
