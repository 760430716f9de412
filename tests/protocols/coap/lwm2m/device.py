"""A scripted LWM2M device: aiocoap encodes and decodes its messages; it answers what the test tells it to answer.

It speaks over any transport with `send` and `receive`: a session of an endpoint without a network, DTLS by OpenSSL, and
TCP or TLS, where aiocoap's own framing is used.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

import aiocoap
import trio
from aiocoap.numbers.contentformat import ContentFormat
from aiocoap.transports import tcp

from config.limits import COAP_IDLE_SECONDS
from protocols.coap.lwm2m.datagrams import DatagramPeer, Lwm2mEndpoint
from tests.protocols.coap.dtls.client import DtlsClient

PATIENCE_SECONDS = 10
OBJECTS = b"</1/0>,</3/0>,</5/0>"
TEXT, LINKS, OPAQUE, TLV, LWM2M_JSON, SENML_JSON, SENML_CBOR = 0, 40, 42, 11542, 11543, 110, 112

#: Answer of a device: code, content-format and payload.
Reply = tuple[aiocoap.Code, int | None, bytes]
Answerer = Callable[[aiocoap.Message], aiocoap.Message | None]


class Transport(Protocol):
    async def send(self, message: aiocoap.Message) -> None: ...

    async def receive(self) -> aiocoap.Message:
        """The next message. Raises EndOfChannel when the daemon has ended the connection."""


class MemoryTransport:
    """A session that was opened with a pre-shared key, without DTLS."""

    def __init__(self, endpoint: Lwm2mEndpoint, identity: str, token: str, *, address: object = ("192.0.2.1", 1)):
        self._sent, self._inbox = trio.open_memory_channel[aiocoap.Message](1000)
        self.session: DatagramPeer = endpoint.open(
            address, self._take, self._sent.close, idle_seconds=COAP_IDLE_SECONDS, is_address_verified=True
        )
        self.session.pre_shared_key = identity.encode(), bytes.fromhex(token)
        self._endpoint = endpoint
        self.is_deaf = False

    def _take(self, datagram: bytes) -> None:
        if not self.is_deaf:
            self._sent.send_nowait(aiocoap.Message.decode(datagram))

    async def send(self, message: aiocoap.Message) -> None:
        self.send_bytes(message.encode())

    def send_bytes(self, datagram: bytes) -> None:
        self._endpoint.receive(self.session, datagram)

    async def receive(self) -> aiocoap.Message:
        return await self._inbox.receive()


class DtlsTransport:
    """A DTLS connection by OpenSSL, after its handshake."""

    def __init__(self, client: DtlsClient) -> None:
        self._client = client

    async def send(self, message: aiocoap.Message) -> None:
        self._client.session.write(message.encode())
        await self._client.socket.send(self._client.session.bio_read(4096))

    async def receive(self) -> aiocoap.Message:
        from OpenSSL import SSL

        while True:
            self._client.session.bio_write(await self._client.socket.recv(4096))
            try:
                return aiocoap.Message.decode(self._client.session.read(4096))
            except SSL.WantReadError:
                continue
            except SSL.ZeroReturnError:
                raise trio.EndOfChannel from None


class StreamTransport:
    """TCP or TLS; every chunk that is received is kept, to see what came in one segment or record."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.chunks: list[bytes] = []
        self._received = b""
        self._sending = trio.Lock()  # the device answers while a test asks

    async def send(self, message: aiocoap.Message) -> None:
        async with self._sending:
            await self.stream.send_all(tcp._serialize(message))

    async def receive(self) -> aiocoap.Message:
        while (sizes := tcp._extract_message_size(self._received)) is None or sum(sizes) > len(self._received):
            chunk = bytes(await self.stream.receive_some(65536))
            if not chunk:
                raise trio.EndOfChannel
            self.chunks.append(chunk)
            self._received += chunk
        size = sum(sizes)
        message, self._received = tcp._decode_message(self._received[:size]), self._received[size:]
        return message


class ScriptedDevice:
    """A device. `run` reads and answers; `replies` has what it answers by method and path, `"GET /3/0"`."""

    def __init__(self, transport: Transport, identity: str, *, is_stream: bool = False) -> None:
        self.transport = transport
        self.id = identity
        self.is_stream = is_stream
        self.replies: dict[str, Reply | Answerer] = {}
        self.requests: list[str] = []
        self.observed: dict[str, bytes] = {}
        self.location: tuple[str, ...] = ()
        self.resets: list[int] = []
        self.acknowledged: list[int] = []
        self.signals: list[aiocoap.Message] = []
        self._ids = count(1000)
        self._answers: dict[bytes, trio.MemorySendChannel[aiocoap.Message]] = {}
        self._on_request = trio.Event()
        self.has_ended = trio.Event()

    async def run(self) -> None:
        try:
            while True:
                await self.take(await self.transport.receive())
        except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
            self.has_ended.set()

    async def take(self, message: aiocoap.Message) -> None:
        if message.code.class_ == 7:
            self.signals.append(message)
        elif message.code.is_request():
            answer = self.answer(message)
            if answer is not None:
                await self.transport.send(answer)
        elif message.token in self._answers and message.code.is_response():
            self._answers.pop(message.token).send_nowait(message)
        elif message.mtype == aiocoap.RST:
            self.resets.append(message.mid)
        elif message.mtype == aiocoap.ACK:
            self.acknowledged.append(message.mid)

    def answer(self, request: aiocoap.Message) -> aiocoap.Message | None:
        path = "/" + "/".join(request.opt.uri_path)
        query = "?" + "&".join(request.opt.uri_query) if request.opt.uri_query else ""
        what = f"{request.code.name} {path}{query}" + (" observe" if request.opt.observe == 0 else "")
        if request.opt.block2 is not None and request.opt.block2.block_number:
            what += f" block {request.opt.block2.block_number}"
        self.requests.append(what)
        self._on_request.set()
        self._on_request = trio.Event()
        reply = self.replies.get(what) or self.replies.get(f"{request.code.name} {path}") or _DEFAULTS[request.code]
        return reply(request) if callable(reply) else self.answered(request, reply)

    def answered(self, request: aiocoap.Message, reply: Reply) -> aiocoap.Message:
        """The answer with a reply; one to Observe begins the observation."""
        answer: aiocoap.Message = self.reply(request, *reply)
        if request.opt.observe == 0 and answer.code.is_successful():
            answer.opt.observe = 1
            self.observed["/" + "/".join(request.opt.uri_path)] = request.token
        return answer

    def reply(self, request: aiocoap.Message, code: aiocoap.Code, format_: int | None, payload: bytes) -> Any:
        message = aiocoap.Message(code=code, payload=payload)
        message.mtype, message.mid, message.token = aiocoap.ACK, request.mid, request.token
        if format_ is not None:
            message.opt.content_format = ContentFormat(format_)
        return message

    def message(self, code: aiocoap.Code, *, type_: aiocoap.Type = aiocoap.CON, **options: Any) -> aiocoap.Message:
        message = aiocoap.Message(code=code, **options)
        message.mtype, message.mid, message.token = type_, next(self._ids), os.urandom(4)
        return message

    async def ask(self, message: aiocoap.Message) -> aiocoap.Message:
        send, receive = trio.open_memory_channel[aiocoap.Message](1)
        self._answers[message.token] = send
        await self.transport.send(message)
        with trio.fail_after(PATIENCE_SECONDS):
            return await receive.receive()

    async def ask_in_blocks(self, path: str, body: bytes, *queries: str, format_: int = LINKS) -> aiocoap.Message:
        """POST a body in blocks of 1,024 bytes (RFC 7959, 2.5). Returns the first answer that asks for no more."""
        for at in range(0, len(body), 1024):
            message = self.message(aiocoap.POST, payload=body[at : at + 1024])
            message.opt.uri_path, message.opt.uri_query = (path,), queries
            message.opt.content_format = ContentFormat(format_)
            message.opt.block1 = (at // 1024, at + 1024 < len(body), 6)
            answer = await self.ask(message)
            if answer.code != aiocoap.CONTINUE:
                break
        return answer

    async def register(
        self, *queries: str, payload: bytes = OBJECTS, format_: int | None = LINKS, observe: int | None = None
    ) -> aiocoap.Message:
        """Register with these queries, or with the usual ones. Remembers the location."""
        message = self.message(aiocoap.POST, payload=payload)
        message.opt.uri_path = ("rd",)
        message.opt.uri_query = queries or (f"ep={self.id}", "lt=300", "lwm2m=1.0", "b=U")
        if format_ is not None:
            message.opt.content_format = ContentFormat(format_)
        message.opt.observe = observe
        answer = await self.ask(message)
        if answer.code == aiocoap.CREATED:
            self.location = tuple(answer.opt.location_path)
        return answer

    async def update(self, *queries: str, payload: bytes = b"", code: aiocoap.Code = aiocoap.POST) -> aiocoap.Message:
        message = self.message(code, payload=payload)
        message.opt.uri_path, message.opt.uri_query = self.location, queries
        return await self.ask(message)

    async def send(self, format_: int, payload: bytes) -> aiocoap.Message:
        """The operation Send of LwM2M 1.1."""
        message = self.message(aiocoap.POST, payload=payload)
        message.opt.uri_path = ("dp",)
        message.opt.content_format = ContentFormat(format_)
        return await self.ask(message)

    async def notify(
        self,
        path: str,
        number: int | None,
        reply: Reply,
        *,
        type_: aiocoap.Type = aiocoap.CON,
        block2: tuple[int, bool, int] | None = None,
    ) -> int:
        """Send a notification of an observed path. Returns its message id."""
        code, format_, payload = reply
        message = self.message(code, type_=type_, payload=payload)
        message.token = self.observed[path]
        message.opt.observe = number
        message.opt.block2 = block2
        if format_ is not None:
            message.opt.content_format = ContentFormat(format_)
        await self.transport.send(message)
        return int(message.mid)

    async def wait_asked(self, what: str, *, times: int = 1) -> None:
        """Wait until the daemon has sent a number of requests."""
        with trio.fail_after(PATIENCE_SECONDS):
            while self.requests.count(what) < times:
                await self._on_request.wait()


_DEFAULTS: Mapping[aiocoap.Code, Reply] = {
    aiocoap.GET: (aiocoap.NOT_FOUND, None, b""),
    aiocoap.PUT: (aiocoap.CHANGED, None, b""),
    aiocoap.POST: (aiocoap.CHANGED, None, b""),
}


def content(format_: int | None, payload: bytes) -> Reply:
    return aiocoap.CONTENT, format_, payload


def tlv(*entries: tuple[int, int, bytes]) -> bytes:
    """Entries of TLV: type, identifier and value, always with a length byte and two bytes of identifier."""
    return b"".join(
        bytes((kind << 6 | 0x20 | 0x10,)) + number.to_bytes(2, "big") + len(value).to_bytes(2, "big") + value
        for kind, number, value in entries
    )


def in_blocks(device: ScriptedDevice, format_: int, payload: bytes, exponent: int) -> Answerer:
    """Answers with the block that is asked for."""

    def answer(request: aiocoap.Message) -> aiocoap.Message:
        number = request.opt.block2.block_number if request.opt.block2 else 0
        size = 16 << exponent
        part = payload[number * size : (number + 1) * size]
        message = device.reply(request, aiocoap.CONTENT, format_, part)
        message.opt.block2 = (number, (number + 1) * size < len(payload), exponent)
        return message

    return answer


def joined(parts: Sequence[str]) -> str:
    return "/".join(parts)
