"""Messages as tables: one for each device type, with a column for each field (reference 10.4).

A column has one type, that of the field in the newest Manifest that a device of the type uses, so programs read the
columns of a file with their types. Values that are not of it, and fields that these Manifests do not have, as messages
under earlier ones may, are in the last column, `more`, as JSON.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from broker.device_types.manifest import Field, Manifest, ValueClass
from broker.devices.registry import Device
from broker.export.formats import leaves_of
from storage.keys import DeviceKey
from storage.records import MessageRow

Kind = Literal["boolean", "integer", "number", "text"]

#: The columns before those of the fields, and the one behind them.
TIME: Final = "time"
RECEIVED: Final = "received"
SDID: Final = "sdid"
DEVICE: Final = "device"
MORE: Final = "more"
_FIRST: Final = (TIME, RECEIVED, SDID, DEVICE)
#: As they stand in the first line of CSV, whose times name no zone: no spreadsheet takes one that does for a time.
IN_UTC: Final = {TIME: f"{TIME} [UTC]", RECEIVED: f"{RECEIVED} [UTC]"}
_FIXED: Final = frozenset({*_FIRST, MORE})
#: Before a field whose name another column has.
PREFIX: Final = "data."

_KINDS: Final[dict[ValueClass | None, Kind]] = {
    ValueClass.BOOLEAN: "boolean",
    ValueClass.INTEGER: "integer",
    ValueClass.LONG: "integer",
    ValueClass.FLOAT: "number",
    ValueClass.DOUBLE: "number",
    ValueClass.STRING: "text",
}
_INT64: Final = range(-(2**63), 2**63)
_UNFIT: Final = object()
#: A text that a spreadsheet takes for a formula, or that would be read as one with the apostrophe of such a text.
_LIKE_FORMULA: Final = re.compile(r"'*[=+\-@\t\r]")
_ESCAPED: Final = re.compile(r"''*[=+\-@\t\r]")
_IN_QUOTES: Final = re.compile(r'[",\r\n]|^\s|\s$')
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Column(msgspec.Struct, frozen=True):
    """A field of a device type as a column. `name` differs from those of all other columns, also in lower case."""

    name: str
    path: str
    kind: Kind
    is_list: bool = False
    unit: str = ""
    description: str = ""

    @property
    def header(self) -> str:
        """The name with the unit, as it stands in the first line of CSV."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def fitting(self, value: Any) -> Any:
        """The value as the column has it; `_UNFIT` for one that it cannot have."""
        fit = _FITTING[self.kind]
        if not self.is_list:
            return fit(value)
        if not isinstance(value, list):
            return _UNFIT
        values = list(map(fit, value))
        return _UNFIT if any(one is _UNFIT for one in values) else values


def columns_of(manifests: Iterable[tuple[int, Manifest]]) -> list[Column]:
    """The columns of Manifests of a type, each with its version: in the order of the newest, then of those before."""
    fields: dict[str, Field] = {}
    units: dict[str, set[str]] = {}
    for _version, manifest in sorted(dict(manifests).items(), reverse=True):
        for path, field in manifest.leaves.items():
            fields.setdefault(path, field)
            units.setdefault(path, set()).add(field.unit or "")
    columns, taken = [], set(_FIXED)
    for path, field in fields.items():
        name = path
        while name.casefold() in taken:
            name = f"{PREFIX}{name}"
        taken.add(name.casefold())
        unit = field.unit or "" if len(units[path]) == 1 else ""  # which one a row has, nobody could see
        columns.append(Column(name, path, _KINDS[field.value_class], field.is_collection, unit, field.description))
    return columns


def table_columns(devices: Iterable[Device]) -> list[Column]:
    """The columns of devices of one type."""
    return columns_of((one.manifest.version, one.manifest.manifest) for one in devices)


class Table:
    """The table of some devices of one type."""

    def __init__(self, devices: Sequence[Device], columns: list[Column]) -> None:
        self.columns = columns
        self._places = {column.path: place for place, column in enumerate(self.columns)}
        self._about = {one.key: (one.id, one.record.name) for one in devices}

    @property
    def names(self) -> tuple[str, ...]:
        return (*_FIRST, *(column.name for column in self.columns), MORE)

    def csv(self, rows: Iterable[MessageRow]) -> bytes:
        about = {key: f"{id_},{text_cell(name)}" for key, (id_, name) in self._about.items()}
        lines = []
        for row in rows:
            values, more = self._values(row)
            cells = ",".join(map(_cell, values))
            rest = quoted(_encode(more).decode()) if more else ""
            times = f"{utc(row.ts)[:-1]},{utc(row.cts)[:-1]}"
            lines.append(f"{times},{about[row.device]},{cells}{',' if values else ''}{rest}\n")
        return "".join(lines).encode()

    def csv_header(self) -> bytes:
        headers = (*(IN_UTC.get(name, name) for name in _FIRST), *(column.header for column in self.columns), MORE)
        return f"{','.join(map(text_cell, headers))}\n".encode()

    def json_lines(self, rows: Iterable[MessageRow]) -> bytes:
        names = self.names
        lines = []
        for row in rows:
            values, more = self._values(row)
            found = (utc(row.ts), utc(row.cts), *self._about[row.device], *values, more or None)
            lines.append(_encode(dict(zip(names, found, strict=True))))
        return b"".join(line + b"\n" for line in lines)

    def columns_json(self, rows: Sequence[MessageRow]) -> bytes:
        """The values column by column, for the process that writes Parquet; times are in ms."""
        found = []
        for row in rows:
            values, more = self._values(row)
            found.append((row.ts, row.cts, *self._about[row.device], *values, _encode(more).decode() if more else None))
        return _encode(list(zip(*found, strict=True)))

    def _values(self, row: MessageRow) -> tuple[list[Any], dict[str, Any]]:
        values: list[Any] = [None] * len(self.columns)
        more: dict[str, Any] = {}
        for path, value in leaves_of(_decode(row.data)):
            place = self._places.get(path)
            fitting = _UNFIT if place is None else self.columns[place].fitting(value)
            if place is None or fitting is _UNFIT:
                more[path] = value
            else:
                values[place] = fitting
        return values, more


def by_type(devices: Iterable[Device]) -> dict[str, list[DeviceKey]]:
    """The keys of the devices by the ids of their types, in the order of the types' names."""
    found: dict[str, list[DeviceKey]] = {}
    for device in sorted(devices, key=lambda one: (one.type.record.name.casefold(), one.type.id, one.key)):
        found.setdefault(device.type.id, []).append(device.key)
    return found


def utc(ms: int) -> str:
    """A time in ISO 8601 with milliseconds; of a year that it has no form for, the last moment that it has."""
    seconds, rest = divmod(min(ms, _LAST_MS), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"


_LAST_MS: Final = 253_402_300_799_999  # the year 9999


# Cells of CSV


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return text_cell(value)
    text = _encode(value).decode()
    return quoted(text) if isinstance(value, list) else text


def text_cell(text: str) -> str:
    """A text as a cell. An empty one has quotes, because a cell without anything is no value. One that looks like a
    formula has an apostrophe before it, and so has one that begins with apostrophes and then looks like a formula:
    `plain_text` finds out which it was."""
    if not text:
        return '""'
    if _LIKE_FORMULA.match(text):
        text = f"'{text}"
    return quoted(text) if _IN_QUOTES.search(text) else text


def plain_text(cell: str) -> str:
    """The text of a cell that `text_cell` made."""
    return cell[1:] if _ESCAPED.match(cell) else cell


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


# Values that columns can have


def _boolean(value: Any) -> Any:
    return value if type(value) is bool else _UNFIT


def _integer(value: Any) -> Any:
    return value if type(value) is int and value in _INT64 else _UNFIT


def _number(value: Any) -> Any:
    if type(value) is float:
        return value
    try:
        return number if type(value) is int and (number := float(value)) == value else _UNFIT
    except OverflowError:
        return _UNFIT


def _text(value: Any) -> Any:
    return value if type(value) is str else _UNFIT


_FITTING: Final[dict[Kind, Callable[[Any], Any]]] = {
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "text": _text,
}
