"""Ada's browser, signed in to the console."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from html import unescape

import httpx
import pytest

from broker.services import Services
from config.settings import Address
from tests.factories import ADA, World
from tests.protocols.http.accounts.browser import PASSWORD, give_password
from tests.protocols.http.direct_client import DirectClient

#: Fetches an access token, as a page does it.
NewToken = Callable[[], Awaitable[str]]


@pytest.fixture
async def browser(services: Services, door: Address, world: World) -> AsyncIterator[httpx.AsyncClient]:
    await give_password(services, await services.accounts.users.find(ADA))
    async with DirectClient(door, "") as client:
        yield client


async def sign_in(browser: httpx.AsyncClient, path: str = "/console") -> httpx.Response:
    """Open a page, sign in where that leads to, and go on to where that leads."""
    led = await browser.get(path)
    assert led.status_code == 302
    shown = await browser.get(led.headers["location"])
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', shown.text)
    fields = {name: unescape(value) for name, value in hidden}
    return await browser.post("/accounts/login", data=fields | {"email": "ada@example.org", "password": PASSWORD})


@pytest.fixture
async def page(browser: httpx.AsyncClient) -> httpx.Response:
    """The first page, after the sign-in."""
    answer = await sign_in(browser)
    return await browser.get(answer.headers["location"])


def proof_in(page: httpx.Response) -> str:
    (proof,) = re.findall(r'<meta name="csrf" content="(\w+)">', page.text)
    return str(proof)


@pytest.fixture
def new_token(browser: httpx.AsyncClient, page: httpx.Response) -> NewToken:
    async def ask() -> str:
        answer = await browser.post("/console/token", headers={"X-Console": proof_in(page)})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["accessToken"])

    return ask
