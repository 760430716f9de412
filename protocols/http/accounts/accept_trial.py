"""/accept/trial (reference 2.1), which answers 501 because this version has no trials."""

from quart import Blueprint, Response

from broker.errors import NotInThisVersion
from protocols.http.accounts.pages import pages_blueprint


def accept_trial_blueprint() -> Blueprint:
    routes = pages_blueprint("accept_trial")

    @routes.get("/accept/trial")
    async def accept_trial() -> Response:
        raise NotInThisVersion("Trials")

    return routes
