"""User profiles, by id or as `self`."""

import pytest
import structlog

from broker.accounts.users import report_same_addresses
from broker.devices.shares import ShareStatus
from broker.errors import Conflict, EmailTaken, PermissionDenied, UserNotFound
from broker.services import Services
from tests.broker.accounts.claim_world import open_unproved
from tests.factories import ADA, ADA_TOKEN, APPLICATION_TOKEN, BOB, KITCHEN_TOKEN, World
from tests.mail_queue import waiting_mails
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


WRITINGS = ("JÖRG@exämple.org", "jörg@exämple.org", "jörg@xn--exmple-cua.org", "JO\u0308RG@EXA\u0308MPLE.org")


@pytest.mark.parametrize("second", WRITINGS)
async def test_an_address_is_one_account_however_it_is_written(services: Services, world: World, second: str) -> None:
    opened = await open_unproved(services, WRITINGS[0])
    with pytest.raises(EmailTaken):
        await open_unproved(services, second)
    assert (await services.accounts.users.named(second)).key == opened.key
    await services.accounts.resets.ask(second, address="192.0.2.1")
    waiting = await services.core.database.read(waiting_mails)
    assert [mail.recipient for mail in waiting] == ["jörg@xn--exmple-cua.org"]


async def test_operators_shares_and_invitations_know_an_address_in_every_writing(
    services: Services, world: World
) -> None:
    user = await open_unproved(services, WRITINGS[0])
    await services.core.database.write(lambda tx: tx.accounts.verify_email(user.key, now_ms=1))
    kitchen = await services.devices.registry.get(world.kitchen)
    share = await services.devices.shares.offer(kitchen, email=WRITINGS[2])
    assert share.user == user.key
    with pytest.raises(Conflict):
        await services.devices.shares.offer(kitchen, email=WRITINGS[1])
    report = await services.provisioning.apply(
        {"users": [{"email": WRITINGS[2]}], "invitations": [{"email": WRITINGS[1]}]}
    )
    assert {table: counts.unchanged for table, counts in report.tables.items()} == {"users": 1, "invitations": 1}


@pytest.mark.both_engines
async def test_a_share_of_an_address_without_account_is_offered_to_who_opens_one(
    services: Services, world: World
) -> None:
    kitchen = await services.devices.registry.get(world.kitchen)
    share = await services.devices.shares.offer(kitchen, email=WRITINGS[1])
    user = await open_unproved(services, WRITINGS[0])
    await services.core.database.write(lambda tx: tx.accounts.verify_email(user.key, now_ms=1))
    known = await services.accounts.users.find(user.id)
    found, _total = await services.devices.shares.offered_to(
        known, [ShareStatus.PENDING], [world.light_type], offset=0, count=9
    )
    assert [one.share.id for one in found] == [share.id]


@pytest.mark.sqlite("no store of PostgreSQL is older than folded addresses")
async def test_accounts_of_an_older_store_with_one_address_are_reported(services: Services, world: World) -> None:
    first = await open_unproved(services, WRITINGS[0])
    await services.core.database.write(
        lambda tx: tx.connection.execute("UPDATE user SET email_key = NULL WHERE key = :key", {"key": first.key})
    )
    second = await open_unproved(services, WRITINGS[1])
    # Each is found by its own writing, any other writing leads to the one that has the address.
    for writing, key in ((WRITINGS[0], first.key), (WRITINGS[1], second.key), (WRITINGS[2], second.key)):
        assert (await services.accounts.users.named(writing)).key == key
    with structlog.testing.capture_logs() as logs:
        await report_same_addresses(services.core.database)
    (told,) = [entry for entry in logs if entry["event"] == "same_address"]
    assert (told["account"], told["has_the_address_of"]) == (first.id, second.id)
