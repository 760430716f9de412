"""LWM2M over TCP and TLS (reference 18.1, 18.3): one connection is one device.

Each message goes out in a segment or TLS record of its own, because some devices take only one message from each read.
The daemon sends signalling only after the peer did.
"""

from functools import partial
from typing import Final

import trio

from broker.device_management.sessions import SessionLostError
from broker.errors import DomainError
from config.settings import Address
from protocols.coap.containment import Failure, contain_async
from protocols.coap.lwm2m.answering import internal_error, refusal
from protocols.coap.lwm2m.device import RegisteredDevice
from protocols.coap.lwm2m.exchanges import Exchange
from protocols.coap.lwm2m.requests import DeviceRequest, read_request
from protocols.coap.lwm2m.server import Lwm2mResponse, Lwm2mServer
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
    encode_frame,
    is_signalling,
)
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
_GOODBYE_SECONDS: Final = 1.0
_RECEIVE_BYTES: Final = 65_536


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
    handle = partial(serve_connection, server)
    await serve_tcp(
        bind,
        handle,
        protocol="lwm2m",
        connections=connections,
        refusals=server.refusals,
        life=server.life,
        entrance=Entrance(server.strangers, TrustedProxies(), server.sockets),
        ssl_context=ssl_context,
        task_status=task_status,
    )


async def serve_connection(server: Lwm2mServer, stream: trio.abc.Stream) -> None:
    """Serve one connection from its first byte to its last."""
    await DeviceStream(server, stream).run()


class DeviceStream:
    """A connection, as `server.Peer`."""

    is_stream = True

    def __init__(self, server: Lwm2mServer, stream: trio.abc.Stream) -> None:
        self._server = server
        self._stream = stream
        self._scope = trio.CancelScope()
        self._sending = trio.Lock()
        self._exchanges: dict[bytes, Exchange] = {}
        self._pace = server.new_pace()
        self._has_signalled = False
        self._is_answering = False
        self.pre_shared_key: tuple[bytes, bytes] | None = None
        self.certificate = peer_certificate(stream)
        self.registered: RegisteredDevice | None = None
        self.is_closed = False

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_stopping)
            await self._read_on()
            nursery.cancel_scope.cancel()

    async def _end_when_stopping(self) -> None:
        await self._server.wait_stopping()
        self.close()

    async def _read_on(self) -> None:
        reader = CoapFrameReader(UNREGISTERED_BYTES)
        try:
            with self._scope:
                self._scope.deadline = trio.current_time() + REGISTRATION_SECONDS
                while not self.is_closed and (received := await self._stream.receive_some(_RECEIVE_BYTES)):
                    for message in reader.feed(bytes(received)):
                        await self._take(message)
                        await self._pace.wait()
                    if self.registered is not None:
                        reader.most_bytes = MESSAGE_BYTES
        except MalformedFrame as malformed:
            with trio.move_on_after(_GOODBYE_SECONDS):
                for message in malformed.messages:
                    await self._take(message)
                if self._has_signalled:
                    await self._send(encode_frame(ABORT, b""))
        finally:
            self.close()
            for exchange in self._exchanges.values():
                exchange.lost()
            self._server.lost(self)

    async def _take(self, message: CoapMessage) -> None:
        if message.token not in self._exchanges:  # everything but an answer to a request of the server
            self._pace.spend()
        if is_signalling(message):
            await self._signalled(message)
        elif message.is_request:
            await self._request(message)
        elif message.is_response:
            exchange = self._exchanges.pop(message.token, None)
            if exchange is not None:
                exchange.answered(message)
            else:
                self._server.notified(self, message)

    async def _signalled(self, message: CoapMessage) -> None:
        if not self._has_signalled and message.code in (CSM, PING):
            self._has_signalled = True
            options = encode_options(((MAX_MESSAGE_SIZE, uint(MESSAGE_BYTES)),))
            await self._send(encode_frame(CSM, b"", options))
        if message.code == PING:
            await self._send(encode_frame(PONG, message.token))
        elif message.code in (RELEASE, ABORT):
            self.close()

    async def _request(self, message: CoapMessage) -> None:
        self._is_answering = True
        answer = await contain_async("lwm2m_request_failed", "stream", self._answer, message)
        if isinstance(answer, Failure):
            answer = internal_error(answer)
        await self._send(encode_frame(answer.code, message.token, encode_options(answer.options), answer.payload))
        self._is_answering = False
        if self.registered is not None:
            self._scope.deadline = float("inf")
            if answer.code == Code.CREATED:
                self._server.begin(self)
        elif answer.code == Code.DELETED:
            self.close()

    async def _answer(self, message: CoapMessage) -> Lwm2mResponse:
        try:
            request: DeviceRequest = read_request(message)
            if self._server.needs_store(request):
                answer = await self._server.answer_stored(self, request)
                if self.registered is not None:
                    device = self.registered.device
                    authenticated(device=device.id, owner=device.record.owner_id)
                return answer
            return self._server.answer(self, request)
        except DomainError as error:
            self._server.note_refusal(self, error)
            return refusal(error)

    # --- server.Peer -------------------------------------------------------------------------------------------------

    async def ask(self, exchange: Exchange) -> CoapMessage:
        """Send a request and wait ANSWER_SECONDS for its answer. Raises SessionLostError."""
        if self.is_closed:
            raise SessionLostError
        self._exchanges[exchange.token] = exchange
        try:
            with trio.fail_after(ANSWER_SECONDS):
                await self._send(encode_frame(exchange.code, exchange.token, exchange.options, exchange.payload))
                return await exchange.answer()
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            raise SessionLostError from None
        finally:
            self._exchanges.pop(exchange.token, None)

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            try:
                with trio.fail_after(ANSWER_SECONDS):
                    await self._stream.send_all(frame)
            except BaseException:
                self.close()  # a part of the frame may have left, and nothing can follow it
                raise

    def close(self) -> None:
        """End the connection."""
        self.is_closed = True
        self._scope.cancel()

    def unregistered(self) -> None:
        """The registration over this connection has ended, and the connection with it, after an answer that is due."""
        self.registered = None
        if not self._is_answering:
            self.close()
