"""The history that a model is trained on: the newest values of its sources (reference 12.6)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from broker.devices.registry import Device
from broker.models.definition import Definition
from config.limits import MODEL_HISTORY_DAYS, MODEL_VALUES_MAX
from storage.database import Database, Transaction
from storage.keys import DeviceKey, Milliseconds
from storage.message_searches import Range, SortKey, sort_key

_DAY_MS: Final = 86_400_000
_ROWS_AT_ONCE: Final = 2_000  # other readers have their turn between
_LARGEST: Final = 1e15  # of a value; squares of larger ones leave no digits to learn from

Series = dict[str, list[tuple[int, float]]]

_decode = msgspec.json.Decoder(dict[str, Any]).decode


async def read_series(
    database: Database, definition: Definition, devices: Mapping[str, Device], now_ms: Milliseconds
) -> Series:
    """The values of each source by the name of its input, oldest first: the newest of the last 30 days.

    At most `MODEL_VALUES_MAX` messages are looked at.
    """
    found: Series = {source.name: [] for source in definition.all_sources}
    most = MODEL_VALUES_MAX // len(found)
    pages = -(-MODEL_VALUES_MAX // len(devices) // _ROWS_AT_ONCE)
    start_ms = Milliseconds(now_ms - MODEL_HISTORY_DAYS * _DAY_MS)
    for did, device in devices.items():
        fields = {one.name: one.field.split(".") for one in definition.all_sources if one.did == did}
        before: SortKey | None = None
        for _ in range(pages):  # a field may be in few of the device's messages
            step = partial(
                _read, device.key, fields, Range(start_ms, now_ms, limit=_ROWS_AT_ONCE, before=before, descending=True)
            )
            values, before = await database.read(step)
            for name, some in values.items():
                found[name] += some
            if before is None or all(len(found[name]) >= most for name in fields):
                break
    return {name: values[:most][::-1] for name, values in found.items()}


def _read(
    device: DeviceKey, fields: Mapping[str, Sequence[str]], page: Range, tx: Transaction
) -> tuple[Series, SortKey | None]:
    """The values in one page of messages, newest first, and where the next page begins; None behind the last one."""
    rows = tx.message_searches.page([device], page)
    found: Series = {name: [] for name in fields}
    for row in rows:
        data = _decode(row.data)
        for name, path in fields.items():
            if (value := number_at(data, path)) is not None:
                found[name].append((row.ts, value))
    return found, sort_key(rows[-1]) if len(rows) == page.limit else None


def number_at(data: Any, path: Sequence[str]) -> float | None:
    """The number at a path; true is 1 and false is 0. None when there is none."""
    for name in path:
        if not isinstance(data, dict):
            return None
        data = data.get(name)
    return as_number(data)


def as_number(value: object) -> float | None:
    # An integer may be too large for a double: it is compared before it is converted. No comparison with NaN is true.
    if isinstance(value, bool | int | float) and abs(value) <= _LARGEST:
        return float(value)
    return None
