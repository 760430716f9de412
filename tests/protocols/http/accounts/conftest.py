"""The accounts server behind the real listener, with applications of every method."""

from collections.abc import AsyncIterator

import httpx
import pytest

from broker.services import Services
from config.settings import Address
from tests.broker.accounts.oauth_world import OAuthWorld, make_oauth_world
from tests.factories import World
from tests.protocols.http.accounts.browser import Browser, give_password
from tests.protocols.http.direct_client import DirectClient


@pytest.fixture
async def oauth(services: Services, world: World) -> OAuthWorld:
    return await make_oauth_world(services)


@pytest.fixture
async def accounts(door: Address, oauth: OAuthWorld) -> AsyncIterator[httpx.AsyncClient]:
    async with DirectClient(door, "/accounts") as client:
        yield client


@pytest.fixture
async def browser(door: Address, oauth: OAuthWorld) -> AsyncIterator[Browser]:
    """Ada's browser. Ada has a password."""
    await give_password(oauth.services, oauth.ada)
    browser = Browser(door)
    async with browser.client:
        yield browser
