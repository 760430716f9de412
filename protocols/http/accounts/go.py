"""/go, the page where a person types the user code that a device shows (reference 4.4)."""

import re
from typing import Final, Literal
from urllib.parse import urlencode

from quart import Blueprint, Response, request

from broker.accounts.device_codes import DeviceCodes, UserCodeNotFound, WaitingDevice
from broker.accounts.sessions import Session
from broker.errors import DomainError, TooManyAttempts
from protocols.http.accounts.browsers import (
    ACCOUNT_PARAMETER,
    CONSOLE_PARAMETER,
    LABEL_PARAMETER,
    SHARE_PARAMETER,
    TRIAL_PARAMETER,
    Browsers,
    remote_address,
)
from protocols.http.accounts.caching import account_page, accounts_path
from protocols.http.accounts.forms import FormData, csrf_subject
from protocols.http.accounts.pages import pages_blueprint, redirect, render_page, screen_values
from protocols.http.reading import Query

CHANGED = "This application asks for something else by now. Please look at it again."
_CONSOLE_PAGE: Final = re.compile(r"/(?:console|developer|operator)(?:/\w[\w.-]{0,63}){0,3}", re.ASCII)
_ACCOUNT_PAGES: Final = frozenset({"second-factor", "before", "automations"})
_OLD_FORM = "This form is no longer valid. Please enter the code again."


def go_blueprint(device_codes: DeviceCodes, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("go")

    @routes.get("/go")
    async def show() -> Response:
        """Show the page. With `prompt=login`, a person who is signed in may sign in with another account."""
        session, query = await browsers.session(), Query.of_request()
        login_wanted = query.text("prompt") == "login"
        if session is None or login_wanted:
            return browsers.sign_in_page(request.query_string, login_wanted=login_wanted)
        page = console_page(query.text(CONSOLE_PARAMETER))
        return _code_page(session, query.text("user_code") or "") if page is None else redirect(page)

    @routes.post("/go")
    async def enter() -> Response:
        form = await FormData.of_request()
        code, csrf = form.text("user_code").strip(), form.text("csrf")
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(urlencode({"user_code": code}).encode())
        try:
            match form.text("decision"):
                case "allow" | "deny" as decision:
                    return await _decide(device_codes, session, code, csrf, decision)
                case _ if session.proves(csrf, b"go"):
                    return _confirm_page(session, await device_codes.find(code, address=remote_address()))
                case _:
                    return _code_page(session, code, status=403, problem=_OLD_FORM)
        except (UserCodeNotFound, TooManyAttempts) as refused:
            return _code_page(session, code, refused=refused)

    return routes


def redirect_to_go(query: bytes) -> Response:
    """The redirect after the sign-in."""
    return redirect(after_sign_in(query))


def console_page(given: str | None) -> str | None:
    """The path of a page of the console, if the text is one: it came from outside, and a redirect leads to it."""
    return given if given is not None and _CONSOLE_PAGE.fullmatch(given) else None


def after_sign_in(query: bytes) -> str:
    """The path on which a person goes on who came with the query string of /go. Only known parts are taken."""
    given, root = Query(query), accounts_path()
    if (page := console_page(given.text(CONSOLE_PARAMETER))) is not None:
        return page
    if (share := given.text(SHARE_PARAMETER)) is not None:
        return f"{root}/accept/share?{urlencode({'code': share})}"
    if (label := given.text(LABEL_PARAMETER)) is not None:
        return f"{root}/accept/label?{urlencode({'code': label})}"
    if (trial := given.text(TRIAL_PARAMETER)) is not None:
        return f"{root}/accept/trial?{urlencode({'code': trial})}"
    if (place := given.text(ACCOUNT_PARAMETER)) is not None:
        return f"{root}/account/{place}" if place in _ACCOUNT_PAGES else account_page()
    code = given.text("user_code")
    return f"{root}/go?{urlencode({'user_code': code})}" if code else f"{root}/go"


async def _decide(
    device_codes: DeviceCodes, session: Session, code: str, csrf: str, decision: Literal["allow", "deny"]
) -> Response:
    waiting = await device_codes.find(code, address=remote_address())
    if not session.proves(csrf, *csrf_subject("device", waiting)):
        return _code_page(session, code, status=403, problem=_OLD_FORM)
    if decision == "allow":
        instead = await device_codes.approve(waiting, session.user.key, address=remote_address())
        if instead is not None:
            return _confirm_page(session, instead, problem=CHANGED)
    else:
        await device_codes.deny(waiting.user_code, session.user.key, address=remote_address())
    return render_page("done.html", application=waiting.screen.application, allowed=decision == "allow")


def _code_page(
    session: Session, code: str, *, status: int = 200, problem: str = "", refused: DomainError | None = None
) -> Response:
    return render_page(
        "go.html", status, refused=refused, problem=problem, user=session.user, code=code, csrf=session.proof(b"go")
    )


def _confirm_page(session: Session, waiting: WaitingDevice, *, problem: str = "") -> Response:
    return render_page(
        "confirm.html",
        409 if problem else 200,
        problem=problem,
        user=session.user,
        code=waiting.user_code,
        **screen_values(waiting.screen),
        csrf=session.proof(*csrf_subject("device", waiting)),
    )
