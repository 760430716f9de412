"""Flows with requests-oauthlib, a client with another implementation of OAuth2."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from oauthlib.oauth2 import Client, MobileApplicationClient, WebApplicationClient
from oauthlib.oauth2.rfc6749.errors import InvalidGrantError
from requests_oauthlib import OAuth2Session

from tests.daemon import ADA
from tests.e2e.accounts.person import Person
from tests.e2e.accounts.world import PAGE, SECRETS, WEB, Site
from tests.properties import in_ci


@contextmanager
def session_of(client: Client, site: Site, path: str) -> Iterator[OAuth2Session]:
    with OAuth2Session(client=client, redirect_uri=site.callback.url(path)) as session:
        session.trust_env = False  # the environment may name other certificates
        session.verify = str(site.certificate)
        yield session


@pytest.fixture
def web(site: Site) -> Iterator[OAuth2Session]:
    with session_of(WebApplicationClient(WEB), site, "web") as session:
        yield session


@pytest.fixture
def page(site: Site) -> Iterator[OAuth2Session]:
    with session_of(MobileApplicationClient(PAGE), site, "page") as session:
        yield session


def whose(session: OAuth2Session, site: Site) -> str:
    answer = session.get(site.users_self)
    answer.raise_for_status()
    user_id: str = answer.json()["data"]["id"]
    return user_id


@in_ci
def test_authorization_code_and_refresh(web: OAuth2Session, person: Person, site: Site) -> None:
    url, _state = web.authorization_url(f"{site.accounts}/authorize")
    back = person.sign_in_and_agree(url)
    first = web.fetch_token(f"{site.accounts}/token", authorization_response=back, client_secret=SECRETS[WEB])
    assert whose(web, site) == ADA
    second = web.refresh_token(f"{site.accounts}/token", auth=(WEB, SECRETS[WEB]))
    assert first["access_token"] != second["access_token"]
    assert whose(web, site) == ADA
    used = first["refresh_token"]
    again = web.refresh_token(f"{site.accounts}/token", used, auth=(WEB, SECRETS[WEB]))
    assert again["access_token"] == second["access_token"]
    web.refresh_token(f"{site.accounts}/token", auth=(WEB, SECRETS[WEB]))
    with pytest.raises(InvalidGrantError):
        web.refresh_token(f"{site.accounts}/token", used, auth=(WEB, SECRETS[WEB]))
    assert whose(web, site) == ADA


def test_implicit_and_its_refresh(page: OAuth2Session, person: Person, site: Site) -> None:
    url, _state = page.authorization_url(f"{site.accounts}/authorize")
    person.browser.open(url)
    person.sign_in()
    site.callback.take()
    page.token_from_fragment(person.browser.url)
    assert whose(page, site) == ADA
    old = page.access_token
    page.refresh_token(f"{site.accounts}/token", client_id=PAGE, old_access_token=old)
    assert page.access_token != old
    assert whose(page, site) == ADA
