"""Read queries and bodies by the rules of reference 1.3.

Queries and bodies are read into structs. All findings are collected, so that a caller learns of all of them at once.
"""

import math
import re
import types
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw

from broker.accounts.tokens import Caller
from broker.errors import (
    BOOLEAN_ONLY,
    NUMERIC_ONLY,
    REQUIRED,
    TEXT_ONLY,
    BadRequest,
    Finding,
    ValidationFailed,
    choice,
    invalid,
    too_high,
    too_long,
    too_low,
)
from broker.nesting import check_nesting
from broker.numbers import INT64, number_out_of_range
from config.limits import IDS_MAX, MAX_BODY_BYTES
from protocols.http.request_context import current_request

M = TypeVar("M", bound=msgspec.Struct)
D = TypeVar("D", bool, None)

_INTEGER: Final = re.compile(r"([+-]?[0-9]{1,40})(?:\.[0-9]*)?")
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_ABSENT: Final = (Raw(), Raw(b"null"))

_WHOLE: Final = "must be a whole number of 64 bits"
_NUMBERS: Final = "must be a whole number of 64 bits, or a double"

_untyped = msgspec.json.Decoder(dict[str, Raw]).decode
_decode = msgspec.json.Decoder().decode


# Checks of a member, in addition to its type and the bounds in its `Meta`


class Given(msgspec.Struct, frozen=True):
    """The members of a query or a body that are read so far, by the names of the struct's fields, and the caller."""

    values: dict[str, Any]
    caller: Caller | None


class Valid(msgspec.Struct, frozen=True):
    """In `Annotated`: a value for which `holds` is false is refused. `form` says what it must be."""

    holds: Callable[[Any], bool]
    form: str


class Checked(msgspec.Struct, frozen=True):
    """In `Annotated`: `problem` gives the reason why a value is refused, or None."""

    problem: Callable[[Any], str | None]


class Rule(msgspec.Struct, frozen=True):
    """In `Annotated`: a rule about a member and the members before it. The rule may also raise a DomainError."""

    broken: Callable[[Given], Iterable[Finding]]


class Payload(msgspec.Struct, frozen=True):
    """In `Annotated`: the data of a device, whose numbers Ingest checks for all protocols.

    The body is not looked at for numbers, so its other members must have none, or be `Raw`.
    """


class _MemberReader:
    """How one field of a struct is read and checked. `kind` is its type without None, bounds and markers."""

    def __init__(self, field: msgspec.structs.FieldInfo) -> None:
        annotation, notes = _without_notes(field.type)
        self.name = field.name
        self.wire = field.encode_name
        self._options: dict[str, Any] = {}
        self._spellings: list[str] = []
        if get_origin(annotation) is Literal:
            self._spellings = [str(one) for one in get_args(annotation)]
            self._options = {one.lower(): one for one in get_args(annotation)}
        elif isinstance(annotation, type) and issubclass(annotation, Enum):
            self._spellings = [str(one.value) for one in annotation]
            self._options = {one.value.lower(): one for one in annotation}
        self.kind = str if self._options else annotation
        self.is_required = field.required
        self._field = field
        self._bounds = [note for note in notes if isinstance(note, msgspec.Meta)]
        if any(bound.gt is not None or bound.lt is not None or bound.multiple_of is not None for bound in self._bounds):
            raise TypeError(f"{field.name}: no finding says what is wrong with this bound")
        self._valid = [note for note in notes if isinstance(note, Valid)]
        self._checked = [note for note in notes if isinstance(note, Checked)]
        self.is_payload = any(isinstance(note, Payload) for note in notes)
        self._rules = [note for note in notes if isinstance(note, Rule)]
        self.is_required_raw = self.is_required and annotation is Raw
        self.has_rules = bool(self._valid or self._checked or self._rules or self.is_required_raw)

    @property
    def default(self) -> Any:
        """The value of an absent member; None if the member is required."""
        if self._field.default_factory is not msgspec.NODEFAULT:
            return self._field.default_factory()
        return None if self.is_required else self._field.default

    def checked(self, value: Any) -> tuple[Any, list[str]]:
        """The value, an option as it is spelled in the declaration, and the texts of what is wrong with the value."""
        if self._options:
            if (option := self._options.get(value.lower())) is None:
                return self.default, [invalid(choice(self._spellings))]
            return option, []
        return value, [text for bound in self._bounds for text in _broken_bounds(value, bound)]

    def broken_rules(self, given: Given) -> list[Finding]:
        findings: list[Finding] = []
        value = given.values[self.name]
        if value is not None:
            if self._valid or self._checked:
                findings += [Finding(self.wire, (invalid(one.form),)) for one in self._valid if not one.holds(value)]
                problems = [one.problem(value) for one in self._checked]
                findings += [Finding(self.wire, (invalid(problem),)) for problem in problems if problem is not None]
            if self.is_required_raw and not has_value(value):
                findings.append(Finding(self.wire, (REQUIRED,)))
        for rule in self._rules:
            findings += rule.broken(given)
        return findings


def _broken_bounds(value: Any, bound: msgspec.Meta) -> Iterator[str]:
    """An empty text or list that must not be empty is the same as an absent one."""
    if isinstance(value, int):
        if bound.ge is not None and value < bound.ge:
            yield too_low(bound.ge)
        elif bound.le is not None and value > bound.le:
            yield too_high(bound.le)
    elif isinstance(value, str | list):
        if bound.min_length is not None and len(value) < bound.min_length:
            yield f"Minimum length {bound.min_length}" if value else REQUIRED
        elif bound.max_length is not None and len(value) > bound.max_length:
            yield too_long(bound.max_length)
        elif bound.pattern is not None and isinstance(value, str) and re.fullmatch(bound.pattern, value) is None:
            yield invalid(f"must match {bound.pattern}")


def _without_notes(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """`T` of `Annotated[T, …] | None`, and its annotations."""
    if get_origin(annotation) in {Union, types.UnionType}:
        plain = [one for one in get_args(annotation) if one not in {types.NoneType, msgspec.UnsetType}]
        if len(plain) != 1:
            raise TypeError(f"a member is of one type: {annotation}")
        return _without_notes(plain[0])
    if get_origin(annotation) is Annotated:
        plain, *notes = get_args(annotation)
        inner, more = _without_notes(plain)
        return inner, (*more, *notes)
    return annotation, ()


@cache
def _members_of(kind: type[msgspec.Struct]) -> tuple[_MemberReader, ...]:
    return tuple(map(_MemberReader, msgspec.structs.fields(kind)))


@cache
def _members_with_rules(kind: type[msgspec.Struct]) -> tuple[_MemberReader, ...]:
    return tuple(one for one in _members_of(kind) if one.has_rules)


@cache
def _holds_payload(kind: type[msgspec.Struct]) -> bool:
    return any(one.is_payload for one in _members_of(kind))


def has_first_member(query: "Query", kind: type[msgspec.Struct]) -> bool:
    """Whether the first member of `kind` is given. It decides as which of several structs a query is read."""
    return query.text(_members_of(kind)[0].wire) is not None


# Bodies


def has_value(raw: Raw) -> bool:
    """Whether a member that is kept as it came is there: null is an absent member."""
    return bytes(raw) not in {b"", b"null"}


async def read_body(*, limit: int = MAX_BODY_BYTES) -> bytes:
    """The body of the request.

    Raises:
        BodyTooLarge: the body is longer than `limit`.
        TooManyBodies: there is no room for it in memory (reference 21.6).
    """
    request = current_request()
    return request.body_within(limit) if request.read_body is None else await request.read_body(limit)


def members(body: bytes, kind: type[M], caller: Caller | None = None) -> M:
    """Read the members of a JSON object; an empty body is an empty object, and a null member an absent one.

    Raises:
        BadRequest: not the JSON text of an object.
        ValidationFailed: members of the wrong type; or, if all types are right, members that are missing or wrong.
    """
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look inside texts it skips
        check_nesting(body)
        if not _holds_payload(kind):
            check_numbers(body)
        read = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        return _lenient_members(body, kind, caller)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not body or body.isspace():
            return _lenient_members(b"{}", kind, caller)
        raise BadRequest from error
    if checked := _members_with_rules(kind):
        given = Given(msgspec.structs.asdict(read), caller)
        findings: list[Finding] = []
        for one in checked:
            findings += one.broken_rules(given)
        _refuse(findings)
    return read


def check_numbers(body: bytes) -> None:
    """Raises ValidationFailed with the member that has a number out of range, wherever in the body."""
    if (path := number_out_of_range(body)) is not None:
        raise ValidationFailed.of(path, invalid(_NUMBERS))


def json_object(body: bytes) -> dict[str, Any]:
    """A JSON object as it is, for a caller that reads the members. Raises BadRequest."""
    try:
        check_nesting(body)
        check_numbers(body)
        return msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest from error


def _lenient_members(body: bytes, kind: type[M], caller: Caller | None) -> M:
    try:
        sent = _untyped(body)
    except msgspec.DecodeError as error:
        raise BadRequest from error
    typed: dict[str, Any] = {}
    findings: list[Finding] = []
    for one in _members_of(kind):
        raw = sent.get(one.wire, _ABSENT[0])
        if raw not in _ABSENT:
            try:
                typed[one.name] = _member(raw, one.kind)
            except _WrongTypeError as wrong:
                findings.append(Finding(one.wire, (wrong.text,)))
    _refuse(findings)
    given = Given({one.name: one.default for one in _members_of(kind)}, caller)
    for one in _members_of(kind):
        if one.name in typed:
            given.values[one.name], wrong_value = one.checked(typed[one.name])
            findings += [Finding(one.wire, (text,)) for text in wrong_value]
        elif one.is_required:
            findings.append(Finding(one.wire, (REQUIRED,)))
        findings += one.broken_rules(given)
    _refuse(findings)
    return kind(**given.values)


def _refuse(findings: list[Finding]) -> None:
    if findings:
        raise ValidationFailed(tuple(findings))


class _WrongTypeError(Exception):
    def __init__(self, text: str) -> None:
        self.text = text


_WRONG: Final[dict[Any, str]] = {
    str: TEXT_ONLY,
    int: NUMERIC_ONLY,
    float: NUMERIC_ONLY,
    bool: BOOLEAN_ONLY,
}


def _wrong(kind: Any) -> str:
    """The text about a value of another type."""
    if kind in _WRONG:
        return _WRONG[kind]
    plain = get_origin(kind) or kind
    return invalid("must be a list" if plain in {list, tuple} else "must be an object")


def _member(raw: Raw, kind: Any) -> Any:
    if kind is Raw:
        return raw
    try:
        if kind is int and (number := integer_of(_decode(raw))) is not None:
            if number not in INT64:
                raise _WrongTypeError(invalid(_WHOLE))
            return number
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _WrongTypeError(_wrong(kind)) from error


def integer_of(value: object) -> int | None:
    """A number, or its text, without its fraction; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    if isinstance(value, str) and (match := _INTEGER.fullmatch(value.strip())) is not None:
        return int(match[1])
    return None


def boolean_of(text: str) -> bool | None:
    """true or 1, false or 0, in any case; None for anything else."""
    return _BOOLEANS.get(text.lower())


# Queries


class Query:
    """The parameters of a request. Problems with them are collected, and raised by `check`."""

    def __init__(self, query_string: bytes) -> None:
        self._values: dict[str, list[str]] = {}
        self._findings: list[Finding] = []
        for name, value in parse_qsl(query_string.decode("latin-1"), errors="replace") if query_string else ():
            self._values.setdefault(name.lstrip("?"), []).append(value)

    @classmethod
    def of_request(cls) -> "Query":
        return cls(current_request().query)

    def check(self) -> None:
        """Raises ValidationFailed with all findings so far."""
        _refuse(self._findings)

    def members(self, kind: type[msgspec.Struct], caller: Caller | None) -> dict[str, Any]:
        """The fields of `kind` by name. Findings are raised by `check`; `kind` must be built after it."""
        given = Given({}, caller)
        for one in _members_of(kind):
            value: Any = self._value(one)
            wrong: list[str] = []
            if value is not None:
                value, wrong = one.checked(value)
            self._findings += [Finding(one.wire, (text,)) for text in wrong]
            given.values[one.name] = one.default if value is None else value
            self._findings += one.broken_rules(given)
        return given.values

    def _value(self, member: _MemberReader) -> Any:
        if get_origin(member.kind) is tuple:
            return tuple(self.ids(member.wire, required=member.is_required))
        if member.kind is int:
            return self.number(member.wire, required=member.is_required)
        if member.kind is bool:
            return self.boolean(member.wire, default=member.default)
        return self.text(member.wire, required=member.is_required)

    def refuse(self, name: str, text: str) -> None:
        self._findings.append(Finding(name, (text,)))

    def text(self, name: str, *, required: bool = False) -> str | None:
        """The last value that is not empty."""
        if values := self._values.get(name):
            return values[-1]
        if required:
            self.refuse(name, REQUIRED)
        return None

    def ids(self, name: str, *, required: bool = False) -> list[str]:
        """The items of a comma-separated list, without empty ones."""
        found = [item.strip() for value in self._values.get(name, ()) for item in value.split(",") if item.strip()]
        if required and not found:
            self.refuse(name, REQUIRED)
        if len(found) > IDS_MAX:
            self.refuse(name, too_long(IDS_MAX))
        return found

    def number(self, name: str, *, required: bool = False) -> int | None:
        """An integer that the store can compare with."""
        value = self.text(name, required=required)
        if value is None:
            return None
        found = integer_of(value)
        if found is None:
            self.refuse(name, NUMERIC_ONLY)
        elif found not in INT64:
            self.refuse(name, invalid(_WHOLE))
            found = None
        return found

    def boolean(self, name: str, *, default: D) -> bool | D:
        text = self.text(name)
        if text is None:
            return default
        value = boolean_of(text)
        if value is None:
            self.refuse(name, BOOLEAN_ONLY)
        return default if value is None else value
