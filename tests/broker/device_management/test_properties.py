"""Reports of devices on their resources (reference 15.1 and 18.4)."""

import json
import math

import pytest

from broker.device_management.configuration import ConfigurationChange
from broker.device_management.sessions import Reading, ResourceValue
from broker.facts import ManagementConfigured
from broker.services import Services
from storage.device_management import PropertySetRecord
from storage.keys import Milliseconds
from storage.records import ManifestRecord
from storage.transaction import Transaction
from tests.broker.device_management.devices import Fleet
from tests.factories import NOW_MS
from tests.rows import each_row


async def reported(fleet: Fleet) -> object:
    return (await fleet.management.properties.of(fleet.devices[0], with_times=False)).reported


@each_row(
    ("value", "shown"),
    [
        ("x", "x"),
        ("é", "é"),
        ("\ud800", "?"),
        (7, 7),
        (True, True),
        (1.5, 1.5),
        (b"\x00", "AA=="),
        ([1, 2], [1, 2]),
        (2**63, 2**63),
        ([2**64 - 1, -(2**63)], [2**64 - 1, -(2**63)]),
        ([b"\x00"], ["AA=="]),
    ],
)
async def test_values_as_they_are_shown(fleet: Fleet, value: ResourceValue, shown: object) -> None:
    await fleet.management.registrations.receive_values(fleet.devices[0], [Reading(None, {(4242, 0, 1): value})])
    assert await reported(fleet) == {"object4242": {"0": {"1": shown}}}


async def test_what_has_no_property_or_no_json_is_dropped(fleet: Fleet) -> None:
    values: dict[tuple[int, ...], ResourceValue] = {
        (3, 0, 22): "x",
        (5, 0, 0): b"x",
        (0, 0, 5): b"secret",
        (6, 0, 0): math.nan,
        (3, 0, 9): 2**64,
        (3, 0, 0): "Acme",
    }
    await fleet.management.registrations.receive_values(fleet.devices[0], [Reading(None, values)])
    assert await reported(fleet) == {"device": {"manufacturer": "Acme"}}


async def test_too_much_is_dropped_and_keeps_what_was_known(fleet: Fleet) -> None:
    report = fleet.management.registrations.receive_values
    await report(fleet.devices[0], [Reading(None, {(3, 0, 0): "Acme"})])
    await report(fleet.devices[0], [Reading(None, {(3, 0, 0): "x" * 70_000})])
    assert await reported(fleet) == {"device": {"manufacturer": "Acme"}}


async def test_nothing_is_stored_while_device_properties_are_switched_off(services: Services) -> None:
    fleet = await Fleet.of(services, 1, enabled=False)
    await fleet.management.registrations.receive_values(fleet.devices[0], [Reading(None, {(3, 0, 0): "Acme"})])
    assert await reported(fleet) == {}


async def test_a_change_of_the_periods_is_announced_and_asked_for_again(fleet: Fleet) -> None:
    told: list[ManagementConfigured] = []
    fleet.services.core.router.subscribe(ManagementConfigured, told.append)
    await fleet.management.configurations.change(fleet.type, ConfigurationChange(pmin=60, pmax=3600))
    assert [fact.device_type for fact in told] == [fleet.type.record.key]
    asked = await fleet.management.registrations.observation_of(fleet.devices[0])
    assert (asked.is_enabled, asked.pmin, asked.pmax) == (True, 60, 3600)


@pytest.mark.both_engines
async def test_a_removed_device_leaves_nothing(fleet: Fleet) -> None:
    await fleet.register(fleet.devices[0])
    await fleet.task("deviceProperties.device.manufacturer")
    device, database = fleet.devices[0], fleet.services.core.database
    await fleet.services.devices.inventory.delete(device)

    def left(tx: Transaction) -> list[int]:
        tx.removal.remove_some(device.key, before_ms=NOW_MS * 2, limit=100)
        tables = ("property_set", "device_task", "task_history")
        found = [tx.connection.execute(f"SELECT count(*) AS n FROM {table}").one() for table in tables]  # noqa: S608 - its own tables
        return [row["n"] for row in found if row is not None]

    assert await database.write(left) == [0, 0, 0]


LEVEL, MAKER = (3, 0, 9), (3, 0, 0)
KEPT = {
    "fields": [
        {"name": "device", "children": [{"name": "batteryLevel", "valueClass": "Integer"}]},
        {"name": "object4242", "children": [{"name": "resource7", "valueClass": "Double"}]},
        {"name": "object4242_1", "children": [{"name": "resource7", "valueClass": "Double"}]},
    ]
}


async def report(fleet: Fleet, *readings: tuple[int | None, dict[tuple[int, ...], ResourceValue]]) -> None:
    """Readings of these times, in seconds from now."""
    now_ms = fleet.services.core.clock.now_ms()
    given = [Reading(None if at is None else Milliseconds(now_ms + at * 1000), values) for at, values in readings]
    await fleet.management.registrations.receive_values(fleet.devices[0], given)


async def leaf(fleet: Fleet, group: str, name: str) -> tuple[object, int]:
    """A device property, and its time in seconds from now."""
    found = (await fleet.management.properties.of(fleet.devices[0], with_times=True)).reported[group][name]
    return found["value"], round((found["ts"] - fleet.services.core.clock.now_ms()) / 1000)


class TestTimes:
    """Issue 44, 4."""

    async def test_the_newest_value_stays_with_its_time_in_any_order(self, fleet: Fleet) -> None:
        await report(fleet, (-5, {LEVEL: 80}), (-3000, {LEVEL: 40, MAKER: "Acme"}))
        assert await leaf(fleet, "device", "batteryLevel") == (80, -5)
        assert await leaf(fleet, "device", "manufacturer") == ("Acme", -3000)

    async def test_an_older_one_never_replaces_a_newer_one(self, fleet: Fleet) -> None:
        await report(fleet, (None, {LEVEL: 80}))
        await report(fleet, (-1, {LEVEL: 11, MAKER: "Acme"}))
        assert await leaf(fleet, "device", "batteryLevel") == (80, 0)
        assert await leaf(fleet, "device", "manufacturer") == ("Acme", -1)
        await report(fleet, (0, {LEVEL: 81}))
        assert await leaf(fleet, "device", "batteryLevel") == (81, 0)

    async def test_a_clock_that_was_set_back_keeps_nothing_out(self, fleet: Fleet) -> None:
        await report(fleet, (3600, {LEVEL: 80}))  # stored before the clock was set back by an hour
        await report(fleet, (None, {LEVEL: 79}))
        assert await leaf(fleet, "device", "batteryLevel") == (79, 0)

    @pytest.mark.both_engines
    async def test_a_message_for_each_time_of_what_the_manifest_has(self, fleet: Fleet, services: Services) -> None:
        type_ = fleet.type.record.key
        manifest = ManifestRecord(type_, 2, json.dumps(KEPT), True, 2)
        await services.core.database.write(lambda tx: tx.device_types.add_manifest(manifest))
        await services.device_types.catalog.reload()
        await report(
            fleet,
            (-5, {LEVEL: 80, MAKER: "Acme"}),
            (-65, {LEVEL: 82, (4242, 0, 7): 1.5, (4242, 1, 7): 2.5, (4242, 2, 7): 3.5}),
            (-35, {MAKER: "Acme"}),
        )
        found = await services.messages.history.latest([fleet.devices[0]], count=10)
        now_ms = services.core.clock.now_ms()
        assert [(round((one.ts - now_ms) / 1000), json.loads(one.data)) for one in found] == [
            (
                -65,
                {
                    "device": {"batteryLevel": 82},
                    "object4242": {"resource7": 1.5},
                    "object4242_1": {"resource7": 2.5},
                },
            ),
            (-5, {"device": {"batteryLevel": 80}}),
        ]
        assert (await services.messages.history.failed(fleet.devices[0], offset=0, limit=9))[1] == 0

    async def test_no_message_of_what_the_manifest_does_not_have(self, fleet: Fleet, services: Services) -> None:
        """Temperature is a number of the Manifest, and an object of IPSO."""
        await report(fleet, (None, {LEVEL: 80, (3303, 0, 5700): 21.5}))
        assert await services.messages.history.latest([fleet.devices[0]], count=10) == ()
        assert (await services.messages.history.failed(fleet.devices[0], offset=0, limit=9))[1] == 0


async def test_a_property_of_an_object_that_is_described_since_gets_its_name(fleet: Fleet) -> None:
    """Issue 44, 5: it was stored by number, before the models of the registry were shipped."""
    key, ts = fleet.devices[0].key, NOW_MS
    reported_ = '{"object3303":{"0":{"5700":21.5,"5701":"Cel"}},"object4242":{"0":{"1":7}}}'
    times = json.dumps({f"object{path}": ts for path in ("3303.0.5700", "3303.0.5701", "4242.0.1")})
    record = PropertySetRecord(key, reported=reported_, reported_times=times)
    await fleet.services.core.database.write(lambda tx: tx.device_management.put_properties(record))
    await report(fleet, (None, {(3303, 0, 5700): 22.0}))
    assert await reported(fleet) == {
        "temperature": {"0": {"sensorValue": 22.0, "sensorUnits": "Cel"}},
        "object4242": {"0": {"1": 7}},
    }
    task = await fleet.task("deviceProperties.object3303.0.5700")
    assert task.record.status == "REQUESTED"
