"""Real sockets, peers that do not read, and the memory and tasks of a connection."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import (
    lockstep_stream_one_way_pair,
    memory_stream_one_way_pair,
    wait_all_tasks_blocked,
)

from config.settings import Address
from protocols.mqtt.exchange import MqttExchange
from protocols.mqtt.packets import Packet, Publish
from protocols.mqtt.server import MqttConnection, serve_mqtt
from protocols.streams.outbox import Outbox
from tests.factories import (
    HALL,
    HALL_TOKEN,
    KITCHEN,
)
from tests.protocols.mqtt.conftest import Runner
from tests.protocols.mqtt.peers import (
    ACCEPTED,
    ACTIONS,
    DISCONNECT,
    ERRORS,
    PINGREQ,
    PINGRESP,
    Peer,
    Server,
    connect,
    puback,
    publish,
    pubrec,
    suback,
    subscribe,
)
from tests.rows import each_row

pytestmark = pytest.mark.slow


HALL_MESSAGES = f"/v1.1/messages/{HALL}".encode()


# --- On real sockets ------------------------------------------------------------------------------------------------


Dial = Callable[[], Awaitable[Peer]]


@pytest.fixture
async def dial(server: Server) -> AsyncIterator[Dial]:
    """Dials a listener as a device does."""
    address = await server.nursery.start(
        lambda task_status: serve_mqtt(
            server.services, Address("127.0.0.1", 0), connections=server.nursery, task_status=task_status
        )
    )
    async with AsyncExitStack() as stack:

        async def dial() -> Peer:
            return Peer(await stack.enter_async_context(await trio.open_tcp_stream(address.host, address.port)))

        yield dial


async def test_a_whole_session_on_a_socket(server: Server, dial: Dial) -> None:
    peer = await dial()
    await peer.send(connect(), subscribe(ERRORS), publish(1), publish(2, qos=2), publish(3, b"[]"))
    await peer.expect(ACCEPTED, suback(0))
    await peer.expect_error(400, "Bad Request")
    await peer.expect(puback(1), puback(3), pubrec(2))
    await peer.send(DISCONNECT)
    await peer.expect_end()
    assert len(await server.stored()) == 2


async def test_acknowledgements_reach_a_peer_that_is_still_sending(server: Server, dial: Dial) -> None:
    peer = await dial()
    await peer.send(connect())
    await peer.expect(ACCEPTED)
    # Unread bytes in the server's socket must not turn its close into a reset.
    await peer.send(*(publish(number) for number in range(1, 101)), b"\xf0\x00", *(PINGREQ for _ in range(50_000)))
    await peer.expect(*(puback(number) for number in range(1, 101)))
    await peer.expect_end()


async def test_a_commit_after_a_reset_harms_nobody(server: Server, dial: Dial, runner: Runner) -> None:
    """Its acknowledgement finds a connection that has ended."""
    peer = await dial()
    await peer.send(connect())
    await peer.expect(ACCEPTED)
    kitchen = await server.services.devices.registry.find(KITCHEN)
    assert isinstance(peer.stream, trio.SocketStream)
    peer.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    runner.hold_commits()
    with capture_logs() as logs:
        await peer.send(publish(1))
        await runner.holds_commit.wait()
        await peer.stream.aclose()
        with trio.fail_after(10):
            while server.services.routing.connections.is_online(kitchen.key):
                await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        runner.commits.set()
        await server.services.messages.ingest.wait_committed()
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


async def test_a_reset_ends_only_its_connection(server: Server, dial: Dial) -> None:
    hall = await dial()
    await hall.send(connect(HALL, HALL_TOKEN))
    await hall.expect(ACCEPTED)
    peer = await dial()
    await peer.send(connect())
    await peer.expect(ACCEPTED)
    assert isinstance(peer.stream, trio.SocketStream)
    peer.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    await peer.send(publish(1))
    await peer.stream.aclose()
    await hall.send(publish(7, topic=HALL_MESSAGES))
    await hall.expect(puback(7))


async def test_a_bug_ends_only_the_connection_that_has_met_it(
    server: Server, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = MqttExchange.handle

    def fails(exchange: MqttExchange, packets: Sequence[Packet]) -> None:
        if any(isinstance(packet, Publish) and packet.payload == b"meets it" for packet in packets):
            raise ValueError("a bug")
        handle(exchange, packets)

    monkeypatch.setattr(MqttExchange, "handle", fails)
    hall, peer = await dial(), await dial()
    await hall.send(connect(HALL, HALL_TOKEN))
    await peer.send(connect())
    for one in (hall, peer):
        await one.expect(ACCEPTED)
        await one.send(PINGREQ)
        await one.expect(PINGRESP)
    with capture_logs() as logs:
        await peer.send(publish(1, b"meets it"))
        await peer.expect_end()
    assert [entry["event"] for entry in logs] == ["connection_failed"]
    await hall.send(publish(7, topic=HALL_MESSAGES))
    await hall.expect(puback(7))


async def test_a_peer_that_never_reads_is_not_read_from(server: Server, dial: Dial) -> None:
    peer = await dial()
    await peer.send(connect())
    await peer.expect(ACCEPTED)
    sent = 0
    with trio.move_on_after(1) as patience:  # until the socket has been full for a while
        while sent < 200_000_000:
            await peer.send(PINGREQ * 32_768)
            sent += 65_536
            patience.deadline = trio.current_time() + 0.3
    assert patience.cancelled_caught


# --- Memory ---------------------------------------------------------------------------------------------------------


class Counting(trio.abc.ReceiveStream):
    """How much the server has read."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self.bytes = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        received = await self._stream.receive_some(max_bytes)
        self.bytes += len(received)
        return received

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_memory_is_bounded_for_a_peer_that_never_reads(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Outbox.LIMIT // 16
    monkeypatch.setattr(Outbox, "LIMIT", limit)
    server.services.limits.overhead.per_second = math.inf  # the outbox bounds it, not the pace of pings
    to_server, reads = memory_stream_one_way_pair()
    writes, from_server = lockstep_stream_one_way_pair()
    counting = Counting(reads)
    server.serve(trio.StapledStream(writes, counting))
    peer = Peer(trio.StapledStream(to_server, from_server))
    await peer.send(connect())
    await peer.expect(ACCEPTED)
    total = 45_000  # twice what may wait here and there
    await peer.send(PINGREQ * total)
    await wait_all_tasks_blocked()
    assert counting.bytes < limit + 70_000  # two bytes for two, and what is read at once
    await peer.expect(PINGRESP * total)


async def test_error_messages_are_dropped_when_too_many_bytes_wait(server: Server) -> None:
    to_server, reads = memory_stream_one_way_pair()
    writes, from_server = lockstep_stream_one_way_pair()
    server.serve(trio.StapledStream(writes, reads))
    peer = Peer(trio.StapledStream(to_server, from_server))
    await peer.send(connect(), subscribe(ACTIONS, ERRORS))
    await peer.expect(ACCEPTED, suback(0, 0))
    await fill_outbox(server)
    await peer.send(publish(topic=b"t", payload=b"{}", qos=0), PINGREQ)
    received = b""
    while not received.endswith(PINGRESP):
        received += await peer.stream.receive_some()
    assert Outbox.LIMIT < len(received) < Outbox.LIMIT + 2_000
    assert b"permission" not in received


async def fill_outbox(server: Server) -> None:
    """Send a device that does not read as many Actions as may wait."""
    services = server.services
    device = await services.devices.registry.find(KITCHEN)
    action = '{"actions":[{"name":"setOn","parameters":{"x":"%s"}}]}' % ("x" * 900)
    for _ in range(Outbox.LIMIT // 900):
        services.messages.ingest.submit_action(device, device, action.encode())
    await services.messages.ingest.wait_committed()


async def test_memory_is_bounded_while_the_store_does_not_commit(
    server: Server, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocols.mqtt.exchange.MAX_UNACKNOWLEDGED", 1_000)
    to_server, reads = memory_stream_one_way_pair()
    writes, from_server = memory_stream_one_way_pair()
    counting = Counting(reads)
    server.serve(trio.StapledStream(writes, counting))
    peer = Peer(trio.StapledStream(to_server, from_server))
    await peer.send(connect())
    await peer.expect(ACCEPTED)
    runner.hold_commits()
    messages = [publish(1 + number) for number in range(4_000)]
    await peer.send(*messages)
    await wait_all_tasks_blocked()
    assert counting.bytes < sum(map(len, messages)) / 2
    runner.commits.set()
    await peer.expect(*(puback(1 + number) for number in range(4_000)))


async def test_a_connected_device_costs_two_tasks(server: Server) -> None:
    """The reader and the sender."""
    await server.connected()
    await wait_all_tasks_blocked()
    before = trio.lowlevel.current_statistics().tasks_living
    await server.connected(HALL, HALL_TOKEN)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == before + 2


async def test_a_connected_device_on_a_socket_costs_one_task(server: Server, dial: Dial) -> None:
    """The task that has accepted it: who reads and writes for all is there already."""
    peer, hall = await dial(), await dial()
    await hall.send(connect(HALL, HALL_TOKEN))
    await hall.expect(ACCEPTED)
    await wait_all_tasks_blocked()
    before = trio.lowlevel.current_statistics().tasks_living
    await peer.send(connect())
    await peer.expect(ACCEPTED)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == before


async def test_what_a_socket_does_not_take_at_once_is_written_by_a_task_that_ends_with_the_connection(
    server: Server, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MqttConnection, "_send_now", lambda _connection, _data: 0)
    first = await dial()
    await first.send(connect(), publish(1))
    await first.expect(ACCEPTED, puback(1))
    await first.send(DISCONNECT)
    await first.expect_end()
    await first.stream.aclose()
    await wait_all_tasks_blocked()
    before = trio.lowlevel.current_statistics().tasks_living  # with the hub, and who reads what still comes at the end
    peer = await dial()
    await peer.send(connect(), publish(1))
    await peer.expect(ACCEPTED, puback(1))
    await _wait_for_tasks(before + 2)  # the connection's and its writer
    await peer.send(DISCONNECT)
    await peer.expect_end()
    await peer.stream.aclose()
    await _wait_for_tasks(before)


async def _wait_for_tasks(count: int) -> None:
    with trio.fail_after(10):
        while trio.lowlevel.current_statistics().tasks_living != count:
            await trio.lowlevel.checkpoint()


@each_row(("error", "logged"), [(trio.BrokenResourceError(), []), (ValueError("a bug"), ["connection_failed"])])
async def test_what_cannot_be_written_ends_only_its_connection(
    server: Server, dial: Dial, monkeypatch: pytest.MonkeyPatch, error: Exception, logged: list[str]
) -> None:
    usual, takes_nothing = MqttConnection._send_now, trio.Event()
    monkeypatch.setattr(
        MqttConnection, "_send_now", lambda one, data: 0 if takes_nothing.is_set() else usual(one, data)
    )
    hall, peer = await dial(), await dial()
    await hall.send(connect(HALL, HALL_TOKEN))
    await peer.send(connect())
    for one in (hall, peer):
        await one.expect(ACCEPTED)

    async def fail(_outbox: Outbox) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    monkeypatch.setattr(Outbox, "send_forever", fail)
    takes_nothing.set()
    with capture_logs() as logs:
        await peer.send(PINGREQ)
        await peer.expect_end()
    assert [entry["event"] for entry in logs] == logged
    takes_nothing = trio.Event()
    await hall.send(publish(7, topic=HALL_MESSAGES))
    await hall.expect(puback(7))
