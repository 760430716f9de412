"""Sharing with an unverified address: without the mailed code, its account neither sees nor gets the share."""

import json
import re

import pytest

from broker.devices.shares import ShareStatus
from broker.errors import PermissionDenied
from broker.services import Services
from storage.records import ShareRecord, UserRecord
from storage.transaction import Transaction
from tests.factories import BOBS, World, new_user

ADDRESS = "eve@example.org"
EVERY = tuple(ShareStatus)


async def sign_up(services: Services) -> UserRecord:
    """An account with an address that was not verified by mail."""

    def work(tx: Transaction) -> UserRecord:
        return tx.accounts.add_user(
            new_user(
                "e5" * 16,
                email=ADDRESS,
                name="eve",
                full_name="Eve",
                password_hash=None,
                now_ms=1,
                email_verified=False,
            )
        )

    return await services.core.database.write(work)


async def share(services: Services) -> ShareRecord:
    return await services.devices.shares.offer(await services.devices.registry.find(BOBS), email=ADDRESS)


async def mailed_code(services: Services) -> str:
    record = await services.core.database.read(lambda tx: tx.mails.next())
    assert record is not None
    assert record.content is not None
    found = re.search(r"code=(\w+)", json.loads(services.core.vault.open(record.content))[1])
    assert found is not None
    return found[1]


@pytest.mark.both_engines
@pytest.mark.parametrize("is_there_before", [True, False])
async def test_an_unverified_account_neither_sees_nor_accepts_a_share(
    services: Services, world: World, is_there_before: bool
) -> None:
    eve = await sign_up(services) if is_there_before else None
    offered = await share(services)
    eve = eve or await sign_up(services)
    assert await services.devices.shares.types_offered_to(eve) == set()
    assert await services.devices.shares.offered_to(eve, EVERY, [world.light_type], offset=0, count=10) == ([], 0)
    assert not await services.devices.shares.is_for(eve.key, offered)
    for code in ("", "f" * 32):
        with pytest.raises(PermissionDenied):
            await services.devices.shares.answer(offered.id, eve.key, ShareStatus.ACCEPTED, code=code)
    assert (await services.devices.registry.find(BOBS)).shared_with == frozenset()


async def test_the_mailed_code_verifies_the_address(services: Services, world: World) -> None:
    eve = await sign_up(services)
    offered = await share(services)
    code = await mailed_code(services)
    assert await services.devices.shares.is_for(eve.key, offered, code=code)
    await services.devices.shares.answer(offered.id, eve.key, ShareStatus.ACCEPTED, code=code)
    assert (await services.devices.registry.find(BOBS)).shared_with == {eve.key}
    proved = await services.core.database.read(lambda tx: tx.accounts.user(eve.key))
    assert proved is not None
    assert proved.email_verified_on is not None


async def test_the_code_of_another_invitation_is_refused(services: Services, world: World) -> None:
    eve = await sign_up(services)
    offered = await share(services)
    await services.devices.shares.offer(await services.devices.registry.find(BOBS), email="ada@example.org")
    assert not await services.devices.shares.is_for(world.ada, offered, code=await mailed_code(services))
    assert not await services.devices.shares.is_for(eve.key, offered, code="")
