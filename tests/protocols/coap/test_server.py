"""The UDP listener: a socket on loopback, and aiocoap's client as an independent implementation."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import TypeVar

import aiocoap
import pytest
import trio
from structlog.testing import capture_logs

from broker.services import Services
from config.settings import Address
from protocols.coap.echo import new_guard
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.messages import ACK, CON, RST, CoapMessage, Code, Option, decode_message
from protocols.coap.server import serve_coap
from tests.factories import KITCHEN_TOKEN, World
from tests.protocols.coap.peers import encode_message
from tests.rows import each_row

T = TypeVar("T")
STATE = b'{"data":{"state":true}}'


@pytest.fixture
def served(services: Services) -> CoapEndpoint:
    return CoapEndpoint(services, guard=new_guard())


@pytest.fixture
async def address(services: Services, world: World, served: CoapEndpoint) -> AsyncIterator[Address]:
    async with trio.open_nursery() as nursery:
        bind = Address("127.0.0.1", 0)
        yield await nursery.start(partial(serve_coap, services, bind, endpoint=served))
        nursery.cancel_scope.cancel()


class Socket:
    """The socket of a client."""

    def __init__(self, address: Address) -> None:
        self._socket = trio.socket.from_stdlib_socket(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._address = (address.host, address.port)

    async def send(self, message: CoapMessage | bytes) -> None:
        datagram = message if isinstance(message, bytes) else encode_message(message)
        await self._socket.sendto(datagram, self._address)

    def send_at_once(self, messages: list[CoapMessage]) -> None:
        """Send without a checkpoint, so the listener finds all of them when it wakes up."""
        with socket.socket(fileno=os.dup(self._socket.fileno())) as sock:
            for message in messages:
                sock.sendto(encode_message(message), self._address)

    async def receive(self) -> CoapMessage:
        with trio.fail_after(5):
            return decode_message(await self._socket.recv(2048))

    async def ask(self, message: CoapMessage | bytes) -> CoapMessage:
        await self.send(message)
        return await self.receive()

    def close(self) -> None:
        self._socket.close()


def _post(message_id: int, payload: bytes = STATE) -> CoapMessage:
    path = tuple((int(Option.URI_PATH), one) for one in (b"v1.1", b"messages", KITCHEN_TOKEN.encode()))
    return CoapMessage(CON, Code.POST, message_id, b"t", path, payload)


def _observe(message_id: int) -> CoapMessage:
    path = tuple((int(Option.URI_PATH), one) for one in (b"v1.1", b"actions", KITCHEN_TOKEN.encode()))
    return CoapMessage(CON, Code.GET, message_id, b"o", ((Option.OBSERVE, b""), *path))


@pytest.fixture
def device(address: Address) -> Iterator[Socket]:
    device = Socket(address)
    yield device
    device.close()


async def test_port_0_takes_a_free_one(address: Address) -> None:
    assert address.port > 0


async def test_post(device: Socket, services: Services) -> None:
    answer = await device.ask(_post(1))
    assert (answer.type, answer.code, answer.message_id) == (ACK, Code.CREATED, 1)
    assert services.messages.ingest.statistics().messages == 1


async def test_all_datagrams_of_one_wake_up_share_a_commit(device: Socket, services: Services) -> None:
    await device.ask(_post(1))
    commits = services.core.database.statistics().commits
    device.send_at_once([_post(message_id) for message_id in range(2, 40)])
    answers = [await device.receive() for _ in range(2, 40)]
    assert {answer.message_id for answer in answers} == set(range(2, 40))
    assert services.core.database.statistics().commits == commits + 1


@each_row("datagram", [b"", b"\x40", b"\xff" * 1400, bytes(4000), b"\x40\x02\x00\x09" + b"\xbd\xff" + b"a" * 3000])
async def test_garbage_has_no_effect(device: Socket, datagram: bytes) -> None:
    with capture_logs() as logs:
        await device.send(datagram)
        await device.send(_post(1))
        while (answer := await device.receive()).message_id != 1 or answer.code == Code.EMPTY:
            pass
    assert answer.code == Code.CREATED
    assert logs == []


async def test_an_oversize_datagram_is_refused(device: Socket) -> None:
    answer = await device.ask(_post(1, b" " * 20_000))
    assert (answer.code, json.loads(answer.payload)["error"]["message"]) == (0x8D, "Request body too large")


async def test_a_truncated_datagram_is_rejected(device: Socket, services: Services) -> None:
    """Its body is not too long, but the missing part is unknown."""
    path = tuple((int(Option.URI_PATH), one) for one in (b"v1.1", b"messages", KITCHEN_TOKEN.encode()))
    filler = ((2048, b"x" * 1000),) * 4
    answer = await device.ask(CoapMessage(CON, Code.POST, 1, b"t", (*path, *filler), STATE + b" " * 40))
    assert (answer.type, answer.message_id) == (RST, 1)
    assert services.messages.ingest.statistics().messages == 0


async def test_back_pressure_stops_reading(device: Socket, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the journal has no room, datagrams wait in the kernel or are dropped there."""
    room = trio.Event()
    await device.ask(_post(1))
    with monkeypatch.context() as patch:
        patch.setattr(type(services.messages.ingest), "has_room", property(lambda _self: room.is_set()))
        patch.setattr(type(services.messages.ingest), "wait_room", lambda _self: room.wait())
        assert (await device.ask(_post(2))).code == Code.CREATED  # it was read before `has_room` was asked
        await device.send(_post(3))
        await trio.testing.wait_all_tasks_blocked()
        assert services.messages.ingest.statistics().messages == 2
        room.set()
        assert (await device.receive()).message_id == 3


async def test_stop_answers_what_was_accepted_and_tells_observers(services: Services, world: World) -> None:
    await services.devices.registry.by_token(KITCHEN_TOKEN)
    async with trio.open_nursery() as nursery:
        device = Socket(await nursery.start(serve_coap, services, Address("127.0.0.1", 0)))
        await device.ask(_observe(1))
        await device.send(_post(2))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    answers = [await device.receive(), await device.receive()]
    device.close()
    assert {answer.code for answer in answers} == {Code.CREATED, Code.SERVICE_UNAVAILABLE}
    assert not services.routing.connections.is_online(world.kitchen)


async def test_an_address_in_use(services: Services, address: Address) -> None:
    with pytest.raises(OSError, match="in use"):
        await serve_coap(services, address)


# --- aiocoap's client ---------------------------------------------------------------------------------------------


async def _as_client(work: Callable[[aiocoap.Context], Awaitable[T]]) -> T:
    """Run `work` in a thread with an asyncio loop."""

    async def run() -> T:
        context = await aiocoap.Context.create_client_context()
        try:
            return await asyncio.wait_for(work(context), 10)
        finally:
            await context.shutdown()

    return await trio.to_thread.run_sync(lambda: asyncio.run(run()))


@each_row("size", [20, 900])
async def test_aiocoap_posts(address: Address, services: Services, size: int) -> None:
    body = json.dumps({"data": {"text": "x" * size}, "ts": 1, "filler": "y" * 900}).encode()

    async def work(context: aiocoap.Context) -> aiocoap.Message:
        message = aiocoap.Message(
            code=aiocoap.POST, uri=f"coap://{address}/v1.1/messages/{KITCHEN_TOKEN}", payload=body, content_format=50
        )
        return await context.request(message).response

    answer = await _as_client(work)
    assert answer.code == aiocoap.CREATED
    assert await services.messages.history.by_mid(json.loads(answer.payload)["data"]["mid"])


async def test_aiocoap_observes(address: Address, services: Services, world: World) -> None:
    registered = trio.Event()
    token = trio.lowlevel.current_trio_token()

    async def work(context: aiocoap.Context) -> list[bytes]:
        message = aiocoap.Message(code=aiocoap.GET, uri=f"coap://{address}/v1.1/actions/{KITCHEN_TOKEN}", observe=0)
        request = context.request(message)
        payloads = [(await request.response).payload]
        token.run_sync_soon(registered.set)
        async for notification in request.observation:
            payloads.append(notification.payload)
            if len(payloads) == 4:
                break
        request.observation.cancel()
        return payloads

    seen: list[bytes] = []

    async def observe() -> None:
        seen.extend(await _as_client(work))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(observe)
        with trio.fail_after(10):
            await registered.wait()
        assert services.routing.connections.is_online(world.kitchen)
        light = await services.devices.registry.get(world.kitchen)
        for name in "abc":
            services.messages.ingest.submit_action(light, light, b'{"actions":[{"name":"%b"}]}' % name.encode())
    assert seen == [b"{}", *(b'{"actions":[{"name":"%b"}]}' % name.encode() for name in "abc")]


async def test_aiocoap_discovers(address: Address) -> None:
    async def work(context: aiocoap.Context) -> aiocoap.Message:
        return await context.request(
            aiocoap.Message(code=aiocoap.GET, uri=f"coap://{address}/.well-known/core")
        ).response

    answer = await _as_client(work)
    assert answer.opt.content_format == 40
    assert b"</v1.1/actions>" in answer.payload
