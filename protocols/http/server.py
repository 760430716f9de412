"""The one Quart application: REST under /v1.1 and accounts under /accounts (the console joins it here)."""

from quart_trio import QuartTrio

from broker.services import Services
from config.limits import MAX_BODY_BYTES
from protocols.http import answers, errors
from protocols.http.accounts import install_accounts
from protocols.http.allowances import Allowances
from protocols.http.docs.pages import docs_blueprint
from protocols.http.guard import Guard
from protocols.http.openapi.serving import openapi_blueprint
from protocols.http.rest.accounts import rest_accounts_blueprint
from protocols.http.rest.actions import actions_blueprint
from protocols.http.rest.analytics import analytics_blueprint
from protocols.http.rest.approved_lists import approved_certificates_blueprint, approved_lists_blueprint
from protocols.http.rest.cloud_connectors import cloud_connectors_blueprint
from protocols.http.rest.device_shares import device_shares_blueprint
from protocols.http.rest.device_status import device_status_blueprint
from protocols.http.rest.device_tokens import device_tokens_blueprint
from protocols.http.rest.device_types import device_types_blueprint
from protocols.http.rest.devices import devices_blueprint
from protocols.http.rest.export import export_blueprint
from protocols.http.rest.manifests import manifests_blueprint
from protocols.http.rest.messages import messages_blueprint
from protocols.http.rest.not_yet import not_yet_blueprint
from protocols.http.rest.pricing import pricing_blueprint
from protocols.http.rest.provider_auth import provider_auth_blueprint
from protocols.http.rest.registrations import device_registrations_blueprint, registrations_blueprint
from protocols.http.rest.tags import tags_blueprint
from protocols.http.rest.user_devices import user_devices_blueprint
from protocols.http.rest.users import users_blueprint

_BODY_SECONDS = 30
_ANSWER_SECONDS = 60


def build_app(services: Services, *, is_secure: bool = False) -> QuartTrio:
    """`is_secure` is for the listener where devices register with their certificates."""
    app = _new_app(services)
    guard = Guard(services.accounts.tokens, services.registration.admission, services.limits.meters)
    for blueprint in (
        registrations_blueprint(services, guard),
        approved_lists_blueprint(services, guard),
        approved_certificates_blueprint(services, guard),
        messages_blueprint(services, guard),
        actions_blueprint(services, guard),
        analytics_blueprint(services, guard),
        export_blueprint(services.export, guard),
        devices_blueprint(services, guard),
        device_tokens_blueprint(services, guard),
        device_shares_blueprint(services, guard),
        device_status_blueprint(services, guard),
        pricing_blueprint(services, guard),
        provider_auth_blueprint(services, guard),
        cloud_connectors_blueprint(services),
        device_types_blueprint(services, guard),
        manifests_blueprint(services, guard),
        tags_blueprint(services, guard),
        users_blueprint(services, guard),
        user_devices_blueprint(services, guard),
        not_yet_blueprint(guard),
        openapi_blueprint(services.core.site),
        rest_accounts_blueprint(services, Guard(services.accounts.tokens, services.registration.admission)),
    ):
        app.register_blueprint(blueprint, url_prefix=answers.REST_ROOT)
    if is_secure:
        app.register_blueprint(device_registrations_blueprint(services), url_prefix=answers.REST_ROOT)
    install_accounts(app, services, services.core.site.accounts)
    app.register_blueprint(docs_blueprint(services.core.site))
    return app


def build_accounts_app(services: Services) -> QuartTrio:
    """The accounts paths alone, at the root."""
    app = _new_app(services)
    install_accounts(app, services, services.core.site.own_accounts)
    return app


def _new_app(services: Services) -> QuartTrio:
    app = QuartTrio("trunkline", root_path="/", static_folder=None)
    # A trailing slash is ignored and nothing is redirected (reference 1.3 and 1.4).
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.config["BODY_TIMEOUT"] = _BODY_SECONDS
    app.config["RESPONSE_TIMEOUT"] = _ANSWER_SECONDS
    errors.install(app)
    Allowances(services).install(app)
    app.before_request(answers.answer_preflight)
    app.after_request(answers.add_cors)
    return app
