"""Ada's lights have a cloud connector: the services of the daemon and a third party's cloud, both on loopback."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.connectors.fetches import Fetches
from broker.connectors.port import ThirdParty
from broker.connectors.terms import ConnectorEntry, ConnectorTerms
from broker.services import Services
from config.settings import Address, Outbound, Settings
from protocols.outbound.connectors import third_party
from protocols.outbound.tls import client_context
from storage.engines.sqlite import SqliteEngine
from tests.builders import ServicesOpener
from tests.factories import ADA_TOKEN, KITCHEN, LIGHT_TYPE, World
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.third_party_cloud import ThirdPartyCloud

#: A loop that looks without pause takes the processor from the threads for which it waits.
_IDLE_SECONDS = 0.001
pull_forever = Fetches.pull_forever

REFERER = "https://app.example.org/devices?tab=1"
PROVIDER_AUTH = f"/devices/{KITCHEN}/providerauth"
NOTIFICATIONS = f"/cloudconnectors/{LIGHT_TYPE}/thirdpartynotifications"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return msgspec.structs.replace(settings, outbound=Outbound(allow_private_addresses=True))


@pytest.fixture(autouse=True)
def no_pulls_but_those_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service looks for the pull of a device that was just linked after its answer, at a moment of its own."""

    async def wait(_fetches: Fetches, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()

    monkeypatch.setattr(Fetches, "pull_forever", wait)


@pytest.fixture
async def cloud(nursery: trio.Nursery) -> ThirdPartyCloud:
    cloud = ThirdPartyCloud()
    await nursery.start(cloud.run)
    return cloud


@pytest.fixture
def way_out(settings: Settings) -> ThirdParty:
    return third_party(settings, client_context(""))


@pytest.fixture
def opener(settings: Settings, engine: SqliteEngine, fake_clock: FakeClock, way_out: ThirdParty) -> ServicesOpener:
    return ServicesOpener(settings, engine, fake_clock.clock, third_party=way_out)


def terms(cloud: ThirdPartyCloud, **about: Any) -> ConnectorTerms:
    """The connector of the example file for this cloud, with the test's changes."""
    entry = cloud.connector()
    entry["parameters"] |= about.pop("parameters", {})
    return msgspec.convert(entry | about, ConnectorEntry).terms


async def bind(services: Services, terms: ConnectorTerms) -> None:
    """Give lights this connector."""
    entry = msgspec.to_builtins(terms) | {"device_type": LIGHT_TYPE}
    await services.provisioning.apply({"connectors": [entry]})


@pytest.fixture
async def bound(services: Services, world: World, cloud: ThirdPartyCloud, door: Address) -> Services:
    """Lights have a connector, and third parties can reach the service."""
    services.core.site.listens_on({"http": door})
    await bind(services, terms(cloud))
    return services


@dataclass
class Browser:
    """Ada's browser, at her application."""

    api: httpx.AsyncClient
    services: Services

    async def begin(self, **about: Any) -> httpx.Response:
        """Her application starts the authorization of her kitchen light."""
        headers = bearer(ADA_TOKEN) | {"Referer": REFERER} | about.pop("headers", {})
        return await self.api.post(about.pop("path", PROVIDER_AUTH), headers=headers, **about)

    async def agree(self, begun: httpx.Response) -> httpx.Response:
        """Ada allows or denies access at the third party, and returns to the service."""
        assert begun.status_code == 302, begun.text
        return await self.api.get(await way_back(begun.headers["Location"], self.services))

    async def authorize(self) -> httpx.Response:
        return await self.agree(await self.begin())

    async def device(self, device_id: str = KITCHEN) -> dict[str, Any]:
        answer = await self.api.get(f"/devices/{device_id}", headers=bearer(ADA_TOKEN))
        assert answer.status_code == 200, answer.text
        record: dict[str, Any] = answer.json()["data"]
        return record

    async def messages(self, device_id: str = KITCHEN) -> list[dict[str, Any]]:
        return await self._all(f"/messages?sdid={device_id}")

    async def actions(self, device_id: str = KITCHEN) -> list[dict[str, Any]]:
        return await self._all(f"/actions?ddid={device_id}")

    async def _all(self, path: str) -> list[dict[str, Any]]:
        about = "startDate=0&endDate=9999999999999&order=asc"
        answer = await self.api.get(f"{path}&{about}", headers=bearer(ADA_TOKEN))
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["data"]
        return found

    async def device_with(self, eid: str) -> dict[str, Any]:
        answer = await self.api.get("/users/self/devices", headers=bearer(ADA_TOKEN))
        for entry in answer.json()["data"]["devices"]:
            if (record := await self.device(entry["id"]))["eid"] == eid:
                return record
        raise AssertionError(f"no device has the external id {eid}")


@pytest.fixture
def browser(api: httpx.AsyncClient, bound: Services) -> Browser:
    return Browser(api, bound)


async def way_back(address: str, services: Services) -> str:
    """Ada's browser goes through the pages of the third party, up to the address at the service."""
    async with httpx.AsyncClient() as browser:
        while not address.startswith(services.core.site.origin):
            page = await browser.get(address)
            assert page.is_redirect, page.text
            address = str(httpx.URL(address).join(page.headers["Location"]))
    return address


def query_of(address: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


async def pull(services: Services) -> None:
    """Begin the pulls that are due, and wait for them."""
    await services.connectors.fetches.pull_due()
    await quiet(services)


async def quiet(services: Services) -> None:
    """Wait until no job for a third party is left."""
    with trio.fail_after(30):
        while services.connectors.statistics().waiting:
            await wait_all_tasks_blocked(_IDLE_SECONDS)


def signed(payload: object) -> dict[str, Any]:
    """Body and headers of a notification, as the cloud sends it."""
    return ThirdPartyCloud().notification(payload)
