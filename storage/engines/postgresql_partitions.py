"""The messages in partitions by ranges of positions (storage/schema/0090_messages_in_partitions.postgresql.sql).

A position without a partition cannot be stored. So the partition behind the one of the highest position is there,
too: it is made at each start, and by the connection that writes as soon as rows are in the last one.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from storage.engines.postgresql_connection import PostgresqlConnection

#: Positions of a partition.
SIZE: Final = 10_000_000
#: Positions after which it is tried again, when somebody held a lock.
_TRIED_AGAIN: Final = 100_000
#: Whoever reads or writes messages waits behind a partition that waits to be dropped.
_PATIENCE: Final = "100ms"


class Partitions:
    """The partitions, as one connection that writes knows them."""

    def __init__(self, connection: "PostgresqlConnection") -> None:
        self._connection = connection
        self._enough_for = -1  # up to this position nothing is to be done

    def forget(self) -> None:
        self._enough_for = -1

    def keep_ahead(self, head: int) -> None:
        """Have partitions for the next rows; `head` is about the highest position. Raises StoreError."""
        if head < self._enough_for:
            return
        row = self._connection.execute(
            "SELECT head, message_partitions_from(head) AS behind"
            " FROM (SELECT greatest(last_value, :head) AS head FROM log) AS given",
            {"head": head},
        ).one()
        if row is not None:
            last, head = row["behind"] - SIZE, row["head"]
            self._enough_for = last if last > head else head + _TRIED_AGAIN

    def cover(self, positions: Sequence[int]) -> None:
        """Have partitions for rows that are copied; their positions rise, also from call to call."""
        at = 0
        while at < len(positions):
            row = self._connection.execute(
                "SELECT message_partitions_from(:position) AS behind", {"position": positions[at]}
            ).one()
            at = bisect_left(positions, 0 if row is None else row["behind"], at + 1)

    def full(self) -> list[range]:
        """The positions of each partition that gets no more rows, the oldest first."""
        rows = self._connection.execute(
            "SELECT first, behind FROM message_partitions() WHERE behind <= (SELECT last_value FROM log)"
        )
        return [range(row["first"], row["behind"]) for row in rows]

    def drop(self, part: range) -> None:
        """Raises StoreBusyError: a transaction has read messages and is still open; nobody should wait for its end."""
        row = self._connection.execute(
            "SELECT name FROM message_partitions() WHERE behind = :behind", {"behind": part.stop}
        ).one()
        if row is not None:
            before = self._connection.execute("SELECT current_setting('lock_timeout') AS value").one()
            assert before is not None  # noqa: S101 - a query of constants
            self._connection.command(
                f"SET LOCAL lock_timeout = '{_PATIENCE}'; DROP TABLE IF EXISTS {row['name']};"
                f" SET LOCAL lock_timeout = '{before['value']}'"
            )
