"""/cloudconnectors: where browsers come back from third parties, and where third parties call (reference 2.12).

Nobody has a token here: the one-time state, and the plug-in's own check, say who it is.
"""

from urllib.parse import parse_qsl

from quart import Blueprint, Response, request

from broker.connectors.plugin import IncomingRequest
from broker.errors import BadRequest
from broker.services import Services
from config.limits import CONNECTOR_NOTIFICATION_BYTES
from protocols.http.body import read_body

_PARAMETERS = 100


def cloud_connectors_blueprint(services: Services) -> Blueprint:
    routes = Blueprint("cloud_connectors", __name__)
    connectors = services.connectors

    @routes.get("/cloudconnectors/<device_type>/auth")
    async def authorized(device_type: str) -> Response:
        return redirect_to(await connectors.authorized(device_type, _query()))

    @routes.route("/cloudconnectors/<device_type>/thirdpartynotifications", methods=["GET", "POST"])
    async def notified(device_type: str) -> Response:
        body = await read_body(limit=CONNECTOR_NOTIFICATION_BYTES)
        headers = {name.lower(): value for name, value in request.headers.items()}
        heard = await connectors.notified(device_type, IncomingRequest(request.method, _query(), headers, body))
        answer = Response(heard.body, heard.status, content_type="text/plain; charset=utf-8")
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    return routes


def redirect_to(address: str) -> Response:
    """A redirection that nobody stores. The address is kept byte for byte."""
    answer = Response(b"", 302)
    answer.headers["Location"] = address
    answer.headers["Cache-Control"] = "no-store"
    answer.headers["Referrer-Policy"] = "no-referrer"
    return answer


def _query() -> dict[str, str]:
    """Raises BadRequest: that many parameters, nobody means."""
    text = request.query_string.decode("latin-1")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=_PARAMETERS))
    except ValueError as error:
        raise BadRequest from error
