"""The entries of topic_devices, and payloads that they did not understand (reference 16.8)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from broker.topic_devices.entries import entries_of
from config.loading import SettingsError
from protocols.doctor.patient import CheckResult, Patient

_CHECK: Final = "topic devices"
_SHOWN: Final = 5


def look_at_topic_devices(patient: Patient) -> Iterator[CheckResult]:
    try:
        entries = entries_of(patient.settings)
    except SettingsError as error:
        yield from (CheckResult(_CHECK, False, text) for text in (str(error), *error.others))
        return
    running = {} if patient.statistics is None else patient.statistics.get(_CHECK) or {}
    known: Mapping[str, Mapping[str, Any]] = {one["name"]: one for one in running.get("entries", ())}
    for entry in entries:
        if (one := known.get(entry.name)) is not None:
            yield _of(entry.name, one)


def _of(name: str, one: Mapping[str, Any]) -> CheckResult:
    texts = [one["problem"]] if one["problem"] else []
    if unknown := one["unknown"]:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        texts.append(
            f"there is no device of {', '.join(unknown[:_SHOWN])}{more}: name it in devices, or set make = true"
        )
    if not texts:
        return CheckResult(_CHECK, True, f"{name}: {one['stored']} messages")
    return CheckResult(_CHECK, False, f"{name}: {' '.join(texts)}")
