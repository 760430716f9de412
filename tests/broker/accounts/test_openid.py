"""ID tokens and the keys that sign them (reference 4.11)."""

import base64
import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from broker.accounts.authorize import AuthorizationRequest, Redirect
from broker.accounts.consent import ConsentScreen
from broker.accounts.openid import scope_of
from broker.errors import PermissionDenied
from storage.transaction import Transaction
from tests.broker.accounts.oauth_world import (
    CALLBACK,
    MOBILE,
    VERIFIER,
    WEB,
    OAuthWorld,
    basic,
    challenge_of,
    granted,
    query_of,
)
from tests.factories import NOW_MS
from tests.rows import each_row

pytestmark = pytest.mark.slow


async def signed_in(
    oauth: OAuthWorld, application: str = WEB, *, then: Callable[[Transaction], None] | None = None, **query: str
) -> dict[str, Any]:
    """The answer of /token after a sign-in that began ten seconds ago. `then`: between the code and its exchange."""
    proof = {"client_id": MOBILE, "code_verifier": VERIFIER} if application == MOBILE else {}
    if proof:
        query |= {"code_challenge": challenge_of(VERIFIER), "code_challenge_method": "S256"}
    asked = await oauth.read(client_id=application, response_type="code", **query)
    authorize = oauth.services.accounts.authorize
    screen = await authorize.consent_needed(asked, oauth.ada.key)
    back = await authorize.allow(asked, oauth.ada.key, agreed=screen, signed_in_on=NOW_MS - 10_000)
    assert isinstance(back, Redirect)
    code = query_of(back.url)["code"]
    if then is not None:
        await oauth.services.core.database.write(then)
    header = "" if proof else basic(application)
    return granted(await oauth.token(header, grant_type="authorization_code", code=code, **proof))


async def claims_of(oauth: OAuthWorld, token: str) -> dict[str, Any]:
    """Verified with the public keys."""
    keys = await oauth.services.accounts.signing_keys.public()
    assert all(key.keys() == {"kty", "n", "e", "kid", "use", "alg"} for key in keys["keys"])
    known = KeySet.import_key_set(dict(keys))  # type: ignore[arg-type]  # a TypedDict
    return dict(jwt.decode(token, known, algorithms=["RS256"]).claims)


@each_row("application", [WEB, MOBILE])
async def test_an_id_token_says_who_has_signed_in(oauth: OAuthWorld, application: str) -> None:
    answer = await signed_in(oauth, application, scope="email openid profile more", nonce="n-1")
    assert answer["scope"] == "openid profile email"
    claims = await claims_of(oauth, answer["id_token"])
    half = hashlib.sha256(answer["access_token"].encode()).digest()[:16]
    assert claims == {
        "iss": oauth.services.core.site.origin,
        "sub": oauth.ada.id,
        "aud": application,
        "iat": NOW_MS // 1000,
        "exp": NOW_MS // 1000 + 3600,
        "auth_time": NOW_MS // 1000 - 10,
        "nonce": "n-1",
        "at_hash": base64.urlsafe_b64encode(half).rstrip(b"=").decode(),
        "name": oauth.ada.full_name,
        "preferred_username": oauth.ada.name,
        "updated_at": oauth.ada.modified_on // 1000,
        "email": oauth.ada.email,
        "email_verified": True,
    }


@pytest.mark.both_engines
@each_row(
    ("scope", "told"),
    {
        "openid": {"sub"},
        "openid email": {"sub", "email", "email_verified"},
        "profile openid": {"sub", "name", "preferred_username", "updated_at"},
    }.items(),
)
async def test_userinfo_says_what_the_scopes_allow(oauth: OAuthWorld, scope: str, told: set[str]) -> None:
    answer = await signed_in(oauth, scope=scope)
    assert (await claims_of(oauth, answer["id_token"])).keys() & {"name", "email"} == told & {"name", "email"}
    userinfo, tokens = oauth.services.accounts.userinfo, oauth.services.accounts.tokens
    assert (await userinfo.of(await tokens.caller(answer["access_token"]))).keys() == told
    refreshed = granted(
        await oauth.token(basic(WEB), grant_type="refresh_token", refresh_token=answer["refresh_token"])
    )
    assert (await userinfo.of(await tokens.caller(refreshed["access_token"]))).keys() == told


@pytest.mark.both_engines
async def test_without_openid_nothing_changes(oauth: OAuthWorld) -> None:
    answer = await signed_in(oauth, scope="profile email read,write", nonce="n")
    assert (answer["scope"], "id_token" in answer) == ("read,write", False)
    caller = await oauth.services.accounts.tokens.caller(answer["access_token"])
    with pytest.raises(PermissionDenied, match="openid"):
        await oauth.services.accounts.userinfo.of(caller)
    assert await oauth.services.core.database.read(lambda tx: tx.authorizations.signing_keys.newest()) is None


async def test_there_is_one_key_and_another_one_after_a_rotation(oauth: OAuthWorld) -> None:
    first = await oauth.services.accounts.signing_keys.public()
    assert await oauth.services.accounts.signing_keys.public() == first
    await oauth.services.core.database.write(lambda tx: tx.authorizations.signing_keys.remove_all())
    second = await oauth.services.accounts.signing_keys.public()
    assert [len(keys["keys"]) for keys in (first, second)] == [1, 1]
    assert first["keys"][0]["kid"] != second["keys"][0]["kid"]
    answer = await signed_in(oauth, scope="openid")
    assert (await claims_of(oauth, answer["id_token"]))["sub"] == oauth.ada.id


async def test_a_code_from_before_a_rotation_is_good_all_the_same(oauth: OAuthWorld) -> None:
    answer = await signed_in(oauth, scope="openid", then=lambda tx: tx.authorizations.signing_keys.remove_all())
    assert (await claims_of(oauth, answer["id_token"]))["sub"] == oauth.ada.id


@pytest.mark.both_engines
async def test_without_a_page_nobody_is_signed_in_for_the_first_time(oauth: OAuthWorld) -> None:
    """OpenID Connect Core 1.0, 3.1.2.1, also for an application that gets no screen."""
    authorize = oauth.services.accounts.authorize
    silent = await oauth.read(client_id=WEB, response_type="code", scope="openid email", prompt="none")
    plain = await oauth.read(client_id=WEB, response_type="code", scope="openid email")
    assert await authorize.consent_needed(silent, oauth.ada.key) is not None
    assert isinstance(await authorize.allow(silent, oauth.ada.key), ConsentScreen)  # nothing is stored
    assert await authorize.consent_needed(plain, oauth.ada.key) is None
    assert isinstance(await authorize.allow(plain, oauth.ada.key), Redirect)
    assert await authorize.consent_needed(silent, oauth.ada.key) is None
    assert isinstance(await authorize.allow(silent, oauth.ada.key), Redirect)


@each_row(
    ("more", "error"),
    [
        ({"prompt": "none login"}, "invalid_request"),
        ({"prompt": "whatever"}, "invalid_request"),
        ({"max_age": "-1"}, "invalid_request"),
        ({"max_age": "soon"}, "invalid_request"),
        ({"nonce": "n" * 513}, "invalid_request"),
        ({"request": "eyJ"}, "request_not_supported"),
        ({"request_uri": "https://a.example/"}, "request_uri_not_supported"),
    ],
)
async def test_what_is_refused(oauth: OAuthWorld, more: dict[str, str], error: str) -> None:
    query = {"client_id": WEB, "response_type": "code", "redirect_uri": CALLBACK, "scope": "openid", **more}
    decided = await oauth.services.accounts.authorize.read(urlencode(query).encode())
    assert isinstance(decided, Redirect)
    assert query_of(decided.url)["error"] == error


async def test_max_age(oauth: OAuthWorld) -> None:
    authorize = oauth.services.accounts.authorize
    asked = await oauth.read(client_id=WEB, response_type="code", max_age="10", prompt="login consent")
    assert isinstance(asked, AuthorizationRequest)
    assert (asked.login_wanted, asked.consent_wanted, asked.silent) == (True, True, False)
    assert [authorize.is_too_old(asked, NOW_MS - age) for age in (10_000, 10_001)] == [False, True]
    without = await oauth.read(client_id=WEB, response_type="code")
    assert not authorize.is_too_old(without, 0)


def test_scopes_in_one_order() -> None:
    assert [scope_of(one) for one in (None, "", "profile", "profile openid x openid", "openid")] == [
        "",
        "",
        "",
        "openid profile",
        "openid",
    ]
