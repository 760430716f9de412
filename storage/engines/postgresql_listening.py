"""A connection on which PostgreSQL tells that other nodes have stored something, for one thread."""

from contextlib import suppress

import psycopg

from storage.engines.postgresql import CHANNEL
from storage.engines.postgresql_target import Connection, Target, explained


class Listening:
    """A hint may be lost with its connection, so whoever listens also looks by itself."""

    def __init__(self, target: Target, instance: str) -> None:
        """`instance`: the name of this process, whose own commits are left out."""
        self._target = target
        self._instance = instance
        self._connection: Connection | None = None
        self._is_closed = False

    def wait(self, seconds: float) -> bool:
        """Whether somebody has stored something within this number of seconds; True with a new connection. Raises
        StoreError."""
        try:
            with explained(self._target):
                if self._connection is None:
                    self._connection = self._target.connect(name=f"trunkline {self._instance}.listens")
                    self._connection.execute(f"LISTEN {CHANNEL}".encode())
                    if self._is_closed:  # by another thread, before there was a connection
                        self._end()
                    return True
                found = list(self._connection.notifies(timeout=seconds, stop_after=1))
                return any(one.payload != self._instance for one in found)
        except BaseException:  # whatever it is: the next call makes a new connection; raised again
            self._end()
            raise

    def close(self) -> None:
        """From any thread: nothing is waited for any more."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
