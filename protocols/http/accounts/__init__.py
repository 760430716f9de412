"""The accounts server under /accounts: tokens, what is known of them, how clients find all that, and the pages.

What `/authorize` and the pages stand on is broker/accounts/authorize.py, sessions.py and device_codes.py.
"""

from quart import Quart

from broker.services import Services
from protocols.http.accounts.browsers import Browsers
from protocols.http.accounts.caching import ACCOUNTS_ROOT, forbid_storing
from protocols.http.accounts.discovery import discovery_blueprint
from protocols.http.accounts.go import go_blueprint
from protocols.http.accounts.information import information_blueprint
from protocols.http.accounts.pages import style_blueprint
from protocols.http.accounts.sign_in import Steps, sign_in_blueprint
from protocols.http.accounts.sign_out import check_session_blueprint, sign_out_blueprint
from protocols.http.accounts.sign_up import sign_up_blueprint
from protocols.http.accounts.token import token_blueprint
from protocols.http.guard import Guard


def install(app: Quart, services: Services) -> None:
    app.after_request(forbid_storing)
    browsers = Browsers(services.sessions, services.site, signup_open=services.sign_up.is_open)
    steps = Steps(services.authorize, browsers)
    for blueprint in (
        token_blueprint(services.grants),
        information_blueprint(services.tokens, Guard(services.tokens)),
        sign_in_blueprint(steps, services.sessions, browsers),
        go_blueprint(services.device_codes, browsers),
        sign_up_blueprint(steps, services.sign_up, services.sessions, browsers),
        sign_out_blueprint(services.applications, services.sessions, browsers),
        check_session_blueprint(browsers),
        style_blueprint(),
    ):
        app.register_blueprint(blueprint, url_prefix=ACCOUNTS_ROOT)
    app.register_blueprint(discovery_blueprint(services.site))
