"""The table `connectors` of the provision file."""

from collections.abc import Mapping
from typing import Any

import pytest

from broker.connectors.catalog import ConnectorUnavailable
from broker.errors import Conflict, ValidationFailed
from broker.services import Services
from tests.builders import ServicesOpener
from tests.factories import KITCHEN, LIGHT_TYPE, World
from tests.rows import each_row

OAUTH2 = {
    "authorize_url": "https://cloud.example/authorize",
    "token_url": "https://cloud.example/token",
    "client_id": "us",
    "client_secret": "hush-hush",
}
OAUTH1 = {
    "request_token_url": "https://cloud.example/request",
    "authorize_url": "https://cloud.example/authorize",
    "access_token_url": "https://cloud.example/access",
    "consumer_key": "us",
    "consumer_secret": "hush-hush",
}
CONNECTOR = {"device_type": "example.smart_light", "oauth2": OAUTH2}


async def apply(services: Services, *connectors: Mapping[str, Any], dry_run: bool = False) -> tuple[int, int, int]:
    """Created, changed, unchanged."""
    report = await services.provisioning.apply({"connectors": list(connectors)}, dry_run=dry_run)
    counts = report.tables["connectors"]
    return counts.created, counts.changed, counts.unchanged


async def test_a_type_gets_its_connector(services: Services, world: World) -> None:
    device = await services.devices.registry.find(KITCHEN)
    with pytest.raises(Conflict):
        services.connectors.catalog.of_type(device.type)
    assert await apply(services, CONNECTOR) == (1, 0, 0)
    assert services.connectors.catalog.of_type(device.type).type is device.type
    assert device.type.record.has_cloud_connector
    assert device.record.cloud_authorization == "UNAUTHORIZED"


async def test_repeating_it_changes_nothing(services: Services, world: World) -> None:
    await apply(services, CONNECTOR)
    assert await apply(services, CONNECTOR) == (0, 0, 1)
    changed = CONNECTOR | {"device_type": LIGHT_TYPE, "pull_minutes": 5}
    assert await apply(services, changed) == (0, 1, 0)
    connector = services.connectors.catalog.find(world.light_type)
    assert connector is not None
    assert connector.terms.pull_minutes == 5


@pytest.mark.both_engines
async def test_a_dry_run_changes_nothing(services: Services, world: World) -> None:
    assert await apply(services, CONNECTOR, dry_run=True) == (1, 0, 0)
    assert services.connectors.catalog.find(world.light_type) is None


async def test_secrets_of_a_connector_are_encrypted(services: Services, world: World) -> None:
    await apply(services, CONNECTOR)
    record = await services.core.database.read(lambda tx: tx.connectors.connector(world.light_type))
    assert record is not None
    assert b"hush" not in record.terms


async def test_a_provisioned_connector_survives_a_restart(opener: ServicesOpener) -> None:
    async with opener() as services:
        organization = {"name": "Acme"}
        type_ = {"unique_name": "example.smart_light", "organization": "Acme"}
        await services.provisioning.apply(
            {"organizations": [organization], "device_types": [type_], "connectors": [CONNECTOR | {"oauth1": None}]}
        )
    async with opener() as services:
        found = await services.device_types.catalog.find("example.smart_light")
        assert services.connectors.catalog.of_type(found).terms.oauth2 is not None


@each_row(
    ("entry", "field", "text"),
    [
        ({}, "device_type", "required"),
        (CONNECTOR | {"device_type": "example.unknown"}, "device_type", "there is no device type"),
        (CONNECTOR | {"unknown": 1}, "unknown", "unknown key"),
        ({"device_type": "example.smart_light"}, "oauth2", "must have oauth2 or oauth1"),
        (CONNECTOR | {"oauth1": OAUTH1}, "oauth2", "must have oauth2 or oauth1"),
        (CONNECTOR | {"oauth2": {**OAUTH2, "client_id": 5}}, "oauth2.client_id", "expected str, got int"),
        (CONNECTOR | {"oauth2": OAUTH2 | {"token_url": "cloud.example/token"}}, "oauth2.token_url", "must be an addr"),
        (CONNECTOR | {"oauth2": OAUTH2 | {"token_url": "https://[/"}}, "oauth2.token_url", "must be an address"),
        (CONNECTOR | {"oauth2": OAUTH2 | {"authentication": "hope"}}, "oauth2.authentication", "invalid enum"),
        (CONNECTOR | {"pull_minutes": 0}, "pull_minutes", "must be 1 to"),
        (CONNECTOR | {"calls_per_minute": 0}, "calls_per_minute", "must be 1 to"),
        (CONNECTOR | {"calls_per_day": 10**10}, "calls_per_day", "must be 1 to"),
        (CONNECTOR | {"plugin": "unknown"}, "plugin", "no plug-in 'unknown' is installed"),
        (CONNECTOR | {"parameters": {"fetch": 1}}, "plugin", "generic: ValueError: Expected `array`"),
    ],
)
async def test_entries_that_are_refused(
    services: Services, world: World, entry: Mapping[str, Any], field: str, text: str
) -> None:
    with pytest.raises(ValidationFailed) as raised:
        await apply(services, entry)
    (finding,) = raised.value.findings
    assert finding.field == f"connectors[0].{field}"
    assert finding.messages[0].startswith(text)
    assert services.connectors.catalog.find(world.light_type) is None


async def test_one_type_has_one_connector(services: Services, world: World) -> None:
    with pytest.raises(ValidationFailed, match="Validation"):
        await apply(services, CONNECTOR, CONNECTOR | {"device_type": LIGHT_TYPE})
    assert services.connectors.catalog.find(world.light_type) is None


async def test_a_plug_in_that_was_removed_leaves_its_type_without(services: Services, world: World) -> None:
    await apply(services, CONNECTOR)
    connector = services.connectors.catalog.find(world.light_type)
    assert connector is not None
    record = await services.core.database.read(lambda tx: tx.connectors.connector(world.light_type))
    assert record is not None
    text = services.core.vault.open(record.terms).replace('"generic"', '"removed"')
    changed = type(record)(record.device_type, "removed", services.core.vault.seal(text))
    await services.core.database.write(lambda tx: tx.connectors.put_connector(changed))
    await services.connectors.catalog.reload()
    with pytest.raises(ConnectorUnavailable):
        services.connectors.catalog.of_type(connector.type)


async def test_devices_provisioned_later_need_authorization_too(services: Services, world: World) -> None:
    await apply(services, CONNECTOR)
    later = {"id": "77" * 16, "owner": "ada@example.org", "type": LIGHT_TYPE, "name": "Later"}
    await services.provisioning.apply({"devices": [later]})
    assert (await services.devices.registry.find("77" * 16)).record.cloud_authorization == "UNAUTHORIZED"
