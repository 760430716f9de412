"""Makes the entries of the log's index (`storage/log_index.py`), in batches.

Searches scan the rows that have no entry yet. When the indexer is far behind, the store makes the entries itself.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

import trio

from storage.database import Database
from storage.keys import DeviceKey, Position
from storage.leases import Holder
from storage.log_index import EntryBuilder
from storage.records import MessageRow

#: Rows that get their index entries in a batch: this many, when the last batch was a second ago; else the rows until
#: then, at most `_UNINDEXED_MOST`, because searches scan them: 2,000 in 0.1 to 0.4 ms. All senders wait for the
#: entries, and larger batches of a device make fewer entries.
_UNINDEXED: Final = 2_000
_INDEX_SECONDS: Final = 1.0
_UNINDEXED_MOST: Final = 16_000
#: In a quiet store they wait no longer.
_UNINDEXED_SECONDS: Final = 60.0


class RowsByDevice:
    """Rows that follow each other in the log, sorted by device: their number, first and last position."""

    __slots__ = ("first", "last", "number", "of")

    def __init__(self, rows: Sequence[MessageRow] = ()) -> None:
        self.of: defaultdict[DeviceKey, list[MessageRow]] = defaultdict(list)
        self.number = 0
        self.first = self.last = Position(0)
        self.add(rows)

    def add(self, rows: Sequence[MessageRow]) -> None:
        if not rows:
            return
        of = self.of
        for row in rows:
            of[row.device].append(row)
        if not self.number:
            self.first = rows[0].position
        self.last = rows[-1].position
        self.number += len(rows)

    def of_after(self, position: Position) -> Mapping[DeviceKey, Sequence[MessageRow]]:
        """The rows behind this position."""
        if self.first > position:
            return self.of
        later = {device: [row for row in rows if row.position > position] for device, rows in self.of.items()}
        return {device: rows for device, rows in later.items() if rows}


class LogIndexer:
    """Makes index entries of the rows that the projector adds."""

    def __init__(self, database: Database, lease: Holder) -> None:
        self._database = database
        self._lease = lease
        self._entries = EntryBuilder()  # of the rows behind `_indexed`, up to `_noted`
        self._indexed = self._noted = Position(0)
        self._indexed_at = -inf

    async def resume(self, written: Position) -> None:
        """Begin behind the entries of the last run. `written`: the position from which rows are added."""
        indexed = Position(await self._database.read(lambda tx: tx.messages.counter("indexed")))
        self._indexed = self._noted = max(indexed, written)
        self._entries = EntryBuilder()

    @property
    def position(self) -> Position:
        """Rows up to here have entries, which the store has or will have with its next commit."""
        return self._indexed

    def is_far_behind(self, position: Position) -> bool:
        """Whether more rows up to `position` lack an entry than searches should scan.

        Behind twice as many, the store makes the entries itself.
        """
        return position - self._indexed >= _UNINDEXED_MOST

    def note(self, rows: RowsByDevice) -> None:
        """Make the index entries of rows; rows that were added before are skipped."""
        for device, some in rows.of_after(self._noted).items():
            if len(some) == 1:
                self._entries.add(device, some[0].ts, some[0].position)
            else:
                self._entries.add_many(device, [row.ts for row in some], [row.position for row in some])
        self._noted = max(self._noted, rows.last)

    def flush_when_due(self) -> None:
        number, since = self._noted - self._indexed, trio.current_time() - self._indexed_at
        if number >= _UNINDEXED_MOST or (
            number and since >= (_INDEX_SECONDS if number >= _UNINDEXED else _UNINDEXED_SECONDS)
        ):
            self.flush()

    def flush(self) -> None:
        """Have the entries stored. When that fails, the next ones leave a gap, and the store makes all itself."""
        if self._noted > self._indexed:
            made, behind, upto = self._entries.made, self._indexed, self._noted
            self._database.write_nowait(lambda tx: tx.messages.add_entries(made, behind, upto), holder=self._lease)
            self._entries, self._indexed, self._indexed_at = EntryBuilder(), self._noted, trio.current_time()
