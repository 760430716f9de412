"""The projector: every row counts once, whatever happens to the write that saves its projection."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.devices.registry import Device
from broker.messages import projections
from broker.messages.intervals import DAY_MS, HOUR_MS
from broker.services import Services
from storage.database import Transaction
from storage.engines.sqlite import SqliteEngine
from storage.keys import Milliseconds
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.factories import NOW_MS, build_world
from tests.fakes import BreakableEngine, HeldRunner


@pytest.fixture
def runner() -> HeldRunner:
    return HeldRunner()


@pytest.fixture
async def held(opener: ServicesOpener, runner: HeldRunner) -> AsyncIterator[Services]:
    """Services whose reads and commits wait for the test."""
    async with opener(run_sync=runner) as services:
        await build_world(services.core.database, services.core.vault)
        yield services


async def send(services: Services, device: Device, *values: int) -> None:
    for value in values:
        services.messages.ingest.submit(device, b'{"intensity":%d}' % value, NOW_MS - HOUR_MS)
    await services.messages.ingest.wait_committed()


async def count_and_sum(services: Services, device: Device) -> tuple[int, float]:
    found = await services.messages.analytics.aggregates(
        device, "intensity", start_ms=Milliseconds(NOW_MS - DAY_MS), end_ms=NOW_MS
    )
    assert found.aggregate is not None
    return found.aggregate.count, found.aggregate.sum


async def kitchen_of(services: Services) -> Device:
    key = await services.core.database.read(lambda tx: tx.devices.by_id("11" * 16))
    assert key is not None
    return await services.devices.registry.get(key.key)


async def test_a_flush_that_was_cancelled_before_its_commit_counts_once(held: Services, runner: HeldRunner) -> None:
    kitchen = await kitchen_of(held)
    await send(held, kitchen, 1, 2, 3)
    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.messages.projector.flush)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    runner.commits.set()
    await held.core.database.write(lambda _tx: None)  # what the flush wrote is durable now
    await held.messages.projector.flush()
    assert await count_and_sum(held, kitchen) == (3, 6)
    await send(held, kitchen, 4)
    await held.messages.projector.flush()
    assert await count_and_sum(held, kitchen) == (4, 10)


async def test_two_flushes_at_once_count_once(held: Services, runner: HeldRunner) -> None:
    kitchen = await kitchen_of(held)
    await send(held, kitchen, 1, 2, 3)
    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.messages.projector.flush)
        nursery.start_soon(held.messages.projector.flush)
        await wait_all_tasks_blocked()
        runner.commits.set()
    assert await count_and_sum(held, kitchen) == (3, 6)
    assert held.messages.projector.statistics().held_rows == 0


async def test_a_flush_whose_commit_failed_is_repeated_by_the_next(
    opener: ServicesOpener, engine: SqliteEngine
) -> None:
    breakable = BreakableEngine(engine)
    async with opener(engine=breakable) as services:
        await build_world(services.core.database, services.core.vault)
        kitchen = await kitchen_of(services)
        await send(services, kitchen, 1, 2)
        breakable.error = StoreError("the disk is full")
        with pytest.raises(StoreError, match="disk is full"):
            await services.messages.projector.flush()
        breakable.error = None
        assert await count_and_sum(services, kitchen) == (2, 3)
        await send(services, kitchen, 3)
        await services.messages.projector.flush()
        assert await count_and_sum(services, kitchen) == (3, 6)
        assert services.messages.projector.statistics().held_rows == 0


@pytest.mark.parametrize("follows", [False, True], ids=["reading the log", "following"])
async def test_a_flush_leaves_what_is_stored_meanwhile(held: Services, runner: HeldRunner, *, follows: bool) -> None:
    """Otherwise a flush would go on in steps of a few rows for as long as devices send."""
    kitchen = await kitchen_of(held)
    if follows:
        await held.messages.projector.flush()
    await send(held, kitchen, 1, 2, 3)
    durable = held.messages.ingest.submit(kitchen, b'{"intensity":4}')
    await held.messages.ingest.wait_committed()
    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.core.database.write, lambda _tx: None)
        await wait_all_tasks_blocked()
        nursery.start_soon(held.messages.projector.flush)
        await wait_all_tasks_blocked()
        for value in (5, 6):  # they commit together with what the flush writes
            held.messages.ingest.submit(kitchen, b'{"intensity":%d}' % value)
        runner.commits.set()
    assert held.messages.projector.statistics().position == durable
    assert held.messages.projector.statistics().held_rows == 2
    await held.messages.projector.flush()
    assert held.messages.projector.statistics().held_rows == 0


@pytest.mark.parametrize(("few", "steps"), [(1, [8]), (0, [3, 3, 2])], ids=["few devices", "many"])
async def test_a_step_takes_more_rows_when_they_are_of_few_devices(
    services: Services, kitchen: Device, monkeypatch: pytest.MonkeyPatch, few: int, steps: list[int]
) -> None:
    """The number of devices decides how much a step writes, and all messages wait for that write."""
    monkeypatch.setattr(projections, "_STEP_ROWS", 3)
    monkeypatch.setattr(projections, "_FEW_DEVICES", few)
    taken: list[int] = []

    class Counting:
        def project(self, tx: Transaction, rows: projections.Decoded) -> projections.SaveProjection:  # noqa: ARG002
            taken.append(len(rows))
            return lambda _tx: None

        def forget(self) -> None: ...

    projector = projections.Projector(services.core.database, services.core.router, [Counting()])
    await projector.flush()
    await send(services, kitchen, *range(8))
    await projector.flush()
    assert taken == steps


async def test_a_stop_does_not_wait_for_rows_that_can_be_projected_later(
    opener: ServicesOpener, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """Each step takes half a second here; a hundred of them are left when the daemon stops."""

    class Slow:
        def project(self, tx: Transaction, rows: projections.Decoded) -> projections.SaveProjection:  # noqa: ARG002
            mock_clock.jump(0.5)
            return lambda _tx: None

        def forget(self) -> None: ...

    monkeypatch.setattr(projections, "_STEP_ROWS", 10)
    monkeypatch.setattr(projections, "_STEP_ROWS_OF_FEW", 10)
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        kitchen = await kitchen_of(services)
        await send(services, kitchen, *range(1_000))
        projector = services.messages.projector
        monkeypatch.setattr(projector, "_projections", (*projector._projections, Slow()))
        stopping_at = trio.current_time()
    assert trio.current_time() - stopping_at <= 3
    assert 0 < projector.position < 100
    async with opener() as services:
        kitchen = await kitchen_of(services)
        assert await count_and_sum(services, kitchen) == (1_000, 499_500)
