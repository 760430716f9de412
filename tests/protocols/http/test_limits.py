"""Rate limits and quotas over REST: headers on every counted answer, and the refusals (reference 21, 3.2)."""

from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from broker.services import Services
from config.settings import Limits, Settings
from protocols.http.allowances import paths_by_address
from protocols.http.application import CALLS
from storage.transaction import Transaction
from tests.factories import (
    ACME,
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    NOW_MS,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.rows import each_row

pytestmark = pytest.mark.slow


DAY_MS = 86_400_000
MIDNIGHT = NOW_MS - NOW_MS % DAY_MS + DAY_MS
# October 2025, in which NOW_MS lies, by UTC.
OCTOBER, NOVEMBER = 1_759_276_800_000, 1_761_955_200_000
RATE_HEADERS = ("X-Rate-Limit-Limit", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset")
MESSAGE = {"sdid": KITCHEN, "data": {"state": True}}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    limits = Limits(
        rest_user="3/5",
        rest_device="2/5",
        rest_application="4/9",
        messages_user="2/100",
        messages_device="2/100",
        messages_application="3/100",
        calls_per_address=5,
    )
    return Settings(state_dir=settings.state_dir, limits=limits)


def rates(answer: httpx.Response) -> tuple[str | None, ...]:
    return tuple(answer.headers.get(name) for name in RATE_HEADERS)


async def profile(api: httpx.AsyncClient, token: str = ADA_TOKEN) -> httpx.Response:
    return await api.get("/users/self", headers=bearer(token))


async def send(api: httpx.AsyncClient, token: str = ADA_TOKEN, **body: Any) -> httpx.Response:
    return await api.post("/messages", headers=bearer(token), json=body or MESSAGE)


def refusal(answer: httpx.Response) -> tuple[int, int, str]:
    error = answer.json()["error"]
    assert len(error["id"]) == 32
    return answer.status_code, error["code"], error["message"]


# --- Rate limits --------------------------------------------------------------------------------------------------


async def test_the_log_has_the_id_of_an_answer_over_the_limit(api: httpx.AsyncClient) -> None:
    with capture_logs() as logs:
        answers = [await profile(api) for _ in range(4)]
    assert [(line["event"], line["error_id"]) for line in logs] == [
        ("rest_rate_refused", answers[-1].json()["error"]["id"])
    ]


async def test_every_counted_answer_tells_where_the_caller_stands(
    api: httpx.AsyncClient, fake_clock: FakeClock
) -> None:
    first, midnight = NOW_MS // 1000 + 60, MIDNIGHT // 1000
    assert rates(await profile(api)) == ("3/5", "2/4", f"{first}/{midnight}")
    fake_clock.advance(10_000)
    answer = await api.get(f"/devices/{'f' * 32}/status", headers=bearer(ADA_TOKEN))
    assert (answer.status_code, rates(answer)) == (404, ("3/5", "1/3", f"{first}/{midnight}")), "an error, too"


async def test_a_call_too_many_is_refused_with_the_time_to_wait_and_not_counted(
    api: httpx.AsyncClient, fake_clock: FakeClock
) -> None:
    for _ in range(3):
        assert (await profile(api)).status_code == 200
    fake_clock.advance(15_000)
    for _ in range(2):
        answer = await profile(api)
        assert refusal(answer) == (429, 429, "MINUTE rate limit exceeded")
        assert answer.headers["Retry-After"] == "45"
        assert rates(answer) == ("3/5", "0/2", f"{NOW_MS // 1000 + 60}/{MIDNIGHT // 1000}")
    fake_clock.advance(45_000)
    for _ in range(2):
        assert (await profile(api)).status_code == 200
    answer = await profile(api)
    assert refusal(answer) == (429, 429, "DAILY rate limit exceeded")
    assert answer.headers["Retry-After"] == str((MIDNIGHT - fake_clock.now) // 1000)
    fake_clock.advance(MIDNIGHT - fake_clock.now)
    assert (await profile(api)).status_code == 200


async def test_calls_that_fail_count_and_a_wrong_kind_of_token_is_told_so_first(api: httpx.AsyncClient) -> None:
    statuses = [
        (await api.put(f"/users/{ADA}", headers=bearer(KITCHEN_TOKEN), content=b"{")).status_code for _ in range(4)
    ]
    assert set(statuses) <= {403, 404, 405}, "the order of checks has the rate limit behind permissions"
    for status in (400, 400, 429):
        answer = await api.post("/messages", headers=bearer(KITCHEN_TOKEN), content=b"{")
        assert answer.status_code == status


@each_row(
    ("token", "limit", "calls"),
    [(ADA_TOKEN, "2/100", 2), (KITCHEN_TOKEN, "2/100", 2), (APPLICATION_TOKEN, "3/100", 3)],
)
async def test_posting_messages_has_a_row_of_its_own_for_each_kind_of_token(
    api: httpx.AsyncClient, token: str, limit: str, calls: int
) -> None:
    for number in range(calls):
        path = ("/messages", "/actions")[number % 2]
        body = MESSAGE if path == "/messages" else {"ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}
        answer = await api.post(path, headers=bearer(token), json=body)
        assert (answer.status_code, answer.headers["X-Rate-Limit-Limit"]) == (200, limit)
    assert refusal(await send(api, token)) == (429, 429, "MINUTE rate limit exceeded")
    assert (await api.get(f"/messages/last?sdids={KITCHEN}", headers=bearer(token))).status_code == 200


async def test_users_do_not_count_for_each_other(api: httpx.AsyncClient) -> None:
    for _ in range(4):
        last = await profile(api)
    assert last.status_code == 429
    assert (await profile(api, BOB_TOKEN)).status_code == 200


async def test_browsers_may_read_the_headers(api: httpx.AsyncClient) -> None:
    answer = await send(api)
    exposed = {name.strip().lower() for name in answer.headers["Access-Control-Expose-Headers"].split(",")}
    told = {name for name in answer.headers if name.startswith(("x-rate-limit", "x-quota"))}
    assert len(told) == 6
    assert told < exposed


async def test_what_no_token_is_counted_for_is_limited_by_address(
    api: httpx.AsyncClient, fake_clock: FakeClock
) -> None:
    root = str(api.base_url).replace("/v1.1/", "")
    calls = [
        ("OPTIONS", "/v1.1/messages"),
        ("GET", "/accounts/checkToken"),
        ("POST", "/v1.1/accounts/checkToken"),
        ("GET", "/v1.1/updates/urls/123456789"),
        ("POST", "/v1.1/subscriptions/1/validate"),
    ]
    for method, path in calls:
        answer = await api.request(method, root + path)
        assert answer.status_code != 429
        assert rates(answer) == (None, None, None)
    for method, path in calls:
        answer = await api.request(method, root + path)
        assert refusal(answer) == (429, 429, "MINUTE rate limit exceeded")
        assert answer.headers["Retry-After"] == "60"
    assert (await profile(api)).status_code == 200
    fake_clock.advance(60_000)
    assert (await api.options("/messages")).status_code == 200


async def test_the_token_endpoint_says_it_in_its_own_form(api: httpx.AsyncClient) -> None:
    root = str(api.base_url).replace("/v1.1/", "")
    for _ in range(6):
        answer = await api.post(f"{root}/accounts/token", data={"grant_type": "none"})
    assert answer.status_code == 429
    assert set(answer.json()) == {"error", "error_description"}


async def test_a_device_that_is_limited_by_mqtt_may_still_use_rest(api: httpx.AsyncClient) -> None:
    for _ in range(2):
        assert (await send(api, KITCHEN_TOKEN)).status_code == 200
    answer = await api.get(f"/messages/last?sdids={KITCHEN}", headers=bearer(KITCHEN_TOKEN))
    assert rates(answer)[:2] == ("2/5", "1/4")


# --- Quotas -------------------------------------------------------------------------------------------------------


def quotas(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("x-quota")}


async def plan(services: Services, monthly: int) -> None:
    def change(tx: Transaction) -> None:
        acme = tx.accounts.organization_by_id(ACME)
        assert acme is not None
        tx.accounts.change_organization(acme.key, name=acme.name, monthly_messages=monthly)

    await services.core.database.write(change)
    await services.limits.quotas.reload()


async def test_posting_tells_the_quotas_and_nothing_else_does(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    await plan(services, 27)
    about = {"x-quota-max-payload-size": "1024", "x-quota-organization-reset": f"{OCTOBER}/{NOVEMBER}"}
    assert quotas(await send(api)) == about | {"x-quota-organization-limits": "1/27"}
    services.limits.quotas.set_device_limit(world.kitchen, 150)
    assert quotas(await send(api)) == about | {
        "x-quota-organization-limits": "2/27",
        "x-quota-device-limits": "1/150",
        "x-quota-device-reset": f"{MIDNIGHT - DAY_MS}/{MIDNIGHT}",
    }
    assert quotas(await profile(api)) == {}


@pytest.mark.parametrize(
    ("monthly", "daily", "status", "text"),
    [
        (0, None, 429, f"Plan quota exceeded for organization {ACME}. Reason: Monthly message limit"),
        (-2, None, 400, f"Quota validation error for organization {ACME}. Reason: Plan limits have not been set"),
        (-1, 0, 429, f"Plan quota exceeded for device {KITCHEN}. Reason: Daily message limit."),
    ],
)
async def test_a_used_up_quota_is_refused_with_its_headers(
    api: httpx.AsyncClient,
    services: Services,
    world: World,
    monthly: int,
    daily: int | None,
    status: int,
    text: str,
) -> None:
    await plan(services, monthly)
    services.limits.quotas.set_device_limit(world.kitchen, daily)
    answer = await send(api)
    assert refusal(answer) == (status, status, text)
    assert quotas(answer)["x-quota-organization-limits"] == f"0/{monthly}"
    assert ("x-quota-device-limits" in answer.headers) == (daily is not None)
    assert answer.headers["X-Rate-Limit-Remaining"] == "1/99", "what no quota has room for is a call all the same"


async def test_a_message_that_is_too_large_is_413_and_free(api: httpx.AsyncClient, services: Services) -> None:
    await plan(services, 100_000)
    answer = await send(api, sdid=KITCHEN, data={"text": "x" * 1024})
    assert refusal(answer) == (
        413,
        413,
        f"Plan quota exceeded for organization {ACME}. Reason: Max payload size limit",
    )
    assert answer.headers["x-quota-organization-limits"] == "0/100000"


async def test_an_action_is_charged_to_its_source(api: httpx.AsyncClient, services: Services, world: World) -> None:
    await plan(services, 100_000)
    body = {"sdid": HALL, "ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}
    answer = await api.post("/actions", headers=bearer(ADA_TOKEN), json=body)
    assert (answer.status_code, answer.headers["x-quota-organization-limits"]) == (200, "1/100000")
    assert "x-quota-device-limits" not in answer.headers


async def test_an_action_tells_of_the_daily_quota_of_its_destination(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    services.limits.quotas.set_device_limit(world.kitchen, 0)
    services.limits.quotas.set_device_limit(world.hall, 5)
    body = {"sdid": HALL, "ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}
    answer = await api.post("/actions", headers=bearer(ADA_TOKEN), json=body)
    assert refusal(answer)[2] == f"Plan quota exceeded for device {KITCHEN}. Reason: Daily message limit."
    assert answer.headers["x-quota-device-limits"] == "0/0"


@each_row(("body", "status"), [({"data": {}}, 400), ({"sdid": "ff" * 16, "data": {"state": True}}, 404)])
async def test_what_names_no_device_tells_of_no_organization(
    api: httpx.AsyncClient, body: dict[str, Any], status: int
) -> None:
    answer = await send(api, **body)
    assert answer.status_code == status
    assert quotas(answer) == {"x-quota-max-payload-size": "1024"}


class TestOff:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(state_dir=settings.state_dir, limits=Limits(rate_limits="off", quotas="off", rest_user="1/1"))

    async def test_nothing_is_counted_and_nothing_is_told(self, api: httpx.AsyncClient, services: Services) -> None:
        await plan(services, 0)
        for _ in range(3):
            answer = await send(api)
            assert answer.status_code == 200
            assert (rates(answer), quotas(answer)) == ((None, None, None), {})


@each_row(
    ("path", "is_counted"),
    [
        ("/v1.1/openapi.json", True),
        ("/v1.1/openapi.json/", True),
        ("/v1.1/accounts/token", True),
        ("/v1.1/accounts/nothing/there", True),
        ("/v1.1/cert/devices/registrations", True),
        ("/v1.1/updates/urls/x", True),
        ("/v1.1/subscriptions/x/validate", True),
        ("/v1.1/cloudconnectors/x/auth", True),
        ("/v1.1/cloudconnectors/x/thirdpartynotifications", True),
        ("/v1.1/subscriptions/x", False),
        ("/v1.1/subscriptions/x/y/validate", False),
        ("/v1.1/messages", False),
        ("/v1.1/nothing", False),
        ("/v1.1/openapiXjson", False),
    ],
)
def test_calls_without_a_counted_token_are_counted_by_address(path: str, is_counted: bool) -> None:
    assert (paths_by_address(CALLS).fullmatch(path) is not None) is is_counted
