"""/accept/share: from the link in the mail to a shared device (reference 6.3)."""

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from broker.accounts.permissions import Permission
from broker.devices.shares import ShareStatus
from broker.services import Services
from config.settings import Address
from tests.broker.accounts.oauth_world import OAuthWorld
from tests.factories import ADA, BOBS, KITCHEN, World
from tests.protocols.http.accounts.browser import Browser, Form, give_password
from tests.rows import each_row

pytestmark = pytest.mark.slow


LINK = "accept/share"


@pytest.fixture
async def code(services: Services, world: World, oauth: OAuthWorld) -> str:
    """The code of Bob's invitation to Ada, from the mail."""
    await services.devices.shares.offer(await services.devices.registry.find(BOBS), email="Ada@example.org")
    return await code_in_mail(services)


async def code_in_mail(services: Services) -> str:
    record = await services.core.database.read(lambda tx: tx.mails.next())
    assert record is not None
    assert record.content is not None
    _subject, text, *_ = json.loads(services.core.vault.open(record.content))
    link = re.search(r"http\S+", text)
    assert link is not None
    parts = urlsplit(link[0])
    assert parts.path == f"/accounts/{LINK}"
    return parse_qs(parts.query)["code"][0]


async def status_of(services: Services) -> str | None:
    device = await services.devices.registry.find(BOBS)
    (share,), _ = await services.devices.shares.of_device(device, offset=0, count=1)
    return share.status


async def signed_in(browser: Browser, code: str) -> str:
    """The address of the page that asks, after signing in."""
    shown = await browser.open(LINK, code=code)
    assert "<h1>Sign in</h1>" in shown.text
    assert "Bob" not in shown.text  # only the invited person may see what is shared
    for once_more in (shown, await browser.sign_in(shown, password="wrong")):
        assert "to see the device that somebody shares with you" in once_more.text
        assert "to connect a device" not in once_more.text
    back = await browser.sign_in(shown)
    assert back.status_code == 302
    return back.headers["location"]


@pytest.mark.parametrize(
    ("decision", "title", "status"),
    [("accept", "Device shared with you", "ACCEPTED"), ("decline", "Invitation declined", "REJECTED")],
)
async def test_from_the_link_to_the_answer(
    services: Services, browser: Browser, oauth: OAuthWorld, code: str, decision: str, title: str, status: str
) -> None:
    asked = await browser.open(await signed_in(browser, code))
    for text in ("Accept this device?", "Bob", "Bob&#39;s light", "ada@example.org"):
        assert text in asked.text
    assert await status_of(services) == "PENDING"  # GET changes nothing
    done = await browser.send(asked, decision=decision)
    assert (done.status_code, f"<h1>{title}</h1>" in done.text) == (200, True)
    assert await status_of(services) == status
    device = await services.devices.registry.find(BOBS)
    assert (oauth.ada.key in device.shared_with) is (decision == "accept")
    for again in (await browser.open(LINK, code=code), await browser.send(asked, decision="accept")):
        assert again.status_code == 410
    assert await status_of(services) == status


@each_row("code", ["", "ff" * 16, "'", "é"])
async def test_a_code_that_is_none_is_gone(browser: Browser, code: str) -> None:
    assert (await browser.open(LINK, code=code)).status_code == 410
    assert (await browser.post(f"/accounts/{LINK}", {"code": code, "decision": "accept"})).status_code == 410


async def test_an_invitation_is_gone_with_its_device_and_when_it_is_taken_back(
    services: Services, browser: Browser, code: str
) -> None:
    device = await services.devices.registry.find(BOBS)
    (share,), _ = await services.devices.shares.of_device(device, offset=0, count=1)
    await services.devices.shares.remove(share.id)
    assert (await browser.open(LINK, code=code)).status_code == 410


@pytest.mark.parametrize(
    ("changed", "status"), [({"decision": "maybe"}, 400), ({"csrf": "0" * 64, "decision": "accept"}, 403)]
)
async def test_a_form_that_was_not_sent_from_the_page(
    services: Services, browser: Browser, code: str, changed: dict[str, str], status: int
) -> None:
    asked = await browser.open(await signed_in(browser, code))
    again = await browser.send(asked, **changed)
    assert (again.status_code, "Accept this device?" in again.text) == (status, True)
    assert await status_of(services) == "PENDING"


async def test_a_form_without_a_session_leads_to_the_sign_in(services: Services, browser: Browser, code: str) -> None:
    shown = await browser.post(f"/accounts/{LINK}", {"code": code, "decision": "accept"})
    assert Form(shown.text).action == "/accounts/login"
    assert (await browser.sign_in(shown)).headers["location"] == f"/accounts/{LINK}?code={code}"
    assert await status_of(services) == "PENDING"


async def test_another_person_with_the_link_must_sign_in_as_the_invited_one(
    services: Services, browser: Browser, door: Address, world: World, code: str
) -> None:
    bob = await services.core.database.read(lambda tx: tx.accounts.user(world.bob))
    assert bob is not None
    await give_password(services, bob)
    stranger = Browser(door)
    async with stranger.client:
        back = await stranger.sign_in(await stranger.open(LINK, code=code), "bob@example.org")
        shown = await stranger.open(back.headers["location"])
        assert (shown.status_code, "another e-mail address" in shown.text) == (403, True)
        assert "Kitchen" not in shown.text
        asked = await stranger.open((await stranger.sign_in(shown)).headers["location"])
        assert "Accept this device?" in asked.text
    assert await status_of(services) == "PENDING"


async def test_a_form_of_a_person_who_gave_up_the_invited_address_is_refused(
    services: Services, world: World, browser: Browser
) -> None:
    """Ada changes her address between the page and its form; no account had the address when it was invited."""
    device = await services.devices.registry.find(BOBS)
    await services.devices.shares.offer(device, email="ada@new.example.org")
    code = await code_in_mail(services)
    await services.provisioning.apply({"users": [{"id": ADA, "email": "ada@new.example.org"}]})
    shown = await browser.open(LINK, code=code)
    asked = await browser.open((await browser.sign_in(shown, "ada-example")).headers["location"])
    assert "Accept this device?" in asked.text
    await services.provisioning.apply({"users": [{"id": ADA, "email": "ada@example.org"}]})
    assert (await browser.send(asked, decision="accept")).status_code == 403
    assert await status_of(services) == ShareStatus.PENDING
    reach = await services.accounts.permissions.reach(await services.accounts.tokens.caller("31" * 16))
    assert not reach.allows(device, Permission.READ)
    assert reach.allows(await services.devices.registry.find(KITCHEN), Permission.READ)
