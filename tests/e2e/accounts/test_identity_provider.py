"""Signing in with npm's oidc-provider, a certified identity provider with pages of its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.browser import Chromium
from tests.e2e.accounts.callback import query_of
from tests.e2e.accounts.node_program import NodeProgram, running_node
from tests.e2e.accounts.person import Person
from tests.e2e.accounts.world import WEB, Site, running_site
from tests.properties import in_ci

#: tests/protocols/http/accounts/test_external.py shows it with a provider of the tests.
pytestmark = in_ci

NAME, CLIENT_ID, SECRET = "neighbours", "trunkline", "s3cret of the provider"


@dataclass(frozen=True, slots=True)
class Provider:
    program: NodeProgram
    issuer: str


@pytest.fixture(scope="module")
def provider(node_folder: Path, certificate: Path) -> Iterator[Provider]:
    with running_node(node_folder, "identity_provider.mjs", CLIENT_ID, SECRET, trusted=certificate) as program:
        yield Provider(program, program.hear()["issuer"])


@pytest.fixture(scope="module")
def site(provider: Provider, tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[Site]:
    """A daemon of its own, whose sign-in page offers the provider."""
    settings = (
        f'[[accounts.providers]]\nname = "{NAME}"\nissuer = "{provider.issuer}"\n'
        f'client_id = "{CLIENT_ID}"\nclient_secret = "{SECRET}"\n'
    )
    folder = tmp_path_factory.mktemp("neighbours")
    with running_site(folder, certificate, settings=settings, others=(provider.issuer,)) as running:
        provider.program.tell(f"{running.accounts}/external/callback")
        assert provider.program.hear() == {}  # the provider is ready
        yield running


def say_who_i_am(browser: Chromium, name: str) -> None:
    """Sign in and agree on the provider's pages."""
    browser.write("[name=login]", name)
    browser.write("[name=password]", "any")
    browser.leaving(lambda: browser.click("[type=submit]"))
    browser.leaving(lambda: browser.click("[type=submit]"))  # agree


def test_a_person_comes_back_from_the_provider_and_is_signed_in(person: Person, site: Site) -> None:
    person.asked_by(WEB)
    person.browser.follow(f"Sign in with {NAME}")
    say_who_i_am(person.browser, "olga")
    assert "olga@example.org" in person.browser.text
    assert query_of(person.agree()).keys() == {"code", "state"}
    person.asked_by(WEB)  # still signed in, and the agreement is remembered
    assert query_of(site.callback.take()).keys() == {"code", "state"}


def test_account_type_leads_to_the_provider_at_once(person: Person, site: Site, provider: Provider) -> None:
    """An address that the provider has not verified is refused."""
    person.asked_by(WEB, account_type=NAME)
    assert person.browser.url.startswith(provider.issuer)
    say_who_i_am(person.browser, "unverified")
    assert person.browser.heading == "Sign in"
    assert person.browser.alert
    assert "trunkline_session" not in person.browser.cookies()
