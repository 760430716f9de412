"""The CoAP listener over DTLS: `trio.DTLSEndpoint`, a task for each peer, and one that sends for all of them.

trio answers first ClientHellos without holding anything and gives us a channel for each peer that has shown its cookie.
Its task does the handshake and then reads. What there is to send for all of them goes through one task, because what
must be told is told synchronously, and trio's channels are not. Whatever OpenSSL raises about a peer, its close_notify
included, ends that peer's session only.
"""

from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, Final, cast

import structlog
import trio
from OpenSSL import SSL

from broker.services import Services
from config.limits import COAP_IDLE_SECONDS
from config.settings import Address
from protocols.coap.datagrams import DtlsDatagrams
from protocols.coap.endpoint import Endpoint
from protocols.coap.handshakes import PreSharedKeys, self_test, server_context
from protocols.coap.server import address_of, open_socket, say_goodbye
from protocols.coap.session import SessionLimits

HANDSHAKE_SECONDS: Final = 30.0
GOODBYE_SECONDS: Final = 1.0
WAITING_PER_SESSION: Final = 64
MAX_OUTGOING: Final = 20_000
#: OpenSSL 4.0 holds some 60 KiB for each.
MAX_SESSIONS: Final = 5_000
_KEY_WORKERS = 2

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DtlsStatistics:
    sessions: int
    half_open: int
    handshakes: int
    handshakes_failed: int
    half_open_evicted: int
    hellos_dropped: int
    datagrams_lost: int  # which came or went faster than they could be handled


async def serve_coap_dtls(
    services: Services,
    bind: Address,
    certificate: Path,
    key: Path,
    *,
    listener: "DtlsListener | None" = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; then tell every observer.

    Args:
        services: the broker.
        bind: where to listen.
        certificate: the server's chain in PEM, ECDSA or RSA.
        key: its private key.
        listener: one to look into from outside; by default one of its own.
        task_status: told the bound address.

    Raises:
        DtlsUnavailable: the self-test failed; nothing was opened.
        OSError: the address cannot be bound, or the certificate cannot be read.
    """
    listener = listener or DtlsListener(services)
    await listener.serve(bind, certificate, key, task_status=task_status)


class DtlsListener:
    """One UDP socket and its DTLS sessions."""

    def __init__(self, services: Services, *, endpoint: Endpoint | None = None, limits: SessionLimits | None = None):
        self._services = services
        self._limits = limits or SessionLimits(sessions=MAX_SESSIONS)
        self.endpoint = endpoint or Endpoint(services, limits=self._limits)
        self._keys = PreSharedKeys()
        self._half_open: OrderedDict[Any, trio.CancelScope] = OrderedDict()  # by address
        self._outgoing: deque[tuple[trio.DTLSChannel, bytes]] = deque()
        self._outgoing_wanted = trio.Event()
        self._datagrams: DtlsDatagrams | None = None
        self._sessions = self._handshakes = self._failed = self._evicted = self._lost = 0

    async def serve(
        self, bind: Address, certificate: Path, key: Path, *, task_status: trio.TaskStatus[Address]
    ) -> None:
        context = server_context(certificate, key, self._keys)
        await self_test()
        with await open_socket(bind) as sock:
            async with trio.open_nursery() as nursery:
                serving: trio.CancelScope = await nursery.start(self._serve_sessions, sock, context)
                task_status.started(address_of(sock))
                try:
                    await trio.sleep_forever()
                finally:
                    # Sessions outlive the listener by what there is to tell them.
                    await say_goodbye(self._services, self.endpoint)
                    with trio.move_on_after(GOODBYE_SECONDS, shield=True):
                        await self._send_waiting()
                    serving.cancel()

    async def _serve_sessions(
        self, sock: socket, context: SSL.Context, *, task_status: trio.TaskStatus[trio.CancelScope]
    ) -> None:
        datagrams = self._datagrams = DtlsDatagrams(sock, self._half_open)
        dtls = trio.DTLSEndpoint(cast("trio.socket.SocketType", datagrams), incoming_packets_buffer=WAITING_PER_SESSION)
        with dtls, trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as nursery:
                self.endpoint.start(nursery)
                nursery.start_soon(datagrams.feed_forever)
                nursery.start_soon(self._send_forever)
                for _ in range(_KEY_WORKERS):
                    nursery.start_soon(self._find_keys_forever, datagrams)
                await nursery.start(dtls.serve, context, self._contain)
                task_status.started(scope)

    # --- Sessions ----------------------------------------------------------------------------------------------------

    async def _contain(self, channel: trio.DTLSChannel) -> None:
        """The edge of one peer: what is raised in it ends it and touches nothing else."""
        try:
            if await self._shake_hands(channel):
                await self._converse(channel)
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

    async def _converse(self, channel: trio.DTLSChannel) -> None:
        endpoint, ingest = self.endpoint, self._services.ingest
        with trio.CancelScope() as scope:
            session = endpoint.open(
                channel, partial(self._send, channel), scope.cancel, idle_seconds=COAP_IDLE_SECONDS, is_verified=True
            )
            self._sessions += 1
            try:
                while True:
                    datagram = await channel.receive()
                    endpoint.receive(session, datagram)
                    endpoint.submitted()
                    if not ingest.has_room:
                        await ingest.wait_room()
            finally:
                self._sessions -= 1
                endpoint.close(session)

    # --- Out ---------------------------------------------------------------------------------------------------------

    def _send(self, channel: trio.DTLSChannel, datagram: bytes) -> None:
        if len(self._outgoing) >= MAX_OUTGOING:
            self._lost += 1
            return
        self._outgoing.append((channel, datagram))
        self._outgoing_wanted.set()

    async def _send_forever(self) -> None:
        while True:
            await self._outgoing_wanted.wait()
            self._outgoing_wanted = trio.Event()
            await self._send_waiting()

    async def _send_waiting(self) -> None:
        while self._outgoing:
            channel, datagram = self._outgoing.popleft()
            with suppress(SSL.Error, trio.BrokenResourceError, trio.ClosedResourceError):
                await channel.send(datagram)

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
            datagrams_lost=self._lost + (0 if datagrams is None else datagrams.lost),
        )
