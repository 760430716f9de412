"""Values as PostgreSQL takes and gives them, so that the stores get what SQLite would give them.

A number is a bigint or a double, also a boolean. NaN is NULL in both directions, and infinity is a number. PostgreSQL's
text holds no NUL: it is written in two characters, of which no JSON text has the first one. Numbers of rollups keep the
form they came in, as JSON.
"""

import json
import struct
from array import array
from collections.abc import Callable, Sequence
from math import isinf, isnan
from typing import Any, Final

import msgspec
import psycopg
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format
from psycopg.types.numeric import FloatBinaryDumper, Int8BinaryDumper
from psycopg.types.string import BytesBinaryDumper

_ESCAPE: Final = "\x1a"
_ESCAPE_BYTE: Final = b"\x1a"
_NO_NULL: Final = struct.Struct(">IIIII")  # dimensions, whether there are NULLs, type, length, first index
_LENGTH: Final = struct.Struct(">i")
_DOUBLE: Final = struct.Struct(">d")
_NULL: Final = _LENGTH.pack(-1)
_decode: Final = msgspec.json.Decoder().decode


def escaped(text: str) -> str:
    """The text without NUL."""
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + _ESCAPE).replace("\0", f"{_ESCAPE}0")
    return text


def unescaped(text: str) -> str:
    """The text that `escaped` took."""
    return _ESCAPE.join(part.replace(f"{_ESCAPE}0", "\0") for part in text.split(_ESCAPE + _ESCAPE))


class _TextDumper(Dumper):
    format = Format.BINARY
    oid = 25

    def dump(self, obj: str) -> Buffer | None:
        return escaped(obj).encode()


class _NumberDumper(Dumper):
    """A number of a rollup in a copy, where the types of the columns choose the dumpers."""

    format = Format.BINARY
    oid = 114

    def dump(self, obj: float) -> Buffer | None:
        return _number(obj)


class _FloatDumper(FloatBinaryDumper):
    def dump(self, obj: float) -> Buffer | None:
        return None if isnan(obj) else super().dump(obj)


class _FloatLoader(Loader):
    """Of a column, or of what was calculated from infinities."""

    def load(self, data: Buffer) -> float | None:
        number = float(str(data, "ascii"))
        return None if isnan(number) else number


class _BinaryFloatLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> float | None:
        (number,) = _DOUBLE.unpack(data)
        return None if isnan(number) else number


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        text = str(data, "utf-8")
        return unescaped(text) if _ESCAPE in text else text


class _BinaryTextLoader(_TextLoader):
    format = Format.BINARY


class _NumericLoader(Loader):
    """Sums of bigints, which are whole, and averages."""

    def load(self, data: Buffer) -> int | float | None:
        text = str(data, "ascii")
        if text == "NaN":
            return None
        return int(text) if text.lstrip("-").isdigit() else float(text)


class _JsonLoader(Loader):
    def load(self, data: Buffer) -> Any:
        try:
            return _decode(data)
        except msgspec.ValidationError:  # infinity (`_number`)
            return json.loads(str(data, "utf-8"))


class _BinaryJsonLoader(_JsonLoader):
    format = Format.BINARY


class _Array(bytes):
    """An array in PostgreSQL's binary form (array_send in its source: arrayfuncs.c)."""


class _Int8Array(_Array): ...


class _Float8Array(_Array): ...


class _TextArray(_Array): ...


class _ByteaArray(_Array): ...


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> Buffer | None:
        return obj


class _Int8ArrayDumper(_ArrayDumper):
    oid = 1016


class _Float8ArrayDumper(_ArrayDumper):
    oid = 1022


class _TextArrayDumper(_ArrayDumper):
    oid = 1009


class _ByteaArrayDumper(_ArrayDumper):
    oid = 1001


def adapt(connection: "psycopg.Connection[Any]") -> None:
    """Have a connection take and give values as this module says."""
    for kind, dumper in (
        (int, Int8BinaryDumper),
        (bool, Int8BinaryDumper),
        (float, _FloatDumper),
        (bytes, BytesBinaryDumper),
        (bytearray, BytesBinaryDumper),
        (memoryview, BytesBinaryDumper),
        (str, _TextDumper),
        (_Int8Array, _Int8ArrayDumper),
        (_Float8Array, _Float8ArrayDumper),
        (_TextArray, _TextArrayDumper),
        (_ByteaArray, _ByteaArrayDumper),
    ):
        connection.adapters.register_dumper(kind, dumper)
    connection.adapters.register_dumper(None, _NumberDumper)
    for name, loader in (
        ("text", _TextLoader),
        ("text", _BinaryTextLoader),
        ("float8", _FloatLoader),
        ("float8", _BinaryFloatLoader),
        ("numeric", _NumericLoader),
        ("json", _JsonLoader),
        ("json", _BinaryJsonLoader),
    ):
        connection.adapters.register_loader(name, loader)


def _fixed(values: Sequence[Any], code: str, oid: int) -> bytes:
    """An array of values that take eight bytes each."""
    number = len(values)
    if None in values:
        big = struct.Struct(f">i{code}")
        items = b"".join([_NULL if value is None else big.pack(8, value) for value in values])
        return _NO_NULL.pack(1, 1, oid, number, 1) + items
    raw = array(code, values)
    raw.byteswap()
    taken = raw.tobytes()
    items_ = bytearray(12 * number)
    items_[3::12] = b"\x08" * number
    for byte in range(8):
        items_[4 + byte :: 12] = taken[byte::8]
    return _NO_NULL.pack(1, 0, oid, number, 1) + items_


def _varying(values: Sequence[bytes | None], oid: int) -> bytes:
    items = b"".join([_NULL if one is None else _LENGTH.pack(len(one)) + one for one in values])
    return _NO_NULL.pack(1, int(None in values), oid, len(values), 1) + items


def _int8s(values: Sequence[Any]) -> _Array:
    return _Int8Array(_fixed(values, "q", 20))


def _float8s(values: Sequence[Any]) -> _Array:
    if any(value is not None and isnan(value) for value in values):
        values = [None if value is None or isnan(value) else value for value in values]
    return _Float8Array(_fixed(values, "d", 701))


def _texts(values: Sequence[Any]) -> _Array:
    encoded = [None if value is None else value.encode() for value in values]
    if any(one is not None and (b"\0" in one or _ESCAPE_BYTE in one) for one in encoded):
        encoded = [None if value is None else escaped(value).encode() for value in values]
    return _TextArray(_varying(encoded, 25))


def _byteas(values: Sequence[Any]) -> _Array:
    return _ByteaArray(_varying([None if value is None else bytes(value) for value in values], 17))


def _numbers(values: Sequence[Any]) -> _Array:
    return _TextArray(_varying([None if value is None else _number(value) for value in values], 25))


def _number(value: float) -> bytes | None:
    """The text of a JSON number with every bit. SQLite stores no number that is none, and infinity is a number."""
    if isinstance(value, float):
        if isnan(value):
            return None
        if isinf(value):
            return b"1e999" if value > 0 else b"-1e999"
    return repr(value).encode()


#: For each type of a column: its array's type, from which the cast of its values goes, and what makes the array.
ARRAYS: Final[dict[str, tuple[str, Callable[[Sequence[Any]], bytes]]]] = {
    "bigint": ("bigint[]", _int8s),
    "double precision": ("double precision[]", _float8s),
    "text": ("text[]", _texts),
    "bytea": ("bytea[]", _byteas),
    "json": ("text[]", _numbers),
}
