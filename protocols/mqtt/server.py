"""The MQTT listener, and the conversation of a connection: from its bytes to session.py and exchange.py."""

import math
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import structlog
import trio

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import DomainError, StorageUnavailable
from broker.limits.meters import Channel, Meter
from broker.routing.connections import CloseReason, DeviceLink
from broker.trace.origin import concerning
from config.limits import MQTT_CONNECT_SECONDS, MQTT_OPEN_FILTERS_MAX, OPEN_PACKETS_PER_TURN, PACKETS_PER_TURN
from protocols.mqtt.answers import Reason
from protocols.mqtt.decoding import PacketReader
from protocols.mqtt.errors import connect_reason
from protocols.mqtt.exchange import MqttExchange, note_fault
from protocols.mqtt.negotiation import keep_alive
from protocols.mqtt.packets import Connect, Packet, ProtocolError, ReasonCode
from protocols.mqtt.session import CredentialsOffered, MqttSession
from protocols.refusals import note_refusal, refusal_for
from protocols.rooms import MqttRooms
from protocols.streams.connection import DeviceConnection, LifePhase, Need
from protocols.streams.hub import Hub
from protocols.streams.peers import authenticated
from protocols.streams.tls import peer_certificate
from storage.sql import StoreError


def serve_mqtt_connection(rooms: MqttRooms, stream: trio.abc.Stream, *, hub: Hub) -> Coroutine[Any, Any, None]:
    """Serve one connection from its first byte to its last."""
    return MqttConnection(rooms, stream, hub).run()  # a coroutine around it would be held for as long


class MqttConnection(DeviceConnection[MqttRooms]):
    """Waits for CONNECT, then has `MqttExchange` process the packets."""

    __slots__ = (
        "_exchange",
        "_fault",
        "_heard_at",
        "_is_over",
        "_link",
        "_offered",
        "_reader",
        "_session",
        "_silence_seconds",
    )

    PROTOCOL = "mqtt"

    def __init__(self, rooms: MqttRooms, stream: trio.abc.Stream, hub: Hub) -> None:
        super().__init__(rooms, stream, hub)
        # In the open topic space, each packet may become many deliveries.
        is_open = rooms.topics.space is not None
        self._reader = PacketReader(
            packets_per_turn=OPEN_PACKETS_PER_TURN if is_open else PACKETS_PER_TURN, waits_for_admission=is_open
        )
        self._session = MqttSession()
        #: The CONNECT that `work` is to answer, and the packets that came with it.
        self._offered: tuple[CredentialsOffered, Sequence[Packet]] | None = None
        self._exchange: MqttExchange | None = None  # once the device is known
        self._link: DeviceLink | None = None  # until the connection is over
        self._fault: ProtocolError | None = None
        self._is_over = False  # the peer has closed or broken the protocol
        self._heard_at = trio.current_time()  # when the latest complete packet came
        self._silence_seconds: float = (
            MQTT_CONNECT_SECONDS  # the longest silence of the peer; CONNECT has to come within this time
        )

    # --- The conversation --------------------------------------------------------------------------------------------

    def take(self, data: bytes | bytearray) -> Need:
        exchange = self._exchange
        if exchange is None:
            return self._open(data)
        if data:
            packets = self._decode(data)
        elif exchange.has_more or not self._reader.is_behind:
            packets = exchange.left
        else:
            packets = self._decode(b"")
        if packets or not data:  # an incomplete packet does not count against silence
            self._heard_at = trio.current_time()
            exchange.handle(packets)
        if (
            exchange.may_read
            and not (self._is_over or self._reader.is_behind or self._session.is_closed)
            and self._ingest.has_room
            and self.has_room
        ):
            return Need.READ
        return self._need(exchange)

    def _need(self, exchange: MqttExchange) -> Need:
        if (self._is_over and not exchange.has_more) or self._session.is_closed:
            if self._fault is not None:
                self._session.fail(self._fault)
            return Need.END
        if not (self._ingest.has_room and exchange.has_room):
            return Need.STORE
        if not self.has_room:
            return Need.DRAIN
        if exchange.pace.owed:
            return Need.PACE
        if exchange.must_prepare:
            return Need.TASK
        return Need.TURN if exchange.has_more or self._reader.is_behind else Need.READ

    def heard_end(self) -> Need:
        self._is_over = True
        return self.take(b"")

    def _decode(self, received: bytes | bytearray) -> Sequence[Packet]:
        try:
            return self._reader.feed(received)
        except ProtocolError as fault:
            if self._exchange is None:
                note_fault(self._rooms.core.refusals, fault)
            else:
                self._exchange.note(fault)
            self._is_over, self._fault = True, fault.again()  # the raised one refers to this frame, and to what came
            return fault.packets  # the packets before the fault are processed

    async def wait_store(self) -> None:
        await super().wait_store()
        if self._exchange is not None:
            await self._exchange.wait_room()

    # --- CONNECT -----------------------------------------------------------------------------------------------------

    def _open(self, data: bytes | bytearray) -> Need:
        if self._session.is_closed:  # it was refused
            return Need.END
        if packets := self._decode(data):
            try:
                (event,) = self._session.receive(packets[0])
            except ProtocolError as fault:
                note_fault(self._rooms.core.refusals, fault)
                return Need.END
            self.put(self._session.take_output())
            if isinstance(event, CredentialsOffered):
                self._offered = event, packets[1:]
                return Need.TASK
            return Need.END
        if self._fault is not None:
            self._session.fail(self._fault)
        return Need.END if self._is_over else Need.READ

    async def work(self) -> None:
        """Answer the CONNECT, or see to what the next message needs."""
        if self._exchange is not None:
            await self._exchange.prepare()
        elif self._offered is not None:
            (offered, packets), self._offered = self._offered, None
            admitted = await self._authenticate(offered)
            if admitted is not None:
                await self._begin(self._admit(*admitted, packets), offered.packet)

    async def _authenticate(self, offered: CredentialsOffered) -> tuple[Device, Caller, Meter | None] | None:
        try:
            if self._rooms.core.life.stopping.is_set():
                raise StorageUnavailable
            device, caller = await self._rooms.devices.registry.authenticate(offered.device_id, offered.token)
            self._rooms.registration.admission.check(device, peer_certificate(self.stream))
            # reference 16.2: a device that has used up its rate limit is refused. CONNECT does not count as a message.
            if (meter := self._rooms.limits.meters.of(Channel.MQTT, caller)) is not None:
                meter.check()
            authenticated(caller)
            return device, caller, meter
        except (DomainError, StoreError) as error:
            refusal = refusal_for(error)
            self.put(self._session.refuse(connect_reason(refusal)))
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

    def _admit(self, device: Device, caller: Caller, meter: Meter | None, packets: Sequence[Packet]) -> MqttExchange:
        structlog.contextvars.bind_contextvars(device=device.id)
        caller.act()
        exchange = self._exchange = MqttExchange(self._rooms, device, meter, self._session, self, self.end)
        exchange.left = packets
        self.pace = exchange.pace
        if (space := self._rooms.topics.space) is not None:
            self._reader.admit(
                maximum_packet_size=self._rooms.core.settings.mqtt.packet_bytes,
                most_filters=MQTT_OPEN_FILTERS_MAX,
                arriving=space.arriving(device),
            )
            self.share(space.queued(device))
        self._link = self._rooms.routing.connections.connect(
            device,
            protocol="MQTT",
            token=caller.token,
            exclusive=True,
            deliver=exchange.deliveries.deliver,
            close=exchange.close,
            tell_wanted=exchange.deliveries.tell_wanted,
        )
        self._rooms.routing.connections.enter(self._link)
        return exchange

    async def _begin(self, exchange: MqttExchange, connect: Connect) -> None:
        """Accept the connection, with its session, or refuse it."""
        self._heard_at = trio.current_time()
        try:
            if self._link is not None:
                await self._rooms.routing.connections.entered(self._link)
            await exchange.begin(connect)
        except StoreError as error:
            if not self._session.is_closed:
                self.put(self._session.refuse(connect_reason(refusal_for(error))))
            return
        self._heard_at = trio.current_time()
        self._silence_seconds = keep_alive(connect, self._rooms.core.settings.mqtt) * 1.5 or math.inf
        self.set_alarm()

    # --- Time, and the end -------------------------------------------------------------------------------------------

    def due(self) -> float:
        return self._heard_at + self._silence_seconds

    async def beat(self, now: float) -> None:
        is_preparing = self._exchange is not None and self._exchange.must_prepare
        if self.state is LifePhase.WAITING and (is_preparing or self.need not in (Need.DRAIN, Need.TASK)):
            self._heard_at = now  # the server does not read
        elif now >= self.due():
            self._session.part(Reason(ReasonCode.KEEP_ALIVE_TIMEOUT))
            self.end()

    def stop(self) -> None:
        """The broker closes the connections of devices."""
        if self._exchange is None:
            self.end()

    def move(self) -> bool:
        if self._exchange is None:
            self.end()
        else:
            self._exchange.close(CloseReason.SHUTDOWN)
        return True

    async def finish(self) -> None:
        self.leave()
        if self._exchange is not None:
            await self._exchange.finish()
            if not self.is_broken:
                await self._exchange.wait_acknowledged()

    def farewell(self) -> bytes:
        return self._session.farewell

    def leave(self) -> None:
        self._reader.end()
        link, self._link = self._link, None
        if link is not None and self._exchange is not None:
            try:
                self._exchange.leave()
            finally:
                self._rooms.routing.connections.leave(link)


serve_mqtt = MqttConnection.serve
