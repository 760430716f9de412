"""Device types of a store from before tags had a table of their own."""

import sqlite3
from contextlib import closing

import sqlite_utils

from storage.migrations import migrations

_BEFORE = "0009_device_types"


def test_types_of_an_older_store_keep_their_tags_names_and_times() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        _migrate_and_compare(sqlite_utils.Database(connection))


def _migrate_and_compare(db: sqlite_utils.Database) -> None:
    migrations.apply(db, stop_before=_BEFORE)
    db.table("organization").insert({"key": 1, "id": "o", "name": "Acme", "monthly_messages": 1})
    for key, tags in ((1, '["home","light","home"]'), (2, "[]")):
        db.table("device_type").insert(
            {
                "key": key,
                "id": f"dt{key}",
                "unique_name": f"example.type_{key}",
                "name": f"Type {key}",
                "organization": 1,
                "published": 1,
                "protected": 0,
                "rsp": 0,
                "tags": tags,
                "created_on": 5,
            }
        )
    db.table("manifest").insert_all(
        {"device_type": 1, "version": version, "document": "{}", "approved": approved, "created_on": 10 + version}
        for version, approved in ((1, 1), (2, 1), (3, 0))
    )
    migrations.apply(db)
    assert list(db.query("SELECT tag, device_type FROM device_type_tag ORDER BY tag")) == [
        {"tag": "home", "device_type": 1},
        {"tag": "light", "device_type": 1},
    ]
    kept = "SELECT folded_name, last_updated, owner, vid, in_store, issuer_dn FROM device_type ORDER BY key"
    nothing = {"owner": None, "vid": "0", "in_store": None, "issuer_dn": None}
    assert list(db.query(kept)) == [
        {"folded_name": "type 1", "last_updated": 12, **nothing},
        {"folded_name": "type 2", "last_updated": 0, **nothing},
    ]
