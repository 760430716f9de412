"""LWM2M over TCP and TLS (reference 18.1, 18.3): one connection is one device.

Each message goes out in a segment or TLS record of its own, because some devices take only one message from each read.
The daemon sends signalling only after the peer did.
"""

import math
from collections import deque
from functools import partial
from typing import Final

import trio

from broker.device_management.sessions import SessionLostError
from broker.errors import DomainError
from config.settings import Address
from protocols.coap.containment import Failure, contain, contain_async
from protocols.coap.lwm2m.device import RegisteredDevice
from protocols.coap.lwm2m.exchanges import Exchange
from protocols.coap.lwm2m.requests import DeviceRequest, read_device_request
from protocols.coap.lwm2m.server import Lwm2mResponse, Lwm2mServer, internal_error, lwm2m_refusal
from protocols.coap.messages import CoapMessage, Code, encode_options, uint
from protocols.coap.reliable import (
    ABORT,
    CSM,
    MAX_MESSAGE_SIZE,
    MESSAGE_BYTES,
    PING,
    PONG,
    RELEASE,
    CoapFrameReader,
    MalformedFrame,
    encode_coap_frame,
    is_signalling,
)
from protocols.streams.connection import Need, StreamConnection
from protocols.streams.hub import Hub
from protocols.streams.listeners import Entrance, serve_tcp
from protocols.streams.peers import authenticated
from protocols.streams.proxies import TrustedProxies
from protocols.streams.tls import TlsContext, peer_certificate

#: For an answer (reference 18.3), and for the peer to take a message.
ANSWER_SECONDS: Final = 30.0
#: For the registration after the connection was made.
REGISTRATION_SECONDS: Final = 30.0
#: The longest message of a device that has not registered yet.
UNREGISTERED_BYTES: Final = 8 * 1024


async def serve_lwm2m_tcp(
    server: Lwm2mServer,
    bind: Address,
    *,
    connections: trio.Nursery,
    ssl_context: TlsContext | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept connections until cancelled.

    Args:
        server: keeps the registrations.
        bind: where to listen.
        connections: the nursery in which connections go on when this listener has ended.
        ssl_context: for TLS; None for plain text.
        task_status: told the bound address.

    Raises:
        OSError: the address cannot be bound.
    """
    await serve_tcp(
        bind,
        partial(serve_connection, server, hub=Hub(connections, server.life)),
        protocol="lwm2m",
        connections=connections,
        refusals=server.refusals,
        life=server.life,
        entrance=Entrance(server.strangers, TrustedProxies(), server.sockets),
        ssl_context=ssl_context,
        ends_with_move=True,
        task_status=task_status,
    )


async def serve_connection(server: Lwm2mServer, stream: trio.abc.Stream, *, hub: Hub) -> None:
    """Serve one connection from its first byte to its last."""
    await DeviceStream(server, stream, hub).run()


class DeviceStream(StreamConnection):
    """A connection, as `server.Peer`."""

    __slots__ = (
        "_asked",
        "_exchanges",
        "_has_signalled",
        "_is_answering",
        "_is_malformed",
        "_messages",
        "_reader",
        "_registers_until",
        "_server",
        "certificate",
        "pre_shared_key",
        "registered",
    )

    PROTOCOL = "lwm2m"
    is_stream = True

    def __init__(self, server: Lwm2mServer, stream: trio.abc.Stream, hub: Hub) -> None:
        super().__init__(stream, hub)
        self._server = server
        self._exchanges: dict[bytes, Exchange] = {}
        self._reader = CoapFrameReader(UNREGISTERED_BYTES)
        self._messages: deque[CoapMessage] = deque()  # that have come and were not processed
        self._asked: tuple[bytes, DeviceRequest] | None = None  # what `work` is to answer, and its token
        self._registers_until = trio.current_time() + REGISTRATION_SECONDS
        self._has_signalled = self._is_malformed = self._is_answering = False
        self.pace = server.new_pace()
        self.pre_shared_key: tuple[bytes, bytes] | None = None
        self.certificate = peer_certificate(stream)
        self.registered: RegisteredDevice | None = None

    # --- The conversation --------------------------------------------------------------------------------------------

    def take(self, data: bytes | bytearray) -> Need:
        try:
            self._messages += self._reader.feed(bytes(data))
        except MalformedFrame as malformed:
            self._messages += malformed.messages
            self._is_malformed = True
        while not self.pace.owed and self._messages and not self.is_ended:
            self._process(self._messages.popleft())
            if self._asked is not None:
                return Need.TASK
        if self.pace.owed:
            return Need.PACE
        if self._is_malformed:
            return Need.END
        if self.registered is not None:
            self._reader.most_bytes = MESSAGE_BYTES
        return Need.READ if self.has_room else Need.DRAIN

    def _process(self, message: CoapMessage) -> None:
        if message.token not in self._exchanges:  # everything but an answer to a request of the server
            self.pace.spend()
        if is_signalling(message):
            self._signalled(message)
        elif message.is_request:
            self._requested(message)
        elif message.is_response:
            exchange = self._exchanges.pop(message.token, None)
            if exchange is not None:
                exchange.answered(message)
            else:
                self._server.notified(self, message)

    def _signalled(self, message: CoapMessage) -> None:
        if not self._has_signalled and message.code in (CSM, PING):
            self._has_signalled = True
            options = encode_options(((MAX_MESSAGE_SIZE, uint(MESSAGE_BYTES)),))
            self.put(encode_coap_frame(CSM, b"", options))
        if message.code == PING:
            self.put(encode_coap_frame(PONG, message.token))
        elif message.code in (RELEASE, ABORT):
            self.end()

    def _requested(self, message: CoapMessage) -> None:
        self._is_answering = True
        answer = contain("lwm2m_request_failed", None, "stream", self._answer, message)
        if answer is not None:
            self._reply(message.token, answer)

    def _answer(self, message: CoapMessage) -> Lwm2mResponse | None:
        """The answer; None when `work` gives it."""
        try:
            request = read_device_request(message)
            if self._server.needs_store(request):
                self._asked = message.token, request
                return None
            return self._server.answer(self, request)
        except DomainError as error:
            return self._refused(error)

    async def work(self) -> None:
        if self._asked is not None:
            token, request = self._asked
            answer = await contain_async("lwm2m_request_failed", "stream", self._answer_stored, request)
            self._asked = None
            self._reply(token, answer)

    async def _answer_stored(self, request: DeviceRequest) -> Lwm2mResponse:
        try:
            answer = await self._server.answer_stored(self, request)
            if self.registered is not None:
                device = self.registered.device
                authenticated(device=device.id, owner=device.record.owner_id)
            return answer
        except DomainError as error:
            return self._refused(error)

    def _refused(self, error: DomainError) -> Lwm2mResponse:
        self._server.note_refusal(self, error)
        return lwm2m_refusal(error)

    def _reply(self, token: bytes, answer: Lwm2mResponse | Failure) -> None:
        if isinstance(answer, Failure):
            answer = internal_error(answer)
        self.put(encode_coap_frame(answer.code, token, encode_options(answer.options), answer.payload))
        self._is_answering = False
        if self.registered is not None and answer.code == Code.CREATED:
            self._server.begin(self)
        elif self.registered is None and answer.code == Code.DELETED:
            self.end()

    def due(self) -> float:
        return self._registers_until if self.registered is None else math.inf

    async def finish(self) -> None:
        self.leave()

    def farewell(self) -> bytes:
        return encode_coap_frame(ABORT, b"") if self._is_malformed and self._has_signalled else b""

    def leave(self) -> None:
        for exchange in self._exchanges.values():
            exchange.lost()
        self._server.lost(self)

    async def _send(self, data: bytes) -> None:
        with trio.fail_after(ANSWER_SECONDS):
            await super()._send(data)

    def _take_waiting(self) -> bytes:
        return self._waiting.pop(0)  # see above: each message by itself

    # --- server.Peer -------------------------------------------------------------------------------------------------

    async def ask(self, exchange: Exchange) -> CoapMessage:
        """Send a request and wait ANSWER_SECONDS for its answer. Raises SessionLostError."""
        if self.is_closed:
            raise SessionLostError
        self._exchanges[exchange.token] = exchange
        try:
            with trio.fail_after(ANSWER_SECONDS):
                while not self.has_room:
                    await self.wait_empty()
                self.put(encode_coap_frame(exchange.code, exchange.token, exchange.options, exchange.payload))
                return await exchange.answer()
        except trio.TooSlowError:
            raise SessionLostError from None
        finally:
            self._exchanges.pop(exchange.token, None)

    @property
    def is_closed(self) -> bool:
        return self.is_ended

    def close(self) -> None:
        """End the connection."""
        self.end()

    def unregistered(self) -> None:
        """The registration over this connection has ended, and the connection with it, after an answer that is due."""
        self.registered = None
        if not self._is_answering:
            self.close()
