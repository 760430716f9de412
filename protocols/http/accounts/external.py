"""/external: redirects to an identity provider, and its redirect back (reference 4.2, `account_type`)."""

from quart import Blueprint, Response, request

from broker.accounts.external import AuthenticationResponse, ExternalSignIn
from broker.accounts.external_refusals import EmailNotVerified, NoAccountHere, ProviderRefused, ProviderUnavailable
from broker.accounts.hashing import TooBusy
from broker.accounts.sessions import AccountDisabled, CodeWanted, Proof, Sessions, Visitor
from broker.errors import Conflict
from protocols.http.accounts.browsers import Browsers, remote_address, user_agent
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import error_page, is_head, pages_blueprint, redirect
from protocols.http.accounts.provider_redirects import CALLBACK, ProviderRedirects
from protocols.http.accounts.sign_in import AuthorizationFlow, page_address


def external_blueprint(
    flow: AuthorizationFlow,
    provider_redirects: ProviderRedirects,
    external: ExternalSignIn,
    sessions: Sessions,
    browsers: Browsers,
) -> Blueprint:
    routes = pages_blueprint("external")

    @routes.get("/external")
    async def to_provider() -> Response:
        """The address of the links "Sign in with …" on the sign-in page."""
        given = FormData(request.query_string)
        query = given.query("continue")
        asked = await flow.read_continued(given)
        if isinstance(asked, Response):
            return asked
        if is_head():
            return browsers.sign_in_page(query, asked=asked)
        return await provider_redirects.redirect(
            given.text("provider"), asked, query, login_wanted=bool(given.text("login"))
        )

    @routes.get(CALLBACK)
    async def callback() -> Response:
        if is_head():
            return error_page(400, "This address is for browsers on their way.")
        given = FormData(request.query_string)
        begun = await external.resume(given.text("state"), browser_key=browsers.key)
        query = begun.next_page.query
        asked = None if begun.next_page.place == "go" else await flow.read(query)
        if isinstance(asked, Response):
            return asked
        response = AuthenticationResponse(
            given.text("state"), given.text("code") or None, given.text("error") or None, given.text("iss") or None
        )
        try:
            found = await external.finish(begun, response)
        except (ProviderRefused, ProviderUnavailable, EmailNotVerified, NoAccountHere, Conflict, TooBusy) as refused:
            return browsers.sign_in_page(query, asked=asked, refused=refused)
        try:
            session = await sessions.begin(
                found.user,
                proof=Proof.PROVIDER,
                instead_of=browsers.session_id,
                visitor=Visitor(remote_address(), user_agent()),
            )
        except CodeWanted as wanted:
            return flow.ask_for_code(asked, query, wanted)
        except AccountDisabled as refused:
            return browsers.sign_in_page(query, asked=asked, refused=refused)
        if found.is_claim:
            answer = redirect(page_address("/account/before", asked, query), 303)
            browsers.remember(answer, session)
            return answer
        return await flow.signed_in(asked, query, session)

    return routes
