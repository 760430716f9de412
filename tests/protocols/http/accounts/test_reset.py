"""/reset: the pages of a password reset."""

import re

import pytest

from broker.services import Services
from config.settings import Address
from tests.broker.accounts.claim_world import ADDRESS, give_everything, make_rule_and_subscription, open_unproved
from tests.broker.accounts.oauth_world import CALLBACK, WEB, OAuthWorld
from tests.broker.accounts.test_resets import code_for_ada, mails
from tests.factories import World
from tests.protocols.http.accounts.browser import Browser, Form

pytestmark = pytest.mark.slow


ASKED = {"client_id": WEB, "response_type": "code", "state": "s"}
NEW = "a whole new password"


async def test_from_the_sign_in_page_to_a_new_password(browser: Browser, services: Services) -> None:
    shown = await browser.open("authorize", **ASKED)
    way = re.search(r'href="/accounts/(reset)"', shown.text)
    assert way is not None
    asking = await browser.open(way[1])
    assert Form(asking.text).labelled == {"email"}
    sent = await browser.send(asking, email="ada-example")
    assert (sent.status_code, "<h1>Look into your mail</h1>" in sent.text) == (200, True)
    link = re.search(r"http\S+/accounts/(reset\?code=\S+)", (await mails(services))[0][1])
    assert link is not None
    setting = await browser.open(link[1])
    assert "ada@example.org" in setting.text
    assert Form(setting.text).labelled == {"password"}
    assert Form(setting.text).user_name == "ada@example.org"
    done = await browser.send(setting, password=NEW)
    assert (done.status_code, "<h1>Your password is set</h1>" in done.text) == (200, True)
    assert NEW not in done.text
    back = await browser.sign_in(await browser.open("authorize", **ASKED), password=NEW)
    assert back.headers["location"].startswith(f"{CALLBACK}?code=")
    for over in (await browser.open(link[1]), await browser.send(setting, password=NEW)):
        assert over.status_code == 410
        assert "expired or was used" in over.text


async def test_the_answer_does_not_reveal_who_has_an_account(browser: Browser) -> None:
    asking = await browser.open("reset")
    answers = [await browser.send(asking, email=name) for name in ("ada@example.org", "nobody@example.org", "<b>")]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1


async def test_forms_must_have_been_shown(browser: Browser, oauth: OAuthWorld, door: Address) -> None:
    code = await code_for_ada(oauth)
    asking, setting = await browser.open("reset"), await browser.open("reset", code=code)
    stranger = Browser(door)
    async with stranger.client:
        for shown, typed in ((asking, {"email": "ada-example"}), (setting, {"password": NEW})):
            for answer in (await browser.send(shown, csrf="", **typed), await stranger.send(shown, **typed)):
                assert answer.status_code == 403
                assert "no longer valid" in answer.text
    assert len(await mails(oauth.services)) == 1
    assert (await browser.send(setting, password=NEW)).status_code == 200


async def test_what_is_refused(browser: Browser, oauth: OAuthWorld) -> None:
    code = await code_for_ada(oauth)
    answer = await browser.send(await browser.open("reset", code=code), password="1234567")
    assert answer.status_code == 400
    assert "A password has 8 to 1024 characters." in answer.text
    assert (await browser.send(answer, password=NEW)).status_code == 200
    assert (await browser.send(await browser.open("reset"), email=" ")).status_code == 400
    assert (await browser.open("reset", code="ff" * 16)).status_code == 410
    assert (await browser.open("reset", code="<b>")).status_code == 410


async def test_too_many_from_one_address(browser: Browser) -> None:
    asking = await browser.open("reset")
    for _ in range(10):
        assert (await browser.send(asking, email="nobody")).status_code == 200
    answer = await browser.send(asking, email="nobody")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "900")


async def test_a_head_request_does_not_use_the_code(browser: Browser, oauth: OAuthWorld) -> None:
    code = await code_for_ada(oauth)
    head = await browser.client.head(f"reset?code={code}")
    assert (head.status_code, "set-cookie" in head.headers) == (200, False)
    await browser.open("reset", code=code)
    assert (await browser.send(await browser.open("reset", code=code), password=NEW)).status_code == 200


async def test_a_claimed_address_shows_what_there_was(browser: Browser, services: Services, world: World) -> None:
    stranger = await open_unproved(services)
    await give_everything(services, world, stranger)
    await browser.send(await browser.open("reset"), email=ADDRESS)
    link = re.search(r"http\S+/accounts/(reset\?code=\S+)", (await mails(services))[-1][1])
    assert link is not None
    done = await browser.send(await browser.open(link[1]), password=NEW)
    assert "<h1>Your password is set</h1>" in done.text
    way_on = re.search(r'href="(/console/account)"', done.text)
    assert way_on is not None
    account = await browser.sign_in(await browser.open(way_on[1]), ADDRESS, password=NEW)
    to_before = re.search(r'href="/accounts/(account/before)"', (await browser.open(account.headers["location"])).text)
    assert to_before is not None
    before = await browser.open(to_before[1])
    for shown in (done, before):
        for name in ("Spy", "Watch", "Evening", "Dashboard", "Kitchen light", "one-time codes", stranger.id):
            assert name in shown.text


async def test_nothing_was_there_before_for_who_opened_the_account(browser: Browser) -> None:
    shown = await browser.sign_in(await browser.open("account/before"))
    assert "Nothing was there before" in (await browser.open(shown.headers["location"])).text


async def test_what_applications_made_is_listed_and_ended_with_one_button(
    browser: Browser, services: Services, oauth: OAuthWorld, door: Address
) -> None:
    await make_rule_and_subscription(services, oauth.ada)
    code = await code_for_ada(oauth)
    assert "one button" in (await mails(services))[-1][1]
    done = await browser.send(await browser.open("reset", code=code), password=NEW)
    assert 'href="/accounts/account/automations"' in done.text
    came = await browser.sign_in(await browser.open("account/automations"), password=NEW)
    shown = await browser.open(came.headers["location"])
    assert "Watch" in shown.text
    assert "https://app.example.org/x" in shown.text
    forged = await browser.send(shown, csrf="")
    assert (forged.status_code, "Watch" in forged.text) == (403, True)
    ended = await browser.send(shown)
    assert "No application has a rule or a subscription of yours" in ended.text
    assert services.subscriptions.subscriptions.all() == []
