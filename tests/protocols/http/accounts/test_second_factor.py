"""The pages of the second factor, and that no way to sign in gets around it (reference 4.9)."""

import html
import re
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx
import pyotp
import pytest
import structlog

from broker.accounts.one_time_codes import otpauth_uri
from broker.services import Services
from config.settings import Accounts, Address, Settings
from protocols.http.accounts.account import browser_name
from protocols.http.accounts.second_factor import _picture
from storage.keys import OrganizationKey
from tests.broker.accounts.oauth_world import CALLBACK, MOBILE, TV, WEB, OAuthWorld, basic, query_of
from tests.broker.accounts.test_resets import code_for_ada
from tests.factories import ADA
from tests.fakes import FakeClock
from tests.protocols.http.accounts.browser import PASSWORD, Browser, account_csrf
from tests.rows import each_row

pytestmark = pytest.mark.slow


ASKED: Final = {"client_id": WEB, "response_type": "code", "state": "a b+ü/%"}
STEP_MS: Final = 30_000
MINUTE_MS: Final = 60_000


def title(answer: httpx.Response) -> str:
    found = re.search("<h1>(.*?)</h1>", answer.text)
    assert found is not None, answer.text
    return found[1]


def codes_on(answer: httpx.Response) -> list[str]:
    return re.findall("<li><code>(.*?)</code></li>", answer.text)


class Phone:
    def __init__(self, page: httpx.Response, clock: FakeClock) -> None:
        """Takes over the secret that is written on the setup page."""
        found = re.search("<code>([A-Z2-7 ]+)</code>", page.text)
        assert found is not None
        self.secret = found[1].replace(" ", "")
        self._app = pyotp.TOTP(self.secret)
        self._clock = clock

    def code(self) -> str:
        return self._app.generate_otp(self._clock.now // STEP_MS)

    def next_code(self) -> str:
        self._clock.advance(STEP_MS)
        return self.code()


async def set_up(browser: Browser, clock: FakeClock) -> tuple[Phone, list[str]]:
    """Sign in, and set up a second factor. Returns the phone and the recovery codes."""
    page = await browser.sign_in(await browser.open("account/second-factor"))
    page = await browser.open(page.headers["location"])
    phone = Phone(page, clock)
    done = await browser.send(page, code=phone.code())
    assert title(done) == "Keep these recovery codes"
    return phone, codes_on(done)


@pytest.fixture
async def phone(browser: Browser, fake_clock: FakeClock) -> Phone:
    """Ada has a second factor, and her browser no session."""
    phone, _ = await set_up(browser, fake_clock)
    browser.client.cookies.clear()
    return phone


@pytest.fixture
async def other(door: Address, oauth: OAuthWorld) -> AsyncIterator[Browser]:
    """Another browser."""
    async with (other := Browser(door)).client:
        yield other


async def is_signed_in(browser: Browser) -> bool:
    return (await browser.client.get("checkSession")).status_code == 200


# Signing in


async def test_the_way_to_an_application_leads_over_the_code(browser: Browser, phone: Phone) -> None:
    asked = await browser.sign_in(await browser.open("authorize", **ASKED))
    assert title(asked) == "Enter your code"
    assert "<strong>Web</strong>" in asked.text
    assert not await is_signed_in(browser)
    back = await browser.send(asked, code=phone.next_code())
    assert back.status_code == 302
    assert back.headers["location"].startswith(f"{CALLBACK}?code=")
    assert query_of(back.headers["location"])["state"] == ASKED["state"]
    assert await is_signed_in(browser)
    assert "trunkline_waiting" not in browser.client.cookies


async def test_a_wrong_code_may_be_corrected(browser: Browser, phone: Phone) -> None:
    asked = await browser.sign_in(await browser.open("go"))
    again = await browser.send(asked, code="wrong")
    assert (again.status_code, title(again)) == (403, "Enter your code")
    assert "This code is not right" in again.text
    assert not await is_signed_in(browser)
    assert (await browser.send(again, code=phone.next_code())).status_code == 302


async def test_a_recovery_code_does_as_well(browser: Browser, fake_clock: FakeClock) -> None:
    _, recovery = await set_up(browser, fake_clock)
    browser.client.cookies.clear()
    assert len(recovery) == 10
    asked = await browser.sign_in(await browser.open("account"))
    answer = await browser.send(asked, code=recovery[3].upper())
    page = await browser.open(answer.headers["location"])
    assert "Recovery codes left: 9." in page.text


async def test_tries_are_bounded(browser: Browser, phone: Phone) -> None:
    page = await browser.sign_in(await browser.open("go"))
    for _ in range(5):
        page = await browser.send(page, code="wrong")
    page = await browser.send(page, code=phone.next_code())
    assert page.status_code == 429
    assert int(page.headers["retry-after"]) > 0


async def test_too_long_after_the_password_it_is_asked_again(
    browser: Browser, phone: Phone, fake_clock: FakeClock
) -> None:
    page = await browser.sign_in(await browser.open("go"))
    fake_clock.advance(10 * MINUTE_MS)
    page = await browser.send(page, code=phone.next_code())
    assert (page.status_code, title(page)) == (403, "Sign in")
    assert title(await browser.open("login/code", page="go")) == "Sign in"


async def test_the_code_alone_is_nothing(browser: Browser, other: Browser, phone: Phone) -> None:
    """It signs nobody in, from a browser that gave no password or with a form from elsewhere."""
    page = await browser.sign_in(await browser.open("go"))
    form = {"code": phone.next_code(), "page": "go", "continue": ""}
    assert title(await other.post("/accounts/login/code", form)) == "Enter your code"
    await other.open("go")  # it has a form's key from now on
    assert not await is_signed_in(other)
    forged = await browser.post("/accounts/login/code", form)
    assert forged.status_code == 403
    assert not await is_signed_in(browser)
    assert (await browser.send(page, code=phone.code())).status_code == 302


async def test_the_continuation_is_checked(browser: Browser, phone: Phone) -> None:
    """`continue` is untrusted: it leads to a registered address, or nowhere."""
    page = await browser.sign_in(await browser.open("go"))
    evil = "client_id=" + WEB + "&response_type=code&redirect_uri=https://evil.example.org"
    answer = await browser.send(page, code=phone.next_code(), page="authorize", **{"continue": evil})
    assert answer.status_code == 400
    assert not await is_signed_in(browser)


# Ways around it


@each_row("path", ["authorize", "signin"])
async def test_no_page_of_an_application_opens(browser: Browser, phone: Phone, path: str) -> None:
    await browser.sign_in(await browser.open(path, **ASKED))
    assert title(await browser.open(path, **ASKED)) == "Sign in"


async def test_a_device_is_not_connected(browser: Browser, phone: Phone, oauth: OAuthWorld) -> None:
    user_code = str((await oauth.device_code()).body["user_code"])
    await browser.sign_in(await browser.open("go", user_code=user_code))
    assert title(await browser.open("go", user_code=user_code)) == "Sign in"
    entered = await browser.client.post("go", data={"user_code": user_code, "decision": "allow"})
    assert title(entered) == "Sign in"


@each_row("path", ["account", "account/second-factor"])
async def test_the_account_is_not_shown(browser: Browser, phone: Phone, path: str) -> None:
    asked = await browser.sign_in(await browser.open(path))
    assert title(asked) == "Enter your code"
    for own in ("account", "account/second-factor"):
        assert title(await browser.open(own)) == "Sign in"


@each_row("path", ["account/sessions", "account/second-factor", "account/second-factor/remove"])
async def test_nothing_is_changed_without_a_session(browser: Browser, phone: Phone, path: str) -> None:
    await browser.sign_in(await browser.open("account"))
    assert title(await browser.client.post(path, data={"code": phone.next_code()})) == "Sign in"
    browser.client.cookies.clear()
    assert title(await browser.sign_in(await browser.open("go"))) == "Enter your code"


async def test_a_new_password_by_mail_does_not_remove_it(browser: Browser, phone: Phone, oauth: OAuthWorld) -> None:
    code = await code_for_ada(oauth)
    done = await browser.send(await browser.open("reset", code=code), password="a new horse battery")
    assert title(done) == "Your password is set"
    assert not await is_signed_in(browser)
    asked = await browser.sign_in(await browser.open("go"), password="a new horse battery")
    assert title(asked) == "Enter your code"


@each_row("client", [WEB, MOBILE, TV])
async def test_no_grant_takes_a_password(phone: Phone, oauth: OAuthWorld, client: str) -> None:
    form = {"username": "ada@example.org", "password": PASSWORD, "code": phone.next_code()}
    for authorization in ("", basic(client)):
        answer = await oauth.token(authorization, grant_type="password", client_id=client, **form)
        assert "access_token" not in answer.body
        assert answer.status != 200


async def test_no_secret_is_logged_or_stands_in_an_address(browser: Browser, fake_clock: FakeClock) -> None:
    addresses: list[str] = []

    async def note(request: httpx.Request) -> None:
        addresses.append(str(request.url))

    browser.client.event_hooks["request"].append(note)
    with structlog.testing.capture_logs() as logs:
        phone, recovery = await set_up(browser, fake_clock)
        browser.client.cookies.clear()
        page = await browser.sign_in(await browser.open("go"))
        waiting = browser.client.cookies["trunkline_waiting"]
        await browser.send(page, code="wrong-code")
        await browser.send(page, code=phone.next_code())
    seen = repr(logs) + repr(addresses)
    for secret in (
        phone.secret,
        phone.code(),
        *recovery,
        waiting,
        "wrong-code",
        browser.client.cookies["trunkline_session"],
    ):
        assert secret not in seen


# Setting up and turning off


async def test_the_picture_says_what_the_text_says(browser: Browser, services: Services, fake_clock: FakeClock) -> None:
    page = await browser.sign_in(await browser.open("account/second-factor"))
    page = await browser.open(page.headers["location"])
    issuer = f"Trunkline {urlsplit(services.core.site.accounts.url).hostname}"
    address = otpauth_uri(Phone(page, fake_clock).secret, account="ada@example.org", issuer=issuer)
    assert _picture(address) in page.text
    assert "otpauth" not in page.text  # it is in the picture, and in no address that a browser might keep
    assert page.headers["cache-control"] == "no-store"


async def test_a_wrong_first_code_keeps_the_picture(browser: Browser, fake_clock: FakeClock) -> None:
    page = await browser.sign_in(await browser.open("account/second-factor"))
    page = await browser.open(page.headers["location"])
    phone = Phone(page, fake_clock)
    again = await browser.send(page, code="123")
    assert (again.status_code, Phone(again, fake_clock).code()) == (403, phone.code())
    assert title(await browser.send(again, code=phone.code())) == "Keep these recovery codes"


async def test_recovery_codes_are_shown_once(browser: Browser, fake_clock: FakeClock) -> None:
    page = await browser.sign_in(await browser.open("account/second-factor"))
    page = await browser.open(page.headers["location"])
    first = await browser.send(page, code=Phone(page, fake_clock).code())
    assert len(codes_on(first)) == 10
    again = await browser.send(page, code=Phone(page, fake_clock).code())
    assert (title(again), codes_on(again)) == ("Your account", [])


async def test_a_forged_form_sets_up_nothing(browser: Browser, fake_clock: FakeClock) -> None:
    page = await browser.sign_in(await browser.open("account/second-factor"))
    page = await browser.open(page.headers["location"])
    forged = await browser.send(page, code=Phone(page, fake_clock).code(), csrf="0" * 64)
    assert forged.status_code == 403
    assert "Off. Turn it on" in (await browser.open("account")).text


async def test_it_is_turned_off_by_its_person(browser: Browser, fake_clock: FakeClock) -> None:
    await set_up(browser, fake_clock)
    page = await browser.open("account")
    csrf = account_csrf(page)
    assert (await browser.post("/accounts/account/second-factor/remove", {"csrf": "0" * 64})).status_code == 403
    off = await browser.post("/accounts/account/second-factor/remove", {"csrf": csrf})
    assert "Off. Turn it on" in off.text


async def test_an_old_session_changes_nothing(browser: Browser, fake_clock: FakeClock) -> None:
    """A browser that was left signed in must not lock its person out."""
    await browser.sign_in(await browser.open("go"))
    page = await browser.open("account")
    csrf = account_csrf(page)
    fake_clock.advance(10 * MINUTE_MS)
    for answer in (
        await browser.open("account/second-factor"),
        await browser.post("/accounts/account/second-factor", {"csrf": csrf, "code": "123456"}),
        await browser.post("/accounts/account/second-factor/remove", {"csrf": csrf}),
    ):
        assert title(answer) == "Sign in"
        assert "sign in once more" in answer.text


# Sessions


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0", "Firefox on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/142.0 Safari/537.36 Edg/142.0", "Edge on Windows"),
        ("Mozilla/5.0 (Linux; Android 16) AppleWebKit/537.36 Chrome/142.0 Mobile Safari/537.36", "Chrome on Android"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) Version/19.0 Safari/604.1", "Safari on iPhone"),
        ("curl/8.14", "curl/8.14"),
        ("", "Unknown browser"),
    ],
)
def test_people_recognize_their_browsers(user_agent: str, name: str) -> None:
    assert browser_name(user_agent) == name


async def test_the_account_page_ends_another_session(browser: Browser, other: Browser, fake_clock: FakeClock) -> None:
    other.client.headers["User-Agent"] = "Other <browser>"
    for one in (browser, other):
        await one.sign_in(await one.open("go"))
        fake_clock.advance(1)  # the newest session stands first
    page = await browser.open("account")
    assert page.text.count("this browser") == 1
    assert "Other &lt;browser&gt;" in page.text
    csrf = account_csrf(page)
    shown = page.text.partition("this browser")
    ended, own = (re.findall('name="session" value="(.*?)"', part)[0] for part in (shown[0], shown[2]))
    forged = await browser.post("/accounts/account/sessions", {"csrf": "0" * 64, "session": ended})
    assert forged.status_code == 403
    assert await is_signed_in(other)
    left = await browser.post("/accounts/account/sessions", {"csrf": csrf, "session": ended})
    assert "Other &lt;browser&gt;" not in left.text
    assert (await is_signed_in(browser), await is_signed_in(other)) == (True, False)
    signed_out = await browser.post("/accounts/account/sessions", {"csrf": csrf, "session": own})
    assert "to see your account" in signed_out.text
    assert not await is_signed_in(browser)


# Required of administrators


class TestWhereAdministratorsNeedOne:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(
            state_dir=settings.state_dir,
            limits=settings.limits,
            http=settings.http,
            accounts=Accounts(second_factor="administrators"),
        )

    @pytest.fixture
    async def administrator(self, browser: Browser, services: Services) -> Browser:
        user = await services.accounts.users.find(ADA)
        await services.core.database.write(
            lambda tx: tx.accounts.set_role(OrganizationKey(1), user.key, "administrator")
        )
        return browser

    async def test_the_way_to_an_application_leads_over_the_setup(
        self, administrator: Browser, fake_clock: FakeClock
    ) -> None:
        page = await administrator.sign_in(await administrator.open("authorize", **ASKED))
        assert title(page) == "Set up a second factor"
        assert "Administrators need one here" in page.text
        assert not await is_signed_in(administrator)
        done = await administrator.send(page, code=Phone(page, fake_clock).code())
        (way_on,) = re.findall('<a class="button" href="(/accounts/authorize.*?)">Continue</a>', done.text)
        back = await administrator.client.get(administrator.client.base_url.join(html.unescape(way_on)))
        assert back.headers["location"].startswith(f"{CALLBACK}?code=")
        assert parse_qs(urlsplit(back.headers["location"]).query)["state"] == [ASKED["state"]]

    @pytest.mark.parametrize(
        ("query", "way_on"),
        [
            ({"user_code": "ABCD-EFGH"}, "/accounts/go?user_code=ABCD-EFGH"),
            ({"share": "0" * 32}, f"/accounts/accept/share?code={'0' * 32}"),
            ({"account": "second-factor"}, "/console/account"),
        ],
    )
    async def test_other_ways_go_on_after_the_setup(
        self, administrator: Browser, fake_clock: FakeClock, query: dict[str, str], way_on: str
    ) -> None:
        page = await administrator.sign_in(await administrator.open("go", **query))
        done = await administrator.send(page, code=Phone(page, fake_clock).code())
        assert re.findall('<a class="button" href="(.*?)">Continue', done.text) == [way_on]

    async def test_nothing_else_opens_before_the_setup(self, administrator: Browser) -> None:
        await administrator.sign_in(await administrator.open("go"))
        for path in ("go", "account"):
            assert title(await administrator.open(path)) == "Sign in"
        assert title(await administrator.open("authorize", **ASKED)) == "Sign in"

    async def test_it_cannot_be_turned_off(self, administrator: Browser, fake_clock: FakeClock) -> None:
        page = await administrator.sign_in(await administrator.open("go"))
        await administrator.send(page, code=Phone(page, fake_clock).code())
        page = await administrator.open("account")
        assert "cannot be turned off" in page.text
        assert "remove" not in page.text
