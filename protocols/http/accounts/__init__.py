"""The accounts server, under /accounts or on a listener of its own: token endpoints, discovery, and the pages.

`/authorize` and the pages call broker/accounts/authorize.py, sessions.py and device_codes.py.
"""

from collections.abc import Callable

from quart import Quart

from broker.site import AccountsRoot
from protocols.http.accounts.accept_label import accept_label_blueprint
from protocols.http.accounts.accept_share import accept_share_blueprint
from protocols.http.accounts.accept_trial import accept_trial_blueprint
from protocols.http.accounts.account import account_blueprint
from protocols.http.accounts.alarm import alarm_blueprint
from protocols.http.accounts.automations import automations_blueprint
from protocols.http.accounts.browsers import Browsers
from protocols.http.accounts.caching import CONSOLE_SETTING, ROOT_SETTING, forbid_storing, tell_of_withdrawal
from protocols.http.accounts.claims import claims_blueprint
from protocols.http.accounts.confirm import confirm_blueprint
from protocols.http.accounts.discovery import discovery_blueprint
from protocols.http.accounts.external import external_blueprint
from protocols.http.accounts.go import go_blueprint
from protocols.http.accounts.information import information_blueprint
from protocols.http.accounts.openid import openid_blueprint
from protocols.http.accounts.pages import UNUSED_DAYS_SETTING, style_blueprint
from protocols.http.accounts.provider_redirects import ProviderRedirects
from protocols.http.accounts.reset import reset_blueprint
from protocols.http.accounts.rooms import AccountsServerRooms
from protocols.http.accounts.second_factor import second_factor_blueprint, sign_in_code_blueprint
from protocols.http.accounts.sign_in import AuthorizationFlow, sign_in_blueprint
from protocols.http.accounts.sign_out import check_session_blueprint, sign_out_blueprint
from protocols.http.accounts.sign_up import sign_up_blueprint
from protocols.http.accounts.token import token_blueprint
from protocols.http.accounts.unknown_paths import answer_unknown_paths
from protocols.http.accounts.upgrade import upgrade_blueprint
from protocols.http.guard import Guard


def install_accounts(
    app: Quart, rooms: AccountsServerRooms, root: AccountsRoot, console_origin: Callable[[], str]
) -> Browsers:
    """Register the accounts paths at `root`. Their links and redirects lead to the same root.

    `console_origin` gives where the console is: empty on the same listener.

    Returns what knows the sessions of browsers.
    """
    app.config[ROOT_SETTING] = root.path
    app.config[CONSOLE_SETTING] = console_origin
    app.config[UNUSED_DAYS_SETTING] = rooms.accounts.tokens.unused_days
    app.after_request(forbid_storing)
    app.after_request(tell_of_withdrawal)
    answer_unknown_paths(app)
    accounts = rooms.accounts
    browsers = Browsers(
        accounts.sessions,
        accounts.form_keys,
        root,
        accounts.sign_up.is_open,
        accounts.external.names,
    )
    provider_redirects = ProviderRedirects(accounts.external, browsers, root)
    guard = Guard(accounts.tokens, rooms.registration.admission)
    flow = AuthorizationFlow(accounts.authorize, browsers, provider_redirects)
    for blueprint in (
        token_blueprint(accounts.grants.at(root)),
        information_blueprint(accounts.tokens, guard),
        openid_blueprint(accounts.signing_keys, accounts.userinfo, guard),
        sign_in_blueprint(flow, accounts.sessions, browsers),
        sign_in_code_blueprint(flow, accounts.sessions, browsers),
        account_blueprint(accounts.open_sessions, accounts.second_factors, browsers),
        claims_blueprint(accounts.claims, browsers),
        confirm_blueprint(accounts.confirmations, browsers),
        automations_blueprint(rooms.rules.rulebook, rooms.subscriptions.subscriptions, browsers),
        second_factor_blueprint(accounts.second_factors, browsers, root),
        go_blueprint(accounts.device_codes, browsers),
        sign_up_blueprint(flow, accounts.sign_up, accounts.invitations, accounts.claims, accounts.sessions, browsers),
        reset_blueprint(accounts.resets, accounts.claims, browsers),
        accept_share_blueprint(rooms.devices.shares, browsers),
        accept_label_blueprint(rooms.devices.labels, browsers),
        alarm_blueprint(rooms.alarms.alarms, rooms.alarms.links, rooms.alarms.readers),
        upgrade_blueprint(rooms.monetization.payments),
        accept_trial_blueprint(rooms.trials.invitations, browsers),
        external_blueprint(flow, provider_redirects, accounts.external, accounts.sessions, browsers),
        sign_out_blueprint(accounts.applications, accounts.sessions, browsers),
        check_session_blueprint(browsers),
        style_blueprint(),
    ):
        app.register_blueprint(blueprint, url_prefix=root.path or None)
    app.register_blueprint(discovery_blueprint(root))
    return browsers
