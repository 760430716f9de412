"""A key that does not belong to the store is refused before anything is served (reference 27.5)."""

from pathlib import Path

import pytest
import trio

from broker.secrets import Vault
from broker.services import open_services
from broker.store_key import check_store_key
from config.settings import Settings
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.fakes import on_loop
from tests.stores import MigratedEngine

pytestmark = pytest.mark.slow


async def opens(settings: Settings, engine: SqliteEngine, vault: Vault) -> None:
    async with open_services(settings, Database(engine, worker=on_loop()), vault):
        await trio.lowlevel.checkpoint()


@pytest.fixture
def engine(tmp_path: Path) -> SqliteEngine:
    return MigratedEngine(tmp_path / "store.sqlite")


async def test_an_empty_store_knows_its_key_from_the_first_start_on(settings: Settings, engine: SqliteEngine) -> None:
    key = Vault.new_key()
    await opens(settings, engine, Vault(key))
    await opens(settings, engine, Vault(key))
    with pytest.raises(StoreError, match="do not belong together"):
        await opens(settings, engine, Vault(Vault.new_key()))


async def test_while_a_rotation_is_interrupted_either_key_will_do(settings: Settings, engine: SqliteEngine) -> None:
    old, new = Vault.new_key(), Vault.new_key()
    await opens(settings, engine, Vault(old))
    await opens(settings, engine, Vault(new, old))
    await opens(settings, engine, Vault(old))


@pytest.mark.both_engines
async def test_a_store_of_an_older_version_is_known_by_its_secrets(settings: Settings, engine: SqliteEngine) -> None:
    """It has secrets, and none that says which key it belongs to."""
    key = Vault.new_key()
    database = Database(engine, worker=on_loop())
    async with open_services(settings, database, Vault(key)) as services:
        await services.provisioning.apply(
            {
                "organizations": [{"name": "Acme"}],
                "applications": [{"name": "Panel", "organization": "Acme", "secret": "s3cret"}],
            }
        )
        await database.write(lambda tx: tx.connection.execute("DELETE FROM store_key"))
    with pytest.raises(StoreError, match="do not belong together"):
        await opens(settings, engine, Vault(Vault.new_key()))
    await opens(settings, engine, Vault(key))


async def test_the_key_is_compared_in_one_statement(opener: ServicesOpener, statements: list[str]) -> None:
    """Over PostgreSQL each statement is a trip, at each start."""
    async with opener() as services:
        statements.clear()
        await check_store_key(services.core.database, services.core.vault)
        assert len([one for one in statements if "store_key" in one]) == 1
        assert not [one for one in statements if "second_factor" in one and "store_key" not in one]
