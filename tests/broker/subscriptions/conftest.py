"""Services whose callbacks and streams a test holds in its own hands."""

from collections.abc import AsyncIterator

import pytest

from broker.services import Services
from tests.builders import ServicesOpener
from tests.callbacks import FakeCallbacks, FakeStreams
from tests.factories import World, build_world


@pytest.fixture
def callbacks() -> FakeCallbacks:
    return FakeCallbacks()


@pytest.fixture
def streams() -> FakeStreams:
    return FakeStreams()


@pytest.fixture
async def services(opener: ServicesOpener, callbacks: FakeCallbacks, streams: FakeStreams) -> AsyncIterator[Services]:
    async with opener(callbacks=callbacks, streams=streams) as opened:
        yield opened


@pytest.fixture
async def world(services: Services) -> World:
    return await build_world(services.core.database, services.core.vault)
