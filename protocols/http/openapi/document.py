"""The OpenAPI 3.1 document, made of the declarations of the calls."""

from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Annotated, Any, Final

from protocols.http.calls import Accepts, CalledBack, Chapter, Counted, RestCall, RestCalls
from protocols.http.conditional import IF_MATCH
from protocols.http.openapi import samples
from protocols.http.openapi.errors import (
    ErrorBody,
    error_example,
    error_shape,
    refusals_of,
    usual_reason,
)
from protocols.http.openapi.schemas import Schemas, example_of
from protocols.http.schema import Id, Schema, TypeId, about, component, integer, text

TITLE: Final = "Trunkline"
API_VERSION: Final = "1.1"
#: Introduction of the document, in Markdown: headings, paragraphs, lists and `code`.
_OVERVIEW: Final = files("protocols.http.openapi").joinpath("overview.md").read_text(encoding="utf-8")

_LICENSE: Final = {"name": "Apache License 2.0", "identifier": "Apache-2.0"}
#: Names in the paths of several nouns (reference 1.1 and 2): the type and an example of each.
PATH_NAMES: Final[dict[str, tuple[Any, str]]] = {
    "uid": (Annotated[str, text("A user id, or self with a user token", pattern="^(self|[0-9a-f]{32})$")], "self"),
    "aid": (Annotated[Id, about("An application")], samples.AID),
    "did": (Annotated[Id, about("A device")], samples.DID),
    "dtid": (Annotated[TypeId, about("A device type: its id or its unique name")], samples.TYPE_NAME),
    "oid": (Annotated[Id, about("An organization")], samples.OID),
    "version": (
        Annotated[str, text("Of the Manifest: a number, or latest", pattern="^(latest|[1-9][0-9]{0,8})$")],
        "latest",
    ),
}
_PAIR: Final = "^[0-9]+/[0-9]+$"
_USAGE: Final = r"^[0-9]+/-?[0-9]+$"
_HEADERS: Final[dict[str, Any]] = {
    "X-Rate-Limit-Limit": Annotated[str, text("Calls allowed, as minute/day", pattern=_PAIR)],
    "X-Rate-Limit-Remaining": Annotated[str, text("Calls left, as minute/day", pattern=_PAIR)],
    "X-Rate-Limit-Reset": Annotated[
        str, text("When there are more, in seconds since the epoch, as minute/day", pattern=_PAIR)
    ],
    "Retry-After": Annotated[int, integer("Seconds to wait", lowest=0)],
    "x-quota-max-payload-size": Annotated[int, integer("Bytes that data may have", lowest=0)],
    "x-quota-organization-limits": Annotated[str, text("Used and allowed, this month", pattern=_USAGE)],
    "x-quota-organization-reset": Annotated[str, text("Start and end of the month, in milliseconds", pattern=_PAIR)],
    "x-quota-device-limits": Annotated[str, text("Used and allowed, this day; of devices with a plan", pattern=_USAGE)],
    "x-quota-device-reset": Annotated[str, text("Start and end of the day, in milliseconds", pattern=_PAIR)],
}
_RATE_HEADERS: Final = tuple(name for name in _HEADERS if name.startswith("X-Rate-"))
_QUOTA_HEADERS: Final = tuple(name for name in _HEADERS if name.startswith("x-quota-"))
_OWN_HEADERS: Final[Mapping[Counted, tuple[str, ...]]] = {
    Counted.REST: _RATE_HEADERS,
    Counted.MESSAGES: _RATE_HEADERS + _QUOTA_HEADERS,
}
_REQUEST_TIME: Final = Annotated[str, text("Seconds that the search took, with three decimals")]
_ETAG: Final = Annotated[str, text("The tag of what the object is now, for If-Match")]
_IF_MATCH: Final = Annotated[str, text("Tags of earlier answers: without one that the object has, nothing is changed")]
#: Suffixes of the names of usual refusals, which differ in their headers.
_REFUSAL_KINDS: Final = {Counted.REST: "", Counted.MESSAGES: "Sending", Counted.NOT: "Uncounted"}


def openapi_document(server_url: str, nouns: Iterable[type[RestCalls]]) -> dict[str, Any]:
    """Describe the calls of `nouns` on a server whose REST root has the address `server_url`."""
    return _Document(tuple(nouns)).described(server_url)


class _Document:
    def __init__(self, nouns: tuple[type[RestCalls], ...]) -> None:
        self._nouns = nouns
        self._schemas = Schemas()
        #: The refusals that many calls have, by the names of their components.
        self._usual: dict[str, dict[str, Any]] = {}
        self._path_names = {
            call.path: {**PATH_NAMES, **noun.path_names} for noun in nouns for call in noun.declared() if call.names
        }

    def described(self, server_url: str) -> dict[str, Any]:
        chapters = dict.fromkeys(noun.chapter for noun in self._nouns)
        paths = self._paths(chapters)
        for noun in self._nouns:
            for name, schema in noun.components.items():
                self._schemas.add(name, schema)
        return {
            "openapi": "3.1.0",
            "info": {"title": TITLE, "version": API_VERSION, "description": _OVERVIEW, "license": _LICENSE},
            "servers": [{"url": server_url}],
            "security": [{"bearer": []}],
            "tags": [_tag(chapter) for chapter in chapters],
            "paths": paths,
            "components": {
                "schemas": self._schemas.components,
                "responses": dict(sorted(self._usual.items())),
                "headers": {name: self._header(kind) for name, kind in _HEADERS.items()},
                "securitySchemes": {
                    "bearer": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "A user, application or device token; x-token-kinds says which a call accepts",
                    },
                    "certificate": {"type": "mutualTLS", "description": "On the secure listener only"},
                },
            },
        }

    def _paths(self, chapters: Iterable[Chapter]) -> dict[str, Any]:
        """The paths, chapter by chapter: pages show calls in the order of the document."""
        paths: dict[str, Any] = {}
        for chapter in chapters:
            for noun in self._nouns:
                for call in noun.declared() if noun.chapter is chapter else ():
                    paths.setdefault(call.path, {})[call.method.lower()] = self._operation(chapter, call)
        return paths

    def _operation(self, chapter: Chapter, call: RestCall) -> dict[str, Any]:
        described: dict[str, Any] = {
            "operationId": _operation_id(call),
            "tags": [chapter.title],
            "summary": call.summary,
            "x-token-kinds": [kind.value for kind in call.tokens],
            "x-rate-limit-row": call.counted.value if call.counted in _OWN_HEADERS else "none",
        }
        if call.about:
            described["description"] = call.about
        if parameters := [*self._in_path(call), *self._in_query(call), *self._in_headers(call)]:
            described["parameters"] = parameters
        if call.takes_body:
            described["requestBody"] = self._body(call)
        if call.needs_certificate:
            described["security"] = [{"certificate": []}]
        elif not call.tokens:
            described["security"] = []
        described["responses"] = {str(call.answers.status): self._answer(call)} | {
            status: self._refusal(call, status, reason) for status, reason in refusals_of(call)
        }
        if call.answers.status >= 300:  # what is not named above
            described["responses"]["default"] = self._refused("default", "Anything else is an error", call.counted)
        if call.called_back:
            described["callbacks"] = {
                one.name: {one.address: {"post": self._callback(one)}} for one in call.called_back
            }
        return described

    def _callback(self, called: CalledBack) -> dict[str, Any]:
        media = {"schema": self._schemas.of(called.body), "example": example_of(called.body)}
        return {
            "summary": called.summary,
            "description": called.about,
            "security": [],
            "requestBody": {"required": True, "content": {"application/json": media}},
            "responses": {"2XX": {"description": "Taken"}, "4XX": {"description": "Not taken"}},
        }

    def _in_path(self, call: RestCall) -> Iterator[dict[str, Any]]:
        for name in call.names:
            kind, example = self._path_names[call.path][name]
            yield {"name": name, "in": "path", "required": True, "schema": self._schemas.of(kind), "example": example}

    def _in_query(self, call: RestCall) -> Iterator[dict[str, Any]]:
        """The parameters of all structs as which the query may be read. Required are the ones that each requires."""
        queries = [self._schemas.properties(query) for query in call.queries]
        for name in dict.fromkeys(name for query in queries for name in query):
            schema = next(query[name][0] for query in queries if name in query)
            is_required = all(name in query and query[name][1] for query in queries)
            yield _parameter(name, "query", schema, is_required=is_required)

    def _in_headers(self, call: RestCall) -> Iterator[dict[str, Any]]:
        for name, kind in call.headers.items():
            yield _parameter(name, "header", self._schemas.of(kind), is_required=True)
        if call.is_conditional:
            yield _parameter(IF_MATCH, "header", self._schemas.of(_IF_MATCH), is_required=False)

    def _body(self, call: RestCall) -> dict[str, Any]:
        accepts = call.accepts or Accepts({"application/json": call.body}, example_of(call.body))
        content: dict[str, Any] = {}
        for content_type, kind in accepts.types.items():
            content[content_type] = {"schema": self._schemas.of(kind)}
            if content_type != "multipart/form-data":  # the example is not in parts
                content[content_type]["example"] = accepts.example
        return {"required": accepts.is_required, "content": content}

    def _answer(self, call: RestCall) -> dict[str, Any]:
        answers = call.answers
        described: dict[str, Any] = {"description": answers.about}
        if call.answer is not None:
            media: dict[str, Any] = {"schema": self._answered(call)}
            described["content"] = dict.fromkeys((answers.content_type, *answers.also), media)
            if answers.example is not None:
                media["example"] = answers.example
            elif answers.type is None:
                media["example"] = example_of(call.answer)
        own = {"Request-Time": _REQUEST_TIME} if call.is_timed else dict(answers.headers)
        own |= {"ETag": _ETAG} if call.is_tagged else {}
        headers = _own_headers(call.counted) | {name: self._header(kind) for name, kind in own.items()}
        return described | ({"headers": headers} if headers else {})

    def _answered(self, call: RestCall) -> Schema:
        """A component, so that a client made of the document has a name for each answer."""
        schema = self._schemas.of(call.answer)
        if "$ref" in schema or schema.get("type") not in {"object", "array"}:
            return schema
        operation = _operation_id(call)
        name = f"{operation[0].upper()}{operation[1:]}Answer"
        self._schemas.add(name, schema)
        return {"$ref": component(name)}

    def _refusal(self, call: RestCall, status: str, reason: str) -> dict[str, Any]:
        schema = self._schemas.of(error_shape(call, status))
        if schema != self._schemas.of(ErrorBody):
            return {"description": reason, "content": {"application/json": {"schema": schema}}}
        if reason == usual_reason(status):
            name = _usual_name(status, call.counted)
            self._usual.setdefault(name, self._refused(status, reason, call.counted))
            return {"$ref": f"#/components/responses/{name}"}
        return self._refused(status, reason, call.counted)

    def _refused(self, status: str, reason: str, counted: Counted) -> dict[str, Any]:
        media: dict[str, Any] = {"schema": self._schemas.of(ErrorBody)}
        if (example := error_example(status, reason)) is not None:
            media["example"] = example
        headers = _own_headers(counted) if status != "401" else {}
        if status in {"429", "5XX"}:
            headers = headers | _header_refs(("Retry-After",))
        described = {"description": reason, "content": {"application/json": media}}
        return described | ({"headers": headers} if headers else {})

    def _header(self, kind: Any) -> dict[str, Any]:
        schema = self._schemas.of(kind)
        return {"description": schema.pop("description", ""), "schema": schema}


def _tag(chapter: Chapter) -> dict[str, Any]:
    samples = [{"title": title, "code": code} for title, code in chapter.samples]
    return {"name": chapter.title, "description": chapter.about} | ({"x-samples": samples} if samples else {})


def _operation_id(call: RestCall) -> str:
    """The name of a call, such as `getDevicesByDidStatus`."""
    words = call.path.replace(".", "/").strip("/").split("/")
    named = (f"By{word[1].upper()}{word[2:-1]}" if word[0] == "{" else word[0].upper() + word[1:] for word in words)
    return call.method.lower() + "".join(named)


def _parameter(name: str, place: str, schema: Schema, *, is_required: bool) -> dict[str, Any]:
    schema = dict(schema)
    examples = schema.pop("examples", None)
    described: dict[str, Any] = {"name": name, "in": place, "required": is_required, "schema": schema}
    return described | ({"example": examples[0]} if examples else {})


def _usual_name(status: str, counted: Counted) -> str:
    return f"Error{status}{_REFUSAL_KINDS.get(counted, 'Uncounted')}"


def _own_headers(counted: Counted) -> dict[str, Any]:
    return _header_refs(_OWN_HEADERS.get(counted, ()))


def _header_refs(names: tuple[str, ...]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
