"""Signing in and sessions, without pages."""

from dataclasses import replace

import msgspec
import pytest
import trio
from argon2.profiles import CHEAPEST

from broker.accounts.sessions import FormKeys, Session, WrongPassword, password_mark
from broker.errors import TooManyAttempts
from broker.secrets import Passwords, Vault
from broker.services import Services
from config.limits import PASSWORD_ADDRESS_MISSES
from storage.transaction import Transaction
from tests.factories import ADA, World
from tests.fakes import FakeClock
from tests.protocols.http.accounts.browser import PASSWORD, give_password
from tests.rows import each_row

DAY_MS = 86_400_000
HERE, ELSEWHERE = "192.0.2.1", "198.51.100.7"


@pytest.fixture
async def signed_in(services: Services, world: World) -> Session:
    await give_password(services, await services.accounts.users.find(ADA))
    return await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)


async def stored(services: Services) -> int:
    row = await services.core.database.read(lambda tx: tx.connection.execute("SELECT count(*) AS n FROM session").one())
    assert row is not None
    return int(row["n"])


@pytest.mark.both_engines
async def test_a_session_lasts_fourteen_days(services: Services, signed_in: Session, fake_clock: FakeClock) -> None:
    assert await services.accounts.sessions.find(signed_in.id) == signed_in
    fake_clock.advance(14 * DAY_MS - 1)
    assert await services.accounts.sessions.find(signed_in.id) is not None
    fake_clock.advance(1)
    assert await services.accounts.sessions.find(signed_in.id) is None
    await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)
    assert await stored(services) == 1  # the expired one was removed


@pytest.mark.both_engines
@each_row("text", ["", "x", "ff" * 16, "ü" * 32, "\0"])
async def test_texts_that_are_no_session_id(services: Services, signed_in: Session, text: str) -> None:
    assert await services.accounts.sessions.find(text) is None
    await services.accounts.sessions.end(text)
    assert await services.accounts.sessions.find(signed_in.id) is not None


async def test_the_id_is_not_stored(services: Services, signed_in: Session) -> None:
    row = await services.core.database.read(lambda tx: tx.connection.execute("SELECT * FROM session").one())
    assert row is not None
    assert signed_in.id not in repr(dict(row))
    assert signed_in.id not in repr(signed_in)


async def test_proofs_belong_to_one_session_and_one_thing(services: Services, signed_in: Session) -> None:
    other = await services.accounts.sessions.sign_in("ada@example.org", PASSWORD, address=HERE)
    proof = signed_in.proof(b"a", b"bc")
    assert signed_in.proves(proof, b"a", b"bc")
    assert not signed_in.proves(proof, b"ab", b"c")
    assert not other.proves(proof, b"a", b"bc")
    assert not signed_in.proves("\udc80", b"a")


def test_form_keys() -> None:
    keys = FormKeys(Vault(Vault.new_key()))
    assert keys.proves(keys.proof("ab" * 16), "ab" * 16)
    assert not keys.proves(keys.proof("ab" * 16), "cd" * 16)
    assert not keys.proves(keys.proof(""), "")
    assert not FormKeys(Vault(Vault.new_key())).proves(keys.proof("ab" * 16), "ab" * 16)


async def test_concurrent_guesses_are_counted(services: Services, signed_in: Session) -> None:
    outcomes: list[type[Exception]] = []

    async def guess() -> None:
        try:
            await services.accounts.sessions.sign_in("ada-example", "wrong", address=HERE)
        except (WrongPassword, TooManyAttempts) as refused:
            outcomes.append(type(refused))

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(guess)
    assert outcomes.count(WrongPassword) == 5
    assert outcomes.count(TooManyAttempts) == 7


async def test_the_right_password_resets_the_count_of_the_account(services: Services, signed_in: Session) -> None:
    for _ in range(3):
        for _ in range(4):
            with pytest.raises(WrongPassword):
                await services.accounts.sessions.sign_in("ada-example", "wrong", address=HERE)
        await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)


async def test_a_very_long_password(services: Services, signed_in: Session) -> None:
    with pytest.raises(WrongPassword):
        await services.accounts.sessions.sign_in("ada-example", PASSWORD + "x" * 100_000, address=HERE)


async def test_another_password_ends_the_sessions(services: Services, signed_in: Session) -> None:
    await give_password(services, signed_in.user, "another one")
    assert await services.accounts.sessions.find(signed_in.id) is None


async def test_one_address_may_not_try_many_accounts(
    services: Services, signed_in: Session, fake_clock: FakeClock
) -> None:
    for number in range(PASSWORD_ADDRESS_MISSES):
        with pytest.raises(WrongPassword):
            await services.accounts.sessions.sign_in(f"nobody{number}", "wrong", address=HERE)
    with pytest.raises(TooManyAttempts) as refused:
        await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)
    assert refused.value.retry_seconds == 900
    await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=ELSEWHERE)
    fake_clock.advance(900_000)
    await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)


async def test_the_right_password_does_not_reset_the_count_of_the_address(
    services: Services, signed_in: Session
) -> None:
    for number in range(PASSWORD_ADDRESS_MISSES):
        with pytest.raises(WrongPassword):
            await services.accounts.sessions.sign_in(f"nobody{number}", "wrong", address=HERE)
        if number == PASSWORD_ADDRESS_MISSES // 2:
            await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)
    with pytest.raises(TooManyAttempts):
        await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)


@pytest.mark.both_engines
async def test_a_hash_at_another_cost_is_renewed_at_the_next_sign_in(services: Services, signed_in: Session) -> None:
    """Other sessions go on, because the password is the same; open codes for a reset are void."""
    sessions, before = services.accounts.sessions, await services.accounts.users.find(ADA)
    dear = Passwords(replace(CHEAPEST, memory_cost=64)).hash(PASSWORD)
    older = msgspec.structs.replace(before, password_hash=dear)

    def weaken(tx: Transaction) -> None:
        tx.accounts.renew_password_hash(before.key, dear)
        tx.sessions.renew_password(before.key, before=password_mark(before), after=password_mark(older))

    await services.core.database.write(weaken)
    assert await sessions.find(signed_in.id) is not None
    await services.accounts.resets.ask("ada@example.org", address=HERE)

    again = await sessions.sign_in("ada-example", PASSWORD, address=HERE)
    renewed = (await services.accounts.users.find(ADA)).password_hash
    assert renewed is not None
    assert renewed != dear
    assert not services.accounts.passwords.is_outdated(renewed)
    assert await sessions.find(again.id) is not None
    assert await sessions.find(signed_in.id) is not None
    marks = await services.core.database.read(
        lambda tx: list(tx.connection.execute("SELECT count(*) AS n FROM password_reset WHERE user IS NOT NULL"))
    )
    assert marks[0]["n"] == 0

    await sessions.sign_in("ada-example", PASSWORD, address=HERE)
    assert (await services.accounts.users.find(ADA)).password_hash == renewed  # once is enough
