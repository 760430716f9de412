"""GET /v1.1/openapi.json. The document is made once for each address by which the server is known."""

import hashlib
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final

import msgspec
from quart import Response, request

from broker.core import Core
from protocols.http.answers import REST_ROOT
from protocols.http.calls import NO_TOKEN, NOTHING, Answers, Chapter, Counted, RestCall, RestCalls
from protocols.http.openapi.document import openapi_document
from protocols.http.rest.nouns import NOUNS
from protocols.http.schema import about

_DOCUMENT: Final = Annotated[
    dict[str, Any],
    about(
        "",
        required=["openapi", "info"],
        properties={
            "openapi": {"type": "string", "description": "Version of OpenAPI"},
            "info": {"type": "object", "description": "Title, version, description", "additionalProperties": True},
        },
        additionalProperties=True,
    ),
]


class DocumentCalls(RestCalls):
    chapter = Chapter("This document", "The description of the API itself.")

    def __init__(self, core: Core) -> None:
        self._site = core.site

    @RestCall(
        "GET",
        "/openapi.json",
        tokens=NO_TOKEN,
        on=NOTHING,
        summary="This document",
        about="OpenAPI 3.1. It has an ETag; the same as pages for people is at `/docs`.",
        counted=Counted.ADDRESS,
        answers=Answers(
            type=_DOCUMENT,
            example={"openapi": "3.1.0", "info": {"title": "Trunkline", "version": "1.1"}},
            headers={"ETag": Annotated[str, about("Of this version of the document")]},
        ),
    )
    async def show(self) -> Response:
        served = _served(f"{self._site.origin}{REST_ROOT}")  # the port is only known once the listener is open
        answer = Response(served.body, content_type="application/json; charset=utf-8")
        answer.set_etag(served.etag)
        await answer.make_conditional(request)
        return answer


ALL_NOUNS: Final[tuple[type[RestCalls], ...]] = (*NOUNS, DocumentCalls)
#: The listeners share one address, as a rule.
_ADDRESSES_KEPT: Final = 2


@lru_cache(_ADDRESSES_KEPT)
def described(server_url: str) -> Mapping[str, Any]:
    """The document for the address of a REST root. It is shared: do not change it."""
    return openapi_document(server_url, ALL_NOUNS)


class _Served:
    """The document for one address, as it is sent."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url

    @cached_property
    def body(self) -> bytes:
        return msgspec.json.encode(described(self._server_url))

    @cached_property
    def etag(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:32]


_served = lru_cache(_ADDRESSES_KEPT)(_Served)
