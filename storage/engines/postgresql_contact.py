"""Whether the server can be reached, and how often a work may try it."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

import msgspec

from storage.sql import StoreUnreachableError

#: A try that takes longer is not repeated at once when the patience is over.
_LONG_SECONDS: Final = 0.5
#: After a try that took so long, the others fail at once for this time.
_TRY_SECONDS: Final = 1.0


class ContactStatistics(msgspec.Struct, frozen=True):
    """Since the start. `waits`: how often a work waited for a new connection."""

    connections_lost: int
    commits_in_doubt: int
    waits: int


class Contact:
    """Whether the server can be reached, as all connections of a store have found.

    While it cannot, each connection tries for the patience. After that one of them tries at a time, and the others fail
    at once, also for a moment after a try that has taken long.
    """

    def __init__(self, patience_seconds: float) -> None:
        self.patience_seconds = patience_seconds
        #: Since when; None: it can.
        self.lost_at: float | None = None
        #: The server takes what is sent and does not answer: nothing is asked through an open connection either.
        self.stands_still = False
        self._error: StoreUnreachableError | None = None  # of the latest try
        self._tried_at = 0.0  # when that ended
        self._took = 0.0  # how long it took
        self._trying = Lock()
        self._counting = Lock()
        self._counts: Counter[str] = Counter()

    @property
    def connect_seconds(self) -> float:
        """How long a try may take. Whoever waits for it has the patience only."""
        return self.patience_seconds / 2

    def lost(self, since: float | None = None) -> None:
        """`since`: the server has not answered since then, by time.monotonic."""
        if self.lost_at is None:
            self.lost_at = time.monotonic() if since is None else since

    def count(self, what: str) -> None:
        """Count one of `ContactStatistics`."""
        with self._counting:
            self._counts[what] += 1

    def statistics(self) -> ContactStatistics:
        return ContactStatistics(**{one: self._counts[one] for one in ContactStatistics.__struct_fields__})

    def found(self) -> None:
        self.lost_at = self._error = None
        self.stands_still = False
        self._took = 0.0

    def failed(self, error: StoreUnreachableError, seconds: float) -> None:
        """A try has failed, which took so long."""
        self.lost()
        self._error, self._tried_at, self._took = error, time.monotonic(), seconds

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Try to connect within the block. Raises StoreUnreachableError: it is not this one's turn."""
        if self._error is None or self.seconds_left() > 0:
            yield
            return
        is_soon = self._took > _LONG_SECONDS and time.monotonic() - self._tried_at < _TRY_SECONDS
        if is_soon or not self._trying.acquire(blocking=False):
            raise type(self._error)(str(self._error)) from self._error
        try:
            yield
        finally:
            self._trying.release()

    def seconds_left(self) -> float:
        """Until the latest beginning of a try that ends within the patience."""
        lost_at = time.monotonic() if self.lost_at is None else self.lost_at
        return lost_at + self.patience_seconds - self._took - time.monotonic()
