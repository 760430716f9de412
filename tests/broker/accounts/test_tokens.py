"""Tokens resolve to callers until they expire, are revoked or change."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.accounts import tokens as tokens_module
from broker.accounts.tokens import Caller, TokenKind
from broker.errors import Unauthorized
from broker.facts import DeviceChanged, TokenRevoked
from broker.secrets import token_hash
from broker.services import Services
from storage.records import TokenRecord
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    DASHBOARD,
    HALL_TOKEN,
    KITCHEN,
    KITCHEN_TOKEN,
    NOW_MS,
    World,
    build_world,
)
from tests.fakes import FakeClock, HeldRunner
from tests.rows import each_row


def forget_in_store(tx: Transaction) -> None:
    tx.connection.execute("DELETE FROM token")
    tx.connection.execute("DELETE FROM device_token")


async def test_a_user_token_stands_for_its_user_and_application(services: Services, world: World) -> None:
    caller = await services.accounts.tokens.caller(ADA_TOKEN)
    assert caller == Caller(
        kind=TokenKind.USER,
        token=token_hash(ADA_TOKEN),
        expires_on=NOW_MS * 2,
        user=world.ada,
        user_id=ADA,
        application=world.application,
        application_id=DASHBOARD,
        application_organization=caller.application_organization,
    )


@pytest.mark.sqlite("only SQLite takes a row that refers to nobody until the commit")
@each_row("family", [None, 1])
async def test_a_token_whose_user_is_gone_is_nobodys(services: Services, world: World, family: int | None) -> None:
    """An application's own token reaches what every user granted, so a user's token must never become one."""

    def work(tx: Transaction) -> None:
        tx.connection.execute("PRAGMA defer_foreign_keys = ON")
        user = 99 if family is None else None  # a row that is gone, or a reference that was emptied
        tx.connection.execute(
            "INSERT INTO token (hash, application, user, created_on, expires_on, family)"
            " VALUES (:hash, :application, :user, 1, :end, :family)",
            {"hash": hashed, "application": world.application, "user": user, "end": NOW_MS * 2, "family": family},
        )
        found.append(tokens_module._resolve(tx, [hashed]))
        tx.connection.execute("DELETE FROM token WHERE hash = :hash", {"hash": hashed})  # the store refuses it

    hashed, found = token_hash("3d" * 16), list[object]()
    await services.core.database.write(work)
    assert found == [{}]


async def test_an_application_token_stands_for_the_application_alone(services: Services, world: World) -> None:
    caller = await services.accounts.tokens.caller(APPLICATION_TOKEN)
    assert (caller.kind, caller.user, caller.device) == (TokenKind.APPLICATION, None, None)
    assert caller.application_id == DASHBOARD


async def test_a_device_token_stands_for_its_device_and_never_expires(services: Services, world: World) -> None:
    assert await services.accounts.tokens.caller(KITCHEN_TOKEN) == Caller(
        kind=TokenKind.DEVICE,
        token=token_hash(KITCHEN_TOKEN),
        expires_on=None,
        device=world.kitchen,
        device_id=KITCHEN,
        device_owner=ADA,
    )


@each_row("token", ["", "ff" * 16, ADA_TOKEN + " ", ADA_TOKEN[:-1], "äöü", "\x00", "x" * 100_000])
async def test_an_unknown_token_is_unauthorized(services: Services, world: World, token: str) -> None:
    with pytest.raises(Unauthorized):
        await services.accounts.tokens.caller(token)


@pytest.mark.parametrize("known", [False, True])
async def test_a_token_ends_at_its_expiry_and_not_before(
    services: Services, world: World, fake_clock: FakeClock, known: bool
) -> None:
    record = TokenRecord(token_hash("short"), world.application, world.ada, NOW_MS, NOW_MS + 1000)
    await services.core.database.write(lambda tx: tx.accounts.put_token(record))
    if known:
        await services.accounts.tokens.caller("short")
    fake_clock.advance(999)
    assert (await services.accounts.tokens.caller("short")).user == world.ada
    fake_clock.advance(1)
    with pytest.raises(Unauthorized):
        await services.accounts.tokens.caller("short")


@pytest.mark.both_engines
async def test_a_known_token_is_not_looked_up_again(services: Services, world: World) -> None:
    caller = await services.accounts.tokens.caller(ADA_TOKEN)
    await services.core.database.write(forget_in_store)
    assert await services.accounts.tokens.caller(ADA_TOKEN) is caller


async def test_a_revoked_token_is_forgotten_and_no_other(services: Services, world: World) -> None:
    for token in (ADA_TOKEN, BOB_TOKEN):
        await services.accounts.tokens.caller(token)
    await services.core.database.write(forget_in_store)
    services.core.router.publish(TokenRevoked(token_hash(ADA_TOKEN)))
    with pytest.raises(Unauthorized):
        await services.accounts.tokens.caller(ADA_TOKEN)
    await services.accounts.tokens.caller(BOB_TOKEN)


async def test_a_device_that_changed_is_looked_up_again_and_no_other(services: Services, world: World) -> None:
    for token in (KITCHEN_TOKEN, HALL_TOKEN, ADA_TOKEN):
        await services.accounts.tokens.caller(token)
    await services.core.database.write(forget_in_store)
    services.core.router.publish(DeviceChanged(world.kitchen))
    with pytest.raises(Unauthorized):
        await services.accounts.tokens.caller(KITCHEN_TOKEN)
    await services.accounts.tokens.caller(HALL_TOKEN)
    await services.accounts.tokens.caller(ADA_TOKEN)


@pytest.mark.both_engines
async def test_everything_can_be_forgotten(services: Services, world: World) -> None:
    await services.accounts.tokens.caller(ADA_TOKEN)
    await services.core.database.write(forget_in_store)
    services.accounts.tokens.forget_all()
    with pytest.raises(Unauthorized):
        await services.accounts.tokens.caller(ADA_TOKEN)


async def test_a_token_that_is_refused_is_not_remembered_as_such(services: Services, world: World) -> None:
    with pytest.raises(Unauthorized):
        await services.accounts.tokens.caller("new")
    record = TokenRecord(token_hash("new"), world.application, None, NOW_MS, NOW_MS + 1000)
    await services.core.database.write(lambda tx: tx.accounts.put_token(record))
    assert (await services.accounts.tokens.caller("new")).kind is TokenKind.APPLICATION


async def test_only_so_many_tokens_are_remembered(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "_CACHED_TOKENS", 2)
    for token in (ADA_TOKEN, BOB_TOKEN, KITCHEN_TOKEN):
        await services.accounts.tokens.caller(token)
    await services.core.database.write(forget_in_store)
    with pytest.raises(Unauthorized):
        await services.accounts.tokens.caller(ADA_TOKEN)
    await services.accounts.tokens.caller(KITCHEN_TOKEN)


async def test_a_token_that_is_revoked_while_it_is_looked_up_is_refused(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        await build_world(services.core.database, services.core.vault)

        async def expect_refusal() -> None:
            with pytest.raises(Unauthorized):
                await services.accounts.tokens.caller(ADA_TOKEN)

        runner.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_refusal)
            await wait_all_tasks_blocked()  # the token was read; the next lines revoke it
            await services.core.database.write(forget_in_store)
            services.core.router.publish(TokenRevoked(token_hash(ADA_TOKEN)))
            runner.reads.set()
        await expect_refusal()
