"""From the mail of a trial, as a mail server gets it, to a participant and an administrator, in a real browser."""

from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import httpx
import pytest

from tests.browser import PHONE
from tests.daemon import USER_TOKEN, bearer
from tests.e2e.accounts.person import Person
from tests.e2e.accounts.world import FRIDA_EMAIL, GALE_EMAIL, Site, running_site
from tests.properties import in_ci
from tests.protocols.outbound.smtp_servers import Received, smtp_server


@pytest.fixture(scope="module")
def received() -> Received:
    return Received()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, certificate: Path, received: Received) -> Iterator[Site]:
    """A daemon of its own, whose mails go to a mail server."""
    with smtp_server(received) as port:
        settings = f'[outbound]\nsmtp_url = "smtp://127.0.0.1:{port}"\nmail_from = "Gateway <gateway@example.org>"\n'
        with running_site(tmp_path_factory.mktemp("trials"), certificate, settings=settings) as running:
            yield running


@in_ci
def test_the_mailed_links_lead_to_members_of_the_trial(person: Person, site: Site, received: Received) -> None:
    browser = person.browser
    body = {
        "name": "Sleep and light",
        "deviceTypes": [{"dtid": "brightlight.lamp"}],
        "invitations": [
            {"email": FRIDA_EMAIL, "invitationType": "participant"},
            {"email": GALE_EMAIL, "invitationType": "administrator"},
        ],
    }
    answer = httpx.post(f"{site.daemon.base_url}/trials", json=body, headers=bearer(USER_TOKEN))
    trial = answer.raise_for_status().json()["data"]
    browser.wait(lambda: len(received.messages) == 2 or None)
    sent = {str(one["To"]): one for one in received.messages}
    for email, role, title, done in (
        (FRIDA_EMAIL, "participant", "Take part in this trial?", "You take part"),
        (GALE_EMAIL, "administrator", "Administer this trial?", "You administer this trial"),
    ):
        mail = sent[email]
        assert (mail["Subject"], mail["From"]) == ("You are invited to a trial", "Gateway <gateway@example.org>")
        text = text_of(mail)
        assert "Trial: Sleep and light" in text
        assert f"As: {role}" in text
        assert "The invitation ends at " in text
        assert trial["clientSecret"] not in text
        link = site.link_in(text)
        assert link.startswith(f"{site.accounts}/accept/trial?code=")
        browser.fresh()
        browser.show(PHONE, dark=True)
        browser.open(link)
        person.sign_in(email)
        assert browser.heading == title
        assert ("Brightlight Lamp" in browser.text) is (role == "participant")
        assert browser.overhang() == 0
        browser.press("Accept")
        assert browser.heading == done
        browser.open(link)  # it works once
        assert browser.alert == "Gone"
    for role, names in (("participants", ["Frida"]), ("administrators", ["Ada", "Gale"])):
        shown = site.of_ada("GET", f"/trials/{trial['id']}/{role}")[role]
        assert [one["fullName"] for one in shown] == names


def text_of(mail: EmailMessage) -> str:
    body = mail.get_body(["plain"])
    assert body is not None
    return str(body.get_content())
