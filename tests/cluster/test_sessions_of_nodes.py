"""Sessions of MQTT that outlive their connections go where the device goes (reference 16.5, 27.25)."""

from collections.abc import Sequence

import pytest
import trio

from broker.clock import Clock
from broker.device_sessions import steps
from broker.device_sessions.session import DeviceSession
from broker.device_sessions.sessions import DeviceSessions
from broker.envelope import Action
from storage.keys import DeviceKey, Milliseconds, Position
from storage.mqtt_sessions import DeliveryRecord, TopicSubscriptionRecord
from storage.transaction import Transaction
from tests.cluster.history import Part, parts_of_a_cluster
from tests.factories import NOW_MS

pytestmark = pytest.mark.slow


DEVICE = DeviceKey(1)
TOPIC = b"/v1.1/actions/d"


class Outlet:
    def offer(self, _delivery: DeliveryRecord) -> bool:
        return True

    def send(self, _delivery: DeliveryRecord) -> None:
        """It is on its way."""


class Gateway:
    """The sessions of one node."""

    def __init__(self, part: Part) -> None:
        self.part = part
        clock = Clock(lambda: Milliseconds(NOW_MS))
        self.sessions = DeviceSessions(part.database, clock, part.news, longest_seconds=3600, peers=part.facts)

    async def connect(self, *, is_clean: bool = False) -> tuple[DeviceSession, bool]:
        began: list[tuple[DeviceSession, bool]] = []
        await self.sessions.begin(
            DeviceSession(DEVICE, "client", 60),
            is_clean=is_clean,
            is_actions=lambda filter_: filter_ == TOPIC,
            written=str.encode,
            begun=lambda session, is_present: began.append((session, is_present)),
        )
        began[0][0].outlet = Outlet()
        return began[0]

    async def settled(self) -> None:
        """All steps are stored, or left out."""
        await self.part.database.write(lambda _tx: None)

    async def stores_action(self, data: str) -> Action:
        part = self.part
        ticket = part.journal.append_action(
            device=DEVICE, source=DEVICE, ts=Milliseconds(1), cts=Milliseconds(1), mv=1, data=data
        )
        group = part.journal.group
        await part.journal.wait_committed()
        return Action(group.position(ticket), "mid", "d", "d", "t", "u", "o", Milliseconds(1), Milliseconds(1), 1, data)


async def waiting(gateway: Gateway) -> Sequence[bytes]:
    found = await gateway.part.database.read(lambda tx: tx.mqtt_sessions.deliveries(DEVICE))
    return [one.payload for one in found]


async def is_away(gateway: Gateway) -> bool:
    record = await gateway.part.database.read(lambda tx: tx.mqtt_sessions.session(DEVICE))
    assert record is not None
    return record.expires_on is not None


async def test_a_session_goes_where_the_device_goes() -> None:
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = map(Gateway, parts)
        first, is_present = await a.connect()
        assert not is_present
        a.sessions.subscribe(first, {TOPIC: TopicSubscriptionRecord(1)}, actions_from=Position(0))
        action = await b.stores_action("one")
        assert a.sessions.deliver(first, action, TOPIC, b"one", 1) is not None
        a.sessions.receive(first, 7)
        await a.settled()
        await b.stores_action("two")  # the other node has not published it yet

        second, is_present = await b.connect()
        assert is_present
        assert second.subscriptions == {TOPIC: TopicSubscriptionRecord(1)}
        assert [(one.number, one.payload) for one in second.deliveries] == [(1, b"one"), (2, b"two")]
        assert second.received == [7]

        # The former node has not heard of it: its steps change nothing, and its end is not that of the session.
        a.sessions.settle(first, 1)
        a.sessions.receive(first, 8)
        a.sessions.end(first)
        await a.settled()
        assert await waiting(b) == [b"one", b"two"]
        assert not await is_away(b)
        for number in (1, 2):
            b.sessions.settle(second, number)
        b.sessions.end(second)
        await b.settled()
        assert await is_away(b)

        third, is_present = await a.connect()
        assert (is_present, third.deliveries, third.received, third.next_number) == (True, [], [7], 1)


async def test_a_step_of_a_former_connection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant that the test above finds."""
    monkeypatch.setattr(steps, "if_held", lambda _device, _holder, work, tx: work(tx))
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = map(Gateway, parts)
        first, _ = await a.connect()
        await b.connect()
        a.sessions.end(first)
        await a.settled()
        assert await is_away(b)


async def test_sessions_of_a_node_end_with_it_and_those_of_others_go_on() -> None:
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = map(Gateway, parts)
        await a.connect()
        await b.sessions.resume()  # as at its start
        assert not await is_away(b)
        await b.part.database.write(lambda tx: _buried(tx, parts[0].facts.node))
        assert await is_away(b)
        with trio.fail_after(5):
            assert (await b.connect())[1]


def _buried(tx: Transaction, node: str) -> None:
    tx.mqtt_sessions.end_all(node=node)
