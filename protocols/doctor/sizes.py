"""The parts of the store, for the doctor and the page /operator."""

import time
from typing import Final

from broker.messages.retention import free_bytes_kept
from broker.operating.forecast import SETTINGS, Forecast, forecast
from config.settings import Settings
from config.shown_command import shown_command
from protocols.doctor.patient import CheckResult
from storage.engines import engine_of

MIB: Final = 1024**2
_SHOWN_BYTES: Final = MIB / 10


def forecast_of(settings: Settings) -> Forecast | None:
    """None of a store that another version has made. Raises StoreError."""
    with engine_of(settings).snapshot() as snapshot:
        if not snapshot.is_current():
            return None
        return forecast(snapshot.rows, settings, now_ms=time.time_ns() // 1_000_000)


def size_finding(found: Forecast, *, is_postgresql: bool = False) -> CheckResult:
    """The room of each part, how much of it comes in a day, and the settings of parts that grow."""
    parts = []
    for part in sorted(found.parts, key=lambda part: -part.size):
        if part.size < _SHOWN_BYTES:
            continue
        a_day = f" (+{part.bytes_a_day / MIB:,.1f} a day)" if part.bytes_a_day >= _SHOWN_BYTES else ""
        parts.append(f"{part.name} {part.size / MIB:,.1f}{a_day}")
    free = found.measured.free_bytes / MIB
    parts.append(f"free pages {free:,.1f}")
    text = f"the store has {found.measured.store_bytes / MIB:,.1f} MiB: {', '.join(parts)}"
    names = dict.fromkeys(SETTINGS[part.name] for part in found.parts if part.name in SETTINGS and part.bytes_a_day)
    if names:
        text += f"; it is changed by {', '.join(names)}"
    if is_postgresql:
        text += "; dropped partitions give room back at once, and autovacuum gives that of rows to new ones"
    elif not found.measured.gives_back:
        is_much = found.measured.free_bytes > free_bytes_kept(found.measured.store_bytes)
        text += (
            f"; an early version has made it, so free pages do not go back to the disk: to get {free:,.1f} MiB back,"
            f" stop the daemon and run: {shown_command('store compact')}"
        )
        return CheckResult("size", not is_much, text)
    return CheckResult("size", True, text)
