"""The MQTT listener: moves bytes between a socket, the protocol (session.py) and the broker (exchange.py).

Each connection has a task that reads. A second one writes as soon as the operating system has not taken all at once.
"""

import math
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
import trio

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import DomainError, StorageUnavailable
from broker.limits.meters import Channel, Meter
from broker.routing.connections import DeviceLink
from broker.trace.origin import concerning
from config.limits import MQTT_CONNECT_SECONDS, MQTT_OPEN_FILTERS_MAX, OPEN_PACKETS_PER_TURN, PACKETS_PER_TURN
from config.settings import Address
from protocols.mqtt.answers import Reason
from protocols.mqtt.decoding import PacketReader
from protocols.mqtt.errors import connect_reason
from protocols.mqtt.exchange import MqttExchange, note_fault
from protocols.mqtt.negotiation import keep_alive
from protocols.mqtt.packets import Connect, Packet, ProtocolError, ReasonCode
from protocols.mqtt.rooms import MqttRooms
from protocols.mqtt.session import CredentialsOffered, MqttSession
from protocols.refusals import note_refusal, refusal_for
from protocols.streams.hub import Hub
from protocols.streams.listeners import Entrance, end_gently, sender_at_once, serve_tcp
from protocols.streams.outbox import Outbox
from protocols.streams.peers import authenticated, turn_of_strangers
from protocols.streams.tls import TlsContext, peer_certificate
from storage.sql import StoreError

_GOODBYE_SECONDS = 1.0
_RECEIVE_BYTES = 65536

_log = structlog.get_logger(__name__)


async def serve_mqtt(
    rooms: MqttRooms,
    bind: Address,
    *,
    connections: trio.Nursery,
    ssl_context: TlsContext | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept MQTT connections until cancelled.

    Args:
        rooms: the broker.
        bind: where to listen.
        connections: the nursery in which connections go on when this listener has ended.
        ssl_context: for TLS; None for plain text.
        task_status: told the bound address.

    Raises:
        OSError: the address cannot be bound.
    """
    await serve_tcp(
        bind,
        partial(serve_mqtt_connection, rooms, hub=None if ssl_context else Hub(connections, rooms.core.life)),
        protocol="mqtt",
        refusals=rooms.core.refusals,
        life=rooms.core.life,
        connections=connections,
        entrance=Entrance.of(rooms.limits.strangers, rooms.limits.sockets, rooms.core.settings),
        ssl_context=ssl_context,
        task_status=task_status,
    )


def serve_mqtt_connection(
    rooms: MqttRooms, stream: trio.abc.Stream, *, hub: Hub | None = None
) -> Coroutine[Any, Any, None]:
    """Serve one connection from its first byte to its last. The hub reads from it where it is a plain socket."""
    if hub is None or not isinstance(stream, trio.SocketStream):
        return _serve_alone(rooms, stream)
    return _Connection(rooms, stream, hub, hub.connections).run()  # a coroutine around it would be held for as long


async def _serve_alone(rooms: MqttRooms, stream: trio.abc.Stream) -> None:
    async with trio.open_nursery() as nursery:
        await _Connection(rooms, stream, None, nursery).run()


class _Connection:
    __slots__ = (
        "_connect",
        "_exchange",
        "_fault",
        "_has_peer",
        "_heard_at",
        "_hub",
        "_ingest",
        "_is_broken",
        "_is_ended",
        "_is_over",
        "_outbox",
        "_reader",
        "_rooms",
        "_scope",
        "_send_at_once",
        "_session",
        "_silence_seconds",
        "_stream",
        "_tasks",
        "_writing",
    )

    def __init__(self, rooms: MqttRooms, stream: trio.abc.Stream, hub: Hub | None, tasks: trio.Nursery) -> None:
        """`tasks` is where the task runs that writes."""
        self._rooms = rooms
        self._stream = stream
        # In the open topic space, each packet may become many deliveries.
        is_open = rooms.topics.space is not None
        self._reader = PacketReader(
            packets_per_turn=OPEN_PACKETS_PER_TURN if is_open else PACKETS_PER_TURN, waits_for_admission=is_open
        )
        self._session = MqttSession()
        self._send_at_once = sender_at_once(stream)
        self._outbox = Outbox(stream.send_all, send_now=None if self._send_at_once is None else self._send_now)
        self._tasks: trio.Nursery | None = tasks  # until the connection has ended
        self._writing: trio.CancelScope | None = None  # of the task that writes, once there is one
        self._is_broken = False  # that task has failed
        self._scope: trio.CancelScope  # of the present wait for the peer's packets
        self._connect: Connect | None = None  # until it is answered
        self._exchange: MqttExchange | None = None  # once the device is known
        self._fault: ProtocolError | None = None
        self._ingest = rooms.messages.ingest
        self._hub = hub
        self._heard_at = 0.0  # when the latest complete packet came
        self._silence_seconds = math.inf  # so long the peer may be silent
        self._has_peer = True
        self._is_over = False  # the peer has closed or broken the protocol
        self._is_ended = False  # nothing more is to be read

    async def run(self) -> None:
        try:
            if self._send_at_once is None:
                self._begin_to_write(self._tasks)
            link = await self._admit()
            if link is not None and self._exchange is not None:
                with link:
                    try:
                        await self._serve(self._exchange)
                    finally:
                        self._exchange.leave()
                await self._exchange.finish()
            if not self._is_broken:
                await self._say_goodbye()
        finally:
            self._tasks = None  # commits may still acknowledge what the peer has sent
            self._outbox.end()
            self._reader.end()
            if self._writing is not None:
                self._writing.cancel()

    def _send_now(self, data: bytes) -> int:
        """What the operating system takes at once. The task that writes the rest begins when it does not take all."""
        sent = 0 if self._send_at_once is None else self._send_at_once(data)
        if sent < len(data) and self._writing is None:
            self._begin_to_write(self._tasks)
        return sent

    def _begin_to_write(self, tasks: trio.Nursery | None) -> None:
        if tasks is not None:
            self._writing = trio.CancelScope()
            tasks.start_soon(self._write, self._writing)

    async def _write(self, writing: trio.CancelScope) -> None:
        """Send what waits. The nursery may have tasks of other connections: no error leaves this one."""
        with writing:
            try:
                await self._outbox.send_forever()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the peer has gone
            except Exception:  # noqa: BLE001 - a bug must end only its connection
                _log.exception("connection_failed", protocol="mqtt")
            self._is_broken = True
            self._end_reading()

    def _end_reading(self) -> None:
        """Nothing more is to be read from the peer: its fault, or the store's, or the broker closes the connection."""
        self._is_ended = True
        self._scope.cancel()

    async def _receive(self) -> Sequence[Packet]:
        """The packets of the connection's next turn; none while a packet is incomplete, and at the end."""
        if self._reader.is_behind:
            await trio.lowlevel.checkpoint()
            return self._decode(b"")
        received = await self._stream.receive_some(_RECEIVE_BYTES)
        return self._decode(received) if received else self._hear_the_end()

    def _hear_the_end(self) -> Sequence[Packet]:
        """The peer has closed."""
        self._has_peer, self._is_over = False, True
        return ()

    def _decode(self, received: bytes | bytearray) -> Sequence[Packet]:
        try:
            return self._reader.feed(received)
        except ProtocolError as fault:
            note_fault(self._rooms.core.refusals, fault)
            self._is_over, self._fault = True, fault.again()  # the raised one refers to this frame, and to what came
            return fault.packets  # the packets before the fault are processed

    async def _admit(self) -> DeviceLink | None:
        """Read the CONNECT. Returns the link of its device; None when there is none, or it comes too late."""
        life = self._rooms.core.life
        # The time limit for the whole CONNECT. When the daemon stops, the broker closes connections of devices only.
        with trio.CancelScope(deadline=trio.current_time() + MQTT_CONNECT_SECONDS) as self._scope:
            life.end_with_stop(self._scope)
            try:
                offered, packets = await self._receive_connect()
                admitted = None if offered is None else await self._authenticate(offered)
                if offered is not None and admitted is not None:
                    return self._link(*admitted, offered.packet, packets)
            finally:
                life.forget(self._scope)
        return None

    async def _receive_connect(self) -> tuple[CredentialsOffered | None, Sequence[Packet]]:
        """The credentials of the peer's CONNECT, and the packets that came with it; None for any other first packet."""
        while not (packets := await self._receive()):
            await turn_of_strangers()
            if self._is_over:
                if self._fault is not None:
                    self._session.fail(self._fault)
                return None, ()
        await turn_of_strangers()
        try:
            (event,) = self._session.receive(packets[0])
        except ProtocolError as fault:
            note_fault(self._rooms.core.refusals, fault)
            return None, ()
        self._outbox.put(self._session.take_output())
        return (event, packets[1:]) if isinstance(event, CredentialsOffered) else (None, ())

    async def _authenticate(self, offered: CredentialsOffered) -> tuple[Device, Caller, Meter | None] | None:
        try:
            if self._rooms.core.life.stopping.is_set():
                raise StorageUnavailable
            device, caller = await self._rooms.devices.registry.authenticate(offered.device_id, offered.token)
            self._rooms.registration.admission.check(device, peer_certificate(self._stream))
            # reference 16.2: a device that has used up its rate limit is refused. CONNECT does not count as a message.
            if (meter := self._rooms.limits.meters.of(Channel.MQTT, caller)) is not None:
                meter.check()
            authenticated(caller)
            return device, caller, meter
        except (DomainError, StoreError) as error:
            refusal = refusal_for(error)
            self._outbox.put(self._session.refuse(connect_reason(refusal)))
            self._rooms.messages.claims.note(offered.device_id, "MQTT", error)
            await self._note_refusal(refusal, offered.device_id)
            return None

    async def _note_refusal(self, refusal: DomainError, device_id: str) -> None:
        """Log the refusal, with the device if there is one of this id: a stranger's text may be a mistyped secret."""
        refusals = self._rooms.core.refusals
        if refusals.shows_next("mqtt_credentials_refused"):
            with suppress(DomainError, StoreError):
                concerning((await self._rooms.devices.registry.find(device_id)).id)
        note_refusal(refusals, "mqtt", refusal)

    def _link(
        self, device: Device, caller: Caller, meter: Meter | None, connect: Connect, packets: Sequence[Packet]
    ) -> DeviceLink:
        structlog.contextvars.bind_contextvars(device=device.id)
        caller.act()
        exchange = MqttExchange(self._rooms, device, meter, self._session, self._outbox, self._end_reading)
        exchange.left = packets
        if (space := self._rooms.topics.space) is not None:
            self._reader.admit(
                maximum_packet_size=self._rooms.core.settings.mqtt.packet_bytes,
                most_filters=MQTT_OPEN_FILTERS_MAX,
                arriving=space.arriving(device),
            )
            self._outbox.share(space.queued(device))
        self._exchange, self._connect = exchange, connect
        return self._rooms.routing.connections.connect(
            device,
            protocol="MQTT",
            token=caller.token,
            exclusive=True,
            deliver=exchange.deliveries.deliver,
            close=exchange.close,
        )

    async def _serve(self, exchange: MqttExchange) -> None:
        """Answer the CONNECT, then process packets until one side ends the connection or the peer is silent."""
        while not self._is_ended:
            with trio.CancelScope() as self._scope:
                if self._connect is None or await self._begin(exchange, self._connect):
                    await self._read_on(exchange)
                return
            if not self._session.is_open:
                return
            if trio.current_time() >= self._heard_at + self._silence_seconds:
                self._session.part(Reason(ReasonCode.KEEP_ALIVE_TIMEOUT))
                return

    async def _begin(self, exchange: MqttExchange, connect: Connect) -> bool:
        """Accept the connection, with its session; False when it cannot be."""
        self._connect = None
        if connect.will is not None or self._rooms.device_sessions.sessions is not None:  # the store answers
            self._scope.deadline = trio.current_time() + MQTT_CONNECT_SECONDS
        try:
            await exchange.begin(connect)
        except StoreError as error:
            if not self._session.is_closed:
                self._outbox.put(self._session.refuse(connect_reason(refusal_for(error))))
            return False
        self._heard_at = trio.current_time()
        self._silence_seconds = keep_alive(connect, self._rooms.core.settings.mqtt) * 1.5 or math.inf
        return self._session.is_open

    async def _read_on(self, exchange: MqttExchange) -> None:
        """Process packets until the connection is over. After a wait for the hub, a time limit may come too early: it
        does not move with each packet."""
        ingest, outbox, scope, silence_seconds = self._ingest, self._outbox, self._scope, self._silence_seconds
        packets = exchange.left
        while True:
            if packets:  # an incomplete packet does not count against silence
                self._heard_at = trio.current_time()
            exchange.handle(packets)
            if (self._is_over and not exchange.has_more) or self._session.is_closed:
                if self._fault is not None:
                    self._session.fail(self._fault)
                return
            if not (ingest.has_room and outbox.has_room and exchange.has_room):
                scope.deadline = math.inf  # no time limit while the server does not read
                await ingest.wait_room()
                await exchange.wait_room()
                self._heard_at = trio.current_time()
                scope.deadline = self._heard_at + silence_seconds
                await outbox.wait_empty()
            elif exchange.pace.owed:
                scope.deadline = math.inf
                await exchange.pace.wait()
                self._heard_at = trio.current_time()
            elif exchange.has_more or self._reader.is_behind:
                await trio.lowlevel.checkpoint()
            if exchange.has_more:
                packets = exchange.left
                continue
            if self._reader.is_behind:
                packets = self._decode(b"")
                continue
            scope.deadline = self._heard_at + silence_seconds
            if self._hub is None:
                packets = await self._receive()
            else:
                assert isinstance(self._stream, trio.SocketStream)  # noqa: S101 - otherwise there is no hub
                if not await self._hub.read(self._stream.socket, self._take):
                    self._hub = None
                packets = exchange.left

    def _take(self, received: bytes) -> bool:
        """Process what the hub has read. Returns whether it may go on."""
        exchange = self._exchange
        assert exchange is not None  # noqa: S101 - the connection is parked by a device
        packets = self._decode(received) if received else self._hear_the_end()
        if packets:
            self._heard_at = trio.current_time()
            exchange.handle(packets)
        return not (self._is_over or self._reader.is_behind or self._session.is_closed) and (
            exchange.may_read and self._ingest.has_room and self._outbox.has_room
        )

    async def _say_goodbye(self) -> None:
        """Send the outstanding acknowledgements, then close."""
        if self._exchange is not None:
            await self._exchange.wait_acknowledged()
        with trio.move_on_after(_GOODBYE_SECONDS) as self._scope:
            if self._has_peer:
                self._outbox.put(self._session.farewell)
            await self._outbox.wait_empty()
            if self._has_peer:
                await end_gently(self._stream)
