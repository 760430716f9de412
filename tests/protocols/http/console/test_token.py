"""The access token of the pages: whose it is, what it reaches, and when it ends (reference 4.10)."""

from collections.abc import Awaitable, Callable
from functools import partial

import httpx
import pytest
from msgspec.structs import replace

from broker.accounts.issuance import Lifetimes
from broker.accounts.tokens import CONSOLE_ID, Tokens
from broker.accounts.wrong_tokens import WrongTokens
from broker.errors import Unauthorized
from broker.facts import Router, TokenRevoked
from broker.routing.events import EventSubscriber, FeedEvent
from broker.secrets import token_hash
from broker.services import Services
from config.limits import CONSOLE_TOKEN_SECONDS, SESSION_SECONDS
from config.settings import Address, Limits, Settings
from storage.records import TokenRecord
from storage.transaction import Transaction
from tests.factories import ADA, BOB, BOBS, HALL, KITCHEN, LIGHT_TYPE, World
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.console.conftest import NewToken, proof_in
from tests.protocols.http.direct_client import DirectClient
from tests.protocols.http.test_conventions import error_of

pytestmark = pytest.mark.slow


async def test_a_page_needs_a_session_and_its_own_proof(
    browser: httpx.AsyncClient, page: httpx.Response, door: Address
) -> None:
    for proof in (b"", b"0" * 64, b"\xff"):
        answer = await browser.post("/console/token", headers=[(b"X-Console", proof)] if proof else None)
        assert answer.status_code == 403
        assert "accessToken" not in answer.text
    async with DirectClient(door, "") as stranger:
        answer = await stranger.post("/console/token", headers={"X-Console": proof_in(page)})
        assert answer.status_code == 401


async def test_no_other_origin_reads_it(browser: httpx.AsyncClient, page: httpx.Response) -> None:
    headers = {"X-Console": proof_in(page), "Origin": "https://evil.example"}
    answer = await browser.post("/console/token", headers=headers)
    assert answer.headers["cache-control"] == "no-store"
    assert not [name for name in answer.headers if name.startswith("access-control")]
    preflight = await browser.options("/console/token", headers=headers)
    assert not [name for name in preflight.headers if name.startswith("access-control")]


async def test_all_pages_of_a_session_share_one_token_which_belongs_to_it(
    browser: httpx.AsyncClient, new_token: NewToken, services: Services, world: World
) -> None:
    def among_tokens_of_applications(tx: Transaction) -> list[bytes]:
        application = tx.accounts.application_by_id(CONSOLE_ID)
        assert application is not None
        ended = tx.accounts.remove_tokens_of(application.key, [world.ada])
        return [*(hashed for hashed, _ in ended), *(one.hash for one in tx.accounts.tokens_of_user(world.ada))]

    before = await new_token()
    assert await new_token() == before
    database, session = services.core.database, browser.cookies["trunkline_session"]
    stored = await database.read(lambda tx: tx.accounts.token(token_hash(before)))
    assert stored is not None
    assert stored.session == token_hash(session)
    assert stored.hash not in await database.write(among_tokens_of_applications)
    await services.accounts.sessions.end(session)
    assert await database.read(lambda tx: tx.accounts.token(token_hash(before))) is None


async def test_another_daemon_on_the_store_knows_the_token(new_token: NewToken, services: Services) -> None:
    core, token = services.core, await new_token()
    lifetimes = Lifetimes.of(core.settings.accounts)
    other = Tokens(core.database, core.clock, Router(), core.news, lifetimes, WrongTokens(core.clock, limit=None))
    assert (await other.caller(token)).is_console


async def test_a_token_is_not_good_longer_than_its_session(
    browser: httpx.AsyncClient, new_token: NewToken, services: Services, fake_clock: FakeClock
) -> None:
    fake_clock.advance(SESSION_SECONDS * 1000 - 60_000)
    stored = await services.core.database.read(partial(_token, token_hash(await new_token())))
    assert stored is not None
    assert stored.expires_on == services.core.clock.now_ms() + 60_000


async def test_it_reaches_what_its_user_reaches_without_a_grant(api: httpx.AsyncClient, new_token: NewToken) -> None:
    headers = bearer(await new_token())
    listed = (await api.get("/users/self/devices", headers=headers)).json()["data"]["devices"]
    assert {device["id"] for device in listed} == {KITCHEN, HALL}
    for method, path in (
        ("GET", f"/devices/{KITCHEN}"),
        ("GET", f"/devices/{KITCHEN}/tokens"),
        ("GET", f"/users/{ADA}/sessions"),
        ("GET", f"/users/{ADA}/applications"),
        ("GET", f"/devicetypes/{LIGHT_TYPE}"),
        ("GET", f"/devices/{KITCHEN}/shares"),
    ):
        answer = await api.request(method, path, headers=headers)
        assert answer.status_code == 200, (path, answer.text)


async def test_it_reaches_nothing_of_others(api: httpx.AsyncClient, new_token: NewToken) -> None:
    headers = bearer(await new_token())
    for method, path in (
        ("GET", f"/devices/{BOBS}"),
        ("GET", f"/devices/{BOBS}/failures"),
        ("GET", f"/users/{BOB}/devices"),
        ("DELETE", f"/users/{BOB}/sessions"),
        ("GET", f"/messages/last?sdids={BOBS}"),
    ):
        error_of(await api.request(method, path, headers=headers), 403)


@pytest.mark.both_engines
async def test_it_sees_types_as_its_user_does(api: httpx.AsyncClient, new_token: NewToken, services: Services) -> None:
    """Published types, and those of the user's own devices and organizations; no others that are not published."""
    manifest = {"fields": [{"name": "state", "valueClass": "Boolean", "isCollection": False}]}
    hidden = {"unique_name": "other.hidden", "name": "Hidden", "published": False}
    await services.provisioning.apply(
        {
            "organizations": [{"name": "Others"}],
            "device_types": [{**hidden, "organization": "Others", "manifest": manifest}],
        }
    )
    headers = bearer(await new_token())
    for query in ("", "?createDevice=true"):
        listed = (await api.get(f"/devicetypes{query}", headers=headers)).json()["data"]["deviceTypes"]
        names = {one["uniqueName"] for one in listed}
        assert names
        assert "other.hidden" not in names
    error_of(await api.get("/devicetypes/other.hidden", headers=headers), 403)
    error_of(await api.post("/devices", headers=headers, json={"dtid": "other.hidden"}), 403)
    assert (await api.post("/devices", headers=headers, json={"dtid": LIGHT_TYPE})).status_code == 200


def _token(hashed: bytes, tx: Transaction) -> TokenRecord | None:
    return tx.accounts.token(hashed)


def ends() -> list[Callable[[Services, httpx.AsyncClient, httpx.Response], Awaitable[object]]]:
    async def sign_out(_services: Services, browser: httpx.AsyncClient, page: httpx.Response) -> object:
        return await browser.post("/console/sign-out", data={"csrf": proof_in(page)})

    async def log_out(_services: Services, browser: httpx.AsyncClient, _page: httpx.Response) -> object:
        return await browser.get("/accounts/logout")

    async def end_all(services: Services, _browser: httpx.AsyncClient, _page: httpx.Response) -> object:
        await services.accounts.open_sessions.end_all(await services.accounts.users.find(ADA))
        return None

    async def end_one(services: Services, _browser: httpx.AsyncClient, _page: httpx.Response) -> object:
        ada = await services.accounts.users.find(ADA)
        (session,) = await services.accounts.open_sessions.of(ada)
        return await services.accounts.open_sessions.end(ada, session.id)

    async def reset_factor(services: Services, _browser: httpx.AsyncClient, _page: httpx.Response) -> object:
        return await services.accounts.second_factors.reset("ada@example.org")

    async def everything(services: Services, _browser: httpx.AsyncClient, _page: httpx.Response) -> object:
        ada = (await services.accounts.users.find(ADA)).key
        return await services.accounts.tokens.change(lambda issuance: issuance.end_everything_of(ada))

    async def replaced(services: Services, browser: httpx.AsyncClient, _page: httpx.Response) -> object:
        ada = await services.accounts.users.find(ADA)
        cookie = browser.cookies["trunkline_session"]
        return await services.accounts.sessions.begin(ada, instead_of=cookie)

    return [sign_out, log_out, end_all, end_one, reset_factor, everything, replaced]


@pytest.mark.parametrize("end", ends(), ids=lambda end: end.__name__)
async def test_it_ends_with_its_session(
    api: httpx.AsyncClient,
    browser: httpx.AsyncClient,
    page: httpx.Response,
    new_token: NewToken,
    services: Services,
    end: Callable[[Services, httpx.AsyncClient, httpx.Response], Awaitable[object]],
) -> None:
    token, revoked = await new_token(), list[bytes]()
    services.core.router.subscribe(TokenRevoked, lambda fact: revoked.append(fact.hash))
    assert (await api.get("/users/self", headers=bearer(token))).status_code == 200
    await end(services, browser, page)
    assert token_hash(token) in revoked  # its WebSockets end, too
    error_of(await api.get("/users/self", headers=bearer(token)), 401)
    assert (await browser.post("/console/token", headers={"X-Console": proof_in(page)})).status_code == 401


async def test_a_page_in_another_browser_goes_on(
    browser: httpx.AsyncClient, new_token: NewToken, api: httpx.AsyncClient, services: Services
) -> None:
    ada = await services.accounts.users.find(ADA)
    other = await services.accounts.sessions.begin(ada)
    token = await new_token()
    await services.accounts.sessions.end(other.id)
    assert (await api.get("/users/self", headers=bearer(token))).status_code == 200


async def test_who_has_the_token_cannot_revoke_it(new_token: NewToken, services: Services) -> None:
    """The page would get the same one again: it ends with its session."""
    with pytest.raises(Unauthorized):
        await services.accounts.tokens.revoke(await new_token())


async def test_it_is_good_for_an_hour_at_most(
    new_token: NewToken, api: httpx.AsyncClient, services: Services, fake_clock: FakeClock
) -> None:
    token, revoked = await new_token(), list[bytes]()
    services.core.router.subscribe(TokenRevoked, lambda fact: revoked.append(fact.hash))
    fake_clock.advance(CONSOLE_TOKEN_SECONDS * 500 - 1000)
    assert (await api.get("/users/self", headers=bearer(token))).status_code == 200
    later = await new_token()
    fake_clock.advance(CONSOLE_TOKEN_SECONDS * 500 + 1000)
    error_of(await api.get("/users/self", headers=bearer(token)), 401)
    assert later == token or (await api.get("/users/self", headers=bearer(later))).status_code == 200
    await services.accounts.tokens.end_expired()
    assert token_hash(token) in revoked


async def test_its_information_names_the_console(api: httpx.AsyncClient, new_token: NewToken) -> None:
    token = await new_token()
    url = str(api.base_url).replace("/v1.1", "/accounts")
    information = await api.get(f"{url.rstrip('/')}/tokenInfo", headers=bearer(token))
    assert information.json()["data"]["client_id"] == CONSOLE_ID


async def test_events_of_the_console_name_no_application(
    api: httpx.AsyncClient, new_token: NewToken, services: Services
) -> None:
    told: list[FeedEvent] = []

    def hear(event: FeedEvent) -> bool:
        told.append(event)
        return False

    ear = EventSubscriber(concerns=hear, offer=id, encode=lambda event: event.name.encode(), token=b"", close=id)
    token = await new_token()
    with services.routing.events.subscribe(ear):
        answer = await api.put(f"/devices/{KITCHEN}", headers=bearer(token), json={"name": "Renamed"})
    assert answer.status_code == 200
    assert [(event.name, event.data.get("aid")) for event in told] == [("device.updated", None)]


class TestWithRateLimits:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return replace(settings, limits=Limits(quotas="off"))

    async def test_a_person_has_the_calls_of_an_application(self, api: httpx.AsyncClient, new_token: NewToken) -> None:
        """Each page makes several calls (reference 21.1)."""
        answer = await api.get("/users/self", headers=bearer(await new_token()))
        assert answer.headers["x-rate-limit-limit"] == "500/5000"
