"""Stores from before addresses were compared in one form (storage/schema/0043_folded_addresses.sql)."""

import sqlite3
from contextlib import closing

import pytest

from storage import migrations

pytestmark = pytest.mark.slow


_BEFORE = "0043_folded_addresses"
_USERS = (
    (1, "JÖRG@exämple.org", 10, None),  # the oldest, and nobody proved it
    (2, "jörg@exämple.org", 20, 25),
    (3, "jörg@xn--exmple-cua.org", 30, 31),
    (4, "Ada@example.org", 40, None),
    (5, "ZOË@example.org", 50, None),
    (6, "zoë@example.org", 60, None),
)


def test_of_accounts_with_one_address_the_one_that_proved_it_first_has_it() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrations.apply(connection, stop_before=_BEFORE)
        for key, email, created_on, verified_on in _USERS:
            connection.execute(
                "INSERT INTO user (key, id, email, name, full_name, account_type, created_on, modified_on,"
                " email_verified_on) VALUES (?, ?, ?, ?, '', 'LOCAL', ?, ?, ?)",
                (key, str(key), email, str(key), created_on, created_on, verified_on),
            )
        connection.execute("INSERT INTO invitation VALUES ('GRÜN@example.org', x'01', NULL, NULL, 9)")
        migrations.apply(connection)
        keys = dict(connection.execute("SELECT key, email_key FROM user"))
        assert keys == {
            1: None,
            2: "jörg@xn--exmple-cua.org",
            3: None,
            4: "ada@example.org",
            5: "zoë@example.org",
            6: None,
        }
        assert connection.execute("SELECT email_key FROM invitation").fetchall() == [("grün@example.org",)]
