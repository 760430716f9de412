"""The state directory, its key, the store and the disk."""

import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.operating.forecast import Forecast
from config.shown_command import shown_command
from protocols.doctor.database import look_at_database, look_at_its_room
from protocols.doctor.patient import CheckResult, Patient
from protocols.doctor.sizes import MIB, forecast_of, size_finding
from protocols.operation.key_file import KeyFile, KeyFileError
from storage.damage import repair_hint
from storage.engines import may_have_store
from storage.engines.sqlite_check import check_integrity
from storage.sql import StoreError

CHECK_SECONDS: Final = 10.0
_LEAST_BYTES: Final = 256 * MIB
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
    found = None
    if patient.store.exists():
        with suppress(StoreError):  # the check of the store tells
            found = forecast_of(patient.settings)
    yield disk_finding(available_bytes(folder), found)
    if found is not None:
        yield size_finding(found)


def available_bytes(folder: Path) -> int:
    """Bytes that the user of the service may still write there."""
    return shutil.disk_usage(folder).free


def disk_finding(available: int, found: Forecast | None) -> CheckResult:
    """Whether there is room, now and in the days to come.

    Args:
        available: bytes on the disk.
        found: None where nothing is known of the store.
    """
    free = f"{available / MIB:,.0f} MiB are free"
    if available < _LEAST_BYTES:
        return CheckResult("disk", False, f"{free}: make room, or messages will be refused")
    if found is None or (coming := found.bytes_a_day) is None:
        return CheckResult("disk", True, f"{free}; the log is too young for a forecast")
    if coming < 1:
        return CheckResult("disk", True, f"{free}; nothing came in the last week")
    grows = f"{coming / MIB:,.1f} MiB a day"
    if (days := found.full_after(available - _LEAST_BYTES)) is None:
        most = max(found.sizes)
        return CheckResult("disk", True, f"{free}; {grows} fit: the store will have at most {most / MIB:,.0f} MiB")
    fill = f"{grows} fill them on {found.date_after(days):%Y-%m-%d}, in {days:,} days"
    if days >= _LEAST_DAYS:
        return CheckResult("disk", True, f"{free}; {fill}")
    return CheckResult(
        "disk", False, f"{free}, and {fill}: make room, or {found.settings_for(available - _LEAST_BYTES)}"
    )
