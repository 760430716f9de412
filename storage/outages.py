"""Log lines about a failure that lasts: one at its beginning, at most one a minute, and one at its end.

A failure within a minute of such a line is only counted: two lines a minute are enough, also where success and failure
alternate.
"""

from typing import Any, Final, Literal

import structlog
import trio

_TELL_SECONDS: Final = 60.0
_log = structlog.get_logger(__name__)


class Outage:
    """Counts the failures of one thing.

    Args:
        failure: the event of a failure.
        over: the event of the first success after failures; it has `failure` as `after` unless it is of its own.
        counted: the name under which the lines have the number of failures.
        level: of the lines about failures.
    """

    __slots__ = ("_counted", "_failure", "_is_told", "_level", "_number", "_over", "_since", "_told_at")

    def __init__(
        self,
        failure: str,
        over: str = "works_again",
        *,
        counted: str = "times",
        level: Literal["warning", "error"] = "warning",
    ) -> None:
        self._failure = failure
        self._over = over
        self._counted = counted
        self._level = level
        self._since: float | None = None
        self._told_at: float | None = None
        self._number = 0
        self._is_told = False

    def failed(self, reason: object, **about: Any) -> bool:
        """Note a failure. Returns whether it was told."""
        now = trio.current_time()
        self._number += 1
        self._since = now if self._since is None else self._since
        if self._told_at is not None and now - self._told_at < _TELL_SECONDS:
            return False
        self._told_at, self._is_told = now, True
        counted = {self._counted: self._number, "seconds": round(now - self._since)}
        getattr(_log, self._level)(self._failure, reason=str(reason), **counted, **about)
        return True

    def succeeded(self, **about: Any) -> bool:
        """Note a success. Returns whether it has ended an outage that was told."""
        since, number, is_told = self._since, self._number, self._is_told
        self._since, self._number, self._is_told = None, 0, False
        if since is None or not is_told:
            return False
        seconds = round(trio.current_time() - since)
        after = {"after": self._failure} if self._over == "works_again" else {}
        _log.warning(self._over, **after, **{self._counted: number}, seconds=seconds, **about)
        return True
