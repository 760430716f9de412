"""/account/automations: the rules and subscriptions that applications made for a person, and one button that ends all.

A new password ends what applications may do; what they made goes on until the person ends it (reference 4.2).
"""

from urllib.parse import urlencode

from quart import Blueprint, Response

from broker.accounts.sessions import Session
from broker.rules.rulebook import Rulebook
from broker.subscriptions.subscriptions import Subscriptions
from protocols.http.accounts.browsers import ACCOUNT_PARAMETER, OLD_FORM, Browsers
from protocols.http.accounts.caching import accounts_path
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import pages_blueprint, redirect, render_page


def automations_blueprint(rulebook: Rulebook, subscriptions: Subscriptions, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("automations")
    back_here = urlencode({ACCOUNT_PARAMETER: "automations"}).encode()

    async def page(session: Session, *, status: int = 200, problem: str = "") -> Response:
        user = session.user
        return render_page(
            "automations.html",
            status,
            problem=problem,
            user=user,
            rules=await rulebook.made_by_applications(user.key),
            subscriptions=await subscriptions.made_for(user.key),
            csrf=session.proof(b"automations"),
        )

    @routes.get("/account/automations")
    async def show() -> Response:
        session = await browsers.session()
        return browsers.sign_in_page(back_here) if session is None else await page(session)

    @routes.post("/account/automations")
    async def end() -> Response:
        form = await FormData.of_request()
        session = await browsers.session()
        if session is None:
            return browsers.sign_in_page(back_here)
        if not session.proves(form.text("csrf"), b"automations"):
            return await page(session, status=403, problem=OLD_FORM)
        await rulebook.end_made_by_applications(session.user.key)
        await subscriptions.end_made_for(session.user.key)
        return redirect(f"{accounts_path()}/account/automations", 303)

    return routes
