"""Normalises raw `data` to the fields of a Manifest (reference 8.4).

There are two paths. The fast one decodes a payload straight into a struct that msgspec compiles from the Manifest; it
takes only values that need no conversion. All other payloads take the lenient path, which implements the rules: every
conversion, field by field. `normalize` always returns what `normalize_leniently` returns.
"""

import json
import re
import types
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import partial
from math import isinf
from typing import Annotated, Any, NoReturn

import msgspec

from broker.device_types.dropped import DroppedField, dropped_fields
from broker.device_types.manifest import Field, Manifest, ValueClass
from broker.errors import BadRequest
from broker.nesting import check_nesting
from config.limits import JSON_NESTING_MAX

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)

_encode = msgspec.json.Encoder().encode


class Normalizer:
    """Keeps what one Manifest declares. `NO_MANIFEST` keeps nothing."""

    __slots__ = ("_convert", "_decode", "_decode_fitting", "_fields", "_has_groups")

    def __init__(self, manifest: Manifest) -> None:
        self._fields = manifest.fields
        self._has_groups = any(field.value_class is None for field in manifest.fields)
        self._decode = msgspec.json.Decoder(_struct("Data", manifest.fields)).decode
        self._decode_fitting = msgspec.json.Decoder(_struct("Data", manifest.fields, fits=True)).decode
        self._convert = _group_converter(manifest.fields)

    def normalize(self, payload: bytes) -> bytes | None:
        """The declared part of a JSON object as compact JSON; None when nothing remains.

        Raises BadRequest for anything that is not the JSON text of an object.
        """
        try:
            if len(payload) > JSON_NESTING_MAX:  # a shorter text cannot nest too deeply
                check_nesting(payload)
            if not payload.isascii():
                payload.decode()  # msgspec does not look inside texts it skips
            normalized = _encode(self._decode(payload))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self.normalize_leniently(payload)
        if len(normalized) == 2:  # nothing remained
            return None
        # `{}` is a group that is to be dropped, or in a text.
        return self.normalize_leniently(payload) if self._has_groups and b"{}" in normalized else normalized

    def normalize_fitting(self, payload: bytes) -> bytes | None:
        """As `normalize`, but None also if a value does not fit, or if it is no JSON. A fit costs no more than with
        `normalize`: the decoder refuses unknown fields."""
        try:
            if len(payload) > JSON_NESTING_MAX:
                check_nesting(payload)
            if not payload.isascii():
                payload.decode()
            normalized = _encode(self._decode_fitting(payload))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        has_empty_group = self._has_groups and b"{}" in normalized
        return None if has_empty_group or len(normalized) == 2 else normalized

    def normalize_noting(self, payload: bytes, dropped: list[DroppedField]) -> bytes | None:
        """Normalize and add the fields that are not kept to `dropped`; else as `normalize`."""
        if (fitting := self.normalize_fitting(payload)) is not None:
            return fitting
        kept = self.normalize(payload)
        given = _JSON.decode(payload.decode())
        dropped += dropped_fields(self._fields, given, {} if kept is None else msgspec.json.decode(kept))
        return kept

    def normalize_leniently(self, payload: bytes) -> bytes | None:
        """Normalize without the fast path; else as `normalize`."""
        try:
            check_nesting(payload)
            data = _JSON.decode(payload.decode())
        except ValueError:  # msgspec.DecodeError is one, too
            raise BadRequest from None
        if not isinstance(data, dict):
            raise BadRequest
        converted = self._convert(data)
        return None if converted is None else _encode(converted)


def normalized_value(field: Field, value: bytes) -> object:
    """The value of one field from JSON, as messages have it; None if it does not convert as a whole.

    Raises BadRequest for anything that is no JSON.
    """
    try:
        check_nesting(value)
        given = _JSON.decode(value.decode())
    except ValueError:
        raise BadRequest from None
    converted = _converter(field)(given)
    if isinstance(converted, list) and (not isinstance(given, list) or len(converted) != len(given)):
        return None  # an item does not convert
    return converted


# The fast path

_EXACT_TYPES: dict[ValueClass, Any] = {
    ValueClass.BOOLEAN: bool,
    ValueClass.INTEGER: Annotated[int, msgspec.Meta(ge=_INT32[0], le=_INT32[-1])],
    ValueClass.LONG: Annotated[int, msgspec.Meta(ge=_INT64[0], le=_INT64[-1])],
    ValueClass.STRING: str,
}
_EXACT_TYPES[ValueClass.DOUBLE] = _EXACT_TYPES[ValueClass.FLOAT] = _EXACT_TYPES[ValueClass.LONG] | float


def _struct(name: str, fields: tuple[Field, ...], *, fits: bool = False) -> type[msgspec.Struct]:
    """`fits`: refuse unknown fields instead of leaving them out."""
    # The attributes have names of their own, because a Manifest may call a field `class` or `__init__`. An absent field
    # and a null are both None, which omit_defaults leaves out again.
    attributes = [f"f{index}" for index in range(len(fields))]
    return msgspec.defstruct(
        name,
        [
            (attribute, _exact_type(field, fits=fits) | None, None)
            for attribute, field in zip(attributes, fields, strict=True)
        ],
        rename={attribute: field.name for attribute, field in zip(attributes, fields, strict=True)},
        omit_defaults=True,
        forbid_unknown_fields=fits,
        gc=False,
    )


def _exact_type(field: Field, *, fits: bool) -> Any:
    if field.value_class is None:
        return _struct("Group", field.children, fits=fits)
    exact = _EXACT_TYPES[field.value_class]
    return types.GenericAlias(list, (exact,)) if field.is_collection else exact


# The lenient path


class _Number(str):
    """A JSON number as it was written."""

    __slots__ = ()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_JSON = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant)

_Converter = Callable[[object], object]
"""Returns the converted value; None if it does not convert."""


def _group_converter(fields: tuple[Field, ...]) -> _Converter:
    return partial(_to_group, tuple((field.name, _converter(field)) for field in fields))


def _converter(field: Field) -> _Converter:
    if field.value_class is None:
        return _group_converter(field.children)
    convert = _CONVERTERS[field.value_class]
    return partial(_to_collection, convert) if field.is_collection else convert


def _to_group(members: tuple[tuple[str, _Converter], ...], value: object) -> object:
    if not isinstance(value, dict):
        return None
    group = {
        name: converted
        for name, convert in members
        if (given := value.get(name)) is not None and (converted := convert(given)) is not None
    }
    return group or None


def _to_collection(convert: _Converter, value: object) -> object:
    if not isinstance(value, list):
        value = [value]
    items = [converted for item in value if (converted := convert(item)) is not None]
    # An empty array is a value. An array of which no item converts is a field that does not convert.
    return items if items or not value else None


def _to_boolean(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, _Number):
        return {0.0: False, 1.0: True}.get(float(value))
    if isinstance(value, str):
        return {"false": False, "true": True}.get(value.lower())
    return None


def _to_integer(within: range, value: object) -> int | None:
    if (text := _numeric_text(value)) is None:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent beyond all bounds
        return None
    # Compared before it is made an int: the exponent may be large.
    return int(number) if within[0] - 1 < number < within[-1] + 1 else None


def _to_double(value: object) -> int | float | None:
    if (text := _numeric_text(value)) is None:
        return None
    # 500 stays 500, while it fits into 64 bits.
    if _INTEGER_TEXT.fullmatch(text) and (number := int(text)) in _INT64:
        return number
    finite = float(text)
    return None if isinf(finite) else finite


def _to_string(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair is no text
        return None
    return str(value)


_INTEGER_TEXT = re.compile(r"[+-]?[0-9]{1,19}")
_NUMERIC_TEXT = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def _numeric_text(value: object) -> str | None:
    """A number as it was written, or the number in a text; blanks around it do no harm."""
    if isinstance(value, _Number):
        return value
    if isinstance(value, str) and _NUMERIC_TEXT.fullmatch(text := value.strip(" \t\r\n")):
        return text
    return None


_CONVERTERS: dict[ValueClass, _Converter] = {
    ValueClass.BOOLEAN: _to_boolean,
    ValueClass.INTEGER: partial(_to_integer, _INT32),
    ValueClass.LONG: partial(_to_integer, _INT64),
    ValueClass.FLOAT: _to_double,
    ValueClass.DOUBLE: _to_double,
    ValueClass.STRING: _to_string,
}
