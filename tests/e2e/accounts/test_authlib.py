"""Authlib's client completes every flow against the running daemon; the person's part happens in Chromium."""

import ssl
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.daemon import ADA, ADA_EMAIL
from tests.e2e.accounts.person import Person
from tests.e2e.accounts.world import MOBILE, SECRETS, SERVER, TV, WEB, Site

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Authlib warns about the version of httpx
    from authlib.common.errors import AuthlibBaseError
    from authlib.common.security import generate_token
    from authlib.integrations.httpx_client import OAuth2Client

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"

NewClient = Callable[..., Any]


@pytest.fixture
def new_client(site: Site) -> Iterator[NewClient]:
    """Makes OAuth clients that configure themselves from the server's metadata."""
    with ExitStack() as stack:
        trust = ssl.create_default_context(cafile=site.certificate)

        def make(client_id: str, path: str = "", **more: Any) -> Any:
            client = OAuth2Client(
                client_id,
                SECRETS.get(client_id),
                redirect_uri=site.callback.url(path) if path else None,
                token_endpoint_auth_method=more.pop("proof", "client_secret_basic" if client_id in SECRETS else "none"),
                verify=trust,
                **more,
            )
            stack.enter_context(client)
            found = client.request("GET", f"{site.origin}/.well-known/oauth-authorization-server", withhold_token=True)
            client.metadata |= found.raise_for_status().json()
            return client

        yield make


def whose(client: Any, site: Site) -> str:
    answer = client.get(site.users_self)
    assert answer.status_code == 200, answer.text
    user_id: str = answer.json()["data"]["id"]
    return user_id


def sign_in_with_code(client: Any, person: Person, **pkce: str) -> dict[str, Any]:
    url, state = client.create_authorization_url(client.metadata["authorization_endpoint"], **pkce)
    back = person.sign_in_and_agree(url)
    token: dict[str, Any] = client.fetch_token(
        client.metadata["token_endpoint"], authorization_response=back, state=state, **pkce
    )
    return token


def test_pkce(new_client: NewClient, person: Person, site: Site) -> None:
    client = new_client(MOBILE, "mobile", code_challenge_method="S256")
    verifier = generate_token(64)
    url, state = client.create_authorization_url(client.metadata["authorization_endpoint"], code_verifier=verifier)
    person.browser.open(url)
    person.sign_in()
    back = {"authorization_response": site.callback.take(), "state": state}
    with pytest.raises(AuthlibBaseError, match="invalid_grant"):
        client.fetch_token(client.metadata["token_endpoint"], **back, code_verifier=generate_token(64))
    person.browser.open(url)  # a signed-in person is not asked again
    client.fetch_token(
        client.metadata["token_endpoint"],
        authorization_response=site.callback.take(),
        state=state,
        code_verifier=verifier,
    )
    assert whose(client, site) == ADA


def test_openid_connect(new_client: NewClient, person: Person, site: Site) -> None:
    """As a website signs people in: discovery, code with PKCE, the ID token verified with the keys, and userinfo."""
    from authlib.oidc.core import CodeIDToken
    from joserfc import jwt
    from joserfc.jwk import KeySet

    client = new_client(MOBILE, "mobile", scope="openid email", code_challenge_method="S256")
    about = client.request("GET", f"{site.origin}/.well-known/openid-configuration", withhold_token=True).json()
    assert about["issuer"] == site.origin
    client.metadata |= about
    nonce, verifier = generate_token(), generate_token(64)
    given = {"code_verifier": verifier, "nonce": nonce}
    url, state = client.create_authorization_url(about["authorization_endpoint"], **given)
    person.browser.open(url)
    person.sign_in()
    token = client.fetch_token(
        about["token_endpoint"],
        authorization_response=site.callback.take(),
        state=state,
        code_verifier=verifier,
    )
    keys = KeySet.import_key_set(client.request("GET", about["jwks_uri"], withhold_token=True).json())
    decoded = jwt.decode(token["id_token"], keys, algorithms=about["id_token_signing_alg_values_supported"])
    claims = CodeIDToken(
        decoded.claims,
        decoded.header,
        options={"iss": {"essential": True, "value": site.origin}, "aud": {"essential": True, "value": MOBILE}},
        params={"nonce": nonce, "client_id": MOBILE, "access_token": token["access_token"]},
    )
    claims.validate()
    person_told = client.get(about["userinfo_endpoint"]).json()
    assert person_told == {"sub": ADA, "email": ADA_EMAIL, "email_verified": claims["email_verified"]}
    assert claims["sub"] == ADA


def test_a_code_that_comes_twice_ends_the_tokens_it_gave(new_client: NewClient, person: Person, site: Site) -> None:
    client = new_client(WEB, "web", proof="client_secret_post")
    url, _state = client.create_authorization_url(client.metadata["authorization_endpoint"])
    back = person.sign_in_and_agree(url)
    client.fetch_token(client.metadata["token_endpoint"], authorization_response=back)
    assert whose(client, site) == ADA
    with pytest.raises(AuthlibBaseError, match="invalid_grant"):
        new_client(WEB, "web").fetch_token(client.metadata["token_endpoint"], authorization_response=back)
    assert client.get(site.users_self).status_code == 401


def test_client_credentials(new_client: NewClient, site: Site) -> None:
    client = new_client(SERVER)
    token = client.fetch_token(client.metadata["token_endpoint"], grant_type="client_credentials")
    assert "refresh_token" not in token
    assert client.get(site.users_self).status_code == 403  # an application token has no user


def test_refresh_tokens_rotate_and_a_second_use_soon_after_gets_the_same_tokens(
    new_client: NewClient, person: Person, site: Site
) -> None:
    client = new_client(WEB, "web")
    first = dict(sign_in_with_code(client, person))
    second = dict(client.refresh_token(client.metadata["token_endpoint"]))
    assert not set(first.values()) & {second["access_token"], second["refresh_token"]}
    assert whose(client, site) == ADA
    again = client.refresh_token(client.metadata["token_endpoint"], first["refresh_token"])
    assert [again[name] for name in ("access_token", "refresh_token")] == [
        second[name] for name in ("access_token", "refresh_token")
    ]
    third = dict(client.refresh_token(client.metadata["token_endpoint"], second["refresh_token"]))
    # Now the client has gone on: the first one is refused, and nothing else happens.
    with pytest.raises(AuthlibBaseError, match="invalid_grant"):
        client.refresh_token(client.metadata["token_endpoint"], first["refresh_token"])
    assert whose(client, site) == ADA
    revoke(client, site, third, "access_token")


def start_device(client: Any) -> dict[str, Any]:
    asked = client.request(
        "POST", client.metadata["device_authorization_endpoint"], data={"client_id": TV}, withhold_token=True
    )
    started: dict[str, Any] = asked.raise_for_status().json()
    return started


def poll(client: Any, started: dict[str, Any]) -> None:
    client.fetch_token(client.metadata["token_endpoint"], grant_type=DEVICE_GRANT, device_code=started["device_code"])


def test_limited_input(new_client: NewClient, person: Person, site: Site) -> None:
    client = new_client(TV)
    with pytest.raises(AuthlibBaseError, match="authorization_pending"):
        poll(client, start_device(client))
    started = start_device(client)
    person.browser.open(started["verification_uri"])
    person.sign_in()
    person.enter_code(started["user_code"])
    person.browser.press("Allow")
    poll(client, started)
    assert whose(client, site) == ADA
    with pytest.raises(AuthlibBaseError, match="expired_token"):
        poll(client, started)


def test_limited_input_refused(new_client: NewClient, person: Person) -> None:
    client = new_client(TV)
    started = start_device(client)
    person.browser.open(started["verification_uri_complete"])
    person.sign_in()
    person.browser.press("Continue")  # the form has the code already
    person.browser.press("Deny")
    with pytest.raises(AuthlibBaseError, match="access_denied"):
        poll(client, started)


def test_revoking_a_refresh_token_ends_both(new_client: NewClient, person: Person, site: Site) -> None:
    client = new_client(WEB, "web")
    token = dict(sign_in_with_code(client, person))
    revoke(client, site, token, "refresh_token")


def revoke(client: Any, site: Site, token: dict[str, Any], kind: str) -> None:
    answer = client.revoke_token(client.metadata["revocation_endpoint"], token[kind], token_type_hint=kind)
    answer.raise_for_status()
    assert client.get(site.users_self).status_code == 401
    with pytest.raises(AuthlibBaseError, match="invalid_grant"):
        client.refresh_token(client.metadata["token_endpoint"], token["refresh_token"])
