"""Time limits for waits that depend on a peer; the listener can end all of these waits when the daemon stops."""

import math
from types import TracebackType

import trio


class _Wait:
    """One wait: a cancel scope that its listener knows while it is open."""

    __slots__ = ("_grace", "_scope", "_scopes")

    def __init__(self, scopes: dict[trio.CancelScope, float], scope: trio.CancelScope, grace: float) -> None:
        self._scopes, self._scope, self._grace = scopes, scope, grace

    def __enter__(self) -> trio.CancelScope:
        self._scopes[self._scope] = self._grace
        return self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        del self._scopes[self._scope]
        return self._scope.__exit__(kind, error, traceback)


class PeerTimeouts:
    """The waits of all connections of one HTTP listener."""

    def __init__(self, *, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._scopes: dict[trio.CancelScope, float] = {}  # each open wait, and how long it may last after a stop
        self._stopped_at = math.inf

    @property
    def is_stopped(self) -> bool:
        """Whether the daemon stops."""
        return self._stopped_at < math.inf

    def limit(self, seconds: float, *, in_flight: bool) -> _Wait:
        """Cancel the block after `seconds`.

        After a stop, a block that serves a request in flight may last for the grace period; others end at once.
        """
        return self.until(trio.current_time() + seconds, in_flight=in_flight)

    def until(self, deadline: float, *, in_flight: bool) -> _Wait:
        """A time limit at a time of trio's clock."""
        grace = self._grace_seconds if in_flight else 0.0
        deadline = min(deadline, self._stopped_at + grace)
        return _Wait(self._scopes, trio.CancelScope(deadline=deadline), grace)

    def stop(self, *, at_once: bool) -> None:
        """The daemon stops. `at_once`: there is no grace period, or it has ended; may be called after a first stop."""
        if at_once:
            self._grace_seconds = 0.0
        self._stopped_at = min(self._stopped_at, trio.current_time())
        for scope, grace in self._scopes.items():
            scope.deadline = min(scope.deadline, self._stopped_at + min(grace, self._grace_seconds))
