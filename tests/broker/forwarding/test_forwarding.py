"""Messages of one store that are forwarded to another one (reference 30)."""

from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from trio.testing import MockClock

from broker.devices.inventory import DeviceChanges
from broker.devices.transfers import hand_over
from broker.errors import ValidationFailed
from broker.forwarding.edge_book import NewEdge
from broker.forwarding.log_reader import within, within_from_behind
from broker.forwarding.port import UpstreamAnswer
from broker.forwarding.wire import Batch, SentDevice, SentMessage
from broker.services import Services
from config.limits import FORWARD_BATCH_BYTES
from config.settings import Forward, Settings
from storage.keys import DeviceKey, Milliseconds, Position, UserKey
from storage.records import MessageRow
from tests.broker.forwarding.conftest import CENTRE, Two
from tests.factories import BOBS, HALL, KITCHEN, LIGHT_TYPE, NOW_MS

pytestmark = pytest.mark.slow


async def devices_of_edge(services: Services) -> list[Any]:
    def read(tx: Any) -> list[Any]:
        return [row["device"] for row in tx.connection.execute("SELECT device FROM edge_device ORDER BY remote")]

    return [await services.devices.registry.get(key) for key in await services.core.database.read(read)]


async def test_each_message_is_stored_once_whatever_is_lost_on_the_way(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    two.line.faults.extend(["away", "unheard", "away", "unheard", "", "unheard"])
    for value in range(30):
        await two.send(value)
        await two.settled(5)
    await two.settled()
    assert await two.at_centre() == Counter(range(30))
    assert two.centre.forwarding.edges.statistics().again >= 1
    status = two.status
    assert (status.state, status.problem, status.sent, status.behind) == ("sends", "", 30, 0)
    (device,) = await devices_of_edge(two.centre)
    here = await two.edge.devices.registry.find(KITCHEN)
    assert (device.record.name, device.owner_id) == (here.record.name, here.owner_id)
    assert device.id != here.id


@pytest.mark.both_engines
async def test_a_message_keeps_its_time_and_its_mid_is_found_again(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    await two.send(1, 2, ts=1_700_000_000_000)
    await two.settled()

    def read(tx: Any) -> list[Any]:
        return list(tx.messages.after(Position(0)))

    first, second = await two.centre.core.database.read(read)
    assert {first.ts, second.ts} == {1_700_000_000_000}
    book, ingest = two.centre.forwarding.book, two.centre.messages.ingest
    theirs = [row for row in await two.edge.core.database.read(read) if row.ts == 1_700_000_000_000]
    for row, sent in zip((first, second), theirs, strict=True):
        origin = await book.origin(ingest.mid(row.position))
        assert origin.remote_mid == two.edge.messages.ingest.mid(sent.position)
        assert (await book.origin(origin.remote_mid, "attic")).position == row.position


@pytest.mark.parametrize("forward", [replace(CENTRE, begin="start", order="newest")])
async def test_with_the_newest_first_each_message_is_stored_once(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    two.line.faults.extend(["away"] * 1_000)
    for first in range(0, 4_000, 100):
        await two.send(*range(first, first + 100))
    await two.settled()
    assert two.status.problem == "The upstream is away."
    two.line.faults.clear()
    two.line.faults.extend(["", "unheard", "", "away", "unheard"])
    await two.send(4_000)
    await two.sent_on(600)
    assert await two.at_centre() == Counter(range(4_001))
    batches = [one.batch for one in two.line.asked if one.batch is not None]
    assert any(one.after < before.after for before, one in pairwise(batches)), "an older part later"


async def test_actions_come_down_once(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    (device,) = await devices_of_edge(two.centre)
    for _ in range(3):
        two.centre.messages.ingest.submit_action(device, device, b'{"actions":[{"name":"setOn"}]}')
        await two.centre.messages.ingest.wait_committed()
        await two.settled(3)
    await two.settled(60)

    def read(tx: Any) -> list[Any]:
        return list(tx.messages.actions_after(Position(0), limit=100))

    got = await two.edge.core.database.read(read)
    assert [(row.device, row.data) for row in got] == [(two.world.kitchen, '{"actions":[{"name":"setOn"}]}')] * 3
    assert two.status.actions == 3


@pytest.mark.both_engines
async def test_an_action_of_a_new_device_does_not_wait_for_the_end_of_a_request(
    two: Two, autojump_clock: MockClock
) -> None:
    """Also when another node of the upstream has made the device while the edge waited at this one."""
    await two.sent_on(75)
    await two.send(1)
    await two.settled(3)
    (device,) = await devices_of_edge(two.centre)
    two.centre.messages.ingest.submit_action(device, device, b'{"actions":[{"name":"setOn"}]}')
    await two.centre.messages.ingest.wait_committed()
    await two.settled(1)
    assert two.status.actions == 1


async def test_a_device_that_was_handed_over_at_the_upstream_has_no_part_in_it_any_more(
    two: Two, autojump_clock: MockClock
) -> None:
    """Its new owner's Actions are no business of the former one's store, also those that wait for it."""
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    centre, token = two.centre, two.line.token
    (device,) = await devices_of_edge(centre)

    async def give_to(user: UserKey) -> None:
        known = device.record
        await centre.core.database.write(lambda tx: hand_over(tx, known, user, Milliseconds(NOW_MS)))

    two.line.token = ""  # the line is broken
    await give_to(two.world.bob)
    centre.messages.ingest.submit_action(device, device, b'{"actions":[{"name":"setOn"}]}')
    await centre.messages.ingest.wait_committed()
    await give_to(two.world.ada)
    two.line.token = token
    await two.send(2)
    await two.settled(600)
    assert two.status.actions == 0
    assert await two.at_centre() == Counter([1])
    assert centre.forwarding.edges.statistics().dropped == 1


async def test_a_second_copy_of_a_store_is_refused_until_an_operator_accepts_it(
    two: Two, autojump_clock: MockClock
) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    batch = next(one.batch for one in reversed(two.line.asked) if one.batch is not None)
    edges = two.centre.forwarding.edges
    edge = await edges.authenticate(two.line.token)
    copy = replace(batch, id="c" * 32, previous="", after=batch.upto, upto=batch.upto + 5, messages=())
    with pytest.raises(Exception, match="Two copies of this store send"):
        await two.centre.forwarding.batches.receive(edge, copy)
    (shown,) = edges.statistics().edges
    assert "edge accept attic" in shown.problem
    await two.centre.forwarding.book.accept("attic", new_positions=True)
    assert (await two.centre.forwarding.batches.receive(edge, copy)).upto == copy.upto
    await two.send(2)
    await two.settled()
    assert "Two copies of this store send" in two.status.problem
    assert two.status.state == "waits"
    await two.centre.forwarding.book.accept("attic", new_positions=False)
    await two.edge.forwarding.forwarding.rewind("centre", batch.upto - 1)
    await two.settled()
    assert two.status.problem == ""


async def test_loops_are_refused(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    batch = next(one.batch for one in reversed(two.line.asked) if one.batch is not None)
    edges = two.centre.forwarding.edges
    edge = await edges.authenticate(two.line.token)
    with pytest.raises(Exception, match="would come back"):
        edges.greet(edge, edges.store)
    sent = next(iter(batch.devices.values()))
    through = replace(sent, path=(edges.store, batch.store))
    again = replace(
        batch,
        id="d" * 32,
        previous=batch.id,
        after=batch.upto,
        upto=batch.upto + 1,
        messages=(),
        devices={"x": through},
    )
    with pytest.raises(Exception, match="come through this store"):
        await two.centre.forwarding.batches.receive(edge, again)


async def test_a_message_of_the_upstream_is_not_sent_back_to_it(two: Two, autojump_clock: MockClock) -> None:
    """As the centre would forward to the edge: the devices of the edge are left out."""
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    (device,) = await devices_of_edge(two.centre)
    paths = await two.centre.core.database.read(lambda tx: tx.forwarding.paths_of([device.key]))
    assert paths == {device.key: (two.edge.forwarding.forwarding.store,)}


@pytest.mark.parametrize("forward", [replace(CENTRE, devices=(HALL, "owner:bob@example.org"))])
async def test_only_the_devices_of_the_entry_are_forwarded(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.send(2, device=HALL)
    await two.send(3, device=BOBS)
    await two.settled()
    assert await two.at_centre() == Counter([2, 3])
    assert two.status.behind == 0


@pytest.mark.both_engines
async def test_a_type_that_the_upstream_does_not_know_is_brought_where_it_may_be(
    two: Two, autojump_clock: MockClock
) -> None:
    await two.sent_on(75)
    renamed = "UPDATE device_type SET unique_name = 'other.lamp' WHERE unique_name = 'example.smart_light'"
    await two.centre.core.database.write(lambda tx: tx.connection.execute(renamed) and None)
    await two.centre.device_types.catalog.reload()
    await two.send(1)
    await two.settled()
    assert "There is no device type" in two.status.problem
    assert two.status.behind == 1
    _, two.line.token = await two.centre.forwarding.book.add(NewEdge("cellar", "ada@example.org", "Acme", 5))
    await two.settled()
    assert await two.at_centre() == Counter([1])
    (device,) = await devices_of_edge(two.centre)
    here = await two.edge.devices.registry.find(KITCHEN)
    assert device.type.record.unique_name == here.type.record.unique_name
    assert not device.type.record.published


async def test_a_device_that_was_deleted_at_the_upstream_gets_nothing(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    (device,) = await devices_of_edge(two.centre)
    await two.centre.devices.inventory.delete(device)
    await two.send(2)
    await two.settled()
    assert two.status.problem == ""
    assert await two.at_centre() == Counter([1])
    assert two.centre.forwarding.edges.statistics().dropped == 1


@pytest.mark.both_engines
async def test_a_disabled_device_keeps_what_comes_among_its_failed_messages(
    two: Two, autojump_clock: MockClock
) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    (device,) = await devices_of_edge(two.centre)
    await two.centre.devices.inventory.change(device, DeviceChanges(enabled=False))
    await two.send(2)
    await two.settled()
    failed, number = await two.centre.core.database.read(lambda tx: tx.messages.failed(device.key, offset=0, limit=9))
    assert (number, failed[0].payload) == (1, '{"intensity":2}')


NONSENSE = [
    (UpstreamAnswer(200, {}, b"<html>"), "does not answer as a Trunkline"),
    (UpstreamAnswer(200, {}, b'{"data":{"upto":99999,"now":1}}'), "stored what it was not sent"),
    (UpstreamAnswer(200, {}, b'{"data":{"upto":-1,"now":1}}'), "does not answer as a Trunkline"),
    (UpstreamAnswer(200, {}, b"[" * 100_000), "does not answer as a Trunkline"),
    (UpstreamAnswer(302, {"location": "http://evil.example"}, b""), "is not followed"),
    (UpstreamAnswer(401, {}, b""), "does not know the token"),
    (UpstreamAnswer(403, {}, b'{"error":{"message":"No\\u0000 way"}}'), "403: No  way"),
    (UpstreamAnswer(404, {}, b"nothing"), "There is no Trunkline"),
    (UpstreamAnswer(413, {}, b"\xff"), "HTTP status 413"),
    (UpstreamAnswer(429, {"retry-after": "100"}, b"[]"), "HTTP status 429"),
    (UpstreamAnswer(503, {"retry-after": "soon"}, b'{"error":7}'), "HTTP status 503"),
]


async def test_whatever_the_upstream_answers_is_said_and_tried_again(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    for number, (answer, text) in enumerate(NONSENSE):
        two.line.faults.extend([answer])
        await two.send(number)
        await two.settled(0.1)
        assert text in two.status.problem, text
        await two.sent_on(150)
        assert two.status.problem == ""
    assert await two.at_centre() == Counter(range(len(NONSENSE)))


async def test_it_goes_on_after_a_restart_and_takes_new_entries(
    two: Two, autojump_clock: MockClock, settings: Settings, forward: Forward
) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    running = two.edge.forwarding.forwarding
    running.renew(replace(settings, forward=()))
    await two.send(2)
    await two.settled()
    assert running.entries() == ()
    running.renew(replace(settings, forward=(forward,)))
    await two.settled()
    assert await two.at_centre() == Counter([1, 2])
    stored = await two.edge.core.database.read(lambda tx: tx.forwarding.forward("centre"))
    assert stored is not None
    assert (stored.gaps, stored.mark) == ((), await two.edge.core.database.read(lambda tx: tx.messages.head()))


@pytest.mark.both_engines
async def test_status_says_how_far_behind_it_is_and_when_retention_begins(two: Two, autojump_clock: MockClock) -> None:
    two.edge.forwarding.forwarding._forwarders["centre"]._retention_days = 2
    await two.sent_on(75)
    two.line.faults.extend(["away"] * 1_000)
    await two.send(1, 2, 3)
    two.clock.advance(60_000)
    await two.settled(60)
    status = two.status
    assert (status.behind, status.behind_seconds, status.state) == (3, 60, "waits")
    assert status.deletes_on == two.clock.now - 60_000 + 2 * 86_400_000


def hostile(store: str, **members: Any) -> Batch:
    """A batch of one message at position 1."""
    device = SentDevice("Attic", LIGHT_TYPE, (store,))
    message = SentMessage(1, f"{1:016x}" + "f" * 16, "d1", NOW_MS, '{"intensity":1}')
    return Batch(store, "b" * 32, "", 0, 1, (replace(message, **members),), {"d1": device})


@pytest.mark.both_engines
async def test_a_mid_that_no_store_has_harms_nobody_else(two: Two, autojump_clock: MockClock) -> None:
    """What fails in the commit of a batch would take the messages of everybody with it."""
    edges, ingest = two.centre.forwarding.edges, two.centre.messages.ingest
    edge = await edges.authenticate(two.line.token)
    bystander = await two.centre.devices.registry.find(BOBS)
    for mid in ("f" * 32, f"{2:016x}" + "f" * 16):
        ingest.submit(bystander, b'{"intensity":7}')
        with pytest.raises(ValidationFailed):
            await two.centre.forwarding.batches.receive(edge, hostile("5" * 32, mid=mid))
        await ingest.wait_committed()
    assert await two.at_centre() == Counter({7: 2})
    assert (await two.centre.forwarding.batches.receive(edge, hostile("5" * 32))).stored == 1


@pytest.mark.parametrize("member", ["store", "id", "previous"])
def test_an_id_has_no_line_break(member: str) -> None:
    said = msgspec.to_builtins(hostile("5" * 32, mid=f"{1:016x}" + "f" * 16))
    msgspec.convert(said, Batch)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**said, member: "5" * 32 + "\n"}, Batch)


async def test_what_comes_while_its_device_is_changed_at_the_upstream_is_stored(
    two: Two, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    (device,) = await devices_of_edge(two.centre)
    edges, edge_devices = two.centre.forwarding.edges, two.centre.forwarding.batches._edge_devices
    found = edge_devices.of

    async def then_changed(*about: Any) -> Any:
        devices = await found(*about)
        monkeypatch.undo()
        await two.centre.devices.inventory.change(device, DeviceChanges(name="Another name"))
        return devices

    monkeypatch.setattr(edge_devices, "of", then_changed)
    await two.send(2)
    await two.settled()
    assert await two.at_centre() == Counter([1, 2])
    assert (edges.statistics().dropped, two.status.problem) == (0, "")


async def test_actions_that_come_while_their_device_is_changed_come_again(
    two: Two, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    actions = two.edge.forwarding.forwarding._forwarders["centre"]._actions
    found = actions._found

    async def then_changed(device_id: str) -> Any:
        device = await found(device_id)
        monkeypatch.undo()
        assert device is not None
        await two.edge.devices.inventory.change(device, DeviceChanges(name="Another name"))
        return device

    monkeypatch.setattr(actions, "_found", then_changed)
    (device,) = await devices_of_edge(two.centre)
    two.centre.messages.ingest.submit_action(device, device, b'{"actions":[{"name":"setOn"}]}')
    await two.centre.messages.ingest.wait_committed()
    await two.settled()
    assert (two.status.actions, two.status.refused_actions) == (1, 0)


@pytest.mark.parametrize("forward", [replace(CENTRE, max_kbit=8)])
async def test_no_more_leaves_than_max_kbit(two: Two, autojump_clock: MockClock) -> None:
    """8 kbit/s are 1,000 bytes a second, of which a message takes 400 and its data."""
    await two.sent_on(75)
    await two.send(*range(40))
    await two.settled(8)
    assert 10 <= (await two.at_centre()).total() <= 30
    await two.settled(20)
    assert await two.at_centre() == Counter(range(40))
    assert two.status.failures == 1, "that of the beginning"


def row(position: int, size: int) -> MessageRow:
    return MessageRow(Position(position), DeviceKey(1), Milliseconds(0), Milliseconds(0), 1, "x" * size)


def test_a_batch_has_room_for_its_rows_from_either_end() -> None:
    rows = [row(position, FORWARD_BATCH_BYTES // 3) for position in range(11, 16)]
    assert within(rows, 20) == (rows[:3], 13)
    assert within(rows[:2], 20) == (rows[:2], 20)
    assert within_from_behind(rows, 10) == (rows[2:], 12)
    assert within_from_behind(rows[:2], 10) == (rows[:2], 10)
    large = [row(position, 2 * FORWARD_BATCH_BYTES) for position in (1, 2)]
    assert within(large, 2) == (large[:1], 1)
    assert within_from_behind(large, 0) == (large[1:], 1)
