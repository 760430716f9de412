"""After a jump of the clock nothing is deleted for being old, until the clock is confirmed (reference 27.7)."""

from contextlib import AbstractAsyncContextManager

import pytest
from structlog.testing import capture_logs

from broker.secrets import Vault
from broker.services import Services, open_services
from config.settings import Limits, Settings, Storage
from protocols.control.server import COMMANDS
from protocols.operation.time_sync import is_clock_synchronized
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.keys import Position
from tests.factories import NOW_MS, build_world
from tests.fakes import FakeClock, on_loop

pytestmark = pytest.mark.slow


DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS


class Machine:
    """A store that keeps messages for 30 days, and a wall clock that can be set apart from the steady clock."""

    def __init__(self, settings: Settings, engine: SqliteEngine) -> None:
        limits = Limits(rate_limits="off", quotas="off")
        self._settings = Settings(state_dir=settings.state_dir, limits=limits, storage=Storage(retention_days=30))
        self._engine = engine
        self._vault = Vault(Vault.new_key())
        self.clock = FakeClock(NOW_MS)
        self.is_synchronized = False

    def set_clock(self, milliseconds: int) -> None:
        self.clock.now += milliseconds

    def running(self) -> AbstractAsyncContextManager[Services]:
        database = Database(self._engine, worker=on_loop())
        return open_services(
            self._settings, database, self._vault, self.clock.clock, is_clock_synchronized=lambda: self.is_synchronized
        )


@pytest.fixture
def machine(settings: Settings, engine: SqliteEngine) -> Machine:
    return Machine(settings, engine)


async def store_one(services: Services) -> None:
    world = await build_world(services.core.database, services.core.vault)
    services.messages.ingest.submit(await services.devices.registry.get(world.kitchen), b'{"state":true}')
    await services.messages.ingest.wait_committed()
    await services.messages.projector.flush()
    await services.core.trusted_time.look()


async def swept(services: Services) -> int:
    """How many messages a sweep leaves."""
    await services.messages.retention.sweep()
    return await services.core.database.read(lambda tx: len(tx.messages.after(Position(0))))


async def test_what_grows_old_while_the_daemon_runs_is_deleted(machine: Machine) -> None:
    async with machine.running() as services:
        await store_one(services)
        machine.clock.advance(31 * DAY_MS)
        assert await swept(services) == 0


async def test_a_stop_right_after_a_jump_does_not_save_the_wrong_time(machine: Machine) -> None:
    async with machine.running() as services:
        await store_one(services)
        machine.set_clock(YEAR_MS)  # and nobody looks at the clock before the stop
    async with machine.running() as services:
        assert await swept(services) == 1
        assert services.core.trusted_time.statistics().jumped_seconds > 300 * 86_400


async def test_a_jump_deletes_nothing_and_is_told_once_an_hour(machine: Machine) -> None:
    async with machine.running() as services:
        await store_one(services)
        machine.set_clock(YEAR_MS)
        assert await swept(services) == 1
        with capture_logs() as logs:
            for _ in range(120):
                await services.core.trusted_time.look()
                machine.clock.advance(60_000)
        assert [one["event"] for one in logs] == ["nothing_is_deleted"] * 2
        assert services.core.life.statistics()["clock"].jumped_seconds == YEAR_MS // 1000  # type: ignore[attr-defined]
        assert await swept(services) == 1


async def test_a_jump_there_and_back_leaves_everything_as_it_was(machine: Machine) -> None:
    async with machine.running() as services:
        await store_one(services)
        machine.set_clock(YEAR_MS)
        await services.core.trusted_time.look()
        machine.set_clock(-YEAR_MS)
        assert await swept(services) == 1
        assert services.core.clock.may_delete()


async def test_a_jump_survives_a_restart(machine: Machine) -> None:
    async with machine.running() as services:
        await store_one(services)
    machine.set_clock(YEAR_MS)
    for _ in range(2):
        async with machine.running() as services:
            await services.core.trusted_time.look()
            assert await swept(services) == 1


async def test_the_operator_confirms_and_the_next_start_remembers(machine: Machine) -> None:
    async with machine.running() as services:
        await store_one(services)
        machine.set_clock(YEAR_MS)
        await services.core.trusted_time.look()
        assert await COMMANDS["retention confirm"](services, {}) == {"jumped_seconds": YEAR_MS // 1000}
    async with machine.running() as services:
        assert await swept(services) == 0
        assert await COMMANDS["retention confirm"](services, {}) == {"jumped_seconds": 0}


async def test_the_operator_does_not_wait_for_the_next_sweep(machine: Machine) -> None:
    async with machine.running() as services:
        await store_one(services)
        machine.set_clock(YEAR_MS)
        await services.core.trusted_time.look()
        woken: list[str] = []
        services.core.trusted_time.on_confirm(lambda: woken.append("here"))
        assert len(services.core.trusted_time._on_confirm) > 3  # retention, deleted devices, the delivery log
        await COMMANDS["retention confirm"](services, {})
        assert woken == ["here"]


async def test_a_clock_that_the_operating_system_keeps_right_is_believed(machine: Machine) -> None:
    machine.is_synchronized = True
    async with machine.running() as services:
        await store_one(services)
        machine.set_clock(YEAR_MS)
        assert await swept(services) == 0


@pytest.mark.parametrize(("days", "left"), [(1, 0), (2, 1)])
async def test_a_daemon_that_did_not_run_for_a_day_or_more(machine: Machine, days: int, left: int) -> None:
    """Old messages are deleted after one day without the daemon; after two the clock may be wrong."""
    async with machine.running() as services:
        await store_one(services)
        machine.clock.advance(29 * DAY_MS + DAY_MS // 2)
        await services.core.trusted_time.look()
    machine.set_clock(days * DAY_MS)
    async with machine.running() as services:
        assert await swept(services) == left


def test_the_kernel_is_asked() -> None:
    assert is_clock_synchronized() in {True, False}
