"""The member `transform` of an Advanced Manifest.

| Member | Rule |
|---|---|
| `format` | `json`, `csv`, `keyvalue`, `text` or `binary`; required |
| `encoding` | how the payload is wrapped: `raw` (default), `base64` or `hex` |
| `expression` | JMESPath with the functions of expressions.py; without it, what the format reads is the `data` |
| `columns`, `delimiter` | `csv`: names by position, required; one character, default `,` |
| `pairSeparator`, `valueSeparator` | `keyvalue`: one character each, default `;` and `=` |
| `layout`, `byteOrder` | `binary`: `{name, type, length, scale, offset}` each, required; `big` (default) or `little` |
"""

from collections.abc import Mapping
from typing import Final

from broker.device_types.expressions import Expression, InvalidExpressionError
from broker.device_types.payload_formats import (
    NUMBERS,
    SIZED,
    BinaryField,
    BinaryFormat,
    CsvFormat,
    JsonFormat,
    KeyValueFormat,
    PayloadEncoding,
    PayloadFormat,
    TextFormat,
)
from broker.device_types.reading import DocumentReader, JsonObject
from broker.device_types.transform import Transform
from broker.errors import NUMERIC_ONLY, REQUIRED, choice, invalid, too_high, too_long, too_low, too_short
from config.limits import MAX_DATA_BYTES

MAX_ENTRIES: Final = 256  # columns, or entries of a layout
_MAX_NAME: Final = 64
_FORMATS: Final = ("json", "csv", "keyvalue", "text", "binary")
_BYTE_ORDERS: Final = ("big", "little")


def read_transform(reader: DocumentReader, value: object, path: str) -> Transform | None:
    """The transform; None for a simple Manifest, and when it is refused with findings."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        reader.refuse(path, invalid("must be an object"))
        return None
    encoding = _choice(reader, value, path, "encoding", tuple(PayloadEncoding), PayloadEncoding.RAW)
    expression = _expression(reader, value, f"{path}.expression")
    if value.get("format") is None:
        reader.refuse(f"{path}.format", REQUIRED)
        return None
    format_ = _format(reader, value, path, _choice(reader, value, path, "format", _FORMATS, ""))
    return None if format_ is None else Transform(format_, PayloadEncoding(encoding), expression)


def _format(reader: DocumentReader, source: JsonObject, path: str, name: str) -> PayloadFormat | None:
    match name:
        case "json":
            return JsonFormat()
        case "text":
            return TextFormat()
        case "csv":
            return CsvFormat(_columns(reader, source, path), _character(reader, source, path, "delimiter", ","))
        case "keyvalue":
            pair = _character(reader, source, path, "pairSeparator", ";")
            between = _character(reader, source, path, "valueSeparator", "=")
            if pair == between:
                reader.refuse(f"{path}.valueSeparator", invalid("must differ from pairSeparator"))
            return KeyValueFormat(pair, between)
        case "binary":
            return _binary(reader, source, path)
        case _:
            return None


def _choice(
    reader: DocumentReader, source: JsonObject, path: str, member: str, options: tuple[str, ...], default: str
) -> str:
    text = reader.text(source, f"{path}.{member}", member)
    if text is not None and text not in options:
        reader.refuse(f"{path}.{member}", invalid(choice(options)))
    return text if text in options else default


def _expression(reader: DocumentReader, source: JsonObject, path: str) -> str | None:
    text = reader.text(source, path, "expression")
    if text is not None:
        try:
            Expression(text)
        except InvalidExpressionError as error:
            reader.refuse(path, str(error))
    return text


def _character(reader: DocumentReader, source: JsonObject, path: str, member: str, default: str) -> str:
    text = reader.text(source, f"{path}.{member}", member, default=default)
    if text is not None and (len(text) != 1 or text in '"\r\n\0' or not text.isascii()):
        reader.refuse(f"{path}.{member}", invalid("must be one character of ASCII, and no quote or line break"))
        return default
    return text or default


def _entries(reader: DocumentReader, source: JsonObject, path: str, member: str) -> list[object]:
    entries = list(reader.array(source.get(member), f"{path}.{member}"))
    if source.get(member) is None or source.get(member) == []:
        reader.refuse(f"{path}.{member}", REQUIRED)
    if len(entries) > MAX_ENTRIES:
        reader.refuse(f"{path}.{member}", too_long(MAX_ENTRIES))
        return []
    return entries


def _columns(reader: DocumentReader, source: JsonObject, path: str) -> tuple[str, ...]:
    taken: set[str] = set()
    entries = _entries(reader, source, path, "columns")
    return tuple(_name(reader, entry, f"{path}.columns.{index}", taken) for index, entry in enumerate(entries))


def _name(reader: DocumentReader, value: object, path: str, taken: set[str]) -> str:
    if not reader.is_text(value, path):
        return ""
    if not value or len(value) > _MAX_NAME:
        reader.refuse(path, too_long(_MAX_NAME) if value else too_short(1))
    elif value in taken:
        reader.refuse(path, invalid("must be unique"))
    taken.add(value)
    return value


def _binary(reader: DocumentReader, source: JsonObject, path: str) -> BinaryFormat | None:
    little = _choice(reader, source, path, "byteOrder", _BYTE_ORDERS, "big") == "little"
    taken: set[str] = set()
    entries = reader.objects(_entries(reader, source, path, "layout"), f"{path}.layout")
    fields = [_binary_field(reader, entry, at, taken) for at, entry in entries]
    layout = BinaryFormat(tuple(field for field in fields if field is not None), little)
    if layout.size > MAX_DATA_BYTES:
        reader.refuse(f"{path}.layout", too_long(MAX_DATA_BYTES))
    return layout


def _binary_field(reader: DocumentReader, source: JsonObject, path: str, taken: set[str]) -> BinaryField | None:
    type_ = _choice(reader, source, path, "type", (*NUMBERS, *SIZED), "")
    if not type_:
        if source.get("type") is None:
            reader.refuse(f"{path}.type", REQUIRED)
        return None
    if source.get("name") is None and type_ != "skip":
        reader.refuse(f"{path}.name", REQUIRED)
    name = "" if source.get("name") is None else _name(reader, source["name"], f"{path}.name", taken)
    length = _length(reader, source, f"{path}.length") if type_ in SIZED else 1
    if type_ in NUMBERS:
        scale, offset = (_number(reader, source, f"{path}.{member}", member) for member in ("scale", "offset"))
        return BinaryField(name, type_, 1, scale, offset)
    return BinaryField(name, type_, length)


def _length(reader: DocumentReader, source: JsonObject, path: str) -> int:
    value = source.get("length")
    if value is None:
        reader.refuse(path, REQUIRED)
    elif isinstance(value, bool) or not isinstance(value, int):
        reader.refuse(path, NUMERIC_ONLY)
    elif not 1 <= value <= MAX_DATA_BYTES:
        reader.refuse(path, too_low(1) if value < 1 else too_high(MAX_DATA_BYTES))
    else:
        return value
    return 1


def _number(reader: DocumentReader, source: JsonObject, path: str, member: str) -> float | None:
    value = source.get(member)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 2**53:
        reader.refuse(path, NUMERIC_ONLY)
        return None
    return value
