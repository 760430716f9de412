"""What tests/builders.py replaces still refuses what the product refuses."""

import pytest

from broker.services import Services


async def test_who_writes_in_a_read_is_told(services: Services) -> None:
    with pytest.raises(AssertionError, match="writes in a read"):
        await services.core.database.read(
            lambda tx: tx.connection.execute("INSERT INTO counter (name, value) VALUES ('a', 1)")
        )
    row = await services.core.database.read(
        lambda tx: tx.connection.execute("SELECT count(*) AS n FROM counter WHERE name = 'a'").one()
    )
    assert row is not None
    assert row["n"] == 0
