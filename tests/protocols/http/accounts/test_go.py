"""/go: the limited-input flow as the person sees it."""

import pytest

from broker.accounts.device_codes import UserCodeNotFound
from broker.errors import TooManyAttempts
from broker.services import Services
from config.settings import Address
from tests.broker.accounts.oauth_world import TV, OAuthWorld, granted, refused
from tests.factories import ADA
from tests.fakes import FakeClock
from tests.protocols.http.accounts.browser import Browser, Form, give_password

pytestmark = pytest.mark.slow


MINUTES = 60_000


async def poll(oauth: OAuthWorld, device_code: str) -> tuple[int, str]:
    return refused(await oauth.token(grant_type="device_code", client_id=TV, code=device_code))


@pytest.mark.parametrize("complete", [True, False])
async def test_a_device_is_connected(browser: Browser, oauth: OAuthWorld, complete: bool) -> None:
    device = (await oauth.device_code()).body
    shown = await browser.open("go", **({"user_code": device["user_code"]} if complete else {}))
    assert "to connect a device" in shown.text
    back = await browser.sign_in(shown)
    assert back.status_code == 302
    entry = await browser.open(back.headers["location"])
    form = Form(entry.text)
    assert (form.fields["user_code"], form.labelled) == (device["user_code"] if complete else "", {"user_code"})
    confirm = await browser.send(entry, user_code=f" {device['user_code'].replace('-', '')} ")
    assert confirm.status_code == 200
    for text in ("Television", "by Acme", device["user_code"], "ada@example.org"):
        assert text in confirm.text
    assert await poll(oauth, device["device_code"]) == (400, "authorization_pending")
    done = await browser.send(confirm, decision="allow")
    assert "<h1>Device connected</h1>" in done.text
    token = granted(await oauth.token(grant_type="device_code", client_id=TV, code=device["device_code"]))
    assert (await oauth.services.accounts.tokens.information(token["access_token"])).user_id == ADA
    assert (await browser.send(confirm, decision="allow")).status_code == 404


async def test_a_device_is_refused(browser: Browser, oauth: OAuthWorld) -> None:
    device = (await oauth.device_code()).body
    entry = await browser.open((await browser.sign_in(await browser.open("go"))).headers["location"])
    confirm = await browser.send(entry, user_code=device["user_code"])
    done = await browser.send(confirm, decision="deny")
    assert "<h1>Device refused</h1>" in done.text
    assert await poll(oauth, device["device_code"]) == (400, "access_denied")


async def test_a_signed_in_person_may_use_another_account(browser: Browser, oauth: OAuthWorld) -> None:
    await give_password(oauth.services, oauth.bob)
    device = (await oauth.device_code()).body
    entry = await browser.open((await browser.sign_in(await browser.open("go"))).headers["location"])
    confirm = await browser.send(entry, user_code=device["user_code"])
    for shown, query in ((entry, ""), (confirm, f"&user_code={device['user_code']}")):
        way = f"/accounts/go?prompt=login{query}"
        assert f'<a href="{way.replace("&", "&amp;")}">Use another account</a>' in shown.text
        back = await browser.sign_in(await browser.open(way), "bob-example")
        assert back.headers["location"] == f"/accounts/go{query.replace('&', '?')}"
        assert "bob@example.org" in (await browser.open(back.headers["location"])).text


async def test_a_code_sent_before_signing_in_is_kept(browser: Browser, oauth: OAuthWorld) -> None:
    device = (await oauth.device_code()).body
    shown = await browser.post("/accounts/go", {"user_code": device["user_code"], "decision": "allow"})
    back = await browser.sign_in(shown)
    assert back.headers["location"] == f"/accounts/go?user_code={device['user_code']}"
    assert await poll(oauth, device["device_code"]) == (400, "authorization_pending")


async def test_the_pages_must_have_been_shown(browser: Browser, door: Address, oauth: OAuthWorld) -> None:
    await give_password(oauth.services, oauth.bob)
    first, second = (await oauth.device_code()).body, (await oauth.device_code()).body
    entry = await browser.open((await browser.sign_in(await browser.open("go"))).headers["location"])
    assert (await browser.send(entry, user_code=first["user_code"], csrf="")).status_code == 403
    confirm = await browser.send(entry, user_code=first["user_code"])
    entry_csrf = Form(entry.text).fields["csrf"]
    for changed in ({"csrf": ""}, {"csrf": entry_csrf}, {"user_code": second["user_code"]}):
        for decision in ("allow", "deny"):
            assert (await browser.send(confirm, decision=decision, **changed)).status_code == 403
    other = Browser(door)
    async with other.client:
        await other.sign_in(await other.open("go"), "bob-example")
        assert (await other.send(confirm, decision="allow")).status_code == 403
    for device in (first, second):
        assert await poll(oauth, device["device_code"]) == (400, "authorization_pending")


async def test_wrong_codes_are_slowed_down(browser: Browser, oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    entry = await browser.open((await browser.sign_in(await browser.open("go"))).headers["location"])
    for number in range(10):
        answer = await browser.send(entry, user_code=f"AAAA-AA{'ABCDEFGHJK'[number]}A")
        assert answer.status_code == 404
        assert "This code is not valid." in answer.text
    device = (await oauth.device_code()).body
    answer = await browser.send(entry, user_code=device["user_code"])
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "900")
    assert "Too many attempts" in answer.text
    fake_clock.advance(15 * MINUTES)
    assert (await browser.send(entry, user_code=device["user_code"])).status_code == 200


async def test_texts_that_are_no_user_code(browser: Browser, services: Services) -> None:
    entry = await browser.open((await browser.sign_in(await browser.open("go"))).headers["location"])
    for code in ("", "x", "<script>", "AAAA-AAAA-AAAA", "A" * 5000, "aaaa-aaaa", "\0", "ü"):
        answer = await browser.send(entry, user_code=code)
        assert answer.status_code == 404, code
        assert "This code is not valid." in answer.text, code
        assert "<script>" not in answer.text, code


async def test_guesses_are_counted_by_address(browser: Browser, services: Services) -> None:
    entry = await browser.open((await browser.sign_in(await browser.open("go"))).headers["location"])
    for number in range(10):
        await browser.send(entry, user_code=f"AAAA-AA{'ABCDEFGHJK'[number]}A")
    with pytest.raises(TooManyAttempts):
        await services.accounts.device_codes.find("BBBB-BBBB", address="127.0.0.1")
    with pytest.raises(UserCodeNotFound):
        await services.accounts.device_codes.find("BBBB-BBBB", address="192.0.2.1")
