"""A Manifest: the fields and Actions a device type declares, and the rules of compatibility.md section 8.2.

`Manifest.parse` reads an uploaded document. It goes on after a problem, so that its author sees every one of them at
once; what it builds from a refused document is thrown away.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Final, TypeGuard

import msgspec

from broker.device_types.standard_actions import STANDARD_ACTIONS
from broker.device_types.units import unit_text
from broker.errors import Finding, ValidationFailed

MAX_DOCUMENT_BYTES: Final = 256 * 1024
MAX_FIELDS: Final = 500
MAX_ACTIONS: Final = 100
MAX_PARAMETERS: Final = 50
MAX_LEVELS: Final = 5
MAX_NAME: Final = 64
MAX_FIELD_DESCRIPTION: Final = 1_500
MAX_ACTION_DESCRIPTION: Final = 128

_MAX_FINDINGS = 1_000  # an upload of noise is not answered with megabytes of findings

_DOCUMENT = "manifest"  # where a finding points that concerns the document as a whole
_NOT_A_MANIFEST = "manifest content invalid or empty"
_REQUIRED = "Required parameter"
_INVALID = "Invalid value"
_TEXT_ONLY = "Text field only"
_BOOLEAN_ONLY = "Boolean field only"
_NUMERIC_ONLY = "Numeric field only"

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TYPE = re.compile(r"[A-Z][A-Z0-9_]*")
_CUSTOM = "CUSTOM"

_Object = Mapping[str, object]


class ValueClass(StrEnum):
    """What the values of a field are."""

    BOOLEAN = "Boolean"
    DOUBLE = "Double"
    FLOAT = "Float"
    INTEGER = "Integer"
    LONG = "Long"
    STRING = "String"


_VALUE_CLASSES = frozenset(ValueClass)


MetadataScalar = bool | int | float | str
MetadataValue = MetadataScalar | tuple[MetadataScalar, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Describes a field to whoever shows it; never rejects or alters data."""

    type: str
    value: MetadataValue


@dataclass(frozen=True, slots=True)
class Field:
    """A field with a value class, or a group with children. `unit` is the text form."""

    name: str
    value_class: ValueClass | None
    type: str = _CUSTOM
    children: "tuple[Field, ...]" = ()
    is_collection: bool = False
    unit: str | None = None
    description: str = ""
    is_sensitive: bool = False
    tags: tuple[str, ...] = ()
    metadata: tuple[Metadata, ...] = ()

    @property
    def is_group(self) -> bool:
        return bool(self.children)

    def properties(self) -> dict[str, object]:
        if self.is_group:
            return _properties_by_name(self.children)
        form: dict[str, object] = {
            "type": str(self.value_class),
            "isCollection": self.is_collection,
            "description": self.description,
        }
        if self.unit is not None:
            form["unit"] = self.unit
        if self.metadata:
            form["metadata"] = {
                entry.type: list(entry.value) if isinstance(entry.value, tuple) else entry.value
                for entry in self.metadata
            }
        return form


Parameter = Field  # section 8.2: parameters have the members of fields


@dataclass(frozen=True, slots=True)
class Action:
    """Something a device can be told to do."""

    name: str
    type: str = _CUSTOM
    is_standard: bool = False
    description: str = ""
    parameters: tuple[Parameter, ...] = ()

    def properties(self) -> dict[str, object]:
        return {
            "description": self.description,
            "isStandard": self.is_standard,
            "parameters": _properties_by_name(self.parameters),
        }


@dataclass(frozen=True)
class Manifest:
    """One version of what a device type declares. Immutable: a change is a new version."""

    fields: tuple[Field, ...] = ()
    actions: tuple[Action, ...] = ()

    @classmethod
    def parse(cls, document: object) -> "Manifest":
        """Read a decoded JSON document; raises ValidationFailed with every problem it has."""
        parser = _Parser()
        manifest = parser.manifest(document)
        if parser.findings:
            raise ValidationFailed(tuple(parser.findings))
        return manifest

    @cached_property
    def leaves(self) -> Mapping[str, Field]:
        """Every field that holds values, by its dotted path, in the order of the document."""
        return MappingProxyType(dict(_leaves(self.fields, "")))

    def field_at(self, path: str) -> Field | None:
        """The field that holds values at a dotted path; None for a group and for a path that is not declared."""
        return self.leaves.get(path)

    @cached_property
    def actions_by_name(self) -> Mapping[str, Action]:
        return MappingProxyType({action.name: action for action in self.actions})

    def properties(self) -> dict[str, object]:
        """The member `properties` of the answers of section 8.6."""
        return {
            "fields": _properties_by_name(self.fields),
            "actions": {action.name: action.properties() for action in self.actions},
        }


NO_MANIFEST: Final = Manifest()
"""Stands in for a device type whose first Manifest is still to come: it declares nothing."""


def _properties_by_name(fields: tuple[Field, ...]) -> dict[str, object]:
    return {field.name: field.properties() for field in fields}


def _leaves(fields: tuple[Field, ...], prefix: str) -> Iterator[tuple[str, Field]]:
    for field in fields:
        if field.is_group:
            yield from _leaves(field.children, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field


def _is_text(value: MetadataScalar) -> bool:
    return isinstance(value, str)


def _is_boolean(value: MetadataScalar) -> bool:
    return isinstance(value, bool)


def _is_number(value: MetadataScalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -inf < value < inf


def _is_text_or_number(value: MetadataScalar) -> bool:
    return _is_text(value) or _is_number(value)


_NUMERIC = (_is_number, _NUMERIC_ONLY)
_BOOLEAN = (_is_boolean, _BOOLEAN_ONLY)
_NUMERIC_CLASSES = ("DOUBLE", "FLOAT", "INTEGER", "LONG")

# What a value must be and what is said otherwise; for VALUES_ it holds for each item.
_METADATA_TYPES: Mapping[str, tuple[Callable[[MetadataScalar], bool], str]] = {
    "SAMPLE_RATE": (_is_text_or_number, _INVALID),
    "ENCODING": (_is_text_or_number, _INVALID),
    "BYTE_ORDER": (_is_text_or_number, _INVALID),
    **{f"{bound}_VALUE_{name}": _NUMERIC for bound in ("MIN", "MAX") for name in _NUMERIC_CLASSES},
    "MIN_VALUE_STRICT": _BOOLEAN,
    "MAX_VALUE_STRICT": _BOOLEAN,
    "VALUES_BOOLEAN": _BOOLEAN,
    **{f"VALUES_{name}": _NUMERIC for name in _NUMERIC_CLASSES},
    "VALUES_STRING": (_is_text, _TEXT_ONLY),
}


class _Parser:
    """Collects what is wrong with a document while it reads it. `null` counts as absent everywhere."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def refuse(self, path: str, message: str) -> None:
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(Finding(path, (message,)))

    # The document and its Actions

    def manifest(self, document: object) -> Manifest:
        if not isinstance(document, Mapping) or not (document.get("fields") or document.get("actions")):
            self.refuse(_DOCUMENT, _NOT_A_MANIFEST)
            return NO_MANIFEST
        if not self._fits(document):
            return NO_MANIFEST
        if self.text(document, "messageFormat", "messageFormat", default="json") not in ("json", None):
            self.refuse("messageFormat", _INVALID)
        if document.get("fields") is None:
            self.refuse("fields", _REQUIRED)
        return Manifest(
            fields=self.fields(document.get("fields"), "fields", limit=MAX_FIELDS),
            actions=self.actions(document.get("actions")),
        )

    def _fits(self, document: _Object) -> bool:
        try:
            size = len(msgspec.json.encode(document))
        except (TypeError, ValueError, OverflowError, RecursionError):  # nothing a JSON document can be
            self.refuse(_DOCUMENT, _NOT_A_MANIFEST)
            return False
        if size > MAX_DOCUMENT_BYTES:
            self.refuse(_DOCUMENT, f"Maximum length {MAX_DOCUMENT_BYTES}")
        return size <= MAX_DOCUMENT_BYTES

    def actions(self, value: object) -> tuple[Action, ...]:
        entries = self.array(value, "actions")
        if len(entries) > MAX_ACTIONS:
            self.refuse("actions", f"Maximum length {MAX_ACTIONS}")
            return ()
        taken: set[str] = set()
        return tuple(self.action(entry, path, taken) for path, entry in self.objects(entries, "actions"))

    def action(self, source: _Object, path: str, taken: set[str]) -> Action:
        name = self.name(source, path, taken)
        type_ = self.type(source, path)
        is_standard = self.flag(source, f"{path}.isStandard", "isStandard")
        parameters = source.get("parameters")
        if is_standard and source.get("type") is None:
            self.refuse(f"{path}.type", _REQUIRED)
        elif is_standard and type_ is not None:
            if (standard := STANDARD_ACTIONS.get(type_)) is None:
                self.refuse(f"{path}.type", _INVALID)
            elif parameters is None:
                parameters = standard.parameters
        return Action(
            name=name,
            type=type_ or _CUSTOM,
            is_standard=is_standard,
            description=self.description(source, path, maximum=MAX_ACTION_DESCRIPTION),
            parameters=self.fields(parameters, f"{path}.parameters", limit=MAX_PARAMETERS),
        )

    # Fields and parameters

    def fields(self, value: object, path: str, *, limit: int) -> tuple[Field, ...]:
        """A whole tree of fields; the limit counts groups and what is in them."""
        if _count(value) > limit:
            self.refuse(path, f"Maximum length {limit}")
            return ()
        return self.siblings(value, path, level=1)

    def siblings(self, value: object, path: str, *, level: int) -> tuple[Field, ...]:
        taken: set[str] = set()
        entries = self.objects(self.array(value, path), path)
        return tuple(self.field(entry, at, taken, level) for at, entry in entries)

    def field(self, source: _Object, path: str, taken: set[str], level: int) -> Field:
        children = source.get("children")
        is_group = not (children is None or (isinstance(children, list | tuple) and not children))
        is_collection = self.flag(source, f"{path}.isCollection", "isCollection")
        if is_group and is_collection:
            self.refuse(f"{path}.isCollection", _INVALID)
        return Field(
            name=self.name(source, path, taken),
            value_class=self.value_class(source, path, is_group=is_group),
            type=self.type(source, path) or _CUSTOM,
            children=self.children(children, f"{path}.children", level) if is_group else (),
            is_collection=is_collection,
            unit=self.unit(source, path),
            description=self.description(source, path, maximum=MAX_FIELD_DESCRIPTION),
            is_sensitive=self.flag(source, f"{path}.isSensitive", "isSensitive"),
            tags=self.tags(source.get("tags"), f"{path}.tags"),
            metadata=self.metadata(source.get("metaData"), f"{path}.metaData"),
        )

    def children(self, value: object, path: str, level: int) -> tuple[Field, ...]:
        if level == MAX_LEVELS:
            self.refuse(path, _INVALID)
            return ()
        return self.siblings(value, path, level=level + 1)

    def value_class(self, source: _Object, path: str, *, is_group: bool) -> ValueClass | None:
        text, path = source.get("valueClass"), f"{path}.valueClass"
        if text is None or is_group:
            if is_group != (text is None):
                self.refuse(path, _INVALID if is_group else _REQUIRED)
            return None
        if not self._is_text(text, path):
            return None
        if text not in _VALUE_CLASSES:
            self.refuse(path, _INVALID)
            return None
        return ValueClass(text)

    def unit(self, source: _Object, path: str) -> str | None:
        """`unitSymbol` is the text form already, so it wins over `unit`."""
        unit = self.text(source, f"{path}.unit", "unit")
        symbol = self.text(source, f"{path}.unitSymbol", "unitSymbol")
        return symbol or (unit_text(unit) if unit else None)

    def tags(self, value: object, path: str) -> tuple[str, ...]:
        return tuple(tag for index, tag in enumerate(self.array(value, path)) if self._is_text(tag, f"{path}.{index}"))

    # Metadata

    def metadata(self, value: object, path: str) -> tuple[Metadata, ...]:
        taken: set[str] = set()
        entries = self.objects(self.array(value, path), path)
        return tuple(found for at, entry in entries if (found := self.metadatum(entry, at, taken)) is not None)

    def metadatum(self, source: _Object, path: str, taken: set[str]) -> Metadata | None:
        value = source.get("value")
        if value is None:
            self.refuse(f"{path}.value", _REQUIRED)
        if source.get("type") is None:
            self.refuse(f"{path}.type", _REQUIRED)
        type_ = self.text(source, f"{path}.type", "type")
        if type_ is None:
            return None
        if type_ in taken or type_ not in _METADATA_TYPES:  # the answers list metadata by type
            self.refuse(f"{path}.type", _INVALID)
            return None
        taken.add(type_)
        return None if value is None else Metadata(type_, self.metadata_value(type_, value, f"{path}.value"))

    def metadata_value(self, type_: str, value: object, path: str) -> MetadataValue:
        if type_.startswith("VALUES_"):
            items = enumerate(self.array(value, path))
            return tuple(self.metadata_scalar(type_, item, f"{path}.{index}") for index, item in items)
        return self.metadata_scalar(type_, value, path)

    def metadata_scalar(self, type_: str, value: object, path: str) -> MetadataScalar:
        is_right, otherwise = _METADATA_TYPES[type_]
        if isinstance(value, bool | int | float | str) and is_right(value):
            return value
        self.refuse(path, otherwise)
        return ""

    # Members that look alike everywhere

    def name(self, source: _Object, path: str, taken: set[str]) -> str:
        path = f"{path}.name"
        if source.get("name") is None:
            self.refuse(path, _REQUIRED)
            return ""
        name = self.text(source, path, "name", maximum=MAX_NAME)
        if name is None:
            return ""
        if not name:
            self.refuse(path, "Minimum length 1")
        elif name in taken or _NAME.fullmatch(name) is None:
            self.refuse(path, _INVALID)
        taken.add(name)
        return name

    def type(self, source: _Object, path: str) -> str | None:
        type_ = self.text(source, f"{path}.type", "type", default=_CUSTOM)
        if type_ is not None and _TYPE.fullmatch(type_) is None:
            self.refuse(f"{path}.type", _INVALID)
            return None
        return type_

    def description(self, source: _Object, path: str, *, maximum: int) -> str:
        return self.text(source, f"{path}.description", "description", maximum=maximum) or ""

    def text(
        self, source: _Object, path: str, member: str, *, default: str | None = None, maximum: int | None = None
    ) -> str | None:
        """The text of a member, its default when it is absent, None when it was refused."""
        value = source.get(member)
        if value is None:
            return default
        if not self._is_text(value, path):
            return None
        if maximum is not None and len(value) > maximum:
            self.refuse(path, f"Maximum length {maximum}")
            return None
        return value

    def flag(self, source: _Object, path: str, member: str) -> bool:
        value = source.get(member)
        if value is not None and not isinstance(value, bool):
            self.refuse(path, _BOOLEAN_ONLY)
        return value is True

    def array(self, value: object, path: str) -> Sequence[object]:
        if isinstance(value, list | tuple):
            return value
        if value is not None:
            self.refuse(path, _INVALID)
        return ()

    def objects(self, entries: Sequence[object], path: str) -> Iterator[tuple[str, _Object]]:
        for index, entry in enumerate(entries):
            if isinstance(entry, Mapping):
                yield f"{path}.{index}", entry
            else:
                self.refuse(f"{path}.{index}", _INVALID)

    def _is_text(self, value: object, path: str) -> TypeGuard[str]:
        if not isinstance(value, str):
            self.refuse(path, _TEXT_ONLY)
            return False
        return True


def _count(entries: object, level: int = 1) -> int:
    if level > MAX_LEVELS or not isinstance(entries, list | tuple):
        return 0
    return len(entries) + sum(
        _count(entry.get("children"), level + 1) for entry in entries if isinstance(entry, Mapping)
    )
