"""The MQTT listener: bytes between a socket and the broker. The conversation itself is in session.py.

One task reads and one writes for each connection. The reader hands every PUBLISH of what it has read to `Ingest` in one
go and attaches one callback that acknowledges them all once they are durable.
"""

import ssl
from collections.abc import Awaitable
from functools import partial

import structlog
import trio

from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import DomainError, StorageUnavailable
from broker.routing.connections import CloseReason, Link
from broker.services import Services
from config.limits import MQTT_CONNECT_SECONDS
from config.settings import Address
from protocols.listeners import Stream, serve_tcp
from protocols.mqtt.errors import PublishForbidden, SubscribeForbidden, connack_code, error_message
from protocols.mqtt.packets import (
    SUBSCRIPTION_REFUSED,
    Packet,
    PacketReader,
    ProtocolError,
    Publish,
    encode_pubacks,
    encode_publish,
    encode_suback,
)
from protocols.mqtt.session import (
    CredentialsOffered,
    Event,
    MqttSession,
    PeerLeft,
    PingReceived,
    PublishReceived,
    SubscribeRequested,
    Unsubscribed,
    UnsupportedLevelRefused,
)
from protocols.outbox import Outbox
from storage.sql import StoreError

GOODBYE_SECONDS = 1.0

_log = structlog.get_logger(__name__)


async def serve_mqtt(
    services: Services,
    bind: Address,
    *,
    connections: trio.Nursery,
    ssl_context: ssl.SSLContext | None = None,
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


def converse(services: Services, stream: Stream) -> Awaitable[None]:
    """One connection, from its first byte to its last."""
    return _Conversation(services, stream).run()


class _Conversation:
    def __init__(self, services: Services, stream: Stream) -> None:
        self._services = services
        self._ingest = services.ingest
        self._stream = stream
        self._reader = PacketReader()
        self._session = MqttSession()
        self._outbox = Outbox(stream.send_all)
        self._scope = trio.CancelScope()
        self._silence_seconds = float("inf")
        self._device: Device | None = None
        self._own_topics: frozenset[bytes] = frozenset()
        # Topic as it was subscribed, by what it carries: deliveries use the client's spelling.
        self._subscribed: dict[str, bytes] = {}
        self._close_reason: CloseReason | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outbox.send_forever)
            with self._scope:
                await self._read_until_connected()
            await self._say_goodbye()
            nursery.cancel_scope.cancel()

    async def _read_until_connected(self) -> None:
        # A stranger has this long to send a whole CONNECT, however slowly.
        self._scope.deadline = trio.current_time() + MQTT_CONNECT_SECONDS
        while not self._session.is_closed:
            packets = await self._receive()
            if packets is None:
                return
            for index, packet in enumerate(packets):
                try:
                    events = self._session.receive(packet)
                except ProtocolError as fault:
                    self._faulty(fault)
                    return
                for event in events:
                    if isinstance(event, CredentialsOffered) and await self._authenticate(event):
                        await self._connected(event, packets[index + 1 :])
                        return
                if self._session.is_closed:
                    break
            self._outbox.put(self._session.take_output())

    async def _authenticate(self, offered: CredentialsOffered) -> bool:
        try:
            self._device, self._caller = await self._services.devices.authenticate(offered.device_id, offered.token)
        except (DomainError, StoreError) as error:
            refusal = error if isinstance(error, DomainError) else StorageUnavailable(str(error))
            self._outbox.put(self._session.refuse(connack_code(refusal)))
            return False
        return True

    async def _connected(self, offered: CredentialsOffered, packets: list[Packet]) -> None:
        device = self._device
        if device is None:
            return
        topic = f"v1.1/messages/{device.id}".encode()
        self._own_topics = frozenset({topic, b"/" + topic})
        if offered.keep_alive_seconds:
            self._silence_seconds = offered.keep_alive_seconds * 1.5
        with self._services.connections.connect(
            device,
            protocol="MQTT",
            token=self._caller.token,
            exclusive=True,
            deliver=self._deliver,
            close=self._close,
        ) as link:
            self._outbox.put(self._session.accept())
            try:
                await self._exchange(packets)
            finally:
                self._leave(link)

    async def _exchange(self, packets: list[Packet] | None) -> None:
        while packets is not None:
            self._handle(packets)
            self._scope.deadline = trio.current_time() + self._silence_seconds
            if self._session.is_closed:
                return
            if not self._ingest.has_room:
                await self._ingest.wait_room()
            if not self._outbox.has_room:
                await self._outbox.wait_empty()
            packets = await self._receive()

    async def _receive(self) -> list[Packet] | None:
        """The next packets; None at the end of the stream or of the peer's good behaviour."""
        received = await self._stream.receive_some(65536)
        if not received:
            return None
        try:
            return self._reader.feed(received)
        except ProtocolError as fault:
            return self._faulty(fault)

    def _faulty(self, fault: ProtocolError) -> list[Packet] | None:
        _log.info("mqtt_protocol_error", device=self._device and self._device.id, reason=str(fault))
        # What came before the fault counts. The reader is broken from here on and will say so again.
        return list(fault.packets) or None

    def _handle(self, packets: list[Packet]) -> None:
        """Everything that was read in one go; nothing here waits."""
        device, submit, own = self._device, self._ingest.submit, self._own_topics
        if device is None:
            return
        stored: list[bytes] = []
        received: list[bytes] = []
        session = self._session
        for packet in packets:
            if type(packet) is Publish and packet.qos < 2 and session.is_open:
                if packet.topic in own:
                    try:
                        submit(device, packet.payload)
                    except DomainError as error:
                        self._tell_error(error)
                else:
                    self._tell_error(PublishForbidden())
                if packet.qos:
                    stored.append(packet.packet_id)
                continue
            try:
                for event in session.receive(packet):
                    self._answer(event, received)
            except ProtocolError as fault:
                self._faulty(fault)
                self._scope.cancel()
                break
        self._outbox.put(session.take_output())
        if stored or received:
            self._ingest.after_commit(partial(self._acknowledge, stored, received))

    def _answer(self, event: Event, received: list[bytes]) -> None:
        match event:
            case PublishReceived(topic=topic, payload=payload, packet_id=packet_id):
                self._publish(topic, payload)
                received.append(packet_id)
            case SubscribeRequested(packet_id=packet_id, filters=filters):
                codes = [self._subscribe(one.topic) for one in filters]
                self._outbox.put(encode_suback(packet_id, codes))
            case Unsubscribed(filters=filters):
                self._subscribed = {kind: topic for kind, topic in self._subscribed.items() if topic not in filters}
            case PingReceived():
                if self._device is not None:
                    self._services.presence.touch(self._device.key)
            case PeerLeft() | CredentialsOffered() | UnsupportedLevelRefused():
                pass

    def _publish(self, topic: bytes, payload: bytes) -> None:
        try:
            if topic not in self._own_topics or self._device is None:
                raise PublishForbidden
            self._ingest.submit(self._device, payload)
        except DomainError as error:
            self._tell_error(error)

    def _subscribe(self, topic: bytes) -> int:
        """The return code for one filter. QoS 0 is all that is granted (compatibility.md 16.3)."""
        device_id = self._device.id if self._device else ""
        for kind in ("actions", "errors"):
            if topic.removeprefix(b"/") == f"v1.1/{kind}/{device_id}".encode():
                self._subscribed[kind] = topic
                return 0
        self._tell_error(SubscribeForbidden())
        return SUBSCRIPTION_REFUSED

    def _acknowledge(self, stored: list[bytes], received: list[bytes], error: StorageUnavailable | None) -> None:
        """What was read in one go is durable, or could not be stored: then the peer must send it again elsewhere."""
        if error is not None:
            _log.error("mqtt_messages_not_stored", device=self._device and self._device.id, reason=error.reason)
            self._scope.cancel()
            return
        self._outbox.put(encode_pubacks(stored))
        if received:
            self._outbox.put(self._session.acknowledge_received(received))

    def _tell_error(self, error: DomainError) -> None:
        topic = self._subscribed.get("errors")
        if topic is not None:
            self._outbox.offer(encode_publish(topic, error_message(error)))

    def _deliver(self, action: Action) -> bool:
        topic = self._subscribed.get("actions")
        if topic is None:
            return False
        payload = action.data
        if self._services.settings.mqtt.action_payload == "array":
            payload = payload.removeprefix('{"actions":').removesuffix("}")
        return self._outbox.offer(encode_publish(topic, payload.encode()))

    def _close(self, reason: CloseReason) -> None:
        self._close_reason = reason
        self._scope.cancel()

    def _leave(self, link: Link) -> None:
        """The reader has ended, for whatever reason: a will is due if the peer disappeared."""
        for event in self._session.connection_lost():
            if event.will is not None and event.will.topic in self._own_topics and link.device.enabled:
                self._publish(event.will.topic, event.will.payload)

    async def _say_goodbye(self) -> None:
        """Let the peer have the acknowledgements it has earned; then the socket closes."""
        with trio.move_on_after(GOODBYE_SECONDS, shield=True):
            if self._close_reason is CloseReason.SHUTDOWN:
                await self._ingest.wait_committed()
            await self._outbox.wait_empty()
