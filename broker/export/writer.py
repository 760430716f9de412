"""Writes one archive, an entry for each step. The progress that is saved after a step is where the next one begins."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass

import msgspec
from msgspec.structs import replace

from broker.clock import Clock
from broker.devices.registry import Device
from broker.export.archive import Archive
from broker.export.formats import FieldColumns, csv_entry, device_labels, file_time, json_entry
from broker.export.merging import MergedRows, take_existing
from broker.export.requests import ExportPlan, ExportRequest
from broker.messages.mids import Mids
from storage.files import CHUNK_BYTES, FileKey
from storage.keys import DeviceKey, Position
from storage.message_searches import SortKey
from storage.records import ExportRecord, MessageRow
from storage.transaction import Transaction

_encode = msgspec.json.Encoder().encode


class Written(msgspec.Struct, frozen=True):
    """The progress: the size of the archive, and the place in the plan that it has reached."""

    size: int = 0
    group: int = 0
    place: SortKey | None = None
    last_name: str = ""
    repeated: int = 0


@dataclass(eq=False)
class ArchiveWriter:
    """Writes one archive, an entry for each step. `record` has the progress, and `added` the bytes of the step, which
    are stored in the transaction that saves the progress.

    `name` is that of the file. `archive` is what was written before, else it is read from the store.
    """

    _name: str
    record: ExportRecord
    _request: ExportRequest
    _plan: ExportPlan
    _devices: dict[DeviceKey, Device]
    mids: InitVar[Mids]
    _clock: Clock
    _archive: Archive | None = None

    def __post_init__(self, mids: Mids) -> None:
        self._written = _written(self.record)
        self.added = b""
        self.is_done = False
        self._mid = mids.mid
        self._rows: MergedRows | None = None
        self._labels = device_labels(self._devices.values())
        self._columns = FieldColumns(self._devices.values()) if self._request.format == "csv2" else None

    def step(self, tx: Transaction) -> None:
        """Add the next entry or the end of the archive. Runs in a thread."""
        archive = self._opened(tx)
        self._add_next(tx, archive)
        self.added = archive.take()

    def _add_next(self, tx: Transaction, archive: Archive) -> None:
        written = self._written
        while written.group < len(self._plan.groups):
            id_, devices = self._plan.groups[written.group]
            if self._rows is None:
                self._rows = planned_rows(devices, self._request, self.record.head, written.place)
            if rows := take_existing(tx, self._rows, self._devices):
                self._add(archive, id_, rows)
                return
            self._rows = None
            self._written = written = msgspec.structs.replace(written, group=written.group + 1, place=None)
        if not self.record.total_messages:
            self._add(archive, self._plan.groups[0][0], [])
        self._end(archive)

    def end(self, tx: Transaction) -> None:
        """Finish the archive with its present contents, as a step."""
        archive = self._opened(tx)
        self._end(archive)
        self.added = archive.take()

    def _end(self, archive: Archive) -> None:
        archive.finish()
        self.record = replace(self.record, md5=archive.md5, file_size=archive.size)
        self.is_done = True

    def close(self) -> None:
        """Nothing is open."""

    @property
    def size(self) -> int:
        """Bytes of the archive."""
        return self._written.size if self._archive is None else self._archive.size

    def _opened(self, tx: Transaction) -> Archive:
        """The archive up to the saved progress."""
        if self._archive is None:
            self._archive = Archive()
            file, size = tx.files.find(self._name) or (FileKey(0), 0)
            while self._archive.size < size and (piece := tx.files.read(file, self._archive.size, CHUNK_BYTES)):
                self._archive.resume_with(piece)
        return self._archive

    def _add(self, archive: Archive, id_: str, rows: Sequence[MessageRow]) -> None:
        written = self._written
        name = f"{id_}-{rows[0].ts if rows else 0}" if self._columns is None else self._label(id_, rows)
        # One moment fills more than an entry: the next entry must not have the name of this one.
        repeated = written.repeated + 1 if name == written.last_name else 0
        json = self._request.format == "json"
        headers = self._request.csv_headers
        file_name = f"{name}{f'-{repeated}' if repeated else ''}.{'json' if json else 'csv'}"
        if self._columns is not None:
            content = self._columns.entry(rows, self._devices, headers=headers)
        elif json:
            content = json_entry(rows, self._devices, self._mid)
        else:
            content = csv_entry(rows, self._devices, self._mid, headers=headers)
        archive.add(file_name, content, now_ms=self._clock.now_ms())
        place = (rows[-1].ts, rows[-1].position) if rows else None
        self._written = Written(archive.size, written.group, place, name, repeated)
        self.record = replace(
            self.record,
            written=_encode(self._written).decode(),
            total_messages=self.record.total_messages + len(rows),
        )

    def _label(self, id_: str, rows: Sequence[MessageRow]) -> str:
        """The name of a file for people: the device, or whose devices, and from when to when it goes."""
        name = self._labels.get(id_, f"all-devices-{id_}")
        if not rows:
            return f"{name}_empty"
        first, last = sorted((rows[0].ts, rows[-1].ts))
        return f"{name}_{file_time(first)}_to_{file_time(last)}"


def planned_rows(
    devices: Sequence[DeviceKey], request: ExportRequest, head: Position, place: SortKey | None
) -> MergedRows:
    """The rows of a group of devices that the request wants, after a place."""
    return MergedRows(
        devices,
        start_ms=request.start_ms,
        end_ms=request.end_ms,
        head=head,
        descending=request.order == "desc",
        place=place,
    )


def size_written(record: ExportRecord) -> int:
    """Bytes of the archive, as far as the progress is saved."""
    return _written(record).size


def _written(record: ExportRecord) -> Written:
    return msgspec.json.decode(record.written, type=Written) if record.written else Written()
