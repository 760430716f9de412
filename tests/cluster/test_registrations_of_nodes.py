"""A registration of LWM2M goes from one of several nodes to another with what waits for it (reference 27.25)."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from broker.clock import Clock
from broker.device_management.requests import RolloutPlan, TaskRequest, encode_task_request
from broker.device_management.rollouts import Rollouts
from broker.device_management.shared_registrations import Begun, SharedRegistrations
from broker.device_management.states import DeviceTaskStatus, TaskStatus
from broker.device_management.timers import Timers
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, Position, UserKey
from storage.lwm2m import EndedActionRecord
from storage.lwm2m_actions import UnendedActionRecord
from storage.tasks import TaskRecord
from storage.transaction import Transaction
from tests.broker.device_management.devices import FakeSession
from tests.cluster.history import Part, parts_of_a_cluster
from tests.factories import NOW_MS, make_device
from tests.fakes import FakeClock

pytestmark = pytest.mark.slow


DEVICE = DeviceKey(1)


class Registrar:
    """The registrations of one node."""

    def __init__(self, part: Part, clock: Clock) -> None:
        self.part = part
        part.facts.rows = None  # nobody publishes Actions, whose devices are in no store
        self.shared = SharedRegistrations(part.database, clock, part.facts)

    async def register(self) -> tuple[FakeSession, Begun]:
        session = FakeSession(make_device(DEVICE))
        self.shared.begin(session)
        begun = await self.shared.begun(session)
        assert begun is not None
        return session, begun

    async def stores_actions(self, number: int = 1) -> Sequence[Position]:
        journal = self.part.journal
        tickets = [
            journal.append_action(
                device=DEVICE, source=DEVICE, ts=Milliseconds(1), cts=Milliseconds(1), mv=1, data="{}"
            )
            for _ in range(number)
        ]
        group = journal.group
        await journal.wait_committed()
        return [group.position(one) for one in tickets]

    async def takes(self, position: Position) -> None:
        self.shared.take(UnendedActionRecord(position, DEVICE, UserKey(1), 0))
        await self.settled()

    async def ends(self, position: Position) -> bool:
        record = EndedActionRecord(DEVICE, position, f"{position}", "setOn", Milliseconds(NOW_MS), "done", "")
        return await self.shared.end_action(record, None)

    async def is_here(self) -> bool:
        return await self.part.database.read(self.shared.is_here(DEVICE))

    async def settled(self) -> None:
        await self.part.database.write(lambda _tx: None)


def rows(begun: Begun) -> list[tuple[Position, int]]:
    """Positions and steps of the Actions that wait."""
    return [(one.record.position, one.record.step) for one in begun.unended]


def later(begun: Begun) -> list[Position]:
    return [row.position for row in begun.later]


async def test_the_actions_that_wait_go_with_the_device() -> None:
    clock = FakeClock(NOW_MS)
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = (Registrar(part, clock.clock) for part in parts)
        (before,) = await a.stores_actions()
        _, begun = await a.register()
        assert (begun.is_known, rows(begun), later(begun), begun.head) == (False, [], [], before)
        first, second, third = await b.stores_actions(3)
        for one in (first, second):
            await a.takes(one)
        assert await a.ends(first)
        assert await a.shared.begin_operation(DEVICE, second, 1)

        _, begun = await b.register()
        assert (begun.is_known, rows(begun), later(begun), begun.after) == (False, [(second, 1)], [third], second)
        assert (await a.is_here(), await b.is_here()) == (False, True)
        assert not await a.shared.begin_operation(DEVICE, second, 2)
        await a.takes(third)
        assert not await a.ends(second)
        await b.takes(third)
        assert await b.ends(second)
        found = await a.shared.actions(DEVICE)
        assert [one.position for one in found.ended] == [first, second]
        assert [one.record.position for one in found.unended] == [third]

        _, begun = await a.register()  # and back: what it had in memory is old
        assert (begun.is_known, rows(begun), later(begun)) == (False, [(third, 0)], [])
        _, begun = await a.register()
        assert (begun.is_known, rows(begun)) == (True, [])


async def test_a_node_that_looks_knows_that_another_one_has_the_device() -> None:
    """What waits for it there stays in memory no longer."""
    clock = FakeClock(NOW_MS)
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = (Registrar(part, clock.clock) for part in parts)
        assert not await a.shared.is_elsewhere(DEVICE)
        session, _ = await a.register()
        a.shared.end(session)
        await a.settled()
        assert not await a.shared.is_elsewhere(DEVICE)
        await b.register()
        assert (await a.shared.is_elsewhere(DEVICE), await b.shared.is_elsewhere(DEVICE)) == (True, False)
        a.shared.begin(FakeSession(make_device(DEVICE)))
        assert not await a.shared.is_elsewhere(DEVICE)  # its row is under way


async def test_an_action_that_comes_without_a_registration_goes_to_none() -> None:
    clock = FakeClock(NOW_MS)
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = (Registrar(part, clock.clock) for part in parts)
        session, _ = await a.register()
        waits, late = await a.stores_actions(2)
        await a.takes(waits)
        a.shared.end(session)
        await a.settled()
        assert not await a.is_here()
        (between,) = await a.stores_actions()
        _, begun = await b.register()
        assert (rows(begun), later(begun), begun.after, begun.head) == ([(waits, 0)], [late], between, between)
        b.shared.skip(DEVICE, between)
        await b.settled()
        _, begun = await a.register()
        assert (rows(begun), later(begun), begun.after, begun.head) == ([(waits, 0)], [], between, None)


async def test_what_a_former_node_does_late_is_left_out() -> None:
    clock = FakeClock(NOW_MS)
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = (Registrar(part, clock.clock) for part in parts)
        former, _ = await a.register()
        session, _ = await b.register()
        session.unobserved[(3304, 0, 5700)] = "It is not there."
        b.shared.note(session, is_ready=True)
        await b.settled()
        a.shared.note(former, is_ready=False)
        a.shared.end(former)
        await a.settled()
        shown = (await a.shared.shown([DEVICE]))[DEVICE]
        assert shown.is_ready
        assert shown.unobserved == {(3304, 0, 5700): "It is not there."}
        await a.part.database.write(lambda tx: _buried(tx, b.part.facts.node))
        assert await a.shared.shown([DEVICE]) == {}
        assert not await b.is_here()


def _buried(tx: Transaction, node: str) -> None:
    tx.lwm2m.end_all(node, now_ms=Milliseconds(NOW_MS), head=tx.messages.head())


@pytest.mark.parametrize(
    ("plan", "begin"),
    [
        (RolloutPlan(devices_per_minute=2), 2),
        (RolloutPlan(canary_devices=1), 1),
        (RolloutPlan(devices_per_minute=3, abort_percent=50), 3),
    ],
)
async def test_a_rollout_counts_the_devices_of_all_nodes(plan: RolloutPlan, begin: int) -> None:
    clock = FakeClock(NOW_MS)
    async with parts_of_a_cluster(2, follow=False) as parts:
        task = await parts[0].database.write(lambda tx: _task(tx, plan))
        nodes = [
            (part, Rollouts(part.database, clock.clock, Timers(lambda: 0), lambda _: False, _never, True))
            for part in parts
        ]
        begun = 0
        for number in range(6):
            part, rollouts = nodes[number % 2]
            begun += await part.database.write(
                lambda tx, rollouts=rollouts, number=number: _begin(tx, rollouts, task, number)  # type: ignore[misc]
            )
        assert begun == begin
        known = await nodes[1][1].of(task)
        assert known is not None
        assert (known.started, known.running, known.total) == (begin, begin, 6)


def _never(_task: int) -> None:
    raise AssertionError("nothing has failed")


def _task(tx: Transaction, plan: RolloutPlan) -> TaskRecord:
    request = TaskRequest(task_type="W", target="akc.update", expires_after=60, rollout=plan)
    now = Milliseconds(NOW_MS)
    content, type_ = encode_task_request(request), DeviceTypeKey(1)
    record = TaskRecord(0, "t" * 32, type_, content, TaskStatus.PROCESSING, now, now, None, now, "i", "CANARY")
    added = tx.tasks.add(record)
    tx.tasks.add_entries(added.key, [DeviceKey(one) for one in range(1, 7)], acceptance="NOT_REQUIRED", now_ms=NOW_MS)
    return added


def _begin(tx: Transaction, rollouts: Rollouts, task: TaskRecord, number: int) -> bool:
    if not rollouts.may_begin(tx, task, again=False):
        return False
    entry = tx.tasks.entry_of(task.key, DeviceKey(number + 1))
    assert entry is not None
    tx.tasks.put_entry(replace(entry, status=DeviceTaskStatus.PROCESSING, started_on=Milliseconds(NOW_MS)))
    return True
