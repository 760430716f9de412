"""The accounts server under /accounts: tokens, what is known of them, and how clients find all that.

What `/authorize` and the pages stand on is broker/accounts/authorize.py and device_codes.py.
"""

from quart import Quart

from broker.services import Services
from protocols.http.accounts.caching import ACCOUNTS_ROOT, forbid_storing
from protocols.http.accounts.discovery import discovery_blueprint
from protocols.http.accounts.information import information_blueprint
from protocols.http.accounts.token import token_blueprint
from protocols.http.guard import Guard


def install(app: Quart, services: Services) -> None:
    app.after_request(forbid_storing)
    app.register_blueprint(token_blueprint(services.grants), url_prefix=ACCOUNTS_ROOT)
    app.register_blueprint(information_blueprint(services.tokens, Guard(services.tokens)), url_prefix=ACCOUNTS_ROOT)
    app.register_blueprint(discovery_blueprint(services.site))
