"""An endpoint on real services, with a clock that the test sets."""

from collections.abc import AsyncIterator

import pytest
import trio

from broker.services import Services
from protocols.coap.echo import AmplificationGuard
from protocols.coap.endpoint import CoapEndpoint
from tests.factories import World
from tests.protocols.coap.peers import Peer


class Time:
    """A clock in seconds that stands still until a test changes `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def endpoint(services: Services, world: World, time: Time) -> AsyncIterator[CoapEndpoint]:
    endpoint = CoapEndpoint(services, guard=AmplificationGuard(b"key"), now=time, chance=lambda: 0.0)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(endpoint.look_up_forever)
        yield endpoint
        nursery.cancel_scope.cancel()


@pytest.fixture
def peer(endpoint: CoapEndpoint) -> Peer:
    return Peer(endpoint)
