"""The replacements in tests/builders.py and tests/stores.py still refuse what the product refuses."""

from contextlib import closing
from pathlib import Path

import pytest

from broker.services import Services
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.fakes import BreakableEngine, HeldRunner
from tests.stores import KeptStore, MigratedEngine


async def _write_in_a_read(services: Services) -> None:
    with pytest.raises((AssertionError, StoreError), match=r"writes in a read|read-only transaction"):
        await services.core.database.read(
            lambda tx: tx.connection.execute("INSERT INTO counter (name, value) VALUES ('b', 1)")
        )


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


_ROWS = "SELECT count(*) AS n FROM counter"


@pytest.mark.sqlite("the file that tests keep")
def test_a_kept_connection_begins_each_store_anew(tmp_path: Path) -> None:
    with closing(KeptStore(tmp_path)) as kept:
        first = MigratedEngine(tmp_path / "first", kept).open_on_loop()
        before = first.execute(_ROWS).one()
        first.execute("INSERT INTO counter (name, value) VALUES ('left', 1)")
        first.begin(write=True)
        first.execute("INSERT INTO counter (name, value) VALUES ('never committed', 1)")
        first.close()
        assert kept.is_free()
        second = MigratedEngine(tmp_path / "second", kept).open_on_loop()
        assert second.driver is first.driver
        assert second.execute(_ROWS).one() == before
        assert not kept.is_free()


@pytest.mark.sqlite("the file that tests keep")
def test_a_store_that_threads_have_used_is_kept_for_nobody(tmp_path: Path) -> None:
    with closing(KeptStore(tmp_path)) as kept:
        engine = MigratedEngine(tmp_path / "store", kept)
        engine.open_on_loop().close()
        engine.migrate()
        with closing(engine.open(read_only=True)) as reader:
            mode = reader.execute("PRAGMA journal_mode").one()
        assert mode is not None
        assert mode["journal_mode"] == "wal"
        assert not kept.is_free()
