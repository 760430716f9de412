"""/signup, where the operator lets people open accounts for themselves (compatibility.md 4.2)."""

from quart import Blueprint, Response, request

from broker.accounts.authorize import AuthorizationRequest
from broker.accounts.sessions import Sessions
from broker.accounts.sign_up import SignUp
from broker.errors import DomainError, EmailTaken, NotFound, TooManyAttempts, ValidationFailed
from protocols.http.accounts.browsers import Browsers, Place
from protocols.http.accounts.forms import Form
from protocols.http.accounts.go import go_page
from protocols.http.accounts.pages import pages_blueprint
from protocols.http.accounts.sign_in import OLD_FORM, Steps


def sign_up_blueprint(steps: Steps, sign_up: SignUp, sessions: Sessions, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("sign_up")

    def form_page(
        asked: AuthorizationRequest | None,
        form: Form,
        query: bytes,
        *,
        status: int = 200,
        problem: str = "",
        refused: DomainError | None = None,
    ) -> Response:
        place: Place = "go" if asked is None else "authorize"
        if isinstance(refused, ValidationFailed):
            status, problem, refused = refused.status, _text_of(refused), None
        return browsers.form_page(
            "sign_up.html",
            place,
            query,
            status=status,
            asked=asked,
            problem=problem,
            refused=refused,
            email=form.text("email"),
            full_name=form.text("fullName"),
        )

    @routes.get("/signup")
    async def show() -> Response:
        """The query is that of /authorize, or else of /go."""
        if not sign_up.is_open:
            raise NotFound
        asked = await steps.read(request.query_string)
        return form_page(None if isinstance(asked, Response) else asked, Form(b""), request.query_string)

    @routes.post("/signup")
    async def open_account() -> Response:
        if not sign_up.is_open:
            raise NotFound
        form = await Form.of_request()
        query = form.query("continue")
        asked = None if form.text("page") == "go" else await steps.read(query)
        if isinstance(asked, Response):
            return asked
        if not browsers.showed_form(form.text("csrf")):
            return form_page(asked, form, query, status=403, problem=OLD_FORM)
        try:
            user = await sign_up.open_account(
                email=form.text("email"),
                password=form.text("password"),
                full_name=form.text("fullName"),
                address=request.remote_addr or "",
            )
        except (ValidationFailed, EmailTaken, TooManyAttempts) as refused:
            return form_page(asked, form, query, refused=refused)
        session = await sessions.begin(user, instead_of=browsers.session_id)
        answer = go_page(query) if asked is None else await steps.go_on(asked, session)
        browsers.remember(answer, session)
        return answer

    return routes


def _text_of(refused: ValidationFailed) -> str:
    return " ".join(message for finding in refused.findings for message in finding.messages)
