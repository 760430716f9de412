"""Versions of a Manifest: their numbers, their approval, and the messages that failed with them."""

from typing import Any

import pytest

from broker.device_types.overview import FailedMessage, TypeOverview, UploadedManifest
from broker.devices.inventory import DeviceChanges
from broker.devices.registry import Device
from broker.errors import DeviceTypeNotFound, NotFound, PayloadTooLarge, ValidationFailed
from broker.services import Services
from tests.factories import HALL, KITCHEN, LIGHT_TYPE, NOW_MS, World
from tests.fakes import FakeClock
from tests.tickets import at

FIELDS = [{"name": "temperature", "valueClass": "Double"}, {"name": "state", "valueClass": "Boolean"}]
SIMPLE: dict[str, Any] = {"fields": FIELDS}
ADVANCED: dict[str, Any] = {
    "fields": FIELDS,
    "transform": {
        "format": "csv",
        "columns": ["t", "s"],
        "expression": "{temperature: divide(to_number(t), `10`), state: s == '1'}",
    },
}
BINARY: dict[str, Any] = {
    "fields": FIELDS,
    "transform": {"format": "binary", "layout": [{"name": "temperature", "type": "float64"}]},
}


@pytest.fixture
async def kitchen(services: Services, world: World) -> Device:
    return await services.devices.registry.get(world.kitchen)


async def sent(services: Services, device: Device, payload: bytes) -> str | None:
    """The data that is stored of a payload."""
    position = at(services.messages.ingest.submit(device, payload))
    await services.messages.ingest.wait_committed()
    row = await services.core.database.read(lambda tx: tx.messages.message(position))
    return None if row is None else row.data


async def test_a_simple_manifest_is_approved_at_once(services: Services, kitchen: Device) -> None:
    uploaded = await services.device_types.manifests.upload("example.smart_light", SIMPLE)
    assert uploaded == UploadedManifest(LIGHT_TYPE, 2, approved=True, is_new=True)
    assert kitchen.manifest.version == 2
    assert kitchen.type.record.last_updated == NOW_MS


async def test_the_same_document_is_no_new_version(services: Services, kitchen: Device) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, SIMPLE)
    again = await services.device_types.manifests.upload(LIGHT_TYPE, dict(reversed(SIMPLE.items())))
    assert again == UploadedManifest(LIGHT_TYPE, 2, approved=True, is_new=False)


async def test_a_refused_document_changes_nothing(services: Services, kitchen: Device) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await services.device_types.manifests.upload(
            LIGHT_TYPE, {"fields": [{"name": "1"}], "transform": {"format": "csv"}}
        )
    assert [finding.field for finding in refused.value.findings] == [
        "fields.0.name",
        "fields.0.valueClass",
        "transform.columns",
    ]
    assert kitchen.manifest.version == 1


@pytest.mark.both_engines
async def test_an_advanced_manifest_waits_for_approval(services: Services, kitchen: Device) -> None:
    assert not (await services.device_types.manifests.upload(LIGHT_TYPE, ADVANCED)).approved
    assert (kitchen.type.record.approved, kitchen.type.record.latest_version) == (False, 1)
    assert await sent(services, kitchen, b'{"temperature":1}') == '{"temperature":1}'
    assert await services.device_types.manifests.overview() == [
        TypeOverview(LIGHT_TYPE, "example.smart_light", True, 1, (2,))
    ]
    approved = await services.device_types.manifests.approve(LIGHT_TYPE, 2)
    assert approved == UploadedManifest(LIGHT_TYPE, 2, approved=True, is_new=True)
    assert kitchen.type.record.approved
    assert await sent(services, kitchen, b"215,1") == '{"temperature":21.5,"state":true}'
    assert not (await services.device_types.manifests.approve(LIGHT_TYPE, 2)).is_new


@pytest.mark.both_engines
async def test_a_version_can_be_approved_with_its_upload(services: Services, kitchen: Device) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, ADVANCED)
    uploaded = await services.device_types.manifests.upload(LIGHT_TYPE, ADVANCED, approve=True)
    assert uploaded == UploadedManifest(LIGHT_TYPE, 2, approved=True, is_new=True)
    assert kitchen.manifest.version == 2


async def test_provisioned_manifests_are_approved(services: Services, kitchen: Device) -> None:
    entry = {"unique_name": "example.smart_light", "organization": "Acme", "manifest": ADVANCED}
    for _ in range(2):
        await services.provisioning.apply({"device_types": [entry]})
        assert (kitchen.manifest.version, kitchen.manifest.takes_any_payload) == (2, True)


@pytest.mark.parametrize(("type_", "number", "error"), [("nothing", 1, DeviceTypeNotFound), (LIGHT_TYPE, 2, NotFound)])
async def test_an_unknown_version_cannot_be_approved(
    services: Services, kitchen: Device, type_: str, number: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await services.device_types.manifests.approve(type_, number)


async def test_an_unknown_type_gets_no_manifest(services: Services, kitchen: Device) -> None:
    with pytest.raises(DeviceTypeNotFound):
        await services.device_types.manifests.upload("nothing", SIMPLE)


async def test_a_device_that_stays_on_its_version_does_not_transform(services: Services, world: World) -> None:
    kitchen = await services.devices.registry.get(world.kitchen)
    await services.devices.inventory.change(kitchen, DeviceChanges(manifest_version_policy="DEVICE"))
    await services.device_types.manifests.upload(LIGHT_TYPE, ADVANCED, approve=True)
    assert await sent(services, kitchen, b'{"state":true}') == '{"state":true}'


@pytest.mark.both_engines
async def test_a_payload_that_cannot_be_transformed_is_acknowledged_and_logged(
    services: Services, kitchen: Device, fake_clock: FakeClock
) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, ADVANCED, approve=True)
    hall = await services.devices.registry.find(HALL)
    for device, payload in ((kitchen, b"1,2,3"), (hall, b"x,1"), (kitchen, b"\xff\x00"), (kitchen, b"")):
        fake_clock.advance(1)
        assert await sent(services, device, payload) is None
    failures = (await services.device_types.manifests.failures("example.smart_light", limit=10)).messages
    assert list(failures) == [
        FailedMessage(KITCHEN, NOW_MS + 4, "payload: 0 rows instead of one", ""),
        FailedMessage(KITCHEN, NOW_MS + 3, "payload: not UTF-8 text: byte 0", "hex:ff00"),
        FailedMessage(HALL, NOW_MS + 2, failures[2].reason, "x,1"),
        FailedMessage(KITCHEN, NOW_MS + 1, "payload: 3 cells for 2 columns", "1,2,3"),
    ]
    assert failures[2].reason.startswith("expression: In function divide(), invalid type")
    assert (await services.device_types.manifests.failures(HALL, limit=10)).messages == failures[2:3]
    assert (await services.device_types.manifests.failures(LIGHT_TYPE, limit=1)).messages == failures[:1]
    assert services.messages.ingest.statistics().failed_messages == 4


async def test_failures_of_an_unknown_id_are_not_found(services: Services, kitchen: Device) -> None:
    with pytest.raises(NotFound):
        await services.device_types.manifests.failures("nothing", limit=1)


@pytest.mark.parametrize(("size", "fits"), [(1024, True), (1025, False)])
async def test_the_size_limit_applies_to_the_payload_before_the_transform(
    services: Services, kitchen: Device, size: int, fits: bool
) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, BINARY, approve=True)
    payload = bytes([64]).ljust(size, b"\0")
    if fits:
        assert await sent(services, kitchen, payload) == '{"temperature":2.0}'
        return
    with pytest.raises(PayloadTooLarge):
        services.messages.ingest.submit(kitchen, payload)
