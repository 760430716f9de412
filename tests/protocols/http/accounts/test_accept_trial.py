"""/accept/trial: from the link in the mail to a member of a trial (reference 14.3)."""

import pytest

from broker.accounts.permissions import Permission
from broker.services import Services
from broker.trials.invitations import NewInvitation
from broker.trials.roles import TrialRole
from broker.trials.trials import NewTrial, Trial
from config.settings import Address
from storage.transaction import Transaction
from tests.broker.accounts.oauth_world import OAuthWorld
from tests.factories import BOB_TOKEN, KITCHEN, LIGHT_TYPE, World
from tests.fakes import FakeClock
from tests.mail_queue import waiting_mails
from tests.protocols.http.accounts.browser import Browser, Form, give_password
from tests.protocols.http.accounts.test_accept_share import code_in_mail as code_in_share_mail
from tests.trial_world import user_of

pytestmark = pytest.mark.slow


LINK = "accept/trial"


@pytest.fixture
async def trial(services: Services, world: World, oauth: OAuthWorld) -> Trial:
    """Bob's trial of lights."""
    bob = await services.accounts.tokens.caller(BOB_TOKEN)
    return await services.trials.trials.create(bob, NewTrial("Sleep & light", "Does it help?", [LIGHT_TYPE]))


async def invited(services: Services, world: World, trial: Trial, role: TrialRole, email: str) -> str:
    """The code of an invitation by Bob, from the mail."""
    bob = await user_of(services, world.bob)
    await services.trials.invitations.invite(bob, trial.record, NewInvitation(email, role))
    (mail,) = await services.core.database.read(waiting_mails)
    assert (mail.kind, mail.recipient) == ("trial_invitation", email)
    return await code_of_mail(services)


async def code_of_mail(services: Services) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.protocols.http.accounts.test_accept_share.LINK", LINK)
        return await code_in_share_mail(services)


@pytest.fixture
async def code(services: Services, world: World, trial: Trial) -> str:
    return await invited(services, world, trial, TrialRole.PARTICIPANT, "ada@example.org")


async def members(services: Services, trial: Trial, role: TrialRole) -> list[str]:
    found, _ = await services.trials.members.page(trial.record, role, offset=0, count=9)
    return [user.full_name for user in found]


async def asked(browser: Browser, code: str) -> str:
    """The address of the page that asks, after signing in."""
    shown = await browser.open(LINK, code=code)
    assert "<h1>Sign in</h1>" in shown.text
    assert "to see your invitation to a trial" in shown.text
    assert "Sleep" not in shown.text  # only the invited person may see what the trial is
    again = await browser.sign_in(shown, password="wrong")
    assert "to see your invitation to a trial" in again.text
    return str((await browser.sign_in(again)).headers["location"])


@pytest.mark.parametrize("role", list(TrialRole))
async def test_from_the_link_to_the_member(
    services: Services, browser: Browser, world: World, trial: Trial, role: TrialRole
) -> None:
    code = await invited(services, world, trial, role, "ada@example.org")
    page = await browser.open(await asked(browser, code))
    takes_part = role is TrialRole.PARTICIPANT
    for text in ("Sleep &amp; light", "Does it help?", "Bob", "ada@example.org"):
        assert text in page.text
    assert ("Take part in this trial?" in page.text) is ("Smart Light" in page.text) is takes_part
    assert "Ada" not in await members(services, trial, role)  # GET changes nothing
    done = await browser.send(page, decision="accept")
    title = "You take part" if takes_part else "You administer this trial"
    assert (done.status_code, f"<h1>{title}</h1>" in done.text) == (200, True)
    assert "Ada" in await members(services, trial, role)
    kitchen = await services.devices.registry.find(KITCHEN)
    grants = await services.core.database.read(lambda tx: tx.accounts.grants(trial.record.application, world.ada))
    assert any(one.device_type == kitchen.type_key and one.read and one.write for one in grants) is takes_part
    for again in (await browser.open(LINK, code=code), await browser.send(page, decision="accept")):
        assert again.status_code == 410


async def test_codes_that_are_none_or_ended_are_gone(
    services: Services, browser: Browser, world: World, trial: Trial, code: str, fake_clock: FakeClock
) -> None:
    for none in ("", "ff" * 16, "'", "é"):
        assert (await browser.open(LINK, code=none)).status_code == 410
        assert (await browser.post(f"/accounts/{LINK}", {"code": none, "decision": "accept"})).status_code == 410
    assert (await browser.open(LINK, code=code)).status_code == 200
    fake_clock.advance(86_400_000)
    assert (await browser.open(LINK, code=code)).status_code == 410
    assert await members(services, trial, TrialRole.PARTICIPANT) == []


@pytest.mark.parametrize("how", ["revoke", "remove", "stop", "delete"])
async def test_an_invitation_is_gone_when_it_is_taken_back_and_with_its_trial(
    services: Services, browser: Browser, trial: Trial, code: str, how: str
) -> None:
    room = services.trials
    ((sent, *_), _) = await room.invitations.of_trial(trial.record, None, offset=0, count=1)
    match how:
        case "revoke":
            await room.invitations.revoke(trial.record, sent.id)
        case "remove":
            await room.invitations.remove(trial.record, sent.id)
        case "stop":
            await room.trials.change(trial.record, name=None, description=None, stop=True)
        case _:
            await room.trials.delete(trial.record)
    assert (await browser.open(LINK, code=code)).status_code == 410


@pytest.mark.parametrize(
    ("changed", "status"), [({"decision": "maybe"}, 400), ({"csrf": "0" * 64, "decision": "accept"}, 403)]
)
async def test_a_form_that_was_not_sent_from_the_page(
    services: Services, browser: Browser, trial: Trial, code: str, changed: dict[str, str], status: int
) -> None:
    page = await browser.open(await asked(browser, code))
    again = await browser.send(page, **changed)
    assert (again.status_code, "Take part in this trial?" in again.text) == (status, True)
    assert await members(services, trial, TrialRole.PARTICIPANT) == []


async def test_a_person_agrees_to_what_was_shown_only(
    services: Services, browser: Browser, world: World, trial: Trial, code: str
) -> None:
    """An administrator takes out a type between the page and its form; the form is shown once more."""
    page = await browser.open(await asked(browser, code))
    type_ = await services.trials.device_types.known(LIGHT_TYPE)
    await services.trials.device_types.remove(trial.record, type_)
    again = await browser.send(page, decision="accept")
    assert (again.status_code, "Smart Light" in again.text) == (403, False)
    assert await members(services, trial, TrialRole.PARTICIPANT) == []
    assert (await browser.send(again, decision="accept")).status_code == 200
    assert await members(services, trial, TrialRole.PARTICIPANT) == ["Ada"]


async def test_a_form_without_a_session_leads_to_the_sign_in(
    services: Services, browser: Browser, trial: Trial, code: str
) -> None:
    shown = await browser.post(f"/accounts/{LINK}", {"code": code, "decision": "accept"})
    assert Form(shown.text).action == "/accounts/login"
    assert (await browser.sign_in(shown)).headers["location"] == f"/accounts/{LINK}?code={code}"
    assert await members(services, trial, TrialRole.PARTICIPANT) == []


async def test_another_person_with_the_link_must_sign_in_as_the_invited_one(
    services: Services, door: Address, browser: Browser, world: World, trial: Trial, code: str
) -> None:
    await give_password(services, await user_of(services, world.bob))
    stranger = Browser(door)
    async with stranger.client:
        back = await stranger.sign_in(await stranger.open(LINK, code=code), "bob@example.org")
        shown = await stranger.open(back.headers["location"])
        assert (shown.status_code, "another e-mail address" in shown.text) == (403, True)
        assert "Sleep" not in shown.text
        page = await stranger.open((await stranger.sign_in(shown)).headers["location"])
        assert "Take part in this trial?" in page.text


async def test_the_code_verifies_the_address(
    services: Services, browser: Browser, world: World, trial: Trial, code: str
) -> None:
    def unverify(tx: Transaction) -> None:
        tx.connection.execute("UPDATE user SET email_verified_on = NULL WHERE key = :key", {"key": world.ada})

    await services.core.database.write(unverify)
    page = await browser.open(await asked(browser, code))
    assert (await browser.send(page, decision="accept")).status_code == 200
    assert (await user_of(services, world.ada)).email_verified_on is not None
    reach = await services.accounts.permissions.reach(await services.accounts.tokens.caller(BOB_TOKEN))
    assert not reach.allows(await services.devices.registry.find(KITCHEN), Permission.READ)  # nothing is Bob's own
