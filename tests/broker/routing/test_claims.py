"""The places of connections among those of several nodes: who is told that a device is connected finds it stored."""

import pytest
import trio
import trio.testing

from broker.cluster.kinds import AVAILABILITY
from broker.devices.registry import Device
from broker.routing.claims import ConnectionClaims
from broker.routing.connections import DeviceLink
from broker.routing.events import EventSubscriber, FeedEvent
from broker.services import Services
from storage.keys import DeviceKey
from storage.sql import StoreError
from tests.factories import KITCHEN, World


class Link:
    is_exclusive = True

    def __init__(self, device: Device) -> None:
        self.key: DeviceKey = device.key
        self.told: list[str] = []

    def replaced_elsewhere(self) -> None:
        self.told.append("replaced")

    def not_claimed(self) -> None:
        self.told.append("not claimed")


@pytest.fixture
async def kitchen(services: Services, world: World) -> Device:
    return await services.devices.registry.find(KITCHEN)


@pytest.fixture
def claims(services: Services) -> ConnectionClaims:
    return ConnectionClaims(services.core.database, services.core.news, "a")


async def test_it_is_waited_for(services: Services, claims: ConnectionClaims, kitchen: Device) -> None:
    link, seen = Link(kitchen), list[bool]()

    async def wait() -> None:
        await claims.begun(link)
        seen.append(group.ended.is_set())

    claims.begin(link)
    group = services.core.database.open_group
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
    await claims.begun(link)  # at once
    assert (seen, link.told) == ([True], [])
    assert await services.core.database.read(lambda tx: tx.device_connections.connected([kitchen.key])) == {kitchen.key}


async def test_one_that_is_not_stored_is_told_so(services: Services, claims: ConnectionClaims, kitchen: Device) -> None:
    link = Link(kitchen)
    claims.begin(link)
    services.core.database.open_group.refused = "a device has connected to another node"
    with pytest.raises(StoreError, match="a device has connected to another node"):
        await claims.begun(link)
    assert link.told == ["not claimed"]


async def connected(services: Services, device: Device) -> bool:
    return bool(await services.core.database.read(lambda tx: tx.device_connections.connected([device.key])))


@pytest.mark.both_engines
async def test_one_whose_end_is_not_stored_is_ended_again(
    services: Services, claims: ConnectionClaims, kitchen: Device
) -> None:
    """Otherwise the device would look connected until it connects again, or the node is buried."""
    link, database, told = Link(kitchen), services.core.database, list[str]()
    services.core.news.listen(AVAILABILITY, lambda change, _content: told.append(change.availability))
    claims.begin(link)
    await claims.begun(link)
    claims.end(link)
    group = database.open_group
    group.refused = "a device has connected to another node"
    await group.ended.wait()
    assert await connected(services, kitchen)
    await claims.end_again()
    assert not await connected(services, kitchen)
    await claims.end_again()
    assert told == ["online", "offline"]


@pytest.mark.both_engines
async def test_one_whose_work_a_permission_has_ended_is_told_so(
    services: Services, claims: ConnectionClaims, kitchen: Device
) -> None:
    """Its commit is stored, but without it. The same for its end."""
    link, database = Link(kitchen), services.core.database

    def refuse() -> None:
        for work in database.open_group.works:
            work.refused = "a permission has ended on another node"

    claims.begin(link)
    refuse()
    with pytest.raises(StoreError, match="a permission has ended"):
        await claims.begun(link)
    assert link.told == ["not claimed"]
    claims.begin(link)
    await claims.begun(link)
    claims.end(link)
    refuse()
    await database.open_group.ended.wait()
    assert await connected(services, kitchen)
    await claims.end_again()
    assert not await connected(services, kitchen)


async def test_whoever_has_no_task_is_called(services: Services, claims: ConnectionClaims, kitchen: Device) -> None:
    link, told = Link(kitchen), list[str]()
    claims.begin(link)
    claims.when_begun(link, lambda: told.append("in the commit"))
    assert told == []
    await claims.begun(link)
    await trio.testing.wait_all_tasks_blocked()
    claims.when_begun(link, lambda: told.append("at once"))
    assert told == ["in the commit", "at once"]


async def test_a_device_that_goes_to_another_node_is_online_all_the_time(
    services: Services, claims: ConnectionClaims, kitchen: Device
) -> None:
    """Subscribers of events hear of the first connection and of the end of the last one, on whatever node."""
    core, routing = services.core, services.routing
    of_b = ConnectionClaims(core.database, core.news, "b")
    routing.connections.share(claims)
    routing.events.share(core.news)
    told: list[str] = []

    def concerns(event: FeedEvent) -> bool:
        told.append(event.name)
        return True

    subscriber = EventSubscriber(concerns, lambda _: None, lambda _: b"", b"", lambda _: None)
    elsewhere, link = Link(kitchen), device_link(services, kitchen)
    with routing.events.subscribe(subscriber):
        of_b.begin(elsewhere)
        await of_b.begun(elsewhere)
        with link:
            await routing.connections.entered(link)
        await core.database.write(lambda _tx: None)
    assert told == ["device.status.online", "device.status.offline"]


def device_link(services: Services, device: Device) -> DeviceLink:
    return services.routing.connections.connect(
        device, protocol="MQTT", token=b"", exclusive=True, deliver=None, close=lambda _reason: None
    )
