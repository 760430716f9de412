"""Requests for the WebSocket paths that ask for no WebSocket (reference 19.1)."""

from typing import Final

from quart import Response, request
from werkzeug.exceptions import MethodNotAllowed

from protocols.http.answers import REST_ROOT, preflight_answer

#: front_door.py gives the upgrades of these paths to the WebSocket server, so Quart has no routes for them.
_PATHS: Final = frozenset({f"{REST_ROOT}/websocket", f"{REST_ROOT}/live", f"{REST_ROOT}/events", "/mqtt"})


def answer_other_methods() -> Response | None:
    """Answer other methods than GET with 405, and OPTIONS as on any REST path (reference 1.4).

    A GET or HEAD without an upgrade is 404, as for any path without a route. Raises MethodNotAllowed.
    """
    if request.method in {"GET", "HEAD"} or request.path.rstrip("/") not in _PATHS:
        return None
    if request.method == "OPTIONS":
        return preflight_answer()
    raise MethodNotAllowed(["GET"])
