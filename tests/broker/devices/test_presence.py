"""Presence (reference 6.4): answers are the same whether a change is in memory or in the store."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.devices.presence import SEEN_SECONDS, Presence
from broker.facts import AvailabilityChanged, DeviceWentOffline, DeviceWentOnline, MessagesStored
from broker.services import Services
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import MessageRow, PresenceRecord
from tests.builders import ServicesOpener
from tests.factories import NOW_MS, World, build_world
from tests.fakes import FakeClock, HeldRunner


@contextmanager
def connected(services: Services, key: int, protocol: str = "MQTT", *, exclusive: bool = True) -> Iterator[None]:
    device = services.devices.registry.get_nowait(DeviceKey(key))
    assert device is not None
    with services.routing.connections.connect(
        device,
        protocol=protocol,
        token=b"t" * 32,
        exclusive=exclusive,
        deliver=lambda _action: True,
        close=lambda _reason: None,
    ):
        yield


@pytest.fixture
async def light(services: Services, world: World) -> DeviceKey:
    """The key of a device in use."""
    return (await services.devices.registry.get(world.kitchen)).key


@pytest.mark.parametrize("flush", [False, True])
async def test_before_anything_happened_it_is_unknown(services: Services, light: DeviceKey, flush: bool) -> None:
    if flush:
        await services.devices.presence.flush()
    assert await services.devices.presence.of(light) == PresenceRecord(light, "unknown", None, None, None)


@pytest.mark.parametrize("flush", [False, True])
async def test_online_while_connected_and_offline_from_the_end_of_it(
    services: Services, light: DeviceKey, fake_clock: FakeClock, flush: bool
) -> None:
    async def presence() -> PresenceRecord:
        if flush:
            await services.devices.presence.flush()
        return await services.devices.presence.of(light)

    with connected(services, light, "WEBSOCKET"):
        assert await presence() == PresenceRecord(light, "online", NOW_MS, "WEBSOCKET", NOW_MS)
        fake_clock.advance(10)
        # While a device is online, the last time online is now.
        assert await presence() == PresenceRecord(light, "online", NOW_MS + 10, "WEBSOCKET", NOW_MS)
        fake_clock.advance(10)
    fake_clock.advance(10)
    # The protocol is that of the last connection.
    expected = PresenceRecord(light, "offline", NOW_MS + 20, "WEBSOCKET", NOW_MS + 20)
    assert await presence() == expected
    assert await presence() == expected


@pytest.mark.parametrize("flush", [False, True])
async def test_a_message_sets_last_seen_but_not_online(services: Services, light: DeviceKey, flush: bool) -> None:
    device = services.devices.registry.get_nowait(light)
    assert device is not None
    services.messages.ingest.submit(device, b'{"state":true}', 5)
    await services.messages.ingest.wait_committed()
    if flush:
        await services.devices.presence.flush()
    assert await services.devices.presence.of(light) == PresenceRecord(light, "unknown", None, None, NOW_MS)


async def test_a_ping_sets_last_seen(services: Services, light: DeviceKey, fake_clock: FakeClock) -> None:
    with connected(services, light):
        fake_clock.advance(30)
        services.devices.presence.touch(light)
        assert (await services.devices.presence.of(light)).last_seen_on == NOW_MS + 30


async def test_a_commit_after_the_disconnect_does_not_set_last_seen_back(
    services: Services, light: DeviceKey, fake_clock: FakeClock
) -> None:
    services.core.router.publish(DeviceWentOnline(light, "MQTT", NOW_MS))
    fake_clock.advance(20)
    services.core.router.publish(DeviceWentOffline(light, Milliseconds(NOW_MS + 20)))
    services.core.router.publish(
        MessagesStored([MessageRow(Position(1), light, Milliseconds(1), Milliseconds(NOW_MS + 10), 1, "{}")])
    )
    assert (await services.devices.presence.of(light)).last_seen_on == NOW_MS + 20


async def test_a_take_over_does_not_change_availability(
    services: Services, light: DeviceKey, fake_clock: FakeClock
) -> None:
    facts: list[object] = []
    services.core.router.subscribe(DeviceWentOnline, facts.append)
    services.core.router.subscribe(DeviceWentOffline, facts.append)
    with connected(services, light):
        fake_clock.advance(500)
        with connected(services, light):
            assert (await services.devices.presence.of(light)).availability == "online"
            assert len(facts) == 1
    assert len(facts) == 2


async def test_presence_is_written_every_second_and_counted(
    services: Services, light: DeviceKey, autojump_clock: MockClock
) -> None:
    with connected(services, light):
        assert services.devices.presence.statistics().unwritten == 1
        await trio.sleep(1.5)
        assert services.devices.presence.statistics().unwritten == 0
        assert services.devices.presence.statistics().online == 1
        stored = await services.core.database.read(lambda tx: tx.devices.presence(light))
        assert stored == PresenceRecord(light, "online", NOW_MS, "MQTT", NOW_MS)


async def test_when_a_device_was_seen_is_written_twice_a_minute(
    services: Services, light: DeviceKey, fake_clock: FakeClock, autojump_clock: MockClock
) -> None:
    async def stored() -> int | None:
        found = await services.core.database.read(lambda tx: tx.devices.presence(light))
        return None if found is None else found.last_seen_on

    await services.devices.presence.flush()
    with connected(services, light):
        await trio.sleep(1.5)
        fake_clock.advance(7)
        services.devices.presence.touch(light)
        await trio.sleep(SEEN_SECONDS - 5)
        assert await stored() == NOW_MS
        assert (await services.devices.presence.of(light)).last_seen_on == NOW_MS + 7
        await trio.sleep(6)
        assert await stored() == NOW_MS + 7


async def test_a_graceful_stop_writes_what_is_in_memory(opener: ServicesOpener, fake_clock: FakeClock) -> None:
    async with opener() as services:
        key = (await build_world(services.core.database, services.core.vault)).kitchen
        await services.devices.registry.find("11" * 16)
        with connected(services, key):
            fake_clock.advance(7)
    async with opener() as services:
        assert await services.devices.presence.of(key) == PresenceRecord(key, "offline", NOW_MS + 7, "MQTT", NOW_MS + 7)


async def test_after_a_crash_devices_are_offline_since_they_were_last_seen(
    opener: ServicesOpener, fake_clock: FakeClock
) -> None:
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        await services.core.database.write(
            lambda tx: tx.devices.put_presences(
                [
                    PresenceRecord(world.kitchen, "online", NOW_MS + 50, "MQTT", NOW_MS + 40, is_connected=True),
                    PresenceRecord(world.hall, "offline", NOW_MS + 5, "WEBSOCKET", NOW_MS + 9),
                    PresenceRecord(world.bobs, "unknown", None, None, NOW_MS + 3),
                ]
            )
        )
    fake_clock.advance(1000)
    async with opener() as services:
        kept = [await services.devices.presence.of(key) for key in (world.kitchen, world.hall, world.bobs)]
    assert kept == [
        PresenceRecord(world.kitchen, "offline", NOW_MS + 40, "MQTT", NOW_MS + 40),
        PresenceRecord(world.hall, "offline", NOW_MS + 5, "WEBSOCKET", NOW_MS + 9),
        PresenceRecord(world.bobs, "unknown", None, None, NOW_MS + 3),
    ]


@pytest.mark.parametrize("ends_online", [False, True])
async def test_what_changes_during_a_flush_is_not_lost(
    opener: ServicesOpener, fake_clock: FakeClock, ends_online: bool
) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        key = (await build_world(services.core.database, services.core.vault)).kitchen
        publish = services.core.router.publish
        publish(DeviceWentOnline(key, "WEBSOCKET", NOW_MS))
        if ends_online:
            publish(DeviceWentOffline(key, Milliseconds(NOW_MS + 1)))
        runner.hold_commits()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.devices.presence.flush)
            await wait_all_tasks_blocked()
            if ends_online:
                publish(DeviceWentOnline(key, "MQTT", Milliseconds(NOW_MS + 5)))
            else:
                publish(DeviceWentOffline(key, Milliseconds(NOW_MS + 5)))
            runner.commits.set()
        fake_clock.advance(9)
        expected = (
            PresenceRecord(key, "online", NOW_MS + 9, "MQTT", NOW_MS + 5)
            if ends_online
            else PresenceRecord(key, "offline", NOW_MS + 5, "WEBSOCKET", NOW_MS + 5)
        )
        assert await services.devices.presence.of(key) == expected
        await services.devices.presence.flush()
        assert await services.devices.presence.of(key) == expected
        assert await services.core.database.read(lambda tx: tx.devices.presence(key)) == expected


async def test_a_change_between_memory_and_store_is_seen_in_one_of_them(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        key = (await build_world(services.core.database, services.core.vault)).kitchen
        services.core.router.publish(DeviceWentOnline(key, "MQTT", NOW_MS))
        services.core.router.publish(DeviceWentOffline(key, NOW_MS))
        seen: list[PresenceRecord] = []

        async def read(presence: Presence) -> None:
            seen.append(await presence.of(key))

        runner.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, services.devices.presence)
            await wait_all_tasks_blocked()  # the store was read before the flush and had no record
            held = runner.reads
            runner.release_later_reads()
            await services.devices.presence.flush()
            held.set()
        assert seen == [PresenceRecord(key, "offline", NOW_MS, "MQTT", NOW_MS)]


async def test_a_take_over_shows_the_protocol_of_the_newcomer(services: Services, light: DeviceKey) -> None:
    with connected(services, light, "WEBSOCKET"), connected(services, light, "MQTT"):
        assert (await services.devices.presence.of(light)).protocol == "MQTT"


async def test_of_two_connections_the_one_that_is_left_counts(
    services: Services, light: DeviceKey, fake_clock: FakeClock
) -> None:
    lasting, ending = connected(services, light, "LWM2M", exclusive=False), connected(services, light, "MQTT")
    with lasting:
        with ending:
            assert (await services.devices.presence.of(light)).protocol == "MQTT"
        fake_clock.advance(10)
        found = await services.devices.presence.of(light)
    assert (found.protocol, found.availability, found.is_connected) == ("LWM2M", "online", True)


# A status that a device is given


def told(services: Services) -> list[tuple[int, str, int]]:
    facts: list[tuple[int, str, int]] = []
    services.core.router.subscribe(
        AvailabilityChanged, lambda fact: facts.append((fact.device, fact.availability, fact.at_ms))
    )
    return facts


@pytest.mark.parametrize("flush", [False, True])
async def test_without_a_connection_the_last_event_decides(
    services: Services, light: DeviceKey, fake_clock: FakeClock, flush: bool
) -> None:
    facts = told(services)

    async def shows(availability: str, last_time_online: int | None) -> None:
        if flush:
            await services.devices.presence.flush()
        found = await services.devices.presence.of(light)
        assert (found.availability, found.last_time_online) == (availability, last_time_online)
        fake_clock.advance(10)

    await services.devices.presence.set(light, "offline")
    await shows("offline", None)
    await services.devices.presence.set(light, "online")
    await shows("online", NOW_MS + 10)
    await shows("online", NOW_MS + 20)  # now, because it is online
    await services.devices.presence.set(light, "unknown")
    await shows("unknown", NOW_MS + 30)
    with connected(services, light):
        await services.devices.presence.set(light, "unknown")  # it is stored, but the end of the connection comes later
        await shows("online", NOW_MS + 40)
    await shows("offline", NOW_MS + 50)
    await services.devices.presence.set(light, "online")
    await shows("online", NOW_MS + 60)
    with connected(services, light):
        await shows("online", NOW_MS + 70)
    await shows("offline", NOW_MS + 80)
    assert facts == [
        (light, "offline", NOW_MS),
        (light, "online", NOW_MS + 10),
        (light, "unknown", NOW_MS + 30),
        (light, "online", NOW_MS + 40),
        (light, "offline", NOW_MS + 50),
        (light, "online", NOW_MS + 60),
        # The connection changes nothing that is shown; its end does.
        (light, "offline", NOW_MS + 80),
    ]


async def test_repeating_a_status_publishes_nothing(services: Services, light: DeviceKey) -> None:
    facts = told(services)
    for availability in ("unknown", "online", "online", "offline", "offline"):
        await services.devices.presence.set(light, availability)
    assert [availability for _, availability, _ in facts] == ["online", "offline"]


async def test_a_take_over_publishes_no_availability(services: Services, light: DeviceKey) -> None:
    facts = told(services)
    with connected(services, light), connected(services, light):
        pass
    assert [availability for _, availability, _ in facts] == ["online", "offline"]


async def test_a_status_that_was_set_survives_a_restart(opener: ServicesOpener, fake_clock: FakeClock) -> None:
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        await services.devices.presence.set(world.kitchen, "online")
        await services.devices.presence.set(world.hall, "unknown")
        await services.devices.registry.get(world.bobs)
        await services.devices.presence.set(world.bobs, "online")
        with connected(services, world.bobs):
            await services.devices.presence.flush()
    fake_clock.advance(9)
    async with opener() as services:
        facts = told(services)
        found = [
            (await services.devices.presence.of(key)).availability for key in (world.kitchen, world.hall, world.bobs)
        ]
        assert found == ["online", "unknown", "offline"]
        await services.devices.registry.get(world.kitchen)
        with connected(services, world.kitchen):
            assert facts == []  # it was online before


async def test_nothing_is_published_about_a_deleted_device(services: Services, light: DeviceKey) -> None:
    device = await services.devices.registry.get(light)
    with connected(services, light):
        facts = told(services)
        await services.devices.inventory.delete(device)
    assert facts == []
    assert services.devices.presence.statistics().online == 0


async def test_a_status_is_durable_when_set_returns(services: Services, light: DeviceKey) -> None:
    await services.devices.presence.set(light, "online")
    stored = await services.core.database.read(lambda tx: tx.devices.presence(light))
    assert stored is not None
    assert (stored.availability, stored.is_connected) == ("online", False)


async def test_the_later_of_a_status_and_a_connection_counts(services: Services, light: DeviceKey) -> None:
    facts = told(services)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(services.devices.presence.set, light, "offline")
        await trio.lowlevel.checkpoint()
        with connected(services, light):
            await wait_all_tasks_blocked()
            assert (await services.devices.presence.of(light)).availability == "online"
            assert facts[-1][1] == "online"
