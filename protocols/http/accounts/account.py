"""/account, where people see where they are signed in, and turn off their second factor (reference 4.9)."""

from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from quart import Blueprint, Response

from broker.accounts.claims import Claims
from broker.accounts.open_sessions import OpenSessions, shown_session_id
from broker.accounts.second_factors import SecondFactors
from broker.accounts.sessions import Session
from broker.secrets import token_hash
from protocols.http.accounts.browsers import ACCOUNT_PARAMETER, Browsers
from protocols.http.accounts.caching import accounts_path
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import pages_blueprint, redirect, render_page
from protocols.http.accounts.second_factor import ONCE_MORE
from protocols.http.accounts.sign_in import OLD_FORM

#: What stands in a user agent, and whose name that is: the first that is there counts, because many name others, too.
_BROWSERS: Final = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("SamsungBrowser/", "Samsung Internet"),
    ("Firefox/", "Firefox"),
    ("FxiOS/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS: Final = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)


def account_blueprint(sessions: OpenSessions, factors: SecondFactors, claims: Claims, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("account")
    back_here = urlencode({ACCOUNT_PARAMETER: "1"}).encode()

    async def page(session: Session, *, status: int = 200, problem: str = "") -> Response:
        return render_page(
            "account.html",
            status,
            problem=problem,
            user=session.user,
            factor=await factors.standing(session.user.key),
            sessions=await sessions.of(session.user),
            this=shown_session_id(token_hash(session.id)),
            claimed=await claims.of(session.user.key) is not None,
            day=_day,
            browser_name=browser_name,
            csrf=session.proof(b"account"),
        )

    @routes.get("/account")
    async def show() -> Response:
        session = await browsers.session()
        return browsers.sign_in_page(back_here) if session is None else await page(session)

    @routes.post("/account/sessions")
    async def end() -> Response:
        form = await FormData.of_request()
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(back_here)
        if not session.proves(form.text("csrf"), b"account"):
            return await page(session, status=403, problem=OLD_FORM)
        await sessions.end(session.user, form.text("session"))
        return redirect(f"{accounts_path()}/account", 303)

    @routes.post("/account/second-factor/remove")
    async def remove() -> Response:
        form = await FormData.of_request()
        session = await browsers.session()
        if session is None or not factors.is_fresh(session):
            return browsers.sign_in_page(back_here, problem=ONCE_MORE if session is not None else "")
        if not session.proves(form.text("csrf"), b"account"):
            return await page(session, status=403, problem=OLD_FORM)
        await factors.remove(session)
        return redirect(f"{accounts_path()}/account", 303)

    return routes


def _day(at_ms: int) -> str:
    """A time for a person to read, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def browser_name(user_agent: str) -> str:
    """A short name for a person to recognize: `Firefox on Linux`; what the browser calls itself if that is unknown."""
    browser, system = (
        next((name for mark, name in known if mark in user_agent), "") for known in (_BROWSERS, _SYSTEMS)
    )
    return f"{browser} on {system}" if browser and system else user_agent or "Unknown browser"
