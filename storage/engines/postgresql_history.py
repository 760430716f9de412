"""Whether the server still has what this process has stored.

A failover to an asynchronous standby, or a server that lost its disk, takes back the latest commits, which it had told.
The memory of a daemon (positions, counters, snapshots, caches) is then of another history. The log of the server
is one sequence, so when the latest commit of this process is there, all before it are. Each new connection looks for it
before anything else. Before the first commit of a daemon that is its lease, which each transaction requires.
"""

from dataclasses import dataclass, field
from threading import Lock
from typing import Final

import structlog

from storage.engines.postgresql_schema import IS_COPY, jump, timeline_of
from storage.engines.postgresql_target import Connection, Target
from storage.sql import StoreAwayError, StoreForkedError

#: `latest` is among them, or a later one of the same connection: old numbers are deleted.
_FOUND: Final = "SELECT max(number), (SELECT last_value FROM log) FROM batch WHERE node = %s"
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ServerHistory:
    """The history of the server, as all connections of a process know it."""

    #: The name of the connection and the number of the commit that was told last, and the highest position by then.
    latest: tuple[str, int, int] | None = None
    #: Which of the histories that begin as this one the server is in: each failover begins another one.
    timeline: int = 0
    #: Why nothing is read or written any more.
    forked: str | None = None
    _lock: Lock = field(default_factory=Lock)

    def note(self, node: str, number: int, head: int | None) -> None:
        """The server has told this commit."""
        self.latest = node, number, head or 0

    def check(self, connection: Connection, target: Target) -> None:
        """Look at the server of a new connection.

        Raises:
            StoreAwayError: it takes no writes, or its history ended when another server took over.
            StoreForkedError: it lacks commits that were told.
        """
        latest = self.latest
        if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            raise StoreAwayError(f"{target}: {IS_COPY}")
        timeline = timeline_of(connection)
        with self._lock:
            if timeline < self.timeline:
                raise StoreAwayError(
                    f"{target}: the server lacks what was stored since another one took over (timeline {timeline}, not"
                    f" {self.timeline}): make it the copy of that one"
                )
            if latest is not None:
                self._look_for(latest, connection, target)
            if self.timeline < timeline:
                if self.timeline:
                    _log.warning("database_failed_over", timeline=timeline, former=self.timeline)
                    jump(connection, timeline)
                self.timeline = timeline

    def _look_for(self, latest: tuple[str, int, int], connection: Connection, target: Target) -> None:
        node, number, head = latest
        row = connection.execute(_FOUND, [node]).fetchone() or (None, 0)
        if row[0] is not None and row[0] >= number:
            return
        jump(connection, timeline_of(connection), at_least=head)  # clients have seen those positions
        self.forked = (
            f"{target}: the server has lost what it had stored: {number - (row[0] or 0)} commits and"
            f" {max(head - row[1], 0)} positions of messages, as at a failover to an asynchronous standby. This daemon"
            " ends, because it knows of them; started again, it reads what is left"
        )
        raise StoreForkedError(self.forked)
