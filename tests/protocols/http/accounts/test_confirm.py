"""/account/confirm: the holder of an account proves its address, and keeps what the account has."""

import re

import pytest

from broker.services import Services
from config.settings import Address
from tests.broker.accounts.claim_world import ADDRESS, open_unproved
from tests.broker.accounts.test_resets import mails
from tests.fakes import FakeClock
from tests.protocols.http.accounts.browser import Browser, account_csrf, give_password
from tests.rows import each_row

pytestmark = pytest.mark.slow


PASSWORD = "correct horse battery staple"
DAY_MS = 86_400_000


@pytest.fixture
async def unproved(services: Services, browser: Browser) -> Browser:
    """The browser of a person who opened an account and has not proved its address."""
    user = await open_unproved(services)
    hashed = services.accounts.passwords.hash(PASSWORD)
    await services.core.database.write(lambda tx: tx.accounts.renew_password_hash(user.key, hashed))
    await browser.sign_in(await browser.open("account"), ADDRESS)
    return browser


async def csrf(browser: Browser) -> str:
    return account_csrf(await browser.open("account"))


async def link(browser: Browser, services: Services) -> str:
    sent = await browser.post("/accounts/account/confirm", {"csrf": await csrf(browser)})
    assert (sent.status_code, "Look into your mail" in sent.text) == (200, True)
    recipient, text = (await mails(services))[-1]
    found = re.search(r"/accounts/(account/confirm\?code=\S+)", text)
    assert (recipient, found is not None) == (ADDRESS, True)
    assert found is not None
    return found[1]


async def is_proved(services: Services) -> bool:
    return (await services.accounts.users.named(ADDRESS)).email_verified_on is not None


async def test_the_link_of_the_mail_proves_the_address(unproved: Browser, services: Services) -> None:
    before = await services.accounts.users.named(ADDRESS)
    assert "not confirmed" in (await unproved.open("account")).text
    path = await link(unproved, services)
    await unproved.client.head(path)
    assert not await is_proved(services)
    assert "Your address is confirmed" in (await unproved.open(path)).text
    assert "not confirmed" not in (await unproved.open("account")).text
    # From now on a new password is no claim: the account keeps what it has.
    reset = await services.accounts.resets.open_for(ADDRESS)
    done = await services.accounts.resets.set_password(reset.code, "another password of mine")
    assert (done.is_claim, done.user.key) == (False, before.key)


async def test_the_link_alone_proves_nothing(unproved: Browser, services: Services, door: Address) -> None:
    """A stranger holds the account, and the owner of the address opens the link: without the account, or in another."""
    path = await link(unproved, services)
    await give_password(services, await services.accounts.users.named("bob@example.org"))
    other = Browser(door)
    async with other.client:
        assert "Please sign in" in (await other.open(path)).text
        await other.sign_in(await other.open("account"), "bob@example.org")
        assert (await other.open(path)).status_code == 410
    assert not await is_proved(services)


@each_row("code", ["", "x", "\u00fc", "gAAAAA"])
async def test_codes_that_are_none(unproved: Browser, services: Services, code: str) -> None:
    assert (await unproved.open("account/confirm", code=code)).status_code == 410
    assert not await is_proved(services)


async def test_a_link_lasts_a_day(unproved: Browser, services: Services, fake_clock: FakeClock) -> None:
    path = await link(unproved, services)
    fake_clock.advance(DAY_MS)
    assert (await unproved.open(path)).status_code == 410


async def test_a_form_that_was_not_shown_sends_no_mail(unproved: Browser, services: Services) -> None:
    assert (await unproved.post("/accounts/account/confirm", {"csrf": ""})).status_code == 403
    assert await mails(services) == []


async def test_ten_times_in_a_quarter_of_an_hour(unproved: Browser, services: Services) -> None:
    fields = {"csrf": await csrf(unproved)}
    answers = [(await unproved.post("/accounts/account/confirm", fields)).status_code for _ in range(11)]
    assert answers == [200] * 10 + [429]
    assert len(await mails(services)) == 2  # its rate
