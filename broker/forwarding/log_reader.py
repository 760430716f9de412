"""Reads the next part of the log for an upstream, and leaves out what is not for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound
from broker.forwarding.progress import next_part
from broker.forwarding.report import ForwardReport
from broker.forwarding.selection import Selection
from config.limits import FORWARD_BATCH_BYTES, FORWARD_BATCH_MESSAGES, FORWARD_PATH_MAX
from config.settings import Forward
from storage.database import Database
from storage.forwarding import ForwardRecord
from storage.keys import DeviceKey, Position
from storage.records import MessageRow
from storage.transaction import Transaction


class Block(msgspec.Struct, frozen=True):
    """Rows of a part of the log, up to `upto`, and the stores that those of other stores have come through."""

    record: ForwardRecord
    rows: Sequence[MessageRow]
    paths: dict[DeviceKey, tuple[str, ...]]
    after: int
    upto: int
    of_gap: bool


class LoadedMessage(msgspec.Struct, frozen=True):
    """`path`: the stores that it comes through, this one last."""

    message: MessageRow
    device: Device
    path: tuple[str, ...]


@dataclass(eq=False)
class LogReader:
    """`most`: rows of a block. `store`: the id of this one; `upstream_store`: that of a Trunkline, when it is known."""

    _entry: Forward
    _database: Database
    _devices: Devices
    _report: ForwardReport
    most: int
    store: str
    upstream_store: str = ""
    selection: Selection | None = None

    async def begin(self) -> None:
        """Read whose devices these are. Raises StoreError."""
        self.selection = await self._database.read(lambda tx: Selection.of(self._entry, tx))

    async def next_block(self, record: ForwardRecord) -> Block | None:
        """The next rows to send; None: all are sent. Raises StoreError."""
        newest_first, most = self._entry.order == "newest", self.most

        def read(tx: Transaction) -> Block | None:
            head = tx.messages.head()
            rows: Sequence[MessageRow]
            if (pending := record.pending) is not None:
                found = record
                after, upto, of_gap = pending.after, pending.upto, pending.of_gap
                rows = _upto(tx.messages.after(Position(after), limit=FORWARD_BATCH_MESSAGES), upto)
            else:
                found, part = next_part(record, head, newest_first=newest_first, most=most)
                if part is None:
                    return None
                after, of_gap = part.after, part.of_gap
                rows = tx.messages.after(Position(after), limit=most)
                if part.upto is not None:
                    rows, upto = _upto(rows, part.upto), part.upto
                    rows, after = within_from_behind(rows, after)
                else:
                    upto = rows[-1].position if len(rows) == most else max(head, after)
                    rows, upto = within(rows, upto)
            paths = tx.forwarding.paths_of({one.device for one in rows})
            return Block(found, rows, paths, after, upto, of_gap)

        return await self._database.read(read)

    async def loaded(self, block: Block) -> list[LoadedMessage]:
        """The rows that the upstream is to have: of covered devices, and not of itself."""
        devices = dict[DeviceKey, Device]()
        for key in {row.device for row in block.rows}:
            device, path = await self._covered(key), block.paths.get(key, ())
            if device is None or self.upstream_store in path:
                continue
            if self.store in path or len(path) >= FORWARD_PATH_MAX:
                self._report.note("path", "Messages that have come through too many stores are not forwarded.")
                continue
            devices[key] = device
        return [
            LoadedMessage(row, found, (*block.paths.get(row.device, ()), self.store))
            for row in block.rows
            if (found := devices.get(row.device)) is not None
        ]

    async def _covered(self, key: DeviceKey) -> Device | None:
        try:
            device = await self._devices.get(key)
        except DeviceNotFound:
            return None
        return device if self.covers(device) else None

    def covers(self, device: Device) -> bool:
        return self.selection is not None and self.selection.covers(device)


def _upto(rows: Sequence[MessageRow], upto: int) -> Sequence[MessageRow]:
    return [one for one in rows if one.position <= upto]


def within(rows: Sequence[MessageRow], upto: int) -> tuple[Sequence[MessageRow], int]:
    """The first rows that have room in a batch."""
    size = 0
    for index, row in enumerate(rows):
        size += len(row.data.encode())
        if size > FORWARD_BATCH_BYTES and index:
            return rows[:index], rows[index - 1].position
    return rows, upto


def within_from_behind(rows: Sequence[MessageRow], after: int) -> tuple[Sequence[MessageRow], int]:
    """The last rows that have room in a batch: a gap is filled from its end."""
    size = 0
    for index in range(len(rows) - 1, -1, -1):
        size += len(rows[index].data.encode())
        if size > FORWARD_BATCH_BYTES and index < len(rows) - 1:
            return rows[index + 1 :], rows[index].position
    return rows, after
