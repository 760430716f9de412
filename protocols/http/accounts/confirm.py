"""/account/confirm: a person who is signed in proves to own the address of the account (reference 4.8)."""

from urllib.parse import urlencode

from quart import Blueprint, Response

from broker.accounts.confirmations import Confirmations
from broker.errors import LinkOver
from broker.words import Words
from protocols.http.accounts.browsers import ACCOUNT_PARAMETER, OLD_FORM, Browsers
from protocols.http.accounts.caching import account_page
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import is_head, notice, pages_blueprint, redirect
from protocols.http.reading import Query
from protocols.http.texts import reason_of

_TO_ACCOUNT = ("/account", "To your account")


def confirm_blueprint(confirmations: Confirmations, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("confirm")
    back_here = urlencode({ACCOUNT_PARAMETER: "1"}).encode()

    @routes.post("/account/confirm")
    async def ask() -> Response:
        form = await FormData.of_request()
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(back_here)
        if not session.proves(form.text("csrf"), b"account"):
            return notice("Once more, please", OLD_FORM, status=403, next_link=_TO_ACCOUNT)
        await confirmations.ask(session.user)
        return notice(
            "Look into your mail",
            Words("A mail with a link is on its way to {address}.", address=session.user.email),
            "Open the link in this browser, within a day.",
            next_link=_TO_ACCOUNT,
        )

    @routes.get("/account/confirm")
    async def confirm() -> Response:
        session = await browsers.session()
        if session is None:
            problem = "Please sign in. Then open the link in your mail once more."
            return browsers.sign_in_page(back_here, problem=problem)
        if is_head():
            return redirect(account_page())
        await confirmations.confirm(session.user, Query.of_request().text("code") or "")
        return notice(
            "Your address is confirmed", Words("{address} is yours.", address=session.user.email), next_link=_TO_ACCOUNT
        )

    @routes.errorhandler(LinkOver)
    async def over(refused: LinkOver) -> Response:
        explained = "It is good for a day, and for the account with which you asked for it."
        return notice("Too late", reason_of(refused), explained, status=refused.status, next_link=_TO_ACCOUNT)

    return routes
