"""The lease of the connectors goes to another node with something half-way: each is done once (reference 27.25)."""

from typing import Any

import msgspec
import pytest
import trio
from quart import Response
from trio.testing import wait_all_tasks_blocked

from broker.cluster.leases import Lease, LeaseName
from broker.connectors.intake import Intake
from broker.services import Services
from storage.connectors import ConnectorStore
from storage.keys import DeviceKey
from tests.factories import World
from tests.protocols.http.connectors.conftest import Browser, quiet
from tests.third_party_cloud import ThirdPartyCloud

pytestmark = pytest.mark.slow


#: The second one has no time, so nothing but the job says whether it was stored.
READINGS = [{"at": 1000, "temp": 20.5}, {"temp": 21.5}]


class Shared:
    """The service as one of several nodes, which asks for jobs in the store."""

    def __init__(self, services: Services, device: DeviceKey) -> None:
        self.fetches, self._services, self._device = services.connectors.fetches, services, device
        self.fetches._is_shared = True
        self.lease: Lease = services.core.leases.of(LeaseName.CONNECTORS)

    async def ask(self) -> None:
        device = await self._services.devices.registry.get(self._device)
        connector = self._services.connectors.catalog.of_type(device.type)
        assert await self.fetches.ask(connector, device.key)

    async def number_of_jobs(self) -> int:
        device = await self._services.devices.registry.get(self._device)
        read = self._services.core.database.read
        return len(await read(lambda tx: tx.connectors.jobs(device.type_key, limit=100)))

    async def give_away_and_take_back(self) -> None:
        with trio.fail_after(5):
            await self.lease.leave()
        assert self._services.connectors.statistics().waiting == 0
        self.lease.gain(None)

    async def ended(self) -> None:
        with trio.fail_after(5):
            while await self.number_of_jobs():
                await wait_all_tasks_blocked(0.001)
        await quiet(self._services)


@pytest.fixture
async def shared(browser: Browser, bound: Services, world: World) -> Shared:
    await browser.authorize()
    return Shared(bound, world.kitchen)


async def test_a_request_that_was_under_way_is_made_again(
    browser: Browser, cloud: ThirdPartyCloud, shared: Shared
) -> None:
    may_answer = trio.Event()

    async def answer() -> Response:
        await may_answer.wait()
        return Response(msgspec.json.encode({"data": {"readings": READINGS}}), content_type="application/json")

    cloud.answers["/readings"] = answer
    await shared.ask()
    await cloud.called("/readings")
    await shared.give_away_and_take_back()
    may_answer.set()
    await shared.ended()
    assert cloud.paths().count("/readings") == 2
    assert [one["data"]["temperature"] for one in await browser.messages()] == [20.5, 21.5]


async def test_what_is_being_stored_is_stored_once(
    browser: Browser, cloud: ThirdPartyCloud, shared: Shared, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    is_stored, may_end, store = trio.Event(), trio.Event(), Intake.store

    async def store_and_wait(*given: object, **named: object) -> None:
        await store(*given, **named)  # type: ignore[arg-type]
        is_stored.set()
        await may_end.wait()

    monkeypatch.setattr(Intake, "store", store_and_wait)
    cloud.readings = READINGS[:1]  # it is asked for with `since`, as times are compared
    cloud.answers["/readings"] = _readings
    await shared.ask()
    await is_stored.wait()
    leaving = trio.Event()

    async def leave() -> None:
        await shared.give_away_and_take_back()
        leaving.set()

    nursery.start_soon(leave)
    await wait_all_tasks_blocked()
    assert not leaving.is_set(), "another node may not begin before"
    may_end.set()
    await leaving.wait()
    await shared.ended()
    assert cloud.paths().count("/readings") == 1
    assert [one["data"]["temperature"] for one in await browser.messages()] == [20.5, 21.5]


async def _readings() -> Response:
    return Response(msgspec.json.encode({"data": {"readings": READINGS}}), content_type="application/json")


@pytest.mark.both_engines
async def test_a_job_waits_for_a_node_that_has_the_lease(
    browser: Browser, cloud: ThirdPartyCloud, shared: Shared
) -> None:
    await shared.lease.leave()
    cloud.readings = [{"at": 1000, "temp": 20.5}]
    for _ in range(2):  # one waits already
        await shared.ask()
    assert await shared.number_of_jobs() == 1
    assert await browser.messages() == []
    shared.lease.gain(None)
    await shared.ended()
    assert [one["data"]["temperature"] for one in await browser.messages()] == [20.5]
    assert cloud.paths().count("/readings") == 1


async def test_a_pull_that_was_being_claimed_is_due_at_the_next_node(
    browser: Browser, cloud: ThirdPartyCloud, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first readings of a device come a whole interval later."""
    cloud.readings = READINGS[:1]
    claim = ConnectorStore.claim_fetches
    with trio.CancelScope() as run:

        def claim_while_the_lease_goes(*given: Any, **named: Any) -> list[DeviceKey]:
            run.cancel()
            return claim(*given, **named)

        monkeypatch.setattr(ConnectorStore, "claim_fetches", claim_while_the_lease_goes)
        await shared.fetches.pull_due()
    monkeypatch.setattr(ConnectorStore, "claim_fetches", claim)
    await shared.give_away_and_take_back()
    await shared.fetches.pull_due()
    await shared.ended()
    assert [one["data"]["temperature"] for one in await browser.messages()] == [20.5]
