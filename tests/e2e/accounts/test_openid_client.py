"""npm's openid-client, which configures itself from the metadata and is strict about what it is sent."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from config.limits import USER_TOKEN_SECONDS
from tests.daemon import ADA, ADA_EMAIL
from tests.e2e.accounts.node_program import NodeProgram, running_node
from tests.e2e.accounts.person import Person
from tests.e2e.accounts.world import SECRETS, TV, WEB, Site
from tests.properties import in_ci

#: Authlib shows most of it, without a program of its own.
pytestmark = in_ci


def running_client(folder: Path, site: Site, flow: str, client_id: str) -> AbstractContextManager[NodeProgram]:
    given = {
        "issuer": site.origin,
        "client_id": client_id,
        "secret": SECRETS.get(client_id),
        "redirect_uri": site.callback.url("web"),
        "resource": site.users_self,
    }
    return running_node(folder, "client.mjs", flow, json.dumps(given), trusted=site.certificate)


def test_code_with_pkce_refresh_and_revocation(node_folder: Path, person: Person, site: Site) -> None:
    with running_client(node_folder, site, "code", WEB) as client:
        client.tell(person.sign_in_and_agree(client.hear()["open"]))
        got = client.hear()
    assert USER_TOKEN_SECONDS - 60 < got.pop("lifetime") <= USER_TOKEN_SECONDS
    assert got == {
        "users": [ADA, ADA],
        "rotated": True,
        "after_revocation": 401,
        "refresh_after_revocation": "invalid_grant",
    }


def test_sign_in_with_openid_connect(node_folder: Path, person: Person, site: Site) -> None:
    """The library is certified: it verifies signature, issuer, audience, nonce, at_hash, times and max_age."""
    with running_client(node_folder, site, "openid", WEB) as client:
        client.tell(person.sign_in_and_agree(client.hear()["open"]))
        person.browser.open(client.hear()["open"])  # a signed-in person is not asked again
        client.tell(site.callback.take())
        got = client.hear()
    name = site.of_ada("GET", "/users/self")["fullName"]
    assert got == {"issuer": site.origin, "sub": ADA, "email": ADA_EMAIL, "name": name, "again": ADA}


def test_the_strategy_that_node_red_signs_in_with(node_folder: Path, person: Person, site: Site) -> None:
    with running_client(node_folder, site, "passport", WEB) as client:
        client.tell(person.sign_in_and_agree(client.hear()["open"]))
        got = client.hear()
    name = site.of_ada("GET", "/users/self")["fullName"]
    assert got == {"issuer": site.origin, "id": ADA, "name": name, "email": ADA_EMAIL}


@pytest.fixture
def television(node_folder: Path, site: Site) -> Iterator[NodeProgram]:
    """A client that polls at the interval that the server asked for."""
    with running_client(node_folder, site, "device", TV) as client:
        yield client


def test_limited_input_is_polled_until_the_person_agrees(television: NodeProgram, person: Person) -> None:
    shown = television.hear()
    person.browser.open(shown["open"])
    person.sign_in()
    person.enter_code(shown["code"].replace("-", ""))
    assert shown["code"] in person.browser.text
    person.browser.press("Allow")
    assert person.browser.heading == "Device connected"
    assert television.hear() == {"user": ADA}
