"""The pages of the second factor (reference 4.9): its code at the sign-in, setting it up and removing it."""

from io import BytesIO
from typing import Final
from urllib.parse import urlencode, urlsplit

import segno
from quart import Blueprint, Response, request

from broker.accounts.authorize import AuthorizationRequest
from broker.accounts.one_time_codes import WrongCode
from broker.accounts.second_factors import AuthenticatorOffer, OfferOver, SecondFactors
from broker.accounts.sessions import Session, Sessions, SignInAgain
from broker.errors import Conflict, DomainError, TooManyAttempts
from broker.site import AccountsRoot
from broker.words import Words
from protocols.http.accounts.browsers import ACCOUNT_PARAMETER, Browsers, remote_address, user_agent
from protocols.http.accounts.caching import account_page, accounts_path
from protocols.http.accounts.forms import FormData, in_address
from protocols.http.accounts.go import after_sign_in
from protocols.http.accounts.pages import is_head, pages_blueprint, redirect, render_page
from protocols.http.accounts.sign_in import SIGN_IN_WANTED, AuthorizationFlow

#: After the sign-in, the browser comes back to this page.
_BACK_HERE: Final = urlencode({ACCOUNT_PARAMETER: "second-factor"}).encode()
ONCE_MORE: Final = "Please sign in once more before you change how you sign in."


def sign_in_code_blueprint(flow: AuthorizationFlow, sessions: Sessions, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("sign_in_code")

    def code_page(
        asked: AuthorizationRequest | None,
        query: bytes,
        *,
        status: int = 200,
        problem: str = "",
        refused: DomainError | None = None,
    ) -> Response:
        return browsers.form_page("code.html", query, status=status, asked=asked, problem=problem, refused=refused)

    @routes.get("/login/code")
    async def show() -> Response:
        given = FormData(request.query_string)
        query = given.query("continue")
        asked = await flow.read_continued(given)
        if isinstance(asked, Response):
            return asked
        if not await sessions.is_waiting(browsers.waiting):
            return browsers.sign_in_page(query, asked=asked)
        return code_page(asked, query)

    @routes.post("/login/code")
    async def enter() -> Response:
        form = await FormData.of_request()
        query = form.query("continue")
        asked = await flow.read_continued(form)
        if isinstance(asked, Response):
            return asked
        if not browsers.waiting and (session := await browsers.session()) is not None:  # entered it in another tab
            return await flow.signed_in(asked, query, session)
        if not browsers.showed_form(form.text("csrf")):
            return code_page(asked, query, status=403, problem=browsers.why_not_shown)
        try:
            session = await sessions.finish(
                browsers.waiting,
                form.text("code"),
                address=remote_address(),
                instead_of=browsers.session_id,
                user_agent=user_agent(),
            )
        except SignInAgain as refused:
            return browsers.sign_in_page(query, asked=asked, refused=refused)
        except (WrongCode, TooManyAttempts) as refused:
            return code_page(asked, query, refused=refused)
        return await flow.signed_in(asked, query, session)

    return routes


def second_factor_blueprint(factors: SecondFactors, browsers: Browsers, root: AccountsRoot) -> Blueprint:
    routes = pages_blueprint("second_factor")

    def issuer() -> str:
        return f"Trunkline {urlsplit(root.url).hostname or ''}".strip()

    async def fresh_session() -> Session | Response:
        """The session, or the sign-in form: a change of how to sign in needs a sign-in just before."""
        session = await browsers.session_to_enrol()
        if session is not None and factors.is_fresh(session):
            return session
        return browsers.sign_in_page(_BACK_HERE, problem=ONCE_MORE if session is not None else "")

    def offer_page(
        session: Session, offer: AuthenticatorOffer, given: FormData, refused: DomainError | None = None
    ) -> Response:
        return render_page(
            "second_factor.html",
            refused=refused,
            user=session.user,
            wanted=session.must_enrol,
            secret=offer.secret,
            picture=_picture(offer.address),
            offer=offer.sealed,
            page=given.text("page"),
            query=given.text("continue"),
            csrf=session.proof(b"second factor"),
        )

    @routes.get("/account/second-factor")
    async def show() -> Response:
        session = await fresh_session()
        if isinstance(session, Response):
            return session
        if is_head() or (await factors.standing(session.user.key)).created_on is not None:
            return redirect(account_page())
        return offer_page(session, factors.offer(session, issuer=issuer()), FormData(request.query_string))

    @routes.post("/account/second-factor")
    async def set_up() -> Response:
        form = await FormData.of_request()
        session = await fresh_session()
        if isinstance(session, Response):
            return session
        offer = form.text("offer")
        try:
            if not session.proves(form.text("csrf"), b"second factor"):
                raise OfferOver
            codes = await factors.enrol(session, offer, form.text("code"))
        except (WrongCode, OfferOver) as refused:
            return offer_page(session, factors.offer_again(session, offer, issuer=issuer()), form, refused)
        except Conflict:
            return redirect(account_page(), 303)
        return render_page("recovery_codes.html", codes=codes, next_link=next_link_of(form))

    return routes


def next_link_of(form: FormData) -> tuple[str, str]:
    """The way on after a page in between: a path, and the text of the link."""
    query, root = form.query("continue"), accounts_path()
    match form.text("page"):
        case "authorize":
            return f"{root}/authorize?{in_address(query, but=SIGN_IN_WANTED)}", Words("Continue")
        case "go" if (path := after_sign_in(query)) != f"{root}/account/second-factor":
            return path, Words("Continue")
        case _:
            return account_page(), Words("Continue to your account")


def _picture(address: str) -> str:
    """The QR code as an SVG element: black on white, also in the dark scheme, because cameras need that."""
    out = BytesIO()
    code = segno.make(address, error="l", micro=False)
    code.save(
        out,
        kind="svg",
        xmldecl=False,
        svgns=False,
        nl=False,
        omitsize=True,
        border=4,
        light="#fff",
        svgclass="qr",
        lineclass=None,
    )
    return out.getvalue().decode()
