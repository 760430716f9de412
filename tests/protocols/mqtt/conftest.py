"""Services whose store a test can block or break, and an MQTT server on top of them."""

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
import trio

from broker.services import Services
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.factories import World
from tests.fakes import BreakableEngine, HeldRunner
from tests.protocols.mqtt.peers import Server

T = TypeVar("T")


class Runner(HeldRunner):
    """An engine whose reads can fail, too."""

    def __init__(self) -> None:
        super().__init__()
        self.error: StoreError | None = None

    async def __call__(self, sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> T:
        if (limiter is None or limiter.total_tokens > 1) and self.error is not None:
            raise self.error
        return await super().__call__(sync_fn, limiter=limiter)


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def disk(engine: SqliteEngine) -> BreakableEngine:
    return BreakableEngine(engine)


@pytest.fixture
async def services(opener: ServicesOpener, disk: BreakableEngine, runner: Runner) -> AsyncIterator[Services]:
    async with opener(engine=disk, run_sync=runner) as opened:
        yield opened
        runner.commits.set()


@pytest.fixture
async def server(services: Services, world: World) -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        yield Server(services, nursery)
        nursery.cancel_scope.cancel()
