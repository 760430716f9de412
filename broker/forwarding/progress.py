"""How far a forward is in the log, and what it sends next. Nothing here waits."""

from typing import Final

import msgspec
from msgspec.structs import replace

from broker.ids import new_id
from config.limits import FORWARD_BATCH_MESSAGES, FORWARD_GAPS_MAX
from storage.forwarding import ForwardRecord, PendingBatch, Ranges

#: With the newest first, more rows than this are left for later while new ones come.
_STEP: Final = 4 * FORWARD_BATCH_MESSAGES


class LogPart(msgspec.Struct, frozen=True):
    """The rows to read next: `after < position <= upto`, `upto` None: up to the end of the log."""

    after: int
    upto: int | None
    of_gap: bool


def next_part(
    record: ForwardRecord, head: int, *, newest_first: bool, most: int
) -> tuple[ForwardRecord, LogPart | None]:
    """The part to read next; None: all is sent. With the newest first, a new gap may begin before it."""
    if newest_first and head - record.mark > max(_STEP, 4 * most) and len(record.gaps) < FORWARD_GAPS_MAX:
        mark = head - most
        record = replace(record, mark=mark, gaps=_joined((*record.gaps, (record.mark, mark))))
    if head > record.mark:
        return record, LogPart(record.mark, None, of_gap=False)
    if record.gaps:
        after, upto = record.gaps[-1]
        return record, LogPart(max(after, upto - most), upto, of_gap=True)
    return record, None


def begun(record: ForwardRecord, after: int, upto: int, *, of_gap: bool) -> ForwardRecord:
    """The record with a batch that may be under way from now on."""
    return replace(record, pending=PendingBatch(new_id(), after, upto, of_gap))


def advanced(record: ForwardRecord, upto: int) -> ForwardRecord:
    """The pending batch is stored up to here."""
    pending = record.pending
    if pending is None:
        raise AssertionError("no batch is under way")
    return replace(
        passed(record, pending.after, pending.upto, upto, of_gap=pending.of_gap), pending=None, batch=pending.id
    )


def passed(record: ForwardRecord, after: int, upto: int, reached: int, *, of_gap: bool) -> ForwardRecord:
    """The rows from `after` to `reached` are sent, or nobody wants them; those up to `upto` were to be."""
    if not of_gap:
        return replace(record, mark=max(record.mark, reached))
    first = record.gaps[-1][0]
    rest = [part for part in ((first, after), (reached, upto)) if part[0] < part[1]]
    return replace(record, gaps=_joined((*record.gaps[:-1], *rest)))


def complete_upto(record: ForwardRecord) -> int:
    """Everything up to here is sent."""
    return record.gaps[0][0] if record.gaps else record.mark


def rows_left(record: ForwardRecord, head: int) -> int:
    """How many positions of the log are not sent."""
    return max(head - record.mark, 0) + sum(upto - after for after, upto in record.gaps)


def oldest_left(record: ForwardRecord, head: int) -> int | None:
    """Everything up to here is sent; None: everything is."""
    return complete_upto(record) if record.gaps or head > record.mark else None


def _joined(ranges: Ranges) -> Ranges:
    found = list[tuple[int, int]]()
    for after, upto in ranges:
        if found and found[-1][1] == after:
            found[-1] = (found[-1][0], upto)
        else:
            found.append((after, upto))
    return tuple(found)
