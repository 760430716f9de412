"""Makes messages of the lines of a table, as exports write them (reference 10.4 and 10.5)."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from broker.device_types.manifest import Manifest
from broker.errors import BadRequest, Finding, ValidationFailed, invalid
from broker.export.tables import DEVICE, IN_UTC, MORE, RECEIVED, SDID, TIME, Column, columns_of, plain_text
from broker.my_data.csv_lines import Cell
from broker.nesting import check_nesting

_IGNORED: Final = frozenset({RECEIVED, DEVICE})
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?")
_MS: Final = re.compile(r"[0-9]{11,15}")  # fewer digits are rather a date
_TRUTH: Final = {"true": True, "false": False}
_SHOWN: Final = 40  # characters of a wrong cell
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class WrongLine(Exception):
    """The text says what is wrong with the line."""


class Line(msgspec.Struct, frozen=True):
    """A message. `sdid` is empty where the table has no such column."""

    sdid: str
    ts: int
    payload: bytes


class TableHeader:
    """The columns of a table, which the header names in any order."""

    def __init__(self, cells: Sequence[Cell], manifests: Sequence[tuple[int, Manifest]], *, needs_sdid: bool) -> None:
        """Raises ValidationFailed with a finding for each wrong column."""
        known: dict[str, Column | str] = {name: name for name in (TIME, RECEIVED, SDID, DEVICE, MORE)}
        known |= {header: name for name, header in IN_UTC.items()}
        for one in columns_of(manifests):
            known |= {one.name: one, one.header: one}
        names = [plain_text(cell.text.strip()) for cell in cells]
        self._columns = [known.get(name) for name in names]
        findings = [
            Finding("header", (invalid(f"column {place} is called {_shown(name)}, and no field of the type is"),))
            for place, (name, column) in enumerate(zip(names, self._columns, strict=True), 1)
            if column is None
        ]
        seen: set[Column | str | None] = set()
        for place, column in enumerate(self._columns, 1):
            if column is not None and column in seen:
                findings.append(Finding("header", (invalid(f"column {place} is there twice"),)))
            seen.add(column)
        needed = (TIME, SDID) if needs_sdid else (TIME,)
        findings += [Finding("header", (f"Required column {name}",)) for name in needed if name not in seen]
        if findings:
            raise ValidationFailed(tuple(findings[:20]))

    def line(self, cells: Sequence[Cell]) -> Line:
        """Raises WrongLine."""
        if len(cells) != len(self._columns):
            raise WrongLine(f"has {len(cells)} cells, and the header {len(self._columns)}")
        sdid, ts, data = "", None, dict[str, Any]()
        for place, (column, cell) in enumerate(zip(self._columns, cells, strict=True), 1):
            if not cell.text and not cell.is_quoted:
                continue
            if isinstance(column, Column):
                _put(data, column.path, _value(column, cell, place))
            elif column == TIME:
                ts = _time(cell.text)
            elif column == SDID:
                sdid = cell.text
            elif column == MORE and cell.text:
                for path, value in _more(cell.text).items():
                    _put(data, path, value)
        if ts is None:
            raise WrongLine("has no time")
        if not data:
            raise WrongLine("has no value of a field")
        return Line(sdid, ts, _encode(data))


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    *groups, name = path.split(".")
    for group in groups:
        inner = data.setdefault(group, {})
        if not isinstance(inner, dict):
            raise WrongLine(f"has a value for {_shown(path)} and for the group around it")
        data = inner
    data.setdefault(name, value)


def _value(column: Column, cell: Cell, place: int) -> Any:
    text = cell.text
    try:
        if column.is_list:
            check_nesting(text.encode())
            value = _decode(text)
            return value if isinstance(value, list) else _refuse(column, text, place, "a list in JSON")
        if column.kind == "text":
            return plain_text(text)
        if column.kind == "boolean":
            return _TRUTH[text.strip().lower()]
        form, read = (_INTEGER, int) if column.kind == "integer" else (_NUMBER, float)
        if form.fullmatch(text.strip()) is None:
            raise ValueError
        number = read(text)
        if not math.isfinite(number):
            raise ValueError
    except (ValueError, KeyError, OverflowError, BadRequest):  # msgspec's are ValueErrors
        _refuse(column, text, place, {"integer": "an integer", "number": "a number"}.get(column.kind, column.kind))
    return number


def _refuse(column: Column, text: str, place: int, wanted: str) -> None:
    raise WrongLine(f"column {place}, {_shown(column.name)}: {_shown(text)} is not {wanted}")


def _more(text: str) -> Mapping[str, Any]:
    try:
        check_nesting(text.encode())
        return _decode_object(text)
    except (msgspec.DecodeError, UnicodeError, BadRequest):
        raise WrongLine(f"{MORE} is no object in JSON") from None


def _time(text: str) -> int:
    """In ms. A time without a zone is in UTC; a number is in ms since 1970."""
    text = text.strip()
    if _MS.fullmatch(text):
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        ms = int(at.timestamp()) * 1000 + at.microsecond // 1000 if at.year >= 1970 else -1
    except (ValueError, OverflowError):
        ms = -1
    if ms < 0:
        raise WrongLine(
            f"{TIME}: {_shown(text)} is not a time since 1970 in ISO 8601, such as 2026-11-27T16:45:00.000Z"
        )
    return ms


def _shown(text: str) -> str:
    """A text of a stranger in a sentence."""
    plain = "".join(one if one.isprintable() else "�" for one in text[:_SHOWN])
    return f"“{plain}{'…' if len(text) > _SHOWN else ''}”"
