"""Exports from their creation to their expiry, and the worker that writes them (reference 10).

The worker takes one export of each owner at a time, the oldest first, and a step of one of them after the other, so
that nobody waits for the exports of others. A step is one archive entry: a worker thread reads, formats, compresses and
syncs it, then the progress is saved. After a restart the worker goes on after the last saved step.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.accounts.applications import require_application
from broker.accounts.issuance import Issuance
from broker.accounts.tokens import Caller, trials_of
from broker.clock import Clock
from broker.devices.readers import DataReaders
from broker.devices.registry import Device, Devices
from broker.errors import Conflict, DeviceNotFound, Gone, NotFound, TryLater, UserNotFound, ValidationFailed
from broker.export import parquet
from broker.export.formats import device_labels, file_time
from broker.export.parquet import ParquetNotInstalled
from broker.export.requests import ExportPlan, ExportRequest, Planner, check_caller
from broker.export.status import TO_DO, WITH_RESULT, ExportStatus, may_follow
from broker.export.table_writer import TableWriter
from broker.export.writer import ArchiveWriter, size_written
from broker.files import Files, StoredFile, room_in
from broker.ids import new_id
from broker.loops import OwnersLoop, Wakeup
from broker.mail import ExportFinished, Letter, Mails
from broker.messages.mids import Mids
from broker.threads import finish_in_thread
from config.limits import (
    EXPORT_BYTES_OF_ORGANIZATION,
    EXPORT_BYTES_OF_USER,
    EXPORT_KEPT_HOURS,
    EXPORTS_AT_ONCE,
    EXPORTS_WAITING_OF_ORGANIZATION,
    EXPORTS_WAITING_OF_USER,
)
from storage.ballast import making_room
from storage.database import Database
from storage.export import ExportsOf
from storage.fair_places import FairPlaces
from storage.keys import DeviceKey, Milliseconds, Position, UserKey
from storage.leases import Holder
from storage.records import ApplicationRecord, ExportRecord
from storage.sql import StoreError
from storage.transaction import Transaction

#: Where earlier versions had archives, and how the names of archives in the store begin.
FOLDER: Final = "exports"
NOT_READY: Final = "Export is not ready"

_LOOK_SECONDS = 60.0  # between two looks for expired exports
_STORE_SECONDS = 5.0
_LOG_SECONDS = 5.0
_DOWNLOAD_MS: Final = 3_600_000  # for downloads that go on when the export expires
_NEVER_MS: Final = 2**62
_ENDED_AT_ONCE: Final = 100  # exports, in one transaction
_KEPT_MS = EXPORT_KEPT_HOURS * 3_600_000
_TRY_LATER_SECONDS: Final = 60
_NEARLY_FULL: Final = "the disk is nearly full: exports leave room for the store"
_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class TooManyExports(TryLater):
    """A user or an organization has as many exports, or bytes of their archives, as it may have at a time."""

    template = "Too many exports. Try again in {retry_seconds} seconds"


#: The owner in whose turn an export runs: a user, or an application that asks for itself. The applications of one
#: user's trials share a turn.
_Owner = UserKey | str
_Writer = ArchiveWriter | TableWriter


class Export(msgspec.Struct, frozen=True):
    """An export as its owner sees it."""

    record: ExportRecord
    status: ExportStatus
    request: ExportRequest

    @property
    def progress(self) -> int | None:
        """Exported messages in per cent of the expected ones; None before they are counted."""
        expected = self.record.expected_messages
        if self.status is not ExportStatus.IN_PROGRESS or expected is None:
            return None
        return min(99, 100 * self.record.total_messages // max(1, expected))


class ExportStatistics(msgspec.Struct, frozen=True):
    """Counts since the start."""

    finished: int
    failed: int
    messages: int


@dataclass(eq=False)
class Exports:
    _database: Database
    _devices: Devices
    _mids: Mids
    _mails: Mails
    _clock: Clock
    _planner: Planner
    _readers: DataReaders
    _files: Files
    #: Of the node that writes them: a step that a former node stored late would be in the archive twice.
    _lease: Holder
    _wakeup: Wakeup = field(default_factory=Wakeup)

    def __post_init__(self) -> None:
        self._files.adopts(FOLDER, _with_archive)
        self._steps = FairPlaces(1)
        self._finished = self._failed = self._messages = 0
        self.work_forever = OwnersLoop(
            self._oldest,
            self._work,
            owners_at_once=EXPORTS_AT_ONCE,
            failure="export_not_saved",
            every=_LOOK_SECONDS,
            retry_seconds=_STORE_SECONDS,
            wakeup=self._wakeup,
        ).run

    # Calls

    async def create(self, caller: Caller, request: ExportRequest) -> str:
        """Accept an export; return its id.

        Raises ValidationFailed, NotFound for an unknown id in a list, PermissionDenied, TooManyExports,
        ParquetNotInstalled.
        """
        now_ms = self._clock.now_ms()
        request.check(now_ms)
        if request.format == "parquet" and not parquet.is_installed():
            raise ParquetNotInstalled
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
            head=Position(0),
        )

        devices = _devices_of(record)

        def add(tx: Transaction) -> None:
            if caller.user is not None and tx.accounts.user(caller.user) is None:  # deleted since
                raise UserNotFound
            if caller.application is not None:
                require_application(tx, caller.application)
            self._require_budget(tx, record, now_ms)
            # Messages that are acknowledged by now are exported; later ones are not.
            tx.exports.put(replace(record, head=tx.messages.head()))
            tx.exports.put_devices(record.id, devices, start_ms=request.start_ms, end_ms=request.end_ms)

        await self._database.write(add)
        self._readers.note(caller, (await self._still_there(devices)).values())
        self._wakeup.set()
        _log.info("export_received", export_id=record.id)
        return record.id

    def _require_budget(self, tx: Transaction, record: ExportRecord, now_ms: int) -> None:
        """Raises TooManyExports."""
        of_owner, of_organization = _budgets(tx, record)
        if of_owner.waiting >= EXPORTS_WAITING_OF_USER or of_organization.waiting >= EXPORTS_WAITING_OF_ORGANIZATION:
            raise TooManyExports(_TRY_LATER_SECONDS)
        for budget, most in ((of_owner, EXPORT_BYTES_OF_USER), (of_organization, EXPORT_BYTES_OF_ORGANIZATION)):
            if budget.kept_bytes >= most:
                seconds = (budget.first_expires_on - now_ms) // 1000 + 1
                raise TooManyExports(max(_TRY_LATER_SECONDS, seconds))

    async def find(self, caller: Caller, export_id: str) -> Export:
        """An export of the caller. Raises NotFound, PermissionDenied."""
        record = await self._database.read(lambda tx: tx.exports.by_id(export_id))
        if record is None:
            raise NotFound
        check_caller(caller, record.user, record.application)
        return self._view(record)

    async def history(self, caller: Caller, *, trial: str | None, offset: int, count: int) -> tuple[list[Export], int]:
        """A page of the caller's exports, newest first, and the number of all."""
        records, total = await self._database.read(
            lambda tx: tx.exports.page(
                user=caller.user, application=caller.application, trial=trial, offset=offset, limit=count
            )
        )
        return [self._view(record) for record in records], total

    async def result(self, caller: Caller, export_id: str) -> tuple[Export, StoredFile]:
        """The export and its archive. Raises NotFound, PermissionDenied, Conflict, Gone."""
        export = await self.find(caller, export_id)
        if export.status is ExportStatus.EXPIRED:
            raise Gone
        if export.status is ExportStatus.FAILURE:
            raise Conflict("Export failed")
        if export.status not in WITH_RESULT:
            raise Conflict(NOT_READY)
        if (file := await self._files.find(_name(export_id))) is None:  # it has just expired
            raise Gone
        return export, file

    async def file_name(self, export: Export) -> str:
        """The name of an export's archive: its id; for spreadsheets and tables the device and the range of times."""
        request, extension = export.request, "zip" if export.request.is_tables else "tgz"
        if request.format != "csv2" and not request.is_tables:
            return f"{export.record.id}.{extension}"
        keys = _devices_of(export.record)
        labels = device_labels((await self._still_there(keys)).values())
        (what,) = labels.values() if len(keys) == len(labels) == 1 else (f"{len(keys)}-devices",)
        times = f"{file_time(request.start_ms)}_to_{file_time(request.end_ms)}"
        return f"{what}_{times}-{export.record.id[:8]}.{extension}"

    async def served(self, export_id: str) -> None:
        """Note that the archive was downloaded completely."""
        await self._database.write(partial(_move, export_id, ExportStatus.SERVED, None))

    async def forget(self, user: UserKey, devices: Collection[DeviceKey]) -> None:
        """Remove a user's exports, and end those of others that have messages of these devices, which are being
        removed. Raises StoreError."""

        def remove_own(tx: Transaction) -> None:
            for record in tx.exports.of_user(user):
                tx.exports.remove(record.id)
                tx.files.end(_name(record.id))

        await self._database.write(remove_own)
        while not await self._database.write(partial(_end_some, devices, "a user was deleted")):
            pass
        await self._files.sweep()

    def end_with(self, tx: Transaction, device: DeviceKey, *, start_ms: int, end_ms: int) -> bool:
        """End some exports that have messages of a device in a range of times, which are being deleted, or may have
        them. False: there may be more. One that waits will not have them."""
        return _end_some([device], "messages were deleted", tx, start_ms=start_ms, end_ms=end_ms)

    def end_all_of_application(self, issuance: Issuance, application: ApplicationRecord) -> None:
        """Remove what an application exported (`broker/accounts/application_ends.py: Ender`)."""
        for record in issuance.tx.exports.of_application(application.key):
            issuance.tx.exports.remove(record.id)
            issuance.tx.files.end(_name(record.id))

    def _view(self, record: ExportRecord) -> Export:
        status = ExportStatus(record.status)
        if status in WITH_RESULT and (record.expires_on or 0) <= self._clock.now_ms():
            status = ExportStatus.EXPIRED  # the worker has not expired it yet
        return Export(record, status, msgspec.json.decode(record.request, type=ExportRequest))

    # The worker

    async def _oldest(self) -> list[tuple[_Owner, str]]:
        """The id of the oldest export of each owner. Raises StoreError."""
        with making_room():
            await self.expire()
        return await self._database.read(
            lambda tx: [(_owner_of(tx, one), one.id) for one in tx.exports.first_of_each_owner(TO_DO)]
        )

    async def _work(self, owner: _Owner, export_id: str) -> None:
        """Write an export, or go on after its last saved step."""
        record = await self._database.read(lambda tx: tx.exports.by_id(export_id))
        if record is not None and record.status in TO_DO:  # it may have ended since it was found
            await self._export(owner, record)

    async def expire(self) -> None:
        """Expire exports that are older than 24 hours, and delete their archives."""
        if not self._clock.may_delete():
            return
        now_ms = self._clock.now_ms()
        for status in WITH_RESULT:
            for record in await self._database.read(partial(_expired, status, now_ms)):
                await self._database.write(partial(_expire, record.id, Milliseconds(now_ms + _DOWNLOAD_MS)))
                _log.info("export_expired", export_id=record.id)

    async def _export(self, owner: _Owner, record: ExportRecord) -> None:
        try:
            await self._write(owner, record)
        except StoreError:
            raise
        except OSError as error:
            _log.error("export_failed", export_id=record.id, reason=str(error))
            await self._fail(record, str(error))
        except Exception as error:  # noqa: BLE001 - a bug must not hold up the other exports
            _log.exception("export_failed", export_id=record.id)
            await self._fail(record, type(error).__name__)

    async def _fail(self, record: ExportRecord, reason: str) -> None:
        await self._database.write_own(self._lease, partial(_fail, record.id, reason))
        self._failed += 1

    async def _write(self, owner: _Owner, record: ExportRecord) -> None:
        request = msgspec.json.decode(record.request, type=ExportRequest)
        plan = msgspec.json.decode(record.plan, type=ExportPlan)
        request = plan.narrowed(request)
        devices = await self._still_there(key for _, keys in plan.groups for key in keys)
        record = replace(record, status=ExportStatus.IN_PROGRESS)
        file = await self._files.find(_name(record.id))
        # It was begun by an earlier version; or the process that wrote its file has ended with what it held.
        is_lost = request.format == "parquet" and record.written is not None
        if is_lost or size_written(record) != (0 if file is None else file.size):
            await self._files.clear(_name(record.id))
            record = replace(record, written=None, total_messages=0)
        if record.expected_messages is None:
            expected = await self._database.read(partial(_count, list(devices), request))
            record = replace(record, expected_messages=expected)
        if not await self._database.write_own(self._lease, partial(_put, record)):
            return
        writer: _Writer
        if request.is_tables:
            writer = TableWriter(_name(record.id), record, request, plan, devices)
        else:
            writer = ArchiveWriter(_name(record.id), record, request, plan, devices, self._mids, self._clock)
        try:
            await self._write_all(owner, writer, request, plan)
        finally:
            with trio.CancelScope(shield=True):  # it waits for the end of a process
                await finish_in_thread(writer.close)

    async def _write_all(self, owner: _Owner, writer: _Writer, request: ExportRequest, plan: ExportPlan) -> None:
        record = writer.record
        _log.info(
            "export_begun", export_id=record.id, messages=record.total_messages, expected=record.expected_messages
        )
        logged_at = trio.current_time()
        while True:
            async with self._steps.of(owner):
                await self._database.read(partial(_step, writer, self._files.folder))
            self._messages += writer.record.total_messages - record.total_messages
            record = writer.record
            if writer.is_done:  # the end of the archive is stored with the end of the export
                break
            if not await self._database.write_own(self._lease, partial(_put_step, writer, record)):
                return
            if trio.current_time() - logged_at >= _LOG_SECONDS:
                logged_at = trio.current_time()
                _log.info("export_progress", export_id=record.id, messages=record.total_messages)
        await self._succeed(writer, request, plan.recipients)

    async def _still_there(self, keys: Iterable[DeviceKey]) -> dict[DeviceKey, Device]:
        """The devices with these keys, except deleted ones."""
        devices: dict[DeviceKey, Device] = {}
        for key in keys:
            with suppress(DeviceNotFound):
                devices[key] = await self._devices.get(key)
        return devices

    async def _succeed(self, writer: _Writer, request: ExportRequest, recipients: Sequence[UserKey]) -> None:
        done = replace(writer.record, status=ExportStatus.SUCCESS, expires_on=self._clock.now_ms() + _KEPT_MS)
        letters = await self._letters(done, request, recipients)

        def save(tx: Transaction) -> bool:
            if not _put_step(writer, done, tx):
                return False
            for letter in letters:
                self._mails.add(tx, letter)
            return True

        if not await self._database.write_own(self._lease, save):
            return
        self._finished += 1
        _log.info("export_finished", export_id=done.id, messages=done.total_messages, bytes=done.file_size)

    async def _letters(
        self, record: ExportRecord, request: ExportRequest, recipients: Sequence[UserKey]
    ) -> list[Letter]:
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


class _TooLargeError(OSError):
    """The text is one line."""


def _owner_of(tx: Transaction, record: ExportRecord) -> _Owner:
    if record.user is not None:
        return record.user
    application = None if record.application is None else tx.accounts.application(record.application)
    if application is not None and tx.trials.of_application(application.key) is not None:
        return trials_of(application.organization)
    return f"application {record.application}"


def _budgets(tx: Transaction, record: ExportRecord) -> tuple[ExportsOf, ExportsOf]:
    """The exports of the owner of an export, and the ones of the organization of its application."""
    return tx.exports.of_owner(record, TO_DO, WITH_RESULT), tx.exports.of_organization(record, TO_DO, WITH_RESULT)


def _step(writer: _Writer, folder: Path, tx: Transaction) -> None:
    """One step of writing, in a thread. Raises OSError."""
    if room_in(folder) < 0:
        raise _TooLargeError(_NEARLY_FULL)
    writer.step(tx)


def _expired(status: ExportStatus, now_ms: int, tx: Transaction) -> list[ExportRecord]:
    return tx.exports.expired(status, now_ms)


def _count(devices: Sequence[DeviceKey], request: ExportRequest, tx: Transaction) -> int:
    return tx.message_searches.about(devices, start_ms=request.start_ms, end_ms=request.end_ms)


def _put_step(writer: _Writer, record: ExportRecord, tx: Transaction) -> bool:
    """Put a step as `_put` does. Raises OSError if the archives of the owner or the organization are too large."""
    budgets = _budgets(tx, record)
    for budget, most in zip(budgets, (EXPORT_BYTES_OF_USER, EXPORT_BYTES_OF_ORGANIZATION), strict=True):
        if budget.kept_bytes + writer.size > most:
            raise _TooLargeError(f"the archives that are kept would have more than {most} bytes")
    if not _put(record, tx):
        return False
    tx.files.append_to(_name(record.id), writer.added)
    return True


def _put(record: ExportRecord, tx: Transaction) -> bool:
    """Save the progress; False: the export was ended, because a user was deleted."""
    known = tx.exports.by_id(record.id)
    if known is None or known.status not in TO_DO:
        return False
    tx.exports.put(record)
    return True


def _devices_of(record: ExportRecord) -> set[DeviceKey]:
    plan = msgspec.json.decode(record.plan, type=ExportPlan)
    return {device for _, devices in plan.groups for device in devices}


def _end_some(
    devices: Collection[DeviceKey],
    reason: str,
    tx: Transaction,
    *,
    start_ms: int = 0,
    end_ms: int = _NEVER_MS,
) -> bool:
    """End some exports that have messages of these devices and times; whether these were all."""
    found = tx.exports.of_devices(
        devices, (*WITH_RESULT, ExportStatus.IN_PROGRESS), start_ms=start_ms, end_ms=end_ms, limit=_ENDED_AT_ONCE
    )
    for record in found:
        if record.status == ExportStatus.IN_PROGRESS:
            _fail(record.id, reason, tx)
        else:
            _expire(record.id, Milliseconds(0), tx)
    return len(found) < _ENDED_AT_ONCE


def _fail(export_id: str, reason: str, tx: Transaction) -> None:
    _move(export_id, ExportStatus.FAILURE, reason, tx)
    tx.files.end(_name(export_id))


def _expire(export_id: str, due_on: Milliseconds, tx: Transaction) -> None:
    _move(export_id, ExportStatus.EXPIRED, None, tx)
    tx.files.end(_name(export_id), due_on=due_on)


def _name(export_id: str) -> str:
    """The name of the archive in the store."""
    return f"{FOLDER}/{export_id}"


def _with_archive(tx: Transaction) -> dict[str, int]:
    """The sizes of the archives that there are, by the ids of their exports."""
    return {one.id: one.file_size or 0 for status in WITH_RESULT for one in tx.exports.expired(status, _NEVER_MS)}


def _move(export_id: str, status: ExportStatus, reason: str | None, tx: Transaction) -> None:
    """Change the status of an export, if the new one may follow its present one."""
    record = tx.exports.by_id(export_id)
    if record is not None and may_follow(status, record.status):
        tx.exports.put(replace(record, status=status, last_error=reason))
        if status not in {*TO_DO, *WITH_RESULT}:
            tx.exports.forget_devices(export_id)
