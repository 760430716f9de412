"""What devices publish on open topics is messages of topic devices (reference 16.8)."""

import json
from typing import Any, Final, NoReturn

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.devices.inventory import DeviceChanges
from broker.devices.registry import Device
from broker.errors import SourceDeviceDisabled
from broker.topic_devices.intake import TopicDevices, TopicDeviceStatistics
from config.settings import Limits, Mqtt, Settings, TopicDevice
from protocols.mqtt.packets import Will
from protocols.mqtt.values import NO_PROPERTIES, Properties
from storage.records import MessageRow
from storage.sql import StoreError
from tests.factories import ADA, BOBS, HALL, KITCHEN, NOW_MS
from tests.protocols.mqtt.peers import Server, disconnect_5, publish_5
from tests.protocols.mqtt.test_open_topics import dialled, heard, subscribed
from tests.protocols.mqtt.test_version_5 import acknowledged

ENTRY: Final = TopicDevice(
    name="cellar",
    owner="ada@example.org",
    type="example.smart_light",
    topic="cellar/+/now",
    key="topic:2",
    data="{intensity: level}",
    ts="at",
    make=True,
    make_max=3,
)
LISTED: Final = replace(
    ENTRY, name="attic", topic="attic/now", key="payload:who", make=False, devices={"door": HALL, "bobs": BOBS}
)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(
        state_dir=settings.state_dir,
        mqtt=Mqtt(topics="open", persistent_sessions="on"),
        limits=Limits(rate_limits="off", quotas="off"),
        topic_devices=(ENTRY, LISTED),
    )


def intake_of(server: Server) -> TopicDevices:
    return server.services.topic_devices.intake


@pytest.fixture
async def cellar(server: Server) -> Server:
    await intake_of(server).look_up()
    return server


def statistics(server: Server) -> TopicDeviceStatistics:
    return intake_of(server).statistics()


async def publish(server: Server, topic: bytes, payload: Any, device: str = KITCHEN) -> None:
    peer = await dialled(server, device)
    sent = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    await peer.send(publish_5(1, sent, topic=topic))
    assert acknowledged(await peer.packet())[1] in {0, 0x10}
    await settled(server)


async def settled(server: Server) -> None:
    await wait_all_tasks_blocked()
    await server.services.messages.ingest.wait_committed()


async def device_of(server: Server, key: str) -> Device | None:
    services = server.services
    owner = await services.accounts.users.find(ADA)
    type_ = await services.device_types.catalog.find("example.smart_light")
    return await services.devices.registry.by_eid(owner.key, type_.key, key)


async def rows_of(server: Server, device: Device | None) -> list[MessageRow]:
    assert device is not None
    rows = await server.services.core.database.read(lambda tx: tx.messages.after(0))  # type: ignore[arg-type]
    return [row for row in rows if row.device == device.key]


async def test_a_message_of_a_device_that_is_made(cellar: Server) -> None:
    watcher = await dialled(cellar, HALL)
    await subscribed(watcher, b"cellar/#")
    await publish(cellar, b"cellar/north/now", {"level": 40, "more": 1, "at": NOW_MS - 60_000})
    assert (await heard(watcher))[:2][0] == b"cellar/north/now"  # everybody else gets it all the same
    device = await device_of(cellar, "north")
    assert device is not None
    assert (device.record.name, device.owner_id, device.record.eid) == ("north", ADA, "north")
    (row,) = await rows_of(cellar, device)
    assert (json.loads(row.data), row.ts) == ({"intensity": 40}, NOW_MS - 60_000)
    assert statistics(cellar).made == 1


async def values_of(server: Server, key: str) -> list[int]:
    return [json.loads(row.data)["intensity"] for row in await rows_of(server, await device_of(server, key))]


@pytest.mark.parametrize("qos", [1, 2])
async def test_the_first_message_of_a_device_is_stored_when_it_is_acknowledged(cellar: Server, qos: int) -> None:
    peer = await dialled(cellar, KITCHEN)
    for number, key in enumerate((b"north", b"east", b"north"), 1):
        topic = b"cellar/%b/now" % key
        await peer.send(publish_5(number, b'{"level":%d}' % number, topic=topic, qos=qos))
        head, body = await peer.packet()
        assert (head, body[:2]) == (0x40 if qos == 1 else 0x50, number.to_bytes(2))
        # Nothing waits between the acknowledgement and this.
        assert (await values_of(cellar, key.decode()))[-1] == number
    assert statistics(cellar).waiting == 0


async def test_the_sender_waits_while_devices_are_made_and_nothing_is_dropped(cellar: Server) -> None:
    peer, topics = await dialled(cellar, KITCHEN), (b"cellar/east/now", b"cellar/west/now")
    sent = [publish_5(one, b'{"level":%d}' % one, topic=topics[one % 2]) for one in range(1, 401)]
    own = publish_5(999, b'{"intensity":7}')
    await peer.send(b"".join(sent[:1]) + own + b"".join(sent[1:]))
    answers = [int.from_bytes((await peer.packet())[1][:2]) for _ in range(401)]
    assert answers == [1, 999, *range(2, 401)]  # in the order of the messages [MQTT-4.6.0-2]
    assert await values_of(cellar, "west") == list(range(1, 401, 2))
    assert await values_of(cellar, "east") == list(range(2, 401, 2))


async def test_what_came_before_the_sender_has_left_is_stored(cellar: Server) -> None:
    peer = await dialled(cellar, KITCHEN)
    sent = [publish_5(0, b'{"level":%d}' % one, topic=b"cellar/east/now", qos=0) for one in range(1, 4)]
    await peer.send(b"".join(sent) + disconnect_5(0))
    await peer.stream.aclose()
    await settled(cellar)
    assert await values_of(cellar, "east") == [1, 2, 3]


async def test_a_topic_alias_stands_for_the_topic_of_a_device(cellar: Server) -> None:
    peer = await dialled(cellar, KITCHEN)
    alias = Properties(topic_alias=1)
    await peer.send(
        publish_5(1, b'{"level":1}', topic=b"cellar/east/now", properties=alias)
        + publish_5(2, b'{"level":2}', topic=b"", properties=alias)
        + publish_5(3, b'{"level":3}', topic=b"cellar/west/now", properties=alias)
        + publish_5(4, b'{"level":4}', topic=b"", properties=alias)
    )
    for _ in range(4):
        await peer.packet()
    assert (await values_of(cellar, "east"), await values_of(cellar, "west")) == ([1, 2], [3, 4])


async def test_while_the_store_is_away_nothing_is_acknowledged(cellar: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    intake = intake_of(cellar)

    async def fail(*_: object) -> NoReturn:
        raise StoreError("away")

    peer = await dialled(cellar, KITCHEN)
    with monkeypatch.context() as patched:
        patched.setattr(intake._devices, "by_eid", fail)
        await peer.send(publish_5(1, b'{"level":1}', topic=b"cellar/east/now") + publish_5(2, b'{"intensity":7}'))
        head, body = await peer.packet()
        assert (head, body[0]) == (0xE0, 0x80)  # DISCONNECT: unspecified error
    assert await device_of(cellar, "east") is None
    peer = await dialled(cellar, KITCHEN)
    await peer.send(publish_5(1, b'{"level":1}', topic=b"cellar/east/now"))
    assert acknowledged(await peer.packet())[1] in {0, 0x10}
    assert await values_of(cellar, "east") == [1]


async def test_a_forbidden_topic_makes_no_device(cellar: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = await dialled(cellar, KITCHEN)
    monkeypatch.setattr(type(cellar.services.topics.access), "may_publish", lambda *_: False)
    await peer.send(publish_5(1, b'{"level":1}', topic=b"cellar/east/now"))
    assert acknowledged(await peer.packet())[1] == 0x87
    assert statistics(cellar).made == 0


async def test_a_will_is_a_message_of_a_device_that_is_made(cellar: Server, autojump_clock: MockClock) -> None:
    for key, seconds in ((b"east", 0), (b"west", 1)):
        will = Will(
            b"cellar/%b/now" % key,
            b'{"level":9}',
            1,
            False,
            Properties(will_delay=seconds) if seconds else NO_PROPERTIES,
        )
        peer = await dialled(cellar, HALL, seconds=60, clean=False, will=will)
        await peer.stream.aclose()
        await settled(cellar)
        await trio.sleep(seconds + 1)
        await settled(cellar)
        assert await values_of(cellar, key.decode()) == [9]
    assert cellar.services.wills.statistics().waiting == 0


async def test_only_devices_of_the_owner_are_heard(cellar: Server) -> None:
    await publish(cellar, b"cellar/south/now", {"level": 1}, BOBS)
    assert await device_of(cellar, "south") is None
    assert statistics(cellar).stored == 0


async def test_devices_that_are_made_are_bounded(cellar: Server) -> None:
    for number in range(5):
        await publish(cellar, b"cellar/n%d/now" % number, {"level": number})
    found = statistics(cellar)
    assert (found.made, found.stored, found.unknown, found.not_understood) == (3, 3, 2, 2)
    assert found.entries[0].problem == "It has made 3 devices, and makes no more: make_max."
    assert found.entries[0].unknown == ("n4", "n3")


async def test_unknown_keys_are_listed_and_known_ones_taken(cellar: Server) -> None:
    for who in ("stranger", "door", "bobs", "<b>"):
        await publish(cellar, b"attic/now", {"who": who, "level": 7})
    entry = statistics(cellar).entries[1]
    # A device of somebody else is none that is known, whatever the settings say.
    assert (entry.name, entry.source, entry.stored, entry.made) == ("attic", "attic/now", 1, 0)
    assert entry.unknown == ("<b>", "bobs", "stranger")
    hall = await cellar.services.devices.registry.find(HALL)
    assert [json.loads(row.data) for row in await rows_of(cellar, hall)] == [{"intensity": 7}]


async def test_what_is_not_understood_is_told(cellar: Server) -> None:
    await publish(cellar, b"cellar/north/now", b"\xff\xff")
    await publish(cellar, b"attic/now", {"level": 1})
    await publish(cellar, b"attic/now", {"who": "door"})
    found = statistics(cellar)
    assert [one.problem for one in found.entries] == [
        "The payload is neither JSON nor text.",
        "The payload or topic has no key of a device: a text of 1 to 64 characters.",
    ]
    assert (found.not_understood, found.ignored, found.stored) == (2, 1, 0)
    told = {one.event for one in cellar.services.core.refusals.tally.latest()}
    assert "topic_device_not_understood" in told


async def test_a_device_that_is_deleted_or_disabled(cellar: Server) -> None:
    await publish(cellar, b"cellar/north/now", {"level": 1})
    device = await device_of(cellar, "north")
    assert device is not None
    inventory = cellar.services.devices.inventory
    await inventory.change(device, DeviceChanges(enabled=False))
    await publish(cellar, b"cellar/north/now", {"level": 2})
    assert (statistics(cellar).stored, statistics(cellar).refused) == (1, 1)
    (refused,) = cellar.services.messages.ingest.refused.of(device)
    assert refused.status == SourceDeviceDisabled.status
    await inventory.delete(device)
    await publish(cellar, b"cellar/north/now", {"level": 3})
    again = await device_of(cellar, "north")
    assert again is not None
    assert again.id != device.id
    assert [json.loads(row.data) for row in await rows_of(cellar, again)] == [{"intensity": 3}]


async def test_a_time_in_the_future_is_that_of_the_arrival(cellar: Server) -> None:
    await publish(cellar, b"cellar/north/now", {"level": 1, "at": NOW_MS + 10_000_000})
    (row,) = await rows_of(cellar, await device_of(cellar, "north"))
    assert row.ts == row.cts


async def test_an_entry_of_an_unknown_type_or_owner_takes_nothing_and_says_so(
    cellar: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    intake = intake_of(cellar)
    for door, change in zip(intake._doors, ({"type": "acme.none"}, {"owner": "nobody@example.org"}), strict=True):
        door.entry = replace(door.entry, settings=replace(door.entry.settings, **change))
    capfd.readouterr()
    for _ in range(2):
        await intake.look_up()
    await publish(cellar, b"cellar/north/now", {"level": 1})
    found = statistics(cellar)
    assert found.stored == 0
    assert [one.problem for one in found.entries] == [
        "There is no device type acme.none.",
        "There is no user nobody@example.org.",
    ]
    assert capfd.readouterr().out.count("topic_device_entry_refused") == 2


async def test_a_store_that_cannot_be_read_leaves_entries_as_they_were(
    cellar: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake = intake_of(cellar)

    async def fail(_work: object) -> NoReturn:
        raise StoreError("away")

    with monkeypatch.context() as patched:
        patched.setattr(intake._database, "read", fail)
        await intake.look_up()
    await publish(cellar, b"cellar/north/now", {"level": 1})
    assert statistics(cellar).stored == 1
