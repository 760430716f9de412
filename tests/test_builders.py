"""What tests/builders.py replaces still refuses what the product refuses."""

import pytest

from broker.services import Services
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.fakes import BreakableEngine, HeldRunner


async def _write_in_a_read(services: Services) -> None:
    with pytest.raises(AssertionError, match="writes in a read"):
        await services.core.database.read(
            lambda tx: tx.connection.execute("INSERT INTO counter (name, value) VALUES ('a', 1)")
        )
    assert await _rows(services) == 0


async def _rows(services: Services) -> int:
    row = await services.core.database.read(
        lambda tx: tx.connection.execute("SELECT count(*) AS n FROM counter WHERE name = 'a'").one()
    )
    assert row is not None
    return int(row["n"])


async def test_who_writes_in_a_read_is_told(services: Services) -> None:
    await _write_in_a_read(services)


async def test_a_store_that_is_held_and_broken_refuses_the_same(opener: ServicesOpener, engine: SqliteEngine) -> None:
    disk = BreakableEngine(engine)
    async with opener(engine=disk, run_sync=HeldRunner()) as services:
        await _write_in_a_read(services)
        disk.error = StoreError("disk full")
        with pytest.raises(StoreError, match="disk full"):
            await services.core.database.write(
                lambda tx: tx.connection.execute("INSERT INTO counter (name, value) VALUES ('a', 1)")
            )
        disk.error = None
        assert await _rows(services) == 0
