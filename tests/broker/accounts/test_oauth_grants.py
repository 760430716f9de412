"""/token without HTTP: the grant table, the error table, replayed codes and refresh tokens."""

import base64
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote_plus, urlencode

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.accounts import tokens as tokens_module
from broker.accounts.token_endpoints import TokenRequest
from broker.accounts.tokens import TokenKind
from broker.errors import PermissionDenied, Unauthorized
from broker.facts import TokenRevoked
from broker.secrets import token_hash
from config.limits import REFRESH_REPEAT_SECONDS
from tests.broker.accounts.oauth_world import (
    BOTH,
    CALLBACK,
    MOBILE,
    OTHER_CALLBACK,
    PAGE,
    SECRETS,
    SERVER,
    TV,
    VERIFIER,
    WEB,
    OAuthWorld,
    basic,
    challenge_of,
    granted,
    make_oauth_world,
    query_of,
    refused,
)
from tests.builders import opener_in
from tests.factories import ADA_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN, build_world
from tests.fakes import FakeClock
from tests.properties import examples
from tests.rows import each_row

DAYS = 86_400_000
USER_SECONDS, APPLICATION_SECONDS = 1_209_600, 86_400


async def is_valid(oauth: OAuthWorld, token: str) -> bool:
    try:
        await oauth.services.accounts.tokens.caller(token)
    except Unauthorized:
        return False
    return True


# The grant table


async def test_a_code_and_the_secret_make_a_user_token(oauth: OAuthWorld) -> None:
    body = granted(await oauth.token(basic(WEB), grant_type="authorization_code", code=await oauth.code()))
    assert body.keys() == {"access_token", "token_type", "expires_in", "refresh_token", "scope"}
    assert (body["token_type"], body["expires_in"], body["scope"]) == ("bearer", USER_SECONDS, "read,write")
    caller = await oauth.services.accounts.tokens.caller(body["access_token"])
    assert (caller.kind, caller.user_id, caller.application_id) == (TokenKind.USER, oauth.ada.id, WEB)


async def test_a_code_and_its_verifier_make_a_user_token(oauth: OAuthWorld) -> None:
    for application in (MOBILE, BOTH):
        answer = await oauth.token(
            grant_type="authorization_code",
            client_id=application,
            code=await oauth.mobile_code(application=application),
            code_verifier=VERIFIER,
            state="ignored",
        )
        assert granted(answer)["scope"] == "read,write"


async def test_the_secret_alone_makes_an_application_token(oauth: OAuthWorld) -> None:
    body = granted(await oauth.token(basic(SERVER), grant_type="client_credentials", scope="anything"))
    assert body == {
        "access_token": body["access_token"],
        "token_type": "bearer",
        "expires_in": APPLICATION_SECONDS,
    }
    caller = await oauth.services.accounts.tokens.caller(body["access_token"])
    assert (caller.kind, caller.application_id) == (TokenKind.APPLICATION, SERVER)


async def refresh(oauth: OAuthWorld, application: str, tokens: dict[str, str]) -> dict[str, str]:
    proof = {
        WEB: {"authorization": basic(WEB)},
        MOBILE: {"client_id": MOBILE},
        TV: {"client_id": TV},
        PAGE: {"authorization": f"bearer {tokens['access_token']}"},
    }[application]
    return granted(await oauth.token(**proof, grant_type="refresh_token", refresh_token=tokens["refresh_token"]))


@each_row("application", [WEB, MOBILE, TV, PAGE])
async def test_every_user_token_can_be_refreshed_again_and_again(oauth: OAuthWorld, application: str) -> None:
    tokens = await oauth.user_tokens(application)
    seen = {tokens["access_token"], tokens["refresh_token"]}
    for _ in range(3):
        tokens = await refresh(oauth, application, tokens)
        assert tokens.keys() == {"access_token", "token_type", "expires_in", "refresh_token", "scope"}
        assert seen.isdisjoint({tokens["access_token"], tokens["refresh_token"]})
        seen |= {tokens["access_token"], tokens["refresh_token"]}
        assert (await oauth.services.accounts.tokens.caller(tokens["access_token"])).user_id == oauth.ada.id


@each_row("how", ["header", "parameter", "both"])
async def test_an_implicit_token_is_refreshed_by_the_old_one(
    oauth: OAuthWorld, fake_clock: FakeClock, how: str
) -> None:
    tokens = await oauth.user_tokens(PAGE)
    fake_clock.advance(USER_SECONDS * 1000 + 1)  # also when it has expired
    form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
    if how != "header":
        form["old_access_token"] = tokens["access_token"]
    authorization = f"bearer {tokens['access_token']}" if how != "parameter" else ""
    assert granted(await oauth.token(authorization, **form))["token_type"] == "bearer"


@each_row("grant_type", ["device_code", "urn:ietf:params:oauth:grant-type:device_code"])
@each_row("name", ["code", "device_code"])
async def test_an_approved_device_code_makes_a_user_token(oauth: OAuthWorld, grant_type: str, name: str) -> None:
    form = {"grant_type": grant_type, "client_id": TV, name: await oauth.approved_device_code()}
    body = granted(await oauth.token(**form))
    assert body["expires_in"] == USER_SECONDS
    assert (await oauth.services.accounts.tokens.caller(body["access_token"])).user_id == oauth.ada.id


# Client authentication


@each_row(
    "header",
    [
        basic(SERVER),
        basic(SERVER).replace("Basic", "bAsIc "),
        basic(SERVER, quote_plus(SECRETS[SERVER])),
    ],
)
async def test_the_parts_of_a_basic_header_are_plain_or_encoded(oauth: OAuthWorld, header: str) -> None:
    granted(await oauth.token(header, grant_type="client_credentials"))


async def test_the_secret_may_come_among_the_parameters(oauth: OAuthWorld) -> None:
    form = {"grant_type": "client_credentials", "client_id": SERVER, "client_secret": SECRETS[SERVER]}
    granted(await oauth.token(**form))
    for query, body in ((form, {}), (form | {"client_secret": "wrong"}, form)):  # the body has precedence
        request = TokenRequest.of(query=b"?" + urlencode(query).encode(), body=urlencode(body).encode())
        granted(await oauth.services.accounts.grants.token(request))


@each_row(
    ("header", "form", "refusal"),
    [
        ("", {}, (400, "invalid_request")),
        ("Basic", {}, (400, "invalid_request")),
        ("Basic ????", {}, (401, "invalid_client")),
        ("Basic " + base64.b64encode(b"\xff\xfe:x").decode(), {}, (401, "invalid_client")),
        (basic(SERVER, "wrong"), {}, (401, "invalid_client")),
        (basic(SERVER, ""), {}, (401, "invalid_client")),
        (basic(SERVER, "wrong"), {"client_id": SERVER, "client_secret": SECRETS[SERVER]}, (401, "invalid_client")),
        (basic(SERVER), {"client_id": WEB}, (400, "invalid_request")),
        ("", {"client_id": "ff" * 16}, (401, "invalid_client")),
        ("", {"client_id": SERVER}, (401, "invalid_client")),
        ("", {"client_id": SERVER, "client_secret": "wrong"}, (401, "invalid_client")),
        ("", {"client_id": SERVER, "client_secret": ""}, (401, "invalid_client")),
        ("", {"client_id": SERVER, "client_secret": "\ud83d"}, (401, "invalid_client")),
        (f"bearer {ADA_TOKEN}", {}, (400, "invalid_request")),
    ],
)
async def test_failed_client_authentication(
    oauth: OAuthWorld, header: str, form: dict[str, str], refusal: tuple[int, str]
) -> None:
    form = {name: value.encode(errors="replace").decode() for name, value in form.items()}
    answer = await oauth.token(header, grant_type="client_credentials", **form)
    assert refused(answer) == refusal
    assert ("WWW-Authenticate" in answer.headers) == (answer.status == 401)


async def test_a_wrong_secret_is_refused_also_where_none_is_needed(oauth: OAuthWorld) -> None:
    form = {"grant_type": "authorization_code", "code": await oauth.mobile_code(), "code_verifier": VERIFIER}
    assert refused(await oauth.token(basic(MOBILE, "wrong"), **form)) == (401, "invalid_client")
    granted(await oauth.token(basic(MOBILE, ""), **form))  # an empty secret is none


# The error table

ANY_CODE = "c" * 32


@each_row(
    ("authorization", "form", "refusal"),
    [
        # missing required parameter
        (basic(WEB), {}, (400, "invalid_request")),
        (basic(WEB), {"grant_type": ""}, (400, "invalid_request")),
        (basic(WEB), {"grant_type": "authorization_code"}, (400, "invalid_request")),
        (basic(WEB), {"grant_type": "refresh_token"}, (400, "invalid_request")),
        ("", {"grant_type": "device_code", "client_id": TV}, (400, "invalid_request")),
        ("", {"grant_type": "device_code", "code": ANY_CODE}, (400, "invalid_request")),
        ("", {"grant_type": "refresh_token", "refresh_token": ANY_CODE}, (400, "invalid_request")),
        # wrong code or token
        (basic(WEB), {"grant_type": "authorization_code", "code": ANY_CODE}, (400, "invalid_grant")),
        (basic(WEB), {"grant_type": "refresh_token", "refresh_token": ANY_CODE}, (400, "invalid_grant")),
        ("", {"grant_type": "device_code", "client_id": TV, "code": ANY_CODE}, (400, "invalid_grant")),
        ("bearer " + "f" * 32, {"grant_type": "refresh_token", "refresh_token": ANY_CODE}, (400, "invalid_grant")),
        # the application may not use this method
        (basic(SERVER), {"grant_type": "authorization_code", "code": ANY_CODE}, (400, "unauthorized_client")),
        (basic(PAGE), {"grant_type": "authorization_code", "code": ANY_CODE}, (400, "unauthorized_client")),
        (basic(WEB), {"grant_type": "client_credentials"}, (400, "unauthorized_client")),
        ("", {"grant_type": "device_code", "client_id": WEB, "code": ANY_CODE}, (400, "unauthorized_client")),
        # no such grant type
        (basic(WEB), {"grant_type": "password"}, (302, "unsupported_grant_type")),
        (basic(WEB), {"grant_type": "implicit"}, (302, "unsupported_grant_type")),
        ("", {"grant_type": "AUTHORIZATION_CODE", "client_id": WEB}, (302, "unsupported_grant_type")),
        ("", {"grant_type": "password"}, (302, "unsupported_grant_type")),
    ],
)
async def test_a_row_of_the_error_table(
    oauth: OAuthWorld, authorization: str, form: dict[str, str], refusal: tuple[int, str]
) -> None:
    answer = await oauth.token(authorization, **form)
    assert refused(answer) == refusal
    assert answer.body.keys() == {"error", "error_description"}


@each_row(
    ("authorization", "form", "location"),
    [
        (basic(WEB), {}, f"{CALLBACK}?error=unsupported_grant_type"),
        (basic(WEB, "wrong"), {}, f"{CALLBACK}?error=unsupported_grant_type"),
        ("", {"client_id": MOBILE}, "myapp:///done?error=unsupported_grant_type"),
        ("", {"client_id": SERVER}, None),  # it has no redirect URI
        ("", {"client_id": "ff" * 16}, None),
        ("", {}, None),
    ],
)
async def test_where_an_unsupported_grant_type_points(
    oauth: OAuthWorld, authorization: str, form: dict[str, str], location: str | None
) -> None:
    answer = await oauth.token(authorization, grant_type="password", **form)
    assert answer.headers.get("Location") == location


@each_row("name", ["grant_type", "client_id", "code", "refresh_token", "redirect_uri", "code_verifier"])
async def test_a_repeated_parameter_is_refused(oauth: OAuthWorld, name: str) -> None:
    body = f"grant_type=client_credentials&{name}=a&{name}=a".encode()
    request = TokenRequest.of(query=b"unknown=1&unknown=2", body=body, authorization=basic(SERVER))
    answer = await oauth.services.accounts.grants.token(request)
    assert refused(answer) == (400, "invalid_request")
    assert answer.body["error_description"] == f"{name} is repeated"


async def test_repeated_unknown_parameters_are_ignored(oauth: OAuthWorld) -> None:
    request = TokenRequest.of(
        query=b"grant_type=password&unknown=1&unknown=2&scope=a&scope=b",
        body=b"grant_type=client_credentials",
        authorization=basic(SERVER),
    )
    granted(await oauth.services.accounts.grants.token(request))


# Codes


async def test_a_code_lives_for_a_minute(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    early, late = await oauth.code(), await oauth.code()
    fake_clock.advance(59_999)
    granted(await oauth.token(basic(WEB), grant_type="authorization_code", code=early))
    fake_clock.advance(1)
    answer = await oauth.token(basic(WEB), grant_type="authorization_code", code=late)
    assert refused(answer) == (400, "invalid_grant")


@each_row("later_ms", [0, 120_000, 10 * DAYS])
async def test_a_replayed_code_revokes_what_it_led_to(oauth: OAuthWorld, fake_clock: FakeClock, later_ms: int) -> None:
    code = await oauth.code()
    first = granted(await oauth.token(basic(WEB), grant_type="authorization_code", code=code))
    bystander = await oauth.user_tokens()
    second = granted(await oauth.token(basic(WEB), grant_type="refresh_token", refresh_token=first["refresh_token"]))
    revoked: list[bytes] = []
    oauth.services.core.router.subscribe(TokenRevoked, lambda fact: revoked.append(fact.hash))
    fake_clock.advance(later_ms)
    answer = await oauth.token(basic(WEB), grant_type="authorization_code", code=code)
    assert refused(answer) == (400, "invalid_grant")
    assert set(revoked) == {token_hash(first["access_token"]), token_hash(second["access_token"])}
    assert not await is_valid(oauth, first["access_token"])
    assert not await is_valid(oauth, second["access_token"])
    answer = await oauth.token(basic(WEB), grant_type="refresh_token", refresh_token=second["refresh_token"])
    assert refused(answer) == (400, "invalid_grant")
    assert await is_valid(oauth, bystander["access_token"])
    # Nothing is left to revoke, and the code is still used.
    answer = await oauth.token(basic(WEB), grant_type="authorization_code", code=code)
    assert refused(answer) == (400, "invalid_grant")


async def test_a_refused_exchange_does_not_use_up_the_code(oauth: OAuthWorld) -> None:
    code = await oauth.mobile_code()
    form = {"grant_type": "authorization_code", "client_id": MOBILE, "code": code}
    assert refused(await oauth.token(**form, code_verifier="w" * 43)) == (400, "invalid_grant")
    granted(await oauth.token(**form, code_verifier=VERIFIER))


async def test_a_code_is_good_for_its_application_only(oauth: OAuthWorld) -> None:
    code = await oauth.code(WEB)
    answer = await oauth.token(basic(BOTH), grant_type="authorization_code", code=code)
    assert refused(answer) == (400, "invalid_grant")
    granted(await oauth.token(basic(WEB), grant_type="authorization_code", code=code))


@each_row(
    ("at_authorize", "at_token", "fits"),
    [
        (None, None, True),
        (None, CALLBACK, True),
        (None, OTHER_CALLBACK, False),
        (OTHER_CALLBACK, None, True),
        (OTHER_CALLBACK, OTHER_CALLBACK, True),
        (OTHER_CALLBACK, CALLBACK, False),
        (CALLBACK, CALLBACK + "/", False),
    ],
)
async def test_the_redirect_uri_must_be_the_same(
    oauth: OAuthWorld, at_authorize: str | None, at_token: str | None, fits: bool
) -> None:
    code = await oauth.code(**({} if at_authorize is None else {"redirect_uri": at_authorize}))
    form = {} if at_token is None else {"redirect_uri": at_token}
    answer = await oauth.token(basic(WEB), grant_type="authorization_code", code=code, **form)
    assert answer.status == (200 if fits else 400)


# PKCE


@each_row(
    ("verifier", "refusal"),
    [
        (None, "invalid_request"),
        ("v" * 42, "invalid_request"),
        ("v" * 129, "invalid_request"),
        ("v" * 42 + "+", "invalid_request"),
        ("v" * 43 + "\n", "invalid_request"),
        ("w" * 43, "invalid_grant"),
        ("v" * 44, "invalid_grant"),
        (challenge_of(VERIFIER), "invalid_grant"),
    ],
)
async def test_wrong_verifiers(oauth: OAuthWorld, verifier: str | None, refusal: str) -> None:
    form = {} if verifier is None else {"code_verifier": verifier}
    answer = await oauth.token(
        grant_type="authorization_code", client_id=MOBILE, code=await oauth.mobile_code(), **form
    )
    assert refused(answer) == (400, refusal)


async def test_a_verifier_without_a_challenge_is_a_downgrade(oauth: OAuthWorld) -> None:
    form = {"grant_type": "authorization_code", "code": await oauth.code(BOTH), "code_verifier": VERIFIER}
    assert refused(await oauth.token(client_id=BOTH, **form)) == (400, "invalid_request")
    assert refused(await oauth.token(basic(BOTH), **form)) == (400, "invalid_request")


async def test_a_code_without_a_challenge_needs_the_secret(oauth: OAuthWorld) -> None:
    form = {"grant_type": "authorization_code", "code": await oauth.code(BOTH)}
    assert refused(await oauth.token(client_id=BOTH, **form)) == (400, "invalid_request")
    granted(await oauth.token(basic(BOTH), **form))


async def test_a_challenge_binds_also_those_with_a_secret(oauth: OAuthWorld) -> None:
    form = {"grant_type": "authorization_code", "code": await oauth.mobile_code(application=WEB)}
    assert refused(await oauth.token(basic(WEB), **form)) == (400, "invalid_request")
    assert refused(await oauth.token(client_id=WEB, **form, code_verifier=VERIFIER)) == (401, "invalid_client")
    granted(await oauth.token(basic(WEB), **form, code_verifier=VERIFIER))


verifiers = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~", min_size=43, max_size=128)
other_texts = verifiers | st.text(st.characters(codec="utf-8"), max_size=140)


@settings(max_examples=examples(8), deadline=None)
@given(pairs=st.lists(st.tuples(verifiers, other_texts), min_size=8, max_size=8))
def test_only_the_verifier_of_the_challenge_gets_the_token(pairs: list[tuple[str, str]]) -> None:
    """Eight pairs at a time, because opening services takes much longer than checking a verifier."""

    async def check(oauth: OAuthWorld) -> None:
        for verifier, other in pairs:
            form = {"grant_type": "authorization_code", "client_id": MOBILE, "code": await oauth.mobile_code(verifier)}
            if other != verifier:
                is_well_formed = re.fullmatch(r"[A-Za-z0-9._~-]{43,128}", other) is not None
                refusal = "invalid_grant" if is_well_formed else "invalid_request"
                assert refused(await oauth.token(**form, code_verifier=other)) == (400, refusal)
            granted(await oauth.token(**form, code_verifier=verifier))

    trio.run(in_a_new_world, check)


async def in_a_new_world(check: Callable[[OAuthWorld], Awaitable[None]]) -> None:
    """Open services for one example of a property test; fixtures are made once for all examples."""
    with TemporaryDirectory() as folder:
        async with opener_in(Path(folder))() as services:
            await build_world(services.core.database, services.core.vault)
            await check(await make_oauth_world(services))


# Refresh


async def test_the_old_access_token_has_five_more_minutes(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    old = await oauth.user_tokens()
    assert await is_valid(oauth, old["access_token"])  # now it is cached
    new = await refresh(oauth, WEB, old)
    fake_clock.advance(299_999)
    assert await is_valid(oauth, old["access_token"])
    fake_clock.advance(1)
    assert not await is_valid(oauth, old["access_token"])
    assert await is_valid(oauth, new["access_token"])


async def test_the_old_access_token_never_lives_longer_than_its_own_time(
    oauth: OAuthWorld, fake_clock: FakeClock
) -> None:
    old = await oauth.user_tokens()
    fake_clock.advance(USER_SECONDS * 1000 - 1000)
    await refresh(oauth, WEB, old)
    fake_clock.advance(1000)
    assert not await is_valid(oauth, old["access_token"])


async def test_a_token_can_be_refreshed_until_14_days_after_its_expiry(
    oauth: OAuthWorld, fake_clock: FakeClock
) -> None:
    first, second = await oauth.user_tokens(), await oauth.user_tokens()
    fake_clock.advance(28 * DAYS - 1)
    await refresh(oauth, WEB, first)
    fake_clock.advance(1)
    answer = await oauth.token(basic(WEB), grant_type="refresh_token", refresh_token=second["refresh_token"])
    assert refused(answer) == (400, "invalid_grant")


@each_row("application", [WEB, MOBILE, TV, PAGE])
async def test_a_replayed_refresh_token_ends_the_whole_family(
    oauth: OAuthWorld, fake_clock: FakeClock, application: str
) -> None:
    first = await oauth.user_tokens(application)
    bystander = await oauth.user_tokens(application)
    second = await refresh(oauth, application, first)
    third = await refresh(oauth, application, second)
    fake_clock.advance(REFRESH_REPEAT_SECONDS * 1000)
    with pytest.raises(AssertionError, match="invalid_grant"):
        await refresh(oauth, application, first)
    for tokens in (first, second, third):
        assert not await is_valid(oauth, tokens["access_token"])
    with pytest.raises(AssertionError, match="invalid_grant"):
        await refresh(oauth, application, third)
    assert await is_valid(oauth, bystander["access_token"])


@each_row("application", [WEB, MOBILE, TV, PAGE])
async def test_a_refresh_whose_answer_was_lost_gets_the_same_tokens_again(
    oauth: OAuthWorld, fake_clock: FakeClock, application: str
) -> None:
    first = await oauth.user_tokens(application)
    lost = await refresh(oauth, application, first)
    fake_clock.advance(REFRESH_REPEAT_SECONDS * 1000 - 1)
    again = await refresh(oauth, application, first)
    assert again == lost | {"expires_in": USER_SECONDS - REFRESH_REPEAT_SECONDS}
    assert await is_valid(oauth, again["access_token"])
    await refresh(oauth, application, again)  # the family lives


async def test_a_second_use_is_refused_without_effect_when_the_client_has_gone_on(oauth: OAuthWorld) -> None:
    first = await oauth.user_tokens(WEB)
    third = await refresh(oauth, WEB, await refresh(oauth, WEB, first))
    with pytest.raises(AssertionError, match="invalid_grant"):
        await refresh(oauth, WEB, first)
    assert await is_valid(oauth, third["access_token"])
    await refresh(oauth, WEB, third)


async def test_another_client_does_not_get_the_answer_again(oauth: OAuthWorld) -> None:
    first = await oauth.user_tokens(WEB)
    await refresh(oauth, WEB, first)
    form = {"grant_type": "refresh_token", "refresh_token": first["refresh_token"]}
    assert refused(await oauth.token(basic(BOTH), **form)) == (400, "invalid_grant")
    assert refused(await oauth.token(client_id=WEB, **form)) == (401, "invalid_client")


async def test_what_was_revoked_is_not_answered_again(oauth: OAuthWorld) -> None:
    first = await oauth.user_tokens(WEB)
    second = await refresh(oauth, WEB, first)
    await oauth.services.accounts.tokens.revoke(second["access_token"])
    with pytest.raises(AssertionError, match="invalid_grant"):
        await refresh(oauth, WEB, first)


@each_row(
    ("application", "authorization", "form", "refusal"),
    [
        (WEB, "", {"client_id": WEB}, (401, "invalid_client")),
        (WEB, basic(BOTH), {}, (400, "invalid_grant")),
        (WEB, "bearer <old>", {}, (400, "invalid_request")),
        (MOBILE, "", {"client_id": BOTH}, (400, "invalid_grant")),
        (MOBILE, "bearer <old>", {}, (400, "invalid_request")),
        (PAGE, "", {"client_id": PAGE}, (400, "invalid_request")),
        (PAGE, basic(PAGE), {}, (400, "invalid_request")),
        (PAGE, f"bearer {ADA_TOKEN}", {}, (400, "invalid_grant")),
        (PAGE, f"bearer {ADA_TOKEN}", {"client_id": PAGE}, (400, "invalid_grant")),
        (PAGE, "bearer <old>", {"old_access_token": "ff" * 16}, (400, "invalid_grant")),
        (PAGE, f"bearer {KITCHEN_TOKEN}", {}, (400, "invalid_grant")),
    ],
)
async def test_a_refresh_needs_the_client_authentication_of_its_flow(
    oauth: OAuthWorld, application: str, authorization: str, form: dict[str, str], refusal: tuple[int, str]
) -> None:
    tokens = await oauth.user_tokens(application)
    authorization = authorization.replace("<old>", tokens["access_token"])
    form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"], **form}
    assert refused(await oauth.token(authorization, **form)) == refusal
    await refresh(oauth, application, tokens)  # the refused request did not use the token


async def test_tokens_of_a_disabled_method_cannot_be_refreshed(oauth: OAuthWorld) -> None:
    tokens = await oauth.user_tokens()
    await oauth.change_methods(WEB, "client_credentials")
    answer = await oauth.token(basic(WEB), grant_type="refresh_token", refresh_token=tokens["refresh_token"])
    assert refused(answer) == (400, "unauthorized_client")


async def test_the_refresh_call_of_the_rest_root_is_for_implicit_applications(oauth: OAuthWorld) -> None:
    page, web = await oauth.user_tokens(PAGE), await oauth.user_tokens(WEB)

    async def call(tokens: dict[str, str], **form: str) -> tuple[int, str]:
        body = urlencode({"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"], **form})
        request = TokenRequest.of(query=b"", body=body.encode(), authorization=f"Bearer {tokens['access_token']}")
        answer = await oauth.services.accounts.grants.refresh_implicit(request)
        return answer.status, answer.body.get("error_description", "")

    assert await call(web) == (400, "This API works only with implicit apps.")
    assert (await call(page, grant_type="client_credentials"))[0] == 400
    assert (await call(page))[0] == 200


# Storing, revoking, expiring


async def test_tokens_codes_and_secrets_are_not_stored_in_the_clear(oauth: OAuthWorld) -> None:
    tokens = await oauth.user_tokens(WEB)
    code, newer = await oauth.code(), await refresh(oauth, WEB, tokens)
    device = (await oauth.device_code()).body
    both = (tokens["access_token"], tokens["refresh_token"], newer["access_token"], newer["refresh_token"])
    secrets = (*both, code, device["device_code"], SECRETS[WEB])
    tables = ("token", "refresh_token", "authorization_code", "device_code", "application")
    rows = await oauth.services.core.database.read(
        lambda tx: [tuple(row) for table in tables for row in tx.connection.execute(f"SELECT * FROM {table}")]  # noqa: S608
    )
    assert rows
    for secret in secrets:
        assert secret not in repr(rows)


@pytest.mark.parametrize("which", ["access_token", "refresh_token"])
async def test_revoking_a_user_token_ends_its_family(oauth: OAuthWorld, which: str) -> None:
    old = await oauth.user_tokens()
    new = await refresh(oauth, WEB, old)
    revoked: list[bytes] = []
    oauth.services.core.router.subscribe(TokenRevoked, lambda fact: revoked.append(fact.hash))
    await oauth.services.accounts.tokens.revoke(new[which])
    assert set(revoked) == {token_hash(old["access_token"]), token_hash(new["access_token"])}
    assert not await is_valid(oauth, new["access_token"])
    answer = await oauth.token(basic(WEB), grant_type="refresh_token", refresh_token=new["refresh_token"])
    assert refused(answer) == (400, "invalid_grant")
    with pytest.raises(Unauthorized):
        await oauth.services.accounts.tokens.revoke(new[which])


@pytest.mark.parametrize("token", [ADA_TOKEN, APPLICATION_TOKEN])
async def test_tokens_without_a_family_can_be_revoked(oauth: OAuthWorld, token: str) -> None:
    await oauth.services.accounts.tokens.caller(token)
    await oauth.services.accounts.tokens.revoke(token)
    assert not await is_valid(oauth, token)


async def test_tokens_that_cannot_be_revoked(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    tokens = oauth.services.accounts.tokens
    with pytest.raises(Unauthorized):
        await tokens.revoke("ff" * 16)
    with pytest.raises(PermissionDenied):
        await tokens.revoke(KITCHEN_TOKEN)
    issued = await oauth.user_tokens()
    server = granted(await oauth.token(basic(SERVER), grant_type="client_credentials"))["access_token"]
    with pytest.raises(PermissionDenied):
        await tokens.revoke(issued["access_token"], on_behalf_of=await tokens.caller(server))
    fake_clock.advance(USER_SECONDS * 1000)
    with pytest.raises(Unauthorized):
        await tokens.revoke(issued["access_token"])
    await tokens.revoke(issued["refresh_token"])  # it can still be used for a refresh


async def test_a_token_that_expires_is_announced_once(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    issued = await oauth.user_tokens()
    announced: list[bytes] = []
    oauth.services.core.router.subscribe(TokenRevoked, lambda fact: announced.append(fact.hash))
    fake_clock.advance(USER_SECONDS * 1000 - 1)
    await oauth.services.accounts.tokens.end_expired()
    assert announced == []
    fake_clock.advance(1)
    await oauth.services.accounts.tokens.end_expired()
    await oauth.services.accounts.tokens.end_expired()
    assert announced == [token_hash(issued["access_token"])]


@pytest.mark.both_engines
async def test_a_refreshed_token_is_announced_after_its_five_minutes(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    old = await oauth.user_tokens()
    await refresh(oauth, WEB, old)
    announced: list[bytes] = []
    oauth.services.core.router.subscribe(TokenRevoked, lambda fact: announced.append(fact.hash))
    fake_clock.advance(300_000)
    await oauth.services.accounts.tokens.end_expired()
    assert announced == [token_hash(old["access_token"])]


async def rows_in(oauth: OAuthWorld, table: str) -> int:
    query = f"SELECT * FROM {table}"  # noqa: S608
    return await oauth.services.core.database.read(lambda tx: len(list(tx.connection.execute(query))))


@pytest.mark.both_engines
async def test_rows_that_can_no_longer_be_used_are_removed_and_no_others(
    oauth: OAuthWorld, fake_clock: FakeClock
) -> None:
    tables = ("token_family", "refresh_token", "authorization_code", "device_code")
    provisioned = await rows_in(oauth, "token")
    await oauth.user_tokens(TV)
    await oauth.code()  # never used
    tokens = await oauth.user_tokens(WEB)
    fake_clock.advance(27 * DAYS)
    tokens = await refresh(oauth, WEB, tokens)
    await oauth.services.accounts.tokens.purge()
    assert [await rows_in(oauth, table) for table in tables] == [2, 3, 1, 0]
    fake_clock.advance(DAYS)
    await oauth.services.accounts.tokens.purge()
    assert [await rows_in(oauth, table) for table in tables] == [1, 1, 1, 0]
    assert await rows_in(oauth, "token") == provisioned + 1
    await refresh(oauth, WEB, tokens)
    fake_clock.advance(29 * DAYS)
    await oauth.services.accounts.tokens.purge()
    await oauth.services.accounts.tokens.purge()
    assert [await rows_in(oauth, table) for table in tables] == [0, 0, 0, 0]
    assert await rows_in(oauth, "token") == provisioned


@pytest.mark.both_engines
async def test_old_rows_are_removed_in_small_steps(
    oauth: OAuthWorld, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "_PURGED_AT_ONCE", 2)
    for _ in range(5):
        await oauth.code()
    fake_clock.advance(60_000)
    await oauth.services.accounts.tokens.purge()
    assert await rows_in(oauth, "authorization_code") == 0


async def test_a_code_is_for_the_user_who_signed_in(oauth: OAuthWorld) -> None:
    asked = await oauth.read(client_id=WEB, response_type="code")
    outcome = await oauth.services.accounts.authorize.allow(asked, oauth.bob.key)
    code = query_of(getattr(outcome, "url", ""))["code"]
    body = granted(await oauth.token(basic(WEB), grant_type="authorization_code", code=code))
    assert (await oauth.services.accounts.tokens.caller(body["access_token"])).user_id == oauth.bob.id
