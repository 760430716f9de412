"""The entries of forward, and the stores that forward to this one (reference 30)."""

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from config.settings import Forward
from protocols.doctor.patient import CheckResult, Patient

_MINUTES: Final = 15


def look_at_forwards(patient: Patient) -> Iterator[CheckResult]:
    running = {} if patient.statistics is None else patient.statistics.get("forwards") or {}
    known: Mapping[str, Mapping[str, Any]] = {one["name"]: one for one in running.get("entries", ())}
    for entry in patient.settings.forward:
        if entry.token_file and (problem := _file_problem(entry)):
            yield CheckResult("forward", False, f"{entry.name}: {problem}")
        one = known.get(entry.name)
        if one is not None:
            yield CheckResult("forward", *_verdict(one))
        elif patient.statistics is not None:
            yield CheckResult("forward", False, f"{entry.name}: the daemon does not know it: reload it (SIGHUP)")


def _file_problem(entry: Forward) -> str:
    path = Path(entry.token_file)
    try:
        status = path.stat()
    except OSError as error:
        return f"token_file: {error.strerror}"
    if status.st_mode & 0o007 and os.name == "posix":
        return f"token_file: everybody may read {path}: chmod 600"
    return ""


def _verdict(one: Mapping[str, Any]) -> tuple[bool, str]:
    name, behind = one["name"], int(one["behind"])
    if one["state"] == "elsewhere":
        return True, f"{name}: another node forwards"
    far = f"{behind:,} rows and {_seconds(one['behind_seconds'])} behind" if behind else "nothing is behind"
    deletes = one["deletes_on"]
    until = f"; retention begins to delete what is not sent on {_day(deletes)}" if deletes is not None else ""
    if one["problem"]:
        return False, f"{name}: {one['problem']} {far[0].upper()}{far[1:]}{until}"
    if one["behind_seconds"] <= _MINUTES * 60:
        until = ""
    return True, f"{name}: {one['sent']:,} messages sent to {one['to']}; {far}{until}"


def look_at_edges(patient: Patient) -> Iterator[CheckResult]:
    running = {} if patient.statistics is None else patient.statistics.get("edges") or {}
    for one in running.get("edges", ()):
        if one["problem"]:
            yield CheckResult("edge", False, f"{one['name']}: {one['problem']}")
        else:
            seen = "never seen" if one["seen_on"] is None else f"last seen {_day(one['seen_on'])}"
            yield CheckResult("edge", True, f"{one['name']}: {one['messages']:,} messages; {seen}")


def _seconds(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
