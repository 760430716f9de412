"""Signing in with an external identity provider that runs on loopback."""

import html
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import pytest
import structlog
from joserfc.jwk import RSAKey

from broker.secrets import token_hash
from broker.services import Services
from config.settings import Accounts, Address, IdentityProvider, Limits, Settings
from protocols.outbound.identity_providers import identity_providers
from protocols.outbound.tls import client_context
from storage.keys import OrganizationKey, UserKey
from storage.records import SecondFactorRecord, UserRecord
from tests.broker.accounts.claim_world import open_unproved
from tests.broker.accounts.oauth_world import CALLBACK, WEB, OAuthWorld, basic, granted, query_of
from tests.builders import ServicesOpener
from tests.factories import ADA, NOW_MS
from tests.fakes import FakeClock
from tests.mail_queue import waiting_mails
from tests.protocols.http.accounts.browser import Browser, Form
from tests.protocols.http.accounts.test_second_factor import Phone, set_up
from tests.protocols.outbound.openid_provider import CLIENT_ID, CLIENT_SECRET, PERSON, OpenIdProvider, running_provider
from tests.rows import each_row

pytestmark = pytest.mark.slow


ASKED = {"client_id": WEB, "response_type": "code", "state": "a b+ü/%"}
HERE = "192.0.2.1"
A_JWT = "its userinfo is a JWT: please register us for plain JSON there"
NEWCOMER = {"sub": "2", "email": "grace@example.org", "email_verified": True, "name": "Grace\n Hopper" + "!" * 80}


@pytest.fixture
def provider() -> Iterator[OpenIdProvider]:
    with running_provider() as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path, provider: OpenIdProvider) -> Settings:
    secret = tmp_path / "provider.secret"
    secret.write_text(f"{CLIENT_SECRET}\n", encoding="utf-8")
    ours = IdentityProvider(name="example", issuer=provider.issuer, client_id=CLIENT_ID, client_secret_file=str(secret))
    other = IdentityProvider(name="other", issuer="https://other.invalid", client_id="us", signup="open")
    limits = Limits(rate_limits="off", quotas="off")
    return Settings(state_dir=tmp_path, accounts=Accounts(providers=(ours, other)), limits=limits)


@pytest.fixture
async def services(opener: ServicesOpener, settings: Settings) -> AsyncIterator[Services]:
    async with opener(providers=identity_providers(settings, client_context(""))) as opened:
        yield opened


def links(shown: httpx.Response) -> list[str]:
    """The links to providers on the sign-in page, in order."""
    parts = shown.text.split('href="')[1:]
    return [part.partition('"')[0].replace("&amp;", "&") for part in parts if part.startswith("/accounts/external?")]


async def leave(browser: Browser, **query: str) -> str:
    """The URL of the provider that the first link redirects to."""
    shown = await browser.open("authorize", **(ASKED | query))
    left = await browser.open(links(shown)[0])
    assert left.status_code == 302, left.text
    return left.headers["location"]


async def come_back(browser: Browser, url: str) -> httpx.Response:
    parts = urlsplit(url)
    return await browser.open("external/callback", **dict(parse_qsl(parts.query)))


async def ada(services: Services) -> UserRecord:
    return await services.accounts.users.find(ADA)


async def test_signing_in(browser: Browser, provider: OpenIdProvider, oauth: OAuthWorld) -> None:
    back = await come_back(browser, provider.agree(await leave(browser)))
    assert back.headers["location"].startswith(f"{CALLBACK}?code=")
    given = query_of(back.headers["location"])
    assert given["state"] == ASKED["state"]
    token = granted(await oauth.token(basic(WEB), grant_type="authorization_code", code=given["code"]))
    assert (await oauth.services.accounts.tokens.information(token["access_token"])).user_id == ADA
    assert (await ada(oauth.services)).account_type == "example"
    # Signed in: neither form nor provider is asked again.
    assert (await browser.open("authorize", **ASKED)).headers["location"].startswith(f"{CALLBACK}?code=")


async def test_the_way_to_a_device(browser: Browser, provider: OpenIdProvider) -> None:
    shown = await browser.open("go", user_code="ABCD-EFGH")
    left = await browser.open(links(shown)[0])
    back = await come_back(browser, provider.agree(left.headers["location"]))
    assert back.headers["location"] == "/accounts/go?user_code=ABCD-EFGH"


@each_row(("account_type", "offered"), [("example", 0), ("EXAMPLE", 2), ("nobody", 2), ("", 2)])
async def test_account_type_selects_one(
    browser: Browser, provider: OpenIdProvider, account_type: str, offered: int
) -> None:
    shown = await browser.open("authorize", **ASKED, account_type=account_type)
    assert len(links(shown)) == offered
    if offered:
        assert Form(shown.text).labelled == {"email", "password"}
    else:
        assert shown.headers["location"].startswith(f"{provider.issuer}/authorize?")


@each_row("path", ["authorize", "signin"])
async def test_a_wanted_login_is_asked_of_the_provider_too(
    browser: Browser, provider: OpenIdProvider, path: str
) -> None:
    wanted = {"prompt": "login"} if path == "authorize" else {}
    shown = await browser.open(path, **ASKED, **wanted)
    for left in (
        await browser.open(links(shown)[0]),
        await browser.open(path, **ASKED, **wanted, account_type="example"),
    ):
        assert query_of(left.headers["location"])["prompt"] == "login"
    assert "prompt" not in query_of(await leave(browser))


async def test_the_second_time_only_the_subject_counts(
    browser: Browser, provider: OpenIdProvider, services: Services
) -> None:
    await come_back(browser, provider.agree(await leave(browser)))
    provider.person = {"sub": PERSON["sub"], "email": "elsewhere@example.org"}
    back = await come_back(browser, provider.agree(await leave(browser, prompt="login")))
    assert back.status_code == 302
    session = await services.accounts.sessions.find(browser.client.cookies["trunkline_session"])
    assert session is not None
    assert session.user.id == ADA


# Invalid ID tokens


def other_key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": "first"})


@each_row(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another"},
        {"aud": [CLIENT_ID, "another"]},
        {"aud": None},
        {"azp": "another"},
        {"iss": "https://another.example.org"},
        {"iss": None},
        {"exp": NOW_MS // 1000 - 121},
        {"exp": None},
        {"iat": NOW_MS // 1000 + 121},
        {"sub": ""},
        {"sub": None},
        {"sub": "x" * 256},
        {"sub": 7},
    ],
)
async def test_an_id_token_with_wrong_claims(
    browser: Browser, provider: OpenIdProvider, claims: dict[str, object]
) -> None:
    provider.claims = claims
    answer = await come_back(browser, provider.agree(await leave(browser)))
    assert answer.status_code == 403
    assert "Signing in with example did not work." in answer.text
    assert Form(answer.text).labelled == {"email", "password"}
    assert "trunkline_session" not in browser.client.cookies


async def test_a_token_with_a_bad_signature(browser: Browser, provider: OpenIdProvider) -> None:
    provider.signing_key = other_key()  # with the key id of the published key
    answer = await come_back(browser, provider.agree(await leave(browser)))
    assert (answer.status_code, "trunkline_session" in browser.client.cookies) == (403, False)


async def test_a_token_without_a_signature(browser: Browser, provider: OpenIdProvider) -> None:
    url = await leave(browser)
    back = provider.agree(url)
    bare = "eyJhbGciOiJub25lIn0.e30."
    provider.metadata = {"id_token_signing_alg_values_supported": ["none", "RS256"]}
    provider.answers["/token"] = (200, b'{"access_token":"a","token_type":"Bearer","id_token":"%s"}' % bare.encode())
    assert (await come_back(browser, back)).status_code == 403


async def test_a_new_key_is_asked_for(
    browser: Browser, provider: OpenIdProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocols.outbound.identity_providers._KEYS_AGAIN_SECONDS", -1)
    await come_back(browser, provider.agree(await leave(browser)))
    provider.key = RSAKey.generate_key(2048, {"kid": "second"})
    back = await come_back(browser, provider.agree(await leave(browser, prompt="login")))
    assert back.status_code == 302
    assert provider.asked.count("/keys") == 2


async def test_unknown_keys_are_fetched_once_a_minute_at_most(browser: Browser, provider: OpenIdProvider) -> None:
    provider.signing_key = RSAKey.generate_key(2048, {"kid": "nobody's"})
    for _ in range(3):
        assert (await come_back(browser, provider.agree(await leave(browser)))).status_code == 403
    assert provider.asked.count("/keys") == 1


# Userinfo


async def test_a_strict_provider_has_the_address_in_userinfo(
    browser: Browser, provider: OpenIdProvider, services: Services
) -> None:
    provider.userinfo = dict(PERSON)
    assert (await come_back(browser, provider.agree(await leave(browser)))).status_code == 302
    assert (await ada(services)).account_type == "example"
    # From now on the subject is enough.
    assert (await come_back(browser, provider.agree(await leave(browser, prompt="login")))).status_code == 302
    assert provider.asked.count("/userinfo") == 1


async def test_an_address_that_only_userinfo_calls_verified(browser: Browser, provider: OpenIdProvider) -> None:
    provider.userinfo, provider.claims = dict(PERSON), {"email": "bob@example.org"}
    assert (await come_back(browser, provider.agree(await leave(browser)))).status_code == 302
    assert (await browser.open("go")).text.count("ada@example.org") == 1


async def test_userinfo_is_not_asked_for_what_the_token_says(browser: Browser, provider: OpenIdProvider) -> None:
    provider.userinfo, provider.claims = dict(PERSON), {"email": PERSON["email"], "email_verified": False}
    assert (await come_back(browser, provider.agree(await leave(browser)))).status_code == 403
    assert "/userinfo" not in provider.asked


@each_row("userinfo", [{"sub": "another"}, {"sub": None}, {}])
async def test_userinfo_about_somebody_else_is_not_believed(
    browser: Browser, provider: OpenIdProvider, services: Services, userinfo: dict[str, object]
) -> None:
    provider.userinfo = {**PERSON, "sub": "", **userinfo}
    answer = await come_back(browser, provider.agree(await leave(browser)))
    assert (answer.status_code, "trunkline_session" in browser.client.cookies) == (403, False)
    assert (await ada(services)).account_type == "LOCAL"


@each_row(
    ("answer", "content_type", "status", "reason"),
    [
        (
            (200, b"e30.e30.e30"),
            "application/jwt",
            403,
            A_JWT,
        ),
        ((401, b""), "application/json", 403, "/userinfo answers 401"),
        ((500, b"{}"), "application/json", 503, "/userinfo answers 500"),
        ((302, b""), "application/json", 503, "/userinfo answers 302"),
        ((200, b"[]"), "application/json", 503, "/userinfo: Expected `object`, got `array`"),
    ],
)
async def test_userinfo_that_cannot_be_read(
    browser: Browser,
    provider: OpenIdProvider,
    answer: tuple[int, bytes],
    content_type: str,
    status: int,
    reason: str,
) -> None:
    provider.userinfo = dict(PERSON)
    provider.answers["/userinfo"], provider.content_types["/userinfo"] = answer, content_type
    with structlog.testing.capture_logs() as logs:
        shown = await come_back(browser, provider.agree(await leave(browser)))
    assert (shown.status_code, "trunkline_session" in browser.client.cookies) == (status, False)
    (told,) = [entry["reason"] for entry in logs if entry["event"].startswith("provider_")]
    assert told.removeprefix(provider.issuer) == reason


# State


async def test_a_state_is_used_once(browser: Browser, provider: OpenIdProvider) -> None:
    url = provider.agree(await leave(browser))
    key = browser.client.cookies["trunkline_form"]
    await come_back(browser, url)
    browser.client.cookies.set("trunkline_form", key, path="/accounts")
    answer = await come_back(browser, url)
    assert answer.status_code == 400
    assert "was not begun in this browser" in answer.text


async def test_a_state_belongs_to_one_browser(browser: Browser, provider: OpenIdProvider, door: Address) -> None:
    url = provider.agree(await leave(browser))
    stranger = Browser(door)
    async with stranger.client:
        assert (await come_back(stranger, url)).status_code == 400  # no cookie
        await stranger.open("authorize", **ASKED)
        assert (await come_back(stranger, url)).status_code == 400  # another browser's cookie
        assert "trunkline_session" not in stranger.client.cookies
    assert (await come_back(browser, url)).status_code == 302  # the failed attempts did not use the state


async def test_a_state_lasts_ten_minutes(browser: Browser, provider: OpenIdProvider, fake_clock: FakeClock) -> None:
    url = provider.agree(await leave(browser))
    fake_clock.advance(600_000)
    assert (await come_back(browser, url)).status_code == 400


@each_row("state", ["", "ff" * 16, "x", "ü"])
async def test_a_state_that_never_was(browser: Browser, provider: OpenIdProvider, state: str) -> None:
    await leave(browser)
    assert (await browser.open("external/callback", code="code-0", state=state)).status_code == 400


async def test_head_requests_to_the_callback_change_nothing(browser: Browser, provider: OpenIdProvider) -> None:
    url = provider.agree(await leave(browser))
    query = urlsplit(url).query
    head = await browser.client.head(f"external/callback?{query}")
    assert (head.status_code, "set-cookie" in head.headers) == (400, False)
    before = len(provider.asked)
    assert (
        await browser.client.head("external?" + urlencode({"provider": "example", "page": "go"}))
    ).status_code == 200
    assert len(provider.asked) == before
    assert (await come_back(browser, url)).status_code == 302


async def test_a_begun_sign_in_is_stored_sealed(browser: Browser, services: Services) -> None:
    sent = query_of(await leave(browser))
    kept = await services.core.database.read(
        lambda tx: repr([dict(row) for row in tx.connection.execute("SELECT * FROM external_sign_in")])
    )
    assert repr(token_hash(sent["state"])) in kept
    for secret in (sent["state"], sent["nonce"], browser.client.cookies["trunkline_form"]):
        assert secret not in kept


# Providers that refuse or fail


@each_row("back", [{"error": "access_denied", "code": ""}, {"code": ""}, {"iss": "https://another.example.org"}])
async def test_error_responses_of_the_provider(
    browser: Browser, provider: OpenIdProvider, back: dict[str, str]
) -> None:
    url = provider.agree(await leave(browser), **back)
    answer = await come_back(browser, url)
    assert answer.status_code == 403
    assert "Signing in with example did not work." in answer.text
    # The person may go on with the form.
    assert Form(answer.text).fields["continue"]


async def test_an_unknown_authorization_code(browser: Browser, provider: OpenIdProvider) -> None:
    answer = await come_back(browser, provider.agree(await leave(browser), code="another"))
    assert answer.status_code == 403


@each_row(
    ("path", "answer", "status"),
    [
        ("/.well-known/openid-configuration", (200, b"{}"), 503),
        *(
            (path, answer, 503)
            for path in ("/.well-known/openid-configuration", "/keys", "/token")
            for answer in ((500, b"{}"), (200, b"<html>"), (200, b"[]"), (302, b""), (200, b" " * 300_000))
        ),
        # Valid JSON objects without what they must have: the token cannot be verified.
        ("/keys", (200, b"{}"), 403),
        ("/token", (200, b"{}"), 403),
    ],
)
async def test_a_provider_that_is_broken(
    browser: Browser,
    provider: OpenIdProvider,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    answer: tuple[int, bytes],
    status: int,
) -> None:
    """A failure is not remembered: each row's path is asked for. What is needed before it, an earlier row may bring."""
    monkeypatch.setattr("protocols.outbound.identity_providers._KEYS_AGAIN_SECONDS", -1)
    provider.answers = {path: answer}
    provider.asked.clear()
    if path.startswith("/.well-known"):
        shown = await browser.open("authorize", **ASKED, account_type="example")
    else:
        shown = await come_back(browser, provider.agree(await leave(browser)))
    assert path in provider.asked
    assert shown.status_code == status
    assert "example" in shown.text
    assert Form(shown.text).labelled == {"email", "password"}
    assert "trunkline_session" not in browser.client.cookies


async def test_a_provider_that_is_down(browser: Browser) -> None:
    shown = await browser.open("authorize", **ASKED, account_type="other")
    assert (shown.status_code, shown.headers["retry-after"]) == (503, "5")
    assert "other cannot be reached at this moment" in shown.text
    assert "form-action 'self' https:;" in shown.headers["content-security-policy"]


@each_row(
    "metadata",
    [
        {"issuer": "https://another.example.org"},
        {"token_endpoint": "http://192.0.2.1/token"},
        {"userinfo_endpoint": "http://192.0.2.1/userinfo"},
        {"jwks_uri": "file:///"},
    ],
)
async def test_metadata_with_untrusted_addresses(
    browser: Browser, provider: OpenIdProvider, metadata: dict[str, str]
) -> None:
    provider.metadata = metadata
    provider.asked.clear()
    assert (await browser.open("authorize", **ASKED, account_type="example")).status_code == 503
    assert provider.asked == ["/.well-known/openid-configuration"]


async def test_a_provider_that_is_not_configured(browser: Browser) -> None:
    shown = await browser.open("authorize", **ASKED)
    way = links(shown)[0].replace("provider=example", "provider=evil")
    assert (await browser.open(way)).status_code == 404
    way = links(shown)[0].replace("continue=", "continue=redirect_uri%3Dhttps://evil.example.org%26")
    assert (await browser.open(way)).status_code == 400


async def test_secrets_are_not_logged(browser: Browser, provider: OpenIdProvider) -> None:
    with structlog.testing.capture_logs() as logs:
        url = provider.agree(await leave(browser), code="do-not-log-me")
        await come_back(browser, url)
    assert logs
    for secret in ("do-not-log-me", query_of(url)["state"], CLIENT_SECRET):
        assert secret not in repr(logs)


# Accounts


async def test_a_local_account_is_taken_over_by_its_proven_owner(
    browser: Browser, provider: OpenIdProvider, oauth: OAuthWorld
) -> None:
    """The person who opened the account with a password need not own its address."""
    before = await oauth.services.accounts.sessions.begin(await ada(oauth.services))
    tokens = await oauth.user_tokens()
    assert (await come_back(browser, provider.agree(await leave(browser)))).status_code == 302
    assert await oauth.services.accounts.sessions.find(before.id) is None
    refreshed = await oauth.token(basic(WEB), grant_type="refresh_token", refresh_token=tokens["refresh_token"])
    assert refreshed.status == 400
    user = await ada(oauth.services)
    assert (user.account_type, user.password_hash) == ("example", None)


async def test_an_address_that_was_not_proved_is_claimed(
    browser: Browser, provider: OpenIdProvider, services: Services, oauth: OAuthWorld
) -> None:
    """A second factor of the stranger does not matter: else the owner of the address could never come in."""
    stranger = await open_unproved(services, str(NEWCOMER["email"]))
    factor = SecondFactorRecord(stranger.key, b"sealed", 0, 1)
    await services.core.database.write(lambda tx: tx.second_factors.add(factor, ()))
    provider.person = NEWCOMER
    back = await come_back(browser, provider.agree(await leave(browser)))
    assert back.headers["location"].startswith("/accounts/account/before?")
    shown = await browser.open(back.headers["location"])
    assert (stranger.id in shown.text, "one-time codes of an app" in shown.text) == (True, True)
    way_on = re.search(r'href="(/accounts/authorize\?[^"]+)"', shown.text)
    assert way_on is not None
    done = await browser.open(html.unescape(way_on[1]))
    assert done.headers["location"].startswith(f"{CALLBACK}?code=")
    user = await services.accounts.users.named(str(NEWCOMER["email"]))
    assert (user.account_type, user.key != stranger.key) == ("example", True)
    # The second time leads straight on.
    again = await come_back(browser, provider.agree(await leave(browser, prompt="login")))
    assert again.headers["location"].startswith(f"{CALLBACK}?code=")


@each_row("verified", [False, "false", None, 1, "yes"])
async def test_an_unverified_address_is_not_used(
    browser: Browser, provider: OpenIdProvider, services: Services, verified: object
) -> None:
    provider.person = {**PERSON, "email_verified": verified}
    answer = await come_back(browser, provider.agree(await leave(browser)))
    assert answer.status_code == 403
    assert "does not confirm" in answer.text
    assert (await ada(services)).account_type == "LOCAL"


async def test_an_account_of_another_provider_is_not_touched(
    browser: Browser, provider: OpenIdProvider, services: Services
) -> None:
    await services.core.database.write(
        lambda tx: tx.accounts.set_sign_in(UserKey(1), account_type="other", password_hash=None, now_ms=1)
    )
    answer = await come_back(browser, provider.agree(await leave(browser)))
    assert answer.status_code == 409
    assert (
        await services.core.database.read(lambda tx: tx.codes.external_user(provider.issuer, str(PERSON["sub"])))
    ) is None


async def test_an_account_with_a_second_factor_is_not_taken_over(
    browser: Browser, provider: OpenIdProvider, services: Services, fake_clock: FakeClock
) -> None:
    """A person who has only the address has neither the password nor the phone."""
    await set_up(browser, fake_clock)
    browser.client.cookies.clear()
    answer = await come_back(browser, provider.agree(await leave(browser)))
    assert answer.status_code == 409
    assert "has a second factor" in answer.text
    user = await ada(services)
    assert (user.account_type, user.password_hash is None) == ("LOCAL", False)


async def test_a_second_factor_here_is_asked_for_after_a_provider_too(
    browser: Browser, provider: OpenIdProvider, fake_clock: FakeClock
) -> None:
    await come_back(browser, provider.agree(await leave(browser)))
    page = await browser.open("account/second-factor")
    phone = Phone(page, fake_clock)
    await browser.send(page, code=phone.code())
    browser.client.cookies.clear()
    back = await come_back(browser, provider.agree(await leave(browser)))
    assert back.status_code == 303
    assert (await browser.client.get("checkSession")).status_code == 401
    asked = await browser.open(back.headers["location"])
    signed_in = await browser.send(asked, code=phone.next_code())
    assert signed_in.headers["location"].startswith(f"{CALLBACK}?code=")


async def test_an_address_that_the_provider_gave_to_another_person(browser: Browser, provider: OpenIdProvider) -> None:
    await come_back(browser, provider.agree(await leave(browser)))
    provider.person = {**PERSON, "sub": "somebody else"}
    answer = await come_back(browser, provider.agree(await leave(browser, prompt="login")))
    assert answer.status_code == 409


async def test_newcomers_need_an_invitation_where_sign_up_is_closed(
    browser: Browser, provider: OpenIdProvider, services: Services
) -> None:
    provider.person = NEWCOMER
    answer = await come_back(browser, provider.agree(await leave(browser)))
    assert answer.status_code == 403
    assert "Ask whoever runs this service for an invitation." in answer.text

    invitation = {"email": "grace@example.org", "organization": "Acme", "role": "viewer"}
    await services.provisioning.apply({"invitations": [invitation]})
    assert (await come_back(browser, provider.agree(await leave(browser)))).status_code == 302
    session = await services.accounts.sessions.find(browser.client.cookies["trunkline_session"])
    assert session is not None
    user = session.user
    assert (user.email, user.account_type, user.password_hash) == ("grace@example.org", "example", None)
    assert user.full_name == ("Grace Hopper" + "!" * 80)[:64]
    assert await services.core.database.read(lambda tx: tx.accounts.role_of(OrganizationKey(1), user.key)) == "viewer"
    assert await services.core.database.read(lambda tx: tx.codes.invitation_of("grace@example.org")) is None


@pytest.mark.both_engines
async def test_a_person_without_a_password_gets_none_by_mail(
    browser: Browser, provider: OpenIdProvider, services: Services
) -> None:
    await come_back(browser, provider.agree(await leave(browser)))
    await services.accounts.resets.ask("ada@example.org", address=HERE)
    kinds = [mail.kind for mail in await services.core.database.read(waiting_mails)]
    assert kinds == ["no_password_here"]
    code = await services.core.database.read(
        lambda tx: tx.connection.execute("SELECT count(*) AS n FROM password_reset WHERE user IS NOT NULL").one()
    )
    assert code is not None
    assert code["n"] == 0
    shown = await browser.open("authorize", **ASKED, prompt="login")
    assert (await browser.sign_in(shown)).status_code == 403
