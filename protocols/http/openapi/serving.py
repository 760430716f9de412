"""GET /v1.1/openapi.json: the document as bytes that are made once for each address the server is known by."""

import hashlib
from functools import cached_property
from typing import Final

import msgspec
from quart import Blueprint, Response, request

from broker.site import Site
from protocols.http.answers import REST_ROOT
from protocols.http.openapi.document import document

PATH: Final = "/openapi.json"


def openapi_blueprint(site: Site) -> Blueprint:
    routes = Blueprint("openapi", __name__)
    served = _Served("")

    @routes.get(PATH)
    async def show() -> Response:
        nonlocal served
        server_url = f"{site.origin}{REST_ROOT}"
        if served.server_url != server_url:  # the port is only known once the listener is open
            served = _Served(server_url)
        answer = Response(served.body, content_type="application/json; charset=utf-8")
        answer.set_etag(served.etag)
        await answer.make_conditional(request)
        return answer

    return routes


class _Served:
    """The document for one address."""

    def __init__(self, server_url: str) -> None:
        self.server_url = server_url

    @cached_property
    def body(self) -> bytes:
        return msgspec.json.encode(document(self.server_url))

    @cached_property
    def etag(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:32]
