"""The accounts server, under /accounts or on a listener of its own.

Tokens, what is known of them, how clients find all that, and the pages.

What `/authorize` and the pages stand on is broker/accounts/authorize.py, sessions.py and device_codes.py.
"""

from quart import Quart

from broker.services import Services
from broker.site import AccountsRoot
from protocols.http.accounts import strays
from protocols.http.accounts.accept_share import accept_share_blueprint
from protocols.http.accounts.browsers import Browsers
from protocols.http.accounts.caching import ROOT_SETTING, forbid_storing
from protocols.http.accounts.departures import Departures
from protocols.http.accounts.discovery import discovery_blueprint
from protocols.http.accounts.external import external_blueprint
from protocols.http.accounts.go import go_blueprint
from protocols.http.accounts.information import information_blueprint
from protocols.http.accounts.not_yet import not_yet_blueprint
from protocols.http.accounts.pages import style_blueprint
from protocols.http.accounts.reset import reset_blueprint
from protocols.http.accounts.sign_in import Steps, sign_in_blueprint
from protocols.http.accounts.sign_out import check_session_blueprint, sign_out_blueprint
from protocols.http.accounts.sign_up import sign_up_blueprint
from protocols.http.accounts.token import token_blueprint
from protocols.http.accounts.upgrade import upgrade_blueprint
from protocols.http.guard import Guard


def install(app: Quart, services: Services, root: AccountsRoot) -> None:
    """The accounts paths at `root`. What they lead to is there, too, whoever else has them elsewhere."""
    app.config[ROOT_SETTING] = root.path
    app.after_request(forbid_storing)
    strays.install(app)
    browsers = Browsers(
        services.accounts.sessions,
        root,
        signup_open=services.accounts.sign_up.is_open,
        providers=services.accounts.external.names,
    )
    departures = Departures(services.accounts.external, browsers, root)
    steps = Steps(services.accounts.authorize, browsers, departures)
    for blueprint in (
        token_blueprint(services.accounts.grants.at(root)),
        information_blueprint(
            services.accounts.tokens, Guard(services.accounts.tokens, services.registration.admission)
        ),
        sign_in_blueprint(steps, services.accounts.sessions, browsers),
        go_blueprint(services.accounts.device_codes, browsers),
        sign_up_blueprint(
            steps, services.accounts.sign_up, services.accounts.invitations, services.accounts.sessions, browsers
        ),
        reset_blueprint(services.accounts.resets, browsers),
        accept_share_blueprint(services.devices.shares, browsers),
        upgrade_blueprint(services.monetization.payments),
        not_yet_blueprint(),
        external_blueprint(steps, departures, services.accounts.external, services.accounts.sessions, browsers),
        sign_out_blueprint(services.accounts.applications, services.accounts.sessions, browsers),
        check_session_blueprint(browsers),
        style_blueprint(),
    ):
        app.register_blueprint(blueprint, url_prefix=root.path or None)
    app.register_blueprint(discovery_blueprint(root))
