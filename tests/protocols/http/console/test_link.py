"""The one-time link that signs in the operator (reference 4.10)."""

import httpx
import pytest

from broker.accounts.console import Console
from broker.accounts.sessions import Visitor
from broker.errors import UserNotFound
from broker.services import Services
from config.limits import CONSOLE_LINK_SECONDS, CONSOLE_LINKS
from config.settings import Address
from tests.broker.accounts.test_second_factors import enrolled
from tests.factories import ADA, World
from tests.fakes import FakeClock
from tests.protocols.http.direct_client import DirectClient

pytestmark = pytest.mark.slow


ADA_EMAIL = "ada@example.org"


@pytest.fixture
async def browser(door: Address, world: World) -> httpx.AsyncClient:
    return DirectClient(door, "")


async def enter(browser: httpx.AsyncClient, code: str, method: str = "GET") -> httpx.Response:
    return await browser.request(method, "/console/enter", params={"code": code})


async def test_a_link_signs_in_once(browser: httpx.AsyncClient, door: Address, services: Services) -> None:
    code = await services.accounts.console.new_code(ADA_EMAIL)
    async with browser:
        answer = await enter(browser, code)
        assert (answer.status_code, answer.headers["location"]) == (303, "/console")
        assert (await browser.get("/console")).status_code == 200
        # Whoever has the session already is not sent away for opening the link again.
        again = await enter(browser, code)
        assert (again.status_code, again.headers["location"]) == (302, "/console")
    async with DirectClient(door, "") as other:
        refused = await enter(other, code)
        assert refused.status_code == 403
        assert "no longer valid" in refused.text
        assert not refused.cookies
        assert (await other.get("/console")).status_code == 302


async def test_a_link_is_in_the_store(services: Services, world: World) -> None:
    """Another daemon on the store takes it, also one that has started since."""
    core, accounts = services.core, services.accounts
    code = await accounts.console.new_code(ADA_EMAIL)
    other = Console(core.database, core.clock, core.router, core.vault, accounts.tokens, accounts.sessions)
    assert (await other.enter(code, Visitor())).user.id == ADA


@pytest.mark.parametrize("code", ["", "0" * 32, "no code", "\x00", "é" * 40])
async def test_a_wrong_code_signs_nobody_in(browser: httpx.AsyncClient, services: Services, code: str) -> None:
    await services.accounts.console.new_code(ADA_EMAIL)
    async with browser:
        assert (await enter(browser, code)).status_code == 403
        assert not browser.cookies


async def test_a_link_is_good_for_a_quarter_of_an_hour(
    browser: httpx.AsyncClient, services: Services, fake_clock: FakeClock
) -> None:
    code = await services.accounts.console.new_code(ADA_EMAIL)
    fake_clock.advance(CONSOLE_LINK_SECONDS * 1000)
    async with browser:
        assert (await enter(browser, code)).status_code == 403


async def test_a_preview_does_not_use_the_link_up(browser: httpx.AsyncClient, services: Services) -> None:
    code = await services.accounts.console.new_code(ADA_EMAIL)
    async with browser:
        assert (await enter(browser, code, "HEAD")).status_code == 404
        assert (await enter(browser, code)).status_code == 303


async def test_a_link_asks_for_the_second_factor(
    browser: httpx.AsyncClient, services: Services, fake_clock: FakeClock
) -> None:
    ada = await services.accounts.users.find(ADA)
    await enrolled(services, await services.accounts.sessions.begin(ada), fake_clock)
    code = await services.accounts.console.new_code(ADA_EMAIL)
    async with browser:
        answer = await enter(browser, code)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/accounts/login/code?")
        assert "trunkline_session" not in browser.cookies
        shown = await browser.get(answer.headers["location"])
        assert shown.status_code == 200
        assert (await browser.get("/console")).status_code == 302


async def test_only_so_many_links_wait(browser: httpx.AsyncClient, services: Services) -> None:
    console = services.accounts.console
    first, *_, last = [await console.new_code(ADA_EMAIL) for _ in range(CONSOLE_LINKS + 1)]
    async with browser:
        assert (await enter(browser, first)).status_code == 403
        assert (await enter(browser, last)).status_code == 303


async def test_there_is_no_link_for_nobody(services: Services, world: World) -> None:
    with pytest.raises(UserNotFound):
        await services.accounts.console.new_code("nobody@example.org")


async def test_a_link_works_on_this_machine_only(services: Services, world: World) -> None:
    """Behind a trusted proxy, the client is who the proxy says."""
    from protocols.http.application import build_app

    code = await services.accounts.console.new_code(ADA_EMAIL)
    client = build_app(services).test_client()
    for address, status in (("192.0.2.1", 404), ("::ffff:192.0.2.1", 404), ("127.0.0.1", 303)):
        answer = await client.get(f"/console/enter?code={code}", scope_base={"client": (address, 1)})
        assert answer.status_code == status, address
