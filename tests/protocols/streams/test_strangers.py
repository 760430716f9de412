"""Connections that take a place among the unauthenticated ones, over all TCP listeners (reference 21.6)."""

import os
import select
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from trio_websocket import WebSocketConnection, open_websocket_url

from broker.services import Services
from config.limits import STRANGERS_PER_TURN, UNAUTHENTICATED_CONNECTIONS
from config.settings import Address
from protocols.http.server import serve_http
from protocols.mqtt.server import serve_mqtt
from protocols.streams.hub import Hub
from protocols.websocket.server import serve_websocket_connection
from tests.factories import ADA, ADA_TOKEN, KITCHEN, KITCHEN_TOKEN, World
from tests.protocols.http.routes import shared_routes
from tests.protocols.mqtt.peers import ACCEPTED, connect
from tests.rows import each_row

pytestmark = pytest.mark.slow


ANY: Final = Address("127.0.0.1", 0)
CALL = "GET /v1.1/devices/{device} HTTP/1.1\r\nHost: a\r\nAuthorization: bearer {token}\r\n\r\n"


@pytest.fixture(scope="module", autouse=True)
def _routes_are_shared() -> Iterator[None]:
    with shared_routes():
        yield


@pytest.fixture
async def http(services: Services, world: World, nursery: trio.Nursery) -> Address:
    websocket = partial(serve_websocket_connection, services, hub=Hub(nursery, services.core.life))
    bound: Address = await nursery.start(partial(serve_http, services, ANY, nursery, websocket=websocket))
    return bound


@pytest.fixture
async def mqtt(services: Services, world: World, nursery: trio.Nursery) -> Address:
    bound: Address = await nursery.start(partial(serve_mqtt, services, ANY, connections=nursery))
    return bound


async def strangers(services: Services) -> int:
    await wait_all_tasks_blocked(0.01)
    return services.limits.strangers.statistics().connections


async def test_a_device_on_mqtt_is_a_stranger_until_its_connect_is_accepted(services: Services, mqtt: Address) -> None:
    async with await trio.open_tcp_stream(mqtt.host, mqtt.port) as stream:
        assert await strangers(services) == 1
        await stream.send_all(connect())
        assert await stream.receive_some() == ACCEPTED
        assert await strangers(services) == 0


async def test_a_refused_device_is_a_stranger_to_the_end(services: Services, mqtt: Address) -> None:
    async with await trio.open_tcp_stream(mqtt.host, mqtt.port) as stream:
        await stream.send_all(connect(token=ADA_TOKEN))
        assert await stream.receive_some() != ACCEPTED
        assert await strangers(services) == 1
    assert await strangers(services) == 0


async def test_an_http_client_is_a_stranger_until_a_call_with_a_valid_token(services: Services, http: Address) -> None:
    async with await trio.open_tcp_stream(http.host, http.port) as stream:
        assert await strangers(services) == 1
        await stream.send_all(CALL.format(device=KITCHEN, token="00" * 16).encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 401")
        assert await strangers(services) == 1
        await stream.send_all(CALL.format(device=KITCHEN, token=KITCHEN_TOKEN).encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        assert await strangers(services) == 0


@pytest.fixture
async def channel(http: Address) -> AsyncIterator[WebSocketConnection]:
    async with open_websocket_url(f"ws://{http}/v1.1/websocket?ack=true") as opened:
        yield opened


async def test_a_device_channel_is_one_of_a_stranger_until_a_device_is_registered(
    services: Services, channel: WebSocketConnection
) -> None:
    assert await strangers(services) == 1
    for token, count in (("00" * 16, 1), (KITCHEN_TOKEN, 0)):
        await channel.send_message(
            f'{{"type":"register","sdid":"{KITCHEN}","Authorization":"bearer {token}","cid":"1"}}'
        )
        await channel.get_message()
        assert await strangers(services) == count


@each_row("path", [f"live?userId={ADA}&", f"events?uids={ADA}&", "websocket?"])
async def test_a_websocket_with_a_valid_token_is_none_of_a_stranger(
    services: Services, http: Address, path: str
) -> None:
    url = f"ws://{http}/v1.1/{path}Authorization=bearer+{ADA_TOKEN}"
    async with open_websocket_url(url):
        assert await strangers(services) == 0


@each_row(
    ("protocol", "sent"),
    [
        ("http", b"GET /v1.1/users/self HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("http", b"\x16\x03\x01"),
        ("mqtt", b"\0\0"),
        ("mqtt", b"\x10\xff\xff\x03"),
    ],
)
async def test_strangers_who_send_at_one_moment_are_answered_a_few_in_each_turn(
    services: Services, http: Address, mqtt: Address, mock_clock: MockClock, protocol: str, sent: bytes
) -> None:
    address = {"http": http, "mqtt": mqtt}[protocol]
    peers = [await trio.open_tcp_stream(address.host, address.port) for _ in range(8 * STRANGERS_PER_TURN)]
    assert await strangers(services) == len(peers)
    for peer in peers:
        os.write(peer.socket.fileno(), sent)
    answered, most = 0, 0
    while answered < len(peers):
        await trio.lowlevel.checkpoint()
        now = sum(_has_answer(peer) for peer in peers)
        answered, most = now, max(most, now - answered)
    assert most <= 2 * STRANGERS_PER_TURN  # trio runs ready tasks in any order
    for peer in peers:
        await peer.aclose()


def _has_answer(peer: trio.SocketStream) -> bool:
    return bool(select.select([peer.socket.fileno()], [], [], 0)[0])


async def test_a_listener_that_has_waited_long_admits_when_another_listener_has_no_room(
    services: Services, http: Address, mqtt: Address, autojump_clock: MockClock
) -> None:
    """Strangers on one listener take all places; a client of the other one waits for the oldest to go."""
    for number in range(UNAUTHENTICATED_CONNECTIONS):
        assert services.limits.strangers.enter(f"192.0.2.{number}", lambda: None) is not None
    async with await trio.open_tcp_stream(http.host, http.port) as stream:
        await stream.send_all(CALL.format(device=KITCHEN, token=KITCHEN_TOKEN).encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
    assert services.limits.strangers.statistics().refused == 0
