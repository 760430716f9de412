"""What registered devices offer to the Manifest (reference 18.8)."""

from typing import Any, Final

import pytest

from broker.device_management.device_resources import DeviceResources
from broker.device_management.objects import ObjectMap
from broker.device_management.offers import offers_of
from broker.device_management.registry import shipped_models
from broker.device_management.sessions import Reading, ResourcePath
from broker.device_types.manifest import NO_MANIFEST
from broker.device_types.manifest_parser import parse_manifest
from config.limits import LWM2M_PATHS_MAX
from tests.broker.device_management.devices import FakeSession, Fleet, register

OBJECTS: Final = ObjectMap(shipped_models())
LISTED: Final = ((3, 0), (5, 0), (3303, 0), (3303, 1), (3311, 0))
VALUES: Final[dict[ResourcePath, Any]] = {
    (3, 0, 0): "Acme",
    (3, 0, 9): 80,
    (5, 0, 3): 0,
    (3303, 0, 5700): 21.5,
    (3303, 0, 5601): 20.0,
    (3303, 0, 5701): "Cel",
    (3303, 1, 5700): 7.0,
    (3311, 0, 5850): True,
    (3311, 0, 5851): 40,
    (3342, 0, 5500): True,  # an instance that is not listed any more
    (4242, 0, 7): 1,
}
OLD: Final = {
    "messageFormat": "json",
    "fields": [
        {"name": "temperature", "valueClass": "Float"},
        {"name": "batteryLevel", "valueClass": "Boolean"},
        {"name": "text", "valueClass": "String", "lwm2m": "/3303/1/5700"},
    ],
    "actions": [{"name": "setOn"}, {"name": "restart", "lwm2m": {"execute": "/3/0/4"}}],
}


def test_measured_and_settable_resources_by_the_models() -> None:
    offers = offers_of(OBJECTS, LISTED, VALUES, NO_MANIFEST)
    assert offers.sentence == (
        "This board offers batteryLevel (/3/0/9, %), temperature (/3303/0/5700, °C), temperature_1 (/3303/1/5700),"
        " lightControlOnOff (/3311/0/5850) and lightControlDimmer (/3311/0/5851, %)."
    )
    document = offers.added_to(None)
    made = parse_manifest(document)
    assert {str(name): path for name, path in made.resources.items()} == {
        "batteryLevel": (3, 0, 9),
        "temperature": (3303, 0, 5700),
        "temperature_1": (3303, 1, 5700),
        "lightControlOnOff": (3311, 0, 5850),
        "lightControlDimmer": (3311, 0, 5851),
    }
    assert all(OBJECTS.problem_of(one) is None for one in made.leaves.values())
    assert all(OBJECTS.problem_of_operation(one) is None for one in made.operations.values())
    assert {name: one.document() for name, one in made.operations.items()} == {
        "setOn": {"write": "/3311/0/5850", "value": True},
        "setOff": {"write": "/3311/0/5850", "value": False},
        "setLightControlDimmer": {"write": "/3311/0/5851", "parameter": "value"},
        "reboot": {"execute": "/3/0/4"},
    }
    # Nothing is offered twice.
    assert offers_of(OBJECTS, LISTED, VALUES, made) == offers_of(OBJECTS, (), {}, NO_MANIFEST)


def test_a_manifest_keeps_what_it_has() -> None:
    offers = offers_of(OBJECTS, LISTED, VALUES, parse_manifest(OLD))
    document = offers.added_to(OLD)
    assert [(one["name"], one["valueClass"], one.get("lwm2m")) for one in document["fields"]] == [
        ("temperature", "Float", "/3303/0/5700"),
        ("batteryLevel", "Boolean", None),
        ("text", "String", "/3303/1/5700"),
        ("batteryLevel_of_device2", "Long", "/3/0/9"),
        ("lightControlOnOff", "Boolean", "/3311/0/5850"),
        ("lightControlDimmer", "Long", "/3311/0/5851"),
    ]
    assert [one["name"] for one in document["actions"]] == ["setOn", "restart", "setOff", "setLightControlDimmer"]
    parse_manifest(document)


def test_of_instances_that_were_not_read_the_main_resource() -> None:
    offers = offers_of(OBJECTS, ((3303, 0), (3311, 0), (4242, 0), (5, 0)), {}, NO_MANIFEST)
    assert [one.path for one in offers.fields] == [(3303, 0, 5700), (3311, 0, 5850), (3311, 0, 5851)]


def test_as_many_as_a_manifest_may_have() -> None:
    listed = [(3303, number) for number in range(100)]
    offers = offers_of(OBJECTS, listed, {(*one, 5700): 1.0 for one in listed}, NO_MANIFEST)
    assert len(offers.fields) == LWM2M_PATHS_MAX
    assert offers.sentence.endswith(", temperature_7 (/3303/7/5700) and 56 more.")
    assert len(parse_manifest(offers.added_to(None)).resources) == LWM2M_PATHS_MAX


@pytest.mark.parametrize("unit", ["<b>", "x" * 200, 7])
def test_a_unit_that_the_device_says_is_only_a_text(unit: object) -> None:
    offers = offers_of(OBJECTS, [(3303, 0)], {(3303, 0, 5700): 1.0, (3303, 0, 5701): unit}, NO_MANIFEST)
    parse_manifest(offers.added_to(None))
    assert offers.fields[0].unit == (unit if unit == "<b>" else "")


async def test_of_a_registered_device(fleet: Fleet) -> None:
    resources: DeviceResources = fleet.management.resources
    device = fleet.devices[0]
    session = FakeSession(device, offers=frozenset({(3, 0), (3303, 0)}))
    assert (await resources.offers(device)).fields == ()
    await register(fleet.services, session)
    values = [Reading(None, {(3303, 0, 5700): 21.5, (3303, 0, 5701): "Cel"})]
    await fleet.management.registrations.receive_values(device, values, is_read=True)
    (board,) = await resources.boards(device.type.record.organization)
    assert (board.device, board.offers) == (device, await resources.offers(device))
    assert board.offers.sentence.endswith("(/3303/0/5700, °C).")
    assert await resources.boards(device.type.record.organization + 1) == []  # type: ignore[arg-type]
    fleet.leave(session)
    assert await resources.boards(device.type.record.organization) == []
