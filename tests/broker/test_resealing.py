"""Resealing: every sealed column of the schema, and nothing else (reference 27.5)."""

from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from broker.resealing import reseal
from broker.secrets import Vault
from storage.engines.port import EngineConnection, StoreEngine
from storage.engines.sqlite import SqliteEngine
from storage.sealed import SEALED_COLUMNS, SealedColumn, SealedStore
from storage.sql import StoreConnection
from tests.stores import lift_references, make_store, schema_in_memory

#: Columns of bytes that hold no sealed secret: hashes, marks, certificates, files, numbers, the key of message ids.
NOT_SEALED = {
    ("mqtt_delivery", "payload"),  # messages of devices, as in the log
    ("mqtt_delivery", "properties"),
    ("mqtt_delivery", "topic"),
    ("mqtt_retained", "payload"),
    ("mqtt_retained", "properties"),
    ("mqtt_retained", "topic"),
    ("mqtt_subscription", "filter"),
    ("mqtt_will", "payload"),
    ("mqtt_will", "properties"),
    ("mqtt_will", "topic"),
    ("edge", "token_hash"),
    ("edge_batch", "mids"),  # of messages at other stores
    ("*", "hash"),
    ("*", "code_hash"),
    ("*", "certificate"),
    ("board", "link"),  # a hash
    ("approved_list_upload", "content"),
    ("connector_link", "account"),
    ("device_share", "code_hash"),
    ("external_sign_in", "browser"),
    ("fact", "content"),  # what the nodes of a store tell each other: keys, hashes and what listeners read
    ("fact", "value"),
    ("file_chunk", "content"),  # of firmware images and archives; an archive has no secret
    ("password_reset", "password"),
    ("refresh_token", "salt"),
    ("registration", "certificate_hash"),
    ("registration", "nonce_hash"),
    ("secret", "value"),
    ("rollup", "max"),  # numbers of two types
    ("rollup", "min"),
    ("rollup", "sum"),
    ("session", "password"),
    ("store_copy", "digest"),
    ("store_copy", "last_key"),  # how far a copy is: a primary key, which is never sealed
    ("token", "session"),  # the hash that is the session's key
    ("trial_invitation", "code_hash"),
    ("upgrade_token", "token"),
}

OLD, NEW = Vault.new_key(), Vault.new_key()


@pytest.fixture
def store(engine: StoreEngine) -> Iterator[EngineConnection]:
    engine.migrate()
    with closing(engine.open(read_only=False)) as connection:
        yield connection


@cache
def columns() -> list[tuple[str, str, str, int]]:
    """Table, column, type, and the place in the primary key, of each column of a store, in the words of SQLite."""
    with schema_in_memory() as db:
        sql = "SELECT t.name, c.name, c.type, c.pk FROM sqlite_master AS t, pragma_table_info(t.name) AS c"
        return [tuple(row) for row in db.execute(f"{sql} WHERE t.type = 'table' ORDER BY t.name, c.cid")]


def put_secrets(store: EngineConnection, column: SealedColumn, count: int, key: bytes = OLD) -> list[str]:
    """Rows of the column's table with a sealed secret each; whatever else the table needs is made up."""
    secrets = [f"{column} {number}" for number in range(count)]
    described = [one for one in columns() if one[0] == column.table]
    lift_references(store)
    store.begin(write=True)
    for number, secret in enumerate(secrets):
        own = number + 1_000 * SEALED_COLUMNS.index(column)  # a table may have several such columns
        made_up = {"INTEGER": own + 1, "TEXT": str(own), "BLOB": str(own).encode()}
        values = {name: made_up[type_] for _, name, type_, _ in described}
        values |= {other.column: None for other in SEALED_COLUMNS if other.table == column.table}
        values[column.column] = Vault(key).seal(secret)
        marks = ", ".join(f":{name}" for name in values)
        store.execute(f"INSERT INTO {column.table} ({', '.join(values)}) VALUES ({marks})", values)  # noqa: S608
    store.commit()
    return secrets


def opened(store: StoreConnection, column: SealedColumn, vault: Vault) -> list[str]:
    return [vault.open(sealed) for _, sealed in SealedStore(store, column).after(None, limit=1000)]


def test_each_column_of_bytes_is_known_to_be_sealed_or_not() -> None:
    """Whoever adds a column of bytes decides here. A sealed one that is not in SEALED_COLUMNS would be lost."""
    sealed = {(column.table, column.column) for column in SEALED_COLUMNS}
    found = {(table, name) for table, name, type_, _ in columns() if type_ in {"BLOB", ""}}
    undecided = {(t, n) for t, n in found - sealed if (t, n) not in NOT_SEALED and ("*", n) not in NOT_SEALED}
    assert undecided == set()
    assert sealed <= found


@pytest.mark.parametrize("column", SEALED_COLUMNS, ids=str)
def test_the_key_of_a_sealed_column_is_the_primary_key(column: SealedColumn) -> None:
    assert [name for table, name, _, pk in columns() if table == column.table and pk] == [column.key]


@pytest.mark.parametrize("column", SEALED_COLUMNS, ids=str)
def test_every_secret_of_a_column_opens_with_the_new_key_alone(store: EngineConnection, column: SealedColumn) -> None:
    secrets = put_secrets(store, column, 250)  # more than two transactions
    done = reseal(store, Vault(NEW, OLD))
    assert (done.secrets, done.unreadable.total()) == (250, 0)
    assert sorted(opened(store, column, Vault(NEW))) == sorted(secrets)


def test_a_second_run_writes_nothing(store: EngineConnection) -> None:
    column = SEALED_COLUMNS[0]
    put_secrets(store, column, 3)
    reseal(store, Vault(NEW, OLD))
    before = SealedStore(store, column).after(None, limit=9)
    reseal(store, Vault(NEW, OLD))
    assert SealedStore(store, column).after(None, limit=9) == before


@pytest.mark.both_engines
def test_a_secret_of_an_unknown_key_is_counted_and_kept(store: EngineConnection) -> None:
    column, strange = SEALED_COLUMNS[0], Vault.new_key()
    (secret,) = put_secrets(store, column, 1, strange)
    done = reseal(store, Vault(NEW, OLD))
    assert (done.secrets, dict(done.unreadable)) == (1, {str(column): 1})
    assert opened(store, column, Vault(strange)) == [secret]


@pytest.mark.sqlite("it looks into the bytes of the file")
def test_nothing_sealed_with_the_old_key_is_left_in_the_file(tmp_path: Path) -> None:
    """The connection overwrites what it replaces; closing it writes the pages into the store."""
    column, path = SEALED_COLUMNS[0], tmp_path / "store.sqlite"
    make_store(path)
    with closing(SqliteEngine(path).open(read_only=False)) as store:
        put_secrets(store, column, 40)
        old = [sealed for _, sealed in SealedStore(store, column).after(None, limit=40)]
    assert all(sealed in path.read_bytes() for sealed in old)
    with closing(SqliteEngine(path).open(read_only=False)) as store:
        reseal(store, Vault(NEW, OLD))
    left = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert [sealed for sealed in old if sealed in left] == []
