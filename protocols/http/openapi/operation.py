"""What a call is: who may make it, what it takes, what it answers and how it refuses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from protocols.http.openapi.shapes import Schema, boolean, integer

Token = Literal["user", "application", "device"]
#: Which tokens a call accepts, as in the column `Tok` of reference 2.
USER: Final[tuple[Token, ...]] = ("user",)
USER_OR_APPLICATION: Final[tuple[Token, ...]] = ("user", "application")
ANY_TOKEN: Final[tuple[Token, ...]] = ("user", "application", "device")

#: None: what a call with no token, and none that is counted, is held to is the limit of its address.
Counted = Literal["rest", "messages"] | None


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of the query, unless `place` says otherwise."""

    name: str
    schema: Schema
    required: bool = False
    place: Literal["query", "header"] = "query"
    example: str | int | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """`schemas` by content type. Only JSON is read whatever the Content-Type says (reference 1.3)."""

    schemas: Mapping[str, Schema]
    example: object
    required: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call answers when it succeeds."""

    schema: Schema | None
    example: object = None
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, Schema] = field(default_factory=dict)
    about: str = "Success"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    summary: str
    answer: Answer
    about: str = ""
    #: Empty: no token is needed.
    tokens: tuple[Token, ...] = ()
    counted: Counted = "rest"
    query: tuple[Parameter, ...] = ()
    body: Body | None = None
    #: By status, when it is refused for reasons of its own: what stands in `message`, or when that happens.
    refusals: Mapping[int, str] = field(default_factory=dict)
    #: The call is only there on the listener that asks for client certificates.
    needs_certificate: bool = False


@dataclass(frozen=True, slots=True)
class Noun:
    """A chapter: calls that belong together, and the shapes that they answer."""

    title: str
    about: str
    operations: tuple[Operation, ...]
    schemas: Mapping[str, Schema] = field(default_factory=dict)


def json_body(schema: Schema, example: object, *, required: bool = True) -> Body:
    return Body({"application/json": schema}, example, required)


def flag(name: str, about: str, *, default: bool = False) -> Parameter:
    return Parameter(name, boolean(about, default=default))


PAGING: Final = (
    Parameter("count", integer("Items at most", lowest=1, highest=100, default=100)),
    Parameter("offset", integer("Items to leave out", lowest=0, default=0)),
)
