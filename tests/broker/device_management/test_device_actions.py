"""Actions that are operations of LWM2M (reference 18.7)."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.device_management import device_actions
from broker.device_management.device_actions import ActionState
from broker.devices.inventory import device_fact
from broker.errors import ValidationFailed
from broker.facts import DeviceActionDelivered, DeviceActionFact, DeviceActionFailed, DeviceHandedOver
from broker.services import Services
from config.limits import LWM2M_ACTIONS_WAITING
from config.settings import Address, Lwm2m, Settings
from storage.engines.sqlite import SqliteEngine
from storage.keys import DeviceKey, Position
from storage.sql import StoreError
from storage.transaction import Transaction
from tests.broker.device_management.devices import FakeSession, Fleet, mock_time
from tests.builders import ServicesOpener
from tests.factories import LIGHT_TYPE, build_world
from tests.rows import each_row

pytestmark = pytest.mark.slow


ON: Mapping[str, Any] = {"name": "setOn", "lwm2m": {"write": "/3311/0/5850", "value": True}}
LEVEL: Mapping[str, Any] = {
    "name": "setLevel",
    "parameters": [{"name": "level", "valueClass": "Integer"}],
    "lwm2m": {"write": "/3311/0/5851", "parameter": "level"},
}
REBOOT: Mapping[str, Any] = {"name": "reboot", "lwm2m": {"execute": "/3/0/4"}}
OTHER: Mapping[str, Any] = {"name": "beep"}


class Ends:
    """The events of ended Actions."""

    def __init__(self, services: Services) -> None:
        self.facts: list[DeviceActionFact] = []
        services.core.router.subscribe(DeviceActionDelivered, self.facts.append)
        services.core.router.subscribe(DeviceActionFailed, self.facts.append)

    async def wait(self, number: int) -> list[str]:
        with trio.fail_after(100_000):
            while len(self.facts) < number:
                await wait_all_tasks_blocked()
                if len(self.facts) < number:
                    await trio.sleep(1)
        return [type(one).__name__ for one in self.facts]


@pytest.fixture
def ends(services: Services) -> Ends:
    return Ends(services)


@pytest.fixture
async def session(fleet: Fleet, services: Services) -> FakeSession:
    document = {"fields": [], "actions": [ON, LEVEL, REBOOT, OTHER]}
    await services.device_types.manifests.upload(fleet.type.id, document)
    session = FakeSession(fleet.devices[0])
    await fleet.management.registrations.registered(session)
    return session


async def act(services: Services, fleet: Fleet, *actions: Mapping[str, Any]) -> str:
    """Send Actions in one message. Returns its mid."""
    ingest, device = services.messages.ingest, fleet.devices[0]
    ticket = ingest.submit_action(device, device, json.dumps({"actions": actions}).encode())
    group = ingest.group
    await ingest.wait_committed()
    return ingest.mid(group.position(ticket))


async def shown(fleet: Fleet) -> list[tuple[str, str, str]]:
    found = await fleet.management.actions.shown(fleet.devices[0])
    return [(one.name, one.state.value, one.text) for one in found]


@pytest.mark.both_engines
async def test_are_written_and_executed_in_their_order(
    fleet: Fleet, session: FakeSession, services: Services, ends: Ends, autojump_clock: MockClock
) -> None:
    mid = await act(services, fleet, {"name": "setOn"}, {"name": "beep"})
    await act(services, fleet, {"name": "setLevel", "parameters": {"level": 40}}, {"name": "reboot"})
    assert await ends.wait(2) == ["DeviceActionDelivered"] * 2
    assert session.done == ["W /3311/0/5850 True", "W /3311/0/5851 40", "E /3/0/4"]
    assert (ends.facts[0].mid, ends.facts[0].device_id) == (mid, fleet.devices[0].id)
    assert await shown(fleet) == [
        ("setLevel, reboot", "done", "The device did it."),
        ("setOn", "done", "The device did it."),
    ]
    assert (await fleet.management.actions.shown(fleet.devices[0]))[1].mid == mid


async def test_that_are_no_operation_are_left_to_others(
    fleet: Fleet, session: FakeSession, services: Services, ends: Ends, autojump_clock: MockClock
) -> None:
    await act(services, fleet, {"name": "beep"})
    await act(services, fleet, {"name": "unknown"})
    await wait_all_tasks_blocked()
    assert (session.done, ends.facts, await shown(fleet)) == ([], [], [])


async def test_wait_while_the_device_sleeps(
    fleet: Fleet, session: FakeSession, services: Services, ends: Ends, autojump_clock: MockClock
) -> None:
    session.sleep()
    session.is_asleep = True
    await act(services, fleet, {"name": "setOn"})
    await trio.sleep(600)
    assert await shown(fleet) == [("setOn", "waiting", "The device sleeps, and gets it when it is heard again.")]
    assert ends.facts == []
    session.is_awake.set()
    assert await ends.wait(1) == ["DeviceActionDelivered"]
    assert session.done == ["W /3311/0/5850 True"]


async def test_that_come_during_the_first_steps_wait_for_their_end(
    fleet: Fleet, session: FakeSession, services: Services, ends: Ends, autojump_clock: MockClock
) -> None:
    registrations = fleet.management.registrations
    registrations.ended(session)
    following = FakeSession(fleet.devices[0])
    registrations.begin(following)
    await registrations.begun(following)
    await act(services, fleet, {"name": "setOn"})
    await trio.sleep(600)  # the reads of a slow device
    assert (await shown(fleet), ends.facts) == ([("setOn", "waiting", "The device gets it next.")], [])
    await registrations.registered(following)
    assert await ends.wait(1) == ["DeviceActionDelivered"]
    assert following.done == ["W /3311/0/5850 True"]


async def test_end_when_the_device_leaves_during_the_first_steps(
    fleet: Fleet, session: FakeSession, services: Services, ends: Ends, autojump_clock: MockClock
) -> None:
    registrations = fleet.management.registrations
    registrations.ended(session)
    following = FakeSession(fleet.devices[0])
    registrations.begin(following)
    await registrations.begun(following)
    await act(services, fleet, {"name": "setOn"})
    await wait_all_tasks_blocked()
    following.is_over = True
    registrations.ended(following)
    assert await ends.wait(1) == ["DeviceActionFailed"]
    assert await shown(fleet) == [("setOn", "failed", "The registration of the device has ended.")]


async def test_go_to_the_next_registration_of_a_device_that_slept(
    fleet: Fleet, session: FakeSession, services: Services, ends: Ends, autojump_clock: MockClock
) -> None:
    session.sleep()
    await act(services, fleet, {"name": "setOn"})
    await wait_all_tasks_blocked()
    session.is_over = True
    fleet.management.registrations.ended(session)
    session.is_awake.set()  # what waited is told that it was not sent
    await wait_all_tasks_blocked()
    following = FakeSession(fleet.devices[0])
    await fleet.management.registrations.registered(following)
    assert await ends.wait(1) == ["DeviceActionDelivered"]
    assert (session.done, following.done) == ([], ["W /3311/0/5850 True"])


async def test_end_with_the_registration(
    fleet: Fleet, session: FakeSession, services: Services, ends: Ends, autojump_clock: MockClock
) -> None:
    session.sleep()
    await act(services, fleet, {"name": "setOn"})
    await wait_all_tasks_blocked()
    session.is_over = True
    fleet.management.registrations.ended(session)
    session.is_awake.set()
    assert await ends.wait(1) == ["DeviceActionFailed"]
    assert await shown(fleet) == [("setOn", "failed", "The registration of the device has ended.")]
    await act(services, fleet, {"name": "setOn"})  # reference 9.1: nothing is queued for it
    await wait_all_tasks_blocked()
    assert len(ends.facts) == 1


async def test_of_a_former_owner_are_not_carried_out(
    fleet: Fleet, session: FakeSession, services: Services, autojump_clock: MockClock
) -> None:
    session.sleep()
    for _ in range(2):
        await act(services, fleet, {"name": "setOn"})
    await wait_all_tasks_blocked()
    device = fleet.devices[0]
    fact = device_fact(DeviceHandedOver, device.record, device.type.record, None, services.core.clock.now_ms())
    services.core.router.publish(fact)
    await wait_all_tasks_blocked()
    session.is_awake.set()
    await wait_all_tasks_blocked()
    assert (session.done, await shown(fleet), fleet.management.actions.statistics().waiting) == ([], [], 0)
    ends = Ends(services)
    await act(services, fleet, {"name": "setOn"})
    assert await ends.wait(1) == ["DeviceActionDelivered"]


async def test_end_when_the_device_is_not_heard_in_time(
    fleet: Fleet,
    session: FakeSession,
    services: Services,
    ends: Ends,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.device_management.device_actions.LWM2M_ACTION_SECONDS", 600)
    session.sleep()
    await act(services, fleet, {"name": "setOn"})
    assert await ends.wait(1) == ["DeviceActionFailed"]
    assert await shown(fleet) == [("setOn", "failed", "The device was not heard in time.")]


async def test_that_the_device_refuses_end_the_message(
    fleet: Fleet, session: FakeSession, services: Services, ends: Ends, autojump_clock: MockClock
) -> None:
    session.refuses[(3311, 0, 5850)] = "4.05"
    await act(services, fleet, {"name": "setOn"})
    await act(services, fleet, {"name": "setOn"}, {"name": "reboot"})
    assert await ends.wait(2) == ["DeviceActionFailed"] * 2
    text = "The device refused the operation on /3311/0/5850: 4.05."
    assert await shown(fleet) == [("setOn, reboot", "failed", f"setOn: {text}"), ("setOn", "failed", text)]
    assert "E /3/0/4" not in session.done


@each_row(
    ("parameters", "text"),
    [
        ({}, "The Action has no value of the parameter level."),
        ({"level": None}, "The Action has no value of the parameter level."),
        ({"level": [1]}, "The Action has no value of the parameter level."),
        ({"level": "bright"}, "/3311/0/5851 is Integer, and the Action has another value."),
        ({"level": 1.5}, "/3311/0/5851 is Integer, and the Action has another value."),
        ({"level": True}, "/3311/0/5851 is Integer, and the Action has another value."),
    ],
)
async def test_without_a_fitting_value_are_not_sent(
    fleet: Fleet, session: FakeSession, services: Services, autojump_clock: MockClock, parameters: object, text: str
) -> None:
    ends = Ends(services)
    await act(services, fleet, {"name": "setLevel", "parameters": parameters})
    assert await ends.wait(1) == ["DeviceActionFailed"]
    assert (session.done, (await shown(fleet))[0]) == ([], ("setLevel", "failed", text))


async def test_that_wait_are_bounded(
    fleet: Fleet, session: FakeSession, services: Services, ends: Ends, autojump_clock: MockClock
) -> None:
    session.sleep()
    for _ in range(LWM2M_ACTIONS_WAITING + 1):
        await act(services, fleet, {"name": "setOn"})
    assert await ends.wait(1) == ["DeviceActionFailed"]
    assert (await shown(fleet))[-1] == ("setOn", "failed", "Too many Actions wait for the device.")
    session.is_awake.set()
    await ends.wait(LWM2M_ACTIONS_WAITING + 1)
    assert len(session.done) == LWM2M_ACTIONS_WAITING
    kept = await fleet.management.actions.shown(fleet.devices[0])
    assert {one.state for one in kept} == {ActionState.DONE}
    assert fleet.management.actions.statistics() == type(fleet.management.actions.statistics())(
        0, LWM2M_ACTIONS_WAITING, 1
    )


async def test_that_wait_are_bounded_for_each_user(
    fleet: Fleet,
    session: FakeSession,
    services: Services,
    ends: Ends,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.device_management.device_actions._WAITING_OF_USER", 2)
    session.sleep()
    for _ in range(3):
        await act(services, fleet, {"name": "setOn"})
    assert await ends.wait(1) == ["DeviceActionFailed"]
    assert (await shown(fleet))[-1] == ("setOn", "failed", "Too many Actions wait for devices of the user, or of all.")
    session.is_awake.set()
    await ends.wait(3)
    await act(services, fleet, {"name": "setOn"})  # none waits any more
    assert (await ends.wait(4))[-1] == "DeviceActionDelivered"


@each_row(
    ("operation", "field"),
    [
        ("on", "actions.0.lwm2m"),
        ({}, "actions.0.lwm2m"),
        ({"write": "/3311/0/5850", "execute": "/3/0/4"}, "actions.0.lwm2m"),
        ({"write": "/3311/0/5850"}, "actions.0.lwm2m"),
        ({"write": "/3311/0/5850", "value": True, "parameter": "level"}, "actions.0.lwm2m"),
        ({"write": "/3311/0", "value": True}, "actions.0.lwm2m.write"),
        ({"write": 7, "value": True}, "actions.0.lwm2m.write"),
        ({"write": "/1/0/1", "value": 60}, "actions.0.lwm2m.write"),
        ({"write": "/3311/0/5850", "value": [True]}, "actions.0.lwm2m.value"),
        ({"write": "/3311/0/5850", "value": "x" * 1025}, "actions.0.lwm2m.value"),
        ({"write": "/3311/0/5851", "parameter": "volume"}, "actions.0.lwm2m.parameter"),
        ({"write": "/3311/0/5851", "parameter": 7}, "actions.0.lwm2m.parameter"),
        ({"execute": "/3/0/4", "value": 1}, "actions.0.lwm2m"),
        ({"execute": "3/0/4"}, "actions.0.lwm2m.execute"),
        # what the models do not have
        ({"write": "/3311/0/5850", "value": 7}, "actions.0.lwm2m"),
        ({"write": "/3303/0/5700", "value": 7}, "actions.0.lwm2m"),
        ({"execute": "/3303/0/5700"}, "actions.0.lwm2m"),
        ({"write": "/4242/0/1", "value": 7}, None),
        ({"execute": "/3303/0/5605"}, None),
    ],
)
async def test_what_an_operation_may_be(
    services: Services, fleet: Fleet, autojump_clock: MockClock, operation: object, field: str | None
) -> None:
    action = {"name": "act", "parameters": LEVEL["parameters"], "lwm2m": operation}
    document = {"fields": [], "actions": [action]}
    if field is None:
        await services.device_types.manifests.upload(fleet.type.id, document)
        shown = fleet.type.latest.manifest.properties()["actions"]["act"]  # type: ignore[index]
        assert shown["lwm2m"] == operation
        return
    with pytest.raises(ValidationFailed) as refused:
        await services.device_types.manifests.upload(fleet.type.id, document)
    assert [one.field for one in refused.value.findings] == [field]


@pytest.fixture
def listening(settings: Settings, engine: SqliteEngine) -> ServicesOpener:
    with_lwm2m = replace(settings, lwm2m=Lwm2m(dtls_bind=Address("127.0.0.1", 0)))
    return ServicesOpener(with_lwm2m, engine, mock_time())


async def begun(services: Services) -> Fleet:
    await build_world(services.core.database, services.core.vault)
    fleet = await Fleet.of(services, 1)
    await services.device_types.manifests.upload(fleet.type.id, {"fields": [], "actions": [ON, LEVEL, REBOOT]})
    return fleet


async def opened_again(services: Services, fleet: Fleet) -> Fleet:
    again = Fleet(services, await services.device_types.catalog.find(LIGHT_TYPE))
    again.devices = [await services.devices.registry.get(fleet.devices[0].key)]
    return again


async def test_that_waited_at_a_stop_go_to_the_next_registration_once(
    listening: ServicesOpener, autojump_clock: MockClock
) -> None:
    async with listening() as services:
        fleet = await begun(services)
        session = await fleet.register(fleet.devices[0])
        await act(services, fleet, {"name": "setLevel", "parameters": {"level": 10}})
        await Ends(services).wait(1)
        session.sleep()
        mid = await act(services, fleet, {"name": "setOn"}, {"name": "reboot"})
        await act(services, fleet, {"name": "setLevel", "parameters": {"level": 40}})
        await wait_all_tasks_blocked()
        session.is_over = True
    async with listening() as services:
        fleet, ends = await opened_again(services, fleet), Ends(services)
        text = "The device gets it with its next registration."
        assert await shown(fleet) == [("setLevel", "waiting", text), ("setOn, reboot", "waiting", text)]
        await trio.sleep(600)  # a device in queue mode comes when its lifetime ends
        session = await fleet.register(fleet.devices[0])
        assert await ends.wait(2) == ["DeviceActionDelivered"] * 2
        assert ends.facts[0].mid == mid
        assert session.done == ["W /3311/0/5850 True", "E /3/0/4", "W /3311/0/5851 40"]
    async with listening() as services:  # nothing is left
        assert await shown(await opened_again(services, fleet)) == []


@pytest.mark.both_engines
async def test_that_had_begun_at_a_stop_go_on_behind_it(listening: ServicesOpener, autojump_clock: MockClock) -> None:
    async with listening() as services:
        fleet = await begun(services)
        session = await fleet.register(fleet.devices[0])
        session.never_answers.add((3, 0, 4))
        await act(services, fleet, {"name": "setOn"}, {"name": "reboot"}, {"name": "setOn"})
        await wait_all_tasks_blocked()
        assert session.done == ["W /3311/0/5850 True", "E /3/0/4"]
    async with listening() as services:
        fleet = await opened_again(services, fleet)
        session = await fleet.register(fleet.devices[0])
        await wait_all_tasks_blocked()
        # Nobody knows whether the Execute was carried out: it is not repeated, and nothing follows it.
        assert session.done == []
        assert (await shown(fleet))[0][1:] == ("failed", "reboot: The service ended before the device had answered.")


@pytest.mark.both_engines
async def test_that_waited_for_a_former_owner_are_dropped(listening: ServicesOpener, autojump_clock: MockClock) -> None:
    async with listening() as services:
        fleet = await begun(services)
        session = await fleet.register(fleet.devices[0])
        session.sleep()
        await act(services, fleet, {"name": "setOn"})
        await act(services, fleet, {"name": "reboot"})
        await wait_all_tasks_blocked()
        await services.core.database.write(
            lambda tx: tx.connection.execute("UPDATE lwm2m_action SET owner = owner + 1")
        )
    async with listening() as services:
        assert await shown(await opened_again(services, fleet)) == []
        await wait_all_tasks_blocked()
        assert await services.core.database.read(lambda tx: tx.lwm2m_actions.all()) == []


async def test_that_a_kill_left_without_rows_are_found(listening: ServicesOpener, autojump_clock: MockClock) -> None:
    async with listening() as services:
        fleet = await begun(services)
        session = await fleet.register(fleet.devices[0])
        await act(services, fleet, {"name": "setOn"})
        await Ends(services).wait(1)
        saved = await services.core.database.read(lambda tx: tx.messages.consumer_position("lwm2m actions"))
        session.sleep()
        await act(services, fleet, {"name": "reboot"})
        await wait_all_tasks_blocked()
        device = fleet.devices[0].key
    async with listening() as services:
        pass

    def kill(tx: Transaction) -> None:
        tx.lwm2m_actions.end_of_device(device)
        tx.messages.set_consumer_position("lwm2m actions", saved)

    async with listening() as services:
        await services.core.database.write(kill)
        services.device_management.actions._unended._saved = Position(2**40)  # a killed daemon saves nothing
    async with listening() as services:
        fleet, ends = await opened_again(services, fleet), Ends(services)
        session = await fleet.register(fleet.devices[0])
        assert await ends.wait(1) == ["DeviceActionDelivered"]
        assert session.done == ["E /3/0/4"]


async def test_a_node_whose_device_has_gone_to_another_one_waits_no_longer(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    class Registrations:
        async def is_elsewhere(self, device: DeviceKey) -> bool:
            looked.append(device)
            if len(looked) == 1:
                raise StoreError("the database is away")
            return len(looked) > 2

    monkeypatch.setattr(device_actions, "_LOOK_SECONDS", 0)
    monkeypatch.setattr(fleet.management.actions, "_shared", Registrations())
    key = fleet.devices[0].key
    with pytest.raises(device_actions._TakenOverError), trio.fail_after(10):
        await fleet.management.actions._session(key)
    assert looked == [key] * 3
