"""Delivering notifications (reference 11.3 to 11.5)."""

from collections.abc import AsyncIterator

import pytest
import trio

from broker.services import Services
from broker.subscriptions.port import Outcome
from tests.builders import ServicesOpener
from tests.callbacks import FakeCallbacks, FakeStreams, settled, subscribed
from tests.factories import HALL, KITCHEN, World, build_world


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


async def sent(services: Services, count: int = 1, device: str = KITCHEN) -> list[int]:
    """Messages of a device, and their positions."""
    found = await services.devices.registry.find(device)
    positions = [
        services.messages.ingest.submit(found, b'{"intensity":%d}' % number) for number in range(count)
    ]
    await services.messages.ingest.wait_committed()
    return positions


async def test_a_message_reaches_its_callback(services: Services, world: World, callbacks: FakeCallbacks) -> None:
    subscription = await subscribed(services)
    (position,) = await sent(services)
    await callbacks.wait_received(1)
    (received,) = callbacks.received
    assert received.positions == [position]
    assert received.notification.subscription_id == subscription.id
