"""Deleting works on a full disk: here the store may not grow, which SQLite answers as it answers a full disk."""

from pathlib import Path

import pytest
import trio

from storage.ballast import Ballast, making_room
from storage.database import Database
from storage.engines.port import EngineConnection
from storage.engines.sqlite import SqliteConnection, SqliteEngine
from storage.sql import StoreFullError
from storage.transaction import Transaction
from tests.stores import MigratedEngine
from tests.told import NOTED, hear

ROOM_PAGES = 12


class SmallEngine:
    """A store with a bound of its pages."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._writer: SqliteConnection | None = None

    def migrate(self) -> None:
        self._engine.migrate()

    def open(self, *, read_only: bool) -> EngineConnection:
        connection = self._engine.open(read_only=read_only)
        if not read_only:
            self._writer = connection
            self.limit(0)
        return connection

    def limit(self, more: int) -> None:
        assert self._writer is not None
        pages = self._writer.driver.execute("PRAGMA page_count").fetchone()[0]
        self._writer.driver.execute(f"PRAGMA max_page_count = {pages + more}")


class PagesInReserve(Ballast):
    """Its room are pages of the store."""

    def __init__(self, engine: SmallEngine) -> None:
        super().__init__(Path("unused"))
        self._engine = engine
        self.given_up = 0

    def take(self) -> bool:
        return True

    def give_up(self) -> None:
        self.given_up += 1
        self._engine.limit(ROOM_PAGES)


def fill(tx: Transaction) -> None:
    tx.connection.execute("CREATE TABLE filler AS SELECT hex(randomblob(100000)) AS text")


def deletes(tx: Transaction) -> str:
    """It needs pages before it gives any back."""
    tx.connection.execute("CREATE TABLE deleted AS SELECT hex(randomblob(10000)) AS text")
    tx.tell(NOTED, "deleted")
    return "deleted"


@pytest.fixture
def engine_of_few_pages(tmp_path: Path) -> SmallEngine:
    return SmallEngine(MigratedEngine(tmp_path / "store.sqlite"))


@pytest.mark.sqlite("the ballast is on the disk of the file")
async def test_what_deletes_is_written_while_nothing_else_can_be(engine_of_few_pages: SmallEngine) -> None:
    ballast = PagesInReserve(engine_of_few_pages)
    database = Database(engine_of_few_pages, ballast=ballast)
    told = hear(database)
    await database.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(database.commit_forever)
        with pytest.raises(StoreFullError):
            await database.write(fill)
        assert ballast.given_up == 0

        async def filling() -> None:
            with pytest.raises(StoreFullError):
                await database.write(fill)

        async with trio.open_nursery() as both:  # in one group, and the other one stays refused
            both.start_soon(filling)
            with making_room():
                assert await database.write(deletes) == "deleted"
        assert (ballast.given_up, told) == (1, ["deleted"])
        tables = await database.read(
            lambda tx: {row["name"] for row in tx.connection.execute("SELECT name FROM sqlite_master")}
        )
        assert "deleted" in tables
        assert "filler" not in tables
        nursery.cancel_scope.cancel()
    await database.close()


def test_the_file_takes_room_and_gives_it_up(tmp_path: Path) -> None:
    file = tmp_path / "ballast"
    ballast = Ballast(file, size=1024 * 1024)
    assert ballast.take() is True
    assert file.stat().st_blocks * 512 >= 1024 * 1024
    assert file.stat().st_mode & 0o777 == 0o600
    ballast.give_up()
    assert file.stat().st_blocks == 0
    assert Ballast(tmp_path / "missing" / "ballast").take() is False
