"""The pages: sign-in, consent, sign-out, and attacks on them."""

from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
import pytest
import structlog

from broker.services import Services
from config.settings import Address, Limits, Settings
from protocols.http.accounts.forms import in_address
from protocols.http.accounts.pages import _schemes_of
from tests.broker.accounts.oauth_world import (
    CALLBACK,
    MOBILE,
    MOBILE_CALLBACK,
    OTHER_CALLBACK,
    PAGE,
    PAGE_CALLBACK,
    THEIR_TYPE,
    VERIFIER,
    WEB,
    OAuthWorld,
    application_of,
    basic,
    challenge_of,
    granted,
    query_of,
)
from tests.factories import ADA, BOB
from tests.fakes import FakeClock
from tests.protocols.http.accounts.browser import PASSWORD, Browser, Form, give_password
from tests.rows import each_row
from tests.stores import drop_table

ASKED = {"client_id": WEB, "response_type": "code", "state": "a b+ü/%"}
MINUTES = 60_000
WRONG = "The e-mail address or the password is wrong."


async def user_of(services: Services, access_token: str) -> str | None:
    return (await services.accounts.tokens.information(access_token)).user_id


async def ask_for_their_locks(oauth: OAuthWorld, application: str = WEB) -> None:
    await oauth.ask_for(
        application,
        [{"device_type": THEIR_TYPE, "permissions": ["READ"]}, {"device_type": "profile", "permissions": ["WRITE"]}],
    )


# Flows


@pytest.mark.parametrize("name", ["ada@example.org", " ADA@example.org ", "ada-example"])
async def test_authorization_code(browser: Browser, oauth: OAuthWorld, name: str) -> None:
    shown = await browser.open("authorize", **ASKED)
    assert shown.status_code == 200
    assert "<strong>Web</strong>" in shown.text
    back = await browser.sign_in(shown, name)
    assert back.status_code == 302
    given = query_of(back.headers["location"])
    assert back.headers["location"].startswith(f"{CALLBACK}?code=")
    assert given["state"] == ASKED["state"]
    token = granted(await oauth.token(basic(WEB), grant_type="authorization_code", code=given["code"]))
    assert await user_of(oauth.services, token["access_token"]) == ADA


async def test_pkce(browser: Browser, oauth: OAuthWorld) -> None:
    asked = {"code_challenge": challenge_of(VERIFIER), "code_challenge_method": "S256"}
    shown = await browser.open("authorize", client_id=MOBILE, response_type="code", **asked)
    assert "form-action 'self' myapp:;" in shown.headers["content-security-policy"]
    back = (await browser.sign_in(shown)).headers["location"]
    assert back.startswith(f"{MOBILE_CALLBACK}?code=")
    form = {"client_id": MOBILE, "code": query_of(back)["code"], "code_verifier": VERIFIER}
    token = granted(await oauth.token(grant_type="authorization_code", **form))
    assert await user_of(oauth.services, token["access_token"]) == ADA


async def test_implicit(browser: Browser, oauth: OAuthWorld) -> None:
    shown = await browser.open("authorize", client_id=PAGE, response_type="token", state="s")
    back = (await browser.sign_in(shown)).headers["location"]
    assert back.startswith(f"{PAGE_CALLBACK}#access_token=")
    given = parse_qs(urlsplit(back).fragment)
    assert given["state"] == ["s"]
    assert await user_of(oauth.services, given["access_token"][0]) == ADA


async def test_a_signed_in_person_sees_no_form(browser: Browser) -> None:
    await browser.sign_in(await browser.open("authorize", **ASKED))
    assert (await browser.open("authorize", **ASKED)).headers["location"].startswith(f"{CALLBACK}?code=")


async def test_an_application_may_ask_without_a_page(browser: Browser, oauth: OAuthWorld) -> None:
    """prompt=none (OpenID Connect Core 1.0, 3.1.2.1): a code, or an error that says which page would be needed."""
    silent = {**ASKED, "prompt": "none", "scope": "openid"}

    async def answer(**more: str) -> dict[str, str]:
        return query_of((await browser.open("authorize", **silent | more)).headers["location"])

    assert (await answer())["error"] == "login_required"
    await browser.sign_in(await browser.open("authorize", **ASKED))
    assert [set(await answer(**more)) for more in ({}, {"max_age": "60"})] == [{"code", "state"}] * 2
    await ask_for_their_locks(oauth)
    given = await answer()
    assert (given["error"], given["state"]) == ("consent_required", ASKED["state"])


async def test_max_age_asks_for_the_password_again_once(
    browser: Browser, oauth: OAuthWorld, fake_clock: FakeClock
) -> None:
    await ask_for_their_locks(oauth)
    await browser.sign_in(await browser.open("authorize", **ASKED))
    fake_clock.advance(MINUTES)
    aged = {**ASKED, "scope": "openid", "max_age": "0", "prompt": "login consent"}
    shown = await browser.open("authorize", **aged)
    assert "Sign in" in shown.text
    back = await browser.sign_in(shown)
    address = str(back.url)
    assert ("max_age" in address, address.count("prompt="), "prompt=consent" in address) == (False, 1, True)
    assert "Their Lock" in back.text
    silent = await browser.open("authorize", **ASKED, prompt="none", max_age="0")
    assert "error=" in silent.headers["location"]


async def test_head_requests_change_nothing(browser: Browser, oauth: OAuthWorld) -> None:
    await browser.sign_in(await browser.open("authorize", **ASKED))

    async def codes() -> int:
        rows = "SELECT count(*) AS n FROM authorization_code"
        found = await oauth.services.core.database.read(lambda tx: tx.connection.execute(rows).one())
        return int(found["n"]) if found else 0

    before = await codes()
    for path in (f"authorize?{urlencode(ASKED)}", f"signin?{urlencode(ASKED)}", f"logout?redirect_uri={CALLBACK}"):
        head = await browser.client.head(path)
        assert head.status_code == (302 if path.startswith("logout") else 200)
        assert head.content == b""
        assert "set-cookie" not in head.headers
    assert await codes() == before
    assert (await browser.client.get("checkSession")).status_code == 200
    head = await browser.client.head(f"authorize?{urlencode(ASKED | {'prompt': 'never'})}")
    assert query_of(head.headers["location"])["error"] == "invalid_request"


@pytest.mark.parametrize(("path", "more"), [("authorize", {"prompt": "login"}), ("signin", {})])
async def test_another_person_may_sign_in(browser: Browser, oauth: OAuthWorld, path: str, more: dict[str, str]) -> None:
    await give_password(oauth.services, oauth.bob)
    await browser.sign_in(await browser.open("authorize", **ASKED))
    first = browser.client.cookies["trunkline_session"]
    back = await browser.sign_in(await browser.open(path, **ASKED, **more), "bob-example")
    code = query_of(back.headers["location"])["code"]
    token = granted(await oauth.token(basic(WEB), grant_type="authorization_code", code=code))
    assert await user_of(oauth.services, token["access_token"]) == BOB
    assert await oauth.services.accounts.sessions.find(first) is None


# Errors of the request


@each_row("path", ["authorize", "signin"])
@each_row(
    ("changed", "text"),
    [
        ({"client_id": "ff" * 16}, "Invalid parameter: client_id"),
        ({"client_id": ""}, "Invalid parameter: client_id"),
        ({"redirect_uri": "https://evil.example.org/"}, "Invalid parameter: redirect_uri"),
        ({"redirect_uri": f"{CALLBACK}/"}, "Invalid parameter: redirect_uri"),
        ({"redirect_uri": "//evil.example.org"}, "Invalid parameter: redirect_uri"),
    ],
)
async def test_without_a_trusted_address_there_is_a_page(
    browser: Browser, path: str, changed: dict[str, str], text: str
) -> None:
    answer = await browser.open(path, **(ASKED | changed))
    assert answer.status_code == 400
    assert text in answer.text
    assert "location" not in answer.headers


async def test_other_errors_go_to_the_application(browser: Browser) -> None:
    back = (await browser.open("authorize", **(ASKED | {"prompt": "never"}))).headers["location"]
    assert query_of(back) == {"error": "invalid_request", "state": ASKED["state"]}
    back = (await browser.open("authorize", **(ASKED | {"response_type": "token"}))).headers["location"]
    assert back.startswith(f"{CALLBACK}#error=unauthorized_client")


@each_row("forged", ["client_id=x&redirect_uri=https://evil.example.org", "https://evil.example.org", ""])
@each_row("path", ["/accounts/login", "/accounts/consent"])
async def test_a_forged_continue_is_no_open_redirect(browser: Browser, path: str, forged: str) -> None:
    shown = await browser.open("authorize", **ASKED)
    fields = Form(shown.text).fields | {"email": "ada-example", "password": PASSWORD, "continue": forged}
    answer = await browser.post(path, fields | {"decision": "allow"})
    assert answer.status_code == 400
    assert "location" not in answer.headers
    forged = f"{urlencode(ASKED)}&redirect_uri=https%3A%2F%2Fevil.example.org"
    assert (await browser.post(path, fields | {"continue": forged})).status_code == 400


async def test_the_only_other_page_after_a_sign_in_is_go(browser: Browser) -> None:
    shown = await browser.open("go")
    answer = await browser.sign_in(shown, **{"continue": "https://evil.example.org?user_code=a%26b&next=evil"})
    assert answer.headers["location"] == "/accounts/go"
    answer = await browser.sign_in(await browser.open("signin", **ASKED), page="https://evil.example.org")
    assert answer.headers["location"].startswith(CALLBACK)


async def test_unexpected_failures(browser: Browser, oauth: OAuthWorld) -> None:
    shown = await browser.open("authorize", **ASKED)
    await oauth.services.core.database.write(lambda tx: drop_table(tx.connection, "session"))
    back = await browser.sign_in(shown)
    assert query_of(back.headers["location"]) == {"error": "server_error", "state": ASKED["state"]}
    browser.client.cookies.set("trunkline_session", "ff" * 16)
    answer = await browser.open("go")
    assert answer.status_code == 503
    assert "no such table" not in answer.text
    assert "does not exist" not in answer.text


async def test_a_form_that_is_too_long(browser: Browser) -> None:
    assert (await browser.post("/accounts/login", {"email": "a" * 70_000})).status_code == 413


# Sign-in


async def test_who_has_the_password_of_a_disabled_account_reads_that_it_is_disabled(
    services: Services, browser: Browser
) -> None:
    await services.accounts.disabling.disable("ada@example.org")
    shown = await browser.open("authorize", **ASKED)
    answer = await browser.sign_in(shown, "ada@example.org", password=PASSWORD)
    assert answer.status_code == 403
    assert "This account is disabled." in answer.text
    assert "trunkline_session" not in browser.client.cookies
    assert WRONG in (await browser.sign_in(shown, "ada@example.org", password="wrong")).text


async def test_a_wrong_password(browser: Browser) -> None:
    shown = await browser.open("authorize", **ASKED)
    answers = []
    for name in ("ada@example.org", "nobody@example.org", "bob-example"):  # Bob has no password
        answer = await browser.sign_in(shown, name, password="wrong <b>")
        form = Form(answer.text)
        assert (answer.status_code, form.fields["email"], form.fields["password"]) == (403, name, "")
        assert "trunkline_session" not in browser.client.cookies
        answers.append(answer.text.replace(name, ""))
    assert WRONG in answers[0]
    assert len(set(answers)) == 1
    assert (await browser.sign_in(shown)).status_code == 302


@pytest.mark.parametrize("name", ["ada@example.org", "nobody@example.org"])
async def test_five_wrong_passwords(browser: Browser, fake_clock: FakeClock, name: str) -> None:
    shown = await browser.open("authorize", **ASKED)
    for _ in range(5):
        assert (await browser.sign_in(shown, name, password="wrong")).status_code == 403
    answer = await browser.sign_in(shown, name)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "900")
    assert "Try again in 900 seconds" in answer.text
    # The user name and other spellings lead to the same account.
    other = "ada-example" if name.startswith("ada") else name.upper()
    assert (await browser.sign_in(shown, other)).status_code == 429
    fake_clock.advance(15 * MINUTES)
    assert (await browser.sign_in(shown, name)).status_code == (302 if name.startswith("ada") else 403)


async def test_the_sign_in_form_must_have_been_shown(browser: Browser, door: Address) -> None:
    shown = await browser.open("authorize", **ASKED)
    for csrf in ("", "0" * 64, "ü", "\0"):
        answer = await browser.sign_in(shown, csrf=csrf)
        assert answer.status_code == 403
        assert "no longer valid" in answer.text
        assert "trunkline_session" not in browser.client.cookies
    stranger = Browser(door)
    async with stranger.client:
        assert (await stranger.sign_in(shown)).status_code == 403  # no cookie
        await stranger.open("authorize", **ASKED)
        assert (await stranger.sign_in(shown)).status_code == 403  # another browser's cookie
        answer = await stranger.sign_in(await stranger.sign_in(shown))
        assert answer.status_code == 302


async def test_two_forms_may_be_open(browser: Browser) -> None:
    first, _second = await browser.open("authorize", **ASKED), await browser.open("authorize", **ASKED)
    assert (await browser.sign_in(first)).status_code == 302


async def test_no_password_in_any_log(browser: Browser) -> None:
    shown = await browser.open("authorize", **ASKED)
    with structlog.testing.capture_logs() as logs:
        await browser.sign_in(shown, password="do-not-log-me")
        await browser.sign_in(shown, password="do-not-log-me", **{"continue": "do-not-log-me"})
    assert "do-not-log-me" not in repr(logs)


# Cookies


def cookies_of(answer: httpx.Response) -> SimpleCookie:
    cookies = SimpleCookie()
    for line in answer.headers.get_list("set-cookie"):
        cookies.load(line)
    return cookies


async def test_cookies(browser: Browser, fake_clock: FakeClock) -> None:
    shown = await browser.open("authorize", **ASKED)
    key = cookies_of(shown)["trunkline_form"]
    assert (key["path"], key["httponly"], key["samesite"], key["secure"]) == ("/accounts", True, "Lax", "")
    session = cookies_of(await browser.sign_in(shown))["trunkline_session"]
    assert len(session.value) == 32
    assert (session["path"], session["httponly"], session["samesite"]) == ("/", True, "Lax")
    assert session["max-age"] == str(14 * 86_400)
    fake_clock.advance(14 * 86_400_000 - 1)
    assert (await browser.client.get("checkSession")).json() == {"data": {"message": "Session is valid"}}
    fake_clock.advance(1)
    assert (await browser.client.get("checkSession")).status_code == 401
    assert (await browser.open("authorize", **ASKED)).status_code == 200


class TestWithHttps:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        limits = Limits(rate_limits="off", quotas="off")
        return Settings(state_dir=tmp_path, public_url="https://cloud.example.org", limits=limits)

    async def test_cookies_are_secure(self, browser: Browser) -> None:
        shown = await browser.open("authorize", **ASKED)
        assert cookies_of(shown)["trunkline_form"]["secure"] is True
        # httpx keeps secure cookies from plain HTTP, as browsers do.
        browser.client.headers["Cookie"] = f"trunkline_form={cookies_of(shown)['trunkline_form'].value}"
        assert cookies_of(await browser.sign_in(shown))["trunkline_session"]["secure"] is True


# Consent


async def test_consent(browser: Browser, oauth: OAuthWorld) -> None:
    await ask_for_their_locks(oauth)
    shown = await browser.sign_in(await browser.open("authorize", **ASKED, redirect_uri=OTHER_CALLBACK))
    assert shown.status_code == 200
    for text in (
        "Web",
        "by Acme",
        "See your devices of the type Their Lock and their messages.",
        "ada@example.org",
    ):
        assert text in shown.text
    assert "delete your account with all that is yours" in shown.text
    assert "After 28 days without use it asks you to sign in again" in shown.text
    assert "You can end it at any time: in the console, on the page of your account." in shown.text
    assert "form-action 'self' https:;" in shown.headers["content-security-policy"]
    back = await browser.send(shown, decision="allow")
    assert back.headers["location"].startswith(f"{OTHER_CALLBACK}&code=")
    assert query_of(back.headers["location"])["state"] == ASKED["state"]
    application = await application_of(oauth.services, WEB)
    grants = await oauth.services.core.database.read(lambda tx: tx.accounts.grants(application.key, oauth.ada.key))
    assert [grant.read for grant in grants if grant.device_type is not None] == [True]


async def test_managing_trials_is_agreed_to_on_the_permission_screen(browser: Browser, oauth: OAuthWorld) -> None:
    """Never without the screen, and the screen says that the addresses of other people are seen."""
    await oauth.ask_for(WEB, [{"device_type": "trials", "permissions": ["READ"]}])
    shown = await browser.sign_in(await browser.open("authorize", **ASKED))
    for text in ("delete your trials", "invite people", "see the addresses of the participants"):
        assert text in shown.text
    application = await application_of(oauth.services, WEB)
    for decision, expected in (("deny", []), ("allow", [True])):
        await browser.send(await browser.open("authorize", **ASKED), decision=decision)
        grants = await oauth.services.core.database.read(lambda tx: tx.accounts.grants(application.key, oauth.ada.key))
        assert [grant.trials for grant in grants] == expected
        assert not any(grant.read or grant.write or grant.profile for grant in grants)


@pytest.mark.parametrize("more", [{}, {"prompt": "login"}, {"%70rompt": "login"}], ids=str)
async def test_the_consent_page_has_an_address_of_its_own(
    browser: Browser, oauth: OAuthWorld, more: dict[str, str]
) -> None:
    """Reloading the consent page posts no form and asks for no password."""
    await ask_for_their_locks(oauth)
    query = "&".join(f"{name}={value}" for name, value in more.items())
    shown = await browser.open(f"authorize?{urlencode(ASKED)}" + (f"&{query}" if query else ""))
    fields = Form(shown.text).fields | {"email": "ada@example.org", "password": PASSWORD}
    answer = await browser.client.post("login", data=fields)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/accounts/authorize?{urlencode(ASKED)}"
    for _ in range(2):
        asked = await browser.open(answer.headers["location"])
        assert "<h1>Allow access?</h1>" in asked.text
    back = await browser.send(asked, decision="allow")
    assert query_of(back.headers["location"])["state"] == ASKED["state"]


@pytest.mark.parametrize("state", ["%E4", "%", "%C3%A4+%2B", "a=b", "\u00e4", "a\r\nLocation: b", "#", "\0"])
def test_a_query_means_the_same_in_an_address(state: str) -> None:
    query = f"a=1&prompt=login&state={state}"
    address = in_address(query.encode("latin-1"), but=("prompt",))
    assert address.isascii()
    assert address.isprintable()
    assert not set(address) & set(' #"<>')
    assert parse_qsl(address, errors="surrogateescape") == parse_qsl(
        query.replace("&prompt=login", ""), errors="surrogateescape"
    )


async def test_an_agreement_is_remembered_and_prompt_consent_shows_the_page_again(
    browser: Browser, oauth: OAuthWorld
) -> None:
    await ask_for_their_locks(oauth)
    await browser.send(await browser.sign_in(await browser.open("authorize", **ASKED)), decision="allow")
    assert "code=" in (await browser.open("authorize", **ASKED)).headers["location"]
    asked = await browser.open("authorize", **ASKED, prompt="consent")
    assert "Their Lock" in asked.text
    assert "code=" in (await browser.send(asked, decision="allow")).headers["location"]


@each_row("path", ["authorize", "signin"])
async def test_prompt_consent_shows_the_page_after_a_sign_in(browser: Browser, oauth: OAuthWorld, path: str) -> None:
    shown = await browser.sign_in(await browser.open(path, **ASKED, prompt="consent"))
    assert "See your name and e-mail address." in shown.text
    assert "code=" in (await browser.send(shown, decision="allow")).headers["location"]


@pytest.mark.parametrize(("decision", "answer"), [("deny", "error"), ("allow", "code")])
async def test_a_page_that_was_agreed_to_in_another_window_still_can_be_denied(
    browser: Browser, oauth: OAuthWorld, decision: str, answer: str
) -> None:
    await ask_for_their_locks(oauth)
    first = await browser.sign_in(await browser.open("authorize", **ASKED))
    second = await browser.open("authorize", **ASKED)
    await browser.send(first, decision="allow")
    assert answer in query_of((await browser.send(second, decision=decision)).headers["location"])


async def test_a_denied_consent(browser: Browser, oauth: OAuthWorld) -> None:
    await ask_for_their_locks(oauth)
    shown = await browser.sign_in(await browser.open("authorize", **ASKED))
    back = await browser.send(shown, decision="deny")
    assert query_of(back.headers["location"]) == {"error": "access_denied", "state": ASKED["state"]}
    application = await application_of(oauth.services, WEB)
    assert await oauth.services.core.database.read(lambda tx: tx.accounts.grants(application.key, oauth.ada.key)) == []


async def test_consent_is_only_for_the_content_of_the_page(browser: Browser, oauth: OAuthWorld) -> None:
    await ask_for_their_locks(oauth)
    shown = await browser.sign_in(await browser.open("authorize", **ASKED))
    assert (await browser.send(shown)).status_code == 400  # neither button
    for changed in ({"csrf": ""}, {"csrf": "0" * 64}, {"continue": urlencode(ASKED | {"state": "other"})}):
        answer = await browser.send(shown, decision="allow", **changed)
        assert answer.status_code == 403
        assert "location" not in answer.headers
    await oauth.ask_for(WEB, [{"device_type": "*", "permissions": ["READ", "WRITE"]}])
    answer = await browser.send(shown, decision="allow")
    assert answer.status_code == 403
    assert "devices of every type" in answer.text
    assert (await browser.send(answer, decision="allow")).status_code == 302


async def test_consent_is_asked_for_again_when_it_changed_in_between(
    browser: Browser, oauth: OAuthWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask_for_their_locks(oauth)
    shown = await browser.sign_in(await browser.open("authorize", **ASKED))
    as_it_was = oauth.services.accounts.authorize.allow

    async def change_first(*args: Any, **more: Any) -> Any:
        await oauth.ask_for(WEB, [{"device_type": "*", "permissions": ["READ", "WRITE"]}])
        return await as_it_was(*args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(
            type(oauth.services.accounts.authorize), "allow", lambda _self, *args, **more: change_first(*args, **more)
        )
        answer = await browser.send(shown, decision="allow")
    assert answer.status_code == 409
    assert "asks for something else by now" in answer.text
    assert "devices of every type" in answer.text
    application = await application_of(oauth.services, WEB)
    assert await oauth.services.core.database.read(lambda tx: tx.accounts.grants(application.key, oauth.ada.key)) == []
    assert (await browser.send(answer, decision="allow")).status_code == 302


async def test_consent_belongs_to_one_session(browser: Browser, door: Address, oauth: OAuthWorld) -> None:
    await ask_for_their_locks(oauth)
    await give_password(oauth.services, oauth.bob)
    shown = await browser.sign_in(await browser.open("authorize", **ASKED))
    other = Browser(door)
    async with other.client:
        answer = await other.send(shown, decision="allow")
        assert "Password" in answer.text
        await other.sign_in(answer, "bob-example")
        assert (await other.send(shown, decision="allow")).status_code == 403


async def test_names_are_escaped(browser: Browser, oauth: OAuthWorld) -> None:
    # In the store, because a provision file may not have `<` in a name.
    await oauth.services.core.database.write(
        lambda tx: tx.connection.execute("UPDATE application SET name = '<script>alert(1)</script>'")
    )
    shown = await browser.open("authorize", **ASKED)
    Form(shown.text)
    assert "&lt;script&gt;" in shown.text
    shown = await browser.open("authorize", **ASKED, extra='"><script>')
    assert "<script>" not in shown.text


# Looks


async def test_the_style_sheet(browser: Browser) -> None:
    shown = await browser.open("authorize", **ASKED)
    assert '<link rel="stylesheet" href="/accounts/static/style.css">' in shown.text
    style = await browser.client.get("static/style.css")
    assert (style.status_code, style.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert style.headers["x-content-type-options"] == "nosniff"
    shown = await browser.open("authorize", **ASKED, test_css_blank="true")
    assert "stylesheet" not in shown.text


async def test_fields_have_labels(browser: Browser) -> None:
    for shown in (await browser.open("authorize", **ASKED), await browser.open("go")):
        assert Form(shown.text).labelled == {"email", "password"}
        assert 'autocomplete="current-password"' in shown.text


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("https://web.example.org/a?b#c", "https:"),
        ("http://127.0.0.1:8080/a", "http: https:"),
        ("https://a;script-src@web/", "https:"),
        ("myapp:///done", "myapp:"),
        ("com.example.app:/done", "com.example.app:"),
        ("no address", ""),
        ("http://[/", ""),
    ],
)
def test_form_action_sources(uri: str, source: str) -> None:
    assert _schemes_of(uri) == source


# Sign-out


@pytest.mark.parametrize("path", ["logout", "signout"])
async def test_sign_out(browser: Browser, path: str) -> None:
    await browser.sign_in(await browser.open("authorize", **ASKED))
    session = browser.client.cookies["trunkline_session"]
    back = await browser.open(path, redirect_uri=CALLBACK, state="a b")
    assert back.headers["location"] == f"{CALLBACK}?status=logout&state=a%20b"
    assert "trunkline_session" not in browser.client.cookies
    browser.client.cookies.set("trunkline_session", session)
    assert (await browser.client.get("checkSession")).status_code == 401
    assert (await browser.open(path, redirect_uri=CALLBACK)).headers["location"] == f"{CALLBACK}?status=logout"


@each_row(
    "query",
    ["", "redirect_uri=https://evil.example.org", f"redirect_uri={CALLBACK}/", f"redirect_uri={CALLBACK}&" * 2],
)
async def test_sign_out_leads_nowhere_else(browser: Browser, query: str) -> None:
    answer = await browser.open(f"logout?{query}")
    assert answer.status_code == 400
    assert "Invalid parameter: redirect_uri" in answer.text
    assert "location" not in answer.headers


@each_row("name", ["ada@example.org", "ADA-example", " Ada@Example.org"])
async def test_signing_in_in_a_second_tab(door: Address, oauth: OAuthWorld, name: str) -> None:
    await give_password(oauth.services, oauth.ada)
    browser = Browser(door)
    async with browser.client:
        first, second = await browser.open("authorize", **ASKED), await browser.open("authorize", **ASKED)
        assert (await browser.sign_in(first)).status_code == 302
        done = await browser.sign_in(second, name)
        assert done.headers["location"].startswith(f"{CALLBACK}?code=")


@each_row(("name", "asked"), [("bob@example.org", {}), ("ada@example.org", {"prompt": "login"})])
async def test_a_second_tab_that_needs_its_own_sign_in_shows_the_form_again(
    door: Address, oauth: OAuthWorld, name: str, asked: dict[str, str]
) -> None:
    await give_password(oauth.services, oauth.ada)
    await give_password(oauth.services, oauth.bob)
    browser = Browser(door)
    async with browser.client:
        query = {**ASKED, **asked}
        first, second = await browser.open("authorize", **query), await browser.open("authorize", **query)
        await browser.sign_in(first)
        again = await browser.sign_in(second, name)
        assert (again.status_code, "accept cookies" in again.text) == (403, False)
        done = await browser.sign_in(again, name)
        assert done.headers["location"].startswith(f"{CALLBACK}?code=")
