"""The ways into the console and out of it, and the access token of its scripts (reference 4.10)."""

from typing import Final
from urllib.parse import urlencode

from quart import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from broker.accounts.console import Console, ConsoleLinkOver
from broker.accounts.sessions import CodeWanted, Sessions, Visitor
from broker.errors import Unauthorized
from protocols.http.accounts.browsers import CONSOLE_PARAMETER, Browsers, continuation, remote_address, user_agent
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import error_page, is_head, redirect
from protocols.http.answers import Answer, secret_answer

HOME: Final = "/console"
#: Subject of a page's CSRF token.
PROOF: Final = b"console"
_LOOPBACK: Final = ("127.", "::1", "::ffff:127.")


def sign_in_address(accounts_path: str, page: str) -> str:
    """Where a person signs in who goes on to a page of the console."""
    return f"{accounts_path}/go?{urlencode({CONSOLE_PARAMETER: page})}"


def add_doors(
    routes: Blueprint, console: Console, sessions: Sessions, browsers: Browsers, accounts_path: str, *, build: str
) -> None:
    @routes.post(f"{HOME}/token")
    async def token() -> Response:
        """The access token of this session's pages. The header proves that one of them asks."""
        session = await browsers.session()
        if session is not None and not session.proves(request.headers.get("X-Console", ""), PROOF):
            return Answer(b'{"error":{"code":403,"message":"Please load the page again"}}', 403).response()
        try:
            if session is None:
                raise Unauthorized
            page_token = await console.token(session)
        except Unauthorized:
            return Answer(b'{"error":{"code":401,"message":"Please sign in"}}', 401).response()
        found = {"accessToken": page_token.value, "expiresIn": page_token.expires_in, "build": build}
        return secret_answer(found).response()

    @routes.post(f"{HOME}/sign-out")
    async def sign_out() -> Response:
        form, session = await FormData.of_request(), await browsers.session()
        answer = redirect(sign_in_address(accounts_path, HOME), 303)
        if session is not None and session.proves(form.text("csrf"), PROOF):
            await sessions.end(session.id)
            browsers.forget(answer)
            answer.headers["Clear-Site-Data"] = '"cache"'  # so that the back button shows no page of the old session
        return answer

    @routes.get(f"{HOME}/enter")
    async def enter() -> Response:
        """Sign in with a one-time link, which works on the machine of the daemon only."""
        if is_head() or not remote_address().startswith(_LOOPBACK):
            raise NotFound
        try:
            session = await console.enter(
                request.args.get("code", ""),
                Visitor(remote_address(), user_agent()),
                instead_of=browsers.session_id or None,
            )
        except ConsoleLinkOver as over:
            if await browsers.session() is not None:  # the link was opened again in the browser that it signed in
                return redirect(HOME)
            return error_page(over.status, str(over))
        except CodeWanted as wanted:
            query = urlencode({CONSOLE_PARAMETER: HOME}).encode()
            answer = redirect(f"{accounts_path}/login/code?{urlencode(continuation(None, query))}", 303)
            browsers.wait_for_code(answer, wanted)
            return answer
        answer = redirect(HOME, 303)
        browsers.remember(answer, session)
        return answer
