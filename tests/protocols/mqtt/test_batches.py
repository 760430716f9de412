"""Packets of one write: what is stored, acknowledged and told is as if each had come alone."""

import json
import re
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.devices.registry import Device
from broker.limits.overhead import FRAMES_AT_ONCE
from broker.services import Services
from config.limits import MAX_DATA_BYTES, PACKETS_PER_TURN
from config.settings import Limits, Mqtt, Settings
from protocols.mqtt.values import Properties
from storage.keys import Position, Ticket
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.factories import HALL, KITCHEN, NOW_MS
from tests.fakes import BreakableEngine, FakeClock, run_inline
from tests.protocols.mqtt.peers import (
    DISCONNECT,
    ERRORS,
    MESSAGES,
    ON,
    PINGREQ,
    PINGRESP,
    Peer,
    Server,
    connect,
    puback,
    publish,
    publish_5,
    running,
    subscribe_5,
)
from tests.rows import each_row
from tests.stores import MigratedEngine

pytestmark = pytest.mark.slow


#: A topic to which no device may publish, in either space.
END = b"/v1.1/end"


def data(number: int) -> bytes:
    return b'{"intensity":%d}' % number


MIXED = [
    publish(1, data(1)),
    publish(2, data(2), qos=0),
    publish(3, b'{"opne":1}'),
    publish(4, data(4), topic=MESSAGES[1:]),
    publish(5, data(5), qos=2),
    publish(6, b"{"),
    publish(7, data(7)),
    publish(8, data(8), qos=0),
    publish(9, data(9), topic=b"/v1.1/messages/" + HALL.encode()),
    publish(10, b'{"text":"%s"}' % (b"x" * MAX_DATA_BYTES)),
    publish(11, b'{"state":true,"opne":1}'),
    publish(12, b"\xff"),
    publish(13, b'{"text":"{}"}'),
    PINGREQ,
    publish(14, data(14)),
    publish(15, data(15)),
    publish(16, data(16), dup=True),
    publish(17, b'{"opne":2}', qos=0),
]


class Met:
    """Packets that a device got, and the stored messages."""

    def __init__(self) -> None:
        self.errors: list[bytes] = []
        self.others: dict[int, list[bytes]] = {}  # by the kind of packet

    async def hear(self, peer: Peer) -> None:
        """All packets that have come until the answer to a ping, errors without their ids."""
        await wait_all_tasks_blocked()
        await peer.send(publish(999, b"", topic=END))
        while (packet := await peer.packet()) != (puback()[0], (999).to_bytes(2)):
            head, body = packet
            if head == 0x30:
                self.errors.append(re.sub(rb'"id":"[0-9a-f]{32}"', b"", body))
            else:
                self.others.setdefault(head, []).append(body)


@asynccontextmanager
async def serving(settings: Settings, clock: FakeClock) -> AsyncIterator[Server]:
    opener = ServicesOpener(settings, MigratedEngine(settings.state_dir / "store.sqlite"), clock.clock)
    async with running(opener, run_inline) as server:
        yield server


async def stored(services: Services) -> list[object]:
    """All that is stored and kept of the device."""
    await services.messages.ingest.wait_committed()
    device = await services.devices.registry.find(KITCHEN)
    ingest = services.messages.ingest
    return [
        await services.core.database.read(
            lambda tx: [tuple(row) for row in tx.connection.execute("SELECT * FROM failed_message")]
        ),
        await services.core.database.read(lambda tx: list(tx.messages.after(Position(0)))),
        ingest.statistics(),
        ingest.refused.of(device),
        ingest.lost_fields.of(device),
        services.core.refusals.statistics(),
        services.limits.meters.statistics().refused,
        services.limits.quotas.statistics(),
        services.limits.quotas.standing(device),
    ]


@pytest.mark.parametrize(
    ("topics", "rate", "daily"),
    [
        ("service", "off", None),
        ("open", "off", 5),
        ("open", "12/100", None),
        ("service", "12/100", 5),
        ("service", "100/12", None),
        ("open", "100/12", 5),
    ],
)
async def test_packets_of_one_write_are_treated_as_those_that_come_one_by_one(
    tmp_path: Path, topics: Literal["service", "open"], rate: str, daily: int | None
) -> None:
    found = []
    for is_together in (True, False):
        folder = tmp_path / f"{is_together}"
        folder.mkdir()
        limits = Limits(rate_limits="off") if rate == "off" else Limits(mqtt_device=rate)
        async with serving(
            Settings(state_dir=folder, mqtt=Mqtt(topics=topics), limits=limits), FakeClock(NOW_MS)
        ) as server:
            services, met = server.services, Met()
            await services.limits.quotas.reload()
            kitchen = await services.devices.registry.find(KITCHEN)
            services.limits.quotas.set_device_limit(kitchen.key, daily)
            peer = await server.connected(topics=[ERRORS])
            for packets in [MIXED] if is_together else [[packet] for packet in MIXED]:
                await peer.send(*packets)
                await wait_all_tasks_blocked()
            await met.hear(peer)
            found.append([met.errors, met.others, *await stored(services)])
    assert found[0] == found[1]


async def test_errors_are_told_in_the_order_of_the_messages(tmp_path: Path) -> None:
    """Messages over the rate limit have errors, too: they are the last."""
    limits = Limits(mqtt_device="3/100")
    async with serving(Settings(state_dir=tmp_path, limits=limits), FakeClock(NOW_MS)) as server:
        peer = await server.connected(topics=[ERRORS])
        await peer.send(*(publish(number, b"{" if number in (1, 3, 4) else ON) for number in range(1, 6)))
        texts = [json.loads((await peer.expect_delivery())[1])["error"]["message"] for _ in range(4)]
        assert texts == ["Bad Request", "Bad Request", *["DEVICE MINUTE rate limit exceeded"] * 2]
        await peer.expect(*map(puback, range(1, 6)))
        kitchen = await server.services.devices.registry.find(KITCHEN)
        newest_first = [refused.status for refused in server.services.messages.ingest.refused.of(kitchen)]
        assert newest_first == [429, 400]  # the same text in the same millisecond counts once
        assert server.services.limits.meters.statistics().refused == 2
        assert await server.stored() == [ON.decode()]


@pytest.mark.parametrize(
    ("unusual", "looks"), [({1}, 1), ({0}, 1), ({16}, 2), ({9, 18, 25}, 3), (range(0, 32, 2), 1), (range(4, 32, 4), 1)]
)
async def test_few_messages_are_looked_at_twice(
    server: Server, monkeypatch: pytest.MonkeyPatch, unusual: Collection[int], looks: int
) -> None:
    """The positions where messages that are accepted together end: after a few of them, the rest comes one by one."""
    ingest, tried = server.services.messages.ingest, list[int]()
    submit_usual = ingest._submit_usual

    def note(device: Device, payloads: Sequence[bytes], stamps: Iterable[object], *, is_told: bool) -> Sequence[Ticket]:
        tried.append(len(payloads))
        return submit_usual(device, payloads, stamps, is_told=is_told)

    peer = await server.connected()
    await peer.send(publish(1))  # the first message of a device is looked at for lost fields
    await peer.expect(puback(1))
    monkeypatch.setattr(ingest, "_submit_usual", note)
    await peer.send(*(publish(number, b"{" if number in unusual else data(number), qos=0) for number in range(32)))
    await peer.expect_nothing()
    assert len(tried) == looks
    assert await server.stored() == [ON.decode(), *(data(n).decode() for n in range(32) if n not in unusual)]


async def test_all_packets_of_whole_turns_are_acknowledged_in_their_order(server: Server) -> None:
    peer = await server.connected()
    numbers = range(1, 2 * PACKETS_PER_TURN + 1)
    await peer.send(*(publish(number, data(number)) for number in numbers))
    await peer.expect(*map(puback, numbers))
    assert await server.stored() == [data(number).decode() for number in numbers]
    assert server.services.limits.overhead.statistics().delayed == 0


async def test_refused_messages_of_one_turn_are_overhead(server: Server, autojump_clock: MockClock) -> None:
    peer = await server.connected()
    await peer.send(*[publish(1, b"{")] * PACKETS_PER_TURN)
    await peer.expect(*[puback(1)] * PACKETS_PER_TURN)
    await peer.expect_nothing()
    assert FRAMES_AT_ONCE - 1 <= server.services.limits.overhead.statistics().delayed <= PACKETS_PER_TURN


@each_row("middle", [b"", publish(9, b"{"), publish(9, b'{"opne":1}'), PINGREQ])
async def test_when_nothing_can_be_stored_no_message_of_a_turn_is_acknowledged(
    server: Server, disk: BreakableEngine, middle: bytes
) -> None:
    peer = await server.connected()
    disk.error = StoreError("disk full")
    await peer.send(publish(1), publish(2), middle, publish(3), publish(4, qos=2), publish(5))
    if middle == PINGREQ:
        await peer.expect(PINGRESP)
    await peer.expect_end()
    disk.error = None
    assert await server.stored() == []


async def test_messages_before_a_disconnect_are_stored_and_those_behind_it_are_not(server: Server) -> None:
    peer = await server.connected()
    await peer.send(publish(1, data(1)), publish(2, data(2)), DISCONNECT, publish(3, data(3)), publish(4, data(4)))
    await peer.expect(puback(1), puback(2))
    await peer.expect_end()
    assert await server.stored() == [data(1).decode(), data(2).decode()]


class TestOpen:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(
            state_dir=settings.state_dir, mqtt=Mqtt(topics="open"), limits=Limits(rate_limits="off", quotas="off")
        )

    async def test_own_messages_and_open_topics_keep_their_order(self, server: Server) -> None:
        peer = await server.dial()
        await peer.send(connect(level=5))
        assert (await peer.packet())[1][1] == 0
        alias = Properties(topic_alias=1)
        await peer.send(subscribe_5(b"lights"))
        assert (await peer.packet())[0] == 0x90
        await peer.send(
            publish_5(1, data(1)),
            publish_5(2, data(2)),
            publish_5(3, b"on", topic=b"lights"),
            publish_5(4, data(4), properties=alias),
            publish_5(5, data(5)),
            publish_5(6, b"[", topic=MESSAGES),
            publish_5(7, data(7), qos=2),
            publish_5(8, data(8), topic=b"", properties=alias),
            publish_5(9, b"off", topic=b"lights"),
            publish_5(10, data(10)),
        )
        told = [await peer.packet() for _ in range(12)]
        assert [body[-len(b"off") :].lstrip(b"\x00") for head, body in told if head == 0x30] == [b"on", b"off"]
        acknowledged = [(head, int.from_bytes(body[:2])) for head, body in told if head != 0x30]
        assert acknowledged == [*[(0x40, number) for number in (1, 2, 3, 4, 5, 6, 8, 9, 10)], (0x50, 7)]
        assert await server.stored() == [data(number).decode() for number in (1, 2, 4, 5, 7, 8, 10)]
