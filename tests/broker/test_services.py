"""Starting and stopping: what a run leaves behind is what the next one begins with."""

import pytest
import trio

from broker.clock import Clock, system_now_ms
from broker.secrets import Vault
from broker.services import open_services
from config.settings import Settings
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError
from tests.conftest import OpenServices
from tests.factories import NOW_MS, build_world
from tests.fakes import run_inline


async def test_messages_keep_their_mids_across_a_restart_and_positions_go_on(open_again: OpenServices) -> None:
    async with open_again() as services:
        world = await build_world(services.core.database, services.core.vault)
        kitchen = await services.devices.registry.get(world.kitchen)
        positions = [services.messages.ingest.submit(kitchen, b'{"state":true}') for _ in range(3)]
        services.messages.ingest.submit(kitchen, b"{}")  # leaves no message, but takes a position
        await services.messages.ingest.wait_committed()
        mids = [services.messages.ingest.mid(position) for position in positions]
    async with open_again() as services:
        found = [await services.messages.history.by_mid(mid) for mid in mids]
        assert [message.position for message, _ in filter(None, found)] == positions
        kitchen = await services.devices.registry.get(world.kitchen)
        assert services.messages.ingest.submit(kitchen, b'{"state":true}') == 5


async def test_what_was_submitted_before_the_end_is_stored(open_again: OpenServices) -> None:
    async with open_again() as services:
        world = await build_world(services.core.database, services.core.vault)
        position = services.messages.ingest.submit(
            await services.devices.registry.get(world.kitchen), b'{"state":true}', 3
        )
    async with open_again() as services:
        row = await services.core.database.read(lambda tx: tx.messages.message(position))
        assert row is not None
        assert row.ts == 3


async def test_what_was_submitted_before_a_crash_of_the_rest_is_stored(open_again: OpenServices) -> None:
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with open_again() as services:
            world = await build_world(services.core.database, services.core.vault)
            services.messages.ingest.submit(await services.devices.registry.get(world.kitchen), b'{"state":true}', 3)
            raise ZeroDivisionError
    async with open_again() as services:
        last = await services.core.database.read(lambda tx: tx.messages.last_ts("message", [world.kitchen]))
        assert last == {world.kitchen: 3}


async def test_what_was_submitted_before_everything_is_cancelled_is_stored(open_again: OpenServices) -> None:
    with trio.CancelScope() as scope:
        async with open_again() as services:
            world = await build_world(services.core.database, services.core.vault)
            services.messages.ingest.submit(await services.devices.registry.get(world.kitchen), b'{"state":true}', 3)
            scope.cancel()
            await trio.sleep_forever()
    async with open_again() as services:
        last = await services.core.database.read(lambda tx: tx.messages.last_ts("message", [world.kitchen]))
        assert last == {world.kitchen: 3}


async def test_a_store_that_cannot_be_opened_is_the_callers_to_handle(settings: Settings) -> None:
    database = Database(SqliteEngine(settings.state_dir / "none" / "store"), run_sync=run_inline)
    with pytest.raises(StoreError):
        async with open_services(settings, database, Vault(Vault.new_key())):
            pytest.fail("nothing to open")


def test_the_clock_is_the_machines_unless_told_otherwise() -> None:
    assert Clock().now_ms is system_now_ms
    assert system_now_ms() > NOW_MS
