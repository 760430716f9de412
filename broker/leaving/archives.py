"""An archive of all that the service knows of a user (reference 5.8), written by one worker in the background.

A user has one at a time. Its first entries are JSON files with the user's rows of the store; then come the messages of
the user's devices, the newest first, so that an archive that reaches its bound lacks the oldest ones. An unfinished
one is begun again after a stop of the daemon.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import Conflict, DeviceNotFound, Gone, NotFound, TryLater, UserNotFound
from broker.export.archive import Archive
from broker.export.requests import ExportPlan, ExportRequest
from broker.export.writer import ArchiveWriter
from broker.files import Files, StoredFile
from broker.ids import new_id
from broker.loops import Loop, Wakeup
from broker.messages.mids import Mids
from config.limits import ARCHIVE_KEPT_HOURS, ARCHIVE_MAX_BYTES, ARCHIVE_PART_ROWS, ARCHIVE_PAUSE_SECONDS
from storage.archives import PARTS, ArchiveRecord
from storage.database import Database
from storage.keys import ApplicationKey, DeviceKey, Milliseconds, UserKey
from storage.message_searches import Range
from storage.records import ExportRecord, UserRecord
from storage.sql import StoreError
from storage.transaction import Transaction

#: Where earlier versions had archives, and how the names of archives in the store begin.
_FOLDER: Final = "archives"
NOT_READY: Final = "Archive is not ready"
_LOOK_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 5.0
_FOREVER_MS: Final = Milliseconds(2**62)
_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger(__name__)


class ArchiveStatus(StrEnum):
    RECEIVED = "Received"
    IN_PROGRESS = "InProgress"
    SUCCESS = "Success"
    FAILURE = "Failure"


@dataclass(eq=False)
class TooManyArchives(TryLater):
    """The user has had an archive a short time ago."""

    template = "An archive was made a short time ago. Try again in {retry_seconds} seconds"


class ArchiveStatistics(msgspec.Struct, frozen=True):
    """Counts since the start."""

    finished: int
    failed: int


class Archives:
    """The caller of a method has checked that the user asks."""

    def __init__(
        self, database: Database, devices: Devices, mids: Mids, clock: Clock, files: Files, wakeup: Wakeup
    ) -> None:
        self._database = database
        self._devices = devices
        self._mids = mids
        self._clock = clock
        self._files = files
        files.adopts(_FOLDER, lambda tx: tx.user_archives.sizes(ArchiveStatus.SUCCESS))
        self._wakeup = wakeup
        self._finished = self._failed = 0

    async def ask(self, user: UserRecord) -> ArchiveRecord:
        """Have an archive made. While one is being made, that one is meant. A new one replaces the one before.

        Raises UserNotFound: the user was deleted; TooManyArchives.
        """
        now_ms = self._clock.now_ms()
        wanted = ArchiveRecord(user.key, new_id(), ArchiveStatus.RECEIVED, now_ms)

        def work(tx: Transaction) -> ArchiveRecord:
            if tx.accounts.user(user.key) is None:
                raise UserNotFound
            known = tx.user_archives.of(user.key)
            if known is not None and known.status in {ArchiveStatus.RECEIVED, ArchiveStatus.IN_PROGRESS}:
                return known
            if known is not None and known.status == ArchiveStatus.SUCCESS:
                wait_ms = known.created_on + ARCHIVE_PAUSE_SECONDS * 1000 - now_ms
                if 0 < wait_ms <= ARCHIVE_PAUSE_SECONDS * 1000:
                    raise TooManyArchives(-(-wait_ms // 1000))
            if known is not None:
                tx.files.end(_name(known))
            tx.user_archives.put(wanted)
            return wanted

        asked = await self._database.write(work)
        self._wakeup.set()
        return asked

    async def latest(self, user: UserRecord) -> ArchiveRecord | None:
        """None: the user has not asked for one, or its time is over."""
        found = await self._database.read(lambda tx: tx.user_archives.of(user.key))
        if found is None or (found.expires_on is not None and found.expires_on <= self._clock.now_ms()):
            return None
        return found

    async def result(self, user: UserRecord) -> tuple[ArchiveRecord, StoredFile]:
        """The archive and its file. Raises NotFound, Conflict, Gone."""
        if (found := await self.latest(user)) is None:
            raise NotFound
        if found.status == ArchiveStatus.FAILURE:
            raise Gone
        if found.status != ArchiveStatus.SUCCESS:
            raise Conflict(NOT_READY)
        if (file := await self._files.find(_name(found))) is None:  # its time was over just now
            raise Gone
        return found, file

    async def forget(self, user: UserKey) -> None:
        """Remove a user's archive, also one that is being written. Raises StoreError."""

        def work(tx: Transaction) -> None:
            if (found := tx.user_archives.of(user)) is not None:
                tx.files.end(_name(found))
            tx.user_archives.remove(user)

        await self._database.write(work)
        await self._files.sweep()

    # The worker

    async def work_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await Loop(
            self._work,
            every=_LOOK_SECONDS,
            wakeup=self._wakeup,
            at_once=True,
            failure="archive_not_saved",
            retry_seconds=_RETRY_SECONDS,
        ).run(task_status=task_status)

    async def _work(self) -> bool:
        await self._expire()
        record = await self._database.read(_next)
        if record is None:
            return False
        try:
            await self._write(record)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a full disk or a bug must not hold up other archives
            _log.exception("archive_failed", archive=record.id, reason=str(error))
            await self._files.clear(_name(record))
            expires_on = Milliseconds(self._clock.now_ms() + ARCHIVE_KEPT_HOURS * 3_600_000)
            await self._save(replace(record, status=ArchiveStatus.FAILURE, expires_on=expires_on))
            self._failed += 1
        return True

    async def _expire(self) -> None:
        if not self._clock.may_delete():
            return
        now_ms = self._clock.now_ms()
        for record in await self._database.read(lambda tx: tx.user_archives.expired(now_ms)):
            await self.forget(record.user)

    async def _write(self, record: ArchiveRecord) -> None:
        record = replace(record, status=ArchiveStatus.IN_PROGRESS)
        if not await self._save(record):
            return
        await self._files.clear(_name(record))
        writing = _Writing(record, self._mids, self._clock, await self._devices_of(record))
        for step in writing.steps():
            await self._database.read(step)
            if not await self._save(record, writing.added):  # the user was deleted
                return
        done = replace(
            writing.record,
            status=ArchiveStatus.SUCCESS,
            expires_on=Milliseconds(self._clock.now_ms() + ARCHIVE_KEPT_HOURS * 3_600_000),
        )
        if await self._save(done):
            self._finished += 1
            _log.info("archive_finished", archive=done.id, messages=done.messages, bytes=done.file_size)

    async def _devices_of(self, record: ArchiveRecord) -> dict[DeviceKey, Device]:
        devices = {}
        for key, _ in await self._database.read(lambda tx: tx.user_archives.devices_of(record.user)):
            with suppress(DeviceNotFound):
                devices[key] = await self._devices.get(key)
        return devices

    async def _save(self, record: ArchiveRecord, added: bytes = b"") -> bool:
        """Save the progress, with the bytes that were added. False: the archive is gone."""

        def work(tx: Transaction) -> bool:
            known = tx.user_archives.of(record.user)
            if known is None or known.id != record.id:
                return False
            tx.user_archives.put(record)
            if added:
                tx.files.append_to(_name(record), added)
            return True

        return await self._database.write(work)

    def statistics(self) -> ArchiveStatistics:
        return ArchiveStatistics(self._finished, self._failed)


class _Writing:
    """Writes one archive, an entry for each step; each step runs in a thread. `added` has the bytes of the last one."""

    def __init__(self, record: ArchiveRecord, mids: Mids, clock: Clock, devices: dict[DeviceKey, Device]) -> None:
        self.record = record
        self.added = b""
        self._mids = mids
        self._clock = clock
        self._devices = devices
        self._archive = Archive()
        self._messages: ArchiveWriter | None = None
        self._shortened: list[str] = []

    def steps(self) -> Iterator[Any]:
        for part in PARTS:
            yield partial(self._add_part, part)
        for key, device in self._devices.items():
            yield partial(self._add_actions, key, device)
        if self._devices:
            yield self._begin_messages
            while self._messages is not None and not self._messages.is_done:
                yield self._add_messages
        else:
            yield self._end

    def _add_part(self, part: str, tx: Transaction) -> None:
        rows = list(tx.user_archives.rows(part, self.record.user, limit=ARCHIVE_PART_ROWS + 1))
        if len(rows) > ARCHIVE_PART_ROWS:
            self._shortened.append(part)
        self._add(f"{part}.json", _encode([_shown(row) for row in rows[:ARCHIVE_PART_ROWS]]))

    def _add_actions(self, key: DeviceKey, device: Device, tx: Transaction) -> None:
        """Add the Actions that were sent to the device, the newest first."""
        wanted = Range(limit=ARCHIVE_PART_ROWS + 1, start_ms=Milliseconds(0), end_ms=_FOREVER_MS, descending=True)
        rows = tx.message_searches.action_page([key], wanted)
        if len(rows) > ARCHIVE_PART_ROWS:
            self._shortened.append(f"actions of {device.id}")
        if rows:
            shown = [{"ts": row.ts, "cts": row.cts, "data": msgspec.Raw(row.data.encode())} for row in rows]
            self._add(f"actions-{device.id}.json", _encode(shown[:ARCHIVE_PART_ROWS]))

        else:
            self.added = b""

    def _add(self, name: str, content: bytes) -> None:
        self._archive.add(name, content, now_ms=self._clock.now_ms())
        self.added = self._archive.take()

    def _begin_messages(self, tx: Transaction) -> None:
        self._add("about.json", self._about())
        request = ExportRequest(Milliseconds(0), _FOREVER_MS, order="desc")
        plan = ExportPlan([(device.id, [key]) for key, device in self._devices.items()], [])
        export = ExportRecord(
            id=self.record.id,
            user=self.record.user,
            application=ApplicationKey(0),
            trial=None,
            request="",
            plan="",
            status="",
            created_on=self.record.created_on,
            head=tx.messages.head(),
        )
        self._messages = ArchiveWriter("", export, request, plan, self._devices, self._mids, self._clock, self._archive)

    def _about(self) -> bytes:
        return _encode(
            {
                "createdOn": self.record.created_on,
                "shortened": self._shortened,
                "devices": [device.id for device in self._devices.values()],
                "bytesAtMost": ARCHIVE_MAX_BYTES,
            }
        )

    def _add_messages(self, tx: Transaction) -> None:
        assert self._messages is not None  # noqa: S101 - it was begun
        if self._messages.size < ARCHIVE_MAX_BYTES:
            self._messages.step(tx)
        else:
            self._messages.end(tx)
            self._shortened.append("messages")
        self.added = self._messages.added
        written = self._messages.record
        self.record = replace(
            self.record,
            file_size=written.file_size,
            md5=written.md5,
            messages=written.total_messages,
            is_whole=not self._shortened,
        )

    def _end(self, _tx: Transaction) -> None:
        self._archive.add("about.json", self._about(), now_ms=self._clock.now_ms())
        self._archive.finish()
        self.added = self._archive.take()
        size, md5 = self._archive.size, self._archive.md5
        self.record = replace(self.record, file_size=size, md5=md5, is_whole=not self._shortened)


def _name(archive: ArchiveRecord) -> str:
    """The name of the archive's file in the store."""
    return f"{_FOLDER}/{archive.id}"


def _next(tx: Transaction) -> ArchiveRecord | None:
    return tx.user_archives.next_with(ArchiveStatus.IN_PROGRESS) or tx.user_archives.next_with(ArchiveStatus.RECEIVED)


#: Columns of JSON text, which an archive shows as JSON.
_JSON: Final = frozenset(
    {
        "body",
        "actions",
        "definition",
        "request",
        "details",
        "devices",
        "data",
        "snapshot",
        "content",
        "value",
        "reported",
    }
    | {"server_properties", "reported_properties", "cause", "tiles", "wrong_lines"}
)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: msgspec.Raw(value.encode()) if name in _JSON and value else value for name, value in row.items()}
