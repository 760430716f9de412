"""/signup, open and closed."""

from pathlib import Path

import pytest

from broker.services import Services
from config.settings import Accounts, Limits, Settings
from tests.broker.accounts.oauth_world import CALLBACK, WEB
from tests.protocols.http.accounts.browser import Browser, Form
from tests.rows import each_row

pytestmark = pytest.mark.slow


ASKED = {"client_id": WEB, "response_type": "code", "state": "s"}
GRACE = {"email": " grace@example.org ", "password": "1234 six", "fullName": "Grace"}


async def test_it_is_closed_unless_the_operator_opens_it(browser: Browser) -> None:
    assert (await browser.open("signup", **ASKED)).status_code == 404
    shown = await browser.open("authorize", **ASKED)
    assert "signup" not in shown.text
    for fields in ({}, Form(shown.text).fields | GRACE):
        assert (await browser.post("/accounts/signup", fields)).status_code == 404


class TestOpen:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        limits = Limits(rate_limits="off", quotas="off")
        return Settings(state_dir=tmp_path, accounts=Accounts(signup="open"), limits=limits)

    async def test_an_account_is_opened(self, browser: Browser, services: Services) -> None:
        assert "/accounts/signup?client_id=" in (await browser.open("authorize", **ASKED)).text
        shown = await browser.open("signup", **ASKED)
        assert Form(shown.text).labelled == {"email", "password", "fullName"}
        back = await browser.send(shown, **GRACE)
        assert back.headers["location"].startswith(f"{CALLBACK}?code=")
        session = await services.accounts.sessions.find(browser.client.cookies["trunkline_session"])
        assert session is not None
        assert (session.user.email, session.user.name) == ("grace@example.org", "grace")
        assert session.user.full_name == "Grace"
        shown = await browser.open("signin", **ASKED)
        assert (await browser.sign_in(shown, "grace", password=GRACE["password"])).status_code == 302

    async def test_the_way_to_a_device(self, browser: Browser) -> None:
        shown = await browser.open("signup", user_code="ABCD-EFGH")
        assert (await browser.send(shown, **GRACE)).headers["location"] == "/accounts/go?user_code=ABCD-EFGH"

    @each_row(
        ("changed", "status", "text"),
        [
            ({"email": "ADA@example.org"}, 409, "Email already registered."),
            ({"email": "grace"}, 400, "This is not an e-mail address."),
            ({"email": "grace@exa mple"}, 400, "This is not an e-mail address."),
            ({"email": "g" * 250 + "@example.org"}, 400, "This is not an e-mail address."),
            ({"password": "1234567"}, 400, "A password has 8 to 1024 characters."),
            ({"password": "12345678"}, 400, "one of the 10,000 most common passwords"),
            ({"password": "PassWord"}, 400, "one of the 10,000 most common passwords"),
            ({"fullName": "x" * 65}, 400, "A name has at most 64 characters."),
            ({"csrf": ""}, 403, "no longer valid"),
        ],
    )
    async def test_what_is_refused(self, browser: Browser, changed: dict[str, str], status: int, text: str) -> None:
        shown = await browser.open("signup", **ASKED)
        answer = await browser.send(shown, **(GRACE | changed))
        assert answer.status_code == status
        assert text in answer.text
        form = Form(answer.text)
        assert (form.fields["email"], form.fields["password"]) == ((GRACE | changed)["email"], "")
        assert "trunkline_session" not in browser.client.cookies

    async def test_ten_attempts_from_one_address(self, browser: Browser) -> None:
        shown = await browser.open("signup", **ASKED)
        for _ in range(10):
            assert (await browser.send(shown, **(GRACE | {"email": "ada@example.org"}))).status_code == 409
        assert (await browser.send(shown, **GRACE)).status_code == 429
