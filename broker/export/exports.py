"""Exports from their creation to their expiry, and the one worker that writes them (compatibility.md section 10).

The worker takes one export at a time, the oldest first. A step is one archive entry: read, format, compress and sync it
in one go in a worker thread, then save how far it has got. A restart goes on behind the last step that was saved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import structlog
import trio

from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import Conflict, Gone, NotFound, ValidationFailed
from broker.export.archive import Archive
from broker.export.formats import csv_entry, json_entry
from broker.export.merging import MergedRows, Place
from broker.export.requests import ExportRequest, Plan, Planner, check_caller
from broker.export.status import TO_DO, WITH_RESULT, ExportStatus, may_follow
from broker.ids import new_id
from broker.mail import ExportFinished, Letter, Mails
from broker.messages.mids import Mids
from config.limits import EXPORT_ENTRY_MESSAGES, EXPORT_KEPT_HOURS
from storage.database import Database, Transaction
from storage.records import ExportRecord, MessageRow
from storage.sql import StoreError

_LOOK_SECONDS = 60.0  # for what has expired
_STORE_SECONDS = 5.0
_LOG_SECONDS = 5.0
_KEPT_MS = EXPORT_KEPT_HOURS * 3_600_000
_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger(__name__)


class Written(msgspec.Struct, frozen=True):
    """What is on the disk: the archive's size, and the place in the plan behind it."""

    size: int = 0
    group: int = 0
    place: Place | None = None
    last_name: str = ""
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class Export:
    """An export as its owner sees it."""

    record: ExportRecord
    status: ExportStatus
    request: ExportRequest

    @property
    def progress(self) -> int | None:
        """Per cent of the messages there are; None before they are counted."""
        expected = self.record.expected_messages
        if self.status is not ExportStatus.IN_PROGRESS or expected is None:
            return None
        return min(99, 100 * self.record.total_messages // max(1, expected))


@dataclass(frozen=True, slots=True)
class ExportStatistics:
    """Since the start."""

    finished: int
    failed: int
    messages: int


class Exports:
    def __init__(
        self,
        database: Database,
        devices: Devices,
        mids: Mids,
        mails: Mails,
        clock: Clock,
        planner: Planner,
        folder: Path,
    ) -> None:
        self._database = database
        self._devices = devices
        self._mids = mids
        self._mails = mails
        self._clock = clock
        self._planner = planner
        self._folder = folder
        self._wanted = trio.Event()
        self._finished = self._failed = self._messages = 0

    # What callers ask

    async def create(self, caller: Caller, request: ExportRequest) -> str:
        """Accept an export; return its id.

        Raises ValidationFailed, NotFound of what a list names, PermissionDenied.
        """
        now_ms = self._clock.now_ms()
        request.check(now_ms)
        plan = await self._planner.plan(caller, request)
        record = ExportRecord(
            id=new_id(),
            user=caller.user,
            application=caller.application,
            trial=request.trial_id,
            request=_encode(request).decode(),
            plan=_encode(plan).decode(),
            status=ExportStatus.RECEIVED,
            created_on=now_ms,
            head=0,
        )

        def add(tx: Transaction) -> None:
            # What is acknowledged by now is exported; what comes later is not.
            tx.exports.put(replace(record, head=tx.messages.head()))

        await self._database.write(add)
        self._wanted.set()
        _log.info("export_received", export_id=record.id)
        return record.id

    async def find(self, caller: Caller, export_id: str) -> Export:
        """Raises NotFound, PermissionDenied."""
        record = await self._database.read(lambda tx: tx.exports.by_id(export_id))
        if record is None:
            raise NotFound
        check_caller(caller, record.user, record.application)
        return self._view(record)

    async def history(self, caller: Caller, *, trial: str | None, offset: int, count: int) -> tuple[list[Export], int]:
        """The caller's exports, newest first, and how many there are in all."""
        records, total = await self._database.read(
            lambda tx: tx.exports.page(
                user=caller.user, application=caller.application, trial=trial, offset=offset, limit=count
            )
        )
        return [self._view(record) for record in records], total

    async def result(self, caller: Caller, export_id: str) -> tuple[Export, Path]:
        """Where the archive lies. Raises NotFound, PermissionDenied, Conflict while there is none, Gone."""
        export = await self.find(caller, export_id)
        if export.status is ExportStatus.EXPIRED:
            raise Gone
        if export.status is ExportStatus.FAILURE:
            raise Conflict("Export failed")
        if export.status not in WITH_RESULT:
            raise Conflict("Export is not ready")
        return export, self._path(export.record)

    async def served(self, export_id: str) -> None:
        """The archive was downloaded to its end."""
        await self._database.write(partial(_move, export_id, ExportStatus.SERVED, None))

    def _view(self, record: ExportRecord) -> Export:
        status = ExportStatus(record.status)
        if status in WITH_RESULT and (record.expires_on or 0) <= self._clock.now_ms():
            status = ExportStatus.EXPIRED  # the worker has not come to it yet
        return Export(record, status, msgspec.json.decode(record.request, type=ExportRequest))

    def _path(self, record: ExportRecord) -> Path:
        return self._folder / f"{record.id}.tgz"

    # The worker

    async def work_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            self._wanted = trio.Event()
            try:
                await self.expire()
                record = await self._database.read(_next)
                if record is not None:
                    await self._export(record)
                    continue
            except StoreError as error:  # nothing is lost: it goes on behind the last step that was saved
                _log.warning("export_not_saved", reason=str(error))
                await trio.sleep(_STORE_SECONDS)
                continue
            with trio.move_on_after(_LOOK_SECONDS):
                await self._wanted.wait()

    async def expire(self) -> None:
        """End what is older than 24 hours, and delete its file."""
        now_ms = self._clock.now_ms()
        for status in WITH_RESULT:
            for record in await self._database.read(partial(_expired, status, now_ms)):
                self._remove(record)
                await self._database.write(partial(_move, record.id, ExportStatus.EXPIRED, None))
                _log.info("export_expired", export_id=record.id)

    def _remove(self, record: ExportRecord) -> None:
        try:
            self._path(record).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("export_file_not_removed", export_id=record.id, reason=str(error))

    async def _export(self, record: ExportRecord) -> None:
        try:
            await self._write(record)
        except StoreError:
            raise
        except OSError as error:
            _log.error("export_failed", export_id=record.id, reason=str(error))
            await self._fail(record, str(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours must not hold up the other exports
            _log.exception("export_failed", export_id=record.id)
            await self._fail(record, type(error).__name__)

    async def _fail(self, record: ExportRecord, reason: str) -> None:
        self._remove(record)
        await self._database.write(partial(_move, record.id, ExportStatus.FAILURE, reason))
        self._failed += 1

    async def _write(self, record: ExportRecord) -> None:
        request = msgspec.json.decode(record.request, type=ExportRequest)
        plan = msgspec.json.decode(record.plan, type=Plan)
        devices = {key: await self._devices.get(key) for _, keys in plan.groups for key in keys}
        record = replace(record, status=ExportStatus.IN_PROGRESS)
        if record.expected_messages is None:
            expected = await self._database.read(partial(_count, list(devices), request))
            record = replace(record, expected_messages=expected)
        await self._database.write(partial(_put, record))
        writer = _Writer(self._path(record), record, request, plan, devices, self._mids, self._clock)
        _log.info(
            "export_begun", export_id=record.id, messages=record.total_messages, expected=record.expected_messages
        )
        logged_at = trio.current_time()
        try:
            while not writer.is_done:
                await self._database.read(writer.step)
                self._messages += writer.record.total_messages - record.total_messages
                record = writer.record
                await self._database.write(partial(_put, record))
                if trio.current_time() - logged_at >= _LOG_SECONDS:
                    logged_at = trio.current_time()
                    _log.info("export_progress", export_id=record.id, messages=record.total_messages)
        finally:
            writer.close()
        await self._succeed(writer.record, request, plan.recipients)

    async def _succeed(self, record: ExportRecord, request: ExportRequest, recipients: Sequence[int]) -> None:
        done = replace(record, status=ExportStatus.SUCCESS, expires_on=self._clock.now_ms() + _KEPT_MS)
        letters = await self._letters(done, request, recipients)

        def save(tx: Transaction) -> None:
            tx.exports.put(done)
            for letter in letters:
                self._mails.add(tx, letter)

        await self._database.write(save)
        self._finished += 1
        _log.info("export_finished", export_id=done.id, messages=done.total_messages, bytes=done.file_size)

    async def _letters(self, record: ExportRecord, request: ExportRequest, recipients: Sequence[int]) -> list[Letter]:
        users = await self._database.read(lambda tx: [tx.accounts.user(key) for key in recipients])
        letters = []
        for user in filter(None, users):
            mail = ExportFinished(export_id=record.id, url=request.url or "")
            try:
                letters.append(self._mails.compose(user.email, mail, cause=user.id))
            except ValidationFailed as error:
                _log.warning("export_mail_not_composed", export_id=record.id, user=user.id, reason=str(error.findings))
        return letters

    def statistics(self) -> ExportStatistics:
        return ExportStatistics(self._finished, self._failed, self._messages)


class _Writer:
    """Writes one archive, an entry for each step. `record` says how far it has got."""

    def __init__(
        self,
        path: Path,
        record: ExportRecord,
        request: ExportRequest,
        plan: Plan,
        devices: dict[int, Device],
        mids: Mids,
        clock: Clock,
    ) -> None:
        self._written = msgspec.json.decode(record.written, type=Written) if record.written else Written()
        self._path = path
        self._archive: Archive | None = None
        self.record = record
        self.is_done = False
        self._request = request
        self._plan = plan
        self._devices = devices
        self._mid = mids.mid
        self._clock = clock
        self._rows: MergedRows | None = None

    def step(self, tx: Transaction) -> None:
        """Add the next entry, or the end. Runs in a thread; raises OSError."""
        archive = self._opened()
        written = self._written
        while written.group < len(self._plan.groups):
            id_, devices = self._plan.groups[written.group]
            if self._rows is None:
                self._rows = self._merged(devices, written.place)
            rows = self._rows.take(tx, EXPORT_ENTRY_MESSAGES)
            if rows:
                self._add(archive, id_, rows)
                return
            self._rows = None
            self._written = written = msgspec.structs.replace(written, group=written.group + 1, place=None)
        if not self.record.total_messages:
            self._add(archive, self._plan.groups[0][0], [])
        archive.finish()
        self.record = replace(self.record, md5=archive.md5, file_size=archive.size)
        self.is_done = True

    def _opened(self) -> Archive:
        """The archive as far as it is good; without its beginning it begins again."""
        if self._archive is None:
            self._archive = Archive(self._path, size=self._written.size)
            if self._archive.size != self._written.size:
                self._archive.close()
                self._archive, self._written = Archive(self._path), Written()
                self.record = replace(self.record, total_messages=0)
        return self._archive

    def _merged(self, devices: Sequence[int], place: Place | None) -> MergedRows:
        return MergedRows(
            devices,
            start_ms=self._request.start_ms,
            end_ms=self._request.end_ms,
            head=self.record.head,
            descending=self._request.order == "desc",
            place=place,
        )

    def _add(self, archive: Archive, id_: str, rows: Sequence[MessageRow]) -> None:
        written = self._written
        name = f"{id_}-{rows[0].ts if rows else 0}"
        # More than a whole entry of one moment: the next entry must not hide the one before.
        repeated = written.repeated + 1 if name == written.last_name else 0
        json = self._request.format == "json"
        file_name = f"{name}{f'-{repeated}' if repeated else ''}.{'json' if json else 'csv'}"
        content = (
            json_entry(rows, self._devices, self._mid)
            if json
            else csv_entry(rows, self._devices, self._mid, headers=self._request.csv_headers)
        )
        archive.add(file_name, content, now_ms=self._clock.now_ms())
        place = (rows[-1].ts, rows[-1].position) if rows else None
        self._written = Written(archive.size, written.group, place, name, repeated)
        self.record = replace(
            self.record,
            written=_encode(self._written).decode(),
            total_messages=self.record.total_messages + len(rows),
        )

    def close(self) -> None:
        if self._archive is not None:
            self._archive.close()


def _next(tx: Transaction) -> ExportRecord | None:
    for status in TO_DO:
        if (record := tx.exports.next_with(status)) is not None:
            return record
    return None


def _expired(status: ExportStatus, now_ms: int, tx: Transaction) -> list[ExportRecord]:
    return tx.exports.that_expired(status, now_ms)


def _count(devices: Sequence[int], request: ExportRequest, tx: Transaction) -> int:
    return sum(tx.messages.count(device, start_ms=request.start_ms, end_ms=request.end_ms) for device in devices)


def _put(record: ExportRecord, tx: Transaction) -> None:
    tx.exports.put(record)


def _move(export_id: str, status: ExportStatus, reason: str | None, tx: Transaction) -> None:
    """To another state, if that may follow the one it is in."""
    record = tx.exports.by_id(export_id)
    if record is not None and may_follow(status, record.status):
        tx.exports.put(replace(record, status=status, last_error=reason))
