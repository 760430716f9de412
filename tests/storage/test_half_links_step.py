"""Stores of versions that could leave half a link behind (storage/schema/0027_connectors.sql)."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from storage import migrations

pytestmark = pytest.mark.slow


def test_a_link_of_a_device_that_was_never_authorized_is_removed() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        migrations.apply(connection, stop_before="0027_connectors")
        for key, state in ((1, "AUTHORIZED"), (2, "UNAUTHORIZED")):
            columns = {column["name"]: column for column in connection.execute("PRAGMA table_info(device)")}
            values: dict[str, Any] = {name: 0 for name, column in columns.items() if column["notnull"]}
            values |= {"key": key, "id": f"d{key}", "cloud_authorization": state}
            names = ", ".join(values)
            places = ", ".join(f":{name}" for name in values)
            connection.execute(f"INSERT INTO device ({names}) VALUES ({places})", values)  # noqa: S608 - columns
            connection.execute("INSERT INTO connector_link VALUES (?, 1, NULL, x'', 1, 1)", (key,))
        migrations.apply(connection)
        assert [row["device"] for row in connection.execute("SELECT device FROM connector_link")] == [1]
