"""When a token expires, is refreshed or is revoked, its connections are closed."""

import pytest
import structlog
import trio
from trio.testing import MockClock

from broker.errors import Unauthorized
from broker.facts import TokenRevoked
from broker.routing.connections import CloseReason
from broker.secrets import token_hash
from broker.services import Services
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError
from tests.broker.accounts.oauth_world import WEB, OAuthWorld, basic, granted, make_oauth_world
from tests.builders import ServicesOpener
from tests.factories import ADA_TOKEN, KITCHEN, build_world
from tests.fakes import BreakableEngine, FakeClock, HeldRunner

pytestmark = pytest.mark.slow


USER_MS = 1_209_600_000


async def connected(services: Services, token: str, nursery: trio.Nursery) -> tuple[list[CloseReason], trio.Event]:
    """Open a link with this token. Returns the reasons it is closed with, and the event that it is closed."""
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


@pytest.mark.both_engines
async def test_a_revocation_is_announced_also_when_its_task_was_cancelled(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        await build_world(services.core.database, services.core.vault)
        await services.accounts.tokens.caller(ADA_TOKEN)  # now it is cached
        told: list[TokenRevoked] = []
        services.core.router.subscribe(TokenRevoked, told.append)
        runner.hold_commits()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.accounts.tokens.revoke, ADA_TOKEN)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert told == []  # the commit is not done yet
        runner.commits.set()
        await trio.testing.wait_all_tasks_blocked()
        assert told == [TokenRevoked(token_hash(ADA_TOKEN))]
        with pytest.raises(Unauthorized):
            await services.accounts.tokens.caller(ADA_TOKEN)


def announced_by(services: Services) -> list[bytes]:
    """The hashes of the tokens that are announced as ended, in order."""
    announced: list[bytes] = []
    services.core.router.subscribe(TokenRevoked, lambda fact: announced.append(fact.hash))
    return announced


async def test_a_clock_that_is_set_back_and_forth_announces_no_valid_token(
    oauth: OAuthWorld, fake_clock: FakeClock, autojump_clock: MockClock
) -> None:
    announced = announced_by(oauth.services)
    token = (await oauth.user_tokens())["access_token"]
    for change_ms in (-1_000_000, 1_000_000):
        fake_clock.advance(change_ms)
        await trio.sleep(10)  # the sweep runs every few seconds
        assert announced == []
        await oauth.services.accounts.tokens.caller(token)
    fake_clock.advance(USER_MS)
    await trio.sleep(10)
    assert announced == [token_hash(token)]  # the same sweep announces it when it expires


@pytest.mark.both_engines
async def test_a_store_that_fails_for_a_while_does_not_end_the_sweep(
    opener: ServicesOpener, engine: SqliteEngine, fake_clock: FakeClock, autojump_clock: MockClock
) -> None:
    breakable = BreakableEngine(engine)
    async with opener(engine=breakable) as services:
        await build_world(services.core.database, services.core.vault)
        oauth = await make_oauth_world(services)
        announced = announced_by(services)
        token = (await oauth.user_tokens())["access_token"]
        await oauth.code()  # never used
        assert await codes_in(services) == 2
        breakable.error = StoreError("disk full")
        fake_clock.advance(USER_MS)
        with structlog.testing.capture_logs() as logs:
            await trio.sleep(700)  # the purge is every ten minutes
        assert [log["event"] for log in logs].count("token_sweep_failed") == 1
        assert await codes_in(services) == 2
        assert announced == [token_hash(token)]  # the announcement needs no commit
        breakable.error = None
        await trio.sleep(600)
        assert await codes_in(services) == 1  # the used code stays as long as the tokens it led to can be refreshed


async def codes_in(services: Services) -> int:
    rows = "SELECT count(*) AS n FROM authorization_code"
    row = await services.core.database.read(lambda tx: tx.connection.execute(rows).one())
    assert row is not None
    return int(row["n"])
