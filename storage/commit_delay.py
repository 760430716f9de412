"""Self-tuning commit delay, like PostgreSQL's `commit_delay`: when it pays to wait before a commit.

Clients that wait for an acknowledgement before they send again fall into two halves: while the rows of one half are
written to the disk, those of the other half wait. A commit for both costs hardly more than a commit for one. So on a
slow disk the writer waits a little for the senders that were just answered, as long as they do send again.
"""

from typing import Final

_AT_LEAST_SECONDS: Final = 0.001  # a quicker disk is not worth the wait
_AT_MOST_SECONDS: Final = 0.02
_OF_DISK: Final = 0.75
_LEARNING: Final = 0.2
_MOST_SKIPPED: Final = 64


class CommitDelay:
    """Times are in seconds, of one clock."""

    __slots__ = ("_disk_seconds", "_enough", "_skip", "_skip_next", "_until")

    def __init__(self) -> None:
        self._disk_seconds = 0.0  # of one commit, an average
        self._enough = 0  # rows in the next commit when all came who are expected
        self._until = 0.0
        self._skip = 0  # how many commits do not wait, because waiting was in vain
        self._skip_next = 1

    def committed(self, rows: int, *, disk_seconds: float, waiting: int, now: float) -> None:
        """A commit of `rows` has ended and its senders are answered; `waiting` rows are in the next one already.

        Args:
            disk_seconds: how long the commit took without its own processor time.
        """
        self._disk_seconds += (disk_seconds - self._disk_seconds) * _LEARNING
        delay = min(self._disk_seconds * _OF_DISK, _AT_MOST_SECONDS)
        self._until = now + delay if delay >= _AT_LEAST_SECONDS else 0.0
        self._enough = waiting + rows * 4 // 5

    def until(self, rows: int, now: float) -> float | None:
        """The time until which a commit of `rows` should wait; None: commit now. After a wait, call `waited`."""
        if now >= self._until or self.is_enough(rows):
            return None
        if self._skip:
            self._skip -= 1
            return None
        return self._until

    def is_enough(self, rows: int) -> bool:
        """Whether all came who are expected."""
        return rows >= self._enough

    def waited(self, rows: int) -> None:
        """Note that a wait has ended with `rows` rows. After a wait in vain, fewer commits wait."""
        if self.is_enough(rows):
            self._skip_next = 1
        else:
            self._skip, self._skip_next = self._skip_next, min(self._skip_next * 2, _MOST_SKIPPED)
