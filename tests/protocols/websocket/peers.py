"""WebSocket clients for tests: trio-websocket's, and one that only does what the test calls."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream
from wsproto import ConnectionType, WSConnection
from wsproto.events import CloseConnection, Event, Message, Ping, RejectConnection, RejectData, Request, TextMessage

from broker.services import Services
from config.limits import WEBSOCKET_BACKLOG
from protocols.http.heads import is_whole, split_head
from protocols.mqtt.server import serve_mqtt_connection
from protocols.streams.hub import Hub
from protocols.streams.peers import Peer, ended, set_peer
from protocols.websocket.connection import MAX_WAITING_FRAMES
from protocols.websocket.server import serve_websocket_connection

#: How many frames may wait for a slow reader, and how many at any time, in tests with the fixture `few_wait`.
FEW_FRAMES, MOST_FRAMES = WEBSOCKET_BACKLOG // 10, MAX_WAITING_FRAMES // 10

#: A Ping without a payload, masked with zeros, as a client may send it.
EMPTY_PING = b"\x89\x80\0\0\0\0"

Headers = Sequence[tuple[str, str]]


class Peers:
    """Opens connections to a server that runs during the test."""

    def __init__(self, services: Services, nursery: trio.Nursery) -> None:
        self.services = services
        self._nursery = nursery
        self.hub = Hub(nursery, services.core.life)
        self.failures: list[Exception] = []

    async def connect(self, path: str, headers: Headers = ()) -> WebSocketConnection:
        """trio-websocket's client. It answers protocol-level Pings by itself."""
        ours, theirs = trio.testing.memory_stream_pair()
        self._serve(theirs)
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        # It stops reading, and answers no Pings, when its queue is full.
        stream: Any = ours  # any stream will do
        return await wrap_client_stream(
            self._nursery, stream, "localhost", path, extra_headers=encoded, message_queue_size=10_000
        )

    async def connect_plain(self, path: str, *, lockstep: bool = False, sockets: bool = False) -> "PlainPeer":
        """A client that reads and answers nothing by itself.

        In lockstep, nothing waits in the network either; over sockets, as much as the operating system takes.
        """
        peer = PlainPeer(self.open_stream(lockstep=lockstep, sockets=sockets))
        await peer.shake_hands(path)
        await trio.testing.wait_all_tasks_blocked()  # until the server has done what comes after its answer, too
        return peer

    async def refusal(self, path: str) -> tuple[int, dict[bytes, bytes], Any]:
        """Status, headers and body of a refused handshake."""
        peer = PlainPeer(self.open_stream())
        await peer.send_event(Request(host="localhost", target=path))
        answer = await peer.event()
        assert isinstance(answer, RejectConnection)
        body = b""
        while isinstance(event := await peer.event(), RejectData) and not event.body_finished:
            body += event.data
        return answer.status_code, dict(answer.headers), json.loads(body)

    def open_stream(self, *, lockstep: bool = False, sockets: bool = False) -> trio.abc.Stream:
        ours: trio.abc.Stream
        theirs: trio.abc.Stream
        if sockets:
            ours, theirs = map(trio.SocketStream, trio.socket.socketpair())
        elif lockstep:
            ours, theirs = trio.testing.lockstep_stream_pair()
        else:
            ours, theirs = trio.testing.memory_stream_pair()
        self._serve(theirs)
        return ours

    def _serve(self, stream: trio.abc.Stream) -> None:
        self._nursery.start_soon(self._converse, stream)

    async def _converse(self, stream: trio.abc.Stream) -> None:
        peer = Peer(place=self.services.limits.strangers.enter(None, lambda: None))
        set_peer(peer)
        try:
            head, early = split_head(await whole_head(stream))
            mqtt = partial(serve_mqtt_connection, self.services, hub=self.hub)
            await serve_websocket_connection(self.services, head, early, stream, mqtt=mqtt, hub=self.hub)
        except Exception as error:
            # Closing the stream lets the test end, and its end cancels us: the error would be forgotten.
            self.failures.append(error)
            raise
        finally:
            ended(peer)
            await trio.aclose_forcefully(stream)


async def whole_head(stream: trio.abc.ReceiveStream) -> bytes:
    """The head of a request, which HTTP reads before it passes the connection on."""
    head = b""
    while not is_whole(head) and (more := await stream.receive_some()):
        head += more
    return head


@asynccontextmanager
async def open_peers(services: Services) -> AsyncIterator[Peers]:
    async with trio.open_nursery() as nursery:
        peers = Peers(services, nursery)
        yield peers
        nursery.cancel_scope.cancel()
    assert peers.failures == []


class PlainPeer:
    """wsproto over a stream. The test controls each byte that is sent."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.wire = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []

    async def shake_hands(self, path: str) -> None:
        await self.stream.send_all(self.wire.send(Request(host="localhost", target=path)))
        await self.event()

    def encoded(self, *frames: Mapping[str, object]) -> bytes:
        return b"".join(self.wire.send(TextMessage(json.dumps(frame))) for frame in frames)

    async def send(self, *frames: Mapping[str, object]) -> None:
        """Send these frames in one write."""
        await self.stream.send_all(self.encoded(*frames))

    async def send_event(self, event: Event) -> None:
        await self.stream.send_all(self.wire.send(event))

    async def event(self) -> Event:
        """The next frame of any kind; a message is returned whole."""
        event = await self._next()
        while isinstance(event, Message) and not event.message_finished:
            following = await self._next()
            assert isinstance(following, Message)
            event = replace(following, data=event.data + following.data)
        return event

    async def _next(self) -> Event:
        while not self._events:
            data = await self.stream.receive_some()
            assert data, "the server hung up without a word"
            self.wire.receive_data(bytes(data))
            self._events.extend(self.wire.events())
        return self._events.pop(0)

    async def said(self) -> Any:
        """The next message."""
        while not isinstance(event := await self.event(), Message):
            assert isinstance(event, Ping), event
        return json.loads(event.data)

    async def end(self) -> tuple[int, str]:
        """Code and reason of the server's close frame; frames before it are skipped."""
        while not isinstance(event := await self.event(), CloseConnection):
            pass
        return int(event.code), event.reason or ""

    async def close_code(self) -> int:
        return (await self.end())[0]


async def say(socket: WebSocketConnection, **frame: object) -> None:
    await socket.send_message(json.dumps(frame))


async def said(socket: WebSocketConnection) -> Any:
    """The next message that is no ping."""
    while True:
        message = json.loads(await socket.get_message())
        if message.get("type") != "ping":
            return message


async def ask(socket: WebSocketConnection, **frame: object) -> Any:
    await say(socket, **frame)
    return await said(socket)


async def register(socket: WebSocketConnection, sdid: str, token: str) -> None:
    """Needs `ack=true`."""
    answer = await ask(socket, type="register", sdid=sdid, Authorization=f"bearer {token}")
    assert answer == {"data": {"message": "OK", "code": "200"}}


async def closing(socket: WebSocketConnection) -> tuple[int, str]:
    """Code and reason of the server's close frame; frames before it are skipped."""
    with pytest.raises(ConnectionClosed) as closed:
        await _read_on(socket)
    reason = closed.value.reason
    assert reason is not None
    return reason.code, reason.reason or ""


async def _read_on(socket: WebSocketConnection) -> None:
    while True:
        await socket.get_message()
