"""Fixtures everyone uses: a real store in a temporary folder, and the services on top of it."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from argon2.profiles import CHEAPEST

from broker.clock import Clock
from broker.secrets import Vault
from broker.services import Services, open_services
from config.settings import Limits, Settings
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from tests.factories import NOW_MS, World, build_world
from tests.fakes import FakeClock, run_inline

if TYPE_CHECKING:  # most tests have no use for Selenium
    from tests.browser import Chromium


@pytest.fixture(scope="session", autouse=True)
def cheap_passwords() -> Iterator[None]:
    """Argon2 at its lowest cost. tests/broker/test_secrets.py checks the cost of production in a separate process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker.secrets.ARGON2_COST", CHEAPEST)
        yield


@pytest.fixture
def fake_clock() -> FakeClock:
    return FakeClock(NOW_MS)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, limits=Limits(rate_limits="off", quotas="off"))


@pytest.fixture
def engine(tmp_path: Path) -> SqliteEngine:
    # What a power cut would lose is tested by itself; everywhere else waiting for the disk only costs time.
    return SqliteEngine(tmp_path / "store.sqlite", synchronous="off")


OpenServices = Callable[[], AbstractAsyncContextManager[Services]]


@pytest.fixture
def open_again(settings: Settings, engine: SqliteEngine, fake_clock: FakeClock) -> OpenServices:
    """Opens services on the same file as often as a test likes: every time but the first is a restart."""
    vault = Vault(Vault.new_key())
    clock = Clock(fake_clock, fake_clock.steady_ms)
    return lambda: open_services(settings, Database(engine, run_sync=run_inline), vault, clock)


@pytest.fixture
async def services(settings: Settings, engine: SqliteEngine, fake_clock: FakeClock) -> AsyncIterator[Services]:
    """Services whose clock stands still until the test moves it."""
    database = Database(engine, run_sync=run_inline)
    clock = Clock(fake_clock, fake_clock.steady_ms)
    async with open_services(settings, database, Vault(Vault.new_key()), clock) as opened:
        yield opened


@pytest.fixture
async def world(services: Services) -> World:
    return await build_world(services.core.database, services.core.vault)


@pytest.fixture(scope="session")
def window() -> "Iterator[Chromium]":
    """One Chromium for everybody who needs a real browser; call its `fresh` first."""
    from tests.browser import running_chromium

    with running_chromium() as running:
        yield running
