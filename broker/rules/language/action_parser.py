"""Compiles the Actions of rules (reference 12.11)."""

from collections.abc import Callable, Iterable, Mapping
from sys import intern
from types import MappingProxyType
from typing import Final

from broker.device_types.manifest import DeclaredAction, Field, ValueClass
from broker.device_types.reading import JsonObject
from broker.errors import REQUIRED, invalid, too_long
from broker.rules.language.actions import (
    MAX_HEADERS,
    ActionList,
    CompoundParameter,
    FixedParameter,
    ListParameter,
    OperandParameter,
    Parameter,
    Special,
    ThenAction,
    UnfitValueError,
    checked_header,
    checked_method,
    checked_recipient,
    checked_url,
    http_request,
    send_email,
)
from broker.rules.language.body_reader import OF_ANOTHER_KIND, BodyReader, RuleSource, no_field
from broker.rules.language.conditions import Choice
from broker.rules.language.values import NUMERIC_TEXT, Constant, NestedValue, ValueKind, kind_of_items
from broker.wanted.values import NOT_SETTABLE
from config.limits import WANTED_FIELDS_MAX, WANTED_SECONDS, WANTED_SECONDS_MAX

_CHOICES: Final = MappingProxyType({"matched": Choice.MATCHED, "every": Choice.EVERY})
_COMPOUND_NESTED_MAX: Final = 10
_NO_PARAMETERS: Final[Mapping[str, Parameter]] = MappingProxyType({})


class ActionParser:
    """Makes Actions of their objects."""

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader

    def actions(self, entries: Iterable[tuple[str, object]]) -> ActionList:
        """The Actions at these paths, without those with findings."""
        read = [self.action(entry, path, index) for index, (path, entry) in enumerate(entries)]
        return ActionList(self._reader.names.owner, tuple(action for action in read if action is not None))

    def action(self, entry: object, path: str, index: int) -> ThenAction | None:
        if not isinstance(entry, Mapping):
            self._reader.refuse(path, invalid("must be an object"))
            return None
        if entry.get("want") is not None:
            return self._want(entry, path, index)
        name = self._reader.required_text(entry.get("action"), f"{path}.action")
        parameters = entry.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            self._reader.refuse(f"{path}.parameters", invalid("must be an object"))
            parameters = None
        given = {} if parameters is None else {key: value for key, value in parameters.items() if value is not None}
        if name is not None and name in _SPECIAL:
            return self._special(name, given, f"{path}.parameters", index)
        source = self._reader.source(entry.get("ddid"), f"{path}.ddid", selectors=_CHOICES.keys())
        if source is None or name is None:
            return None
        declared = next((action for action in source.manifest.actions if action.name == name), None)
        if declared is None:
            self._reader.refuse(f"{path}.action", f'Action "{name}" does not exist')
            return None
        return self._for_devices(declared, given, f"{path}.parameters", index, source)

    def _want(self, entry: JsonObject, path: str, index: int) -> ThenAction | None:
        """Values that are wanted of devices: fields of the Manifest in the place of parameters."""
        given = entry.get("want")
        for member in ("action", "parameters"):
            if entry.get(member) is not None:
                self._reader.refuse(f"{path}.{member}", invalid("an entry with want has none"))
        if not isinstance(given, Mapping) or not 1 <= len(given) <= WANTED_FIELDS_MAX:
            self._reader.refuse(f"{path}.want", invalid(f"must be an object of 1 to {WANTED_FIELDS_MAX} fields"))
            return None
        seconds = entry.get("expiresAfter", WANTED_SECONDS)
        if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= WANTED_SECONDS_MAX:
            self._reader.refuse(f"{path}.expiresAfter", invalid(f"must be a number from 1 to {WANTED_SECONDS_MAX}"))
            return None
        source = self._reader.source(entry.get("ddid"), f"{path}.ddid", selectors=_CHOICES.keys())
        if source is None:
            return None
        fields, values = {field.name: field for field in source.manifest.fields}, {}
        for name, value in given.items():
            at = f"{path}.want.{name}"
            if (field := fields.get(name)) is None:
                self._reader.refuse(at, no_field(name))
            elif self._is_settable(field, value, at) and (parameter := self._parameter(value, at, field)) is not None:
                values[intern(name)] = parameter
        return ThenAction(
            index,
            "want",
            values or _NO_PARAMETERS,
            device=source.device or None,
            device_type=source.device_type,
            choice=_CHOICES.get(source.selector),
            wanted_seconds=seconds,
        )

    def _is_settable(self, field: Field, value: object, path: str) -> bool:
        if not field.is_group:
            if not field.settable:
                self._reader.refuse(path, NOT_SETTABLE)
            return field.settable
        content = value.get("value") if isinstance(value, Mapping) else None
        children = {child.name: child for child in field.children}
        inner = content.items() if isinstance(content, Mapping) else ()
        found = [
            self._is_settable(children[name], one, f"{path}.value.{name}") for name, one in inner if name in children
        ]
        return all(found)

    def _for_devices(
        self, declared: DeclaredAction, given: JsonObject, path: str, index: int, source: RuleSource
    ) -> ThenAction:
        fields = {field.name: field for field in declared.parameters}
        parameters = {}
        for name, value in given.items():
            if (field := fields.get(name)) is None:
                self._reader.refuse(f"{path}.{name}", no_field(name))
            elif (parameter := self._parameter(value, f"{path}.{name}", field)) is not None:
                parameters[intern(name)] = parameter
        return ThenAction(
            index,
            intern(declared.name),
            parameters or _NO_PARAMETERS,
            device=source.device or None,
            device_type=source.device_type,
            choice=_CHOICES.get(source.selector),
        )

    def _parameter(self, value: object, path: str, field: Field) -> Parameter | None:
        """The parameter that a Manifest declares as a field."""
        content = value.get("value") if isinstance(value, Mapping) else None
        if isinstance(content, Mapping):
            if not field.is_group:
                self._reader.refuse(f"{path}.value", invalid("the parameter is no group"))
                return None
            return self._group(content, f"{path}.value", field)
        found = self._reader.operand(value, path)
        if found is None:
            return None
        if field.is_group:
            self._reader.refuse(found.path, invalid("the parameter is a group: its value must be an object"))
            return None
        if isinstance(found.operand, Constant) and not _converts(found.operand.value, field):
            self._reader.refuse(found.path, OF_ANOTHER_KIND[kind_of_items(field)])
            return None
        return _of(OperandParameter(found.operand))

    def _group(self, content: JsonObject, path: str, field: Field) -> Parameter:
        children = {child.name: child for child in field.children}
        members = {}
        for name, value in content.items():
            if value is None:
                continue
            if (child := children.get(name)) is None:
                self._reader.refuse(f"{path}.{name}", no_field(name))
            elif (member := self._parameter(value, f"{path}.{name}", child)) is not None:
                members[intern(name)] = member
        return _of(CompoundParameter(members))

    # Special Actions

    def _special(self, name: str, given: JsonObject, path: str, index: int) -> ThenAction:
        make, readers, required = _SPECIAL[name]
        parameters = {}
        for member in required:
            if member not in given:
                self._reader.refuse(f"{path}.{member}", REQUIRED)
        for member, value in given.items():
            at = f"{path}.{member}"
            if (read := readers.get(member)) is None:
                self._reader.refuse(at, invalid("there is no such parameter"))
            elif (parameter := read(self, value, at)) is not None:
                parameters[member] = parameter
        return ThenAction(index, name, parameters, special=make)

    def text(self, value: object, path: str) -> Parameter | None:
        """A value object whose value is a text, a number or a Boolean."""
        found = self._reader.operand(value, path)
        if found is None:
            return None
        if found.operand.kind is ValueKind.COLLECTION:
            self._reader.refuse(found.path, invalid("must not be a collection"))
            return None
        return _of(OperandParameter(found.operand))

    def _checked(self, check: Callable[[NestedValue], object], text: str, value: object, path: str) -> Parameter | None:
        """A text that a check accepts, if its value is known already."""
        parameter = self.text(value, path)
        if isinstance(parameter, FixedParameter):
            try:
                check(parameter.value)
            except UnfitValueError:
                self._reader.refuse(path, text)
                return None
        return parameter

    def method(self, value: object, path: str) -> Parameter | None:
        return self._checked(checked_method, invalid("must be GET, POST, PUT or DELETE"), value, path)

    def url(self, value: object, path: str) -> Parameter | None:
        return self._checked(
            checked_url, invalid("must be an http or https address without user name and password"), value, path
        )

    def recipient(self, value: object, path: str) -> Parameter | None:
        if isinstance(value, Mapping) and value.get("value") == "":
            return FixedParameter("")
        return self._checked(checked_recipient, "Invalid email", value, path)

    def body(self, value: object, path: str, depth: int = 0) -> Parameter | None:
        """A text, or a compound value, which becomes a JSON object."""
        content = value.get("value") if isinstance(value, Mapping) else None
        if not isinstance(content, Mapping):
            return self.text(value, path)
        if depth == _COMPOUND_NESTED_MAX:
            self._reader.refuse(f"{path}.value", invalid(f"at most {_COMPOUND_NESTED_MAX} levels deep"))
            return None
        read = {name: self.body(member, f"{path}.value.{name}", depth + 1) for name, member in content.items()}
        members = {name: member for name, member in read.items() if member is not None}
        return _of(CompoundParameter(members))

    def headers(self, value: object, path: str) -> Parameter | None:
        """`{"value": [{"key": …, "value": …}]}`, where key and value are texts or value objects."""
        if not isinstance(value, Mapping):
            self._reader.refuse(path, invalid("must be an object"))
            return None
        content, at = value.get("value"), f"{path}.value"
        if not isinstance(content, list):
            self._reader.refuse(at, REQUIRED if content is None else invalid("must be a list"))
            return None
        if len(content) > MAX_HEADERS:
            self._reader.refuse(at, too_long(MAX_HEADERS))
            return None
        read = [self._header(entry, entry_at) for entry_at, entry in self._reader.objects(content, at)]
        return _of(ListParameter(tuple(header for header in read if header is not None)))

    def _header(self, entry: JsonObject, path: str) -> Parameter | None:
        members = {}
        for name in ("key", "value"):
            value = entry.get(name)
            member = self.text(value if isinstance(value, Mapping) else {"value": value}, f"{path}.{name}")
            if member is None:
                return None
            members[name] = member
        header = _of(CompoundParameter(members))
        if isinstance(header, FixedParameter):
            try:
                checked_header(header.value)
            except UnfitValueError:
                self._reader.refuse(path, invalid("is no header, or one that the service sets itself"))
        return header


_Read = Callable[[ActionParser, object, str], Parameter | None]
_EMAIL: Final[tuple[Special, Mapping[str, _Read], tuple[str, ...]]] = (
    send_email,
    {"to": ActionParser.recipient, "subject": ActionParser.text, "body": ActionParser.text},
    (),
)
_HTTP_REQUEST: Final[tuple[Special, Mapping[str, _Read], tuple[str, ...]]] = (
    http_request,
    {
        "method": ActionParser.method,
        "headers": ActionParser.headers,
        "url": ActionParser.url,
        "body": ActionParser.body,
    },
    ("method", "url"),
)
#: The maker of each special Action, its parameters, and the required ones.
_SPECIAL: Final = MappingProxyType(
    {"httpRequest": _HTTP_REQUEST, "sendEmail": _EMAIL, "email": _EMAIL, "sendMail": _EMAIL}
)


def _of(parameter: OperandParameter | CompoundParameter | ListParameter) -> Parameter:
    """The parameter, or its value if it never changes."""
    match parameter:
        case OperandParameter(Constant(value)):
            return FixedParameter(value)
        case CompoundParameter(members):
            fixed = {name: part.value for name, part in members.items() if isinstance(part, FixedParameter)}
            return FixedParameter(fixed) if len(fixed) == len(members) else parameter
        case ListParameter(items):
            values = [part.value for part in items if isinstance(part, FixedParameter)]
            return FixedParameter(values) if len(values) == len(items) else parameter  # type: ignore[arg-type] # as for ListParameter
    return parameter


def _converts(value: object, field: Field) -> bool:
    """Whether a device can read the value as the parameter that its Manifest declares, as in reference 8.4."""
    if isinstance(value, list):
        return field.is_collection and all(_converts_alone(item, field.value_class) for item in value)
    return _converts_alone(value, field.value_class)


def _converts_alone(value: object, class_: ValueClass | None) -> bool:
    match class_:
        case ValueClass.STRING:
            return True
        case ValueClass.BOOLEAN:
            return value in (0, 1) or (isinstance(value, str) and value.lower() in ("true", "false"))
        case _:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number or (isinstance(value, str) and NUMERIC_TEXT.fullmatch(value) is not None)
