"""The member `metaData` of fields and parameters: reference 8.2."""

from collections.abc import Callable, Mapping
from math import inf

from broker.device_types.manifest import Metadata, MetadataScalar, MetadataValue
from broker.device_types.reading import DocumentReader, JsonObject
from broker.errors import BOOLEAN_ONLY, NUMERIC_ONLY, REQUIRED, TEXT_ONLY, choice, invalid


def _is_text(value: MetadataScalar) -> bool:
    return isinstance(value, str)


def _is_number(value: MetadataScalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -inf < value < inf


def _is_text_or_number(value: MetadataScalar) -> bool:
    return _is_text(value) or _is_number(value)


_NUMERIC = (_is_number, NUMERIC_ONLY)
_BOOLEAN = (lambda value: isinstance(value, bool), BOOLEAN_ONLY)
_NUMERIC_CLASSES = ("DOUBLE", "FLOAT", "INTEGER", "LONG")

# For each type, the check of a value and the finding when it fails; for VALUES_ they apply to each item.
_METADATA_TYPES: Mapping[str, tuple[Callable[[MetadataScalar], bool], str]] = {
    "SAMPLE_RATE": (_is_text_or_number, invalid("must be a text or a number")),
    "ENCODING": (_is_text_or_number, invalid("must be a text or a number")),
    "BYTE_ORDER": (_is_text_or_number, invalid("must be a text or a number")),
    **{f"{bound}_VALUE_{name}": _NUMERIC for bound in ("MIN", "MAX") for name in _NUMERIC_CLASSES},
    "MIN_VALUE_STRICT": _BOOLEAN,
    "MAX_VALUE_STRICT": _BOOLEAN,
    "VALUES_BOOLEAN": _BOOLEAN,
    **{f"VALUES_{name}": _NUMERIC for name in _NUMERIC_CLASSES},
    "VALUES_STRING": (_is_text, TEXT_ONLY),
}


def read_metadata(reader: DocumentReader, value: object, path: str) -> tuple[Metadata, ...]:
    taken: set[str] = set()
    entries = reader.objects(reader.array(value, path), path)
    return tuple(found for at, entry in entries if (found := _metadatum(reader, entry, at, taken)) is not None)


def _metadatum(reader: DocumentReader, source: JsonObject, path: str, taken: set[str]) -> Metadata | None:
    value = source.get("value")
    if value is None:
        reader.refuse(f"{path}.value", REQUIRED)
    if source.get("type") is None:
        reader.refuse(f"{path}.type", REQUIRED)
    type_ = reader.text(source, f"{path}.type", "type")
    if type_ is None:
        return None
    if type_ in taken or type_ not in _METADATA_TYPES:  # the answers list metadata by type
        reader.refuse(f"{path}.type", invalid(f"must be given once, and {choice(_METADATA_TYPES)}"))
        return None
    taken.add(type_)
    return None if value is None else Metadata(type_, _value(reader, type_, value, f"{path}.value"))


def _value(reader: DocumentReader, type_: str, value: object, path: str) -> MetadataValue:
    if type_.startswith("VALUES_"):
        items = enumerate(reader.array(value, path))
        return tuple(_scalar(reader, type_, item, f"{path}.{index}") for index, item in items)
    return _scalar(reader, type_, value, path)


def _scalar(reader: DocumentReader, type_: str, value: object, path: str) -> MetadataScalar:
    is_right, otherwise = _METADATA_TYPES[type_]
    if isinstance(value, bool | int | float | str) and is_right(value):
        return value
    reader.refuse(path, otherwise)
    return ""
