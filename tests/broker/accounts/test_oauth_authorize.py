"""/authorize: every row of the error table, where errors are redirected to, and when consent is needed."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from broker.accounts.authorize import AuthorizationRequest, ErrorPage, Redirect
from broker.accounts.permissions import Permission
from broker.services import Services
from tests.broker.accounts.oauth_world import (
    BOTH,
    CALLBACK,
    MOBILE,
    MOBILE_CALLBACK,
    OTHER_CALLBACK,
    PAGE,
    PAGE_CALLBACK,
    PROTECTED_TYPE,
    SERVER,
    THEIR_TYPE,
    VERIFIER,
    WEB,
    OAuthWorld,
    application_of,
    basic,
    challenge_of,
    granted,
    provision_application,
    query_of,
    refused,
)
from tests.factories import KITCHEN, LIGHT_TYPE
from tests.rows import each_row

CHALLENGE = challenge_of(VERIFIER)
PKCE = f"code_challenge={CHALLENGE}&code_challenge_method=S256"

_WHY = {
    "client_id": "it names no application",
    "redirect_uri": "it is none of the addresses that the application registered",
}


@each_row(
    ("query", "text"),
    [
        ("", "client_id"),
        ("response_type=code", "client_id"),
        ("response_type=code&client_id=" + "ff" * 16, "client_id"),
        (f"response_type=code&client_id={WEB.upper()}", "client_id"),
        (f"response_type=code&client_id={WEB}&client_id={MOBILE}", "client_id"),
        (f"response_type=code&client_id=%FF&redirect_uri={CALLBACK}", "client_id"),
        (f"response_type=code&client_id={WEB}&redirect_uri=https://evil.example", "redirect_uri"),
        (f"response_type=code&client_id={WEB}&redirect_uri={CALLBACK}/", "redirect_uri"),
        (f"response_type=code&client_id={WEB}&redirect_uri={CALLBACK}%3Fx", "redirect_uri"),
        (f"response_type=code&client_id={WEB}&redirect_uri={CALLBACK}%23x", "redirect_uri"),
        (f"response_type=code&client_id={WEB}&redirect_uri={CALLBACK}%0A", "redirect_uri"),
        (f"response_type=code&client_id={WEB}&redirect_uri=+{CALLBACK}", "redirect_uri"),
        (f"response_type=code&client_id={WEB}&redirect_uri={CALLBACK.upper()}", "redirect_uri"),
        (f"response_type=code&client_id={WEB}&redirect_uri=https://web.example.org%40evil.example", "redirect_uri"),
        (f"response_type=code&client_id={WEB}&redirect_uri=//web.example.org/callback", "redirect_uri"),
        (f"response_type=code&client_id={WEB}&redirect_uri={CALLBACK}&redirect_uri={CALLBACK}/", "redirect_uri"),
        (f"response_type=code&client_id={WEB}&redirect_uri={PAGE_CALLBACK}", "redirect_uri"),
        (f"response_type=code&client_id={SERVER}", "redirect_uri"),  # it has no redirect URI
    ],
)
async def test_without_a_trusted_redirect_uri_the_outcome_is_an_error_page(
    services: Services, oauth: OAuthWorld, query: str, text: str
) -> None:
    assert await services.accounts.authorize.read(query.encode()) == ErrorPage(
        400, f"Invalid parameter: {text}: {_WHY[text]}"
    )


@each_row(
    ("application", "query", "error"),
    [
        (WEB, "", "invalid_request"),
        (WEB, "response_type=", "invalid_request"),
        (WEB, "response_type=id_token", "invalid_request"),
        (WEB, "response_type=code+token", "invalid_request"),
        (WEB, "response_type=Code", "invalid_request"),
        (WEB, "response_type=code&response_type=code", "invalid_request"),
        (WEB, "response_type=code&prompt=login&prompt=login", "invalid_request"),
        (WEB, "response_type=code&account_type=a&account_type=b", "invalid_request"),
        (WEB, "response_type=code&prompt=never", "invalid_request"),
        (MOBILE, f"response_type=code&code_challenge={CHALLENGE}", "invalid_request"),
        (MOBILE, "response_type=code&code_challenge_method=S256", "invalid_request"),
        (MOBILE, f"response_type=code&code_challenge={CHALLENGE}&code_challenge_method=plain", "invalid_request"),
        (MOBILE, f"response_type=code&code_challenge={CHALLENGE}&code_challenge_method=s256", "invalid_request"),
        (MOBILE, f"response_type=code&code_challenge={CHALLENGE}=&code_challenge_method=S256", "invalid_request"),
        (MOBILE, f"response_type=code&code_challenge={CHALLENGE[:-1]}&code_challenge_method=S256", "invalid_request"),
        (MOBILE, f"response_type=code&{PKCE}&code_challenge={CHALLENGE}", "invalid_request"),
        (MOBILE, "response_type=code", "unauthorized_client"),
        (PAGE, "response_type=code", "unauthorized_client"),
        (PAGE, f"response_type=code&{PKCE}", "unauthorized_client"),
    ],
)
async def test_other_errors_of_the_code_flow_go_into_the_query(
    services: Services, oauth: OAuthWorld, application: str, query: str, error: str
) -> None:
    decided = await services.accounts.authorize.read(f"client_id={application}&state=x&{query}".encode())
    assert isinstance(decided, Redirect)
    assert query_of(decided.url) == {"error": error, "state": "x"}
    assert decided.url.startswith({WEB: CALLBACK, MOBILE: MOBILE_CALLBACK, PAGE: PAGE_CALLBACK}[application] + "?")


@each_row(
    ("application", "query", "error"),
    [
        (WEB, "response_type=token", "unauthorized_client"),
        (PAGE, "response_type=token&prompt=no", "invalid_request"),
        (PAGE, "response_type=token&response_type=token", "invalid_request"),
    ],
)
async def test_errors_of_the_implicit_flow_go_into_the_fragment(
    services: Services, oauth: OAuthWorld, application: str, query: str, error: str
) -> None:
    decided = await services.accounts.authorize.read(f"client_id={application}&state=x&{query}".encode())
    assert isinstance(decided, Redirect)
    assert urlsplit(decided.url).query == ""
    assert urlsplit(decided.url).fragment == f"error={error}&state=x"


async def test_a_repeated_state_is_not_returned(services: Services, oauth: OAuthWorld) -> None:
    decided = await services.accounts.authorize.read(f"client_id={WEB}&response_type=code&state=a&state=b".encode())
    assert decided == Redirect(f"{CALLBACK}?error=invalid_request")


@each_row(
    ("query", "location"),
    [
        (f"client_id={WEB}&client_id={WEB}", f"{CALLBACK}?error=invalid_request&state=s"),
        (
            f"client_id={WEB}&redirect_uri={OTHER_CALLBACK}&redirect_uri={OTHER_CALLBACK}".replace("%2F", "%252F"),
            f"{OTHER_CALLBACK}&error=invalid_request&state=s",
        ),
        (f"client_id={WEB}&client_id={MOBILE}", None),
        (f"client_id={WEB}&redirect_uri={CALLBACK}&redirect_uri=https://evil.example/", None),
        (f"client_id={WEB}&redirect_uri=https://evil.example/&redirect_uri=https://evil.example/", None),
    ],
)
async def test_who_is_asked_for_twice_is_told_so_if_it_is_the_same(
    services: Services, oauth: OAuthWorld, query: str, location: str | None
) -> None:
    decided = await services.accounts.authorize.read(f"{query}&response_type=code&state=s".encode())
    if location is None:
        assert isinstance(decided, ErrorPage)
    else:
        assert decided == Redirect(location)


async def test_a_loopback_redirect_has_the_port_that_was_asked_for(oauth: OAuthWorld) -> None:
    """A program on a computer takes any free port (RFC 8252, 7.3), and the token call names the same address."""
    registered, asked = "http://127.0.0.1/done", "http://127.0.0.1:49152/done"
    await provision_application(oauth.services, WEB, redirect_uri=registered, any_loopback_port=True)
    url = await oauth.allow(client_id=WEB, response_type="code", redirect_uri=asked)
    assert url.startswith(f"{asked}?code=")
    form = {"grant_type": "authorization_code", "code": query_of(url)["code"]}
    assert refused(await oauth.token(basic(WEB), **form, redirect_uri=registered)) == (400, "invalid_grant")
    granted(await oauth.token(basic(WEB), **form, redirect_uri=asked))


async def test_refusal_and_failure_go_to_the_application(oauth: OAuthWorld) -> None:
    web = await oauth.read(client_id=WEB, response_type="code", state="s")
    page = await oauth.read(client_id=PAGE, response_type="token", state="s")
    assert (await oauth.services.accounts.authorize.deny(web)).url == f"{CALLBACK}?error=access_denied&state=s"
    assert (await oauth.services.accounts.authorize.deny(page)).url == f"{PAGE_CALLBACK}#error=access_denied&state=s"
    assert web.error("server_error").url == f"{CALLBACK}?error=server_error&state=s"


@each_row(
    ("application", "query"),
    [
        (WEB, "response_type=code"),
        (WEB, f"response_type=code&redirect_uri={OTHER_CALLBACK.replace('%', '%25')}"),
        (WEB, f"response_type=code&{PKCE}"),  # an application with a secret may send a challenge
        (MOBILE, f"response_type=code&{PKCE}"),
        (BOTH, "response_type=code"),
        (BOTH, f"response_type=code&{PKCE}"),
        (PAGE, "response_type=token"),
        (WEB, "?response_type=code&scope=a&scope=b&client=x&client=y&unknown=1&unknown=2&account_type=&prompt="),
    ],
)
async def test_valid_requests(services: Services, oauth: OAuthWorld, application: str, query: str) -> None:
    decided = await services.accounts.authorize.read(f"{query}&client_id={application}".encode())
    assert isinstance(decided, AuthorizationRequest)
    assert decided.application.id == application


async def test_the_request_has_what_the_pages_read(oauth: OAuthWorld) -> None:
    plain = await oauth.read(client_id=WEB, response_type="code")
    assert (plain.login_wanted, plain.account_type, plain.blank_style, plain.state) == (False, None, False, None)
    asked = await oauth.read(
        client_id=WEB, response_type="code", prompt="login", account_type="google", test_css_blank="1"
    )
    assert (asked.login_wanted, asked.account_type, asked.blank_style) == (True, "google", True)
    assert await oauth.services.accounts.authorize.read(asked.query) == asked


@each_row("state", ["a b+c&d=e#f%25", "ä漢", "~-_.,!", "\r\nSet-Cookie: x=1"])
async def test_state_comes_back_unchanged(oauth: OAuthWorld, state: str) -> None:
    url = await oauth.allow(client_id=WEB, response_type="code", state=state)
    assert query_of(url)["state"] == state
    assert url.isascii()
    assert url.isprintable()


async def test_state_comes_back_also_when_it_is_not_utf_8(services: Services, oauth: OAuthWorld) -> None:
    decided = await services.accounts.authorize.read(f"client_id={WEB}&response_type=x&state=%FF%00a".encode())
    assert decided == Redirect(f"{CALLBACK}?error=invalid_request&state=%FF%00a")


async def test_the_code_flow_ends_with_a_code_in_the_query(oauth: OAuthWorld) -> None:
    url = await oauth.allow(client_id=WEB, response_type="code", redirect_uri=OTHER_CALLBACK)
    assert re.fullmatch(re.escape(OTHER_CALLBACK) + "&code=[0-9a-f]{32}", url)
    mobile = await oauth.allow(
        client_id=MOBILE, response_type="code", code_challenge=CHALLENGE, code_challenge_method="S256"
    )
    assert re.fullmatch(r"myapp:///done\?code=[0-9a-f]{32}", mobile)


async def test_the_implicit_flow_ends_with_tokens_in_the_fragment(oauth: OAuthWorld) -> None:
    url = await oauth.allow(client_id=PAGE, response_type="token", state="s")
    assert re.fullmatch(
        re.escape(PAGE_CALLBACK) + "#access_token=[0-9a-f]{32}&token_type=bearer&expires_in=1209600"
        "&refresh_token=[0-9a-f]{32}&scope=read,write&state=s",
        url,
    )
    token = parse_qs(urlsplit(url).fragment)["access_token"][0]
    caller = await oauth.services.accounts.tokens.caller(token)
    assert (caller.user_id, caller.application_id) == (oauth.ada.id, PAGE)


async def test_an_application_whose_method_was_disabled_meanwhile_gets_no_code(oauth: OAuthWorld) -> None:
    asked = await oauth.read(client_id=WEB, response_type="code")
    await oauth.change_methods(WEB, "client_credentials")
    outcome = await oauth.services.accounts.authorize.allow(asked, oauth.ada.key)
    assert outcome == Redirect(f"{CALLBACK}?error=unauthorized_client")


# Consent


def asks(device_type: str, *permissions: str) -> dict[str, object]:
    return {"device_type": device_type, "permissions": list(permissions)}


@each_row(
    ("requested", "shown"),
    [
        ([], None),
        ([asks(LIGHT_TYPE, "READ", "WRITE")], None),
        ([asks("profile", "READ")], None),
        ([asks("dt" + "9" * 32, "READ")], None),  # a deleted type
        ([asks(PROTECTED_TYPE, "READ")], None),  # only for its own organization's applications
        ([asks(THEIR_TYPE, "READ")], [("Their Lock", ("READ",))]),
        ([asks(THEIR_TYPE, "DEVICE_WRITE")], [("Their Lock", ("WRITE",))]),
        (
            [asks(LIGHT_TYPE, "READ"), asks(THEIR_TYPE, "WRITE")],
            [("Smart Light", ("READ",)), ("Their Lock", ("WRITE",))],
        ),
        ([asks("*", "READ", "WRITE")], [("*", ("READ", "WRITE"))]),
        ([asks("profile", "PROFILE_WRITE")], [("profile", ("WRITE",))]),
        ([asks("trials", "READ")], [("trials", ("READ", "WRITE"))]),
    ],
)
async def test_when_consent_is_needed(
    oauth: OAuthWorld, requested: list[dict[str, object]], shown: list[tuple[str, tuple[str, ...]]] | None
) -> None:
    await oauth.ask_for(WEB, requested)
    screen = await oauth.services.accounts.authorize.consent_needed(
        await oauth.read(client_id=WEB, response_type="code"), oauth.ada.key
    )
    if shown is None:
        assert screen is None
    else:
        assert screen is not None
        assert (screen.application, screen.organization) == ("Web", "Acme")
        assert [
            (one.name or one.target, ("READ",) * one.read + ("WRITE",) * one.write) for one in screen.asked
        ] == shown


async def grants_of(oauth: OAuthWorld, application: str) -> set[tuple[int | None, bool, bool]]:
    found = await application_of(oauth.services, application)
    grants = await oauth.services.core.database.read(lambda tx: tx.accounts.grants(found.key, oauth.ada.key))
    return {(grant.device_type, grant.read, grant.write) for grant in grants}


async def test_grants_are_added_and_never_removed(oauth: OAuthWorld) -> None:
    lock = await oauth.services.core.database.read(lambda tx: tx.device_types.by_id(THEIR_TYPE))
    assert lock is not None
    await oauth.ask_for(WEB, [asks(THEIR_TYPE, "READ")])
    asked = await oauth.read(client_id=WEB, response_type="code")
    await oauth.services.accounts.authorize.deny(asked)
    assert await grants_of(oauth, WEB) == set()
    screen = await oauth.services.accounts.authorize.consent_needed(asked, oauth.ada.key)
    await oauth.services.accounts.authorize.allow(asked, oauth.ada.key, agreed=screen)
    assert await grants_of(oauth, WEB) == {(None, False, False), (lock.key, True, False)}
    await oauth.ask_for(WEB, [asks(THEIR_TYPE, "WRITE"), asks("*", "READ")])
    await oauth.code(WEB)
    assert await grants_of(oauth, WEB) == {(None, True, False), (lock.key, True, True)}
    await oauth.ask_for(WEB, [])
    await oauth.code(WEB)
    assert await grants_of(oauth, WEB) == {(None, True, False), (lock.key, True, True)}


async def test_an_application_reaches_its_own_types_of_users_who_signed_in(oauth: OAuthWorld) -> None:
    await oauth.change_methods(WEB, "authorization_code", "client_credentials")
    answer = granted(await oauth.token(basic(WEB), grant_type="client_credentials"))
    caller = await oauth.services.accounts.tokens.caller(answer["access_token"])
    kitchen = await oauth.services.devices.registry.find(KITCHEN)
    assert not (await oauth.services.accounts.permissions.reach(caller)).allows(kitchen, Permission.READ)
    await oauth.code(WEB)
    assert (await oauth.services.accounts.permissions.reach(caller)).allows(kitchen, Permission.WRITE)


@pytest.mark.both_engines
async def test_every_registered_redirect_uri_may_follow_a_logout(oauth: OAuthWorld) -> None:
    for uri, known in (
        (CALLBACK, True),
        (OTHER_CALLBACK, True),
        (MOBILE_CALLBACK, True),
        (f"{CALLBACK}/", False),
        ("https://evil.example", False),
        ("", False),
    ):
        assert await oauth.services.accounts.applications.is_redirect_uri(uri) is known
