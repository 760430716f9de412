"""/logout and /checkSession (reference 4.2)."""

from quart import Blueprint, Response, request

from broker.accounts.applications import Applications
from broker.accounts.authorize import STRANGE_REDIRECT
from broker.accounts.redirects import QueryParameters, with_parameters
from broker.accounts.sessions import Sessions
from broker.errors import Unauthorized
from protocols.http.accounts.browsers import Browsers
from protocols.http.accounts.pages import error_page, is_head, pages_blueprint, redirect
from protocols.http.answers import json_answer


def sign_out_blueprint(applications: Applications, sessions: Sessions, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("sign_out")

    @routes.get("/logout")
    @routes.get("/signout")
    async def sign_out() -> Response:
        # The session ends also when the redirect URI is wrong, because the person asked to sign out.
        if browsers.session_id and not is_head():
            await sessions.end(browsers.session_id)
        given = QueryParameters(request.query_string)
        redirect_uri, state = given.one("redirect_uri"), given.one("state")
        if redirect_uri is not None and await applications.is_redirect_uri(redirect_uri):
            answer = redirect(with_parameters(redirect_uri, [("status", "logout"), ("state", state)]))
        else:
            answer = error_page(400, STRANGE_REDIRECT)
        if not is_head():
            browsers.forget(answer)
            answer.headers["Clear-Site-Data"] = '"cache"'  # so that the back button shows no page of the old session
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
