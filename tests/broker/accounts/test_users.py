"""User profiles, by id or as `self`."""

import pytest

from broker.errors import PermissionDenied, UserNotFound
from broker.services import Services
from tests.factories import ADA, ADA_TOKEN, APPLICATION_TOKEN, BOB, KITCHEN_TOKEN, World
from tests.rows import each_row


async def test_a_user_token_has_a_self(services: Services, world: World) -> None:
    caller = await services.accounts.tokens.caller(ADA_TOKEN)
    ada = await services.accounts.users.self_of(caller)
    assert (ada.id, ada.key, ada.email) == (ADA, world.ada, "ada@example.org")
    assert await services.accounts.users.find("self", caller) == ada
    assert await services.accounts.users.find(ADA, caller) == ada
    assert (await services.accounts.users.find(BOB, caller)).id == BOB


@pytest.mark.parametrize("token", [APPLICATION_TOKEN, KITCHEN_TOKEN])
async def test_other_tokens_have_no_self(services: Services, world: World, token: str) -> None:
    caller = await services.accounts.tokens.caller(token)
    with pytest.raises(PermissionDenied):
        await services.accounts.users.self_of(caller)
    with pytest.raises(UserNotFound):
        await services.accounts.users.find("self", caller)


@each_row("user_id", ["", "self", ADA.upper(), f"{ADA} ", "ff" * 16])
async def test_an_unknown_user_is_not_found(services: Services, world: World, user_id: str) -> None:
    with pytest.raises(UserNotFound) as caught:
        await services.accounts.users.find(user_id)
    assert (caught.value.status, caught.value.code) == (404, 1201)
