"""/users/…/sessions: people see and end their browser sessions, and nobody else does (reference 5.5)."""

import hashlib
from typing import Any

import httpx
import pytest

from broker.accounts.sessions import Session, Visitor
from broker.services import Services
from config.limits import SESSIONS_OF_ONE_USER
from storage.records import GrantRecord, UserRecord
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    DASHBOARD,
    KITCHEN_TOKEN,
    World,
    allow,
    change_application,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row

pytestmark = pytest.mark.slow


PHONE = Visitor("192.0.2.17", "Mozilla/5.0 (Phone)\u0000\n" + "x" * 300)
MINUTE_MS = 60_000


async def allow_profile(services: Services, world: World, *, is_allowed: bool) -> None:
    """Ada allows the Dashboard to change her profile, or no more."""
    await allow(services, GrantRecord(world.ada, world.application, None, read=False, write=False, profile=is_allowed))


@pytest.fixture
async def ada(services: Services, world: World) -> UserRecord:
    """The Dashboard, through which her token came, may change her profile."""
    await allow_profile(services, world, is_allowed=True)
    return await services.accounts.users.find(ADA)


@pytest.fixture
async def phone(services: Services, ada: UserRecord) -> Session:
    return await services.accounts.sessions.begin(ada, visitor=PHONE)


async def listed(api: httpx.AsyncClient, user: str = "self", token: str = ADA_TOKEN) -> list[dict[str, Any]]:
    answer = await api.get(f"/users/{user}/sessions", headers=bearer(token))
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]["sessions"]
    return found


@each_row("user", ["self", ADA])
async def test_a_session_is_shown_with_where_and_when(
    api: httpx.AsyncClient, phone: Session, fake_clock: FakeClock, user: str
) -> None:
    (session,) = await listed(api, user)
    assert session["address"] == PHONE.address
    assert session["userAgent"] == "Mozilla/5.0 (Phone)" + "x" * 181
    assert session["createdOn"] == session["lastUsedOn"] == fake_clock.now
    assert session["expiresOn"] == fake_clock.now + 14 * 86_400_000


async def test_the_shown_id_signs_nobody_in(api: httpx.AsyncClient, services: Services, phone: Session) -> None:
    answer = await api.get("/users/self/sessions", headers=bearer(ADA_TOKEN))
    (session,) = answer.json()["data"]["sessions"]
    hash_ = hashlib.sha256(phone.id.encode()).hexdigest()
    assert phone.id not in answer.text
    assert session["id"] not in hash_
    assert hash_ not in answer.text
    assert await services.accounts.sessions.find(session["id"]) is None


async def test_the_last_use_is_exact_to_five_minutes(
    api: httpx.AsyncClient, services: Services, phone: Session, fake_clock: FakeClock
) -> None:
    begun = fake_clock.now
    for minutes, expected in ((4, begun), (3, begun + 7 * MINUTE_MS)):
        fake_clock.advance(minutes * MINUTE_MS)
        await services.accounts.sessions.find(phone.id)
        assert [session["lastUsedOn"] for session in await listed(api)] == [expected]


async def test_one_session_is_ended(
    api: httpx.AsyncClient, services: Services, ada: UserRecord, phone: Session
) -> None:
    other = await services.accounts.sessions.begin(ada, visitor=Visitor("198.51.100.7"))
    (ended,) = [session for session in await listed(api) if session["address"] == PHONE.address]
    answer = await api.delete(f"/users/{ADA}/sessions/{ended['id']}", headers=bearer(ADA_TOKEN))
    assert (answer.status_code, answer.json()) == (200, {"data": ended})
    assert await services.accounts.sessions.find(phone.id) is None
    assert await services.accounts.sessions.find(other.id) is not None
    error_of(await api.delete(f"/users/{ADA}/sessions/{ended['id']}", headers=bearer(ADA_TOKEN)), 404)


async def test_all_sessions_are_ended(
    api: httpx.AsyncClient, services: Services, ada: UserRecord, phone: Session
) -> None:
    await services.accounts.sessions.begin(ada)
    bobs = await services.accounts.sessions.begin(await services.accounts.users.find(BOB))
    answer = await api.delete("/users/self/sessions", headers=bearer(ADA_TOKEN))
    assert len(answer.json()["data"]["sessions"]) == 2
    assert await listed(api) == []
    assert await services.accounts.sessions.find(bobs.id) is not None


CALLS = [("GET", ""), ("DELETE", ""), ("DELETE", "/{id}")]


@each_row(("method", "rest"), CALLS)
@each_row("token", [BOB_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN])
async def test_nobody_else_sees_or_ends_them(
    api: httpx.AsyncClient, services: Services, phone: Session, method: str, rest: str, token: str
) -> None:
    (session,) = await listed(api)
    path = f"/users/{ADA}/sessions{rest.format(**session)}"
    error_of(await api.request(method, path, headers=bearer(token)), 403)
    assert await services.accounts.sessions.find(phone.id) is not None


async def test_a_session_of_somebody_else_is_not_found_among_ones_own(
    api: httpx.AsyncClient, services: Services, world: World, phone: Session
) -> None:
    panel = (await services.accounts.tokens.caller(BOB_TOKEN)).application
    assert panel is not None
    await allow(services, GrantRecord(world.bob, panel, None, read=False, write=False, profile=True))
    (session,) = await listed(api)
    error_of(await api.delete(f"/users/{BOB}/sessions/{session['id']}", headers=bearer(BOB_TOKEN)), 404)
    assert await services.accounts.sessions.find(phone.id) is not None


@pytest.mark.parametrize(("method", "rest"), CALLS)
async def test_an_application_needs_write_on_the_profile_which_the_user_granted(
    api: httpx.AsyncClient, services: Services, world: World, phone: Session, method: str, rest: str
) -> None:
    """That the application asks for it is not enough."""
    (session,) = await listed(api)
    asked = [{"device_type": "profile", "permissions": ["WRITE"]}]
    await services.core.database.write(lambda tx: change_application(tx, DASHBOARD, permissions=asked))
    await allow_profile(services, world, is_allowed=False)
    answer = await api.request(method, f"/users/self/sessions{rest.format(**session)}", headers=bearer(ADA_TOKEN))
    error_of(answer, 403)
    assert await services.accounts.sessions.find(phone.id) is not None


async def test_sessions_that_ended_are_not_shown(
    api: httpx.AsyncClient, services: Services, ada: UserRecord, phone: Session, fake_clock: FakeClock
) -> None:
    await services.provisioning.apply(
        {"users": [{"email": ada.email, "password": "a new horse battery", "reset_password": True}]}
    )
    assert await listed(api) == []


async def test_a_user_has_at_most_a_hundred(services: Services, ada: UserRecord, fake_clock: FakeClock) -> None:
    begun = []
    for _ in range(SESSIONS_OF_ONE_USER + 2):
        begun.append(await services.accounts.sessions.begin(ada))
        fake_clock.advance(1)
    last = [await services.accounts.sessions.find(session.id) is not None for session in begun]
    assert last == [False, False, *[True] * SESSIONS_OF_ONE_USER]
