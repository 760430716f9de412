"""Connections whose sockets are parked in the hub: everything that a connection's task awaits still happens."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.services import Services
from protocols.streams.hub import Hub
from tests.factories import HALL, HALL_TOKEN, World
from tests.protocols.mqtt.conftest import Runner
from tests.protocols.mqtt.peers import (
    ACCEPTED,
    ACTIONS,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    Peer,
    Server,
    connect,
    puback,
    publish,
)
from tests.rows import each_row

pytestmark = pytest.mark.slow


HALL_MESSAGES = f"/v1.1/messages/{HALL}".encode()


class _Closing(Server):
    """Closes the sockets of its peers at the end."""

    async def dial(self) -> Peer:
        peer = await super().dial()
        self.peers.append(peer)
        return peer

    peers: list[Peer]


@pytest.fixture
async def server(services: Services, world: World) -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        server = _Closing(services, nursery, Hub(nursery, services.core.life))
        server.peers = []
        yield server
        nursery.cancel_scope.cancel()
    for peer in server.peers:
        await peer.stream.aclose()


@each_row("sign_of_life", [PINGREQ, publish(qos=0)], ids=["ping", "message"])
async def test_each_packet_extends_the_keep_alive(
    server: Server, autojump_clock: MockClock, sign_of_life: bytes
) -> None:
    peer = await server.connected(keep_alive=20)
    begin = trio.current_time()
    for _ in range(3):
        await trio.sleep(29)
        await peer.send(sign_of_life)
        if sign_of_life == PINGREQ:
            await peer.expect(PINGRESP)
    await wait_all_tasks_blocked()
    await peer.expect_end()
    assert trio.current_time() == begin + 3 * 29 + 30
    assert _hub(server).parked == 0


async def test_an_incomplete_packet_does_not_extend_the_keep_alive(server: Server, autojump_clock: MockClock) -> None:
    peer = await server.connected(keep_alive=20)
    begin = trio.current_time()
    await trio.sleep(29)
    await peer.send(publish()[:10])
    await peer.expect_end()
    assert trio.current_time() == begin + 30


async def test_without_a_keep_alive_a_connection_stays(server: Server, autojump_clock: MockClock) -> None:
    peer = await server.connected()
    await trio.sleep(300)
    await peer.expect_nothing()


async def test_the_keep_alive_does_not_run_while_the_server_does_not_read(
    server: Server, runner: Runner, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.journal.JOURNAL_MAX_ROWS", 1)
    peer = await server.connected(keep_alive=20)
    runner.hold_commits()
    await peer.send(publish(1))
    await wait_all_tasks_blocked()  # the first one is in the held commit
    await peer.send(publish(2))
    await wait_all_tasks_blocked()
    await peer.send(publish(3))
    await trio.sleep(100)
    assert _hub(server).parked == 0  # nothing is read while nothing can be stored
    runner.commits.set()
    await peer.expect(puback(1), puback(2), puback(3))
    await peer.expect_nothing()


async def test_who_is_beyond_the_allowance_waits_and_nobody_else(server: Server, autojump_clock: MockClock) -> None:
    peer, hall = await server.connected(), await server.connected(HALL, HALL_TOKEN)
    await wait_all_tasks_blocked()
    begin = trio.current_time()
    await peer.send(*[PINGREQ] * 100)
    await wait_all_tasks_blocked()
    assert _hub(server).parked == 1
    await hall.send(PINGREQ)
    await hall.expect(PINGRESP)
    assert trio.current_time() == begin
    await peer.expect(*[PINGRESP] * 100)
    await peer.expect_nothing()
    assert trio.current_time() > begin


async def test_more_packets_than_a_turn_takes_are_all_answered(server: Server) -> None:
    peer, hall = await server.connected(), await server.connected(HALL, HALL_TOKEN)
    await wait_all_tasks_blocked()
    await peer.send(*[publish(number) for number in range(1, 501)])
    await hall.send(publish(7, topic=HALL_MESSAGES))
    await hall.expect(puback(7))
    await peer.expect(*[puback(number) for number in range(1, 501)])
    await wait_all_tasks_blocked()
    assert _hub(server).parked == 2


async def test_a_protocol_error_ends_only_its_connection(server: Server) -> None:
    hall, peer = await server.connected(HALL, HALL_TOKEN), await server.connected()
    await peer.send(publish(1), b"\xf0\x00")
    await peer.expect(puback(1))
    await peer.expect_end()
    await hall.send(publish(7, topic=HALL_MESSAGES))
    await hall.expect(puback(7))


async def test_packets_after_disconnect_are_ignored(server: Server) -> None:
    peer = await server.connected()
    await peer.send(publish(1), DISCONNECT, publish(2))
    await peer.expect(puback(1))
    await peer.expect_end()
    assert len(await server.stored()) == 1


async def test_a_peer_that_has_half_closed_gets_its_acknowledgements(server: Server, runner: Runner) -> None:
    peer = await server.connected()
    runner.hold_commits()
    await peer.send(publish(1))
    await peer.stream.send_eof()
    await wait_all_tasks_blocked()
    runner.commits.set()
    await peer.expect(puback(1))
    await peer.expect_end()


async def test_the_newer_connection_takes_over(server: Server, autojump_clock: MockClock) -> None:
    older = await server.connected(topics=[ACTIONS])
    await wait_all_tasks_blocked()
    newer = await server.connected(topics=[ACTIONS])
    begin = trio.current_time()
    await older.expect_end()
    assert trio.current_time() == begin
    await newer.expect_nothing()
    assert _hub(server).parked == 1


async def test_a_stop_ends_parked_connections_after_their_acknowledgements(server: Server, runner: Runner) -> None:
    peer, idle = await server.connected(), await server.connected(HALL, HALL_TOKEN)
    await wait_all_tasks_blocked()
    runner.hold_commits()
    await peer.send(publish(1))
    await wait_all_tasks_blocked()
    server.services.routing.connections.close_all()
    await idle.expect_end()
    runner.commits.set()
    await peer.expect(puback(1))
    await peer.expect_end()
    await wait_all_tasks_blocked()
    assert _hub(server).parked == 0


async def test_without_a_hub_to_park_in_the_task_reads(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as shortage:
        shortage.setattr("select.epoll", none_left)
        peer = await server.dial()
        await peer.send(connect())
        await peer.expect(ACCEPTED)
        for number in (1, 2):
            await peer.send(publish(number))
            await peer.expect(puback(number))
    assert _hub(server).parked == 0


def _hub(server: Server) -> Hub:
    assert server.hub is not None
    return server.hub
