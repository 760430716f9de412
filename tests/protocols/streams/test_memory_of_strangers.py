"""Memory for a stranger's bytes is freed when its connection ends, without waiting for the garbage collector.

So are the objects of the connection: the collector stops the loop for a millisecond for each thousand of them.
"""

import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.services import Services
from config.settings import Address
from protocols.http.server import serve_http
from protocols.mqtt.server import serve_mqtt
from protocols.streams.hub import Hub
from protocols.streams.tls import PeerContext, TlsContext
from protocols.websocket.server import serve_websocket_connection
from tests.attacks.connections import BEGINNINGS
from tests.factories import World
from tests.protocols.http.certificates import contexts
from tests.protocols.mqtt.peers import Server
from tests.protocols.websocket.peers import open_peers
from tests.rows import each_row

pytestmark = pytest.mark.slow


CONNECTIONS = 10
BYTES = 60_000


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


async def grown(connect: Callable[[], Awaitable[None]]) -> int:
    """The bytes that connections leave behind, after one that pays for what is made once."""
    await connect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(CONNECTIONS):
        await connect()
    await wait_all_tasks_blocked()
    return tracemalloc.get_traced_memory()[0] - before


@pytest.mark.usefixtures("without_collector", "world")
async def test_of_a_packet_that_is_too_long_nothing_stays(services: Services) -> None:
    async def connect() -> None:
        async with trio.open_nursery() as nursery:
            peer = await Server(services, nursery).dial()
            await peer.send(b"\x10\xff\xff\x03" + bytes(BYTES))
            await peer.expect_end()
            nursery.cancel_scope.cancel()

    assert await grown(connect) < CONNECTIONS * BYTES / 4


@pytest.mark.usefixtures("without_collector", "world")
async def test_of_a_frame_that_never_came_whole_nothing_stays(services: Services) -> None:
    async with open_peers(services) as peers:

        async def connect() -> None:
            peer = await peers.connect_plain("/v1.1/websocket")
            await peer.stream.send_all(b"\x81\xfe\xff\xff" + bytes(BYTES))
            await wait_all_tasks_blocked()
            await peer.stream.aclose()
            await wait_all_tasks_blocked()

        assert await grown(connect) < CONNECTIONS * BYTES / 4


#: Objects of one connection that wait for the collector: those of a function of werkzeug's that refers to itself, which
#: runs for each request that takes the slow path.
LEFT_BY_WERKZEUG = 15
OF_THE_CLIENT = 60
HEADLINES = b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
ANY = Address("127.0.0.1", 0)


async def listen(
    services: Services, nursery: trio.Nursery, *, tls: TlsContext | None = None
) -> tuple[Address, Address]:
    """HTTP with WebSocket, and MQTT."""
    websocket = partial(serve_websocket_connection, services, hub=Hub(nursery, services.core.life))
    return (
        await nursery.start(partial(serve_http, services, ANY, nursery, websocket=websocket, ssl_context=tls)),
        await nursery.start(partial(serve_mqtt, services, ANY, connections=nursery, ssl_context=tls)),
    )


async def garbage(connect: Callable[[], Awaitable[None]]) -> float:
    """How many objects each connection leaves to the collector."""
    await connect()
    gc.collect()
    gc.freeze()  # what is there before needs no search, which takes a fifth of a second late in a run
    for _ in range(CONNECTIONS):
        await connect()
    return gc.collect() / CONNECTIONS


async def send_and_read(address: Address, sent: bytes) -> None:
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        await stream.send_all(sent)
        while await stream.receive_some():
            pass
    await wait_all_tasks_blocked()


async def send_and_go(address: Address, sent: bytes) -> None:
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        await stream.send_all(sent)
        await wait_all_tasks_blocked()
    await wait_all_tasks_blocked()


@pytest.mark.usefixtures("without_collector")
async def test_connections_leave_nothing_to_the_collector(
    services: Services, world: World, nursery: trio.Nursery
) -> None:
    http, mqtt = await listen(services, nursery)
    upgrade = BEGINNINGS["websocket"].partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    for address, sent in (
        (http, b""),
        (http, b"GET / HTTP/1.1\r\nX: "),
        (http, upgrade),
        (http, upgrade + b"\x81\xfe\xff\xff" + bytes(1_000)),
        (mqtt, b""),
        (mqtt, b"\x10\xff\xff\x03\0\x04MQTT"),
    ):
        assert await garbage(partial(send_and_go, address, sent)) < 1, sent
    for address, sent in (
        (http, b"GET / HTTP/1.1\r\nX: " + bytes(20_000)),
        (http, b"GET / nothing\r\n\r\n"),
        (mqtt, b"\x10\xff\xff\x03" + bytes(100)),
        (mqtt, b"\xff\x03aaa"),
    ):
        assert await garbage(partial(send_and_read, address, sent)) < LEFT_BY_WERKZEUG, sent


@pytest.mark.usefixtures("without_collector")
async def test_requests_that_hypercorn_serves_leave_next_to_nothing_to_the_collector(
    services: Services, world: World, nursery: trio.Nursery
) -> None:
    http, _ = await listen(services, nursery)
    for sent in (
        b"GET /nothing" + HEADLINES + b"\r\n",
        b"GET /accounts/go" + HEADLINES + b"\r\n",
        b"GET /accounts/nothing" + HEADLINES + b"Accept: text/html\r\n\r\n",
        b"GET /accounts/login" + HEADLINES + b"Accept: text/html\r\n\r\n",
        b"POST /accounts/token" + HEADLINES + b"Content-Length: 1000000\r\n\r\na=",
        b"POST /v1.1/devices" + HEADLINES + b"Content-Length: 1000000\r\n\r\n{",
    ):
        assert await garbage(partial(send_and_read, http, sent)) < LEFT_BY_WERKZEUG, sent


#: The begin of a ClientHello, and what is no TLS.
BEGUN, NO_TLS = b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"


@pytest.mark.usefixtures("without_collector")
@each_row("sees_certificates", [False, True])
async def test_tls_of_strangers_leaves_nothing_to_the_collector(
    services: Services, world: World, nursery: trio.Nursery, tmp_path: Path, sees_certificates: bool
) -> None:
    """OpenSSL holds some 20 KiB for each connection, of which the collector knows nothing."""
    server, client = contexts(tmp_path)
    tls = PeerContext(tmp_path / "cert.pem", tmp_path / "key.pem", required=True) if sees_certificates else server
    for address in await listen(services, nursery, tls=tls):
        assert await garbage(partial(send_and_go, address, BEGUN)) < 1
        assert await garbage(partial(send_and_read, address, NO_TLS)) < 1

        async def shake_hands(address: Address = address) -> None:
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                with suppress(trio.BrokenResourceError):
                    await trio.SSLStream(stream, client, server_hostname=address.host).do_handshake()
                await wait_all_tasks_blocked()
            await wait_all_tasks_blocked()

        assert await garbage(shake_hands) < OF_THE_CLIENT
