"""Slow, broken or malicious third parties and plug-ins affect only their own devices."""

from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
import trio
from quart import Response

from broker.connectors.plugin import Request
from broker.connectors.plugin import Response as ThirdPartyResponse
from broker.connectors.port import ThirdParty
from config.settings import Limits, Outbound, Settings
from protocols.outbound.connectors import HttpThirdParty
from protocols.outbound.http import OutboundHttp
from protocols.outbound.tls import client_context
from storage.keys import DeviceKey
from tests.factories import ADA_TOKEN, KITCHEN, LIGHT_TYPE, NOW_MS, World
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.connectors.conftest import (
    NOTIFICATIONS,
    REFERER,
    Browser,
    bind,
    pull,
    quiet,
    signed,
    terms,
)
from tests.protocols.http.test_limits import plan
from tests.rows import each_row
from tests.third_party_cloud import ACCOUNT, ThirdPartyCloud

pytestmark = pytest.mark.slow


HOUR_MS = 3_600_000
SET_ON = {"ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}


def answering(body: bytes, status: int = 200) -> Any:
    async def answer() -> Response:
        return Response(body, status)

    return answer


async def never() -> Response:
    await trio.sleep_forever()
    raise AssertionError


class Impatient:
    """Has a long time-out for paths that answer, and a short one for the others."""

    def __init__(self, cloud: ThirdPartyCloud) -> None:
        http = OutboundHttp(client_context(""), allow_private=True)
        self._cloud = cloud
        self._patient, self._impatient = HttpThirdParty(http, seconds=60), HttpThirdParty(http, seconds=0.1)

    async def send(self, request: Request) -> ThirdPartyResponse:
        is_silent = self._cloud.answers.get(urlsplit(request.url).path) is never
        return await (self._impatient if is_silent else self._patient).send(request)


@pytest.fixture
def way_out(cloud: ThirdPartyCloud) -> ThirdParty:
    return Impatient(cloud)


# Tokens


async def test_an_expired_token_is_refreshed(browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock) -> None:
    await browser.authorize()
    await pull(browser.services)
    fake_clock.advance(HOUR_MS)  # the token has expired
    old = dict(cloud.access)
    cloud.access.clear()
    cloud.readings = [{"at": NOW_MS, "temp": 19}]
    await pull(browser.services)
    assert cloud.paths().count("/token") == 2
    assert len(await browser.messages()) == 1
    assert set(cloud.access).isdisjoint(old)
    fake_clock.advance(HOUR_MS)  # the refresh token was replaced by a new one
    await pull(browser.services)
    assert cloud.paths().count("/token") == 3
    assert (await browser.device())["cloudAuthorization"] == "AUTHORIZED"


async def test_a_token_that_is_refused_early_is_refreshed_once(browser: Browser, cloud: ThirdPartyCloud) -> None:
    await browser.authorize()
    cloud.access.clear()
    await pull(browser.services)
    assert cloud.paths()[-3:] == ["/readings", "/token", "/readings"]
    assert (await browser.device())["cloudAuthorization"] == "AUTHORIZED"


@each_row("refused", ["at the token endpoint", "for ever"])
async def test_a_token_that_the_third_party_revoked_ends_the_link(
    browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock, refused: str
) -> None:
    cloud.readings = [{"at": 5, "temp": 1, "sensor": "cellar"}]
    await browser.authorize()
    await pull(browser.services)
    if refused == "at the token endpoint":
        cloud.revoke_everything()
    cloud.answers["/readings"] = answering(b"{}", 401)
    fake_clock.advance(HOUR_MS)
    await pull(browser.services)
    for record in (await browser.device(), await browser.device_with("cellar")):
        assert (record["cloudAuthorization"], record["needProviderAuth"]) == ("UNAUTHORIZED", True)
    cloud.answers.clear()
    calls = len(cloud.calls)
    fake_clock.advance(HOUR_MS)
    await pull(browser.services)
    assert len(cloud.calls) == calls
    assert (await browser.authorize()).headers["Location"] == REFERER
    assert (await browser.device())["needProviderAuth"] is False
    await pull(browser.services)
    assert (await browser.device_with("cellar"))["needProviderAuth"] is False


@pytest.mark.parametrize("answer", [answering(b"{}", 503), answering(b"<html>", 200), never])
async def test_a_token_endpoint_that_fails_now_may_work_later(
    browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock, answer: Any
) -> None:
    await browser.authorize()
    await pull(browser.services)
    fake_clock.advance(HOUR_MS)
    cloud.answers["/token"] = answer
    await pull(browser.services)
    assert (await browser.device())["cloudAuthorization"] == "AUTHORIZED"
    cloud.answers.clear()
    cloud.readings = [{"at": NOW_MS, "temp": 19}]
    fake_clock.advance(HOUR_MS)
    await pull(browser.services)
    assert len(await browser.messages()) == 1


# Answers


@each_row(
    "answer",
    [
        answering(b"{}", 500),
        answering(b"not JSON"),
        answering(b"[]"),
        answering(b"\xff\xfe"),
        answering(b'{"data":{"readings":' + b"[" * 2000 + b"]" * 2000 + b"}}"),
        answering(msgspec.json.encode({"data": {"readings": [{"at": 1, "temp": 1}] * 1001}})),
        answering(b" " * (1024 * 1024 + 1)),
        never,
    ],
)
async def test_an_unusable_answer_is_ignored(
    browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock, answer: Any
) -> None:
    if cloud.access:
        fake_clock.advance(HOUR_MS)
    else:
        await browser.authorize()
    before, failed = len(await browser.messages()), browser.services.connectors.statistics().failed_fetches
    cloud.answers["/readings"] = answer
    await pull(browser.services)
    assert len(await browser.messages()) == before
    assert browser.services.connectors.statistics().failed_fetches == failed + 1
    cloud.answers.clear()
    cloud.readings = [{"at": NOW_MS + before, "temp": 19}]
    fake_clock.advance(HOUR_MS)
    await pull(browser.services)
    assert len(await browser.messages()) == before + 1


async def test_refused_readings_do_not_affect_others(browser: Browser, cloud: ThirdPartyCloud) -> None:
    cloud.readings = [
        {"at": 1, "temp": 1},
        {"at": NOW_MS + HOUR_MS, "temp": 2},
        {"at": 3, "temp": "x" * 2000},
        {"at": 4, "temp": 4},
    ]
    await browser.authorize()
    await pull(browser.services)
    assert [one["ts"] for one in await browser.messages()] == [1, 4]
    assert browser.services.connectors.statistics().refused == 2


async def test_a_redirection_is_not_followed(browser: Browser, cloud: ThirdPartyCloud) -> None:
    async def elsewhere() -> Response:
        return Response("", 302, headers={"Location": f"{cloud.url}/stolen"})

    await browser.authorize()
    cloud.answers["/readings"] = elsewhere
    await pull(browser.services)
    assert "/stolen" not in cloud.paths()


async def test_the_number_of_sub_devices_is_limited(browser: Browser, cloud: ThirdPartyCloud) -> None:
    cloud.readings = [{"at": 1, "temp": 1, "sensor": f"s{number:03}"} for number in range(103)]
    await browser.authorize()
    await pull(browser.services)
    statistics = browser.services.connectors.statistics()
    assert (statistics.stored, statistics.refused) == (100, 3)


async def test_a_subscription_that_fails_leaves_the_device_unauthorized(
    browser: Browser, cloud: ThirdPartyCloud
) -> None:
    cloud.answers[f"/subscriptions/{KITCHEN}"] = answering(b"{}", 500)
    assert (await browser.authorize()).headers["Location"] == f"{REFERER}&error=server_error"
    assert (await browser.device())["cloudAuthorization"] == "UNAUTHORIZED"
    assert await browser.services.core.database.read(lambda tx: tx.connectors.link(DeviceKey(1))) is None


async def test_a_token_endpoint_that_does_not_answer(browser: Browser, cloud: ThirdPartyCloud) -> None:
    begun = await browser.begin()
    cloud.answers["/token"] = never
    assert (await browser.agree(begun)).headers["Location"] == f"{REFERER}&error=temporarily_unavailable"


async def test_unlinking_does_not_depend_on_the_third_party(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud
) -> None:
    await browser.authorize()
    cloud.answers[f"/subscriptions/{KITCHEN}"] = never
    answer = await api.delete(f"/devices/{KITCHEN}/providerauth", headers=bearer(ADA_TOKEN))
    assert answer.json()["data"]["cloudAuthorization"] == "UNAUTHORIZED"


async def test_a_slow_device_does_not_delay_another(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.connectors.sending._WAITS", ())
    await browser.authorize()
    for eid in ("slow", "quick"):
        await api.post(NOTIFICATIONS, **signed({"changes": [{"user": ACCOUNT, "on": True, "at": 1, "lamp": eid}]}))
    told = trio.Event()

    async def quick() -> Response:
        told.set()
        return Response("{}", 200)

    cloud.answers |= {"/lamps/slow": never, "/lamps/quick": quick}
    for eid in ("slow", "quick"):
        dim = {"name": "setLevel", "parameters": {"level": 1}}
        ddid = (await browser.device_with(eid))["id"]
        await api.post("/actions", headers=bearer(ADA_TOKEN), json={"ddid": ddid, "data": {"actions": [dim]}})
    with trio.fail_after(20):
        await told.wait()
    await quiet(browser.services)
    assert browser.services.connectors.statistics().actions_failed == 1


async def test_an_action_reported_by_the_third_party_is_not_sent_back(
    api: httpx.AsyncClient, browser: Browser, world: World, cloud: ThirdPartyCloud
) -> None:
    parameters = {
        "notification": {
            "secret_parameter": {"name": "key", "value": "k"},
            "device": "did",
            "payload": "{actions: [{name: 'setOn'}]}",
            "kind": "action",
        }
    }
    await bind(browser.services, terms(cloud, parameters=parameters))
    await browser.authorize()
    answer = await api.post(f"{NOTIFICATIONS}?key=k", json={"did": KITCHEN})
    assert answer.status_code == 200
    await quiet(browser.services)
    assert [one["data"] for one in await browser.actions()] == [{"actions": [{"name": "setOn"}]}]
    assert f"/lamps/{KITCHEN}" not in cloud.paths()


async def test_a_notification_without_data_asks_for_them(
    api: httpx.AsyncClient, browser: Browser, world: World, cloud: ThirdPartyCloud
) -> None:
    parameters = {"notification": {"secret_parameter": {"name": "key", "value": "k"}, "account": "user"}}
    await bind(browser.services, terms(cloud, parameters=parameters))
    await browser.authorize()
    await pull(browser.services)
    cloud.readings = [{"at": NOW_MS, "temp": 19}]
    assert (await api.post(f"{NOTIFICATIONS}?key=k", json={"user": ACCOUNT})).status_code == 200
    await quiet(browser.services)
    assert len(await browser.messages()) == 1


# Limits


class TestLimits:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return msgspec.structs.replace(settings, limits=Limits(rate_limits="on", quotas="on"))

    async def act(self, api: httpx.AsyncClient, browser: Browser, times: int) -> None:
        action = {"ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}] * times}}
        answer = await api.post("/actions", headers=bearer(ADA_TOKEN), json=action)
        assert answer.status_code == 200
        await quiet(browser.services)

    async def test_sixty_calls_a_minute_for_each_user(
        self, api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
    ) -> None:
        await browser.authorize()
        await pull(browser.services)
        for _ in range(4):
            await self.act(api, browser, 20)
        assert len(cloud.calls) - cloud.paths().count("/authorize") == 60
        assert (await browser.device())["cloudAuthorization"] == "AUTHORIZED"
        fake_clock.advance(60_000)
        await self.act(api, browser, 20)
        assert len(cloud.calls) - cloud.paths().count("/authorize") == 80

    async def test_a_type_may_have_limits_of_its_own(
        self, api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
    ) -> None:
        await bind(browser.services, terms(cloud, calls_per_day=5))
        await browser.authorize()
        await pull(browser.services)
        await self.act(api, browser, 20)
        assert len(cloud.calls) - cloud.paths().count("/authorize") == 5
        fake_clock.advance(24 * HOUR_MS)
        cloud.token_seconds = 10**9
        await self.act(api, browser, 4)
        assert len(cloud.calls) - cloud.paths().count("/authorize") == 10

    async def test_an_action_is_refused_when_the_day_of_the_device_is_used_up(
        self, api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
    ) -> None:
        """The last request of the day may be reserved for an Action that waits (reference 21.2)."""
        await browser.authorize()
        services = browser.services
        await quiet(services)
        kitchen = await services.devices.registry.find(KITCHEN)
        msgspec.structs.force_setattr(kitchen.type.record, "has_cloud_connector", True)
        services.limits.quotas.set_device_limit(kitchen.key, 2)
        answers: list[httpx.Response] = []

        async def act() -> None:
            answers.append(await api.post("/actions", headers=bearer(ADA_TOKEN), json=SET_ON))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(act)
        assert sorted(one.status_code for one in answers) == [200, 200, 429, 429, 429]
        refused = next(one for one in answers if one.status_code == 429)
        assert refused.json()["error"]["message"] == (
            f"Plan quota exceeded for device {KITCHEN}. Reason: Daily message limit."
        )
        assert refused.headers["x-quota-device-limits"].endswith("/2")
        assert int(refused.headers["Retry-After"]) > 0
        await quiet(services)
        assert cloud.bodies(f"/lamps/{KITCHEN}") == [{"on": True}, {"on": True}]
        await act()
        assert answers[-1].status_code == 429
        assert answers[-1].headers["x-quota-device-limits"] == "2/2"
        assert len(await browser.actions()) == 2
        fake_clock.advance(24 * HOUR_MS)
        await act()
        assert answers[-1].status_code == 200
        await quiet(services)
        assert len(cloud.bodies(f"/lamps/{KITCHEN}")) == 3

    async def test_readings_wait_for_the_message_quota(
        self, browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
    ) -> None:
        cloud.readings = [{"at": at, "temp": at, "sensor": sensor} for at in (1, 2, 3) for sensor in ("a", "b")]
        cloud.readings.append({"at": "noon", "temp": 1})
        await browser.authorize()
        for monthly, stored in ((3, 3), (3, 3), (100, 6)):
            await plan(browser.services, monthly)
            await pull(browser.services)
            assert browser.services.connectors.statistics().stored == stored
            fake_clock.advance(HOUR_MS)
        for sensor in ("a", "b"):
            found = await browser.messages((await browser.device_with(sensor))["id"])
            assert [one["ts"] for one in found] == [1, 2, 3]
        failed = await browser.services.device_types.manifests.failures(LIGHT_TYPE, limit=100)
        assert [one.payload for one in failed.messages] == ['{"at":"noon","temp":1}']

    async def test_a_browser_that_returns_when_the_limit_is_reached(
        self, browser: Browser, cloud: ThirdPartyCloud
    ) -> None:
        await bind(browser.services, terms(cloud, calls_per_minute=2))
        assert (await browser.authorize()).headers["Location"] == REFERER
        assert (await browser.authorize()).headers["Location"] == f"{REFERER}&error=temporarily_unavailable"


# Addresses


class TestPrivateAddresses:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return msgspec.structs.replace(settings, outbound=Outbound())

    @pytest.fixture
    def way_out(self) -> ThirdParty:
        return HttpThirdParty(OutboundHttp(client_context(""), allow_private=False))

    async def test_private_addresses_are_refused_unless_allowed(self, browser: Browser, cloud: ThirdPartyCloud) -> None:
        assert (await browser.authorize()).headers["Location"] == f"{REFERER}&error=temporarily_unavailable"
        assert cloud.paths() == ["/authorize"]
