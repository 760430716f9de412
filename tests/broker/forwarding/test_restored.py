"""An older backup of the upstream, or of the edge, was restored (reference 30.5)."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace
from trio.testing import MockClock

from broker.forwarding.progress import complete_upto
from config.settings import Forward, Settings
from storage.forwarding import EdgeRecord
from storage.keys import Milliseconds, Position
from tests.broker.forwarding.conftest import CENTRE, Two
from tests.broker.forwarding.test_forwarding import devices_of_edge

pytestmark = pytest.mark.slow


COPIED = "Two copies of this store send, or a backup was restored"


async def restore_upstream(two: Two, edge: EdgeRecord, head: int) -> None:
    """Take its messages behind `head` away, and what it knows of the edge since then."""

    def work(tx: Any) -> None:
        tx.connection.execute("DELETE FROM message WHERE position > :head", {"head": head})
        tx.forwarding.put_edge(edge)

    await two.centre.core.database.write(work)


@pytest.mark.both_engines
@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize("forward", [replace(CENTRE, begin="start")])
async def test_a_restored_upstream_gets_what_it_lacks_once(
    two: Two, autojump_clock: MockClock, order: str, forward: Forward, settings: Settings
) -> None:
    """With the newest first, the backup may have been made while an older part was not sent yet."""
    running = two.edge.forwarding.forwarding
    running.renew(replace(settings, forward=(replace(forward, order=order),)))
    two.line.faults.clear()
    two.line.faults.extend(["away"] * 1_000)
    for first in range(0, 3_000, 500):
        await two.send(*range(first, first + 500))
    two.line.faults.clear()
    two.line.faults.extend(["", "", "", "", "", *["away"] * 1_000])
    await two.settled()
    database = two.centre.core.database
    backup, head = await database.read(lambda tx: (tx.forwarding.edge_named("attic"), tx.messages.head()))
    assert backup is not None
    assert 0 < (await two.at_centre()).total() < 3_000
    two.line.faults.clear()
    await two.settled()
    assert await two.at_centre() == Counter(range(3_000))
    await restore_upstream(two, backup, head)
    await two.send(3_000)
    await two.settled()
    assert COPIED in two.status.problem
    assert two.status.problem.endswith(f"forward rewind NAME {backup.upto}, at the sender.")
    accepted = await two.centre.forwarding.book.accept("attic", new_positions=False)
    await running.rewind("centre", accepted.upto)
    await two.settled()
    assert two.status.problem == ""
    assert await two.at_centre() == Counter(range(3_001))


async def test_a_restored_edge_that_has_nothing_to_send_is_refused_too_and_repeats_no_action(
    two: Two, autojump_clock: MockClock, forward: Forward, settings: Settings
) -> None:
    await two.sent_on(75)
    await two.send(1)
    await two.settled()
    (device,) = await devices_of_edge(two.centre)
    database, running = two.edge.core.database, two.edge.forwarding.forwarding
    backup = await database.read(lambda tx: tx.forwarding.forward("centre"))
    assert backup is not None
    for number in range(3):
        data = b'{"actions":[{"name":"setOn","parameters":{"n":%d}}]}' % number
        two.centre.messages.ingest.submit_action(device, device, data)
        await two.centre.messages.ingest.wait_committed()
        await two.settled(60)
    await two.send(2)
    await two.settled()
    assert two.status.actions == 3

    running.renew(replace(settings, forward=()))
    await two.settled(60)
    older = replace(backup, changed_on=Milliseconds(backup.changed_on + 1))
    await database.write(lambda tx: tx.forwarding.put_forward(older))
    running.renew(replace(settings, forward=(forward,)))
    await two.settled()
    assert COPIED in two.status.problem
    (shown,) = two.centre.forwarding.edges.statistics().edges
    assert "trunkline edge accept attic --new-positions" in shown.problem

    await two.centre.forwarding.book.accept("attic", new_positions=True)
    await two.send(3)
    await two.settled()
    assert two.status.problem == ""
    assert two.status.actions == 0, "its devices have had them"
    assert await two.at_centre() == Counter([1, 2, 2, 3]), "as 30.5 says"
    data = b'{"actions":[{"name":"setOff"}]}'
    two.centre.messages.ingest.submit_action(device, device, data)
    await two.centre.messages.ingest.wait_committed()
    await two.settled(60)
    assert two.status.actions == 1

    def read(tx: Any) -> list[str]:
        return [one.data for one in tx.messages.actions_after(Position(0), limit=100)]

    assert (await database.read(read))[-1] == data.decode()


async def test_a_batch_says_up_to_where_everything_was_sent(two: Two, autojump_clock: MockClock) -> None:
    await two.sent_on(75)
    await two.send(1, 2)
    await two.settled()
    batch = next(one.batch for one in reversed(two.line.asked) if one.batch is not None)
    record = await two.edge.core.database.read(lambda tx: tx.forwarding.forward("centre"))
    edge = await two.centre.core.database.read(lambda tx: tx.forwarding.edge_named("attic"))
    assert record is not None
    assert edge is not None
    assert (batch.complete, complete_upto(record), edge.upto) == (batch.after, batch.upto, batch.upto)
