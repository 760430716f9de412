"""Device types of a store from before tags had a table of their own."""

import sqlite3
from contextlib import closing

import pytest

from storage import migrations

pytestmark = pytest.mark.slow


_BEFORE = "0009_device_types"


def test_types_of_an_older_store_keep_their_tags_names_and_times() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _migrate_and_compare(connection)


def _migrate_and_compare(db: sqlite3.Connection) -> None:
    migrations.apply(db, stop_before=_BEFORE)
    db.execute("INSERT INTO organization (key, id, name, monthly_messages) VALUES (1, 'o', 'Acme', 1)")
    db.executemany(
        "INSERT INTO device_type"
        " (key, id, unique_name, name, organization, published, protected, rsp, tags, created_on)"
        " VALUES (:key, 'dt' || :key, 'example.type_' || :key, 'Type ' || :key, 1, 1, 0, 0, :tags, 5)",
        ({"key": 1, "tags": '["home","light","home"]'}, {"key": 2, "tags": "[]"}),
    )
    db.executemany(
        "INSERT INTO manifest (device_type, version, document, approved, created_on) VALUES (1, ?, '{}', ?, ?)",
        ((version, approved, 10 + version) for version, approved in ((1, 1), (2, 1), (3, 0))),
    )
    migrations.apply(db)
    tags = db.execute("SELECT tag, device_type FROM device_type_tag ORDER BY tag")
    assert tags.fetchall() == [("home", 1), ("light", 1)]
    kept = "SELECT folded_name, last_updated, owner, vid, in_store, issuer_dn FROM device_type ORDER BY key"
    assert db.execute(kept).fetchall() == [("type 1", 12, None, "0", None, None), ("type 2", 0, None, "0", None, None)]
