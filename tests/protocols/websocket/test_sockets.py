"""Connections over sockets of the operating system, which are read and written without trio's streams."""

import socket
import struct

import pytest
import trio
import trio.testing

from broker.services import Services
from config.limits import WEBSOCKET_BACKLOG
from protocols.streams import connection
from tests.factories import ADA_TOKEN, KITCHEN, KITCHEN_TOKEN
from tests.protocols.websocket.peers import Peers
from tests.tickets import at

_LIVE = f"/v1.1/live?Authorization=bearer+{ADA_TOKEN}"
_READS = 600
_TEXT_BYTES = 900


async def test_an_idle_connection_has_one_task(peers: Peers) -> None:
    first = await peers.connect_plain(_LIVE, sockets=True)  # with it come the tasks that all share
    before = trio.lowlevel.current_statistics().tasks_living
    opened = [await peers.connect_plain(path, sockets=True) for path in (_LIVE, _LIVE, "/v1.1/websocket")]
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == before + len(opened)
    for one in (first, *opened):
        await one.stream.aclose()


async def test_a_message_that_comes_in_pieces_is_answered(peers: Peers) -> None:
    device = await peers.connect_plain("/v1.1/websocket?ack=true", sockets=True)
    async with device.stream:
        await device.send({"type": "register", "sdid": KITCHEN, "Authorization": f"bearer {KITCHEN_TOKEN}"})
        assert (await device.said())["data"]["code"] == "200"
        frames = device.encoded(*({"sdid": KITCHEN, "cid": str(n), "data": {"state": True}} for n in range(3)))
        for at in range(0, len(frames), 50):
            await device.stream.send_all(frames[at : at + 50])
            await trio.testing.wait_all_tasks_blocked()
        assert [(await device.said())["data"]["cid"] for _ in range(3)] == ["0", "1", "2"]


async def test_a_reader_that_pauses_again_and_again_gets_every_frame_once_and_in_order(
    peers: Peers, services: Services
) -> None:
    assert _READS < WEBSOCKET_BACKLOG  # this number may wait for as long as they like
    reader = await peers.connect_plain(_LIVE, sockets=True)
    device, ingest = await services.devices.registry.find(KITCHEN), services.messages.ingest
    before = trio.lowlevel.current_statistics().tasks_living
    async with reader.stream:
        for _ in range(3):
            data = b'{"text":"%b"}' % (b"x" * _TEXT_BYTES)  # more in all than the operating system takes
            positions = [ingest.submit(device, data) for _ in range(_READS)]
            await ingest.wait_committed()
            await trio.testing.wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().tasks_living == before + 1  # the task that writes the rest
            mids = [ingest.mid(at(position)) for position in positions]
            assert [(await reader.said())["mid"] for _ in mids] == mids


async def test_a_peer_that_goes_leaves_nothing_behind(peers: Peers, services: Services) -> None:
    for _ in range(2):  # with the first one come the tasks that all share
        before = trio.lowlevel.current_statistics().tasks_living
        reader = await peers.connect_plain(_LIVE, sockets=True)
        await reader.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
    assert services.routing.feeds.statistics().subscribers == 0
    assert trio.lowlevel.current_statistics().tasks_living == before


async def test_a_socket_is_read_until_its_end() -> None:
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        await theirs.send(b"abc")
        assert await connection._read_when_ready(ours, 65_536) == b"abc"
        theirs.close()
        assert await connection._read_when_ready(ours, 65_536) == b""


async def test_a_socket_that_was_closed_here_reads_as_ended() -> None:
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        ours.close()
        assert await connection._read_when_ready(ours, 65_536) == b""


async def test_a_socket_that_is_closed_here_while_it_is_read_raises() -> None:
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def close_it() -> None:
                await trio.testing.wait_all_tasks_blocked()
                ours.close()

            with pytest.raises(trio.ClosedResourceError):
                await connection._read_when_ready(ours, 65_536)


async def test_a_connection_that_was_reset_raises() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as theirs:
        accepted, _ = listener.accept()
        ours = trio.socket.from_stdlib_socket(accepted)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        with ours, pytest.raises(trio.BrokenResourceError):
            await connection._read_when_ready(ours, 65_536)
