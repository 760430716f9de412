"""What devices say of their resources (reference 15.1 and 18.4)."""

import math

from broker.device_management.configuration import ConfigurationChange
from broker.device_management.sessions import ResourceValue
from broker.facts import ManagementConfigured
from broker.services import Services
from storage.database import Transaction
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
        ([b"\x00"], ["AA=="]),
    ],
)
async def test_values_as_they_are_shown(fleet: Fleet, value: ResourceValue, shown: object) -> None:
    await fleet.management.registrations.values_came(fleet.devices[0], {(3303, 0, 1): value}, NOW_MS)
    assert await reported(fleet) == {"object3303": {"0": {"1": shown}}}


async def test_what_has_no_property_or_no_json_is_dropped(fleet: Fleet) -> None:
    values: dict[tuple[int, ...], ResourceValue] = {
        (3, 0, 22): "x",
        (5, 0, 0): b"x",
        (0, 0, 5): b"secret",
        (6, 0, 0): math.nan,
        (3, 0, 9): 2**64,
        (3, 0, 0): "Acme",
    }
    await fleet.management.registrations.values_came(fleet.devices[0], values, NOW_MS)
    assert await reported(fleet) == {"device": {"manufacturer": "Acme"}}


async def test_too_much_is_dropped_and_keeps_what_was_known(fleet: Fleet) -> None:
    report = fleet.management.registrations.values_came
    await report(fleet.devices[0], {(3, 0, 0): "Acme"}, NOW_MS)
    await report(fleet.devices[0], {(3, 0, 0): "x" * 70_000}, NOW_MS)
    assert await reported(fleet) == {"device": {"manufacturer": "Acme"}}


async def test_nothing_is_stored_while_device_properties_are_switched_off(services: Services) -> None:
    fleet = await Fleet.of(services, 1, enabled=False)
    await fleet.management.registrations.values_came(fleet.devices[0], {(3, 0, 0): "Acme"}, NOW_MS)
    assert await reported(fleet) == {}


async def test_a_change_of_the_periods_is_announced_and_asked_for_again(fleet: Fleet) -> None:
    told: list[ManagementConfigured] = []
    fleet.services.core.router.subscribe(ManagementConfigured, told.append)
    await fleet.management.configurations.change(fleet.type, ConfigurationChange(pmin=60, pmax=3600))
    assert [fact.device_type for fact in told] == [fleet.type.record.key]
    asked = await fleet.management.registrations.observation_of(fleet.devices[0])
    assert (asked.is_enabled, asked.pmin, asked.pmax) == (True, 60, 3600)


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
