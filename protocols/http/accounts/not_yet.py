"""Pages of reference 2.1 that this version does not have."""

from quart import Blueprint, Response

from broker.errors import NotInThisVersion
from protocols.http.accounts.pages import pages_blueprint


def not_yet_blueprint() -> Blueprint:
    routes = pages_blueprint("pages_not_yet")

    @routes.get("/accept/trial")
    async def accept_trial() -> Response:
        raise NotInThisVersion("Trials")

    return routes
