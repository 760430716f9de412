"""Services whose wall clock moves with trio's clock, and one device.

A test that waits asks for `autojump_clock` itself: pytest-trio looks at the arguments of tests only.
"""

from collections.abc import AsyncIterator

import pytest
from trio.testing import MockClock

from broker.services import Services
from tests.broker.device_management.devices import Fleet, mock_time
from tests.builders import ServicesOpener
from tests.factories import build_world


@pytest.fixture
async def services(opener: ServicesOpener, autojump_clock: MockClock) -> AsyncIterator[Services]:
    async with opener(clock=mock_time()) as opened:
        await build_world(opened.core.database, opened.core.vault)
        yield opened


@pytest.fixture
async def fleet(services: Services) -> Fleet:
    return await Fleet.of(services, 1)
