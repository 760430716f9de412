"""A token that ends, ends the connections that came with it."""

import pytest
import trio
from trio.testing import MockClock

from broker.clock import Clock
from broker.errors import Unauthorized
from broker.facts import TokenRevoked
from broker.routing.connections import CloseReason
from broker.secrets import Vault, token_hash
from broker.services import Services, open_services
from config.settings import Settings
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError
from tests.broker.accounts.oauth_world import WEB, OAuthWorld, basic, granted, make_oauth_world
from tests.factories import ADA_TOKEN, KITCHEN, build_world
from tests.fakes import BreakableEngine, FakeClock, HeldRunner, run_inline

USER_MS = 1_209_600_000


async def connected(services: Services, token: str, nursery: trio.Nursery) -> tuple[list[CloseReason], trio.Event]:
    """A link that came with this token; what it is closed with, and when."""
    device, caller = await services.devices.registry.find(KITCHEN), await services.accounts.tokens.caller(token)
    reasons: list[CloseReason] = []
    closed = trio.Event()

    def close(reason: CloseReason) -> None:
        reasons.append(reason)
        closed.set()

    async def hold() -> None:
        with services.routing.connections.connect(
            device,
            protocol="WEBSOCKET",
            token=caller.token,
            exclusive=False,
            deliver=lambda _action: True,
            close=close,
        ):
            await closed.wait()

    nursery.start_soon(hold)
    await trio.testing.wait_all_tasks_blocked()
    return reasons, closed


async def test_expiry_closes_live_links_within_five_seconds(
    oauth: OAuthWorld, fake_clock: FakeClock, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    tokens = await oauth.user_tokens()
    reasons, closed = await connected(oauth.services, tokens["access_token"], nursery)
    fake_clock.advance(USER_MS - 1)
    await trio.sleep(10)
    assert reasons == []
    fake_clock.advance(1)
    with trio.fail_after(5):
        await closed.wait()
    assert reasons == [CloseReason.TOKEN_REVOKED]


async def test_a_refresh_gives_live_links_five_minutes(
    oauth: OAuthWorld, fake_clock: FakeClock, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    tokens = await oauth.user_tokens()
    reasons, closed = await connected(oauth.services, tokens["access_token"], nursery)
    granted(await oauth.token(basic(WEB), grant_type="refresh_token", refresh_token=tokens["refresh_token"]))
    fake_clock.advance(299_999)
    await trio.sleep(10)
    assert reasons == []
    fake_clock.advance(1)
    with trio.fail_after(5):
        await closed.wait()


async def test_revocation_closes_live_links_at_once(oauth: OAuthWorld, nursery: trio.Nursery) -> None:
    tokens = await oauth.user_tokens()
    reasons, _closed = await connected(oauth.services, tokens["access_token"], nursery)
    await oauth.services.accounts.tokens.revoke(tokens["access_token"])
    assert reasons == [CloseReason.TOKEN_REVOKED]


async def test_a_revocation_is_finished_when_whoever_asked_has_gone(
    settings: Settings, engine: SqliteEngine, fake_clock: FakeClock
) -> None:
    runner = HeldRunner()
    database = Database(engine, run_sync=runner)
    async with open_services(settings, database, Vault(Vault.new_key()), Clock(fake_clock)) as services:
        await build_world(services.core.database, services.core.vault)
        await services.accounts.tokens.caller(ADA_TOKEN)  # remembered
        told: list[TokenRevoked] = []
        services.core.router.subscribe(TokenRevoked, told.append)
        runner.hold_commits()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.accounts.tokens.revoke, ADA_TOKEN)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert told == []  # it is not durable yet
        runner.commits.set()
        await trio.testing.wait_all_tasks_blocked()
        assert told == [TokenRevoked(token_hash(ADA_TOKEN))]
        with pytest.raises(Unauthorized):
            await services.accounts.tokens.caller(ADA_TOKEN)


async def test_a_clock_that_is_set_back_announces_nothing(oauth: OAuthWorld, fake_clock: FakeClock) -> None:
    tokens = await oauth.user_tokens()
    fake_clock.advance(-1_000_000)
    await oauth.services.accounts.tokens.end_expired()
    fake_clock.advance(1_000_000)
    await oauth.services.accounts.tokens.end_expired()
    await oauth.services.accounts.tokens.caller(tokens["access_token"])


async def test_a_store_that_fails_for_a_while_does_not_end_the_sweep(
    settings: Settings, engine: SqliteEngine, fake_clock: FakeClock, autojump_clock: MockClock
) -> None:
    breakable = BreakableEngine(engine)
    database = Database(breakable, run_sync=run_inline)
    async with open_services(settings, database, Vault(Vault.new_key()), Clock(fake_clock)) as services:
        await build_world(services.core.database, services.core.vault)
        await make_oauth_world(services)
        breakable.error = StoreError("disk full")
        await trio.sleep(700)  # the purge is every ten minutes
        breakable.error = None
        with pytest.raises(trio.TooSlowError), trio.fail_after(700):
            await trio.sleep_forever()
        await services.accounts.tokens.purge()
