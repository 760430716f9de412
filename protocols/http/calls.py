"""Declarations of REST calls, each beside its handler.

From it come the route, the order of checks (`dispatch`), the reading of query and body (`reading`), what the call
counts against, and its part of the OpenAPI document (`openapi/`). `tokens` and `on` have no defaults: each declaration
says who may make the call, and on which object a permission is checked.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from inspect import signature
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from quart import Response

from broker.accounts.tokens import Caller, TokenKind
from broker.errors import DomainError
from broker.messages.ingest import Ingest
from broker.registration.certificates import ClientCertificate
from broker.services import Services
from config.limits import MAX_BODY_BYTES
from protocols.http.answers import Answer
from protocols.http.reading import Query
from protocols.http.schema import Shape

H = TypeVar("H", bound=Callable[..., Awaitable[Any]])
A = TypeVar("A")

HttpMethod = Literal["GET", "POST", "PUT", "DELETE"]

#: The kinds of token that a call accepts, as in the column `Tok` of reference 2.
USER: Final = (TokenKind.USER,)
APPLICATION: Final = (TokenKind.APPLICATION,)
USER_OR_APPLICATION: Final = (TokenKind.USER, TokenKind.APPLICATION)
ANY_TOKEN: Final = (TokenKind.USER, TokenKind.APPLICATION, TokenKind.DEVICE)
NO_TOKEN: Final[tuple[TokenKind, ...]] = ()

FORM: Final = "application/x-www-form-urlencoded"

_NAME: Final = re.compile(r"\{(\w+)\}")


@cache
def _names_in(path: str) -> tuple[str, ...]:
    return tuple(_NAME.findall(path))


_CAPITAL: Final = re.compile(r"(?=[A-Z])")


class Counted(Enum):
    """The rate limit that a call counts against (reference 21.1). The values are the rows of the rate limits."""

    REST = "REST"
    MESSAGES = "POST /messages"
    #: The limit of the address from which the call comes.
    ADDRESS = "address"
    #: No limit.
    NOT = "none"


# Objects


class Nothing(msgspec.Struct, frozen=True):
    """The call is on no object."""


class InQuery(msgspec.Struct, frozen=True):
    """The call is on what its query names. `find` looks it up before the other parameters are checked."""

    find: Callable[[Any, Caller, Query], Awaitable[Any]]


#: A method of the noun. It gets the caller (or the client certificate) and the names in the path in their order. It
#: looks up what they name, checks the permission on it, and returns what the handler works on.
Finder = Callable[..., Awaitable[Any]]


class SharedFinder(msgspec.Struct, frozen=True):
    """A finder of objects that paths of several nouns name. `find` gets a `Named` in the place of the noun."""

    find: Finder


NOTHING: Final = Nothing()

#: It gets the caller and the body. Where nothing is to be waited for, it returns the function that submits; None where
#: the handler must decide. It changes nothing.
NoWait = Callable[[Caller, Any], "Callable[[], AfterCommit[Any]] | None"]


# Calls


class Chapter(msgspec.Struct, frozen=True):
    """A chapter of the document: calls that belong together. `samples` are programs by title."""

    title: str
    about: str
    samples: tuple[tuple[str, str], ...] = ()


class Accepts(msgspec.Struct, frozen=True):
    """Description of a body that is not just one struct in JSON: types by content type, and one example."""

    types: Mapping[str, Any]
    example: object
    is_required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Description of the answer, in addition to the type that the handler returns."""

    about: str = "Success"
    type: Any = None  # of a handler that returns a `Response` with a body
    content_type: str = "application/json"
    also: tuple[str, ...] = ()  # further content types of the same body, for clients that ask for one
    status: int = 200
    headers: Mapping[str, Any] = field(default_factory=dict)  # their types by name
    example: object = None  # where the examples of the shapes do not make one


class CalledBack(msgspec.Struct, frozen=True):
    """A request that the service makes later because of a call (OpenAPI: callback), as a POST with this body."""

    name: str
    address: str  # a runtime expression of OpenAPI
    summary: str
    about: str
    body: Any


class AfterCommit(NamedTuple, Generic[A]):
    """Result of a handler that has submitted to the log: `answer` makes the answer once the log is durable.

    Nothing is awaited between the submission and the end of the handler.
    """

    ingest: Ingest
    answer: Callable[[], A]


#: Reads the body of the current request in chunks, up to a number of bytes: `bodies.py: chunks_within`.
Chunks = Callable[[int], AsyncGenerator[bytes, None]]

_JSON: Final = Answers()
_PERFORMERS: Final = (Caller, ClientCertificate)


@dataclass(frozen=True)
class RestCall:
    """The declaration of a call, and the decorator that puts it on its handler.

    A handler is a method of a `RestCalls`. Its parameters say what it is given, their types how that is read:

    - one of type `Caller` or `ClientCertificate`: who calls;
    - `query`: a struct, or a union of structs, of which the first one whose first member is given is read;
    - `body`: a struct, which is read from JSON, and also from a form if `accepts` has that content type; bytes or a
      dictionary, which are the body as it came and the JSON object in it; or `Chunks`, for a body of any length;
    - one called like a name in the path, in snake case: that text;
    - one more: the object that `on` found.

    It returns a struct, which is rendered as JSON, such a struct `AfterCommit`, or an `Answer` or a `Response` that
    `answers` describes. Only a `Response` may be a stream. Handlers that return one or read `Chunks` are
    only called through Quart.

    Raises TypeError where declaration and handler do not fit.
    """

    method: HttpMethod
    path: str  # with names in braces
    _: KW_ONLY
    tokens: tuple[TokenKind, ...]
    on: Finder | SharedFinder | InQuery | Nothing
    summary: str
    about: str = ""
    counted: Counted = Counted.REST
    refusals: Mapping[int, str] = field(default_factory=dict)  # by status, those of this call alone
    query: type[Shape] | None = None  # what is read of the query when the handler has no use for the values
    accepts: Accepts | None = None
    answers: Answers = _JSON
    called_back: tuple[CalledBack, ...] = ()
    headers: Mapping[str, Any] = field(default_factory=dict)  # types, by name, of headers that the request must have
    body_limit: int = MAX_BODY_BYTES
    needs_certificate: bool = False  # instead of a token; the call is only there on the secure listener
    is_secret: bool = False  # the answer carries a token: it is not stored, and no other origin reads it
    is_tagged: bool = False  # the answer has an ETag
    is_conditional: bool = False  # the call takes If-Match, and answers 412 with the present object
    is_timed: bool = False  # a search: its answer says how long it took
    #: A method of the noun that returns it; for a call whose body is a struct, and whose handler returns `AfterCommit`.
    nowait: Callable[[Any], NoWait] | None = None
    has_token_in_body: bool = False  # the member `token` of the body is the caller's, unless there is one in the header
    handler: str = ""
    hints: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.names) and self.tokens and isinstance(self.on, Nothing):
            raise TypeError(f"{self}: the path names an object, and no permission on the object is checked")
        if self.counted in {Counted.REST, Counted.MESSAGES} and not self.tokens:
            raise TypeError(f"{self}: without a token, a call counts against its address or nothing")

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def __call__(self, handler: H) -> H:
        hints = get_type_hints(handler, include_extras=True)
        hints.pop(next(iter(signature(handler).parameters)), None)  # `self`
        declared = replace(self, handler=handler.__name__, hints=hints)
        declared._check_handler()
        handler.__dict__.setdefault("declarations", []).insert(0, declared)  # decorators apply from below
        return handler

    def _check_handler(self) -> None:
        if self.object_parameter is not None and isinstance(self.on, Nothing):
            raise TypeError(f"{self}: nothing finds {self.object_parameter}")
        if isinstance(self.on, SharedFinder) or callable(self.on):
            self._check_finder(self.on.find if isinstance(self.on, SharedFinder) else self.on)
        if self.returns_answer and self.answers is _JSON:
            raise TypeError(f"{self}: `answers` must describe a Response")
        if isinstance(self.on, InQuery) and not self.queries:
            raise TypeError(f"{self}: nothing reads the query")
        if self.body is not None and self.accepts is None and not _is_shape(self.body):
            raise TypeError(f"{self}: `accepts` must describe a body that is no struct")

    def _check_finder(self, find: Finder) -> None:
        """A finder gets its object, the caller and the names in the path, and returns what the handler takes."""
        if len(signature(find).parameters) != 2 + len(self.names):
            raise TypeError(f"{self}: the path names {self.names}, which the finder does not take")
        found = get_type_hints(find).get("return")
        if self.object_parameter is not None and self.hints[self.object_parameter] != found:
            raise TypeError(f"{self}: the finder returns {found}, and {self.object_parameter} is something else")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names in the path, in their order."""
        return _names_in(self.path)

    @cached_property
    def queries(self) -> tuple[Any, ...]:
        """The structs as which the query may be read."""
        kind = self.hints.get("query", self.query)
        return () if kind is None else get_args(kind) if isinstance(kind, UnionType) else (kind,)

    @cached_property
    def has_optional_query(self) -> bool:
        """Whether a request without a query needs no look at it."""
        is_read = self.takes_query or isinstance(self.on, InQuery)
        return not is_read and not any(one.required for kind in self.queries for one in msgspec.structs.fields(kind))

    @cached_property
    def body(self) -> Any:
        return self.hints.get("body")

    @cached_property
    def is_object(self) -> bool:
        """Whether the handler takes the body as the JSON object that it is."""
        return get_origin(self.body) is dict

    @property
    def takes_body(self) -> bool:
        return self.body is not None or self.accepts is not None

    @cached_property
    def reads_json(self) -> bool:
        """Whether the body is read into values: for the handler, or by a handler that takes its bytes."""
        return self.body is not bytes or (
            self.accepts is not None and _is_shape(self.accepts.types.get("application/json"))
        )

    @cached_property
    def reads_forms(self) -> bool:
        return self.accepts is not None and FORM in self.accepts.types and _is_shape(self.body)

    @property
    def answer(self) -> Any:
        """The type of the answer, for the document; None where there is no body."""
        returned = self.hints["return"]
        if self.returns_answer:
            return self.answers.type
        return get_args(returned)[0] if get_origin(returned) is AfterCommit else returned

    @cached_property
    def returns_answer(self) -> bool:
        """Whether the handler makes the answer itself."""
        return self.hints.get("return") in {Response, Answer}

    @cached_property
    def is_body_streamed(self) -> bool:
        """Whether the handler reads the body while it comes."""
        return bool(self.body == Chunks)

    @cached_property
    def fits_fast_path(self) -> bool:
        """Whether the handler takes a whole body, or none, and gives a whole answer: then fast_path.py can answer it.

        This is decided by the types of the handler alone. Everything else is read from `current_request`, which
        both paths make.
        """
        return not self.is_body_streamed and self.hints["return"] is not Response

    @cached_property
    def takes_query(self) -> bool:
        return "query" in self.hints

    @cached_property
    def performer_parameter(self) -> str | None:
        return next((name for name, hint in self.hints.items() if hint in _PERFORMERS), None)

    @cached_property
    def object_parameter(self) -> str | None:
        known = {"query", "body", "return", *map(snake_case, self.names)}
        return next((one for one, hint in self.hints.items() if one not in known and hint not in _PERFORMERS), None)

    @cached_property
    def text_parameters(self) -> Sequence[tuple[str, str]]:
        """The names in the path that the handler takes as texts, each with its parameter."""
        parameters = ((name, snake_case(name)) for name in self.names)
        return [(name, parameter) for name, parameter in parameters if parameter in self.hints]


class RestCalls:
    """The calls of one noun: methods that are declared with `RestCall`.

    The parameters of a subclass's constructor are rooms of the broker, named like the fields of `Services`.
    """

    chapter: ClassVar[Chapter]
    #: Shapes of the document that no struct can state, by name.
    components: ClassVar[Mapping[str, Any]] = {}
    #: Names that stand in the paths of this noun only: the type and an example of each. `openapi/document.py` has
    #: the names that several nouns use.
    path_names: ClassVar[Mapping[str, tuple[Any, str]]] = {}

    async def body_refused(self, caller: Caller, error: DomainError) -> None:
        """The body of a call that counts as a message cannot be read."""

    @property
    def is_served(self) -> bool:
        """False: the operator left this module out, and its paths are unknown ones."""
        return True

    @classmethod
    def built_for(cls, services: Services) -> Self:
        """Build the noun with the rooms that its constructor names. Raises AttributeError for an unknown room."""
        return cls(**{room: getattr(services, room) for room in cls._rooms()})

    @classmethod
    @cache  # every listener builds every noun
    def _rooms(cls) -> tuple[str, ...]:
        return tuple(signature(cls).parameters)

    @classmethod
    @cache
    def declared(cls) -> Sequence[RestCall]:
        """The declarations, in the order in which they stand in the class."""
        return tuple(call for method in vars(cls).values() for call in getattr(method, "declarations", ()))


def _is_shape(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Shape)


def snake_case(name: str) -> str:
    return _CAPITAL.sub("_", name).lower()
