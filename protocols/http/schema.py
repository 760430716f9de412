"""Queries, bodies and answers: their base class, descriptions of their members, and the envelopes they share.

A member is `Annotated[type, …]`. The types and functions under Descriptions only describe it: what a client sends is
not checked against them. Checks stand in a `Meta` (`ge`, `le`, `min_length`, `max_length`, `pattern`) or in the markers
of `reading`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from config.limits import FORBIDDEN_IN_NAMES, NAME_MAX_CHARACTERS, PAGE_COUNT_DEFAULT, PAGE_COUNT_MAX

Schema = dict[str, Any]
T = TypeVar("T")
U = TypeVar("U")

#: Keyword that replaces the type of a member in the document, for instance of a list that comes as one text.
OTHER_TYPE: Final = "x-type"


class BodyForm(msgspec.Struct, frozen=True):
    """One of the forms that a body may have. `required` and `optional` are members by their names on the wire."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    about: str = ""


class Shape(msgspec.Struct, rename="camel", gc=False):
    # The docstring of a subclass is its description in the OpenAPI document; this class has none.

    #: The name in the document of a shape that several calls share. A shape without one is shown where it is used.
    shape: ClassVar[str] = ""
    #: A JSON value of this shape. A shape without one is put together from the examples of its members.
    example: ClassVar[Any] = None
    #: The forms that a body may have when there are several: it has any of them, or exactly one.
    any_of: ClassVar[tuple[BodyForm, ...]] = ()
    exactly_one_of: ClassVar[tuple[BodyForm, ...]] = ()


# Descriptions


def about(description: str, *, example: object = None, **keywords: Any) -> Meta:
    """Describe a member. `keywords` are keywords of JSON Schema, except None; `type` replaces the member's type."""
    if "type" in keywords:
        keywords[OTHER_TYPE] = keywords.pop("type")
    given = {keyword: value for keyword, value in keywords.items() if value is not None}
    examples = None if example is None else [example]
    return Meta(description=description or None, examples=examples, extra_json_schema=given or None)


def text(
    description: str = "", *, longest: int | None = None, pattern: str | None = None, example: str | None = None
) -> Meta:
    return about(description, maxLength=longest, pattern=pattern, example=example)


def integer(
    description: str = "", *, lowest: int | None = None, highest: int | None = None, example: int | None = None
) -> Meta:
    size = "int64" if highest is None else None
    return about(description, format=size, minimum=lowest, maximum=highest, example=example)


def time_ms(description: str = "A time", *, example: int | None = None) -> Meta:
    """A point in time in milliseconds."""
    said = f"{description}, in milliseconds since the epoch"
    return about(said, format="int64", minimum=0, maximum=2**63 - 1, example=example)


def one_of(
    values: Iterable[str], description: str = "", *, example: str | None = None, default: str | None = None
) -> Meta:
    return about(description, enum=list(values), example=example, default=default)


def ids(description: str, *, longest: int | None = None, example: str | None = None) -> Meta:
    """A comma-separated list in one text."""
    bound = "" if longest is None else f", at most {longest}"
    return about(f"{description}, separated by commas{bound}", type="string", example=example)


def name(description: str) -> Meta:
    """reference 6.1: 1 to 64 characters without < > & ' "."""
    pattern = f"^[^{''.join(sorted(FORBIDDEN_IN_NAMES))}]+$"
    return about(description, minLength=1, maxLength=NAME_MAX_CHARACTERS, pattern=pattern)


ID_PATTERN: Final = "^[0-9a-f]{32}$"
#: reference 1.1: 32 lower-case hexadecimal characters.
Id = Annotated[str, text(pattern=ID_PATTERN)]
#: reference 1.1: `dt` and 32 hexadecimal characters, a plain name of an imported type, or the unique name.
TypeId = Annotated[str, text(pattern=r"^[A-Za-z0-9_.\-]{1,128}$")]
Timestamp = Annotated[int, time_ms()]
#: Not negative.
Amount = Annotated[int, integer(lowest=0)]


def component(shape: str) -> str:
    """A reference to a shape of the document."""
    return f"#/components/schemas/{shape}"


# Envelopes


class Data(Shape, Generic[T]):
    data: T


class DataAndFlat(msgspec.Struct, Generic[T]):
    """An answer that has the members of `content` under `data`, and once more beside it."""

    content: T


class NumberedPage(Shape, Generic[T]):
    data: T
    total: Annotated[Amount, Meta(description="All matches", examples=[1])]
    offset: Annotated[Amount, Meta(description="As asked for", examples=[0])]
    count: Annotated[Amount, Meta(description="Items in this answer", examples=[1])]


#: The parameters of a numbered list. Both are checked.
Count = Annotated[int, Meta(ge=1, le=PAGE_COUNT_MAX, description="Items at most")]
Offset = Annotated[int, Meta(ge=0, description="Items to leave out", extra_json_schema={"format": "int64"})]


class Paging(Shape):
    count: Count = PAGE_COUNT_DEFAULT
    offset: Offset = 0


def numbered(found: Sequence[T], query: Paging, shown: Callable[[T], U]) -> NumberedPage[list[U]]:
    """A page of a list that is whole in memory."""
    page = [shown(one) for one in found[query.offset : query.offset + query.count]]
    return NumberedPage(page, len(found), query.offset, len(page))


def absent_if_none(value: T | None) -> T | UnsetType:
    """Leave out a member that has no value (reference 1.4)."""
    return UNSET if value is None else value


def spliced(entries: Iterable[bytes]) -> list[Any]:
    """JSON texts as the value of a member that is declared as a list of their shape."""
    return [Raw(entry) for entry in entries]
