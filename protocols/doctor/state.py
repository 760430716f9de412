"""The state directory, its key, the store and the disk."""

import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from config.settings import Settings
from config.shown_command import shown_command
from protocols.doctor.database import look_at_database, look_at_its_room
from protocols.doctor.patient import CheckResult, Patient
from protocols.operation.key_file import KeyFile, KeyFileError
from storage.damage import repair_hint
from storage.engines import engine_of, may_have_store
from storage.engines.sqlite_check import check_integrity
from storage.growth import Growth, growth
from storage.sql import StoreError

CHECK_SECONDS: Final = 10.0
_MIB: Final = 1024**2
_LEAST_BYTES: Final = 256 * _MIB
_LEAST_DAYS: Final = 30


def look_at_state(patient: Patient) -> Iterator[CheckResult]:
    folder = patient.settings.state_dir
    try:
        mode = folder.stat().st_mode
    except FileNotFoundError:
        yield CheckResult("state", True, f"{folder} is not there yet: the first start makes it")
        return
    except OSError as error:
        yield CheckResult(
            "state", False, f"{folder}: {error.strerror}: run the doctor as root or as the user of the service"
        )
        return
    if stat.S_IMODE(mode) & 0o077:
        yield CheckResult("state", False, f"{folder}: others can get in: chmod 700 it")
        return
    key = KeyFile(folder / "key")
    if may_have_store(patient.settings) and key.path.exists():
        try:
            if len(key.keys()) > 1:
                yield CheckResult(
                    "state", False, f"a rotation of the key was interrupted: run {shown_command('key rotate')} again"
                )
                return
        except KeyFileError as error:
            yield CheckResult("state", False, str(error))
            return
    yield CheckResult("state", True, f"{folder} is closed to others")


def look_at_store(patient: Patient) -> Iterator[CheckResult]:
    if patient.settings.storage.is_postgresql:
        yield from look_at_database(patient)
        return
    if not patient.store.exists():
        yield CheckResult("store", True, "there is none yet: the first start makes it")
        return
    try:
        found = check_integrity(patient.store, seconds=CHECK_SECONDS)
    except StoreError as error:
        yield CheckResult("store", False, f"{error}: restore a backup, or run the doctor as the user of the service")
        return
    if found.problems:
        yield CheckResult(
            "store",
            False,
            f"{patient.store} is damaged ({'; '.join(found.problems)}): restore a backup, or {repair_hint()}",
        )
    elif found.is_complete:
        yield CheckResult("store", True, "no damage")
    else:
        yield CheckResult("store", True, f"no damage in what {CHECK_SECONDS:.0f} s were enough for; the store is large")


def look_at_disk(patient: Patient) -> Iterator[CheckResult]:
    if patient.settings.storage.is_postgresql:
        yield from look_at_its_room(patient)
        return
    folder = patient.settings.state_dir
    while not folder.exists():
        folder = folder.parent
    found = Growth(0, None)
    if patient.store.exists():
        with suppress(StoreError):  # the check of the store tells
            found = growth_of(patient.settings)
    yield disk_finding(available_bytes(folder), found, patient.settings.storage.retention_days)


def growth_of(settings: Settings) -> Growth:
    """Raises StoreError."""
    with engine_of(settings).snapshot() as snapshot:
        return growth(snapshot, now_ms=time.time_ns() // 1_000_000)


def available_bytes(folder: Path) -> int:
    """Bytes that the user of the service may still write there."""
    return shutil.disk_usage(folder).free


def disk_finding(available: int, found: Growth, retention_days: int) -> CheckResult:
    """Whether there is room, now and after the days to come.

    Args:
        available: bytes on the disk.
        found: the size of the store and its growth.
        retention_days: days after which the store no longer grows; 0 keeps everything.
    """
    free = f"{available / _MIB:,.0f} MiB are free"
    if available < _LEAST_BYTES:
        return CheckResult("disk", False, f"{free}: make room, or messages will be refused")
    if found.bytes_a_day is None:
        return CheckResult("disk", True, f"{free}; the log is too young for a forecast")
    if found.bytes_a_day < 1:
        return CheckResult("disk", True, f"{free}; nothing came in the last week")
    full_in_days = available / found.bytes_a_day
    grows = f"{found.bytes_a_day / _MIB:,.1f} MiB a day"
    to_come = found.bytes_a_day * retention_days - found.store_bytes
    if retention_days and to_come < available - _LEAST_BYTES:
        return CheckResult("disk", True, f"{free}; {grows} fit with retention of {retention_days} days")
    if full_in_days >= _LEAST_DAYS:
        return CheckResult("disk", True, f"{free}; {grows} fill them in {full_in_days:,.0f} days")
    keep = int((available + found.store_bytes - _LEAST_BYTES) / found.bytes_a_day)
    return CheckResult(
        "disk",
        False,
        f"{free}, and {grows} fill them in {full_in_days:,.0f} days: make room, or set storage.retention_days to at"
        f" most {max(1, keep)}",
    )
