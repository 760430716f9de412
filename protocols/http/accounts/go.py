"""/go, where a person types the code that a device shows (reference 4.4)."""

from typing import Literal
from urllib.parse import urlencode

from quart import Blueprint, Response, request

from broker.accounts.device_codes import DeviceCodes, UserCodeNotFound, WaitingDevice
from broker.accounts.sessions import Session
from broker.errors import DomainError, TooManyAttempts
from protocols.http.accounts.browsers import SHARE, Browsers
from protocols.http.accounts.caching import accounts_path
from protocols.http.accounts.forms import Form
from protocols.http.accounts.pages import page, pages_blueprint, redirect_to
from protocols.http.body import Query

CHANGED = "This application asks for something else by now. Please look at it again."
_OLD_FORM = "This form is no longer valid. Please enter the code again."


def go_blueprint(device_codes: DeviceCodes, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("go")

    @routes.get("/go")
    async def show() -> Response:
        """With `prompt=login`, also somebody who is signed in may be somebody else."""
        session, query = await browsers.session(), Query.of_request()
        login_wanted = query.text("prompt") == "login"
        if session is None or login_wanted:
            return browsers.sign_in_page("go", request.query_string, login_wanted=login_wanted)
        return _code_page(session, query.text("user_code") or "")

    @routes.post("/go")
    async def enter() -> Response:
        form = await Form.of_request()
        code, csrf = form.text("user_code").strip(), form.text("csrf")
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page("go", urlencode({"user_code": code}).encode())
        try:
            match form.text("decision"):
                case "allow" | "deny" as decision:
                    return await _decide(device_codes, session, code, csrf, decision)
                case _ if session.proves(csrf, b"go"):
                    return _confirm_page(session, await device_codes.find(code, address=_address()))
                case _:
                    return _code_page(session, code, status=403, problem=_OLD_FORM)
        except (UserCodeNotFound, TooManyAttempts) as refused:
            return _code_page(session, code, refused=refused)

    return routes


def go_page(query: bytes) -> Response:
    """Where whoever signed in goes on; nothing but the code is taken over."""
    if (share := Query(query).text(SHARE)) is not None:
        return redirect_to(f"{accounts_path()}/accept/share?{urlencode({'code': share})}")
    code = Query(query).text("user_code")
    return redirect_to(f"{accounts_path()}/go" + (f"?{urlencode({'user_code': code})}" if code else ""))


async def _decide(
    device_codes: DeviceCodes, session: Session, code: str, csrf: str, decision: Literal["allow", "deny"]
) -> Response:
    waiting = await device_codes.find(code, address=_address())
    if not session.proves(csrf, *_about(waiting)):
        return _code_page(session, code, status=403, problem=_OLD_FORM)
    if decision == "allow":
        instead = await device_codes.approve(waiting, session.user.key, address=_address())
        if instead is not None:
            return _confirm_page(session, instead, problem=CHANGED)
    else:
        await device_codes.deny(waiting.user_code, session.user.key, address=_address())
    return page("done.html", application=waiting.screen.application, allowed=decision == "allow")


def _code_page(
    session: Session, code: str, *, status: int = 200, problem: str = "", refused: DomainError | None = None
) -> Response:
    return page(
        "go.html", status, refused=refused, problem=problem, user=session.user, code=code, csrf=session.proof(b"go")
    )


def _confirm_page(session: Session, waiting: WaitingDevice, *, problem: str = "") -> Response:
    return page(
        "confirm.html",
        409 if problem else 200,
        problem=problem,
        user=session.user,
        code=waiting.user_code,
        screen=waiting.screen,
        csrf=session.proof(*_about(waiting)),
    )


def _about(waiting: WaitingDevice) -> tuple[bytes, ...]:
    """Whoever agrees, agrees to what was on the screen."""
    return b"device", repr(waiting).encode()


def _address() -> str:
    return request.remote_addr or ""
