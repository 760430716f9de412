"""Each refusal of HTTP leaves a line in the log, with the route and without the sent data."""

from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from broker.ids import new_id
from broker.services import Services
from config.limits import WRONG_TOKEN_TRIES
from config.settings import Address, Limits, Settings
from storage.records import AuditFilter
from tests.factories import ADA_TOKEN, BOB_TOKEN, DASHBOARD
from tests.protocols.http.conftest import bearer

pytestmark = pytest.mark.slow


WRONG_TOKENS = 100  # from one address are too many


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, limits=Limits(rate_limits="on", quotas="off", calls_per_address=WRONG_TOKENS))


async def test_a_refusal_has_the_route_the_address_and_the_id_that_the_caller_sees(api: httpx.AsyncClient) -> None:
    misplaced = new_id()
    with capture_logs() as logs:
        answer = await api.get(f"/devices/{misplaced}", headers=bearer(new_id()))
        await api.get(f"/no/{misplaced}", headers=bearer(ADA_TOKEN))
    known, unknown = logs
    assert known == {
        "event": "http_credentials_refused",
        "log_level": "info",
        "reason": "Please provide a valid authorization header",
        "code": 401,
        "status": 401,
        "method": "GET",
        "route": "/v1.1/devices/<did>",
        "error_id": answer.json()["error"]["id"],
        "peer": "127.0.0.1",
    }
    assert (unknown["event"], unknown["route"]) == ("http_refused", "")
    assert misplaced not in str(logs)


async def test_a_wrong_token_is_401_however_often_it_comes(api: httpx.AsyncClient) -> None:
    """A client that tries a revoked token again and again must see that it needs a new one (reference 3.2)."""
    revoked = bearer(new_id())
    statuses = {(await api.get("/users/self", headers=revoked)).status_code for _ in range(3 * WRONG_TOKEN_TRIES)}
    assert statuses == {401}


async def test_who_guesses_tokens_gets_429_and_tokens_in_memory_go_on(
    api: httpx.AsyncClient, services: Services
) -> None:
    assert (await api.get("/users/self", headers=bearer(ADA_TOKEN))).status_code == 200
    for _ in range(WRONG_TOKENS):
        assert (await api.get("/users/self", headers=bearer(new_id()))).status_code == 401
    with capture_logs() as logs:
        refused = await api.get("/users/self", headers=bearer(BOB_TOKEN))
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    assert [line["event"] for line in logs] == ["http_rate_refused"]
    assert (await api.get("/users/self", headers=bearer(ADA_TOKEN))).status_code == 200
    # One broken device must not fill the audit log.
    assert await services.core.audit.find(AuditFilter(0, 2**62, 10)) == []


async def test_a_wrong_refresh_token_is_logged_and_audited_with_its_application(
    api: httpx.AsyncClient, door: Address, services: Services
) -> None:
    given = {"grant_type": "refresh_token", "client_id": DASHBOARD, "refresh_token": new_id()}
    with capture_logs() as logs:
        assert (await api.post(f"http://{door}/accounts/token", data=given)).status_code == 400
    (line,) = logs
    assert (line["event"], line["application"]) == ("token_request_refused", DASHBOARD)
    (entry,) = await services.core.audit.find(AuditFilter(0, 2**62, 10, event="token_refused"))
    assert (entry.outcome, entry.details["application"]) == ("refused", DASHBOARD)
    assert given["refresh_token"] not in str((line, entry))


async def test_a_method_that_the_peer_has_made_up_is_not_logged(api: httpx.AsyncClient) -> None:
    with capture_logs() as logs:
        answer = await api.request(new_id().upper(), "/messages")
    assert answer.status_code == 405
    assert [line["method"] for line in logs] == [""]
