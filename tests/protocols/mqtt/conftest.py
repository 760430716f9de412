"""Services whose store a test can hold or break, and a server on top of them."""

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
import trio

from broker.clock import Clock
from broker.secrets import Vault
from broker.services import Services, open_services
from config.settings import Settings
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError
from tests.factories import World
from tests.fakes import BreakableEngine, FakeClock, HeldRunner
from tests.protocols.mqtt.peers import Server

T = TypeVar("T")


class Runner(HeldRunner):
    """Whose reads can fail, too."""

    def __init__(self) -> None:
        super().__init__()
        self.error: StoreError | None = None

    async def __call__(self, sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> T:
        if limiter is None and self.error is not None:
            raise self.error
        return await super().__call__(sync_fn, limiter=limiter)


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def disk(engine: SqliteEngine) -> BreakableEngine:
    return BreakableEngine(engine)


@pytest.fixture
async def services(
    settings: Settings, disk: BreakableEngine, runner: Runner, fake_clock: FakeClock
) -> AsyncIterator[Services]:
    database = Database(disk, run_sync=runner)
    async with open_services(
        settings, database, Vault(Vault.new_key()), Clock(fake_clock, fake_clock.steady_ms)
    ) as opened:
        yield opened
        runner.commits.set()


@pytest.fixture
async def server(services: Services, world: World) -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        yield Server(services, nursery)
        nursery.cancel_scope.cancel()
