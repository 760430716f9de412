"""/external: the way to an identity provider and back (reference 4.2, `account_type`)."""

from quart import Blueprint, Response, request

from broker.accounts.external import Arrival, ExternalSignIn
from broker.accounts.external_refusals import EmailNotVerified, NoAccountHere, ProviderRefused, ProviderUnavailable
from broker.accounts.hashing import TooBusy
from broker.accounts.sessions import Sessions
from broker.errors import Conflict
from protocols.http.accounts.browsers import Browsers
from protocols.http.accounts.departures import CALLBACK, Departures
from protocols.http.accounts.forms import Form
from protocols.http.accounts.pages import error_page, only_looks, pages_blueprint
from protocols.http.accounts.sign_in import Steps


def external_blueprint(
    steps: Steps, departures: Departures, external: ExternalSignIn, sessions: Sessions, browsers: Browsers
) -> Blueprint:
    routes = pages_blueprint("external")

    @routes.get("/external")
    async def leave() -> Response:
        """What a link of the sign-in page leads to."""
        given = Form(request.query_string)
        query = given.query("continue")
        asked = None if given.text("page") == "go" else await steps.read(query)
        if isinstance(asked, Response):
            return asked
        if only_looks():
            return browsers.sign_in_page("go" if asked is None else "authorize", query, asked=asked)
        return await departures.leave(given.text("provider"), asked, query, login_wanted=bool(given.text("login")))

    @routes.get(CALLBACK)
    async def arrive() -> Response:
        if only_looks():
            return error_page(400, "This address is for browsers on their way.")
        given = Form(request.query_string)
        returned = await external.resume(given.text("state"), browser_key=browsers.key)
        place, query = returned.journey.place, returned.journey.query
        asked = None if place == "go" else await steps.read(query)
        if isinstance(asked, Response):
            return asked
        arrival = Arrival(
            given.text("state"), given.text("code") or None, given.text("error") or None, given.text("iss") or None
        )
        try:
            user = await external.finish(returned, arrival)
        except (ProviderRefused, ProviderUnavailable, EmailNotVerified, NoAccountHere, Conflict, TooBusy) as refused:
            return browsers.sign_in_page(place, query, asked=asked, refused=refused)
        session = await sessions.begin(user, instead_of=browsers.session_id)
        return await steps.signed_in(asked, query, session)

    return routes
