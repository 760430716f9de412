"""Password resets by mail: who gets a mail, what a reset ends, and what the answer does not reveal."""

import re
from typing import Any

import msgspec
import pytest

from broker.accounts.sessions import WrongPassword
from broker.errors import LinkOver, TooManyAttempts, Unauthorized, ValidationFailed
from broker.services import Services
from storage.transaction import Transaction
from tests.broker.accounts.oauth_world import TV, WEB, OAuthWorld, basic, granted, refused
from tests.factories import ADA_TOKEN, KITCHEN_TOKEN
from tests.fakes import FakeClock
from tests.mail_queue import waiting_mails
from tests.protocols.http.accounts.browser import PASSWORD, give_password
from tests.rows import each_row

HERE, NEW = "192.0.2.1", "a whole new password"
_CODE = re.compile(r"/accounts/reset\?code=([0-9a-f]{32})\n")


async def mails(services: Services) -> list[tuple[str, str]]:
    """Recipient and text of the queued mails, in order."""
    waiting = await services.core.database.read(waiting_mails)
    return [
        (mail.recipient, msgspec.json.decode(services.core.vault.open(mail.content or b""), type=list[Any])[1])
        for mail in waiting
    ]


async def code_for_ada(oauth: OAuthWorld, name: str = "ada@example.org", address: str = HERE) -> str:
    await oauth.services.accounts.resets.ask(name, address=address)
    recipient, text = (await mails(oauth.services))[-1]
    assert recipient == "ada@example.org"
    found = _CODE.search(text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("name", ["ada@example.org", " ADA@example.org", "ada-example"])
async def test_the_code_of_the_mail_sets_a_new_password(oauth: OAuthWorld, name: str) -> None:
    await give_password(oauth.services, oauth.ada)
    code = await code_for_ada(oauth, name)
    assert (await oauth.services.accounts.resets.find(code)).email == "ada@example.org"
    await oauth.services.accounts.resets.set_password(code, NEW)
    assert (await oauth.services.accounts.sessions.sign_in("ada-example", NEW, address=HERE)).user.id == oauth.ada.id
    with pytest.raises(WrongPassword):
        await oauth.services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)


async def test_a_code_is_used_once_and_ends_the_others(oauth: OAuthWorld) -> None:
    first, second = await code_for_ada(oauth), await code_for_ada(oauth)
    assert first != second
    await oauth.services.accounts.resets.set_password(second, NEW)
    for code in (first, second):
        with pytest.raises(LinkOver) as over:
            await oauth.services.accounts.resets.set_password(code, "another password")
        assert over.value.status == 410


async def test_a_code_is_good_for_half_an_hour(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    code = await code_for_ada(oauth)
    fake_clock.advance(30 * 60_000 - 1)
    await oauth.services.accounts.resets.find(code)
    fake_clock.advance(1)
    with pytest.raises(LinkOver):
        await oauth.services.accounts.resets.find(code)


async def test_another_password_ends_the_code(oauth: OAuthWorld) -> None:
    code = await code_for_ada(oauth)
    await give_password(oauth.services, oauth.ada)
    with pytest.raises(LinkOver):
        await oauth.services.accounts.resets.set_password(code, NEW)


@each_row("code", ["", "ff" * 16, "x", "\udc80"])
async def test_texts_that_are_no_reset_code(oauth: OAuthWorld, code: str) -> None:
    with pytest.raises(LinkOver):
        await oauth.services.accounts.resets.find(code)


@pytest.mark.parametrize("password", ["1234567", "x" * 1025, "password", "Trustno1"])
async def test_a_password_that_is_refused_does_not_use_the_code(oauth: OAuthWorld, password: str) -> None:
    code = await code_for_ada(oauth)
    with pytest.raises(ValidationFailed):
        await oauth.services.accounts.resets.set_password(code, password)
    await oauth.services.accounts.resets.set_password(code, NEW)


@pytest.mark.both_engines
async def test_a_reset_ends_all_sessions_and_tokens_of_sign_ins(oauth: OAuthWorld) -> None:
    services = oauth.services
    await give_password(services, oauth.ada)
    session = await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)
    tokens = await oauth.user_tokens()
    on_its_way, device_code = await oauth.code(), await oauth.approved_device_code()
    bobs = await services.accounts.sessions.begin(oauth.bob)
    await services.accounts.tokens.caller(tokens["access_token"])  # now it is cached
    await services.accounts.resets.set_password(await code_for_ada(oauth), NEW)
    assert await services.accounts.sessions.find(session.id) is None
    with pytest.raises(Unauthorized):
        await services.accounts.tokens.caller(tokens["access_token"])
    for form in (
        {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]},
        {"grant_type": "authorization_code", "code": on_its_way},
    ):
        assert refused(await oauth.token(basic(WEB), **form)) == (400, "invalid_grant")
    poll = await oauth.token(grant_type="device_code", client_id=TV, code=device_code)
    assert refused(poll) == (400, "access_denied")
    assert await services.accounts.sessions.find(bobs.id) is not None
    for kept in (ADA_TOKEN, KITCHEN_TOKEN):  # a provisioned token and a device token
        await services.accounts.tokens.caller(kept)
    assert granted(await oauth.token(basic(WEB), grant_type="authorization_code", code=await oauth.code()))


@pytest.mark.both_engines
async def test_without_an_account_no_mail_is_sent_and_the_answer_is_the_same(oauth: OAuthWorld) -> None:
    rows = "SELECT count(*) AS n FROM password_reset"
    for number, name in enumerate(("nobody@example.org", "nobody", "", "\0", "ü" * 5000), start=1):
        await oauth.services.accounts.resets.ask(name, address=HERE)
        row = await oauth.services.core.database.read(lambda tx: tx.connection.execute(rows).one())
        assert row is not None
        assert row["n"] == number  # the same work as for an account
    assert await mails(oauth.services) == []


async def test_an_account_gets_two_mails_a_minute(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    for number in range(3):
        await oauth.services.accounts.resets.ask("ada-example", address=f"192.0.2.{number}")
    assert len(await mails(oauth.services)) == 2
    fake_clock.advance(60_001)
    await oauth.services.accounts.resets.ask("ada-example", address=HERE)
    assert len(await mails(oauth.services)) == 3


async def test_one_address_may_ask_ten_times(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    for number in range(10):
        await oauth.services.accounts.resets.ask(f"nobody{number}", address=HERE)
    with pytest.raises(TooManyAttempts) as caught:
        await oauth.services.accounts.resets.ask("ada-example", address=HERE)
    assert caught.value.retry_seconds == 900
    await oauth.services.accounts.resets.ask("ada-example", address="198.51.100.7")
    fake_clock.advance(900_000)
    await oauth.services.accounts.resets.ask("ada-example", address=HERE)


async def test_codes_are_hashed_at_rest(oauth: OAuthWorld) -> None:
    code = await code_for_ada(oauth)

    def everything(tx: Transaction) -> str:
        return repr([dict(row) for row in tx.connection.execute("SELECT * FROM password_reset")])

    assert code not in await oauth.services.core.database.read(everything)
