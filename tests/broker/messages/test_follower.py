"""The rows that other nodes store, as this one publishes them."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.devices.registry import Device
from broker.facts import ActionStored, MessagesStored
from broker.messages.follower import LogFollower
from broker.services import Services
from storage.facts import FactStore
from storage.keys import Position
from storage.messages import MessageStore
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
    follower.wants_messages.append(lambda: True)
    await follower.before(Position(head + 4), Position(head + 4), has_actions=False)
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


class Following:
    """A node that stores the message `own`, of those that are stored; the others are of other nodes."""

    def __init__(self, services: Services, sender: Device, head: Position) -> None:
        self.ingest, self.sender, self.wants = services.messages.ingest, sender, False
        self.published: list[Position] = []
        core = services.core
        self.follower = LogFollower(
            core.database, core.router, services.devices.registry, services.messages.mids, "another", head
        )
        self.follower.wants_messages.append(lambda: self.wants)
        core.router.subscribe(MessagesStored, self._stored)

    def _stored(self, fact: MessagesStored) -> None:
        if not fact.is_own:
            self.published += [row.position for row in fact.rows]

    async def store(self, number: int = 1) -> None:
        for _ in range(number):
            self.ingest.submit(self.sender, b'{"state":true}')
        await self.ingest.wait_committed()


@pytest.fixture
async def following(services: Services, kitchen: Device, monkeypatch: pytest.MonkeyPatch) -> Following:
    # SQLite has no numbers of commits; there is no commit of this node whose rows are not published.
    monkeypatch.setattr(FactStore, "heads", lambda self, *_: (MessageStore(self._db).head(), []))
    return Following(services, kitchen, await services.core.database.read(lambda tx: tx.messages.head()))


async def test_messages_that_nobody_needs_are_passed_over(following: Following) -> None:
    follower, begun = following.follower, following.follower.statistics().position
    await following.store(3)
    await follower.before(Position(begun + 2), Position(begun + 2), has_actions=False)
    await follower.read_on()
    assert (following.published, follower.statistics().rows) == ([], 0)


async def test_whoever_begins_to_need_messages_gets_all_from_then_on(following: Following) -> None:
    """Those before, some of which were of this node and some of others, are neither repeated nor sent late."""
    follower, begun = following.follower, following.follower.statistics().position
    await following.store(3)
    await follower.before(Position(begun + 1), Position(begun + 1), has_actions=False)
    await follower.before(Position(begun + 2), Position(begun + 2), has_actions=False)
    assert len(follower._own) == 1
    await follower.ready()
    following.wants = True
    await following.store(2)
    await follower.before(Position(begun + 6), Position(begun + 6), has_actions=False)
    assert following.published == [begun + 4, begun + 5]


async def test_rows_that_are_read_while_somebody_begins_to_need_them_are_not_passed_over(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever begins may have read the log before they were stored."""
    database = following.follower._database
    look_up = database.look_up

    async def and_begins(work: Callable[[Any], Any]) -> Any:
        found = await look_up(work)
        following.wants = True
        return found

    monkeypatch.setattr(database, "look_up", and_begins)
    begun = following.follower.statistics().position
    await following.store()
    await following.follower.read_on()
    assert following.published == [begun + 1]


async def test_who_reads_the_log_is_told_that_it_has_grown(following: Following) -> None:
    heard: list[str] = []
    following.follower.tell_reader(lambda: True, lambda: heard.append("one"))
    following.follower.tell_reader(lambda: False, lambda: heard.append("the other"))
    assert following.follower.is_hearing
    await following.store()
    await following.follower.read_on()
    await following.follower.read_on()
    assert heard == ["one"]
    await following.follower.messages_came()
    assert heard == ["one", "one"]
    assert following.published == []


async def test_actions_keep_their_order_while_messages_are_passed_over(
    following: Following, services: Services, kitchen: Device, hall: Device
) -> None:
    """A session of MQTT has come to the position of its last Action, and would leave out one that comes later."""
    found: list[ActionStored] = []
    begun = following.follower.statistics().position
    await following.store()
    services.messages.ingest.submit_action(kitchen, hall, b'{"actions":[{"name":"setOn"}]}')
    await services.messages.ingest.wait_committed()
    services.core.router.subscribe(ActionStored, found.append)
    await following.follower.before(Position(begun + 3), Position(begun + 3), has_actions=True)
    assert [one.action.position for one in found] == [begun + 2]
    assert following.published == []
    await following.follower.read_on()
    assert len(found) == 1
