"""/signup, for people who open an account where sign-up is open, or with an invitation (reference 4.2)."""

from dataclasses import dataclass

from quart import Blueprint, Response, request

from broker.accounts.authorize import AuthorizationRequest
from broker.accounts.claims import Claims
from broker.accounts.hashing import TooBusy
from broker.accounts.invitations import AccountInvitations
from broker.accounts.sessions import Sessions, Visitor
from broker.accounts.sign_up import SignUp
from broker.errors import DomainError, EmailTaken, LinkOver, NotFound, TooManyAttempts, ValidationFailed
from broker.words import Words
from protocols.http.accounts.browsers import Browsers, remote_address, user_agent
from protocols.http.accounts.caching import accounts_path
from protocols.http.accounts.claims import claim_page
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import notice, pages_blueprint
from protocols.http.accounts.sign_in import AuthorizationFlow
from protocols.http.reading import Query
from protocols.http.texts import reason_of


def sign_up_blueprint(
    flow: AuthorizationFlow,
    sign_up: SignUp,
    invitations: AccountInvitations,
    claims: Claims,
    sessions: Sessions,
    browsers: Browsers,
) -> Blueprint:
    routes = pages_blueprint("sign_up")
    invited = _Invited(flow, invitations, claims, sessions, browsers)

    def form_page(
        asked: AuthorizationRequest | None,
        form: FormData,
        query: bytes,
        *,
        status: int = 200,
        problem: str = "",
        refused: DomainError | None = None,
    ) -> Response:
        return browsers.form_page(
            "sign_up.html",
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
        """The query string is that of /authorize or of /go, or has the code of an invitation."""
        if (code := Query.of_request().text("code")) is not None:
            return await invited.show(code, FormData(b""))
        if not sign_up.is_open:
            raise NotFound
        asked = await flow.read(request.query_string)
        return form_page(None if isinstance(asked, Response) else asked, FormData(b""), request.query_string)

    @routes.errorhandler(LinkOver)
    async def over(refused: LinkOver) -> Response:
        return notice(
            "Too late", reason_of(refused), "Ask whoever invited you for another mail.", status=refused.status
        )

    @routes.post("/signup")
    async def open_account() -> Response:
        form = await FormData.of_request()
        if form.text("code"):
            return await invited.accept(form)
        if not sign_up.is_open:
            raise NotFound
        query = form.query("continue")
        asked = await flow.read_continued(form)
        if isinstance(asked, Response):
            return asked
        if not browsers.showed_form(form.text("csrf")):
            return form_page(asked, form, query, status=403, problem=browsers.why_not_shown)
        try:
            user = await sign_up.open_account(
                email=form.text("email"),
                password=form.text("password"),
                full_name=form.text("fullName"),
                address=remote_address(),
            )
        except (ValidationFailed, EmailTaken, TooManyAttempts, TooBusy) as refused:
            return form_page(asked, form, query, refused=refused)
        session = await sessions.begin(
            user, instead_of=browsers.session_id, visitor=Visitor(remote_address(), user_agent())
        )
        return await flow.signed_in(asked, query, session)

    return routes


@dataclass(eq=False)
class _Invited:
    """Opening an account with the code of an invitation mail, which fixes the e-mail address."""

    _flow: AuthorizationFlow
    _invitations: AccountInvitations
    _claims: Claims
    _sessions: Sessions
    _browsers: Browsers

    async def show(
        self, code: str, form: FormData, *, status: int = 200, problem: str = "", refused: DomainError | None = None
    ) -> Response:
        invitation = await self._invitations.find(code)
        return self._browsers.form_page(
            "accept_invitation.html",
            status=status,
            problem=problem,
            refused=refused,
            email=invitation.email,
            full_name=form.text("fullName"),
            code=code,
        )

    async def accept(self, form: FormData) -> Response:
        code = form.text("code")
        if not self._browsers.showed_form(form.text("csrf")):
            return await self.show(code, form, status=403, problem=self._browsers.why_not_shown)
        try:
            user = await self._invitations.accept(code, password=form.text("password"), full_name=form.text("fullName"))
        except (ValidationFailed, EmailTaken, TooBusy) as refused:
            return await self.show(code, form, refused=refused)
        session = await self._sessions.begin(
            user, instead_of=self._browsers.session_id, visitor=Visitor(remote_address(), user_agent())
        )
        if session.must_enrol:
            return await self._flow.signed_in(None, b"", session)
        claim = await self._claims.of(user.key)
        if claim is not None:
            answer = claim_page(
                Words("Welcome"), user, claim, next_link=(f"{accounts_path()}/go", Words("Connect a device"))
            )
        else:
            answer = notice(
                "Welcome",
                Words("Your account is open. You are signed in as {address}.", address=user.email),
                console=("", "Open the console"),
                next_link=("/go", "Connect a device that shows a code"),
            )
        self._browsers.remember(answer, session)
        return answer
