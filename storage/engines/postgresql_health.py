"""The state of the server, for `trunkline doctor`. A role without rights sees its own sessions only."""

import msgspec

from storage.engines.postgresql_connection import PostgresqlConnection
from storage.engines.postgresql_rights import Neighbours, neighbours

_SQL = """
SELECT current_setting('server_version') AS version,
  coalesce((SELECT extract(epoch FROM max(now() - xact_start)) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'), 0)::double precision AS longest,
  coalesce((SELECT extract(epoch FROM max(now() - prepared)) FROM pg_prepared_xacts
    WHERE database = current_database()), 0)::double precision AS prepared,
  (SELECT min(slot_name)::text FROM pg_replication_slots WHERE NOT active AND wal_status <> 'reserved') AS slot,
  (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async') AS asynchronous,
  (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) AS synchronous
"""


class ServerHealth(msgspec.Struct, frozen=True):
    version: str
    #: Of the transaction that has been open longest. While it is, rows that were deleted keep their room.
    longest_transaction_seconds: float
    #: Of the oldest transaction that was prepared (PREPARE TRANSACTION) and not ended: it outlives its session.
    prepared_transaction_seconds: float
    #: A replication slot that nobody reads, for which the server keeps more of its log than it would; empty: none.
    idle_slot: str
    asynchronous_standbys: int
    synchronous_standbys: int
    neighbours: Neighbours


def health(rows: PostgresqlConnection) -> ServerHealth:
    """Raises StoreError."""
    row = rows.execute(_SQL).one()
    assert row is not None  # noqa: S101 - a query of constants
    return ServerHealth(
        version=str(row["version"]),
        longest_transaction_seconds=float(row["longest"]),
        prepared_transaction_seconds=float(row["prepared"]),
        idle_slot=str(row["slot"] or ""),
        asynchronous_standbys=int(row["asynchronous"]),
        synchronous_standbys=int(row["synchronous"]),
        neighbours=neighbours(rows.driver),
    )
