"""/account/before: what an address had been used for before its owner proved to own it (reference 4.2)."""

from urllib.parse import urlencode

from quart import Blueprint, Response, request

from broker.accounts.claims import Claim, Claims
from protocols.http.accounts.browsers import ACCOUNT_PARAMETER, Browsers
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import notice, pages_blueprint, render_page
from protocols.http.accounts.second_factor import way_on_from
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
                way_on=("/account", "To your account"),
            )
        return claim_page(
            "Your account is new", session.user, claim, way_on=way_on_from(FormData(request.query_string))
        )

    return routes


def claim_page(title: str, user: UserRecord, claim: Claim, *, way_on: tuple[str, str]) -> Response:
    """Page with the objects of a claimed account. `way_on`: a path, and the text of the link to it."""
    return render_page("claimed.html", title=title, user=user, claim=claim, way_on=way_on)
