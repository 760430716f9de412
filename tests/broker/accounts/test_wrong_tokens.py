"""Unknown bearer tokens are counted by address, and one broken device harms nobody else (reference 28.3)."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from broker.accounts.tokens import TokenKind
from broker.accounts.wrong_tokens import WrongTokens
from broker.errors import TooManyAttempts, Unauthorized
from broker.ids import new_id
from broker.secrets import token_hash
from broker.services import Services
from broker.trace.origin import Origin, enter
from config.limits import WRONG_TOKEN_TRIES
from config.settings import Limits, Settings
from storage.records import TokenRecord
from storage.transaction import Transaction
from tests.factories import ADA_TOKEN, KITCHEN_TOKEN, NOW_MS, World
from tests.fakes import FakeClock

WRONG_TOKENS = 100  # from one address are too many
HERE, ELSEWHERE = Origin("192.0.2.1"), Origin("192.0.2.2")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, limits=Limits(rate_limits="on", quotas="off", calls_per_address=WRONG_TOKENS))


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    enter(HERE)
    yield
    enter(Origin())


async def guess(services: Services, times: int) -> None:
    for _ in range(times):
        with pytest.raises(Unauthorized):
            await services.accounts.tokens.caller(new_id())


async def test_many_different_tokens_are_refused_without_a_look_up(services: Services, world: World) -> None:
    await guess(services, WRONG_TOKENS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services.core.database, "read", None)  # a look-up would raise TypeError
        with pytest.raises(TooManyAttempts) as refused:
            await services.accounts.tokens.caller(new_id())
    assert refused.value.retry_seconds == 60
    with pytest.raises(TooManyAttempts):
        await services.accounts.tokens.revoke(new_id())


async def test_a_token_that_is_wrong_again_and_again_is_refused_without_a_look_up(
    services: Services, world: World
) -> None:
    for _ in range(WRONG_TOKEN_TRIES):
        with pytest.raises(Unauthorized):
            await services.accounts.tokens.caller("broken")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services.core.database, "read", None)  # a look-up would raise TypeError
        with pytest.raises(Unauthorized):
            await services.accounts.tokens.caller("broken")


async def test_a_token_in_memory_works_from_an_address_that_guesses(services: Services, world: World) -> None:
    await services.accounts.tokens.caller(KITCHEN_TOKEN)
    await guess(services, WRONG_TOKENS)
    assert (await services.accounts.tokens.caller(KITCHEN_TOKEN)).kind is TokenKind.DEVICE
    with pytest.raises(TooManyAttempts):
        await services.accounts.tokens.caller(ADA_TOKEN)
    enter(ELSEWHERE)
    assert (await services.accounts.tokens.caller(ADA_TOKEN)).kind is TokenKind.USER


async def test_after_a_minute_the_address_is_looked_up_again(
    services: Services, world: World, fake_clock: FakeClock
) -> None:
    await guess(services, WRONG_TOKENS)
    fake_clock.advance(60_000)
    assert (await services.accounts.tokens.caller(ADA_TOKEN)).kind is TokenKind.USER


async def test_a_broken_device_does_not_lock_out_the_others_behind_its_address(
    services: Services, world: World, fake_clock: FakeClock
) -> None:
    for _ in range(10):
        for _ in range(10 * WRONG_TOKENS):
            with pytest.raises(Unauthorized):
                await services.accounts.tokens.caller("broken")
        fake_clock.advance(60_000)
    assert (await services.accounts.tokens.caller(ADA_TOKEN)).kind is TokenKind.USER


async def test_a_token_that_becomes_valid_works_at_once(services: Services, world: World) -> None:
    for _ in range(WRONG_TOKEN_TRIES + 1):
        with pytest.raises(Unauthorized):
            await services.accounts.tokens.caller("new")
    record = TokenRecord(token_hash("new"), world.application, None, NOW_MS, NOW_MS + 1000)
    await services.core.database.write(lambda tx: tx.accounts.put_token(record))
    services.accounts.tokens.forget_all()  # as provisioning does
    assert (await services.accounts.tokens.caller("new")).kind is TokenKind.APPLICATION


def put_token(record: TokenRecord, tx: Transaction) -> None:
    tx.accounts.put_token(record)


async def test_expired_tokens_are_no_guesses(services: Services, world: World, fake_clock: FakeClock) -> None:
    expired = [new_id() for _ in range(2 * WRONG_TOKENS)]
    for token in expired:
        record = TokenRecord(token_hash(token), world.application, None, NOW_MS, NOW_MS + 1000)
        await services.core.database.write(partial(put_token, record))
    fake_clock.advance(2000)
    for token in expired:
        with pytest.raises(Unauthorized):
            await services.accounts.tokens.caller(token)
    assert (await services.accounts.tokens.caller(KITCHEN_TOKEN)).kind is TokenKind.DEVICE


async def test_where_rate_limits_are_off_nothing_is_counted(fake_clock: FakeClock) -> None:
    wrong = WrongTokens(fake_clock.clock, limit=None)
    for number in range(10 * WRONG_TOKENS):
        for token in (b"again", number.to_bytes(2, "big")):
            wrong.check(token)
            wrong.note(token)


def test_a_new_limit_counts_at_once(fake_clock: FakeClock) -> None:
    wrong = WrongTokens(fake_clock.clock, limit=50)
    enter(HERE)
    for number in range(3):
        wrong.note(token_hash(f"first {number}"))
    wrong.renew(4)
    wrong.check(token_hash("another"))
    wrong.note(token_hash("another"))
    with pytest.raises(TooManyAttempts):
        wrong.check(token_hash("one more"))
