"""Alarms as REST and notifications show them (reference 12.12)."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from storage.alarms import AlarmRecord


class HeldCondition(msgspec.Struct):
    """A condition that held. `seen`: device id, field, value and cts of each value. Without a text, it only says of
    which devices the alarm's text tells."""

    field: str
    text: str
    seen: list[tuple[str, str, Any, int | None]] = []


decode_cause: Final = msgspec.json.Decoder(list[HeldCondition]).decode


class AlarmView(msgspec.Struct, frozen=True):
    """An alarm for somebody. `is_readable`: they may read all devices of whose values it may tell."""

    record: AlarmRecord
    cause: list[HeldCondition]
    mid: str | None
    is_readable: bool


def devices_told_of(record: AlarmRecord, cause: Iterable[HeldCondition]) -> set[str]:
    """The ids of the devices of whose values an alarm may tell."""
    return {did for one in cause for did, *_ in one.seen} | ({record.device_id} if record.device_id else set())


def state_of(record: AlarmRecord) -> str:
    if record.cleared_on is not None:
        return "cleared"
    return "raised" if record.acknowledged_on is None else "acknowledged"
