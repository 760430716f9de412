"""Formats of payloads that are not the Manifest's JSON, and how they are read into values for expressions.

Every format is read in one pass over a payload of at most `MAX_DATA_BYTES`.
"""

import base64
import binascii
import csv
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from broker.nesting import check_nesting

_DIGITS: Final = 12  # a scaled integer is shown without the noise of binary fractions


class PayloadUnreadableError(Exception):
    """The payload is not in the format; the text says why."""


class PayloadFormat(Protocol):
    """One way to read a payload."""

    def read(self, payload: bytes) -> object:
        """Raises PayloadUnreadableError."""


class PayloadEncoding(StrEnum):
    """How a device wraps its payload, for carriers that take only text."""

    RAW = "raw"
    BASE64 = "base64"
    HEX = "hex"


def unwrap(payload: bytes, encoding: PayloadEncoding) -> bytes:
    """Raises PayloadUnreadableError."""
    if encoding is PayloadEncoding.RAW:
        return payload
    try:
        compact = b"".join(payload.split())
        return (
            base64.b64decode(compact, validate=True)
            if encoding is PayloadEncoding.BASE64
            else binascii.unhexlify(compact)
        )
    except ValueError as error:
        raise PayloadUnreadableError(f"not {encoding.value}: {error}") from error


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise PayloadUnreadableError(f"not UTF-8 text: byte {error.start}") from error


class TextFormat(msgspec.Struct, frozen=True):
    """Read as `{"text": …}`."""

    def read(self, payload: bytes) -> object:
        return {"text": _text(payload)}


class JsonFormat(msgspec.Struct, frozen=True):
    """Any JSON value."""

    def read(self, payload: bytes) -> object:
        try:
            check_nesting(payload)
            return msgspec.json.decode(_text(payload))
        except msgspec.DecodeError as error:
            raise PayloadUnreadableError(f"not JSON: {error}") from error


class CsvFormat(msgspec.Struct, frozen=True):
    """One row, read as an object of texts by `columns`. An empty cell, or one that is missing at the end, is absent."""

    columns: tuple[str, ...]
    delimiter: str = ","

    def read(self, payload: bytes) -> object:
        try:
            # Strict: a row with an unterminated quotation is refused.
            rows = [
                row for row in csv.reader(_text(payload).splitlines(), delimiter=self.delimiter, strict=True) if row
            ]
        except csv.Error as error:
            raise PayloadUnreadableError(f"not CSV: {error}") from error
        if len(rows) != 1:
            raise PayloadUnreadableError(f"{len(rows)} rows instead of one")
        cells = rows[0]
        if len(cells) > len(self.columns):
            raise PayloadUnreadableError(f"{len(cells)} cells for {len(self.columns)} columns")
        return {name: text for name, cell in zip(self.columns, cells, strict=False) if (text := cell.strip())}


class KeyValueFormat(msgspec.Struct, frozen=True):
    """`temp=21.5;hum=40`, read as an object of texts. Of two pairs with one name the later one counts."""

    pair_separator: str = ";"
    value_separator: str = "="

    def read(self, payload: bytes) -> object:
        pairs: dict[str, str] = {}
        for pair in _text(payload).split(self.pair_separator):
            name, found, value = pair.partition(self.value_separator)
            if found:
                pairs[name.strip()] = value.strip()
            elif pair.strip():
                raise PayloadUnreadableError(f"no {self.value_separator!r} in {pair.strip()[:64]!r}")
        return pairs


#: Types of a layout with a fixed size, as `struct` writes them.
NUMBERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "int8": "b",
        "uint8": "B",
        "int16": "h",
        "uint16": "H",
        "int32": "i",
        "uint32": "I",
        "int64": "q",
        "uint64": "Q",
        "float32": "f",
        "float64": "d",
    }
)
#: Types with a length of their own: UTF-8 padded with zeros, bytes as hexadecimal text, and bytes to skip.
SIZED: Final[Mapping[str, str]] = MappingProxyType({"text": "s", "bytes": "s", "skip": "x"})


class BinaryField(msgspec.Struct, frozen=True):
    """One entry of a layout. A number becomes `number * scale + offset` when it has either."""

    name: str
    type: str
    length: int = 1
    scale: float | None = None
    offset: float | None = None

    @property
    def code(self) -> str:
        return NUMBERS.get(self.type) or f"{self.length}{SIZED[self.type]}"

    def value(self, raw: bytes | float) -> object:
        if isinstance(raw, bytes):
            return raw.hex() if self.type == "bytes" else _text(raw.rstrip(b"\0"))
        if self.scale is None and self.offset is None:
            return raw
        return round(raw * (1 if self.scale is None else self.scale) + (self.offset or 0), _DIGITS)


@dataclass(frozen=True)
class BinaryFormat:
    """Fields that follow each other without gaps, read as an object. Bytes after the last field are ignored."""

    layout: tuple[BinaryField, ...]
    little_endian: bool = False

    @cached_property
    def size(self) -> int:
        return self._struct.size

    @cached_property
    def _struct(self) -> struct.Struct:
        return struct.Struct(("<" if self.little_endian else ">") + "".join(field.code for field in self.layout))

    @cached_property
    def _read_fields(self) -> tuple[BinaryField, ...]:
        return tuple(field for field in self.layout if field.type != "skip")

    def read(self, payload: bytes) -> object:
        if len(payload) < self.size:
            raise PayloadUnreadableError(f"{len(payload)} bytes instead of {self.size}")
        values = self._struct.unpack_from(payload)
        return {field.name: field.value(raw) for field, raw in zip(self._read_fields, values, strict=True)}
