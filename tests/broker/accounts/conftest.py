"""The OAuth world: applications with every method."""

import pytest

from broker.services import Services
from tests.broker.accounts.oauth_world import OAuthWorld, make_oauth_world
from tests.factories import World


@pytest.fixture
async def oauth(services: Services, world: World) -> OAuthWorld:
    return await make_oauth_world(services)
