"""/authorize and its forms: signing in and agreeing (reference 4.2)."""

from quart import Blueprint, Response, g, request

from broker.accounts.authorize import AuthorizationRequest, Authorize
from broker.accounts.consent import ConsentScreen
from broker.accounts.hashing import TooBusy
from broker.accounts.sessions import Session, Sessions, WrongPassword
from broker.errors import TooManyAttempts
from protocols.http.accounts.browsers import Browsers, Place
from protocols.http.accounts.caching import accounts_path
from protocols.http.accounts.departures import Departures
from protocols.http.accounts.forms import Form, as_field, in_address
from protocols.http.accounts.go import CHANGED, go_page
from protocols.http.accounts.pages import only_looks, page, pages_blueprint, redirect_to, told

OLD_FORM = "This form is no longer valid. Please try again; your browser must accept cookies."


def sign_in_blueprint(steps: "Steps", sessions: Sessions, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("sign_in")

    @routes.get("/authorize")
    async def authorize_() -> Response:
        return await steps.begin(request.query_string)

    @routes.get("/signin")
    async def signin() -> Response:
        return await steps.begin(request.query_string, login_wanted=True)

    @routes.post("/login")
    async def login() -> Response:
        form = await Form.of_request()
        to_go = form.text("page") == "go"
        asked = None if to_go else await steps.read(form.query("continue"))
        if isinstance(asked, Response):
            return asked
        session = await _sign_in(form, sessions, browsers, asked)
        if isinstance(session, Response):
            return session
        return await steps.signed_in(asked, form.query("continue"), session)

    @routes.post("/consent")
    async def consent() -> Response:
        form = await Form.of_request()
        asked = await steps.read(form.query("continue"))
        return asked if isinstance(asked, Response) else await steps.decide(asked, form)

    return routes


class Steps:
    """From a request of an application to the answer that it gets."""

    def __init__(self, authorize: Authorize, browsers: Browsers, external: Departures) -> None:
        self._authorize = authorize
        self._browsers = browsers
        self._external = external

    async def begin(self, query: bytes, *, login_wanted: bool = False) -> Response:
        asked = await self.read(query)
        if isinstance(asked, Response):
            return asked
        login_wanted = login_wanted or asked.login_wanted
        session = await self._browsers.session()
        if session is not None and not login_wanted and not only_looks():
            return await self.go_on(asked, session)
        if asked.account_type in self._external.names and not only_looks():
            return await self._external.leave(asked.account_type, asked, query, login_wanted=login_wanted)
        return self._browsers.sign_in_page("authorize", asked.query, asked=asked, login_wanted=login_wanted)

    async def read(self, query: bytes) -> AuthorizationRequest | Response:
        decided = await self._authorize.read(query)
        if not isinstance(decided, AuthorizationRequest):
            return told(decided)
        g.asked = decided
        return decided

    async def signed_in(self, asked: AuthorizationRequest | None, query: bytes, session: Session) -> Response:
        """Where somebody goes on who has just become known. `asked` is None on the way to /go."""
        if asked is None:
            answer = go_page(query)
        elif await self._authorize.consent_needed(asked) is None:
            answer = await self._allow(asked, session, agreed=None)
        else:
            # The screen has an address of its own, or going back to it would mean sending the password once more.
            answer = redirect_to(f"{accounts_path()}/authorize?{in_address(query, but='prompt')}", 303)
        self._browsers.remember(answer, session)
        return answer

    async def go_on(self, asked: AuthorizationRequest, session: Session) -> Response:
        """The person is known. Ask, or else give the application what it wants."""
        screen = await self._authorize.consent_needed(asked)
        if screen is not None:
            return _consent_page(asked, session, screen)
        return await self._allow(asked, session, agreed=None)

    async def _allow(self, asked: AuthorizationRequest, session: Session, *, agreed: ConsentScreen | None) -> Response:
        outcome = await self._authorize.allow(asked, session.user.key, agreed=agreed)
        if isinstance(outcome, ConsentScreen):
            return _consent_page(asked, session, outcome, status=409, problem=CHANGED)
        return told(outcome)

    async def decide(self, asked: AuthorizationRequest, form: Form) -> Response:
        session = await self._browsers.session()
        if session is None:
            return self._browsers.sign_in_page("authorize", asked.query, asked=asked)
        screen = await self._authorize.consent_needed(asked)
        if screen is None:  # meanwhile the application asks for less
            return await self.go_on(asked, session)
        if not session.proves(form.text("csrf"), *_about(asked, screen)):
            return _consent_page(asked, session, screen, status=403, problem=OLD_FORM)
        match form.text("decision"):
            case "allow":
                return await self._allow(asked, session, agreed=screen)
            case "deny":
                return told(self._authorize.deny(asked))
            case _:
                return _consent_page(asked, session, screen, status=400, problem="Please choose Allow or Deny.")


def _consent_page(
    asked: AuthorizationRequest, session: Session, screen: ConsentScreen, *, status: int = 200, problem: str = ""
) -> Response:
    return page(
        "consent.html",
        status,
        asked=asked,
        problem=problem,
        screen=screen,
        user=session.user,
        query=as_field(asked.query),
        csrf=session.proof(*_about(asked, screen)),
    )


def _about(asked: AuthorizationRequest, screen: ConsentScreen) -> tuple[bytes, ...]:
    """Whoever agrees, agrees to this request and to what was on the screen."""
    return b"consent", asked.query, repr(screen).encode()


async def _sign_in(
    form: Form, sessions: Sessions, browsers: Browsers, asked: AuthorizationRequest | None = None
) -> Session | Response:
    """The session, or the form once more."""
    place: Place = "go" if asked is None else "authorize"
    name, query = form.text("email"), form.query("continue")
    if not browsers.showed_form(form.text("csrf")):
        return browsers.sign_in_page(place, query, status=403, asked=asked, name=name, problem=OLD_FORM)
    try:
        return await sessions.sign_in(
            name, form.text("password"), address=request.remote_addr or "", instead_of=browsers.session_id
        )
    except (WrongPassword, TooManyAttempts, TooBusy) as refused:
        return browsers.sign_in_page(place, query, asked=asked, name=name, refused=refused)
