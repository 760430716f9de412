"""Connections: authentication, time limits, and every way in which they end."""

import pytest
import trio
from trio.testing import (
    MockClock,
    wait_all_tasks_blocked,
)

from broker.facts import TokenRevoked
from broker.routing.connections import CloseReason
from broker.secrets import token_hash
from config.limits import MQTT_PACKET_BYTES
from protocols.mqtt.encoding import encode_publish
from storage.keys import DeviceKey
from storage.sql import StoreError
from tests.factories import (
    ADA_TOKEN,
    APPLICATION_TOKEN,
    HALL,
    HALL_TOKEN,
    KITCHEN,
    KITCHEN_TOKEN,
    World,
    new_device,
)
from tests.fakes import BreakableEngine
from tests.protocols.mqtt.conftest import Runner
from tests.protocols.mqtt.peers import (
    ACCEPTED,
    ACTIONS,
    DISCONNECT,
    ERRORS,
    PINGREQ,
    PINGRESP,
    Server,
    connect,
    puback,
    publish,
    pubrec,
    pubrel,
    refused,
    subscribe,
)
from tests.rows import each_row

HALL_MESSAGES = f"/v1.1/messages/{HALL}".encode()


async def disable(server: Server, world: World, device: DeviceKey, id_: str) -> None:
    await server.services.core.database.write(
        lambda tx: tx.devices.put_device(
            new_device(
                id_,
                owner=world.ada,
                device_type=world.light_type,
                name="Disabled",
                manifest_version=1,
                manifest_version_policy="LATEST",
                enabled=False,
                now_ms=1,
            )
        )
    )
    await server.services.devices.registry.reload()


# --- Who gets in ----------------------------------------------------------------------------------------------------


@each_row("level", [3, 4])
async def test_a_device_connects_with_its_id_and_its_token(server: Server, level: int) -> None:
    peer = await server.dial()
    await peer.send(connect(level=level))
    await peer.expect(ACCEPTED)
    await peer.expect_nothing()


@each_row(
    ("packet", "code"),
    [
        (connect(None, None), 4),
        (connect(KITCHEN, None), 4),
        (connect("", ""), 4),
        (connect(KITCHEN, "9" * 32), 4),
        (connect(KITCHEN, HALL_TOKEN), 4),
        (connect("9" * 32, KITCHEN_TOKEN), 4),
        (connect(KITCHEN, ADA_TOKEN), 5),
        (connect(KITCHEN, APPLICATION_TOKEN), 5),
        (connect(level=2), 1),
    ],
)
async def test_wrong_credentials_are_refused(server: Server, packet: bytes, code: int) -> None:
    peer = await server.dial()
    await peer.send(packet)
    await peer.expect(refused(code))
    await peer.expect_end()


async def test_a_disabled_device_is_refused(server: Server, world: World) -> None:
    await disable(server, world, world.kitchen, KITCHEN)
    peer = await server.dial()
    await peer.send(connect())
    await peer.expect(refused(5))
    await peer.expect_end()


async def test_every_device_is_refused_while_the_store_fails(server: Server, runner: Runner) -> None:
    runner.error = StoreError("disk gone")
    peer = await server.dial()
    await peer.send(connect())
    await peer.expect(refused(3))
    await peer.expect_end()
    runner.error = None
    await server.connected()


async def test_packets_behind_a_refused_connect_are_ignored(server: Server) -> None:
    peer = await server.dial()
    await peer.send(connect(KITCHEN, HALL_TOKEN), publish(), connect())
    await peer.expect(refused(4))
    await peer.expect_end()
    assert await server.stored() == []


async def test_messages_may_follow_connect_at_once(server: Server) -> None:
    peer = await server.dial()
    await peer.send(connect(), publish(1), publish(2))
    await peer.expect(ACCEPTED, puback(1), puback(2))
    assert len(await server.stored()) == 2


BRIDGE = connect(level=0x84)


@each_row(
    "sent",
    [
        BRIDGE,
        connect(level=6),
        BRIDGE + publish(),
        BRIDGE * 50,
        BRIDGE + bytes(70_000),
        b"\x10\x07\0\4MQTT\x84",
        b"\x10\x09\0\6MQIsdp\x83",
    ],
    ids=["bridge", "6", "more", "repeated", "a flood", "nothing else", "3.1"],
)
async def test_an_unknown_level_is_refused_as_version_3_does_it(server: Server, sent: bytes) -> None:
    """Bridges, which try 0x84 and 0x83 first, then come again with 4 or 3."""
    peer = await server.dial()
    await peer.send(sent)
    await peer.expect(refused(1))
    await peer.expect_end()


@each_row("sent", [BRIDGE[:8], b"\x10\x06\0\4MQTT", b"\x10\x07\0\4MQTS\x84"], ids=["half", "no level", "name"])
async def test_a_truncated_connect_of_an_unknown_level_is_not_answered(
    server: Server, autojump_clock: MockClock, sent: bytes
) -> None:
    peer = await server.dial()
    await peer.send(sent)
    await peer.expect_end()


@pytest.mark.parametrize(
    "packet",
    [connect(KITCHEN, "9" * 32), connect(KITCHEN, ADA_TOKEN), connect(KITCHEN, HALL_TOKEN), connect(level=2)],
)
async def test_a_refused_connect_does_not_disturb_the_devices_connection(server: Server, packet: bytes) -> None:
    peer = await server.connected()
    stranger = await server.dial()
    await stranger.send(packet)
    await stranger.stream.receive_some(4)
    await stranger.expect_end()
    await peer.expect_nothing()
    assert server.services.routing.connections.statistics().takeovers == 0


# --- Time -----------------------------------------------------------------------------------------------------------


async def test_a_connect_must_arrive_within_ten_seconds(server: Server, autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    silent, half = await server.dial(), await server.dial()
    await half.send(connect()[:20])
    await silent.expect_end()
    await half.expect_end()
    assert trio.current_time() == begin + 10


async def test_single_bytes_do_not_extend_the_time_limit(server: Server, autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    peer = await server.dial()

    async def dribble() -> None:
        for byte in connect():
            await peer.send(bytes((byte,)))
            await trio.sleep(0.3)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dribble)
        await peer.expect_end()
        nursery.cancel_scope.cancel()
    assert trio.current_time() == begin + 10


async def test_a_connect_may_come_byte_by_byte(server: Server, autojump_clock: MockClock) -> None:
    peer = await server.dial()
    for byte in connect():
        await peer.send(bytes((byte,)))
        await trio.sleep(0.05)
    await peer.expect(ACCEPTED)
    await trio.sleep(1000)  # and from then on the limit is gone
    await peer.expect_nothing()


@each_row("sign_of_life", [PINGREQ, publish(qos=0)], ids=["ping", "message"])
async def test_silence_may_last_one_and_a_half_times_the_keep_alive(
    server: Server, autojump_clock: MockClock, sign_of_life: bytes
) -> None:
    peer = await server.connected(keep_alive=20)
    await trio.sleep(29)
    await peer.send(sign_of_life)
    if sign_of_life == PINGREQ:
        await peer.expect(PINGRESP)
    begin = trio.current_time()
    await peer.expect_end()
    assert trio.current_time() == begin + 30


async def test_an_incomplete_packet_does_not_extend_the_keep_alive(server: Server, autojump_clock: MockClock) -> None:
    peer = await server.connected(keep_alive=20)
    begin = trio.current_time()
    await trio.sleep(29)
    await peer.send(publish()[:10])
    await peer.expect_end()
    assert trio.current_time() == begin + 30


async def test_the_keep_alive_does_not_run_while_the_server_does_not_read(
    server: Server, runner: Runner, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.journal.JOURNAL_MAX_ROWS", 1)
    peer = await server.connected(keep_alive=20)
    runner.hold_commits()
    await peer.send(publish(1))
    await wait_all_tasks_blocked()  # the first one is in the held commit
    await peer.send(publish(2))
    await trio.sleep(100)
    runner.commits.set()
    await peer.expect(puback(1), puback(2))
    await peer.expect_nothing()


# --- Every way to end -----------------------------------------------------------------------------------------------


@each_row(
    "packets",
    [
        publish(),
        PINGREQ,
        subscribe(ERRORS),
        DISCONNECT,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        connect().replace(b"MQTT", b"MQTX"),
    ],
)
async def test_packets_before_connect_are_not_answered(
    server: Server, autojump_clock: MockClock, packets: bytes
) -> None:
    peer = await server.dial()
    await peer.send(packets)
    await peer.expect_end()
    assert await server.stored() == []


MISBEHAVIOUR: dict[str, bytes] = {
    "a second CONNECT": connect(),
    "a packet over 64 KiB": publish(2, b"x" * MQTT_PACKET_BYTES),
    "the announcement of one": b"\x32\xff\xff\xff\x7f",
    "a reserved packet type": b"\xf0\x00",
    "a packet only a server sends": b"\xd0\x00",
    "QoS 3": b"\x36\x05\x00\x01\x74\x00\x01",
    "packet id 0": b"\x32\x05\x00\x01\x74\x00\x00",
    "a topic that is not UTF-8": encode_publish(b"\xff", b"{}"),
    "PUBREL before PUBREC": publish(2, qos=2) + pubrel(2),
    "SUBSCRIBE without a filter": b"\x82\x02\x00\x01",
}


@each_row("packets", MISBEHAVIOUR.values())
async def test_a_protocol_error_ends_only_its_connection(server: Server, packets: bytes) -> None:
    hall = await server.connected(HALL, HALL_TOKEN)
    peer = await server.connected()
    await peer.send(publish(1), packets)
    await peer.expect(puback(1))  # what came before it counts
    if packets.startswith(b"\x34"):
        await peer.expect(pubrec(2))
    await peer.expect_end()
    await hall.send(publish(7, topic=HALL_MESSAGES))
    await hall.expect(puback(7))
    assert not server.services.routing.connections.is_online((await server.services.devices.registry.find(KITCHEN)).key)


async def test_a_connection_is_closed_after_a_protocol_error_even_if_the_peer_stays_silent(
    server: Server, autojump_clock: MockClock
) -> None:
    peer = await server.connected()
    await peer.send(publish(1), b"\xf0\x00")
    begin = trio.current_time()
    await peer.expect(puback(1))
    await peer.expect_end()
    assert trio.current_time() == begin


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
    newer = await server.connected(topics=[ACTIONS])
    begin = trio.current_time()
    await older.expect_end()
    assert trio.current_time() == begin
    await newer.expect_nothing()
    statistics = server.services.routing.connections.statistics()
    assert (statistics.links, statistics.takeovers) == (1, 1)


async def test_two_devices_with_one_client_id_do_not_disturb_each_other(server: Server) -> None:
    kitchen, hall = await server.connected(), await server.connected(HALL, HALL_TOKEN)
    await kitchen.expect_nothing()
    await hall.expect_nothing()


async def test_a_revoked_token_ends_the_connection(server: Server) -> None:
    peer, hall = await server.connected(), await server.connected(HALL, HALL_TOKEN)
    server.services.core.router.publish(TokenRevoked(token_hash(KITCHEN_TOKEN)))
    await peer.expect_end()
    await hall.expect_nothing()


async def test_a_disabled_device_is_disconnected(server: Server, world: World) -> None:
    peer, hall = await server.connected(), await server.connected(HALL, HALL_TOKEN)
    await disable(server, world, world.kitchen, KITCHEN)
    await peer.expect_end()
    await hall.expect_nothing()


async def test_messages_of_a_device_that_was_disabled_meanwhile_are_not_stored(server: Server, world: World) -> None:
    peer = await server.connected()
    await peer.send(publish(1))  # it is in the socket, and not yet read
    device = await server.services.devices.registry.find(KITCHEN)
    (link,) = server.services.routing.connections.links()
    link.close(CloseReason.DEVICE_DISABLED)
    await peer.expect_end()
    assert device.enabled
    assert await server.stored() == []


async def test_a_store_that_fails_ends_the_connection_without_acknowledgement(
    server: Server, disk: BreakableEngine
) -> None:
    peer = await server.connected()
    disk.error = StoreError("disk full")
    await peer.send(publish(1), publish(2, qos=2))
    await peer.expect_end()
    disk.error = None
    again = await server.connected()
    await again.send(publish(1), publish(2, qos=2))
    await again.expect(puback(1), pubrec(2))
    assert len(await server.stored()) == 2


async def test_a_stop_sends_outstanding_acknowledgements(
    server: Server, runner: Runner, autojump_clock: MockClock
) -> None:
    begin = trio.current_time()
    peer, idle, stranger = await server.connected(), await server.connected(HALL, HALL_TOKEN), await server.dial()
    runner.hold_commits()
    await peer.send(publish(1), publish(2, qos=2))
    await wait_all_tasks_blocked()
    server.services.core.life.stop()
    server.services.routing.connections.close_all()
    await idle.expect_end()
    await stranger.expect_end()
    assert trio.current_time() == begin
    runner.commits.set()
    await peer.expect(puback(1), pubrec(2))
    await peer.expect_end()


async def test_a_connection_that_comes_while_the_daemon_stops_is_closed(server: Server) -> None:
    server.services.core.life.stop()
    peer = await server.dial()
    await wait_all_tasks_blocked()
    await peer.expect_end()
