"""/account: it leads to the page of the account in the console, whose forms come here (reference 4.9)."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

import msgspec
from quart import Blueprint, Response

from broker.accounts.open_sessions import OpenSession, OpenSessions
from broker.accounts.room import AccountsRoom
from broker.accounts.second_factors import FactorStanding, SecondFactors
from broker.accounts.sessions import Session
from protocols.http.accounts.browsers import ACCOUNT_PARAMETER, OLD_FORM, Browsers
from protocols.http.accounts.caching import account_page
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import notice, pages_blueprint, redirect
from protocols.http.accounts.second_factor import ONCE_MORE
from protocols.http.texts import said

#: Subject of the forms' CSRF tokens.
_PROOF: Final = b"account"
#: Texts in a user agent, and the browser's name for each: the first match counts, because many name others, too.
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


class AccountFacts(msgspec.Struct, frozen=True):
    """Contents of the account page before its scripts run; its forms are sent to the paths below."""

    factor: FactorStanding
    sessions: Sequence[OpenSession]
    is_claimed: bool  # the address belonged to another account before
    csrf: str

    @staticmethod
    def day(at_ms: int) -> str:
        """A time for a person to read, in UTC."""
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")

    @staticmethod
    def browser_name(user_agent: str) -> str:
        return browser_name(user_agent)


async def facts_of(accounts: AccountsRoom, session: Session) -> AccountFacts:
    return AccountFacts(
        factor=await accounts.second_factors.standing(session.user.key),
        sessions=await accounts.open_sessions.of(session.user),
        is_claimed=await accounts.claims.of(session.user.key) is not None,
        csrf=session.proof(_PROOF),
    )


def account_blueprint(sessions: OpenSessions, factors: SecondFactors, browsers: Browsers) -> Blueprint:
    """The page itself is in the console; without scripts it has these forms."""
    routes = pages_blueprint("account")
    back_here = urlencode({ACCOUNT_PARAMETER: "1"}).encode()

    @routes.get("/account")
    async def show() -> Response:
        return redirect(account_page())

    def old_form() -> Response:
        return notice("Once more, please", OLD_FORM, status=403, next_link=("/account", "To your account"))

    @routes.post("/account/sessions")
    async def end() -> Response:
        form = await FormData.of_request()
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(back_here)
        if not session.proves(form.text("csrf"), _PROOF):
            return old_form()
        await sessions.end(session.user, form.text("session"))
        return redirect(account_page(), 303)

    @routes.post("/account/second-factor/remove")
    async def remove() -> Response:
        form = await FormData.of_request()
        session = await browsers.session()
        if session is None or not factors.is_fresh(session):
            return browsers.sign_in_page(back_here, problem=ONCE_MORE if session is not None else "")
        if not session.proves(form.text("csrf"), _PROOF):
            return old_form()
        await factors.remove(session)
        return redirect(account_page(), 303)

    return routes


def browser_name(user_agent: str) -> str:
    """A short name for a person to recognize: `Firefox on Linux`; what the browser calls itself if that is unknown."""
    browser, system = (
        next((name for mark, name in known if mark in user_agent), "") for known in (_BROWSERS, _SYSTEMS)
    )
    if browser and system:
        return said("{browser} on {system}", browser=browser, system=system)
    return user_agent or said("Unknown browser")
