"""A Manifest: the fields and Actions a device type declares (reference 8.2).

`manifest_parser.parse_manifest` makes one from an uploaded document.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final

import msgspec

from broker.device_types.transform import Transform

CUSTOM: Final = "CUSTOM"

#: Numbers of an object, an instance and a resource of LWM2M.
ResourceAddress = tuple[int, ...]


class ValueClass(StrEnum):
    """Class of a field's values."""

    BOOLEAN = "Boolean"
    DOUBLE = "Double"
    FLOAT = "Float"
    INTEGER = "Integer"
    LONG = "Long"
    STRING = "String"


MetadataScalar = bool | int | float | str
MetadataValue = MetadataScalar | tuple[MetadataScalar, ...]


class Metadata(msgspec.Struct, frozen=True):
    """Describes a field for its display; never rejects or alters data."""

    type: str
    value: MetadataValue


class Field(msgspec.Struct, frozen=True):
    """A field with a value class, or a group with children. `unit` is the text form."""

    name: str
    value_class: ValueClass | None
    type: str = CUSTOM
    children: "tuple[Field, ...]" = ()
    is_collection: bool = False
    unit: str | None = None
    description: str = ""
    is_sensitive: bool = False
    tags: tuple[str, ...] = ()
    metadata: tuple[Metadata, ...] = ()
    lwm2m: ResourceAddress | None = None  # the resource of the device whose values the field has
    settable: bool = False  # a value may be wanted of the device
    tolerance: float | None = None  # a number that differs by at most this from the wanted one is that one

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
        if self.lwm2m is not None:
            form["lwm2m"] = address_text(self.lwm2m)
        if self.settable:
            form["settable"] = True
        if self.tolerance is not None:
            form["tolerance"] = self.tolerance
        return form


class ResourceOperation(msgspec.Struct, frozen=True):
    """An operation of LWM2M that an Action is: Execute, or Write of a constant or of a parameter's value."""

    path: ResourceAddress
    is_execute: bool = False
    value: MetadataScalar | None = None
    parameter: str | None = None

    def document(self) -> dict[str, object]:
        if self.is_execute:
            return {"execute": address_text(self.path)}
        source = {"value": self.value} if self.parameter is None else {"parameter": self.parameter}
        return {"write": address_text(self.path), **source}


class DeclaredAction(msgspec.Struct, frozen=True):
    """An Action that a device type declares."""

    name: str
    type: str = CUSTOM
    is_standard: bool = False
    description: str = ""
    parameters: tuple[Field, ...] = ()  # which have the members of fields (reference 8.2)
    lwm2m: ResourceOperation | None = None

    def properties(self) -> dict[str, object]:
        form: dict[str, object] = {
            "description": self.description,
            "isStandard": self.is_standard,
            "parameters": _properties_by_name(self.parameters),
        }
        if self.lwm2m is not None:
            form["lwm2m"] = self.lwm2m.document()
        return form


@dataclass(frozen=True)
class Manifest:
    """One version of what a device type declares. Immutable: a change is a new version."""

    fields: tuple[Field, ...] = ()
    actions: tuple[DeclaredAction, ...] = ()
    transform: Transform | None = None  # what makes an Advanced Manifest

    @cached_property
    def leaves(self) -> Mapping[str, Field]:
        """Every field that holds values, by its dotted path, in the order of the document."""
        return MappingProxyType(dict(_leaves(self.fields, "")))

    @cached_property
    def resources(self) -> Mapping[str, ResourceAddress]:
        """The resources of LWM2M that fields have, by the dotted paths of the fields."""
        return MappingProxyType({path: field.lwm2m for path, field in self.leaves.items() if field.lwm2m is not None})

    @cached_property
    def operations(self) -> Mapping[str, ResourceOperation]:
        """The operations of LWM2M that Actions are, by the names of the Actions."""
        return MappingProxyType({one.name: one.lwm2m for one in self.actions if one.lwm2m is not None})

    def field_at(self, path: str) -> Field | None:
        """The field that holds values at a dotted path; None for a group and for a path that is not declared."""
        return self.leaves.get(path)

    def properties(self) -> dict[str, object]:
        """The member `properties` of the answers of reference 8.6."""
        return {
            "fields": _properties_by_name(self.fields),
            "actions": {action.name: action.properties() for action in self.actions},
        }


NO_MANIFEST: Final = Manifest()
"""The Manifest of a device type that has none yet: it declares nothing."""


def address_text(path: ResourceAddress) -> str:
    """`/3303/0/5700`."""
    return "/" + "/".join(map(str, path))


def _properties_by_name(fields: tuple[Field, ...]) -> dict[str, object]:
    return {field.name: field.properties() for field in fields}


def _leaves(fields: tuple[Field, ...], prefix: str) -> Iterator[tuple[str, Field]]:
    for field in fields:
        if field.is_group:
            yield from _leaves(field.children, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field
