"""The one Quart application: REST under /v1.1 and accounts under /accounts (the console joins it here)."""

from quart_trio import QuartTrio

from broker.services import Services
from config.limits import MAX_BODY_BYTES
from protocols.http import accounts, answers, errors
from protocols.http.guard import Guard
from protocols.http.rest.accounts import rest_accounts_blueprint
from protocols.http.rest.actions import actions_blueprint
from protocols.http.rest.analytics import analytics_blueprint
from protocols.http.rest.devices import devices_blueprint
from protocols.http.rest.export import export_blueprint
from protocols.http.rest.messages import messages_blueprint
from protocols.http.rest.users import users_blueprint

_BODY_SECONDS = 30
_ANSWER_SECONDS = 60


def build_app(services: Services) -> QuartTrio:
    app = QuartTrio("trunkline", root_path="/", static_folder=None)
    # A trailing slash is ignored and nothing is redirected (compatibility.md 1.3 and 1.4).
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.config["BODY_TIMEOUT"] = _BODY_SECONDS
    app.config["RESPONSE_TIMEOUT"] = _ANSWER_SECONDS
    errors.install(app)
    app.before_request(answers.answer_preflight)
    app.after_request(answers.add_cors)
    guard = Guard(services.tokens)
    for blueprint in (
        messages_blueprint(services, guard),
        actions_blueprint(services, guard),
        analytics_blueprint(services, guard),
        export_blueprint(services.exports, guard),
        devices_blueprint(services, guard),
        users_blueprint(services, guard),
        rest_accounts_blueprint(services, guard),
    ):
        app.register_blueprint(blueprint, url_prefix=answers.REST_ROOT)
    accounts.install(app, services)
    return app
