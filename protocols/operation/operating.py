"""State of the daemon for the operator's page; implements broker/operating/port.py."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

import msgspec
import trio

from broker.backup.archive import BackupError, CopyPace
from broker.operating.forecast import Forecast
from broker.operating.port import BackupFailedError, Check, Copied, ListenerStatus, Room, RoomPart
from config.settings import Address, Settings
from protocols.doctor.database import look_at_its_room
from protocols.doctor.examination import examine
from protocols.doctor.patient import Patient
from protocols.doctor.sizes import forecast_of
from protocols.doctor.state import available_bytes, disk_finding
from protocols.errors import StateError
from protocols.metrics.vitals import Vitals
from protocols.operation.backup import MIB, BackupNotWrittenError, make_backup, make_folder, name_by_time
from storage.migrations import VERSION
from storage.sql import StoreError

#: Bytes per second of a copy at most: the daemon needs the disk, too.
_BYTES_A_SECOND: Final = 32 * MIB
_NAMED: Final = re.compile(r"trunkline-[0-9]{8}T[0-9]{12}Z\.tar\.gz")
#: How fast the store grows changes slowly, and looking it up reads the store.
_FORECAST_SECONDS: Final = 60.0
_EXAMINATION_SECONDS: Final = 30.0
_UNIT: Final = "trunkline.service"


class DaemonMachine:
    def __init__(self, settings: Settings, vitals: Vitals, addresses: Mapping[str, Address]) -> None:
        self._settings = settings
        self._vitals = vitals
        self._addresses = addresses
        self._forecast: tuple[float, Forecast | None] | None = None
        self._examining = trio.Lock()
        self._checks: tuple[float, Sequence[Check]] | None = None

    @property
    def version(self) -> str:
        return VERSION

    async def problem(self) -> str:
        return await self._vitals.problem()

    def listeners(self) -> Sequence[ListenerStatus]:
        answers = {name: traffic.statuses for name, traffic in self._vitals.traffic.items()}
        found = [
            ListenerStatus(
                name,
                ", ".join(map(str, address.all)),
                "",
                {str(code): times for code, times in answers.get(name, {}).items()},
            )
            for name, address in self._addresses.items()
        ]
        return [*found, *(ListenerStatus(name, "", reason, {}) for name, reason in self._vitals.closed.items())]

    def counters(self) -> Mapping[str, object]:
        return {name: read() for name, read in self._vitals.counters.items()}

    async def room(self) -> Room:
        return await trio.to_thread.run_sync(self._room)

    def _room(self) -> Room:
        settings, now = self._settings, time.monotonic()
        if self._forecast is None or now - self._forecast[0] > _FORECAST_SECONDS:
            with suppress(StoreError):  # the doctor's check of the store tells
                self._forecast = now, forecast_of(settings)
        found = None if self._forecast is None else self._forecast[1]
        available, full = available_bytes(settings.state_dir), None
        if settings.storage.is_postgresql:  # its disk is the server's
            finding = next(look_at_its_room(Patient(settings, None, "", _UNIT)))
        else:
            finding = disk_finding(available, found)
            full = None if found is None else found.full_after(available)
        if found is None:
            return Room(0, available, None, None, finding.text)
        parts = [RoomPart(one.name, round(one.size), round(one.bytes_a_day)) for one in found.parts]
        parts.append(RoomPart("free pages", found.measured.free_bytes, 0))
        grows = None if found.bytes_a_day is None else round(found.bytes_a_day)
        return Room(found.measured.store_bytes, available, grows, full, finding.text, parts)

    async def examine(self) -> Sequence[Check]:
        """One examination at a time; what it found is good for half a minute."""
        async with self._examining:
            now = trio.current_time()
            if self._checks is None or now - self._checks[0] > _EXAMINATION_SECONDS:
                core = self._vitals.core
                statistics = msgspec.to_builtins({**core.life.statistics(), **self.counters()}, str_keys=True)
                patient = Patient(self._settings, statistics, "", _UNIT)
                found = await trio.to_thread.run_sync(lambda: list(examine(patient)), abandon_on_cancel=True)
                self._checks = trio.current_time(), [Check(one.check, one.ok, one.text) for one in found]
            return self._checks[1]

    async def back_up(self, folder: Path, *, keep: int, copied: Copied) -> Path:
        stopped = Event()
        try:
            # Abandoned when the daemon stops, which must not wait for the rest: the thread ends at its next piece.
            work = partial(self._back_up, folder, keep, copied, stopped)
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        finally:
            stopped.set()

    def _back_up(self, folder: Path, keep: int, copied: Copied, stopped: Event) -> Path:
        pace = CopyPace(_BYTES_A_SECOND)

        def slowly(more: int, total: int) -> None:
            if stopped.is_set():
                raise BackupFailedError("the daemon has stopped")
            copied(more, total)
            pace.spend(more)

        try:
            make_folder(self._settings, folder)
            made = make_backup(self._settings, name_by_time(folder), copied=slowly).path
            for old in self._found(folder)[keep:]:
                old.unlink(missing_ok=True)
        except (StateError, StoreError, BackupError, BackupNotWrittenError) as error:
            raise BackupFailedError(str(error)) from error
        except OSError as error:
            raise BackupFailedError(f"{folder}: {error.strerror or error}") from error
        return made

    async def available(self, folder: Path) -> int:
        return await trio.to_thread.run_sync(_available, folder)

    async def backups(self, folder: Path) -> Sequence[tuple[str, int, int]]:
        return await trio.to_thread.run_sync(self._listed, folder)

    def _listed(self, folder: Path) -> list[tuple[str, int, int]]:
        try:
            found = [(path.name, path.stat()) for path in self._found(folder)]
        except OSError:  # the folder is not there yet, or a file has just gone
            return []
        return [(name, status.st_size, status.st_mtime_ns // 1_000_000) for name, status in found]

    @staticmethod
    def _found(folder: Path) -> list[Path]:
        """The newest first."""
        return sorted((path for path in folder.iterdir() if _NAMED.fullmatch(path.name)), reverse=True)


def _available(folder: Path) -> int:
    """Bytes available on the disk of the folder, or of the one above in which it will be made."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir())
    return available_bytes(there)
