"""POST /hooks/<name>/<secret>: messages of topic devices that come as calls of others (reference 16.8).

The secret is in the path because most products can name nothing but an address. It is never logged, and the settings
have its hash only.
"""

from typing import Final

from quart import Blueprint, Response

from broker.errors import NotFound
from broker.services import Services
from config.limits import TOPIC_DEVICE_PAYLOAD_BYTES
from protocols.http.allowances import Allowances
from protocols.http.answers import json_answer
from protocols.http.bodies import body_within
from protocols.http.request_context import current_request
from protocols.streams.peers import authenticated

_NOTHING: Final = {"data": {"stored": 0}}


def hooks_blueprint(services: Services, allowances: Allowances) -> Blueprint:
    routes = Blueprint("hooks", __name__)
    intake, ingest = services.topic_devices.intake, services.messages.ingest

    @routes.post("/hooks/<name>/<secret>")
    async def receive(name: str, secret: str) -> Response:
        try:
            intake.check(name, secret)
        except NotFound:
            allowances.count_address(current_request().address)
            raise
        authenticated()
        intake.count(name)
        body = await body_within(TOPIC_DEVICE_PAYLOAD_BYTES)
        if not ingest.has_room:
            await ingest.wait_room()
        if (ticket := await intake.receive(name, body)) is None:
            return json_answer(_NOTHING)
        group = ingest.group
        await ingest.wait_committed()
        return json_answer({"data": {"stored": 1, "mid": ingest.mid(group.position(ticket))}})

    return routes
