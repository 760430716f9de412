"""Writes one archive of tables, some rows of one file in each step.

The progress that is saved after a step is where the next one begins.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from broker.devices.registry import Device
from broker.export.formats import labels
from broker.export.merging import MergedRows, take_existing
from broker.export.parquet import ParquetFile
from broker.export.requests import ExportPlan, ExportRequest
from broker.export.tables import DEVICE, MORE, RECEIVED, SDID, TIME, Column, Table, table_columns, utc
from broker.export.writer import planned_rows
from broker.export.zipped import Zip, ZipEntry
from storage.files import CHUNK_BYTES, FileKey
from storage.keys import DeviceKey
from storage.message_searches import SortKey
from storage.records import ExportRecord, MessageRow
from storage.transaction import Transaction

#: The file that describes the others.
ABOUT: Final = "about.json"
_encode = msgspec.json.Encoder().encode


class TableFile(msgspec.Struct, frozen=True):
    """One file, whose columns stay as they were when it was begun."""

    sdtid: str
    type: str
    columns: list[Column]
    messages: int = 0


class Progress(msgspec.Struct, frozen=True):
    """The size of the archive, the place in the plan that it has reached, and what is known of its files."""

    size: int = 0
    group: int = 0
    place: SortKey | None = None
    is_open: bool = False  # the last file has begun, and not ended
    entries: list[ZipEntry] = []
    files: list[TableFile] = []


class TableWriter:
    """Writes one archive, as `ArchiveWriter` does: a file for each group of the plan, which are the device types.

    A file of Parquet is in the hands of a process, and cannot be continued without it. `close` ends that.
    """

    def __init__(
        self,
        name: str,
        record: ExportRecord,
        request: ExportRequest,
        plan: ExportPlan,
        devices: dict[DeviceKey, Device],
    ) -> None:
        self._name = name
        self.record = record
        self._request, self._plan, self._devices = request, plan, devices
        self._progress = msgspec.json.decode(record.written, type=Progress) if record.written else Progress()
        self.added = b""
        self.is_done = False
        self._zip: Zip | None = None
        self._rows: MergedRows | None = None
        self._parquet: ParquetFile | None = None
        self._table: Table | None = None
        self._labels = labels({one.type.id: one.type.record.name for one in devices.values()})

    @property
    def size(self) -> int:
        """Bytes of the archive."""
        return self._progress.size if self._zip is None else self._zip.size

    def step(self, tx: Transaction) -> None:
        """Add the next rows, or the end of the archive. Runs in a thread. Raises ParquetFailed."""
        archive = self._opened(tx)
        self._add_next(tx, archive)
        self.added = archive.take()

    def close(self) -> None:
        if self._parquet is not None:
            self._parquet.close()

    def _opened(self, tx: Transaction) -> Zip:
        """The archive up to the saved progress."""
        if self._zip is None:
            self._zip = Zip(list(self._progress.entries))
            file, size = tx.files.find(self._name) or (FileKey(0), 0)
            while self._zip.size < size and (piece := tx.files.read(file, self._zip.size, CHUNK_BYTES)):
                self._zip.resume_with(piece)
        return self._zip

    def _add_next(self, tx: Transaction, archive: Zip) -> None:
        progress, groups = self._progress, self._plan.groups
        while progress.group < len(groups) and not progress.is_open and not self._there(groups[progress.group][1]):
            progress = replace(progress, group=progress.group + 1)  # all its devices were deleted
        if progress.group >= len(groups):
            self._end(archive)
            return
        keys = self._there(groups[progress.group][1])
        if not progress.is_open:
            type_, columns = self._devices[keys[0]].type, table_columns(map(self._devices.__getitem__, keys))
            file = TableFile(type_.id, type_.record.name, columns)
            progress = replace(progress, is_open=True, files=[*progress.files, file])
        file = progress.files[-1]
        if self._table is None:
            self._table = Table([self._devices[key] for key in keys], file.columns)
            self._rows = planned_rows(keys, self._request, self.record.head, progress.place)
            if progress.place is None:
                self._begin_file(archive, file, self._table)
        rows = [] if self._rows is None else take_existing(tx, self._rows, self._devices)
        if rows:
            self._add(archive, self._table, rows)
            files = [*progress.files[:-1], replace(file, messages=file.messages + len(rows))]
            progress = replace(progress, place=(rows[-1].ts, rows[-1].position), files=files)
        else:
            self._end_file(archive)
            self._rows = self._table = None
            progress = replace(progress, group=progress.group + 1, place=None, is_open=False)
        self._progress = replace(progress, size=archive.size, entries=archive.entries)
        self.record = replace(
            self.record,
            written=_encode(self._progress).decode(),
            total_messages=self.record.total_messages + len(rows),
        )

    def _there(self, keys: Sequence[DeviceKey]) -> list[DeviceKey]:
        return [key for key in keys if key in self._devices]

    def _begin_file(self, archive: Zip, file: TableFile, table: Table) -> None:
        archive.begin(f"{self._labels[file.sdtid]}.{self._request.format}")
        if self._request.format == "csv" and self._request.csv_headers:
            archive.add(table.csv_header())
        if self._request.format == "parquet":
            self._parquet = ParquetFile(table.columns)
            archive.add(self._parquet.begin(), is_packed=True)

    def _add(self, archive: Zip, table: Table, rows: Sequence[MessageRow]) -> None:
        if self._parquet is not None:
            archive.add(self._parquet.add(table.columns_json(rows)), is_packed=True)
        elif self._request.format == "csv":
            archive.add(table.csv(rows))
        else:
            archive.add(table.json_lines(rows))

    def _end_file(self, archive: Zip) -> None:
        if self._parquet is not None:
            archive.add(self._parquet.end(), is_packed=True)
            self._parquet = None
        archive.end()

    def _end(self, archive: Zip) -> None:
        about = msgspec.json.format(_encode(self._about(archive)), indent=2)
        archive.begin(ABOUT)
        archive.add(about + b"\n")
        archive.end()
        archive.finish()
        self.record = replace(self.record, md5=archive.md5, file_size=archive.size)
        self.is_done = True

    def _about(self, archive: Zip) -> dict[str, Any]:
        """The files and their columns. All messages were stored when the export was asked for."""
        files = []
        for file, entry in zip(self._progress.files, archive.entries, strict=False):
            columns = [
                {"name": TIME, "type": "time", "description": "When the device says that it was"},
                {"name": RECEIVED, "type": "time", "description": "When the service took it"},
                {"name": SDID, "type": "text", "description": "The device"},
                {"name": DEVICE, "type": "text", "description": "The name of the device"},
                *map(_described, file.columns),
                {"name": MORE, "type": "text", "description": "All else of the message, as JSON"},
            ]
            about = {"sdtid": file.sdtid, "type": file.type, "messages": file.messages, "columns": columns}
            files.append({"name": entry.name, **about})
        return {
            "askedOn": utc(self.record.created_on),
            "from": utc(self._request.start_ms),
            "to": utc(self._request.end_ms),
            "messages": self.record.total_messages,
            "files": files,
        }


def _described(column: Column) -> dict[str, str]:
    kind = f"list of {column.kind}" if column.is_list else column.kind
    found = {"name": column.name, "type": kind, "field": column.path}
    return found | {name: getattr(column, name) for name in ("unit", "description") if getattr(column, name)}
