"""The state of the server, for `trunkline doctor`. A role without rights sees its own sessions only."""

import msgspec

from storage.engines.postgresql import PostgresqlConnection

_SQL = """
SELECT current_setting('server_version') AS version,
  coalesce((SELECT extract(epoch FROM max(now() - xact_start)) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'), 0)::double precision AS longest,
  (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async') AS asynchronous,
  (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) AS synchronous
"""


class ServerHealth(msgspec.Struct, frozen=True):
    version: str
    #: Of the transaction that has been open longest. While it is, rows that were deleted keep their room.
    longest_transaction_seconds: float
    asynchronous_standbys: int
    synchronous_standbys: int


def health(rows: PostgresqlConnection) -> ServerHealth:
    """Raises StoreError."""
    row = rows.execute(_SQL).one()
    assert row is not None  # noqa: S101 - a query of constants
    return ServerHealth(str(row["version"]), float(row["longest"]), int(row["asynchronous"]), int(row["synchronous"]))
