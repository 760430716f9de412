"""Reading requests by the rules of reference 1.3: lenient about form, exact about what is wrong.

Both readers collect every finding before they refuse, so that a caller learns of all of them at once.
"""

import math
import re
import types
from collections.abc import Sequence
from typing import Any, Final, TypeVar, Union, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw
from quart import request

from broker.errors import BadRequest, BodyTooLarge, Finding, ValidationFailed
from broker.nesting import check_nesting
from config.limits import IDS_MAX, MAX_BODY_BYTES, PAGE_COUNT_DEFAULT, PAGE_COUNT_MAX

M = TypeVar("M", bound=msgspec.Struct)

_INTEGER: Final = re.compile(r"([+-]?[0-9]{1,40})(?:\.[0-9]*)?")
_INT64: Final = range(-(2**63), 2**63)
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_ABSENT: Final = (Raw(), Raw(b"null"))

_untyped = msgspec.json.Decoder(dict[str, Raw]).decode
_decode = msgspec.json.Decoder().decode


# Bodies


async def read_body(*, limit: int = MAX_BODY_BYTES) -> bytes:
    """Raises BodyTooLarge; Quart itself refuses what is over its own limit, or too slow."""
    if (request.content_length or 0) > limit:
        raise BodyTooLarge
    body = await request.get_data(cache=True, as_text=False, parse_form_data=False)
    if len(body) > limit:
        raise BodyTooLarge
    return body


def members(body: bytes, kind: type[M]) -> M:
    """The members of a JSON object. All members of `kind` must have defaults; a null member is an absent one.

    Raises:
        BadRequest: not the JSON text of an object.
        ValidationFailed: members of the wrong type, by name.
    """
    if not body or body.isspace():
        return kind()
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look inside texts it skips
        check_nesting(body)
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        return _lenient_members(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest from error


def _lenient_members(body: bytes, kind: type[M]) -> M:
    try:
        given = _untyped(body)
    except msgspec.DecodeError as error:
        raise BadRequest from error
    found: dict[str, Any] = {}
    findings = []
    for field in msgspec.structs.fields(kind):
        raw = given.get(field.encode_name, _ABSENT[0])
        if raw in _ABSENT:
            continue
        try:
            found[field.name] = _member(raw, _plain_type(field.type))
        except _WrongTypeError as wrong:
            findings.append(Finding(field.encode_name, (wrong.text,)))
    if findings:
        raise ValidationFailed(tuple(findings))
    return kind(**found)


class _WrongTypeError(Exception):
    def __init__(self, text: str) -> None:
        self.text = text


_WRONG: Final[dict[Any, str]] = {
    str: "Text field only",
    int: "Numeric field only",
    float: "Numeric field only",
    bool: "Boolean field only",
}


def _plain_type(annotation: Any) -> Any:
    """`T` of `T | None`."""
    if get_origin(annotation) in {Union, types.UnionType}:
        plain = [one for one in get_args(annotation) if one is not types.NoneType]
        return plain[0] if len(plain) == 1 else annotation
    return annotation


def _member(raw: Raw, kind: Any) -> Any:
    if kind is Raw:
        return raw
    try:
        if kind is int and (number := integer(_decode(raw))) is not None:
            return number
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _WrongTypeError(_WRONG.get(kind, "Invalid value")) from error


def integer(value: object) -> int | None:
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


# Queries


class Query:
    """The parameters of a request. Findings wait until `check`, so read everything first."""

    def __init__(self, query_string: bytes) -> None:
        self._values: dict[str, list[str]] = {}
        self._findings: list[Finding] = []
        for name, value in parse_qsl(query_string.decode("latin-1"), errors="replace"):
            self._values.setdefault(name.lstrip("?"), []).append(value)

    @classmethod
    def of_request(cls) -> "Query":
        return cls(request.query_string)

    def check(self) -> None:
        """Raises ValidationFailed with everything found so far."""
        if self._findings:
            raise ValidationFailed(tuple(self._findings))

    def refuse(self, name: str, text: str) -> None:
        self._findings.append(Finding(name, (text,)))

    def text(self, name: str, *, required: bool = False) -> str | None:
        """The last value that is not empty."""
        if values := self._values.get(name):
            return values[-1]
        if required:
            self.refuse(name, "Required parameter")
        return None

    def ids(self, name: str, *, required: bool = False) -> list[str]:
        """The items of a comma-separated list, without empty ones."""
        found = [item.strip() for value in self._values.get(name, ()) for item in value.split(",") if item.strip()]
        if required and not found:
            self.refuse(name, "Required parameter")
        if len(found) > IDS_MAX:
            self.refuse(name, f"Maximum length {IDS_MAX}")
        return found

    def number(self, name: str, *, required: bool = False) -> int | None:
        """An integer that the store can compare with."""
        value = self.text(name, required=required)
        if value is None:
            return None
        found = integer(value)
        if found is None:
            self.refuse(name, "Numeric field only")
        elif found not in _INT64:
            self.refuse(name, "Invalid value")
            found = None
        return found

    def _bounded(self, name: str, default: int, *, lowest: int, highest: int) -> int:
        value = self.number(name)
        if value is not None and value < lowest:
            self.refuse(name, f"Minimum value {lowest}")
        elif value is not None and value > highest:
            self.refuse(name, f"Maximum value {highest}")
        return default if value is None else value

    def count(self, *, default: int = PAGE_COUNT_DEFAULT) -> int:
        return self._bounded("count", default, lowest=1, highest=PAGE_COUNT_MAX)

    def offset(self) -> int:
        """Of a numbered list. Searches have a cursor of the same name: a `text`."""
        return self._bounded("offset", 0, lowest=0, highest=_INT64[-1])

    def paging(self) -> tuple[int, int]:
        """Count and offset, when everything in the query is right. Raises ValidationFailed."""
        count, offset = self.count(), self.offset()
        self.check()
        return count, offset

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _BOOLEANS:
            self.refuse(name, "Boolean field only")
        return _BOOLEANS.get(value.lower(), default)

    def choice(self, name: str, options: Sequence[str], default: str) -> str:
        """One of `options`, without regard to case, as they spell it."""
        value = self.text(name)
        if value is None:
            return default
        for option in options:
            if option.lower() == value.lower():
                return option
        self.refuse(name, "Invalid value")
        return default
