"""Wills that a daemon before this one has left (reference 16.2); tests/e2e/test_will_kills.py kills it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.wills.wills import WillStatistics
from config.settings import Limits, Mqtt, Settings
from protocols.mqtt.packets import Will
from protocols.mqtt.values import Properties
from storage.keys import DeviceKey, Milliseconds
from storage.mqtt_wills import WillRecord
from storage.sql import StoreError
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.factories import HALL, KITCHEN, NOW_MS
from tests.fakes import BreakableEngine, FakeClock
from tests.protocols.mqtt.conftest import Runner
from tests.protocols.mqtt.peers import DISCONNECT, MESSAGES, ON, PINGREQ, Server, connect, refused, running
from tests.protocols.mqtt.test_lasting_sessions import lasting_5, leave
from tests.protocols.mqtt.test_version_5 import connack
from tests.rows import each_row

OPEN = Mqtt(topics="open", persistent_sessions="on")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(state_dir=settings.state_dir, mqtt=OPEN, limits=Limits(rate_limits="off", quotas="off"))


def will_of(device: DeviceKey, topic: bytes = b"gone", *, delay: int = 0, expiry: int | None = None) -> WillRecord:
    return WillRecord(device, topic, ON, 1, True, b"", expiry, delay)


@asynccontextmanager
async def left(opener: ServicesOpener, runner: Runner) -> AsyncIterator[tuple[Server, DeviceKey, DeviceKey]]:
    """A daemon in which the test puts wills into the store, and the keys of two devices."""
    async with running(opener, runner) as server:
        kitchen = await server.services.devices.registry.find(KITCHEN)
        hall = await server.services.devices.registry.find(HALL)
        yield server, kitchen.key, hall.key


async def keep(server: Server, *wills: WillRecord, due_on: int | None = None) -> None:
    def write(tx: Transaction) -> None:
        for will in wills:
            tx.mqtt_wills.keep(will)
            if due_on is not None:
                tx.mqtt_wills.wait(will.device, Milliseconds(due_on))

    await server.services.core.database.write(write)


async def rows(server: Server) -> tuple[int, int]:
    """How many wills of connections are stored, and how many wait."""
    return await server.services.core.database.read(
        lambda tx: (len(tx.mqtt_wills.of_connections()), len(tx.mqtt_wills.away()))
    )


def statistics(server: Server) -> WillStatistics:
    return server.services.wills.statistics()


def retained(server: Server) -> int:
    space = server.services.topics.space
    assert space is not None
    return space.statistics().retained


async def test_a_will_waits_for_what_is_left_of_its_delay(
    opener: ServicesOpener, runner: Runner, fake_clock: FakeClock, autojump_clock: MockClock
) -> None:
    async with left(opener, runner) as (server, kitchen, hall):
        await keep(server, will_of(kitchen, delay=60, expiry=100), due_on=NOW_MS + 40_000)
        await keep(server, will_of(hall, b"hall", delay=60))  # connected
    fake_clock.advance(30_000)
    async with running(opener, runner) as server:
        assert (await rows(server), statistics(server)) == ((0, 2), WillStatistics(2, 0))
        await trio.sleep(9)
        assert retained(server) == 0
        await trio.sleep(2)
        assert statistics(server) == WillStatistics(1, 1)
        await trio.sleep(50)
        assert statistics(server) == WillStatistics(0, 2)
        assert (await rows(server), retained(server)) == ((0, 0), 2)


@pytest.mark.parametrize(("due_on", "seconds"), [(NOW_MS - 1, 0), (1, 0), (NOW_MS + 10**12, 60)])
async def test_no_clock_makes_a_will_wait_for_longer_than_its_delay(
    opener: ServicesOpener, runner: Runner, autojump_clock: MockClock, due_on: int, seconds: int
) -> None:
    async with left(opener, runner) as (server, kitchen, _):
        await keep(server, will_of(kitchen, delay=60), due_on=due_on)
    async with running(opener, runner) as server:
        assert retained(server) == (0 if seconds else 1)
        await trio.sleep(seconds + 1)
        assert (retained(server), await rows(server)) == (1, (0, 0))


async def test_without_lasting_sessions_nothing_waits(
    opener: ServicesOpener, runner: Runner, settings: Settings
) -> None:
    async with left(opener, runner) as (server, kitchen, hall):
        await keep(server, will_of(kitchen, b"", delay=60), due_on=NOW_MS + 40_000)
        await keep(server, will_of(hall, b"open", delay=60))
    async with running(opener, runner, msgspec.structs.replace(settings, mqtt=Mqtt())) as server:
        await server.services.messages.ingest.wait_committed()
        assert (await server.stored(), await rows(server)) == ([ON.decode()], (0, 0))


async def test_a_will_of_a_session_that_was_ended_just_before_a_kill_is_published(
    opener: ServicesOpener, runner: Runner
) -> None:
    async with left(opener, runner) as (server, kitchen, _):
        await keep(server, will_of(kitchen, b"older", delay=60), due_on=NOW_MS + 40_000)
        await keep(server, will_of(kitchen, b"newer"))
    async with running(opener, runner) as server:
        assert (retained(server), await rows(server)) == (2, (0, 0))


async def test_a_device_that_is_back_has_no_will(
    opener: ServicesOpener, runner: Runner, autojump_clock: MockClock
) -> None:
    will = Will(b"gone", ON, 1, True, Properties(will_delay=30))
    async with running(opener, runner) as server:
        await leave(server, await lasting_5(server, will=will))
        assert await rows(server) == (0, 1)
    async with running(opener, runner) as server:
        peer = await lasting_5(server, 1, will=will)
        assert await rows(server) == (1, 0)
        await leave(server, peer, b"\xe0\x00")
        await trio.sleep(100)
        assert (retained(server), await rows(server), statistics(server)) == (0, (0, 0), WillStatistics(0, 0))


async def test_a_deleted_or_disabled_device_has_no_will(opener: ServicesOpener, runner: Runner) -> None:
    async with left(opener, runner) as (server, kitchen, hall):
        await keep(server, will_of(kitchen), will_of(hall), will_of(DeviceKey(4_711)))
        record = (await server.services.devices.registry.find(KITCHEN)).record
        await server.services.core.database.write(lambda tx: tx.devices.put_device(replace(record, enabled=False)))
        await server.services.core.database.write(lambda tx: tx.devices.set_deleted(hall, NOW_MS))
    async with running(opener, runner) as server:
        assert (retained(server), await rows(server)) == (0, (0, 0))


async def test_rules_that_came_meanwhile_count(opener: ServicesOpener, runner: Runner) -> None:
    async with left(opener, runner) as (server, kitchen, _):
        await keep(server, will_of(kitchen, b"secret"))
        rule = {"device": KITCHEN, "topic": "open", "publish": True, "subscribe": True}
        await server.services.provisioning.apply({"topic_rules": [rule]})
    async with running(opener, runner) as server:
        assert (retained(server), await rows(server)) == (0, (0, 0))


async def test_a_connect_is_accepted_when_its_will_is_stored(server: Server, runner: Runner) -> None:
    runner.hold_commits()
    peer = await server.dial()
    await peer.send(connect(will=Will(MESSAGES, ON, 1, False)), PINGREQ)
    await wait_all_tasks_blocked()
    runner.commits.set()
    await peer.expect(b"\x20\x02\x00\x00\xd0\x00")
    assert await rows(server) == (1, 0)
    await leave(server, peer, DISCONNECT)
    assert await rows(server) == (0, 0)


async def test_a_connect_whose_will_cannot_be_stored_is_refused(server: Server, disk: BreakableEngine) -> None:
    disk.error = StoreError("full")
    peer = await server.dial()
    await peer.send(connect(will=Will(MESSAGES, ON, 1, False)))
    await peer.expect(refused(3))
    await peer.expect_end()
    disk.error = None
    assert await rows(server) == (0, 0)
    assert await server.stored() == []


@pytest.mark.both_engines
@each_row("level", [4, 5])
@each_row(
    ("will", "code"),
    [
        (Will(b"a/+/b", ON, 0, False), 0x90),
        (Will(b"#", ON, 1, True), 0x90),
        (Will(MESSAGES + b"#", ON, 1, False), 0x90),
        (Will(b"a", b"\xff", 0, False, Properties(payload_format=1)), 0x99),
    ],
)
async def test_a_will_that_cannot_be_published_is_refused_at_once(
    server: Server, level: int, will: Will, code: int
) -> None:
    peer = await server.dial()
    if level == 4 and code == 0x99:
        will = Will(b"a/+", ON, 0, False)  # version 3 has no payload format
    await peer.send(connect(level=level, will=will))
    if level == 5:
        assert (await connack(peer))[1] == code
    await peer.expect_end()
    assert await rows(server) == (0, 0)
