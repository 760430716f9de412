"""/authorize and its forms: sign-in and consent (reference 4.2)."""

from typing import Final
from urllib.parse import urlencode

from quart import Blueprint, Response, g, request

from broker.accounts.authorize import AuthorizationRequest, Authorize
from broker.accounts.consent import ConsentScreen
from broker.accounts.hashing import TooBusy
from broker.accounts.sessions import CodeWanted, Session, Sessions, WrongPassword
from broker.errors import TooManyAttempts
from config.mail import folded_address
from protocols.http.accounts.browsers import OLD_FORM, Browsers, continuation, remote_address, user_agent
from protocols.http.accounts.caching import accounts_path
from protocols.http.accounts.forms import FormData, as_field, csrf_subject, in_address
from protocols.http.accounts.go import CHANGED, redirect_to_go
from protocols.http.accounts.pages import (
    is_head,
    outcome_response,
    pages_blueprint,
    redirect,
    render_page,
    screen_values,
)
from protocols.http.accounts.provider_redirects import ProviderRedirects

#: The parameters of a request by which a person has to sign in although there is a session.
SIGN_IN_WANTED: Final = ("prompt", "max_age")


def sign_in_blueprint(flow: "AuthorizationFlow", sessions: Sessions, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("sign_in")

    @routes.get("/authorize")
    async def authorize_() -> Response:
        return await flow.begin(request.query_string)

    @routes.get("/signin")
    async def signin() -> Response:
        return await flow.begin(request.query_string, login_wanted=True)

    @routes.post("/login")
    async def login() -> Response:
        form = await FormData.of_request()
        asked = await flow.read_continued(form)
        if isinstance(asked, Response):
            return asked
        try:
            session = await _sign_in(form, sessions, browsers, asked)
        except CodeWanted as wanted:
            return flow.ask_for_code(asked, form.query("continue"), wanted)
        if isinstance(session, Response):
            return session
        return await flow.signed_in(asked, form.query("continue"), session)

    @routes.post("/consent")
    async def consent() -> Response:
        form = await FormData.of_request()
        asked = await flow.read(form.query("continue"))
        return asked if isinstance(asked, Response) else await flow.decide(asked, form)

    return routes


class AuthorizationFlow:
    """The steps from an application's authorization request to its redirect."""

    def __init__(self, authorize: Authorize, browsers: Browsers, external: ProviderRedirects) -> None:
        self._authorize = authorize
        self._browsers = browsers
        self._external = external

    async def begin(self, query: bytes, *, login_wanted: bool = False) -> Response:
        asked = await self.read(query)
        if isinstance(asked, Response):
            return asked
        login_wanted = login_wanted or asked.login_wanted
        session = await self._browsers.session()
        if session is not None and self._authorize.is_too_old(asked, session.created_on):
            login_wanted = True
        if asked.silent and (session is None or login_wanted):
            return outcome_response(asked.error("login_required"))
        if session is not None and not login_wanted and not is_head():
            return await self.go_on(asked, session)
        if asked.account_type in self._external.names and not is_head():
            return await self._external.redirect(asked.account_type, asked, query, login_wanted=login_wanted)
        return self._browsers.sign_in_page(asked.query, asked=asked, login_wanted=login_wanted)

    async def read(self, query: bytes) -> AuthorizationRequest | Response:
        """The valid request, or the answer to an invalid one."""
        decided = await self._authorize.read(query)
        if not isinstance(decided, AuthorizationRequest):
            return outcome_response(decided)
        g.asked = decided
        return decided

    async def read_continued(self, form: FormData) -> AuthorizationRequest | Response | None:
        """The request in a form's `continue`, or the answer to an invalid one; None if the form leads to /go."""
        return None if form.text("page") == "go" else await self.read(form.query("continue"))

    async def signed_in(self, asked: AuthorizationRequest | None, query: bytes, session: Session) -> Response:
        """The answer to a sign-in, with the session cookie. `asked` is None when the person goes on at /go.

        A user who must set up a second factor first is led there.
        """
        if session.must_enrol:
            answer = redirect(page_address("/account/second-factor", asked, query), 303)
        elif asked is None:
            answer = redirect_to_go(query)
        elif await self._authorize.consent_needed(asked, session.user.key) is None:
            answer = await self._allow(asked, session, agreed=None)
        else:
            # Redirect to the consent page: if it were the answer to the form, reloading it would post the password.
            answer = redirect(f"{accounts_path()}/authorize?{signed_in_address(asked, query)}", 303)
        self._browsers.remember(answer, session)
        return answer

    def ask_for_code(self, asked: AuthorizationRequest | None, query: bytes, wanted: CodeWanted) -> Response:
        """The answer to a sign-in that lacks the second factor."""
        answer = redirect(page_address("/login/code", asked, query), 303)
        self._browsers.wait_for_code(answer, wanted)
        return answer

    async def go_on(self, asked: AuthorizationRequest, session: Session) -> Response:
        """The answer to a person who is signed in: the consent page, or the redirect to the application."""
        screen = await self._authorize.consent_needed(asked, session.user.key)
        if screen is not None and asked.silent:
            return outcome_response(asked.error("consent_required"))
        if screen is not None:
            return _consent_page(asked, session, screen)
        return await self._allow(asked, session, agreed=None)

    async def _allow(self, asked: AuthorizationRequest, session: Session, *, agreed: ConsentScreen | None) -> Response:
        outcome = await self._authorize.allow(asked, session.user.key, agreed=agreed, signed_in_on=session.created_on)
        if isinstance(outcome, ConsentScreen):
            if asked.silent:
                return outcome_response(asked.error("consent_required"))
            return _consent_page(asked, session, outcome, status=409, problem=CHANGED)
        return outcome_response(outcome)

    async def decide(self, asked: AuthorizationRequest, form: FormData) -> Response:
        session = await self._browsers.session()
        if session is None:
            return self._browsers.sign_in_page(asked.query, asked=asked)
        screen = await self._authorize.consent_needed(asked, session.user.key)
        if screen is None:  # the person agreed in another window, or the application has changed
            refused = form.text("decision") == "deny"
            if refused:
                return outcome_response(await self._authorize.deny(asked))
            return await self.go_on(asked, session)
        if not session.proves(form.text("csrf"), *csrf_subject("consent", screen), asked.query):
            return _consent_page(asked, session, screen, status=403, problem=OLD_FORM)
        match form.text("decision"):
            case "allow":
                return await self._allow(asked, session, agreed=screen)
            case "deny":
                return outcome_response(await self._authorize.deny(asked))
            case _:
                return _consent_page(asked, session, screen, status=400, problem="Please choose Allow or Deny.")


def _consent_page(
    asked: AuthorizationRequest, session: Session, screen: ConsentScreen, *, status: int = 200, problem: str = ""
) -> Response:
    return render_page(
        "consent.html",
        status,
        asked=asked,
        problem=problem,
        **screen_values(screen),
        user=session.user,
        query=as_field(asked.query),
        csrf=session.proof(*csrf_subject("consent", screen), asked.query),
    )


def signed_in_address(asked: AuthorizationRequest, query: bytes) -> str:
    """The request for an address, without the parts that ask for the sign-in which the person has just done."""
    kept = in_address(query, but=SIGN_IN_WANTED)
    return f"{kept}&prompt=consent" if asked.consent_wanted else kept


def page_address(path: str, asked: AuthorizationRequest | None, query: bytes) -> str:
    """A page of the sign-in, from which the person goes on with the request `asked`, or at /go."""
    return f"{accounts_path()}{path}?{urlencode(continuation(asked, query), encoding='latin-1')}"


async def _sign_in(
    form: FormData, sessions: Sessions, browsers: Browsers, asked: AuthorizationRequest | None = None
) -> Session | Response:
    """The session, or the form once more. Raises CodeWanted."""
    name, query = form.text("email"), form.query("continue")
    if not browsers.showed_form(form.text("csrf")):
        session = await _of_other_tab(name, browsers, asked)
        if session is not None:
            return session
        return browsers.sign_in_page(query, status=403, asked=asked, name=name, problem=browsers.why_not_shown)
    try:
        return await sessions.sign_in(
            name,
            form.text("password"),
            address=remote_address(),
            instead_of=browsers.session_id,
            user_agent=user_agent(),
        )
    except (WrongPassword, TooManyAttempts, TooBusy) as refused:
        return browsers.sign_in_page(query, asked=asked, name=name, refused=refused)


async def _of_other_tab(name: str, browsers: Browsers, asked: AuthorizationRequest | None) -> Session | None:
    """The session of a person who signed in in another tab and now does so here: signing in there used the
    form's key up. Going on with the session is what opening the page once more would do."""
    session = await browsers.session()
    if session is None or (asked is not None and asked.login_wanted):
        return None
    return session if folded_address(name) in {folded_address(session.user.email), session.user.name} else None
