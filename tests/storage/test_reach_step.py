"""Stores from before grants limited user tokens (storage/schema/0018_reach_of_user_tokens.sql)."""

import sqlite3
from contextlib import closing

import pytest

from storage import migrations

pytestmark = pytest.mark.slow


_BEFORE = "0018_reach_of_user_tokens"
_OLDER_STORE = (
    "INSERT INTO organization VALUES (1, 'a', 'Acme', 1)",
    (
        "INSERT INTO application VALUES (1, 'a1', 1, 'A', x'', '', '', ''), (2, 'a2', 1, 'B', x'', '', '', ''),"
        " (3, 'a3', 1, 'C', x'', '', '', '')"
    ),
    (
        "INSERT INTO token VALUES (x'01', 1, 1, 1, 2, NULL), (x'02', 1, 1, 1, 2, NULL), (x'03', 1, NULL, 1, 2, NULL),"
        " (x'04', 2, 1, 1, 2, NULL)"
    ),
    "INSERT INTO token_family VALUES (1, 3, 2, 'pkce', 1, 2)",  # its access token is gone, and can be refreshed
    "INSERT INTO access_grant VALUES (1, 2, 7, 1, 0)",  # covers the types of the own organization already
)


def test_tokens_of_an_older_store_count_as_sign_ins() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrations.apply(connection, stop_before=_BEFORE)
        for statement in _OLDER_STORE:
            connection.execute(statement)
        migrations.apply(connection)
        grants = connection.execute(
            "SELECT user, application, device_type, can_read, can_write, can_write_profile FROM access_grant"
            " ORDER BY user, application"
        )
        assert grants.fetchall() == [(1, 1, None, 0, 0, 0), (1, 2, 7, 1, 0, 0), (2, 3, None, 0, 0, 0)]
        managing = connection.execute("SELECT key, manages_organization FROM application ORDER BY key").fetchall()
        assert managing == [(1, 1), (2, 1), (3, 1)]
