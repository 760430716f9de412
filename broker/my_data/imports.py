"""Bringing tables of messages, as exports write them, and the worker that stores them (reference 10.5).

A file is stored while it comes; its header is checked before anything else is. The worker reads the oldest import of
each user in turn, some lines at a time, as long as the application through which it came may write for the user. Lines
go the way of all messages: they are normalised, charged and stored with
their own times. A line whose device has a message of the same time and the same values is there already: so a file that
is brought twice, or read again after a restart, stores nothing twice.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.accounts.issuance import Issuance
from broker.accounts.permissions import Permission, Permissions, Reach
from broker.accounts.tokens import Caller, user_through
from broker.clock import Clock
from broker.device_types.catalog import DeviceTypes, ManifestVersion
from broker.device_types.dropped import DroppedField
from broker.device_types.manifest import Manifest
from broker.device_types.normalize import Normalizer
from broker.devices.registry import Device, Devices
from broker.errors import (
    REQUIRED,
    BodyTooLarge,
    DeviceNotFound,
    DomainError,
    NotFound,
    PermissionDenied,
    StorageUnavailable,
    TryLater,
    UserNotFound,
    ValidationFailed,
    invalid,
)
from broker.export.tables import SDID
from broker.files import Draft, Files, StoredFile, room_in
from broker.ids import new_id
from broker.limits.refusals import DailyQuotaExceeded, MonthlyQuotaExceeded
from broker.loops import Loop, Wakeup
from broker.messages.batches import Turn
from broker.messages.ingest import Ingest, Normalized
from broker.my_data.csv_lines import Cell, CsvLines, CsvRecord
from broker.my_data.table_lines import Line, TableHeader, WrongLine
from broker.trace.audit import AuditEvent, note
from config.limits import IMPORT_BYTES, IMPORT_WRONG_LINES, IMPORTS_KEPT_DAYS, IMPORTS_OF_USER, IMPORTS_SHOWN
from storage.database import Database
from storage.imports import ImportRecord
from storage.keys import DeviceKey, Milliseconds, UserKey
from storage.leases import Holder
from storage.message_searches import Range
from storage.records import ApplicationRecord, UserRecord
from storage.sql import DISK_FULL, StoreError
from storage.transaction import Transaction

_LOOK_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.01  # others commit
_PIECE_BYTES: Final = 64 * 1024
_LINES_OF_TURN: Final = 500
_BEGINNING_BYTES: Final = 256 * 1024  # in which the header and the first line are
_LOOK_BYTES: Final = 4 * 1024 * 1024
_SAME_TIME: Final = 1_000  # messages of one moment that are compared
_ROWS_AT_ONCE: Final = 2_000  # that are compared in one read, and those of one more moment
_DAY_MS: Final = 86_400_000
_TRY_LATER_SECONDS: Final = 60
_FOLDER: Final = "imports"
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode
_log = structlog.get_logger(__name__)


#: Device, time and values of a message.
_Place = tuple[DeviceKey, int, bytes]


class Wrong(msgspec.Struct, frozen=True):
    line: int
    reason: str


@dataclass(eq=False)
class TooManyImports(TryLater):
    """A user has as many that go on as may be at a time."""

    template = "Too many imports go on. Try again in {retry_seconds} seconds"


class _Stopped(Exception):
    """The import cannot go on; the text says why."""


class ImportStatistics(msgspec.Struct, frozen=True):
    """Counts since the start: imports that ended, and lines by their outcome."""

    finished: int
    failed: int
    stored: int
    present: int
    wrong: int


class Imports:
    def __init__(
        self,
        database: Database,
        devices: Devices,
        types: DeviceTypes,
        permissions: Permissions,
        ingest: Ingest,
        files: Files,
        lease: Holder,
        clock: Clock,
        wakeup: Wakeup,
    ) -> None:
        self._database, self._devices, self._types, self._permissions = database, devices, types, permissions
        self._ingest, self._files, self._lease, self._clock = ingest, files, lease, clock
        self._wakeup = wakeup
        self._normalizers: dict[ManifestVersion, Normalizer] = {}
        self._finished = self._failed = self._lines_stored = self._lines_present = self._lines_wrong = 0
        self.work_forever = Loop(
            self._turn,
            every=_LOOK_SECONDS,
            wakeup=wakeup,
            at_once=True,
            failure="imports_not_stored",
            retry_seconds=_RETRY_SECONDS,
        ).run

    # Calls

    async def create(self, caller: Caller, chunks: AsyncIterator[bytes], device: Device | None) -> ImportRecord:
        """Store a file while it comes, when its header is right. The lines of a file without a column `sdid` go to
        `device`, on which the caller may write.

        Raises:
            ValidationFailed: nothing of the file is taken.
            BodyTooLarge, TooManyImports, StorageUnavailable, PermissionDenied, DeviceNotFound, StoreError.
        """
        if (user := caller.user) is None:
            raise PermissionDenied("a user's token")
        await self._database.read(partial(_check_number, user))
        draft, beginning = self._files.draft(), _Beginning()
        record: ImportRecord | None = None
        looked_at = 0
        try:
            async for chunk in chunks:
                if draft.size + len(chunk) > IMPORT_BYTES:
                    raise BodyTooLarge
                if draft.size >= looked_at:  # others fill the disk, too
                    looked_at = draft.size + _LOOK_BYTES
                    if await trio.to_thread.run_sync(room_in, self._files.folder) < _LOOK_BYTES:
                        raise StorageUnavailable("the disk is nearly full: imports leave room for the store", DISK_FULL)
                if record is None and beginning.has(chunk):
                    record = await self._begun(caller, user, beginning, device)
                await draft.add(chunk)
            if record is None:
                beginning.end()
                record = await self._begun(caller, user, beginning, device)
            await draft.flush()
            return await self._added(record, draft)
        except OSError as error:
            await draft.drop()
            raise StorageUnavailable(str(error)) from error
        except BaseException:  # whatever it is: no file without an import must stay; raised again
            await draft.drop()
            raise

    async def _begun(
        self, caller: Caller, user: UserKey, beginning: "_Beginning", device: Device | None
    ) -> ImportRecord:
        """Check the header by the type of the device, or by that of the device in the first line."""
        if beginning.header is None:
            raise ValidationFailed.of("body", REQUIRED)
        if beginning.header.wrong:
            raise ValidationFailed.of("header", invalid(beginning.header.wrong))
        cells = beginning.header.cells
        first = device
        if first is None:
            place = next((place for place, cell in enumerate(cells) if cell.text.strip() == SDID), None)
            if place is None:
                raise ValidationFailed.of("sdid", "Required without the column sdid")
            if beginning.first is None or place >= len(beginning.first.cells):
                raise ValidationFailed.of("body", "line 2 has to name a device in the column sdid")
            first = await self._devices.find(beginning.first.cells[place].text)
            await self._permissions.require(caller, first, Permission.WRITE)
        TableHeader(cells, self._manifests(first), needs_sdid=device is None)
        return ImportRecord(
            id=new_id(),
            user=user,
            device=None if device is None else device.key,
            device_type=first.type_key,
            header=_encode(cells).decode(),
            size=0,
            position=beginning.header.end,
            line=beginning.header.behind,
            asked_on=Milliseconds(self._clock.now_ms()),
            application=caller.application,
        )

    async def _added(self, record: ImportRecord, draft: Draft) -> ImportRecord:
        record = replace(record, size=draft.size)

        def add(tx: Transaction) -> None:
            if tx.accounts.user(record.user) is None:  # deleted since
                raise UserNotFound
            _check_number(record.user, tx)
            draft.keep(tx, _name(record.id))
            tx.imports.put(record)
            note(tx, AuditEvent.MESSAGES_IMPORTED, f"import {record.id}", now_ms=record.asked_on, bytes=record.size)

        await self._database.write(add)
        self._wakeup.set()
        return record

    async def find(self, caller: Caller, id_: str) -> ImportRecord:
        """One of the caller's user. Raises NotFound, PermissionDenied."""
        record = await self._database.read(lambda tx: tx.imports.by_id(id_))
        if record is None:
            raise NotFound
        if record.user != caller.user:
            raise PermissionDenied("access to this import")
        return record

    async def latest(self, caller: Caller) -> list[ImportRecord]:
        """The latest ones of the caller's user, newest first."""
        if (user := caller.user) is None:
            raise PermissionDenied("a user's token")
        return await self._database.read(lambda tx: tx.imports.of_user(user, limit=IMPORTS_SHOWN))

    def end_all_of(self, issuance: Issuance, user: UserRecord) -> Sequence[str]:
        """Remove a user's imports and their files in the caller's transaction (`broker/accounts/claims.py: Ender`)."""
        for id_ in issuance.tx.imports.remove_of(user.key):
            issuance.tx.files.end(_name(id_))
        return ()

    def _manifests(self, device: Device) -> list[tuple[int, Manifest]]:
        """The Manifests whose fields columns may have: that of the device, and the newest of its type."""
        return [(one.version, one.manifest) for one in (device.manifest, device.type.latest)]

    def statistics(self) -> ImportStatistics:
        return ImportStatistics(
            self._finished, self._failed, self._lines_stored, self._lines_present, self._lines_wrong
        )

    # The worker

    async def _turn(self) -> bool:
        """Some lines of the oldest import of each user. Raises StoreError."""
        if self._clock.may_delete():
            before_ms = self._clock.now_ms() - IMPORTS_KEPT_DAYS * _DAY_MS
            await self._database.write_own(self._lease, lambda tx: tx.imports.forget_ended(before_ms))
        first = await self._database.read(lambda tx: tx.imports.first_of_each_user())
        for record in first:
            try:
                await self._some(record)
            except _Stopped as stopped:
                await self._end(record, str(stopped))
            except StorageUnavailable as error:
                raise StoreError(str(error)) from error
            await trio.sleep(_PAUSE_SECONDS)
        return bool(first)

    async def _some(self, record: ImportRecord) -> None:
        """Store the next lines of one."""
        if (file := await self._files.find(_name(record.id))) is None:
            raise _Stopped("the file is gone")
        reach = await self._reach(record)
        turn = Turn()
        records, is_end = await _lines(file, record, turn)
        done = _Counts(record)
        header = await self._header(record)
        found: list[tuple[int, Device, Line]] = []
        for one in records:
            try:
                if one.wrong:
                    raise WrongLine(one.wrong)
                line = header.line(one.cells)
                found.append((one.number, await self._device_of(record, line, reach), line))
            except WrongLine as error:
                done.wrong(one.number, str(error))
            await turn.pause()
        stop = await self._stored(found, done, turn)
        progress = replace(done.record, position=file.size)
        if records:
            progress = replace(done.record, position=records[-1].end, line=records[-1].behind)
        await self._save(done.record if stop else progress)
        self._lines_stored += progress.stored - record.stored
        self._lines_present += progress.present - record.present
        self._lines_wrong += progress.wrong - record.wrong
        if stop or is_end:
            await self._end(progress, stop)

    async def _header(self, record: ImportRecord) -> TableHeader:
        """The header, by the Manifests of now."""
        cells = msgspec.json.decode(record.header, type=list[Cell])
        try:
            type_ = await self._types.get(record.device_type)
            manifests = [(type_.latest.version, type_.latest.manifest)]
            if record.device is not None:
                manifests += self._manifests(await self._devices.get(record.device))
            return TableHeader(cells, manifests, needs_sdid=record.device is None)
        except DomainError as error:
            raise _Stopped(f"the device or its type has changed: {error}") from error

    async def _reach(self, record: ImportRecord) -> Reach | None:
        """The reach of user and application, as of now; None: the record names no application.

        A grant may have ended, with a trial or without one, the user may be disabled, and the device another one's.
        """
        user, through, is_of_trial = await self._database.read(partial(_parties, record))
        if user is None or user.disabled_on is not None:
            raise _Stopped("the account is disabled")
        try:
            type_ = await self._types.get(record.device_type)
            device = None if record.device is None else await self._devices.get(record.device)
        except DomainError as error:
            raise _Stopped(f"the device or its type is gone: {error}") from error
        reach = None
        if record.application is not None:
            if through is None:
                raise _Stopped("the application was deleted")
            caller = user_through(user.key, user.id, through.key, through.id, through.organization)
            if is_of_trial:
                caller = replace(caller, application_organization=None, trial_organization=through.organization)
            reach = await self._permissions.reach(caller)
            if not reach.allows_type(user.key, type_.record, Permission.WRITE):
                raise _Stopped("the application may no longer write messages of devices of this type for the user")
        if device is not None and not _may_write(record, device, reach):
            raise _Stopped("the user may no longer write on the device")
        return reach

    async def _device_of(self, record: ImportRecord, line: Line, reach: Reach | None) -> Device:
        """The device of a line, if the user may write on it. Raises WrongLine."""
        try:
            device = await self._devices.find(line.sdid) if line.sdid else None
            if record.device is not None:
                chosen = await self._devices.get(record.device)
                if device is not None and device is not chosen:
                    raise WrongLine("is of another device")
                device = chosen
        except DeviceNotFound:
            raise WrongLine("names a device that does not exist") from None
        if device is None:
            raise WrongLine("names no device")
        if not _may_write(record, device, reach):
            raise WrongLine("names a device on which you may not write")
        if device.type_key != record.device_type:
            raise WrongLine("names a device of another type than the first line")
        return device

    async def _stored(self, found: Sequence[tuple[int, Device, Line]], done: "_Counts", turn: Turn) -> str:
        """Submit lines and wait for their commit. The result says why the import stops; it is empty if it goes on."""
        made: list[_Made] = []
        for number, device, line in found:
            try:
                made.append(self._made(number, device, line))
            except (WrongLine, DomainError) as error:
                done.wrong(number, str(error))
            await turn.pause()
        known = await self._present({one.place for one in made})
        stop = ""
        await self._ingest.wait_room()
        for one in made:
            try:
                if one.place in known:
                    done.present()
                    continue
                self._ingest.submit(one.device, one.line.payload, one.line.ts, [], one.ahead)
                known.add(one.place)
                done.stored()
            except (DailyQuotaExceeded, MonthlyQuotaExceeded) as refusal:
                stop = f"line {one.number}: {refusal}"
                break
            except DomainError as error:
                done.wrong(one.number, str(error))
        await self._ingest.wait_committed()
        return stop

    def _made(self, number: int, device: Device, line: Line) -> "_Made":
        """Raises WrongLine, DomainError."""
        dropped: list[DroppedField] = []
        version = device.manifest
        data = self._normalizer(version).normalize_noting(line.payload, dropped)
        if dropped:
            raise WrongLine(f"{dropped[0].field}: {dropped[0].message}")
        if data is None:
            raise WrongLine("has no value that the Manifest keeps")
        place = (device.key, line.ts, _values_of(data))
        return _Made(number, device, line, Normalized(version, data), place)

    async def _present(self, wanted: "set[_Place]") -> "set[_Place]":
        """The wanted ones that are messages already. Many may have the same time, so they are read in steps."""
        found, times = set[_Place](), sorted({(device, ts) for device, ts, _ in wanted})
        while times:
            some, number = await self._database.read(partial(_messages_at, times, wanted))
            found |= some
            del times[:number]
        return found

    def _normalizer(self, version: ManifestVersion) -> Normalizer:
        """Without the transform of the Manifest: lines have what it makes."""
        if version not in self._normalizers:
            if len(self._normalizers) > 100:
                self._normalizers.clear()
            self._normalizers[version] = Normalizer(version.manifest)
        return self._normalizers[version]

    async def _save(self, record: ImportRecord) -> None:
        def put(tx: Transaction) -> None:
            if tx.imports.by_id(record.id) is not None:  # else the user was deleted
                tx.imports.put(record)

        await self._database.write_own(self._lease, put)

    async def _end(self, record: ImportRecord, reason: str) -> None:
        now_ms = Milliseconds(self._clock.now_ms())

        def end(tx: Transaction) -> None:
            if (known := tx.imports.by_id(record.id)) is not None:
                tx.imports.put(replace(known, reason=reason, ended_on=now_ms))
            tx.files.end(_name(record.id))

        await self._database.write_own(self._lease, end)
        if reason:
            self._failed += 1
        else:
            self._finished += 1
        _log.info("import_ended", import_id=record.id, stored=record.stored, reason=reason)


class _Made(NamedTuple):
    """A line as the message that it becomes."""

    number: int
    device: Device
    line: Line
    ahead: Normalized
    place: _Place


class _Beginning:
    """The header and the first line of a file that comes."""

    def __init__(self) -> None:
        self._lines = CsvLines()
        self._size = 0
        self.header: CsvRecord | None = None
        self.first: CsvRecord | None = None

    def has(self, chunk: bytes) -> bool:
        """Whether both have come. Raises ValidationFailed: they have not, after so much of the file."""
        self._size += len(chunk)
        self._note(self._lines.feed(chunk))
        if self.first is None and self._size > _BEGINNING_BYTES:
            raise ValidationFailed.of("body", invalid(f"has no two lines in its first {_BEGINNING_BYTES} bytes"))
        return self.first is not None

    def end(self) -> None:
        self._note(self._lines.end())

    def _note(self, records: Iterator[CsvRecord]) -> None:
        """Take what is missing; the others are not read."""
        if self.header is None:
            self.header = next(records, None)
        if self.header is not None and self.first is None:
            self.first = next(records, None)


class _Counts:
    """Counts lines by their outcome."""

    def __init__(self, record: ImportRecord) -> None:
        self.record = record

    def stored(self) -> None:
        self.record = replace(self.record, stored=self.record.stored + 1)

    def present(self) -> None:
        self.record = replace(self.record, present=self.record.present + 1)

    def wrong(self, line: int, reason: str) -> None:
        record = self.record
        if record.wrong < IMPORT_WRONG_LINES:
            lines = [*msgspec.json.decode(record.wrong_lines, type=list[Wrong]), Wrong(line, reason)]
            record = replace(record, wrong_lines=_encode(lines).decode())
        self.record = replace(record, wrong=record.wrong + 1)


async def _lines(file: StoredFile, record: ImportRecord, turn: Turn) -> tuple[list[CsvRecord], bool]:
    """The next records, and whether the file has no more."""
    lines, records, position = CsvLines(record.position, record.line), list[CsvRecord](), record.position
    while position < file.size:
        if not (piece := await file.read(position, _PIECE_BYTES)):
            raise _Stopped("the file is gone")
        position += len(piece)
        for one in lines.feed(piece):
            if len(records) >= _LINES_OF_TURN:  # there is more
                return records, False
            records.append(one)
            await turn.pause()
    for one in lines.end():
        if len(records) >= _LINES_OF_TURN:
            return records, False
        records.append(one)
    return records, True


def _messages_at(
    times: Sequence[tuple[DeviceKey, int]], wanted: "set[_Place]", tx: Transaction
) -> "tuple[set[_Place], int]":
    """The messages among the wanted ones at the first of these times, and how many times these were."""
    found, looked_at = set[_Place](), 0
    for number, (device, ts) in enumerate(times, 1):
        search = Range(Milliseconds(ts), Milliseconds(ts), limit=_SAME_TIME)
        rows = tx.message_searches.page([device], search)
        found |= wanted.intersection((device, row.ts, _values_of(row.data)) for row in rows)
        looked_at += len(rows)
        if looked_at >= _ROWS_AT_ONCE:
            return found, number
    return found, len(times)


def _values_of(data: bytes | str) -> bytes:
    """The values of a message in one form: 20 and 20.0 are the same number, and the order of fields says nothing."""
    return _encode_sorted(_in_one_form(_decode(data)))


def _in_one_form(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _in_one_form(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(_in_one_form, value))
    return int(value) if type(value) is float and value.is_integer() else value


def _parties(record: ImportRecord, tx: Transaction) -> tuple[UserRecord | None, ApplicationRecord | None, bool]:
    """The user, the application, and whether that is the one of a trial."""
    user = tx.accounts.user(record.user)
    if record.application is None:
        return user, None, False
    is_of_trial = tx.trials.of_application(record.application) is not None
    return user, tx.accounts.application(record.application), is_of_trial


def _may_write(record: ImportRecord, device: Device, reach: Reach | None) -> bool:
    return device.is_held_by(record.user) if reach is None else reach.allows(device, Permission.WRITE)


def _check_number(user: UserKey, tx: Transaction) -> None:
    """Raises TooManyImports."""
    if tx.imports.open_of(user) >= IMPORTS_OF_USER:
        raise TooManyImports(_TRY_LATER_SECONDS)


def _name(id_: str) -> str:
    return f"{_FOLDER}/{id_}"
