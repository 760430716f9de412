"""Devices whose sockets are parked in the hub: everything that a connection's task awaits still happens."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import MockClock, wait_all_tasks_blocked
from wsproto.events import CloseConnection, Ping, Pong, TextMessage

from broker.services import Services
from config.limits import PACKETS_PER_TURN, SILENCE_SECONDS
from protocols.websocket import device_conversation
from protocols.websocket.wire import PROTOCOL_ERROR
from tests.factories import ADA_TOKEN, HALL, HALL_TOKEN, KITCHEN, KITCHEN_TOKEN
from tests.protocols.websocket.conftest import Disk
from tests.protocols.websocket.peers import EMPTY_PING, Peers, PlainPeer

OK = {"data": {"message": "OK", "code": "200"}}
KITCHEN_REGISTERS = {"type": "register", "sdid": KITCHEN, "Authorization": f"bearer {KITCHEN_TOKEN}"}
HALL_REGISTERS = {"type": "register", "sdid": HALL, "Authorization": f"bearer {HALL_TOKEN}"}
WITHOUT_A_MASK = b"\x81\x02{}"


def message(cid: object, sdid: str = KITCHEN) -> dict[str, object]:
    return {"sdid": sdid, "cid": str(cid), "data": {"state": True}}


@asynccontextmanager
async def parked(peers: Peers) -> AsyncIterator[PlainPeer]:
    device = await peers.connect_plain("/v1.1/websocket?ack=true", sockets=True)
    async with device.stream:
        assert peers.hub.parked == 0  # a stranger's socket may be closed at any time
        await device.send(KITCHEN_REGISTERS)
        assert await device.said() == OK
        await wait_all_tasks_blocked()
        assert peers.hub.parked == 1
        yield device


async def cids(device: PlainPeer, count: int) -> list[str]:
    return [(await device.said())["data"]["cid"] for _ in range(count)]


async def test_messages_are_answered_in_order_and_the_socket_stays_parked(peers: Peers) -> None:
    async with parked(peers) as device:
        for turn in range(3):
            await device.send(*(message(f"{turn}-{n}") for n in range(5)))
            assert await cids(device, 5) == [f"{turn}-{n}" for n in range(5)]
            assert peers.hub.parked == 1


async def test_a_burst_longer_than_a_turn_is_processed_whole(peers: Peers) -> None:
    async with parked(peers) as device:
        many = 2 * PACKETS_PER_TURN + 3
        await device.send(*map(message, range(many)))
        assert await cids(device, many) == [str(n) for n in range(many)]
        await wait_all_tasks_blocked()
        assert peers.hub.parked == 1


async def test_what_is_behind_a_registration_is_processed_after_it(peers: Peers) -> None:
    async with parked(peers) as device:
        await device.send(message(1), HALL_REGISTERS, message(2, HALL), message(3))
        assert [(await device.said())["data"].get("cid") for _ in range(4)] == ["1", None, "2", "3"]
        await wait_all_tasks_blocked()
        assert peers.hub.parked == 1


async def test_of_what_is_behind_a_registration_an_end_leaves_the_rest_of_the_turn(
    peers: Peers, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_messages = device_conversation.DeviceConversation.take_messages

    def take_and_end(self: device_conversation.DeviceConversation, messages: Sequence[str | bytes]) -> None:
        take_messages(self, messages)
        self.close(4000, "the end")

    async with parked(peers) as device:
        monkeypatch.setattr(device_conversation.DeviceConversation, "take_messages", take_and_end)
        await device.send(HALL_REGISTERS, *map(message, range(2 * PACKETS_PER_TURN)))
        assert await device.said() == OK
        assert await cids(device, PACKETS_PER_TURN - 1) == [str(n) for n in range(PACKETS_PER_TURN - 1)]
        assert await device.close_code() == 4000
    assert services.messages.ingest.statistics().messages == PACKETS_PER_TURN - 1


async def test_what_is_behind_an_action_is_processed_after_it(peers: Peers) -> None:
    async with parked(peers) as device:
        action = {"sdid": KITCHEN, "ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}
        for turn in range(2):  # the second time, the destination is known
            await device.send(message(f"{turn} before"), action | {"cid": f"{turn}"}, message(f"{turn} behind"))
            answers = [await device.said() for _ in range(4)]
            given = [one["data"]["cid"] for one in answers if one.get("type") != "action"]
            assert given == [f"{turn} before", f"{turn}", f"{turn} behind"]


async def test_pings_are_answered(peers: Peers) -> None:
    async with parked(peers) as device:
        await device.send_event(Ping(b"x"))
        assert isinstance(await device.event(), Pong)
        assert peers.hub.parked == 1


async def test_messages_before_a_close_are_answered_before_the_server_closes(peers: Peers) -> None:
    async with parked(peers) as device:
        messages = device.encoded(message(1), message(2))
        await device.stream.send_all(messages + device.wire.send(CloseConnection(code=4000)))
        assert await cids(device, 2) == ["1", "2"]
        assert await device.close_code() == 4000
        await wait_all_tasks_blocked()
        assert peers.hub.parked == 0


async def test_messages_before_a_fault_are_answered_before_the_server_closes(peers: Peers) -> None:
    async with parked(peers) as device:
        await device.stream.send_all(device.encoded(message(1), message(2)) + WITHOUT_A_MASK)
        assert await cids(device, 2) == ["1", "2"]
        assert await device.close_code() == PROTOCOL_ERROR


async def test_a_peer_that_goes_leaves_nothing_behind(peers: Peers, services: Services) -> None:
    async with parked(peers):
        pass  # from now on the hub has its task
    await wait_all_tasks_blocked()
    before = trio.lowlevel.current_statistics().tasks_living
    async with parked(peers) as device:
        await device.send(message(1))
    await wait_all_tasks_blocked()
    assert peers.hub.parked == 0
    assert trio.lowlevel.current_statistics().tasks_living == before
    assert services.messages.ingest.statistics().messages == 1


async def test_a_newer_connection_of_the_device_ends_the_parked_one(peers: Peers) -> None:
    async with parked(peers) as older, parked_beside(peers) as newer:
        assert await older.close_code() == 1008
        await newer.send(message(1))
        assert await cids(newer, 1) == ["1"]


@asynccontextmanager
async def parked_beside(peers: Peers) -> AsyncIterator[PlainPeer]:
    device = await peers.connect_plain("/v1.1/websocket?ack=true", sockets=True)
    async with device.stream:
        await device.send(KITCHEN_REGISTERS)
        assert await device.said() == OK
        yield device


async def test_the_end_of_the_daemon_closes_it(peers: Peers, services: Services) -> None:
    async with parked(peers) as device:
        services.core.life.stop()
        assert await device.close_code() == 1001


async def test_a_device_is_not_read_while_too_many_answers_wait(
    peers: Peers, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_conversation, "ANSWERS_WAITING", 2)
    async with parked(peers) as device:
        disk.hold()
        await device.send(*map(message, range(3)))
        await wait_all_tasks_blocked()
        assert peers.hub.parked == 0
        disk.release()
        assert await cids(device, 3) == ["0", "1", "2"]
        await wait_all_tasks_blocked()
        assert peers.hub.parked == 1


async def test_a_device_is_not_read_while_it_does_not_read_its_answers(peers: Peers) -> None:
    async with parked(peers) as device:
        sent = 0

        async def send_on() -> None:
            nonlocal sent
            for begin in itertools.count(0, 100):
                await device.send(*(message(f"{n:0250}") for n in range(begin, begin + 100)))
                sent = begin + 100

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_on)
            await wait_all_tasks_blocked()
            assert peers.hub.parked == 0
            nursery.cancel_scope.cancel()
        assert await cids(device, sent) == [f"{n:0250}" for n in range(sent)]


async def test_who_sends_much_that_is_no_message_waits_in_line(peers: Peers, autojump_clock: MockClock) -> None:
    async with parked(peers) as device:
        nonsense = device.wire.send(Ping(b"")) * 200
        begin = trio.current_time()
        await device.stream.send_all(nonsense + device.encoded(message(1)))
        while isinstance(event := await device.event(), Pong):
            pass
        assert isinstance(event, TextMessage)
        assert trio.current_time() > begin


async def test_whose_frames_wait_in_line_is_not_silent(
    peers: Peers, services: Services, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(services.limits.overhead, "per_second", 10)  # as with a thousand others in the line
    subscriber = await peers.connect_plain(f"/v1.1/live?Authorization=bearer+{ADA_TOKEN}", sockets=True)
    async with subscriber.stream:
        await subscriber.stream.send_all(EMPTY_PING * 2_000)
        with trio.move_on_after(SILENCE_SECONDS + 10):
            while True:
                assert not isinstance(await subscriber.event(), CloseConnection)


async def test_strangers_are_not_parked_and_subscribers_are(peers: Peers) -> None:
    stranger = await peers.connect_plain("/v1.1/websocket", sockets=True)
    assert peers.hub.parked == 0
    subscriber = await peers.connect_plain(f"/v1.1/live?Authorization=bearer+{ADA_TOKEN}", sockets=True)
    assert peers.hub.parked == 1
    for one in (stranger, subscriber):
        await one.stream.aclose()


async def test_without_a_descriptor_for_the_hub_the_task_reads_for_itself(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cannot_park(*_: object) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    monkeypatch.setattr(peers.hub, "read", cannot_park)
    device = await peers.connect_plain("/v1.1/websocket?ack=true", sockets=True)
    async with device.stream:
        await device.send(KITCHEN_REGISTERS, message(1))
        assert await device.said() == OK
        await device.send(message(2))
        assert await cids(device, 2) == ["1", "2"]
