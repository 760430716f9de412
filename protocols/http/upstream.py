"""POST /v1.1/forwarded: batches of stores that forward to this one, and the Actions for their devices (reference 30.3).

The token is that of the edge, which the operator has made; it is good for nothing else.
"""

from typing import Final, TypeVar

import msgspec
import trio
from quart import Blueprint, Response

from broker.errors import BadRequest, Unauthorized, ValidationFailed, invalid
from broker.forwarding.wire import ACTIONS_PATH, PATH, ActionsAsked, ForwardAsked
from broker.nesting import check_nesting
from broker.services import Services
from broker.trace.origin import Origin, current_origin, enter
from config.limits import FORWARD_BODY_BYTES
from protocols.http.allowances import Allowances
from protocols.http.answers import json_answer
from protocols.http.bodies import body_within
from protocols.http.guard import token_in_header
from protocols.http.request_context import current_request
from protocols.streams.peers import authenticated
from storage.forwarding import EdgeRecord

_T = TypeVar("_T")
_ASKED_BYTES: Final = 4 * 1024


def upstream_blueprint(services: Services, allowances: Allowances) -> Blueprint:
    routes = Blueprint("upstream", __name__)
    forwarding, edges = services.forwarding, services.forwarding.edges

    async def edge_of_request() -> EdgeRecord:
        token = token_in_header()
        try:
            if token is None:
                raise Unauthorized
            edge = await edges.authenticate(token)
        except Unauthorized:
            allowances.count_address(current_request().address)
            raise
        authenticated()
        enter(Origin(current_origin().address, f"edge {edge.name}"))
        return edge

    @routes.post(PATH)
    async def receive() -> Response:
        edge = await edge_of_request()
        asked = _decoded(await body_within(FORWARD_BODY_BYTES), ForwardAsked)
        if asked.batch is not None:
            return json_answer({"data": msgspec.to_builtins(await forwarding.batches.receive(edge, asked.batch))})
        if asked.store is None:
            raise ValidationFailed.of("store", invalid("is required, unless there is a batch"))
        if asked.types is not None:
            taken = await forwarding.edge_types.take(edge, asked.store, asked.types)
            return json_answer({"data": msgspec.to_builtins(taken)})
        return json_answer({"data": msgspec.to_builtins(edges.greet(edge, asked.store, asked.known))})

    @routes.post(ACTIONS_PATH)
    async def actions() -> Response:
        edge = await edge_of_request()
        asked = _decoded(await body_within(_ASKED_BYTES), ActionsAsked)
        with trio.CancelScope() as scope:
            services.core.life.end_with_stop(scope)
            try:
                return json_answer({"data": msgspec.to_builtins(await forwarding.edge_actions.next(edge, asked))})
            finally:
                services.core.life.forget(scope)
        return json_answer({"data": {"upto": asked.after or 0, "actions": []}})  # the daemon stops

    return routes


def _decoded(body: bytes, kind: type[_T]) -> _T:
    """Raises BadRequest, ValidationFailed."""
    try:
        check_nesting(body)
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        raise ValidationFailed.of(where.rstrip("`").lstrip(".") or "body", invalid(problem)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest from error
