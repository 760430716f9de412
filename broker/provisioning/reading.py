"""Reads a parsed provision file entry by entry, and collects everything that is wrong with it (reference 26.3)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from broker.errors import Finding, ValidationFailed
from broker.provisioning.document import TABLES
from broker.provisioning.forms import Form
from config.mail import folded_address

#: The findings that are kept: nobody reads more, and a file can have as many as it has characters.
FINDINGS_MAX: Final = 1_000
#: By these keys other entries may name an object.
_NAMES: Final = ("id", "key", "name", "email", "unique_name")
_PLACE: Final = re.compile(r"(\w+)(?:\[(\d+)\])?")


class EntryLocation(msgspec.Struct, frozen=True):
    """Table and index of an entry in the file."""

    table: str
    index: int

    def __str__(self) -> str:
        return f"{self.table}[{self.index}]"

    def refusal(self, key: str, problem: str) -> ValidationFailed:
        return ValidationFailed.of(f"{self}.{key}", problem)


@dataclass(slots=True)
class Findings:
    """The findings about a file, and the objects that are missing only because their entries are refused."""

    found: list[Finding] = field(default_factory=list)
    #: How many more there are than `FINDINGS_MAX`.
    more: int = 0
    #: By table: the names of its refused entries; None when one has no name, so that it may be any.
    _refused: dict[str, set[str] | None] = field(default_factory=dict)

    def add(self, *found: Finding) -> None:
        room = max(0, FINDINGS_MAX - len(self.found))
        self.found += found[:room]
        self.more += len(found[room:])

    def refuse(self, table: str, names: set[str] | None) -> None:
        """An entry of the table is refused, so objects with these names may be missing."""
        known = self._refused.setdefault(table, set())
        self._refused[table] = None if names is None or known is None else known | names

    def explains(self, table: str, name: str) -> bool:
        """Whether the object may be missing because its entry is refused: then it is no finding of its own."""
        refused = self._refused.get(table, set())
        return refused is None or folded_address(name) in refused

    def failure(self) -> ValidationFailed | None:
        """All findings, in the order of the tables and entries."""
        order = {table: index for index, table in enumerate(TABLES)}

        def position(finding: Finding) -> tuple[int, int]:
            match = _PLACE.match(finding.field)
            table, index = match.groups() if match is not None else ("", None)
            return order.get(table, -1), int(index or 0)

        rest = (Finding("file", (f"{self.more} more problems",)),) if self.more else ()
        return ValidationFailed((*sorted(self.found, key=position), *rest)) if self.found else None

    def copy(self) -> "Findings":
        return Findings(list(self.found), self.more, dict(self._refused))


@dataclass(slots=True)
class ReadTables:
    """The entries of each table that can be used, with their places."""

    tables: dict[str, list[tuple[EntryLocation, Any]]]
    findings: Findings
    #: The texts of entries that cannot be used: the objects that they name are looked up all the same.
    unusable: list[tuple[EntryLocation, Mapping[str, str]]] = field(default_factory=list)

    def refuse(self, at: EntryLocation, entry: msgspec.Struct, error: ValidationFailed) -> None:
        """Take an entry out."""
        self.findings.add(*error.findings)
        self.findings.refuse(at.table, names_of(entry))
        self.tables[at.table] = [one for one in self.tables[at.table] if one[0] != at]

    def of(self, table: str) -> Sequence[tuple[EntryLocation, Any]]:
        return tuple(self.tables.get(table, ()))


def names_of(entry: object) -> set[str]:
    """The names by which other entries may refer to this one, in the form in which addresses are compared."""
    return {folded_address(value) for key in _NAMES if isinstance(value := getattr(entry, key, None), str)}


def read_document(document: Mapping[str, Any]) -> ReadTables:
    """Read the entries one by one. The field of a finding is table, index and key: `users[0].password`."""
    reading = ReadTables({}, Findings())
    for table, entries in document.items():
        kind = TABLES.get(table)
        if kind is None:
            reading.findings.add(Finding(table, (f"unknown table (allowed: {', '.join(TABLES)})",)))
        elif not isinstance(entries, list | tuple):
            reading.findings.add(Finding(table, (f"expected [[{table}]], got {_kind_of(entries)}",)))
            reading.findings.refuse(table, None)
        else:
            reading.tables[table] = list(_read_entries(table, kind, entries, reading))
    return reading


def _read_entries(
    table: str, kind: type[msgspec.Struct], entries: Sequence[object], reading: ReadTables
) -> Iterator[tuple[EntryLocation, Any]]:
    for index, given in enumerate(entries):
        at, wrong = EntryLocation(table, index), list[Finding]()
        entry = _read_struct(given, kind, str(at), wrong)
        if not wrong:
            yield at, entry
            continue
        reading.findings.add(*wrong)
        # Other entries use the names as they are written, also where their form is wrong.
        texts = {key: text for key, text in given.items() if isinstance(text, str)} if isinstance(given, dict) else {}
        reading.findings.refuse(table, {folded_address(texts[key]) for key in _NAMES if key in texts} or None)
        reading.unusable.append((at, texts))


class Key(msgspec.Struct, frozen=True):
    """A key of an entry, as its class declares it."""

    attribute: str
    name: str
    kind: Any
    forms: tuple[Form, ...]
    required: bool


@cache
def keys_of(kind: type[msgspec.Struct]) -> tuple[Key, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        Key(one.name, one.encode_name, hints[one.name], tuple(_forms(hints[one.name])), one.required)
        for one in msgspec.structs.fields(kind)
    )


def _forms(kind: Any) -> Iterator[Form]:
    if get_origin(kind) is Annotated:
        yield from (one for one in kind.__metadata__ if isinstance(one, Form))
        yield from _forms(kind.__origin__)
    elif get_origin(kind) in {Union, UnionType}:
        for one in get_args(kind):
            yield from _forms(one)


def _read_struct(given: object, kind: type[msgspec.Struct], at: str, wrong: list[Finding]) -> Any:
    """An entry; None when something is wrong with it."""
    if not isinstance(given, dict):
        wrong.append(Finding(at, (f"expected a table, got {_kind_of(given)}",)))
        return None
    keys, before = keys_of(kind), len(wrong)
    allowed = {key.name for key in keys}
    wrong += [
        Finding(f"{at}.{name}", (f"unknown key (allowed: {', '.join(key.name for key in keys)})",))
        for name in given
        if name not in allowed
    ]
    values = {}
    for key in keys:
        place = f"{at}.{key.name}"
        if key.name not in given:
            wrong += [Finding(place, ("required",))] if key.required else []
            continue
        so_far = len(wrong)
        value = _read_value(given[key.name], key.kind, place, wrong)
        if value is not None and len(wrong) == so_far:
            wrong += [Finding(place, (problem,)) for form in key.forms if (problem := form.check(value)) is not None]
        values[key.attribute] = value
    return kind(**values) if len(wrong) == before else None


def _read_value(given: object, kind: Any, at: str, wrong: list[Finding]) -> Any:
    bare = _bare(kind)
    if given is not None and isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        return _read_struct(given, bare, at, wrong)
    inner = _bare(get_args(bare)[0]) if get_origin(bare) is tuple else None
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct) and isinstance(given, list | tuple):
        return tuple(_read_struct(one, inner, f"{at}[{index}]", wrong) for index, one in enumerate(given))
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        wrong.append(_located(str(error), at, kind))
        return None


def structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """The class of an entry, and the classes of the tables in it."""
    bare = _bare(kind)
    if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        yield bare
        for key in keys_of(bare):
            yield from structs_in(key.kind)
    elif get_origin(bare) is tuple:
        yield from structs_in(get_args(bare)[0])


def _bare(kind: Any) -> Any:
    """The type without what is annotated, and without None."""
    if get_origin(kind) is Annotated:
        return _bare(kind.__origin__)
    if get_origin(kind) in {Union, UnionType}:
        others = [one for one in get_args(kind) if one is not NoneType]
        return _bare(others[0]) if len(others) == 1 else kind
    return kind


def _located(text: str, at: str, kind: Any) -> Finding:
    """Split msgspec's ``Expected `str`, got `int` - at `$[0]` `` into place and problem."""
    problem, _, place = text.partition(" - at `$")
    if problem.startswith("Invalid enum value") and (choices := tuple(_choices(kind))):
        problem += f" (allowed: {', '.join(choices)})"
    problem = problem.replace(" | null", "").replace("`", "")
    return Finding(at + place.rstrip("`"), (problem[:1].lower() + problem[1:],))


def _choices(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield from (one.value for one in kind)
    else:
        for one in get_args(kind) if get_origin(kind) is not Annotated else (kind.__origin__,):
            yield from _choices(one)


def _kind_of(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    return "an array" if isinstance(value, list | tuple) else type(value).__name__
