"""Parses uploaded documents into Manifests (reference 8.2).

The parser continues after a problem, so that the author sees all problems at once.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from broker.device_types.manifest import (
    CUSTOM,
    NO_MANIFEST,
    DeclaredAction,
    Field,
    Manifest,
    ResourceAddress,
    ResourceOperation,
    ValueClass,
)
from broker.device_types.metadata_parser import read_metadata
from broker.device_types.reading import DocumentReader, JsonObject
from broker.device_types.standard_actions import STANDARD_ACTIONS
from broker.device_types.transform_parser import read_transform
from broker.device_types.units import unit_text
from broker.errors import NUMERIC_ONLY, REQUIRED, choice, invalid, too_long, too_short
from broker.nesting import NestedTooDeeplyError, check_value_nesting
from config.limits import DEVICE_VALUE_BYTES, LWM2M_PATHS_MAX

MAX_DOCUMENT_BYTES: Final = 256 * 1024
MAX_FIELDS: Final = 500
MAX_ACTIONS: Final = 100
MAX_PARAMETERS: Final = 50
MAX_LEVELS: Final = 5
MAX_NAME: Final = 64
MAX_FIELD_DESCRIPTION: Final = 1_500
MAX_ACTION_DESCRIPTION: Final = 128

_DOCUMENT = "manifest"  # the field of findings about the whole document
_NOT_A_MANIFEST = "manifest content invalid or empty"

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TYPE = re.compile(r"[A-Z][A-Z0-9_]*")
_VALUE_CLASSES = frozenset(ValueClass)
_NUMERIC = _VALUE_CLASSES - {ValueClass.BOOLEAN, ValueClass.STRING}
_MOST_TOLERANCE = 1e300
_RESOURCE = re.compile(r"/(0|[1-9][0-9]{0,4})/(0|[1-9][0-9]{0,4})/(0|[1-9][0-9]{0,4})", re.ASCII)
_LARGEST_NUMBER = 65_534  # 65,535 is reserved
#: Keys, access rights, and what belongs to the server: no device lets them be read.
_UNREADABLE_OBJECTS = frozenset({0, 1, 2, 21})
_NO_RESOURCE = "must be the path of a resource, such as /3303/0/5700, of another object than 0, 1, 2 and 21"
_NAMES = "must be letters, digits and _, begin with no digit, and be unique among its siblings"


def parse_manifest(document: object) -> Manifest:
    """Read a decoded JSON document. Raises ValidationFailed with all problems."""
    parser = _Parser()
    manifest = parser.manifest(document)
    parser.check()
    return manifest


class _Parser(DocumentReader):
    """Parser of a Manifest. Its result is not used if the document has findings."""

    # The document and its Actions

    def manifest(self, document: object) -> Manifest:
        if not isinstance(document, Mapping) or not (document.get("fields") or document.get("actions")):
            self.refuse(_DOCUMENT, _NOT_A_MANIFEST)
            return NO_MANIFEST
        if not self._fits(document):
            return NO_MANIFEST
        if self.text(document, "messageFormat", "messageFormat", default="json") not in ("json", None):
            self.refuse("messageFormat", invalid(choice(("json",))))
        if document.get("fields") is None:
            self.refuse("fields", REQUIRED)
        manifest = Manifest(
            fields=self.fields(document.get("fields"), "fields", limit=MAX_FIELDS),
            actions=self.actions(document.get("actions")),
            transform=read_transform(self, document.get("transform"), "transform"),
        )
        if len(set(manifest.resources.values())) > LWM2M_PATHS_MAX:
            self.refuse("fields", invalid(f"at most {LWM2M_PATHS_MAX} paths of lwm2m"))
        if manifest.transform is not None and manifest.resources:
            self.refuse("transform", invalid("a Manifest with a transform has no fields with lwm2m"))
        return manifest

    def _fits(self, document: JsonObject) -> bool:
        try:
            check_value_nesting(document)
            size = len(msgspec.json.encode(document))
        except (NestedTooDeeplyError, TypeError, ValueError, OverflowError):  # no JSON document
            self.refuse(_DOCUMENT, _NOT_A_MANIFEST)
            return False
        if size > MAX_DOCUMENT_BYTES:
            self.refuse(_DOCUMENT, too_long(MAX_DOCUMENT_BYTES))
        return size <= MAX_DOCUMENT_BYTES

    def actions(self, value: object) -> tuple[DeclaredAction, ...]:
        entries = self.array(value, "actions")
        if len(entries) > MAX_ACTIONS:
            self.refuse("actions", too_long(MAX_ACTIONS))
            return ()
        taken: set[str] = set()
        return tuple(self.action(entry, path, taken) for path, entry in self.objects(entries, "actions"))

    def action(self, source: JsonObject, path: str, taken: set[str]) -> DeclaredAction:
        name = self.name(source, path, taken)
        type_ = self.type(source, path)
        is_standard = self.flag(source, f"{path}.isStandard", "isStandard")
        parameters = source.get("parameters")
        if is_standard and source.get("type") is None:
            self.refuse(f"{path}.type", REQUIRED)
        elif is_standard and type_ is not None:
            if (standard := STANDARD_ACTIONS.get(type_)) is None:
                self.refuse(f"{path}.type", invalid(choice(STANDARD_ACTIONS)))
            elif parameters is None:
                parameters = standard.parameters
        taken_parameters = self.fields(parameters, f"{path}.parameters", limit=MAX_PARAMETERS)
        return DeclaredAction(
            name=name,
            type=type_ or CUSTOM,
            is_standard=is_standard,
            description=self.description(source, path, maximum=MAX_ACTION_DESCRIPTION),
            parameters=taken_parameters,
            lwm2m=self.operation(source.get("lwm2m"), f"{path}.lwm2m", taken_parameters),
        )

    def operation(self, source: object, path: str, parameters: tuple[Field, ...]) -> ResourceOperation | None:
        if source is None:
            return None
        if not isinstance(source, Mapping) or (source.get("write") is None) == (source.get("execute") is None):
            self.refuse(path, invalid("must be an object with either write or execute"))
            return None
        kind = "write" if source.get("execute") is None else "execute"
        address = self.address(source, f"{path}.{kind}", kind)
        value, parameter = source.get("value"), source.get("parameter")
        if kind == "execute":
            if value is not None or parameter is not None:
                self.refuse(path, invalid("execute takes no value"))
            return None if address is None else ResourceOperation(address, is_execute=True)
        if (value is None) == (parameter is None):
            self.refuse(path, invalid("write needs either value or parameter"))
            return None
        if parameter is not None:
            if not isinstance(parameter, str) or parameter not in {one.name for one in parameters if not one.is_group}:
                self.refuse(f"{path}.parameter", invalid("must be the name of a parameter of the Action, and no group"))
                return None
            return None if address is None else ResourceOperation(address, parameter=parameter)
        if not isinstance(value, bool | int | float | str) or len(str(value)) > DEVICE_VALUE_BYTES:
            self.refuse(
                f"{path}.value",
                invalid(f"must be a Boolean, a number or a text of at most {DEVICE_VALUE_BYTES} characters"),
            )
            return None
        return None if address is None else ResourceOperation(address, value=value)

    # Fields and parameters

    def fields(self, value: object, path: str, *, limit: int) -> tuple[Field, ...]:
        """A whole tree of fields; the limit counts groups and what is in them."""
        if _count(value) > limit:
            self.refuse(path, too_long(limit))
            return ()
        return self.siblings(value, path, level=1)

    def siblings(self, value: object, path: str, *, level: int) -> tuple[Field, ...]:
        taken: set[str] = set()
        entries = self.objects(self.array(value, path), path)
        return tuple(self.field(entry, at, taken, level) for at, entry in entries)

    def field(self, source: JsonObject, path: str, taken: set[str], level: int) -> Field:
        children = source.get("children")
        is_group = not (children is None or (isinstance(children, list | tuple) and not children))
        is_collection = self.flag(source, f"{path}.isCollection", "isCollection")
        if is_group and is_collection:
            self.refuse(f"{path}.isCollection", invalid("a group is no collection"))
        return Field(
            name=self.name(source, path, taken),
            value_class=self.value_class(source, path, is_group=is_group),
            type=self.type(source, path) or CUSTOM,
            children=self.children(children, f"{path}.children", level) if is_group else (),
            is_collection=is_collection,
            unit=self.unit(source, path),
            description=self.description(source, path, maximum=MAX_FIELD_DESCRIPTION),
            is_sensitive=self.flag(source, f"{path}.isSensitive", "isSensitive"),
            tags=self.tags(source.get("tags"), f"{path}.tags"),
            metadata=read_metadata(self, source.get("metaData"), f"{path}.metaData"),
            lwm2m=self.resource(source, path, is_group=is_group),
            settable=self.settable(source, path, is_group=is_group),
            tolerance=self.tolerance(source, path),
        )

    def children(self, value: object, path: str, level: int) -> tuple[Field, ...]:
        if level == MAX_LEVELS:
            self.refuse(path, invalid(f"at most {MAX_LEVELS} levels of groups"))
            return ()
        return self.siblings(value, path, level=level + 1)

    def value_class(self, source: JsonObject, path: str, *, is_group: bool) -> ValueClass | None:
        text, path = source.get("valueClass"), f"{path}.valueClass"
        if text is None or is_group:
            if is_group != (text is None):
                self.refuse(path, invalid("a group has no valueClass") if is_group else REQUIRED)
            return None
        if not self.is_text(text, path):
            return None
        if text not in _VALUE_CLASSES:
            self.refuse(path, invalid(choice(sorted(_VALUE_CLASSES))))
            return None
        return ValueClass(text)

    def resource(self, source: JsonObject, path: str, *, is_group: bool) -> ResourceAddress | None:
        path = f"{path}.lwm2m"
        if source.get("lwm2m") is None:
            return None
        if path.startswith("actions.") or is_group:
            self.refuse(path, invalid("only a field with a valueClass has one"))
            return None
        return self.address(source, path, "lwm2m")

    def settable(self, source: JsonObject, path: str, *, is_group: bool) -> bool:
        is_settable = self.flag(source, f"{path}.settable", "settable")
        if is_settable and (path.startswith("actions.") or is_group):
            self.refuse(f"{path}.settable", invalid("only a field with a valueClass is settable"))
        return is_settable

    def tolerance(self, source: JsonObject, path: str) -> float | None:
        value, path = source.get("tolerance"), f"{path}.tolerance"
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(path, NUMERIC_ONLY)
        elif (
            source.get("valueClass") not in _NUMERIC or source.get("isCollection") or source.get("settable") is not True
        ):
            self.refuse(path, invalid("only a settable number that is no collection has one"))
        elif not 0 <= value <= _MOST_TOLERANCE:
            self.refuse(path, invalid("must be a number from 0 to 1e300"))
        else:
            return float(value)
        return None

    def address(self, source: JsonObject, path: str, member: str) -> ResourceAddress | None:
        """The path of a resource; None if there is none, or with a finding."""
        if (text := self.text(source, path, member)) is None:
            return None
        found = _RESOURCE.fullmatch(text)
        address = () if found is None else tuple(map(int, found.groups()))
        if not address or max(address) > _LARGEST_NUMBER or address[0] in _UNREADABLE_OBJECTS:
            self.refuse(path, invalid(_NO_RESOURCE))
            return None
        return address

    def unit(self, source: JsonObject, path: str) -> str | None:
        """`unitSymbol` is the text form already, so it takes precedence over `unit`."""
        unit = self.text(source, f"{path}.unit", "unit")
        symbol = self.text(source, f"{path}.unitSymbol", "unitSymbol")
        return symbol or (unit_text(unit) if unit else None)

    def tags(self, value: object, path: str) -> tuple[str, ...]:
        return tuple(tag for index, tag in enumerate(self.array(value, path)) if self.is_text(tag, f"{path}.{index}"))

    # Members of fields and Actions alike

    def name(self, source: JsonObject, path: str, taken: set[str]) -> str:
        path = f"{path}.name"
        if source.get("name") is None:
            self.refuse(path, REQUIRED)
            return ""
        name = self.text(source, path, "name", maximum=MAX_NAME)
        if name is None:
            return ""
        if not name:
            self.refuse(path, too_short(1))
        elif name in taken or _NAME.fullmatch(name) is None:
            self.refuse(
                path,
                invalid(_NAMES),
            )
        taken.add(name)
        return name

    def type(self, source: JsonObject, path: str) -> str | None:
        type_ = self.text(source, f"{path}.type", "type", default=CUSTOM)
        if type_ is not None and _TYPE.fullmatch(type_) is None:
            self.refuse(f"{path}.type", invalid("must be upper-case letters, digits and _"))
            return None
        return type_

    def description(self, source: JsonObject, path: str, *, maximum: int) -> str:
        return self.text(source, f"{path}.description", "description", maximum=maximum) or ""


def _count(entries: object, level: int = 1) -> int:
    if level > MAX_LEVELS or not isinstance(entries, list | tuple):
        return 0
    return len(entries) + sum(
        _count(entry.get("children"), level + 1) for entry in entries if isinstance(entry, Mapping)
    )
