"""Devices are announced to Home Assistant over open topics (reference 16.7)."""

from collections import Counter
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.devices.inventory import DeviceChanges
from broker.devices.shares import ShareStatus
from broker.home_assistant.publishing import HomeAnnouncer
from broker.services import Services
from broker.topics.space import TopicSpace
from config.settings import HomeAssistant, Limits, Mqtt, Settings
from tests.builders import ServicesOpener
from tests.factories import BOBS, HALL, KITCHEN, LIGHT_MANIFEST, LIGHT_TYPE, World
from tests.protocols.mqtt.conftest import Runner
from tests.protocols.mqtt.peers import ACTIONS, DISCONNECT, PINGREQ, Peer, Server, publish_5, running, subscribe_5
from tests.protocols.mqtt.test_open_topics import dialled, heard, space_of, subscribed
from tests.protocols.mqtt.test_version_5 import acknowledged, suback_of

CONFIG = f"homeassistant/device/tl_{KITCHEN}/config".encode()
STATE, AVAILABILITY = (f"trunkline/{KITCHEN}/{last}".encode() for last in ("state", "availability"))
SET_ON = f"trunkline/{KITCHEN}/set/button_setOn".encode()
BOTH = (HomeAssistant("ada@example.org"), HomeAssistant("bob@example.org"))


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(
        state_dir=settings.state_dir,
        mqtt=Mqtt(topics="open", persistent_sessions="on"),
        limits=Limits(rate_limits="off", quotas="off"),
        home_assistant=BOTH[:1],
    )


def announcer_of(services: Services) -> HomeAnnouncer:
    announcer = services.home_assistant.announcer
    assert announcer is not None
    return announcer


async def settled(server: Server) -> None:
    """Users are looked up, and everything is published that waits for it."""
    announcer = announcer_of(server.services)
    announcer._users_due_at = 0.0
    announcer._wakeup.set()
    await wait_all_tasks_blocked()
    while announcer.statistics().waiting:
        await trio.sleep(0.01)
        await wait_all_tasks_blocked()


@pytest.fixture
async def home(server: Server) -> Server:
    await settled(server)
    return server


def retained(space: TopicSpace, topic: bytes) -> Any:
    found = space._retained.get(topic)
    return None if found is None else msgspec.json.decode(found.payload) if found.payload[:1] == b"{" else found.payload


async def renew(server: Server, *homes: HomeAssistant) -> None:
    services = server.services
    announcer_of(services).renew(msgspec.structs.replace(services.core.settings, home_assistant=homes))
    await settled(server)


async def test_a_device_is_announced_with_its_state(home: Server) -> None:
    space = space_of(home)
    peer = await dialled(home, KITCHEN)
    await peer.send(publish_5(1, b'{"intensity":7,"colorRGB":{"r":1}}'))
    assert acknowledged(await peer.packet())[1] == 0
    await settled(home)
    config = retained(space, CONFIG)
    assert config["device"] == {"identifiers": [f"tl_{KITCHEN}"], "name": "Kitchen light", "model": "Smart Light"}
    assert config["origin"]["name"] == "Trunkline"
    assert config["components"]["sensor_intensity"] == {
        "platform": "sensor",
        "unique_id": f"tl_{KITCHEN}_sensor_intensity",
        "name": "Intensity",
        "value_template": "{{ value_json.get('intensity') }}",
        "state_class": "measurement",
        "state_topic": STATE.decode(),
    }
    assert config["components"]["button_setOn"]["command_topic"] == SET_ON.decode()
    assert retained(space, STATE) == {"intensity": 7, "colorRGB.r": 1}
    assert retained(space, AVAILABILITY) == b"online"
    await peer.send(DISCONNECT)
    await peer.expect_end()
    await settled(home)
    assert retained(space, AVAILABILITY) == b"offline"
    assert await home.services.core.database.read(lambda tx: tx.mqtt_topics.retained()) == []


async def test_each_message_is_shown_in_the_order_of_the_log(home: Server) -> None:
    watcher, peer = await dialled(home, HALL), await dialled(home, KITCHEN)
    await subscribed(watcher, STATE)
    assert (await heard(watcher))[1] == b"{}"
    for number in range(20):
        await peer.send(publish_5(1, b'{"intensity":%d}' % number, qos=0))
    for number in range(20):
        assert (await heard(watcher))[1] == b'{"intensity":%d}' % number


async def test_of_a_flood_the_last_values_are_shown(home: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is bounded."""
    monkeypatch.setattr("broker.home_assistant.publishing.HOME_WAITING_ROWS", 5)
    peer = await dialled(home, KITCHEN)
    await peer.send(b"".join(publish_5(1, b'{"intensity":%d}' % number, qos=0) for number in range(50)))
    await wait_all_tasks_blocked()
    await settled(home)
    assert retained(space_of(home), STATE) == {"intensity": 49}


async def test_only_devices_of_the_user_get_the_messages(home: Server) -> None:
    for device, is_told in ((HALL, True), (BOBS, False)):
        peer = await dialled(home, device)
        await peer.send(subscribe_5(b"trunkline/#", STATE, b"$share/g/trunkline/+/state"))
        codes, _ = suback_of(await peer.packet())
        assert codes == ([0, 0, 0] if is_told else [0x87] * 3)
        if is_told:
            assert {(await heard(peer))[0] for _ in range(5)} >= {STATE, AVAILABILITY}
        await peer.send(subscribe_5(CONFIG, b"#", b"$share/g/#"))
        assert suback_of(await peer.packet())[0] == [0] * 3
        if is_told:
            assert {(await heard(peer))[0] for _ in range(7)} >= {CONFIG, STATE, AVAILABILITY}
    kitchen = await home.services.devices.registry.find(KITCHEN)
    announcer_of(home.services)._look(kitchen.key, again=True)
    await settled(home)
    await peer.send(PINGREQ)
    assert await peer.packet() == (0xD0, b"")  # Bob's got nothing


async def test_nobody_else_publishes_to_the_topics(home: Server) -> None:
    for device in (HALL, BOBS):
        peer = await dialled(home, device)
        for topic in (CONFIG, STATE, AVAILABILITY, b"trunkline/x", SET_ON + b"/x"):
            await peer.send(publish_5(1, b"{}", topic=topic))
            assert acknowledged(await peer.packet())[1] == 0x87
    await peer.send(publish_5(2, b"PRESS", topic=SET_ON))
    assert acknowledged(await peer.packet())[1] == 0x87  # Bob's
    await peer.send(publish_5(3, b"{}", topic=b"homeassistant/sensor/x/config"))
    assert acknowledged(await peer.packet())[1] == 0


async def test_a_message_on_a_set_topic_is_an_action(home: Server) -> None:
    lamp, peer = await dialled(home, KITCHEN), await dialled(home, HALL)
    await lamp.send(subscribe_5(ACTIONS))
    assert suback_of(await lamp.packet())[0] == [0]
    await peer.send(publish_5(1, b"PRESS", topic=SET_ON, retain=True))
    assert acknowledged(await peer.packet())[1] == 0
    assert (await heard(lamp))[1] == b'{"actions":[{"name":"setOn"}]}'
    assert retained(space_of(home), SET_ON) is None
    for topic, payload, code in ((SET_ON, b"GO", 0x99), (SET_ON + b"x", b"PRESS", 0x87)):
        await peer.send(publish_5(2, payload, topic=topic))
        assert acknowledged(await peer.packet())[1] == code
    kitchen = await home.services.devices.registry.find(KITCHEN)
    await home.services.devices.inventory.change(kitchen, DeviceChanges(enabled=False))
    await peer.send(publish_5(3, b"PRESS", topic=SET_ON))
    assert acknowledged(await peer.packet())[1] == 0x87
    assert announcer_of(home.services).statistics().actions == 1


async def emptied(peer: Peer) -> bytes:
    topic, payload, *_ = await heard(peer)
    assert payload == b""
    return topic


async def test_a_device_that_is_deleted_leaves_and_a_new_name_does_not(home: Server) -> None:
    services, space, watcher = home.services, space_of(home), await dialled(home, HALL)
    before = retained(space, CONFIG)
    await subscribed(watcher, CONFIG)
    await heard(watcher)
    kitchen = await services.devices.registry.find(KITCHEN)
    await services.devices.inventory.change(kitchen, DeviceChanges(name="Küche"))
    after = msgspec.json.decode((await heard(watcher))[1])
    assert after["device"].pop("name") == "Küche"
    assert before["device"].pop("name") == "Kitchen light"
    assert after == before
    await services.devices.inventory.delete(kitchen)
    assert await emptied(watcher) == CONFIG
    assert not [topic for topic in space._retained if KITCHEN.encode() in topic]


async def test_settings_that_name_a_user_no_longer(home: Server) -> None:
    space, watcher = space_of(home), await dialled(home, HALL)
    await subscribed(watcher, b"homeassistant/device/+/config")
    assert {(await heard(watcher))[0] for _ in range(2)} >= {CONFIG}
    await renew(home)
    assert CONFIG in {await emptied(watcher) for _ in range(2)}
    assert not space._retained
    await watcher.send(publish_5(1, b"{}", topic=b"trunkline/x"))  # an open topic as any other
    assert acknowledged(await watcher.packet())[1] == 0
    await renew(home, *BOTH)
    assert (await heard(watcher))[1] != b""


async def test_a_user_who_comes_after_the_start_is_found_with_the_first_device(home: Server) -> None:
    """As in the demo, whose devices are made when it already serves: nobody waits for the next look at the users."""
    await renew(home, BOTH[0], HomeAssistant("carol@example.org"))
    device = "ca" * 16
    carol = {"email": "carol@example.org", "organization": "Acme"}
    owned = {"id": device, "owner": "carol@example.org", "type": LIGHT_TYPE, "name": "Late"}
    organizations = [{"name": "Acme"}]
    document = {"organizations": organizations, "users": [carol], "devices": [owned]}
    await home.services.provisioning.apply(document)
    config = f"homeassistant/device/tl_{device}/config".encode()
    with trio.fail_after(10):
        while retained(space_of(home), config) is None:
            await trio.sleep(0.01)
            await wait_all_tasks_blocked()
    assert retained(space_of(home), config)["device"]["name"] == "Late"


async def test_a_setting_that_a_restart_has_removed(opener: ServicesOpener, runner: Runner, settings: Settings) -> None:
    """Home Assistant, which comes after the start, is told that the devices are gone, once."""
    async with running(opener, runner) as server:
        await settled(server)
    async with running(opener, runner, settings=msgspec.structs.replace(settings, home_assistant=())) as server:
        await settled(server)
        watcher = await dialled(server, HALL)
        await subscribed(watcher, b"homeassistant/device/+/config")
        await watcher.send(publish_5(0, b"online", topic=b"homeassistant/status", qos=0))
        assert CONFIG in {await emptied(watcher) for _ in range(2)}
        await server.services.messages.ingest.wait_committed()
        assert not await server.services.core.database.read(lambda tx: tx.homes.all())
        await watcher.send(publish_5(0, b"online", topic=b"homeassistant/status", qos=0))
        await settled(server)
        await watcher.expect_nothing()


async def test_a_share_is_announced_until_it_ends(home: Server) -> None:
    services, space = home.services, space_of(home)
    await renew(home, *BOTH)
    watcher, adas = await dialled(home, BOBS), await dialled(home, HALL)
    for peer in (watcher, adas):
        await subscribed(peer, CONFIG)
    await heard(adas)
    shares = services.devices.shares
    kitchen = await services.devices.registry.find(KITCHEN)
    share = await shares.offer(kitchen, email="bob@example.org")
    await shares.answer(share.id, (await services.accounts.users.named("bob@example.org")).key, ShareStatus.ACCEPTED)
    assert (await heard(watcher))[:2] == (await heard(adas))[:2]
    await watcher.send(publish_5(1, b"PRESS", topic=SET_ON))
    assert acknowledged(await watcher.packet())[1] == 0
    await shares.remove(share.id)
    assert await emptied(watcher) == CONFIG
    assert (await heard(adas))[1] != b""
    assert retained(space, CONFIG) is not None
    await watcher.send(publish_5(1, b"PRESS", topic=SET_ON))
    assert acknowledged(await watcher.packet())[1] == 0x87


async def test_what_is_retained_counts_for_the_owner_of_the_device(home: Server, world: World) -> None:
    services, space = home.services, space_of(home)
    await renew(home, *BOTH)
    bobs = await services.devices.registry.find(BOBS)
    before = dict(space._retained_of)
    share = await services.devices.shares.offer(bobs, email="ada@example.org")
    await services.devices.shares.answer(share.id, world.ada, ShareStatus.ACCEPTED)
    await settled(home)
    assert {user: many for user, (many, _) in space._retained_of.items()} == {u: n for u, (n, _) in before.items()}
    await renew(home, BOTH[0])  # only the guest has it in Home Assistant
    assert space._retained_of[world.ada][0] == before[world.ada][0] + 3
    assert world.bob not in space._retained_of


async def test_another_manifest_takes_components_away(home: Server) -> None:
    services, watcher = home.services, await dialled(home, HALL)
    await subscribed(watcher, CONFIG)
    await heard(watcher)
    document = {"fields": [{"name": "state", "valueClass": "Boolean"}], "actions": LIGHT_MANIFEST["actions"]}
    await services.device_types.manifests.upload(LIGHT_TYPE, document, approve=True)
    components = msgspec.json.decode((await heard(watcher))[1])["components"]
    assert components["sensor_intensity"] == {"platform": "sensor"}
    assert len(components["binary_sensor_state"]) > 1


async def test_home_assistant_that_has_started_gets_everything_again(home: Server) -> None:
    watcher, assistant = await dialled(home, HALL), await dialled(home, KITCHEN)
    await settled(home)
    await subscribed(watcher, b"homeassistant/device/+/config")
    first = {(await heard(watcher))[:2] for _ in range(2)}
    for payload in (b"offline", b"online", b"online", b"online"):
        await assistant.send(publish_5(1, payload, topic=b"homeassistant/status"))
        assert acknowledged(await assistant.packet())[1] == 0
    assert {(await heard(watcher))[:2] for _ in range(2)} == first
    await watcher.send(PINGREQ)
    assert await watcher.packet() == (0xD0, b"")  # not three times


async def test_without_room_nothing_of_a_device_is_there(
    home: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("broker.topics.space.MQTT_RETAINED_OF_USER", 5)
    await renew(home)
    await renew(home, *BOTH[:1])
    by_device = Counter(one for one in (KITCHEN, HALL) for topic in space_of(home)._retained if one.encode() in topic)
    assert list(by_device.values()) == [3]
