"""Reads the names, sources and operands of a body, and collects all findings (reference 12.3).

Names are looked up before the body is compiled, because a lookup may have to wait: `names_in` lists them. A body is
read to its end whatever is wrong with it, so that its author sees all problems at once. The result of a body with
findings is not used.
"""

from collections.abc import Collection, Mapping
from sys import intern
from types import MappingProxyType
from typing import Final

import msgspec

from broker.device_types.manifest import Field, Manifest
from broker.device_types.reading import DocumentReader, JsonObject
from broker.errors import BOOLEAN_ONLY, NUMERIC_ONLY, REQUIRED, TEXT_ONLY, choice, invalid
from broker.rules.language.conditions import NO_DEVICE
from broker.rules.language.values import (
    NO_VIEW,
    NOTHING_BOUND,
    OPERATIONS,
    Constant,
    LastValue,
    Operand,
    Operation,
    UnknownValueError,
    Value,
    ValueKind,
    is_finite,
    kind_of_field,
    value_kind,
)
from config.limits import RULE_BODY_BYTES
from storage.keys import DeviceKey, DeviceTypeKey, UserKey

#: More different names do not fit into a body.
_NAMES_MAX: Final = RULE_BODY_BYTES // len('"sdid":"a"')


class ResolvedType(msgspec.Struct, frozen=True):
    """A device type. `manifest` is the latest approved version; selectors check fields and Actions against it."""

    key: DeviceTypeKey
    id: str
    manifest: Manifest


class ResolvedDevice(msgspec.Struct, frozen=True):
    """A device. `manifest` is the version that its messages are normalised with."""

    key: DeviceKey
    id: str
    manifest: Manifest


class ResolvedNames(msgspec.Struct, frozen=True):
    """The devices and device types that exist, by the text in the body; a name that is missing does not exist.

    `unshared` has ids of other users' devices that exist and that the rule's user may not use (any more).

    `device_types` has a type under its id or its unique name, whichever the body uses. `owner` is the rule's user: the
    selectors choose from this user's devices.
    """

    owner: UserKey
    devices: Mapping[str, ResolvedDevice]
    device_types: Mapping[str, ResolvedType]
    unshared: frozenset[str] = frozenset()


class NamesInBody(msgspec.Struct, frozen=True):
    """The texts in a body that name devices and device types."""

    devices: frozenset[str]
    device_types: frozenset[str]


def names_in(body: object) -> NamesInBody:
    """Every text in a body that names a device or a device type, whether the body is valid or not.

    A body that is too large to be compiled names nothing, so that its names are not looked up.
    """
    devices: set[str] = set()
    device_types: set[str] = set()
    waiting = [body]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list | tuple):
            waiting += found
        elif isinstance(found, Mapping):
            for member, value in found.items():
                if not isinstance(value, str):
                    waiting.append(value)
                elif member in ("sdid", "ddid"):
                    devices.add(value)
                elif member == "dtid":
                    device_types.add(value)
    if len(devices) + len(device_types) > _NAMES_MAX:
        return NamesInBody(frozenset(), frozenset())
    return NamesInBody(frozenset(devices), frozenset(device_types))


INVALID_RULE: Final = "Invalid rule"
_OPERATIONS_NESTED_MAX: Final = 10
_FORMS: Final = ("value", "valueFrom", *OPERATIONS)


def no_field(name: str) -> str:
    return f'Field "{name}" does not exist'


def not_allowed(operator: str) -> str:
    return f'Operator "{operator}" is not allowed'


_ONE_FORM: Final = "one of value, valueFrom and an operation"
#: The message about a value of another kind than the one wanted.
OF_ANOTHER_KIND: Final[Mapping[ValueKind, str]] = MappingProxyType(
    {
        ValueKind.BOOLEAN: BOOLEAN_ONLY,
        ValueKind.NUMBER: NUMERIC_ONLY,
        ValueKind.TEXT: TEXT_ONLY,
        ValueKind.COLLECTION: invalid("must be a collection"),
    }
)


class RuleSource(msgspec.Struct, frozen=True):
    """The meaning of `sdid` or `ddid`: a device, or devices of a type. `name` is its text in messages to people."""

    manifest: Manifest
    name: str
    device: DeviceKey = NO_DEVICE
    device_type: DeviceTypeKey | None = None
    selector: str = ""


class ReadOperand(msgspec.Struct, frozen=True):
    """An operand, and the path of the member that decides its kind. `value` is that of a constant."""

    operand: Operand
    path: str

    @property
    def constant(self) -> Value | None:
        return self.operand.value if isinstance(self.operand, Constant) else None


class BodyReader(DocumentReader):
    """Reads devices, fields and operands."""

    def __init__(self, names: ResolvedNames) -> None:
        super().__init__()
        self.names = names
        self._matched: list[tuple[DeviceTypeKey, str]] = []  # the selectors that refer to the device of an `any`

    # Devices and fields

    def source(self, value: object, path: str, *, selectors: Collection[str]) -> RuleSource | None:
        """The meaning of `sdid` or `ddid`; None with a finding."""
        if value is None:
            self.refuse(path, REQUIRED)
        elif isinstance(value, str):
            if (device := self.names.devices.get(value)) is not None:
                return RuleSource(device.manifest, f"device {device.id}", device.key)
            missing = "is no longer shared" if value in self.names.unshared else "does not exist"
            self.refuse(path, f'Device "{value}" {missing}')
        elif isinstance(value, Mapping):
            return self._selected(value, path, selectors)
        else:
            self.refuse(path, invalid("must be a device id or a selector"))
        return None

    def _selected(self, value: JsonObject, path: str, selectors: Collection[str]) -> RuleSource | None:
        selector = self.required_text(value.get("selector"), f"{path}.selector")
        if selector is not None and selector not in selectors:
            self.refuse(f"{path}.selector", invalid(choice(selectors)))
        id_or_name = self.required_text(value.get("dtid"), f"{path}.dtid")
        if id_or_name is None:
            return None
        type_ = self.names.device_types.get(id_or_name)
        if type_ is None:
            self.refuse(f"{path}.dtid", f'Device type "{id_or_name}" does not exist')
            return None
        if selector == "matched":
            self._matched.append((type_.key, path))
        name = f"the {selector} device of type {type_.id}"
        return RuleSource(type_.manifest, name, device_type=type_.key, selector=selector or "")

    def check_matched(self, chosen: Collection[DeviceTypeKey]) -> None:
        """Refuse each `matched` of a type without an `any`."""
        for type_, path in self._matched:
            if type_ not in chosen:
                self.refuse(path, INVALID_RULE)

    def field(self, source: RuleSource | None, value: object, path: str) -> tuple[str, Field] | None:
        """A field of a source by its dotted path; None with a finding, or without a source."""
        name = self.required_text(value, path)
        if name is None or source is None:
            return None
        field = source.manifest.field_at(name)
        if field is None:
            self.refuse(path, no_field(name))
            return None
        return intern(name), field

    def required_text(self, value: object, path: str) -> str | None:
        if value is None or value == "":
            self.refuse(path, REQUIRED)
        elif self.is_text(value, path):
            return value
        return None

    # Operands

    def operand(self, value: object, path: str, *, depth: int = 0) -> ReadOperand | None:
        """A value object: `{"value":…}`, `{"valueFrom":…}` or one operation. None with a finding."""
        form = self._form(value, path)
        if form is None:
            return None
        member, content = form
        at = f"{path}.{member}"
        if member == "value":
            return self._constant(content, at)
        if member == "valueFrom":
            return self._last_value(content, at)
        return self._operation(member, content, at, depth)

    def _form(self, value: object, path: str) -> tuple[str, object] | None:
        if not isinstance(value, Mapping):
            self.refuse(path, REQUIRED if value is None else invalid(f"must be an object with {_ONE_FORM}"))
            return None
        given = [(member, value[member]) for member in _FORMS if value.get(member) is not None]
        if len(given) != 1:
            self.refuse(path, invalid(f"must have {_ONE_FORM}") if given else REQUIRED)
            return None
        return given[0]

    def _constant(self, value: object, path: str) -> ReadOperand | None:
        if not is_value(value):
            self.refuse(path, invalid("must be a text, a number, a Boolean, or a list of these"))
            return None
        return ReadOperand(Constant(value), path)  # type: ignore[arg-type] # as is_value has checked

    def _last_value(self, value: object, path: str) -> ReadOperand | None:
        if not isinstance(value, Mapping):
            self.refuse(path, invalid("must be an object with sdid and field"))
            return None
        source = self.source(value.get("sdid"), f"{path}.sdid", selectors=("matched",))
        found = self.field(source, value.get("field"), f"{path}.field")
        if source is None or found is None:
            return None
        name, field = found
        device = source.device or None
        operand = LastValue(device, source.device_type, source.name, name, kind_of_field(field))
        return ReadOperand(operand, f"{path}.field")

    def _operation(self, name: str, value: object, path: str, depth: int) -> ReadOperand | None:
        entries = self.array(value, path)
        if isinstance(value, list | tuple) and not entries:
            self.refuse(path, REQUIRED)
        if not entries:
            return None
        if depth == _OPERATIONS_NESTED_MAX:
            self.refuse(path, invalid(f"at most {_OPERATIONS_NESTED_MAX} operations in each other"))
            return None
        parts = [self._part(entry, f"{path}.{index}", depth) for index, entry in enumerate(entries)]
        operands = tuple(part for part in parts if part is not None)
        if len(operands) < len(entries):
            return None
        calculate, kind = OPERATIONS[name]
        operation = Operation(calculate, kind, operands)
        if not all(isinstance(part, Constant) for part in operands):
            return ReadOperand(operation, path)
        try:
            return ReadOperand(Constant(operation.read(NO_VIEW, NOTHING_BOUND)), path)
        except UnknownValueError:
            self.refuse(path, invalid("has no result"))
            return None

    def _part(self, value: object, path: str, depth: int) -> Operand | None:
        found = self.operand(value, path, depth=depth + 1)
        if found is not None and found.operand.kind is ValueKind.COLLECTION:  # no cast makes a text or number of it
            self.refuse(found.path, invalid("must not be a collection"))
            return None
        return None if found is None else found.operand

    # Numbers

    def number(self, value: object, path: str) -> int | float | None:
        """A number that must be there; None with a finding."""
        if value is None:
            self.refuse(path, REQUIRED)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(path, NUMERIC_ONLY)
        elif not is_finite(value):
            self.refuse(path, invalid("must be a finite number"))
        else:
            return value
        return None


def is_value(value: object) -> bool:
    """Whether JSON is a value of a field: a Boolean, a number, a text, or an array of those."""
    if isinstance(value, list):
        return all(is_value(item) and not isinstance(item, list) for item in value)
    if isinstance(value, int | float):
        return is_finite(value)
    return value_kind(value) is not None
