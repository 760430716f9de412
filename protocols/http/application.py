"""The one Quart application: REST under /v1.1, accounts under /accounts, and the console at the root."""

import re
from collections.abc import Callable
from typing import Any, Final, Never

from quart import Response, request
from quart.routing import QuartRule
from quart_trio import QuartTrio
from quart_trio.wrappers import TrioRequest
from werkzeug.exceptions import MethodNotAllowed

from broker.registration.certificates import ClientCertificate
from broker.services import Services
from broker.trace.origin import Origin, enter
from config.limits import MAX_BODY_BYTES
from protocols.http import answers, errors
from protocols.http.accounts import install_accounts
from protocols.http.allowances import Allowances, paths_by_address
from protocols.http.answers import REST_ROOT
from protocols.http.bodies import body_within
from protocols.http.console.pages import console_blueprint
from protocols.http.dispatch import Dispatcher
from protocols.http.docs.pages import docs_blueprint
from protocols.http.fast_path import FastPath
from protocols.http.guard import Guard
from protocols.http.health import health_blueprint
from protocols.http.hooks import hooks_blueprint
from protocols.http.openapi.serving import ALL_NOUNS
from protocols.http.request_context import CERTIFICATE_KEY, RequestContext, set_current_request
from protocols.http.rest.named import Named
from protocols.http.upstream import upstream_blueprint
from protocols.metrics.vitals import Traffic, Vitals
from protocols.roots import usual_root
from protocols.streams.proxies import TrustedProxies

CALLS: Final = tuple(call for noun in ALL_NOUNS for call in noun.declared())
_BY_ADDRESS: Final = paths_by_address(CALLS)
_UPLOAD: Final = re.compile("/v1.1/devicemgmt/devicetypes/[^/]+/images/?")
_BODY_SECONDS: Final = 30
_FAST: Final = "fast_calls"
_ALLOWANCES: Final = "allowances"
_ANSWER_SECONDS: Final = 60
#: server.py gives the upgrades of these paths to the WebSocket server, so Quart has no routes for them.
_WEBSOCKET_PATHS: Final = frozenset({f"{REST_ROOT}/websocket", f"{REST_ROOT}/live", f"{REST_ROOT}/events", "/mqtt"})


class _Route(QuartRule):
    """A route from which no URL is built: this product writes its links itself.

    Werkzeug compiles two Python functions for the URLs of each route, which is nine tenths of the time that its 300
    routes take, and a third of the daemon's start.
    """

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:  # noqa: ARG002 - Werkzeug gives it
        return _no_url


def _no_url(*_values: object, **_names: object) -> Never:
    raise NotImplementedError("routes of this application build no URLs")


def build_app(services: Services, *, is_secure: bool = False, vitals: Vitals | None = None) -> QuartTrio:
    """Build the application of a listener. On the secure listener devices register with their certificates."""
    app = _new_app(services, has_websockets=True)
    guard = _guard(services)
    dispatcher = Dispatcher(guard, Named(services), services.core.peers)
    dispatcher.install(app, [noun.built_for(services) for noun in ALL_NOUNS], is_secure=is_secure)
    app.extensions[_FAST] = dispatcher.fast
    site, settings = services.core.site, services.core.settings
    browsers = install_accounts(app, services, site.accounts, (lambda: site.origin) if is_secure else str)
    if not is_secure:  # that listener is for devices with certificates
        app.register_blueprint(hooks_blueprint(services, app.extensions[_ALLOWANCES]))
        if settings.mcp.tools != "off":
            from protocols.http.mcp.serving import mcp_blueprint  # noqa: PLC0415 - most daemons do not need it

            app.register_blueprint(mcp_blueprint(services, dispatcher.fast, guard))
        app.register_blueprint(
            console_blueprint(services.accounts, browsers, site, settings, services.found, services.boards)
        )
        app.register_blueprint(upstream_blueprint(services, app.extensions[_ALLOWANCES]))
    app.register_blueprint(docs_blueprint(site))
    app.register_blueprint(health_blueprint(vitals or Vitals(services.core)))
    return app


def build_accounts_app(services: Services) -> QuartTrio:
    """Build the application of the accounts listener: only the accounts paths, at the root."""
    app = _new_app(services)
    site = services.core.site
    install_accounts(app, services, site.own_accounts, lambda: site.origin)
    return app


def _guard(services: Services) -> Guard:
    return Guard(services.accounts.tokens, services.registration.admission, services.limits.meters)


def fast_path(app: QuartTrio, services: Services, traffic: Traffic, *, hsts_seconds: int = 0) -> FastPath:
    """The fast path to the calls of this application. All other requests go to the application."""
    return FastPath(
        app,
        app.extensions.get(_FAST, {}),
        app.extensions[_ALLOWANCES],
        services.core.refusals,
        traffic,
        TrustedProxies.of(services.core.settings),
        hsts_seconds=hsts_seconds,
        is_moving=services.core.life.moving.is_set,
    )


def _new_app(services: Services, *, has_websockets: bool = False) -> QuartTrio:
    # Without an `instance_path` Quart looks for one on the whole import path.
    app = QuartTrio("trunkline", root_path="/", instance_path="/", static_folder=None)
    app.url_rule_class = _Route
    # A trailing slash is ignored and nothing is redirected (reference 1.3 and 1.4).
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.request_class = _request_class(services.core.settings.device_management.image_max_bytes)
    app.config["BODY_TIMEOUT"] = _BODY_SECONDS
    app.config["RESPONSE_TIMEOUT"] = _ANSWER_SECONDS
    errors.install_error_handlers(app, services.core.refusals)
    allowances = app.extensions[_ALLOWANCES] = Allowances(services.limits, _BY_ADDRESS)

    # One function before and one after all requests: Quart takes 10 µs for each of them.
    async def before() -> Response | None:
        _begin()
        allowances.count_tokenless()  # also what is answered here
        return answers.answer_preflight() or (_answer_other_methods() if has_websockets else None)

    async def after(answer: Response) -> Response:
        answers.add_cors(answer)
        allowances.add_headers(answer)
        return answer

    app.before_request(before)
    app.after_request(after)
    return app


def _request_class(image_max_bytes: int) -> type[TrioRequest]:
    """Requests whose body may be as long as a firmware image where one is uploaded. (Quart has one limit for all.)"""

    class Request(TrioRequest):
        def __init__(
            self, method: str, scheme: str, path: str, *more: Any, max_content_length: int | None = None, **named: Any
        ) -> None:
            path = usual_root(path)
            if method == "POST" and _UPLOAD.fullmatch(path) is not None:
                max_content_length = image_max_bytes
            super().__init__(method, scheme, path, *more, max_content_length=max_content_length, **named)

    return Request


def _begin() -> None:
    """A request that Quart has read, for the rules that do not know Quart: they may use `current_request`."""
    address = request.remote_addr or ""
    shown = request.scope.get("state", {}).get(CERTIFICATE_KEY)
    set_current_request(
        RequestContext(
            method=request.method,
            address=address,
            authorization=request.headers.get("Authorization", ""),
            query=request.query_string,
            certificate=shown if isinstance(shown, ClientCertificate) else None,
            read_body=body_within,
            headers=request.scope["headers"],
        )
    )
    enter(Origin(address))  # what the request leads to, comes from its client


def _answer_other_methods() -> Response | None:
    """Answer requests for WebSocket paths that ask for none (reference 19.1): other methods than GET with 405, and
    OPTIONS as on any REST path (reference 1.4).

    A GET or HEAD without an upgrade is 404, as for any path without a route. Raises MethodNotAllowed.
    """
    if request.method in {"GET", "HEAD"} or request.path.rstrip("/") not in _WEBSOCKET_PATHS:
        return None
    if request.method == "OPTIONS":
        return answers.preflight_answer()
    raise MethodNotAllowed(["GET"])
