"""The delivery log of a subscription with many notifications."""

import pytest

from storage.deliveries import DELIVERED, FAILED, PENDING
from storage.engines.sqlite import SqliteEngine
from storage.transaction import Transaction


@pytest.mark.parametrize(("status", "keys"), [(None, 300), (DELIVERED, 297), (FAILED, 2), (PENDING, 1)])
@pytest.mark.sqlite("looks at plans of SQLite")
def test_a_page_of_one_status_reads_its_notifications_only(engine: SqliteEngine, status: str | None, keys: int) -> None:
    """Few notifications have it: to search half a million took 0.5 s."""
    engine.migrate()
    connection = engine.open(read_only=False)
    tx = Transaction(connection)
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600)"
        " INSERT INTO notification SELECT i, 7 + i % 2, 'DELIVERED', i, i, i, '[1]', '[]', 1, NULL, NULL FROM n"
    )
    connection.execute("UPDATE notification SET status = 'FAILED' WHERE key IN (100, 200, 301)")
    connection.execute("UPDATE notification SET status = 'PENDING', next_on = 5 WHERE key = 300")
    statements: list[str] = []
    connection.driver.set_trace_callback(statements.append)
    found, number = tx.deliveries.page(7, status, offset=1, limit=10)
    connection.driver.set_trace_callback(None)
    assert number == keys
    wanted = [one for one in range(600, 0, -2) if status is None or _status(one) == status]
    assert [one.key for one in found] == wanted[1:11]
    plans = [
        str(row["detail"])
        for statement in statements
        if "SELECT" in statement
        for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")
    ]
    connection.close()
    assert plans
    if status in {FAILED, PENDING}:
        index = {FAILED: "notification_failed", PENDING: "notification_pending"}[status]
        assert all(index in plan for plan in plans), plans
    else:
        assert all("INDEX notification_" in plan for plan in plans), plans


def _status(key: int) -> str:
    return FAILED if key in {100, 200} else PENDING if key == 300 else DELIVERED
