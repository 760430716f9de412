"""/account/before: what an address had been used for before its owner proved to own it (reference 4.2)."""

from urllib.parse import urlencode

from quart import Blueprint, Response, request

from broker.accounts.claims import Claim, Claims
from protocols.http.accounts.browsers import ACCOUNT_PARAMETER, Browsers
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import notice, pages_blueprint, render_page
from protocols.http.accounts.second_factor import next_link_of
from storage.records import UserRecord


def claims_blueprint(claims: Claims, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("claims")
    back_here = urlencode({ACCOUNT_PARAMETER: "before"}).encode()

    @routes.get("/account/before")
    async def show() -> Response:
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(back_here)
        claim = await claims.of(session.user.key)
        if claim is None:
            return notice(
                "Nothing was there before",
                "You opened this account yourself, and nobody used its address before.",
                next_link=("/account", "To your account"),
            )
        return claim_page(
            "Your account is new", session.user, claim, next_link=next_link_of(FormData(request.query_string))
        )

    return routes


def claim_page(title: str, user: UserRecord, claim: Claim, *, next_link: tuple[str, str]) -> Response:
    """Page with the objects of a claimed account. `next_link`: a path, and the text of the link to it."""
    return render_page("claimed.html", title=title, user=user, claim=claim, next_link=next_link)
