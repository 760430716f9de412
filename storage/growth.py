"""How fast the message log grows, for a forecast of the disk."""

from dataclasses import dataclass
from typing import Final, Protocol

from storage.sql import StoreConnection

_WEEK_MS: Final = 7 * 86_400_000


class StoreView(Protocol):
    """A snapshot of either engine."""

    @property
    def rows(self) -> StoreConnection: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def free_bytes(self) -> int: ...
    def has(self, table: str, column: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Growth:
    """`bytes_a_day` over the last week, or over the whole log where that is younger; None for a log of hours.
    `free_bytes` of the store wait for new rows, as after a large retention."""

    store_bytes: int
    bytes_a_day: float | None
    free_bytes: int = 0


def growth(snapshot: StoreView, *, now_ms: int) -> Growth:
    """Raises StoreError."""
    rows, size, free = snapshot.rows, snapshot.size_bytes, snapshot.free_bytes
    ends = rows.execute("SELECT min(position) AS first, max(position) AS last FROM message").one()
    if ends is None or ends["first"] is None:
        return Growth(size, None, free)
    first, last = int(ends["first"]), int(ends["last"])
    since_ms = max(now_ms - _WEEK_MS, _cts_at(rows, first))
    days = (now_ms - since_ms) / 86_400_000
    if days < 1:
        return Growth(size, None, free)
    low, high = first, last + 1
    while low < high:  # messages arrive in the order of their positions, and `cts` has no index
        middle = (low + high) // 2
        if _cts_at(rows, middle) < since_ms:
            low = middle + 1
        else:
            high = middle
    of_log = max(0, size - free - _bytes_of_files(snapshot))
    return Growth(size, (last + 1 - low) / days * of_log / (last + 1 - first), free)


def _bytes_of_files(snapshot: StoreView) -> int:
    """Images and archives grow with no message. A store of an earlier version has none."""
    if not snapshot.has("file", "size"):
        return 0
    row = snapshot.rows.execute("SELECT coalesce(sum(size), 0) AS bytes FROM file").one()
    return int(row["bytes"]) if row else 0


def _cts_at(rows: StoreConnection, position: int) -> int:
    """The time of the first message from this position on."""
    sql = "SELECT cts FROM message WHERE position >= :position ORDER BY position LIMIT 1"
    row = rows.execute(sql, {"position": position}).one()
    return int(row["cts"]) if row else 0
