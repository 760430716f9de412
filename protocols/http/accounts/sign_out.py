"""/logout, and whether a browser is signed in."""

from urllib.parse import parse_qsl

from quart import Blueprint, Response, request

from broker.accounts.applications import Applications
from broker.accounts.redirects import with_parameters
from broker.accounts.sessions import Sessions
from broker.errors import Unauthorized
from protocols.http.accounts.browsers import Browsers
from protocols.http.accounts.pages import error_page, only_looks, pages_blueprint, redirect_to
from protocols.http.answers import json_answer


def sign_out_blueprint(applications: Applications, sessions: Sessions, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("sign_out")

    @routes.get("/logout")
    @routes.get("/signout")
    async def sign_out() -> Response:
        # The session ends also when there is nowhere to go: who asks for that wants to be gone.
        if browsers.session_id and not only_looks():
            await sessions.end(browsers.session_id)
        redirect_uri, state = _one("redirect_uri"), _one("state")
        if redirect_uri is not None and await applications.is_redirect_uri(redirect_uri):
            answer = redirect_to(with_parameters(redirect_uri, [("status", "logout"), ("state", state)]))
        else:
            answer = error_page(400, "Invalid parameter: redirect_uri")
        if not only_looks():
            browsers.forget(answer)
            answer.headers["Clear-Site-Data"] = '"cache"'  # or a browser's back button shows what was there before
        return answer

    return routes


def check_session_blueprint(browsers: Browsers) -> Blueprint:
    routes = Blueprint("check_session", __name__)

    @routes.get("/checkSession")
    async def check_session() -> Response:
        if await browsers.session() is None:
            raise Unauthorized
        return json_answer({"data": {"message": "Session is valid"}})

    return routes


def _one(name: str) -> str | None:
    """None also when it is repeated. `state` goes back unchanged, whatever its bytes are."""
    given = parse_qsl(request.query_string.decode("latin-1"), errors="surrogateescape")
    values = [value for key, value in given if key.lstrip("?") == name]
    return values[0] if len(values) == 1 else None
