"""The device channel and the live feed of the real daemon, through its HTTP listener, with trio-websocket's client."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from tests.daemon import ADA, APPLICATION_TOKEN, LIGHT_TYPE, USER_TOKEN, Daemon, device_id, device_token, running_daemon

CHANNEL = "/websocket?ack=true"
ACTION = {"actions": [{"name": "setOn"}]}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon"), devices=4) as running:
        yield running


@asynccontextmanager
async def connect(daemon: Daemon, path: str) -> AsyncIterator[WebSocketConnection]:
    """trio-websocket's client on a stream of the test, because it leaves its own open when the server closes first."""
    async with await trio.open_tcp_stream(*daemon.host_port("http")) as stream, trio.open_nursery() as nursery:
        yield await wrap_client_stream(nursery, stream, "localhost", f"/v1.1{path}")
        nursery.cancel_scope.cancel()


async def ask(socket: WebSocketConnection, **frame: object) -> Any:
    await socket.send_message(json.dumps(frame))
    return json.loads(await socket.get_message())


async def register(socket: WebSocketConnection, number: int, token: str | None = None) -> None:
    token = device_token(number) if token is None else token
    answer = await ask(socket, type="register", sdid=device_id(number), Authorization=f"bearer {token}")
    assert answer["data"]["code"] == "200"


async def test_messages_are_acknowledged_and_seen_live_in_order(daemon: Daemon) -> None:
    path = f"/live?Authorization=bearer+{USER_TOKEN}&sdids={device_id(0)}"
    async with (
        connect(daemon, path) as live,
        connect(daemon, CHANNEL) as device,
    ):
        await register(device, 0)
        for number in range(500):
            await device.send_message(json.dumps({"data": {"intensity": number}, "cid": number}))
        answers = [json.loads(await device.get_message())["data"] for _ in range(500)]
        frames = [json.loads(await live.get_message()) for _ in range(500)]
    assert [answer["cid"] for answer in answers] == [str(number) for number in range(500)]
    assert [frame["data"] for frame in frames] == [{"intensity": number} for number in range(500)]
    assert [frame["mid"] for frame in frames] == [answer["mid"] for answer in answers]
    assert {(frame["uid"], frame["sdtid"]) for frame in frames} == {(ADA, LIGHT_TYPE)}


async def test_an_action_goes_from_one_device_to_another(daemon: Daemon) -> None:
    async with connect(daemon, CHANNEL) as light, connect(daemon, CHANNEL) as switch:
        await register(light, 1)
        await register(switch, 2, APPLICATION_TOKEN)
        answer = await ask(switch, type="action", ddid=device_id(1), data=ACTION)
        action = json.loads(await light.get_message())
    assert (action["mid"], action["sdid"], action["data"]) == (answer["data"]["mid"], device_id(2), ACTION)


async def test_a_newer_connection_takes_over(daemon: Daemon) -> None:
    async with connect(daemon, CHANNEL) as older, connect(daemon, CHANNEL) as newer:
        await register(older, 3)
        await register(newer, 3)
        with pytest.raises(ConnectionClosed) as closed:
            await older.get_message()
        assert closed.value.reason is not None
        assert (closed.value.reason.code, closed.value.reason.reason) == (1008, "replaced by a newer connection")
        assert "data" in await ask(newer, data={"state": True})


async def test_a_refused_handshake_says_why(daemon: Daemon) -> None:
    stream = await trio.open_tcp_stream(*daemon.host_port("http"))
    async with stream:
        await stream.send_all(
            b"GET /v1.1/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        answer = b"".join([bytes(part) async for part in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ")
    assert json.loads(body)["error"]["message"] == "Please provide a valid authorization header"


async def test_a_stopping_daemon_closes_with_1001(tmp_path: Path) -> None:
    with running_daemon(tmp_path, devices=1) as daemon:
        async with (
            connect(daemon, f"/live?Authorization={USER_TOKEN}") as live,
            connect(daemon, CHANNEL) as device,
        ):
            await register(device, 0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, daemon.stop)
                for socket in (live, device):
                    with pytest.raises(ConnectionClosed) as closed:
                        await socket.get_message()
                    assert closed.value.reason is not None
                    assert closed.value.reason.code == 1001
