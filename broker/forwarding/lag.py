"""How far a forward is behind the log, and when retention would begin to delete what is not sent."""

from typing import Final

import msgspec

from broker.forwarding.progress import oldest_left, rows_left
from storage.forwarding import ForwardRecord
from storage.keys import Position
from storage.transaction import Transaction

_DAY_MS: Final = 86_400_000


class Lag(msgspec.Struct, frozen=True):
    """As in `ForwardStatus`."""

    rows: int = 0
    seconds: float = 0.0
    deletes_on: int | None = None
    lost: int = 0


def lag_of(tx: Transaction, record: ForwardRecord, *, retention_days: int, now_ms: int) -> Lag:
    """`retention_days` is that of the settings: device types may have their own. 0 deletes nothing."""
    head = tx.messages.head()
    left = oldest_left(record, head)
    if left is None:
        return Lag()
    lost = max(min(tx.forwarding.deleted_upto(), head) - left, 0)
    oldest = next(iter(tx.messages.after(Position(left), limit=1)), None)
    if oldest is None:
        return Lag(lost=lost)
    days = [one for one in (retention_days, *tx.retention.days_of_types().values()) if one]
    return Lag(
        rows_left(record, head),
        max(now_ms - oldest.cts, 0) / 1000,
        oldest.cts + min(days) * _DAY_MS if days else None,
        lost,
    )
