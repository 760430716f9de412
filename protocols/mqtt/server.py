"""The MQTT listener: bytes between a socket and a conversation (session.py) with the broker (exchange.py).

One task reads and one writes for each connection; most of the time the second has nothing to do, because answers that
the socket takes at once are sent where they arise.
"""

import math
from collections.abc import Sequence
from functools import partial

import structlog
import trio

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import DomainError, StorageUnavailable
from broker.limits.meters import Channel
from broker.services import Services
from config.limits import MQTT_CONNECT_SECONDS
from config.settings import Address
from protocols.listeners import end_gently, sender_at_once, serve_tcp
from protocols.mqtt.decoding import PacketReader
from protocols.mqtt.errors import connack_code
from protocols.mqtt.exchange import Exchange, log_fault
from protocols.mqtt.packets import Packet, ProtocolError
from protocols.mqtt.session import CredentialsOffered, MqttSession
from protocols.outbox import Outbox
from protocols.tls import TlsContext, client_certificate
from storage.sql import StoreError

GOODBYE_SECONDS = 1.0
_RECEIVE_BYTES = 65536


async def serve_mqtt(
    services: Services,
    bind: Address,
    *,
    connections: trio.Nursery,
    ssl_context: TlsContext | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept MQTT connections until cancelled. Raises OSError when the address cannot be bound."""
    await serve_tcp(
        bind,
        partial(converse, services),
        protocol="mqtt",
        connections=connections,
        ssl_context=ssl_context,
        task_status=task_status,
    )


async def converse(services: Services, stream: trio.abc.Stream) -> None:
    """One connection, from its first byte to its last."""
    await _Connection(services, stream).run()


class _Connection:
    __slots__ = (
        "_exchange",
        "_has_peer",
        "_is_over",
        "_outbox",
        "_reader",
        "_scope",
        "_services",
        "_session",
        "_stream",
    )

    def __init__(self, services: Services, stream: trio.abc.Stream) -> None:
        self._services = services
        self._stream = stream
        self._reader = PacketReader()
        self._session = MqttSession()
        self._outbox = Outbox(stream.send_all, send_now=sender_at_once(stream))
        self._scope = trio.CancelScope()  # of everything that waits for what the peer sends
        self._exchange: Exchange | None = None  # once the device is known
        self._has_peer = True
        self._is_over = False  # the peer has closed, or what it sends cannot be trusted any more

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outbox.send_forever)
            stranger = trio.CancelScope()
            nursery.start_soon(self._end_when_stopping, stranger)
            with self._scope:
                # A stranger has this long to send a whole CONNECT, however slowly.
                self._scope.deadline = trio.current_time() + MQTT_CONNECT_SECONDS
                offered, packets = await self._receive_connect()
                admitted = await self._authenticate(offered) if offered is not None else None
                stranger.cancel()
                if offered is not None and admitted is not None:
                    await self._serve(*admitted, packets, offered.keep_alive_seconds * 1.5 or math.inf)
            await self._say_goodbye()
            nursery.cancel_scope.cancel()

    async def _end_when_stopping(self, stranger: trio.CancelScope) -> None:
        """Of connected devices the broker takes leave itself."""
        with stranger:
            await self._services.core.life.stopping.wait()
            self._scope.cancel()

    async def _receive(self) -> Sequence[Packet]:
        received = await self._stream.receive_some(_RECEIVE_BYTES)
        if not received:
            self._has_peer, self._is_over = False, True
            return ()
        try:
            return self._reader.feed(received)
        except ProtocolError as fault:
            log_fault(fault)
            self._is_over = True
            return fault.packets  # what came before the fault counts

    async def _receive_connect(self) -> tuple[CredentialsOffered | None, Sequence[Packet]]:
        """The peer's first packet, and what came with it. None when it was no CONNECT that can be answered."""
        while not (packets := await self._receive()):
            if self._is_over:
                return None, ()
        try:
            (event,) = self._session.receive(packets[0])
        except ProtocolError as fault:
            log_fault(fault)
            return None, ()
        self._outbox.put(self._session.take_output())
        return (event, packets[1:]) if isinstance(event, CredentialsOffered) else (None, ())

    async def _authenticate(self, offered: CredentialsOffered) -> tuple[Device, Caller] | None:
        try:
            if self._services.core.life.stopping.is_set():
                raise StorageUnavailable
            device, caller = await self._services.devices.registry.authenticate(offered.device_id, offered.token)
            self._services.registration.admission.check(device, client_certificate(self._stream))
            # reference 16.2: whoever has used up its rate limit is not let in. Connecting counts as no message.
            if (meter := self._services.limits.meters.of(Channel.MQTT, caller)) is not None:
                meter.check()
            return device, caller
        except (DomainError, StoreError) as error:
            refusal = error if isinstance(error, DomainError) else StorageUnavailable(str(error))
            self._outbox.put(self._session.refuse(connack_code(refusal)))
            return None

    async def _serve(self, device: Device, caller: Caller, packets: Sequence[Packet], silence_seconds: float) -> None:
        structlog.contextvars.bind_contextvars(device=device.id)
        exchange = self._exchange = Exchange(
            self._services,
            device,
            self._services.limits.meters.of(Channel.MQTT, caller),
            self._session,
            self._outbox,
            self._scope.cancel,
        )
        with self._services.routing.connections.connect(
            device,
            protocol="MQTT",
            token=caller.token,
            exclusive=True,
            deliver=exchange.deliver,
            close=exchange.close,
        ):
            self._outbox.put(self._session.accept())
            try:
                await self._read_on(exchange, packets, silence_seconds)
            finally:
                exchange.leave()

    async def _read_on(self, exchange: Exchange, packets: Sequence[Packet], silence_seconds: float) -> None:
        ingest, outbox, scope = self._services.messages.ingest, self._outbox, self._scope
        scope.deadline = trio.current_time() + silence_seconds
        while True:
            exchange.handle(packets)
            if self._is_over or self._session.is_closed:
                return
            if not (ingest.has_room and outbox.has_room and exchange.has_room):
                scope.deadline = math.inf  # whoever is not listened to cannot be silent
                await ingest.wait_room()
                await exchange.wait_room()
                scope.deadline = trio.current_time() + silence_seconds
                await outbox.wait_empty()
            elif packets:  # half a packet is no sign of life
                scope.deadline = trio.current_time() + silence_seconds
            packets = await self._receive()

    async def _say_goodbye(self) -> None:
        """Let the peer have what it has earned; then the socket closes."""
        if self._exchange is not None:
            await self._exchange.wait_acknowledged()
        with trio.move_on_after(GOODBYE_SECONDS, shield=True):
            await self._outbox.wait_empty()
            if self._has_peer:
                await end_gently(self._stream)
