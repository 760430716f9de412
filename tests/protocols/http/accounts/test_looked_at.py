"""Every page of the accounts server is in the list of pages that are looked at in a browser."""

from broker.services import Services
from protocols.http.application import build_accounts_app
from tests.e2e.accounts.test_looks import NO_PAGES, PAGES


async def test_every_page_is_looked_at(services: Services) -> None:
    """A new page is to be added to PAGES, with the way to it."""
    rules = build_accounts_app(services).url_map.iter_rules()
    routes = {rule.rule for rule in rules if "GET" in (rule.methods or ())}
    pages = {route for route in routes if not route.startswith(("/static/", "/.well-known/"))}
    assert pages == (set(PAGES) | set(NO_PAGES)) - {"/login"}  # which has a form only
