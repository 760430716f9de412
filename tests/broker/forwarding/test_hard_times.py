"""Nothing is lost or stored twice when the upstream, the edge or the line has a hard time, and the operator is told."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from trio.testing import MockClock

from broker.devices.registry import Device
from broker.devices.transfers import hand_over
from broker.forwarding.port import UpstreamAnswer
from broker.limits.refusals import DailyQuotaExceeded
from storage.keys import Milliseconds
from tests.broker.forwarding.conftest import CENTRE, Two
from tests.broker.forwarding.test_forwarding import devices_of_edge
from tests.factories import KITCHEN, NOW_MS

pytestmark = pytest.mark.slow


async def test_an_upstream_that_is_slow_for_hours_gets_each_message_once(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    two.line.seconds = 45
    two.line.faults.extend(["", "unheard", "", "away"] * 3)
    for first in range(0, 1_200, 300):
        await two.send(*range(first, first + 300))
        await two.settled(300)
    await two.sent_on(7_200)
    assert not two.line.faults
    assert await two.at_centre() == Counter(range(1_200))
    assert (two.status.problem, two.status.behind) == ("", 0)


async def test_a_busy_upstream_is_left_alone_for_as_long_as_it_asks(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    number = len(two.line.asked_at)
    two.line.faults.extend([UpstreamAnswer(429, {"retry-after": "600"}, b"")] * 2)
    await two.send(1)
    await two.settled(60)
    assert two.status.problem == (
        "The upstream is busy and asks to wait (HTTP status 429). The next try is at 09:03 UTC."
    )
    await two.sent_on(7_200)
    waits = [after - before for before, after in pairwise(two.line.asked_at[number:])]
    assert all(one >= 600 for one in waits[:2])
    assert await two.at_centre() == Counter([1])
    assert two.status.problem == ""


async def test_an_edge_whose_clock_is_in_1970_loses_nothing_and_is_told(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    two.clock.now = 5_000
    await two.send(1, 2)
    await two.settled()
    assert two.status.problem == "The clock of this machine is 56 years behind that of the upstream."
    assert two.status.state == "sends"
    two.clock.now = NOW_MS
    await two.send(3)
    await two.settled()
    assert two.status.problem == ""
    assert await two.at_centre() == Counter([1, 2, 3])
    rows = await two.centre.core.database.read(lambda tx: list(tx.messages.after(0)))  # type: ignore[arg-type]
    assert [row.ts < 100_000 for row in rows] == [True, True, False], "a message keeps its time"


async def test_a_device_that_is_deleted_while_its_messages_come_stops_no_others(
    two: Two, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    (device,) = await devices_of_edge(two.centre)
    edge_devices = two.centre.forwarding.batches._edge_devices
    found = edge_devices.of

    async def then_deleted(*about: Any) -> Any:
        devices = await found(*about)
        monkeypatch.undo()
        await two.centre.devices.inventory.delete(device)
        return devices

    monkeypatch.setattr(edge_devices, "of", then_deleted)
    await two.send(2)
    await two.settled()
    assert await two.at_centre() == Counter([1])
    assert (two.centre.forwarding.edges.statistics().dropped, two.status.problem, two.status.behind) == (1, "", 0)


async def test_a_quota_that_is_used_up_stops_the_edge_until_there_is_room(
    two: Two, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two.sent_on(75)
    left = 3

    class Quotas:
        def charge_message(self, device: Device, _size: int, _now_ms: int) -> None:
            nonlocal left
            if not left:
                raise DailyQuotaExceeded(600, device.id)
            left -= 1

    monkeypatch.setattr(two.centre.messages.ingest, "_quotas", Quotas())
    await two.send(*range(5))
    await two.settled(60)
    assert await two.at_centre() == Counter(range(3))
    assert "Daily message limit. The next try is at 09:03 UTC." in two.status.problem
    assert (two.status.state, two.status.behind) == ("waits", 2)
    (shown,) = two.centre.forwarding.edges.statistics().edges
    assert "Daily message limit" in shown.problem
    left = 100
    await two.sent_on(3_600)
    assert await two.at_centre() == Counter(range(5))
    assert two.status.problem == ""
    (shown,) = two.centre.forwarding.edges.statistics().edges
    assert shown.problem == ""


async def test_a_token_that_is_revoked_in_the_middle_stops_it_until_there_is_another(
    two: Two, autojump_clock: MockClock
) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    _, renewed = await two.centre.forwarding.book.renew("attic")
    await two.send(2)
    await two.settled()
    assert two.status.problem == (
        "The upstream does not know the token of token_file (HTTP status 401): it was renewed, or the edge was removed."
        " trunkline edge token, at the upstream, makes another one."
    )
    two.line.token = renewed
    await two.settled()
    assert await two.at_centre() == Counter([1, 2])
    assert two.status.problem == ""


@pytest.mark.parametrize(
    ("forward", "goes_on"),
    [
        (CENTRE, True),
        (replace(CENTRE, devices=(KITCHEN,)), True),
        (replace(CENTRE, devices=("owner:ada@example.org",)), False),
    ],
)
async def test_a_device_that_is_handed_over_at_the_edge_is_forwarded_while_the_entry_covers_it(
    two: Two, autojump_clock: MockClock, goes_on: bool
) -> None:
    """As 30.1 says."""
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    known = (await two.edge.devices.registry.find(KITCHEN)).record
    bob = two.world.bob
    await two.edge.core.database.write(lambda tx: hand_over(tx, known, bob, Milliseconds(NOW_MS)))
    await two.send(2)
    await two.settled()
    assert await two.at_centre() == Counter([1, 2] if goes_on else [1])
    (device,) = await devices_of_edge(two.centre)
    assert device.owner == two.world.ada, "of the upstream, where nothing was handed over"
    two.centre.messages.ingest.submit_action(device, device, b'{"actions":[{"name":"setOn"}]}')
    await two.centre.messages.ingest.wait_committed()
    await two.settled(60)
    assert two.status.actions == int(goes_on)
    assert two.status.problem == ""
