"""The lights of `build_world`, as devices."""

import pytest

from broker.devices.registry import Device
from broker.services import Services
from tests.factories import World


@pytest.fixture
async def kitchen(services: Services, world: World) -> Device:
    return await services.devices.registry.get(world.kitchen)


@pytest.fixture
async def hall(services: Services, world: World) -> Device:
    return await services.devices.registry.get(world.hall)
