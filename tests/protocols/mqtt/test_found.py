"""Devices that an MQTT client announces for Home Assistant are found, accepted and fed (reference 16.9)."""

from typing import Any, NoReturn

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.errors import Conflict, NotFound
from broker.found.commands import FoundCommands
from broker.found.finding import DeviceFinder
from config.limits import FOUND_DEVICES_MAX
from config.settings import Discover, HomeAssistant, Limits, Mqtt, Settings
from storage.keys import OrganizationKey
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.factories import BOB, BOBS, HALL, KITCHEN, World
from tests.protocols.mqtt.peers import DISCONNECT, Peer, Server, publish_5
from tests.protocols.mqtt.test_open_topics import dialled, heard, space_of, subscribed
from tests.protocols.mqtt.test_version_5 import acknowledged

pytestmark = pytest.mark.slow


PLUG: dict[str, Any] = {
    "dev": {"ids": ["zigbee_0x1"], "name": "Plug", "mdl": "TS011F", "mf": "Tuya"},
    "o": {"name": "Zigbee2MQTT"},
    "stat_t": "zigbee2mqtt/plug",
    "avty_t": "zigbee2mqtt/plug/availability",
    "cmps": {
        "power": {"p": "sensor", "unit_of_meas": "W", "val_tpl": "{{ value_json.power }}"},
        "switch": {"p": "switch", "cmd_t": "zigbee2mqtt/plug/set", "val_tpl": "{{ value_json.state }}"},
        "mode": {"p": "climate"} | {"x": 1},
    },
}
TOPIC = b"homeassistant/device/zigbee_0x1/config"
SENSOR = b"homeassistant/sensor/n%d/a/config"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(
        state_dir=settings.state_dir,
        mqtt=Mqtt(topics="open"),
        limits=Limits(rate_limits="off", quotas="off"),
        discover=(Discover(KITCHEN, "ada@example.org"),),
    )


def finder_of(server: Server) -> DeviceFinder:
    finder = server.services.found.finder
    assert finder is not None
    return finder


async def settled(server: Server) -> None:
    await wait_all_tasks_blocked()
    while finder_of(server).statistics().waiting:
        await trio.sleep(0.01)
        await wait_all_tasks_blocked()


async def looked_up(server: Server) -> None:
    finder = finder_of(server)
    finder._due_at = 0.0
    finder._wakeup.set()
    while not finder._due_at:
        await trio.lowlevel.checkpoint()
    await settled(server)


@pytest.fixture
async def home(server: Server, world: World) -> Server:
    """Ada makes types in Acme."""
    await server.services.core.database.write(
        lambda tx: tx.accounts.set_role(OrganizationKey(1), world.ada, "administrator")
    )
    await looked_up(server)
    return server


async def say(peer: Peer, topic: bytes, content: object, *, code: int = 0, retain: bool = False) -> None:
    payload = content if isinstance(content, bytes) else msgspec.json.encode(content)
    await peer.send(publish_5(1, payload, topic=topic, retain=retain))
    assert acknowledged(await peer.packet())[1] == code


async def found_plug(home: Server, world: World, *, accept: bool = True) -> tuple[Peer, str]:
    """The client, and the id of what it has announced."""
    client = await dialled(home, KITCHEN)
    await say(client, TOPIC, PLUG, retain=True)
    await settled(home)
    ((_, found),) = finder_of(home).of_user(world.ada)
    if accept:
        await finder_of(home).accept(world.ada, found.record.id)
    return client, found.record.id


async def test_what_is_announced_is_found_and_accepted(home: Server, world: World) -> None:
    finder, services = finder_of(home), home.services
    client, id_ = await found_plug(home, world, accept=False)
    _, found = finder.find(id_)
    assert (found.record.name, found.record.model, found.record.status) == ("Plug", "TS011F", "FOUND")
    assert [(one.component, one.text) for one in found.definition.problems] == [("mode", "a climate without topics")]
    await say(client, b"zigbee2mqtt/plug", {"state": "ON", "power": 3})
    assert await home.stored() == []
    await finder.accept(world.ada, id_)
    device = finder.device_of(found)
    assert device is not None
    assert (device.record.name, device.type.record.name) == ("Plug", "TS011F")
    assert [one.unit for one in device.manifest.manifest.fields] == ["W", None]
    await say(client, b"zigbee2mqtt/plug", {"state": "OFF", "power": 12.5, "linkquality": 7})
    assert await home.stored() == ['{"power":12.5,"switch":false}']  # durable when it is acknowledged
    await say(client, b"zigbee2mqtt/plug/availability", b"offline")
    await settled(home)
    assert (await services.devices.presence.of(device.key)).availability == "offline"
    assert finder.of_user(world.bob) == []
    with pytest.raises(NotFound):
        await finder.accept(world.bob, id_)
    assert (await finder.accept(world.ada, id_)).record.device == device.key  # again


async def test_an_action_is_published_at_the_command_topic(home: Server, world: World) -> None:
    client, id_ = await found_plug(home, world)
    await subscribed(client, b"zigbee2mqtt/plug/set")
    device = finder_of(home).device_of(finder_of(home).find(id_)[1])
    assert device is not None
    ingest = home.services.messages.ingest
    for parameters in ({"switch": True}, {"switch": "yes"}):
        ingest.submit_action(
            device, device, msgspec.json.encode({"actions": [{"name": "set_switch", "parameters": parameters}]})
        )
        await ingest.wait_committed()
    assert (await heard(client))[:2] == (b"zigbee2mqtt/plug/set", b"ON")
    assert "do not fit" in str(ingest.refused.of(device))


async def test_what_is_retained_is_taken_at_once(home: Server, world: World) -> None:
    client, id_ = await found_plug(home, world, accept=False)
    await say(client, b"zigbee2mqtt/plug", {"state": "ON", "power": 3}, retain=True)
    await finder_of(home).accept(world.ada, id_)
    await home.services.messages.ingest.wait_committed()
    assert await home.stored() == ['{"power":3,"switch":true}']


async def test_only_the_client_is_heard(home: Server, world: World) -> None:
    await found_plug(home, world)
    for device in (HALL, BOBS):
        other = await dialled(home, device)
        await say(other, b"zigbee2mqtt/plug", {"state": "ON", "power": 3})
        await say(other, b"homeassistant/device/other/config", PLUG | {"dev": {"ids": "other"}})
    await settled(home)
    assert await home.stored() == []
    assert len(finder_of(home).of_user(world.ada)) == 1


async def test_new_components_come_to_the_device(home: Server, world: World) -> None:
    client, id_ = await found_plug(home, world)
    more = {**PLUG["cmps"], "energy": {"p": "sensor", "unit_of_meas": "kWh", "val_tpl": "{{ value_json.energy }}"}}
    await say(client, TOPIC, PLUG | {"cmps": more})
    await settled(home)
    await say(client, b"zigbee2mqtt/plug", {"energy": 1})
    assert await home.stored() == ['{"energy":1}']
    await say(client, TOPIC, b"")
    await settled(home)
    assert finder_of(home).find(id_)[1].record.status == "ACCEPTED"


async def test_it_is_found_no_longer(home: Server, world: World) -> None:
    finder = finder_of(home)
    client, id_ = await found_plug(home, world, accept=False)
    await finder.ignore(world.ada, id_)
    await say(client, TOPIC, PLUG | {"stat_t": "zigbee2mqtt/other"})
    await settled(home)
    assert finder.find(id_)[1].record.status == "IGNORED"
    await finder.reconsider(world.ada, id_)
    await say(client, TOPIC, b"")
    await settled(home)
    assert finder.of_user(world.ada) == []


async def test_a_device_that_is_deleted_is_found_again(home: Server, world: World) -> None:
    finder, services = finder_of(home), home.services
    _, id_ = await found_plug(home, world)
    device = finder.device_of(finder.find(id_)[1])
    assert device is not None
    assert finder.is_taken_over(device.key)
    await services.devices.inventory.delete(device)
    assert finder.find(id_)[1].record.status == "FOUND"
    assert not finder.is_taken_over(device.key)
    await finder.accept(world.ada, id_)
    assert finder.device_of(finder.find(id_)[1]) is not device


async def test_it_is_known_after_a_restart_and_goes_with_the_setting(
    opener: ServicesOpener, world: World, home: Server
) -> None:
    _, id_ = await found_plug(home, world)
    rows = await home.services.core.database.read(lambda tx: tx.found.of([world.kitchen]))
    assert [(row.id, row.status) for row in rows] == [(id_, "ACCEPTED")]
    finder = finder_of(home)
    settings = home.services.core.settings
    finder.renew(msgspec.structs.replace(settings, discover=()))
    await looked_up(home)
    assert finder.of_user(world.ada) == []
    finder.renew(settings)
    await looked_up(home)
    _, found = finder.find(id_)
    device = finder.device_of(found)
    assert device is not None
    client = await dialled(home, KITCHEN)
    await say(client, b"zigbee2mqtt/plug", {"power": 1})
    assert await home.stored() == ['{"power":1}']


@pytest.mark.parametrize("change", ["deleted", "handed over"])
async def test_a_device_that_goes_while_the_setting_is_away_is_found_again(
    home: Server, world: World, change: str
) -> None:
    client, id_ = await found_plug(home, world)
    finder, services = finder_of(home), home.services
    settings = services.core.settings
    device = finder.device_of(finder.find(id_)[1])
    assert device is not None
    finder.renew(msgspec.structs.replace(settings, discover=()))
    await looked_up(home)
    if change == "deleted":
        await services.devices.inventory.delete(device)
    else:
        offer = await services.devices.transfers.offer(device, uid=BOB)
        await services.devices.transfers.answer(device, offer, world.bob, accept=True)
        assert device.owner == world.bob
    finder.renew(settings)
    await looked_up(home)
    _, found = finder.find(id_)
    assert (found.record.status, finder.device_of(found)) == ("FOUND", None)
    await say(client, b"zigbee2mqtt/plug", {"power": 1})
    assert await home.stored() == []  # nothing in a device of another user
    await finder.accept(world.ada, id_)
    await say(client, b"zigbee2mqtt/plug", {"power": 2})
    assert await home.stored() == ['{"power":2}']


@pytest.fixture
def tries_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be asked for before the service."""
    monkeypatch.setattr("broker.found.finding._RETRY_SECONDS", 0.0)


async def test_new_components_come_also_when_the_store_failed_at_first(
    tries_again_at_once: None, home: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, id_ = await found_plug(home, world)
    finder = finder_of(home)

    async def fail(*_arguments: object) -> NoReturn:
        monkeypatch.undo()
        raise StoreError("away")

    monkeypatch.setattr(finder._types._making, "upload", fail)
    more = PLUG["cmps"] | {"energy": {"p": "sensor", "unit_of_meas": "kWh", "val_tpl": "{{ value_json.energy }}"}}
    await say(client, TOPIC, PLUG | {"cmps": more})
    await settled(home)
    device = finder.device_of(finder.find(id_)[1])
    assert device is not None
    assert "energy" in {one.name for one in device.manifest.manifest.fields}


async def test_an_announcement_that_no_code_expects_ends_nothing(
    home: Server, world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object) -> NoReturn:
        monkeypatch.undo()
        raise TypeError("strange")

    monkeypatch.setattr("broker.found.finding.read_announcement", fail)
    client = await dialled(home, KITCHEN)
    await say(client, TOPIC, PLUG)
    await settled(home)
    assert finder_of(home).of_user(world.ada) == []
    assert "announcement_failed" in capfd.readouterr().out
    await say(client, TOPIC, PLUG)
    await settled(home)
    assert len(finder_of(home).of_user(world.ada)) == 1


async def test_without_an_organization_nothing_is_made(server: Server, world: World) -> None:
    await looked_up(server)
    with pytest.raises(Conflict, match="organization"):
        await found_plug(server, world)
    ((_, found),) = finder_of(server).of_user(world.ada)
    assert found.record.status == "FOUND"


async def test_hostile_announcements_are_refused_with_the_reason(home: Server, world: World) -> None:
    client = await dialled(home, KITCHEN)
    many = {f"c{number}": {"p": "sensor", "stat_t": "a"} for number in range(10_000)}
    for number, content in enumerate(
        (b"{", PLUG | {"cmps": many}, PLUG | {"o": {"name": "Trunkline"}}, PLUG | {"dev": {"name": "<b>"}})
    ):
        await say(client, b"homeassistant/device/n%d/config" % number, content)
    await settled(home)
    assert finder_of(home).of_user(world.ada) == []
    kitchen = await home.services.devices.registry.find(KITCHEN)
    said = str(home.services.messages.ingest.refused.of(kitchen))
    for reason in ("payload", "must be a JSON object", "is Trunkline", "markup"):
        assert reason in said


async def test_what_one_client_announces_is_bounded(
    home: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.found.finding.FOUND_DEVICES_MAX", 3)
    client = await dialled(home, KITCHEN)
    for number in range(5):
        await say(client, b"homeassistant/sensor/n%d/a/config" % number, {"stat_t": "a"})
    await settled(home)
    assert len(finder_of(home).of_user(world.ada)) == 3 < FOUND_DEVICES_MAX


async def test_announcements_of_one_topic_are_joined(home: Server, world: World) -> None:
    finder, client = finder_of(home), await dialled(home, KITCHEN)
    async with finder._changing:  # nothing is read now
        for number in range(2_000):
            await client.send(publish_5(0, b'{"stat_t":"a","name":"N%d"}' % number, topic=SENSOR % 1, qos=0))
        await client.send(publish_5(1, b'{"stat_t":"a"}', topic=SENSOR % 2))
        assert acknowledged(await client.packet())[1] == 0
        assert finder.statistics().waiting == 2
    await settled(home)
    assert [one.record.name for _, one in finder.of_user(world.ada)] == ["N1999", "n2"]


async def test_a_client_that_announces_more_than_can_wait_is_slowed_down(
    home: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.found.clients.FOUND_WAITING", 3)
    finder, client = finder_of(home), await dialled(home, KITCHEN)
    async with finder._changing:
        for number in range(20):
            await client.send(publish_5(number + 1, b'{"stat_t":"a"}', topic=SENSOR % number))
        assert [acknowledged(await client.packet())[1] for _ in range(3)] == [0] * 3
        await wait_all_tasks_blocked()
        assert finder.statistics().waiting == 3  # the fourth is not acknowledged
    assert [acknowledged(await client.packet())[1] for _ in range(17)] == [0] * 17
    await settled(home)
    assert len(finder.of_user(world.ada)) == 20


async def test_costly_templates_of_a_state_are_charged_to_the_client(home: Server, world: World) -> None:
    client, _ = await found_plug(home, world)
    pace = space_of(home).pace(world.kitchen, home.services.limits.overhead)
    before = pace._bucket._paid_until
    await say(client, b"zigbee2mqtt/plug", {"power": 1})
    assert pace._bucket._paid_until == before  # two short templates are part of a message
    many = {f"v{one}": {"p": "sensor", "val_tpl": "{{ value_json.v | float(0) }}"} for one in range(100)}
    await say(client, TOPIC, PLUG | {"cmps": many})
    await settled(home)
    for _ in range(3):
        await say(client, b"zigbee2mqtt/plug", {"v": 1})
    assert home.services.limits.overhead.statistics().delayed > 0


def switch_on(server: Server, id_: str) -> None:
    device = finder_of(server).device_of(finder_of(server).find(id_)[1])
    assert device is not None
    data = b'{"actions":[{"name":"set_switch","parameters":{"switch":true}}]}'
    server.services.messages.ingest.submit_action(device, device, data)


async def saved(server: Server) -> int:
    await server.services.messages.ingest.wait_committed()
    return await server.services.core.database.read(lambda tx: tx.messages.consumer_position("found commands"))


async def test_a_command_waits_for_its_client(home: Server, world: World) -> None:
    client, id_ = await found_plug(home, world)
    await client.send(DISCONNECT)
    await wait_all_tasks_blocked()
    before = await saved(home)
    switch_on(home, id_)
    assert await saved(home) == before
    client = await dialled(home, KITCHEN)
    await subscribed(client, b"zigbee2mqtt/+/set")
    assert (await heard(client))[:2] == (b"zigbee2mqtt/plug/set", b"ON")
    while await saved(home) == before:
        await wait_all_tasks_blocked()


async def test_a_command_that_nobody_takes_is_told_at_the_device(
    home: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.found.commands.FOUND_COMMAND_SECONDS", 0.1)
    client, id_ = await found_plug(home, world)
    await client.send(DISCONNECT)
    await wait_all_tasks_blocked()
    switch_on(home, id_)
    await home.services.messages.ingest.wait_committed()
    while finder_of(home).commands.waiting:
        await wait_all_tasks_blocked(0.05)
    device = finder_of(home).device_of(finder_of(home).find(id_)[1])
    assert device is not None
    assert "its client is away" in str(home.services.messages.ingest.refused.of(device))


async def test_a_command_survives_a_kill_between_two_commits(
    home: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, id_ = await found_plug(home, world)
    await subscribed(client, b"zigbee2mqtt/plug/set")
    finder, services = finder_of(home), home.services
    switch_on(home, id_)
    assert (await heard(client))[1] == b"ON"
    before = await saved(home)
    monkeypatch.setattr(finder.commands, "put", lambda *_: None)  # killed when the Action is stored
    switch_on(home, id_)
    assert await saved(home) == before
    again = FoundCommands(services.core.database, space_of(home), services.device_sessions.all, services.core.clock)
    await again.resume(lambda row: finder._commands_of(row.device, row.data))
    assert (await heard(client))[1] == b"ON"
    assert await saved(home) > before


async def test_home_assistant_is_told_of_it_by_its_client_alone(home: Server, world: World) -> None:
    services, space = home.services, space_of(home)
    announcer = services.home_assistant.announcer
    assert announcer is not None
    wanted = msgspec.structs.replace(services.core.settings, home_assistant=(HomeAssistant("ada@example.org"),))
    _, id_ = await found_plug(home, world)
    announcer.renew(wanted)
    await wait_all_tasks_blocked()
    while announcer.statistics().waiting or not announcer.statistics().devices:
        await trio.lowlevel.checkpoint()
    device = finder_of(home).device_of(finder_of(home).find(id_)[1])
    assert device is not None
    assert not [topic for topic in space._retained if device.id.encode() in topic]
    assert [topic for topic in space._retained if HALL.encode() in topic]


@pytest.mark.both_engines
async def test_one_topic_is_of_a_bounded_number_of_devices(
    home: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states of the first ones are taken."""
    monkeypatch.setattr("broker.found.topics.FOUND_TOPIC_NODES", 20)
    client, finder = await dialled(home, KITCHEN), finder_of(home)
    for number in range(4):
        template = f"{{{{ value_json.a | int + {number} }}}}"
        announced = {"stat_t": "a", "val_tpl": template, "unit_of_meas": "W"}
        await say(client, b"homeassistant/sensor/n%d/a/config" % number, announced)
    await settled(home)
    for _, found in finder.of_user(world.ada):
        await finder.accept(world.ada, found.record.id)
    await say(client, b"a", {"a": 1})
    assert await home.stored() == ['{"a":1}', '{"a":2}']
