"""Starting and stopping: what a run leaves behind is what the next one begins with."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from broker.clock import Clock, system_now_ms
from storage.engines.sqlite import SqliteConnection, SqliteEngine
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.factories import NOW_MS, build_world
from tests.tickets import at

T = TypeVar("T")


async def test_messages_keep_their_mids_across_a_restart_and_positions_go_on(opener: ServicesOpener) -> None:
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        kitchen = await services.devices.registry.get(world.kitchen)
        positions = [at(services.messages.ingest.submit(kitchen, b'{"state":true}')) for _ in range(3)]
        services.messages.ingest.submit(kitchen, b"{}")  # leaves no message, but takes a position
        await services.messages.ingest.wait_committed()
        mids = [services.messages.ingest.mid(position) for position in positions]
    async with opener() as services:
        found = [await services.messages.history.by_mid(mid) for mid in mids]
        assert [message.position for message, _ in filter(None, found)] == positions
        kitchen = await services.devices.registry.get(world.kitchen)
        assert services.messages.ingest.submit(kitchen, b'{"state":true}') == 5


async def test_what_was_submitted_before_the_end_is_stored(opener: ServicesOpener) -> None:
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        position = services.messages.ingest.submit(
            await services.devices.registry.get(world.kitchen), b'{"state":true}', 3
        )
    async with opener() as services:
        row = await services.core.database.read(lambda tx: tx.messages.message(at(position)))
        assert row is not None
        assert row.ts == 3


async def test_what_was_submitted_before_a_crash_of_the_rest_is_stored(opener: ServicesOpener) -> None:
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with opener() as services:
            world = await build_world(services.core.database, services.core.vault)
            services.messages.ingest.submit(await services.devices.registry.get(world.kitchen), b'{"state":true}', 3)
            raise ZeroDivisionError
    async with opener() as services:
        last = await services.core.database.read(lambda tx: tx.message_searches.last_ts("message", [world.kitchen]))
        assert last == {world.kitchen: 3}


@pytest.mark.both_engines
async def test_what_was_submitted_before_everything_is_cancelled_is_stored(opener: ServicesOpener) -> None:
    with trio.CancelScope() as scope:
        async with opener() as services:
            world = await build_world(services.core.database, services.core.vault)
            services.messages.ingest.submit(await services.devices.registry.get(world.kitchen), b'{"state":true}', 3)
            scope.cancel()
            await trio.sleep_forever()
    async with opener() as services:
        last = await services.core.database.read(lambda tx: tx.message_searches.last_ts("message", [world.kitchen]))
        assert last == {world.kitchen: 3}


async def test_workers_save_their_state_before_the_store_is_closed_when_everything_is_cancelled(
    opener: ServicesOpener,
) -> None:
    with trio.CancelScope() as scope:
        async with opener() as services:
            world = await build_world(services.core.database, services.core.vault)
            services.devices.presence.touch(world.kitchen)
            scope.cancel()
            await trio.sleep_forever()
    async with opener() as services:
        assert (await services.devices.presence.of(world.kitchen)).last_seen_on == NOW_MS


@pytest.mark.sqlite("the file has no folder; tests/protocols/operation/test_postgresql_store.py has such databases")
async def test_a_store_that_cannot_be_opened_is_the_callers_to_handle(opener: ServicesOpener, tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        async with opener(engine=SqliteEngine(tmp_path / "none" / "store")):
            pytest.fail("nothing to open")


@pytest.mark.both_engines
async def test_a_start_that_is_cancelled_closes_the_store(
    opener: ServicesOpener, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[SqliteConnection] = []

    def open_(*, read_only: bool) -> SqliteConnection:
        opened.append(type(engine).open(engine, read_only=read_only))
        return opened[-1]

    async def run_and_cancel(sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> T:
        await trio.lowlevel.checkpoint()
        result = sync_fn()
        if opened:
            scope.cancel()
        return result

    monkeypatch.setattr(engine, "open", open_)
    with trio.CancelScope() as scope:
        async with opener(run_sync=run_and_cancel):
            pytest.fail("it was cancelled")
    assert opened
    for connection in opened:
        with pytest.raises(StoreError, match="closed"):
            connection.execute("SELECT 1")


def test_the_clock_is_the_machines_unless_told_otherwise() -> None:
    assert Clock().now_ms is system_now_ms
    assert system_now_ms() > NOW_MS
