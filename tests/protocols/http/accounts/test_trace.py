"""Actions on the pages of the accounts server are in the audit log, and wrong attempts are in the log, too."""

import pytest
from structlog.testing import capture_logs

from broker.services import Services
from storage.records import AuditFilter, AuditRecord
from tests.broker.accounts.oauth_world import WEB, OAuthWorld
from tests.protocols.http.accounts.browser import PASSWORD, Browser
from tests.protocols.http.accounts.test_pages import ASKED

pytestmark = pytest.mark.slow


async def entries(services: Services, **wanted: str) -> list[AuditRecord]:
    return await services.core.audit.find(AuditFilter(0, 2**62, 1000, **wanted))


async def test_a_wrong_password_names_the_account_and_not_what_was_typed(
    browser: Browser, services: Services, oauth: OAuthWorld
) -> None:
    shown = await browser.open("authorize", **ASKED)
    with capture_logs() as logs:
        await browser.sign_in(shown, password="a wrong one")
        await browser.sign_in(shown, name=PASSWORD, password="ada@example.org")
    assert [(line["event"], line.get("account"), line["peer"]) for line in logs] == [
        ("sign_in_refused", oauth.ada.id, "127.0.0.1"),
        ("sign_in_refused", None, "127.0.0.1"),
    ]
    found = await entries(services, event="sign_in", outcome="refused")
    assert [(one.actor, one.address, one.object) for one in found] == [
        ("", "127.0.0.1", f"account {oauth.ada.id}"),
        ("", "127.0.0.1", ""),
    ]
    assert PASSWORD not in str((logs, found))
    assert "a wrong one" not in str((logs, found))


async def test_a_lock_out_is_audited_with_the_account(browser: Browser, services: Services, oauth: OAuthWorld) -> None:
    shown = await browser.open("authorize", **ASKED)
    for _ in range(6):
        await browser.sign_in(shown, password="wrong")
    (locked,) = await entries(services, event="lock_out")
    assert (locked.outcome, locked.object, locked.of_stranger) == ("refused", f"account {oauth.ada.id}", True)


async def test_a_sign_in_and_a_sign_out_are_audited_with_the_person(
    browser: Browser, services: Services, oauth: OAuthWorld
) -> None:
    await browser.sign_in(await browser.open("authorize", **ASKED))
    await browser.client.get("logout")
    found = [
        (one.event, one.actor, one.address, one.object)
        for one in await entries(services)
        if one.event in {"sign_in", "sign_out"}
    ]
    who = (f"user {oauth.ada.id}", "127.0.0.1", f"account {oauth.ada.id}")
    assert found == [("sign_in", *who), ("sign_out", *who)]


async def test_tokens_are_audited_from_issue_to_revocation(services: Services, oauth: OAuthWorld) -> None:
    issued = await oauth.user_tokens()
    await services.accounts.tokens.revoke(issued["access_token"])
    found = await entries(services)
    assert [(one.event, one.object, one.details.get("by")) for one in found] == [
        ("token_issued", f"user {oauth.ada.id}", "authorization_code"),
        ("token_revoked", f"user {oauth.ada.id}", None),
    ]
    assert {one.actor for one in found} == {f"application {WEB}"}
    assert issued["access_token"] not in str(found)
    assert issued["refresh_token"] not in str(found)
