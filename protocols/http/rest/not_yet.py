"""Paths of reference 2 that this version does not serve: clients learn that, not that they mistyped a path."""

from collections.abc import Awaitable, Callable
from typing import Final

from quart import Blueprint, Response

from broker.errors import NotInThisVersion
from protocols.http.guard import APPLICATION, DEVICE, USER, Guard

_ANY: Final = ("GET", "POST", "PUT", "DELETE")
_ONE: Final = ("GET", "PUT", "DELETE")

#: reference 2, by capability: methods and path.
PATHS: Final[dict[str, tuple[tuple[tuple[str, ...], str], ...]]] = {
    "Subscriptions": (
        (("GET", "POST"), "/subscriptions"),
        (("GET", "DELETE"), "/subscriptions/<id_>"),
        (("POST",), "/subscriptions/<id_>/validate"),
        (("GET",), "/subscriptions/<id_>/deliveries"),
        (("GET",), "/notifications/<id_>/messages"),
    ),
    "Rules": (
        (("GET", "POST"), "/rules"),
        (_ONE, "/rules/<id_>"),
        (("GET", "POST"), "/rules/<id_>/actions"),
        (("GET",), "/rules/<id_>/executions"),
        (("GET",), "/users/<user_id>/rules"),
    ),
    "Scenes": (
        (("GET", "POST"), "/scenes"),
        (_ANY, "/scenes/<id_>"),
        (("GET",), "/users/<user_id>/scenes"),
    ),
    "Models": (
        (("GET", "POST"), "/ml/models"),
        (("GET", "DELETE"), "/ml/models/<id_>"),
        (("POST",), "/ml/models/<id_>/predict"),
    ),
    "Device management": (
        (("GET",), "/devicemgmt/devices/properties"),
        (("GET",), "/devicemgmt/devices/<id_>/properties"),
        (("POST", "DELETE"), "/devicemgmt/devices/<id_>/serverproperties"),
        (("GET", "PUT"), "/devicemgmt/devicetypes/<id_>"),
        (("GET",), "/devicemgmt/devicetypes/<id_>/manifest/properties"),
        (("GET", "POST"), "/devicemgmt/tasks"),
        (("GET", "PUT"), "/devicemgmt/tasks/<id_>"),
        (("GET",), "/devicemgmt/tasks/<id_>/statuses"),
        (("GET",), "/devicemgmt/tasks/<id_>/statuses/history"),
        (("PUT",), "/devicemgmt/tasks/<id_>/devices/<device_id>"),
        (("POST",), "/devicemgmt/tasks/<id_>/devices/<device_id>/acceptance"),
        (("GET",), "/devicemgmt/devices/<id_>/tasks"),
        (("GET",), "/devicemgmt/devices/<id_>/pendingtasks"),
        (("GET",), "/updates/urls/<id_>"),
    ),
    "Trials": (
        (("POST",), "/trials"),
        (_ONE, "/trials/<id_>"),
        (("PUT",), "/trials/<id_>/application"),
        (("GET", "POST"), "/trials/<id_>/invitations"),
        (_ONE, "/trials/<id_>/invitations/<invitation_id>"),
        (("GET",), "/trials/<id_>/administrators"),
        (("GET",), "/trials/<id_>/participants"),
        (("DELETE",), "/trials/<id_>/administrators/<user_id>"),
        (("DELETE",), "/trials/<id_>/participants/<user_id>"),
        (("GET",), "/trials/<id_>/devices"),
        (("GET", "POST"), "/trials/<id_>/participants/<user_id>/devices"),
        (("DELETE",), "/trials/<id_>/participants/<user_id>/devices/<device_id>"),
        (("GET", "POST"), "/trials/<id_>/devicetypes"),
        (("DELETE",), "/trials/<id_>/devicetypes/<type_id>"),
        (("GET",), "/users/<user_id>/trials"),
    ),
}
_WITHOUT_TOKEN: Final = frozenset({"/subscriptions/<id_>/validate", "/updates/urls/<id_>"})


def not_yet_blueprint(guard: Guard) -> Blueprint:
    routes = Blueprint("not_yet", __name__)
    for capability, paths in PATHS.items():
        for methods, path in paths:
            routes.add_url_rule(path, path, _refusal(capability, guard, path not in _WITHOUT_TOKEN), methods=methods)
    return routes


def _refusal(capability: str, guard: Guard, needs_token: bool) -> Callable[..., Awaitable[Response]]:
    async def refuse(**_names: str) -> Response:
        if needs_token:
            await guard.caller(USER, APPLICATION, DEVICE)
        raise NotInThisVersion(capability)

    return refuse
