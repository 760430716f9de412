"""The history that a model is trained on: the newest values of its sources (reference 12.6)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from broker.devices.registry import Device
from broker.models.definition import Definition
from config.limits import MODEL_HISTORY_DAYS, MODEL_VALUES_MAX
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds
from storage.message_searches import Range, SortKey, sort_key
from storage.transaction import Transaction

_DAY_MS: Final = 86_400_000
_ROWS_AT_ONCE: Final = 2_000  # other readers have their turn between
LARGEST: Final = 1e15  # of a value; squares of larger ones leave no digits to learn from

Series = dict[str, list[tuple[int, float]]]


class SeriesHistory(msgspec.Struct, frozen=True):
    """The values of each source by the name of its input, oldest first, and how many others are beyond `LARGEST`."""

    series: Series
    beyond: Counter[str]


_decode = msgspec.json.Decoder(dict[str, Any]).decode


async def read_series(
    database: Database, definition: Definition, devices: Mapping[str, Device], now_ms: Milliseconds
) -> SeriesHistory:
    """The newest values of the last 30 days.

    At most `MODEL_VALUES_MAX` messages are looked at.
    """
    found: Series = {source.name: [] for source in definition.all_sources}
    beyond: Counter[str] = Counter()
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
            values, too_large, before = await database.read(step)
            beyond += too_large
            for name, some in values.items():
                found[name] += some
            if before is None or all(len(found[name]) >= most for name in fields):
                break
    return SeriesHistory({name: values[:most][::-1] for name, values in found.items()}, beyond)


def _read(
    device: DeviceKey, fields: Mapping[str, Sequence[str]], page: Range, tx: Transaction
) -> tuple[Series, Counter[str], SortKey | None]:
    """The values in one page of messages, newest first, how many are beyond the bound, and where the next page begins;
    None behind the last one."""
    rows = tx.message_searches.page([device], page)
    found: Series = {name: [] for name in fields}
    beyond: Counter[str] = Counter()
    for row in rows:
        data = _decode(row.data)
        for name, path in fields.items():
            given = value_at(data, path)
            if (value := learnable_number(given)) is not None:
                found[name].append((row.ts, value))
            elif isinstance(given, int | float):
                beyond[name] += 1
    return found, beyond, sort_key(rows[-1]) if len(rows) == page.limit else None


def value_at(data: Any, path: Sequence[str]) -> Any:
    """The value at a path; None when there is none."""
    for name in path:
        if not isinstance(data, dict):
            return None
        data = data.get(name)
    return data


def learnable_number(value: object) -> float | None:
    """A number that can be learned from; true is 1 and false is 0."""
    # An integer may be too large for a double: it is compared before it is converted. No comparison with NaN is true.
    if isinstance(value, bool | int | float) and abs(value) <= LARGEST:
        return float(value)
    return None
