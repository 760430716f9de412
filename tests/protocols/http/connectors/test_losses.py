"""No reading and no link is lost, and no reading is stored twice.

Each rule is tested with the small cloud of `tests/third_party_cloud.py`, and with the same cloud behind an
authorization server of others: the npm package oidc-provider.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio
from quart import Response

from broker.connectors.links import Contents
from broker.services import Services
from tests.builders import ServicesOpener
from tests.factories import ADA_TOKEN, KITCHEN, LIGHT_TYPE, NOW_MS, build_world
from tests.fakes import FakeClock
from tests.programs import require_node_module
from tests.properties import in_ci
from tests.protocols.http.conftest import bearer
from tests.protocols.http.connectors.conftest import (
    PROVIDER_AUTH,
    REFERER,
    Browser,
    bind,
    pull,
    query_of,
    quiet,
    terms,
    way_back,
)
from tests.third_party_cloud import CLIENT, SECRET, ThirdPartyCloud

pytestmark = pytest.mark.slow


HOUR_MS = 3_600_000
SUBSCRIPTION = f"/subscriptions/{KITCHEN}"
SET_ON = {"ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}
_SCRIPT = Path(__file__).with_name("oidc_provider.js")


@dataclass
class CloudOfOidcProvider(ThirdPartyCloud):
    """The authorizations are those of an oidc-provider; it says who may have the readings."""

    issuer: str = ""

    def connector(self) -> dict[str, Any]:
        entry = super().connector()
        oauth2 = entry["oauth2"] | {"authorize_url": f"{self.issuer}/auth", "token_url": f"{self.issuer}/token"}
        return entry | {"oauth2": oauth2}

    async def account_of(self, token: str) -> str | None:
        about = await self._ask("introspection", token)
        return about["sub"] if about["active"] else None

    async def revoke(self, token: str) -> None:
        await self._ask("revocation", token)

    async def _ask(self, what: str, token: str) -> Any:
        async with httpx.AsyncClient(auth=(CLIENT, SECRET)) as client:
            answer = await client.post(f"{self.issuer}/token/{what}", data={"token": token})
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.content else None


@pytest.fixture(scope="module")
def oidc_provider() -> Iterator[str]:
    """The address of a server of others that authorizes."""
    require_node_module("oidc-provider")
    command: list[str | Path] = ["node", _SCRIPT, CLIENT, SECRET]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture(params=["small", pytest.param("oidc-provider", marks=(pytest.mark.processes, in_ci))])
async def cloud(request: pytest.FixtureRequest, nursery: trio.Nursery) -> ThirdPartyCloud:
    if request.param == "small":
        cloud = ThirdPartyCloud()
    else:
        cloud = CloudOfOidcProvider(issuer=request.getfixturevalue("oidc_provider"))
    await nursery.start(cloud.run)
    return cloud


async def contents(services: Services) -> Contents:
    device = await services.devices.registry.find(KITCHEN)
    record = await services.core.database.read(lambda tx: tx.connectors.link(device.key))
    assert record is not None
    return msgspec.json.decode(services.core.vault.open(record.sealed), type=Contents)


async def stored(browser: Browser) -> list[int]:
    return [one["ts"] for one in await browser.messages()]


async def failures(services: Services) -> list[tuple[str, str]]:
    found = await services.device_types.manifests.failures(KITCHEN, limit=100)
    return [(one.reason, one.payload) for one in reversed(found.messages)]


async def failing() -> Response:
    return Response("{}", 500)


async def test_a_reading_of_the_future_hides_no_later_ones(
    browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
) -> None:
    future = NOW_MS + 3 * HOUR_MS
    cloud.readings = [{"at": NOW_MS, "temp": 1}, {"at": future, "temp": 2}]
    await browser.authorize()
    await pull(browser.services)
    assert await stored(browser) == [NOW_MS]
    for hours in (1, 2):
        fake_clock.advance(HOUR_MS)
        cloud.readings.append({"at": NOW_MS + hours * HOUR_MS, "temp": 3})
        await pull(browser.services)
        assert await stored(browser) == [NOW_MS + hour * HOUR_MS for hour in range(hours + 1)]
    assert await failures(browser.services) == [("Invalid ts value (in future)", '{"temperature":2}')]
    fake_clock.advance(HOUR_MS)  # its time has come
    await pull(browser.services)
    assert (await stored(browser))[-1] == future


async def test_a_clock_of_ours_that_was_ahead_silences_no_device(
    browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
) -> None:
    await browser.authorize()
    fake_clock.advance(1_000 * HOUR_MS)
    cloud.readings = [{"at": fake_clock.now, "temp": 1}]  # the third party's clock was ahead, too
    await pull(browser.services)
    fake_clock.now = NOW_MS + HOUR_MS
    await pull(browser.services)
    fake_clock.advance(HOUR_MS)
    cloud.readings.append({"at": fake_clock.now, "temp": 2})
    await pull(browser.services)
    assert sorted(await stored(browser)) == [NOW_MS + 2 * HOUR_MS, NOW_MS + 1_000 * HOUR_MS]


async def test_each_reading_stands_alone(browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock) -> None:
    cloud.answers["/readings"] = partial(
        _answer,
        [
            {"at": "yesterday", "temp": 1},
            {"at": NOW_MS - 2, "temp": "x" * 2_000},
            {"at": NOW_MS - 3, "temp": 3, "sensor": "a\nb"},
            {"at": NOW_MS - 1, "temp": 4},
        ],
    )
    await browser.authorize()
    for _ in range(2):
        await pull(browser.services)
        fake_clock.advance(HOUR_MS)
    assert await stored(browser) == [NOW_MS - 1]
    reasons = [reason for reason, _ in await failures(browser.services)]
    assert len(reasons) == 3
    assert "yesterday" in reasons[0]


async def _answer(readings: list[dict[str, Any]]) -> Response:
    return Response(msgspec.json.encode({"data": {"readings": readings}}), content_type="application/json")


async def test_a_client_that_the_third_party_refuses_ends_no_link(
    browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
) -> None:
    await browser.authorize()
    await pull(browser.services)
    right = terms(cloud)
    assert right.oauth2 is not None
    wrong = msgspec.structs.replace(right.oauth2, client_secret="not the secret")
    await bind(browser.services, msgspec.structs.replace(right, oauth2=wrong))
    cloud.readings = [{"at": NOW_MS, "temp": 1}]
    fake_clock.advance(HOUR_MS)
    await pull(browser.services)
    assert (await browser.device())["cloudAuthorization"] == "AUTHORIZED"
    assert browser.services.connectors.statistics().refused_clients == 1
    await bind(browser.services, right)
    fake_clock.advance(HOUR_MS)
    await pull(browser.services)
    assert await stored(browser) == [NOW_MS]


async def test_a_refresh_token_that_the_third_party_revoked_ends_the_link(
    browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
) -> None:
    await browser.authorize()
    await pull(browser.services)
    if isinstance(cloud, CloudOfOidcProvider):
        await cloud.revoke((await contents(browser.services)).token.refresh)
    else:
        cloud.revoke_everything()
    fake_clock.advance(HOUR_MS)
    await pull(browser.services)
    assert (await browser.device())["cloudAuthorization"] == "UNAUTHORIZED"


async def test_nothing_arrives_after_the_link_was_ended(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud
) -> None:
    asked, may_answer = trio.Event(), trio.Event()

    async def slow() -> Response:
        asked.set()
        await may_answer.wait()
        return await _answer([{"at": NOW_MS, "temp": 1}])

    cloud.answers["/readings"] = slow
    await browser.authorize()
    await browser.services.connectors.fetches.pull_due()
    await asked.wait()
    assert (await api.delete(PROVIDER_AUTH, headers=bearer(ADA_TOKEN))).status_code == 200
    may_answer.set()
    await quiet(browser.services)
    assert await stored(browser) == []


async def test_the_link_stands_until_the_new_one_is_whole(
    browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
) -> None:
    await browser.authorize()
    await pull(browser.services)
    cloud.answers[SUBSCRIPTION] = failing
    assert (await browser.authorize()).headers["Location"] == f"{REFERER}&error=server_error"
    assert (await browser.device())["cloudAuthorization"] == "AUTHORIZED"
    cloud.readings = [{"at": NOW_MS, "temp": 1}]
    fake_clock.advance(HOUR_MS)
    await pull(browser.services)
    assert await stored(browser) == [NOW_MS]


async def test_readings_are_not_stored_again_after_another_link(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud, fake_clock: FakeClock
) -> None:
    cloud.readings = [{"at": NOW_MS - 1, "temp": 1}]
    for ends in (False, True, False):
        await browser.authorize()
        await pull(browser.services)
        if ends:
            await api.delete(PROVIDER_AUTH, headers=bearer(ADA_TOKEN))
    cloud.readings.append({"at": NOW_MS, "temp": 2})
    fake_clock.advance(HOUR_MS)
    await pull(browser.services)
    assert await stored(browser) == [NOW_MS - 1, NOW_MS]


async def test_a_kill_during_the_subscription_leaves_no_half_link(
    opener: ServicesOpener, cloud: ThirdPartyCloud
) -> None:
    asked = trio.Event()

    async def never() -> Response:
        asked.set()
        await trio.sleep_forever()
        raise AssertionError

    cloud.answers[SUBSCRIPTION] = never
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        await bind(services, terms(cloud))
        caller = await services.accounts.tokens.caller(ADA_TOKEN)
        device = await services.devices.registry.find(KITCHEN)
        begun = await services.connectors.authorize(caller, device, referer=REFERER, mobile=False)
        parameters = query_of(await way_back(begun, services))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.connectors.authorized, LIGHT_TYPE, parameters)
            await asked.wait()
            nursery.cancel_scope.cancel()
    async with opener() as services:
        device = await services.devices.registry.find(KITCHEN)
        assert device.record.cloud_authorization == "UNAUTHORIZED"
        assert await services.core.database.read(lambda tx: tx.connectors.link(device.key)) is None
        data = msgspec.json.encode(SET_ON["data"])
        services.messages.ingest.submit_action(device, device, data)
        await services.messages.ingest.wait_committed()
        await quiet(services)
    assert f"/lamps/{KITCHEN}" not in cloud.paths()


async def test_a_link_that_is_revoked_while_it_is_made_does_not_begin(
    api: httpx.AsyncClient, browser: Browser, cloud: ThirdPartyCloud
) -> None:
    asked, may_answer = trio.Event(), trio.Event()

    async def slow() -> Response:
        asked.set()
        if not may_answer.is_set():
            await may_answer.wait()
        return Response("{}", 200)

    cloud.answers[SUBSCRIPTION] = slow
    begun = await browser.begin()
    backs: list[str] = []

    async def agree() -> None:
        backs.append((await browser.agree(begun)).headers["Location"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(agree)
        await asked.wait()
        assert (await api.delete(PROVIDER_AUTH, headers=bearer(ADA_TOKEN))).status_code == 200
        may_answer.set()
    assert backs == [f"{REFERER}&error=access_denied"]
    assert (await browser.device())["cloudAuthorization"] == "UNAUTHORIZED"
    assert cloud.calls[-1][:2] == ("DELETE", SUBSCRIPTION)
