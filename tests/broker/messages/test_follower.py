"""The rows that other nodes store, as this one publishes them."""

from broker.devices.registry import Device
from broker.facts import ActionStored, MessagesStored
from broker.messages.follower import LogFollower
from broker.services import Services
from storage.keys import Position
from tests.factories import HALL


async def test_an_action_whose_source_is_deleted_reaches_its_destination(
    services: Services, kitchen: Device, hall: Device
) -> None:
    """As one that is read later, it has the destination as its source."""
    core, devices, found = services.core, services.devices, list[ActionStored]()
    head = await core.database.read(lambda tx: tx.messages.head())
    for source, destination in ((kitchen, hall), (hall, hall), (hall, kitchen)):
        services.messages.ingest.submit_action(source, destination, b'{"actions":[{"name":"setOn"}]}')
    await services.messages.ingest.wait_committed()
    await devices.inventory.delete(kitchen)
    core.router.subscribe(ActionStored, found.append)
    follower = LogFollower(core.database, core.router, devices.registry, services.messages.mids, "another", head)
    await follower.before(Position(head + 4), Position(head + 4))
    assert [(one.action.sdid, one.action.ddid) for one in found] == [(HALL, HALL), (HALL, HALL)]
    assert follower.statistics().position == head + 4


async def test_nobody_hears_of_rows_behind_those_that_cannot_be_read(
    services: Services, kitchen: Device, hall: Device
) -> None:
    """Feeds would leave rows out, and rules would store that they have come further."""
    core, found = services.core, list[ActionStored | MessagesStored]()
    follower = LogFollower(
        core.database, core.router, services.devices.registry, services.messages.mids, "another", Position(0)
    )
    core.router.subscribe(ActionStored, found.append)
    core.router.subscribe(MessagesStored, found.append)
    follower.leave_out()
    services.messages.ingest.submit_action(kitchen, hall, b'{"actions":[{"name":"setOn"}]}')
    await services.messages.ingest.wait_committed()
    assert found == []
