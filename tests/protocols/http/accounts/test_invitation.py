"""/signup with the code of an operator's invitation, while sign-up is closed to all others."""

import re

import pytest

from broker.errors import ValidationFailed
from broker.provisioning import ProvisionReport
from broker.services import Services
from storage.keys import OrganizationKey
from tests.broker.accounts.test_resets import mails
from tests.fakes import FakeClock
from tests.protocols.http.accounts.browser import Browser, Form
from tests.rows import each_row

WEEK_MS = 7 * 86_400_000
GRACE, PASSWORD = "grace@example.org", "1234 six"
_CODE = re.compile(r"/accounts/signup\?code=([0-9a-f]{32})$", re.MULTILINE)


async def invite(services: Services, email: str = GRACE, **more: object) -> ProvisionReport:
    return await services.provisioning.apply({"invitations": [{"email": email, **more}]})


async def code_for_grace(services: Services, **more: str) -> str:
    await invite(services, GRACE, **more)
    recipient, text = (await mails(services))[-1]
    assert recipient == GRACE
    found = _CODE.search(text)
    assert found is not None
    return found[1]


def counts(report: ProvisionReport) -> tuple[int, int, int]:
    counted = report.tables["invitations"]
    return counted.created, counted.changed, counted.unchanged


async def test_an_invitation_is_accepted(browser: Browser, services: Services) -> None:
    code = await code_for_grace(services, organization="Acme", role="administrator")
    shown = await browser.open("signup", code=code)
    assert GRACE in shown.text
    assert Form(shown.text).labelled == {"fullName", "password"}
    assert Form(shown.text).user_name == GRACE
    answer = await browser.send(shown, password=PASSWORD, fullName="Grace", email="other@example.org")
    assert (answer.status_code, "<h1>Welcome</h1>" in answer.text) == (200, True)
    session = await services.accounts.sessions.find(browser.client.cookies["trunkline_session"])
    assert session is not None
    user = session.user
    assert (user.email, user.name, user.full_name, user.account_type) == (GRACE, "grace", "Grace", "LOCAL")
    assert (
        await services.core.database.read(lambda tx: tx.accounts.role_of(OrganizationKey(1), user.key))
        == "administrator"
    )
    await services.accounts.sessions.sign_in(GRACE, PASSWORD, address="192.0.2.1")
    for over in (await browser.open("signup", code=code), await browser.send(shown, password=PASSWORD)):
        assert over.status_code == 410
        assert "expired or was used" in over.text


async def test_an_invitation_lasts_a_week(browser: Browser, services: Services, fake_clock: FakeClock) -> None:
    code = await code_for_grace(services)
    fake_clock.advance(WEEK_MS - 1)
    shown = await browser.open("signup", code=code)
    assert shown.status_code == 200
    fake_clock.advance(1)
    assert (await browser.open("signup", code=code)).status_code == 410
    assert (await browser.send(shown, password=PASSWORD)).status_code == 410


@pytest.mark.parametrize(
    ("changed", "status", "text"),
    [
        ({"password": "1234567"}, 400, "A password has 8 to 1024 characters."),
        ({"password": "iloveyou"}, 400, "one of the 10,000 most common passwords"),
        ({"fullName": "x" * 65}, 400, "A name has at most 64 characters."),
        ({"csrf": ""}, 403, "no longer valid"),
        ({"code": "ff" * 16}, 410, "expired or was used"),
        ({"code": "<b>"}, 410, "expired or was used"),
    ],
)
async def test_what_is_refused(
    browser: Browser, services: Services, changed: dict[str, str], status: int, text: str
) -> None:
    shown = await browser.open("signup", code=await code_for_grace(services))
    answer = await browser.send(shown, **{"password": PASSWORD, "fullName": "Grace", **changed})
    assert answer.status_code == status
    assert text in answer.text
    assert "trunkline_session" not in browser.client.cookies
    assert (await browser.send(shown, password=PASSWORD)).status_code == 200


async def test_inviting_twice_changes_nothing(services: Services, browser: Browser, fake_clock: FakeClock) -> None:
    report = await invite(services)
    assert counts(report) == (1, 0, 0)
    ((table, name, key, link),) = [(one.table, one.name, one.key, one.value) for one in report.generated]
    assert (table, name, key) == ("invitations", GRACE, "link")
    assert link is not None
    found = _CODE.search(link)
    assert found is not None
    assert counts(await invite(services, GRACE.upper())) == (0, 0, 1)
    assert counts(await invite(services, organization="Acme")) == (0, 1, 0)
    assert len(await mails(services)) == 1
    shown = await browser.open("signup", code=found[1])
    fake_clock.advance(WEEK_MS)
    assert counts(await invite(services, organization="Acme")) == (0, 1, 0)
    fake_clock.advance(60_000)
    again = await invite(services, organization="Acme", again=True)
    assert counts(again) == (0, 1, 0)
    assert len(await mails(services)) == 3
    assert (await browser.send(shown, password=PASSWORD)).status_code == 410


async def test_an_address_with_an_account_is_not_invited(services: Services, browser: Browser) -> None:
    assert counts(await invite(services, "Ada@example.org")) == (0, 0, 1)
    assert await mails(services) == []


async def test_a_dry_run_invites_nobody(services: Services, browser: Browser) -> None:
    report = await services.provisioning.apply({"invitations": [{"email": GRACE}]}, dry_run=True)
    assert [one.value for one in report.generated] == [None]
    assert await mails(services) == []
    assert counts(await invite(services)) == (1, 0, 0)


@each_row(
    ("entry", "field"),
    [
        ({"email": "grace"}, "invitations[0].email"),
        ({"email": "grace@exa mple.org"}, "invitations[0].email"),
        ({"email": GRACE, "role": "viewer"}, "invitations[0].organization"),
        ({"email": GRACE, "organization": "Nobody's"}, "invitations[0].organization"),
        ({"email": GRACE, "role": "king"}, "invitations[0].role"),
        ({}, "invitations[0].email"),
    ],
)
async def test_entries_that_are_refused(
    services: Services, browser: Browser, entry: dict[str, str], field: str
) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await services.provisioning.apply({"invitations": [entry]})
    assert [finding.field for finding in refused.value.findings] == [field]
    assert await mails(services) == []
