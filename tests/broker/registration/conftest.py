"""The common world of tests, and a device type whose devices register with certificates."""

import pytest

from broker.accounts.tokens import Caller
from broker.services import Services
from tests.certificates import Authority
from tests.factories import ADA_TOKEN, World
from tests.secure_types import NOW, provision_secure_type


@pytest.fixture
def authority() -> Authority:
    return Authority(now=NOW)


@pytest.fixture
async def secure(services: Services, world: World, authority: Authority) -> World:
    await provision_secure_type(services, authority)
    return world


@pytest.fixture
async def ada(services: Services, secure: World) -> Caller:
    return await services.accounts.tokens.caller(ADA_TOKEN)
