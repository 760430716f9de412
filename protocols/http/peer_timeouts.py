"""Time limits for waits that depend on a peer; the listener can end all of these waits when the daemon stops."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio


class PeerTimeouts:
    """The waits of all connections of one HTTP listener."""

    def __init__(self, *, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._scopes: dict[trio.CancelScope, float] = {}  # each open wait, and how long it may last after a stop
        self._stopped_at = math.inf

    @contextmanager
    def limit(self, seconds: float, *, in_flight: bool) -> Iterator[trio.CancelScope]:
        """Cancel the block after `seconds`.

        After a stop, a block that serves a request in flight may last for the grace period; others end at once.
        """
        grace = self._grace_seconds if in_flight else 0.0
        deadline = min(trio.current_time() + seconds, self._stopped_at + grace)
        with trio.CancelScope(deadline=deadline) as scope:
            self._scopes[scope] = grace
            try:
                yield scope
            finally:
                del self._scopes[scope]

    def stop(self, *, at_once: bool) -> None:
        """The daemon stops. `at_once`: there is no grace period, or it has ended; may be called after a first stop."""
        if at_once:
            self._grace_seconds = 0.0
        self._stopped_at = min(self._stopped_at, trio.current_time())
        for scope, grace in self._scopes.items():
            scope.deadline = min(scope.deadline, self._stopped_at + min(grace, self._grace_seconds))
