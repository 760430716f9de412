"""The places of connections among those of several nodes: who is told that a device is connected finds it stored."""

import pytest
import trio
import trio.testing

from broker.devices.registry import Device
from broker.routing.claims import ConnectionClaims
from broker.services import Services
from storage.keys import DeviceKey
from storage.sql import StoreError
from tests.factories import KITCHEN, World


class Link:
    is_exclusive = True

    def __init__(self, device: Device) -> None:
        self.key: DeviceKey = device.key
        self.told: list[str] = []

    def replaced_elsewhere(self) -> None:
        self.told.append("replaced")

    def not_claimed(self) -> None:
        self.told.append("not claimed")


@pytest.fixture
async def kitchen(services: Services, world: World) -> Device:
    return await services.devices.registry.find(KITCHEN)


@pytest.fixture
def claims(services: Services) -> ConnectionClaims:
    return ConnectionClaims(services.core.database, services.core.news, "a")


async def test_it_is_waited_for(services: Services, claims: ConnectionClaims, kitchen: Device) -> None:
    link, seen = Link(kitchen), list[bool]()

    async def wait() -> None:
        await claims.begun(link)
        seen.append(group.ended.is_set())

    claims.begin(link)
    group = services.core.database.open_group
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
    await claims.begun(link)  # at once
    assert (seen, link.told) == ([True], [])
    assert await services.core.database.read(lambda tx: tx.device_connections.connected([kitchen.key])) == {kitchen.key}


async def test_one_that_is_not_stored_is_told_so(services: Services, claims: ConnectionClaims, kitchen: Device) -> None:
    link = Link(kitchen)
    claims.begin(link)
    services.core.database.open_group.refused = "a device has connected to another node"
    with pytest.raises(StoreError, match="a device has connected to another node"):
        await claims.begun(link)
    assert link.told == ["not claimed"]
