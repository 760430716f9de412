"""Requests for the WebSocket paths that ask for no WebSocket (reference 19.1)."""

from typing import Final

from quart import Quart, request
from werkzeug.exceptions import MethodNotAllowed

from protocols.http.answers import REST_ROOT

#: front_door.py gives the upgrades of these paths to the WebSocket server, so Quart has no routes for them.
_PATHS: Final = frozenset({f"{REST_ROOT}/websocket", f"{REST_ROOT}/live", f"{REST_ROOT}/events"})


def install_websocket_paths(app: Quart) -> None:
    """Answer other methods than GET with 405. A GET without an upgrade is 404, as for any path without a route."""
    app.before_request(_refuse_other_methods)


async def _refuse_other_methods() -> None:
    if request.method not in {"GET", "OPTIONS"} and request.path.rstrip("/") in _PATHS:
        raise MethodNotAllowed(["GET"])
