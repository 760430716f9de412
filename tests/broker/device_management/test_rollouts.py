"""Staged roll-outs (reference 18.5)."""

from collections import Counter

import pytest
import trio
from trio.testing import MockClock

from broker.clock import Clock
from broker.device_management.objects import FIRMWARE_VERSION, STATE
from broker.device_management.requests import RolloutPlan
from broker.device_management.rollouts import Rollout, RolloutPhase
from broker.device_management.states import DeviceTaskStatus
from broker.errors import Conflict, ValidationFailed
from broker.services import Services
from storage.keys import Milliseconds
from storage.records import AuditFilter
from tests.broker.device_management.devices import VERSION, FakeSession, Fleet, mock_time, settle
from tests.builders import ServicesOpener
from tests.factories import build_world
from tests.properties import examples

pytestmark = pytest.mark.slow


async def statuses(fleet: Fleet, task_key: int) -> dict[str, int]:
    return await fleet.services.core.database.read(lambda tx: tx.tasks.counts(task_key))


def working(sessions: list[FakeSession]) -> list[FakeSession]:
    """The downloading devices. It is left open which connected devices begin first."""
    return [session for session in sessions if session.values[STATE] == 1]


async def finish(fleet: Fleet, session: FakeSession, *, result: int = 1) -> None:
    """The device downloads and installs, or says why not."""
    await fleet.say(session, state=0, result=result)
    if result == 1:
        session.values[FIRMWARE_VERSION] = VERSION
        await fleet.say(session, state=2)
        await settle()
        await fleet.say(session, state=0, result=1)
    await settle()


async def test_so_many_devices_begin_in_a_minute(services: Services, autojump_clock: MockClock) -> None:
    fleet = await Fleet.of(services, 7)
    for device in fleet.devices:
        await fleet.register(device)
    task = await fleet.update(rollout=RolloutPlan(devices_per_minute=3))
    await settle()
    assert await statuses(fleet, task.record.key) == {"PROCESSING": 3, "QUEUED": 4}
    await trio.sleep(59)
    assert await statuses(fleet, task.record.key) == {"PROCESSING": 3, "QUEUED": 4}
    await trio.sleep(2)
    assert await statuses(fleet, task.record.key) == {"PROCESSING": 6, "QUEUED": 1}
    await trio.sleep(60)
    assert await statuses(fleet, task.record.key) == {"PROCESSING": 7}


@pytest.mark.both_engines
async def test_a_clock_that_is_set_back_by_a_year_holds_no_roll_out_up(
    opener: ServicesOpener, autojump_clock: MockClock
) -> None:
    wall, set_back_ms = mock_time(), 0
    clock = Clock(lambda: Milliseconds(wall.now_ms() - set_back_ms), wall.steady_ms)
    async with opener(clock=clock) as services:
        await build_world(services.core.database, services.core.vault)
        fleet = await Fleet.of(services, 4)
        for device in fleet.devices:
            await fleet.register(device)
        task = await fleet.update(rollout=RolloutPlan(devices_per_minute=2))
        await settle()
        set_back_ms = 365 * 86_400_000
        assert await statuses(fleet, task.record.key) == {"PROCESSING": 2, "QUEUED": 2}
        await trio.sleep(61)
        assert await statuses(fleet, task.record.key) == {"PROCESSING": 4}


@pytest.mark.both_engines
async def test_a_device_that_is_away_leaves_its_turn_to_the_next(services: Services, autojump_clock: MockClock) -> None:
    fleet = await Fleet.of(services, 3)
    sessions = [await fleet.register(device) for device in fleet.devices]
    task = await fleet.update(rollout=RolloutPlan(devices_per_minute=1))
    await settle()
    (first,) = working(sessions)
    away, there = (session for session in sessions if session is not first)
    fleet.leave(away)
    await trio.sleep(121)
    assert [await fleet.status(task, one.device) for one in (first, away, there)] == [
        "PROCESSING",
        "QUEUED",
        "PROCESSING",
    ]


async def test_the_canary_devices_go_first_and_the_others_follow_their_success(
    services: Services, autojump_clock: MockClock
) -> None:
    fleet = await Fleet.of(services, 5)
    sessions = [await fleet.register(device) for device in fleet.devices]
    task = await fleet.update(rollout=RolloutPlan(canary_devices=2, canary_success_percent=50))
    await settle()
    assert await statuses(fleet, task.record.key) == {"PROCESSING": 2, "QUEUED": 3}
    first, second = working(sessions)
    await finish(fleet, first)
    assert await statuses(fleet, task.record.key) == {"SUCCEEDED": 1, "PROCESSING": 1, "QUEUED": 3}
    await finish(fleet, second, result=5)
    assert await statuses(fleet, task.record.key) == {"SUCCEEDED": 1, "FAILED": 1, "PROCESSING": 3}


async def test_too_few_canary_devices_pause_the_rollout_until_the_operator_lets_it_go_on(
    services: Services, autojump_clock: MockClock
) -> None:
    fleet = await Fleet.of(services, 4)
    sessions = [await fleet.register(device) for device in fleet.devices]
    task = await fleet.update(rollout=RolloutPlan(canary_devices=2))
    await settle()
    first, second = working(sessions)
    await finish(fleet, first)
    await finish(fleet, second, result=5)
    await trio.sleep(600)
    assert await statuses(fleet, task.record.key) == {"SUCCEEDED": 1, "FAILED": 1, "QUEUED": 2}
    shown = await fleet.management.tasks.shown(task.record)
    await fleet.management.tasks.continue_rollout(shown.record)
    (audited,) = await services.core.audit.find(AuditFilter(0, 2**62, 10, event="rollout_continued"))
    assert audited.object == f"task {task.record.id}"
    await settle()
    assert await statuses(fleet, task.record.key) == {"SUCCEEDED": 1, "FAILED": 1, "PROCESSING": 2}
    with pytest.raises(Conflict):
        await fleet.management.tasks.continue_rollout(shown.record)


async def test_a_restart_remembers_the_pause(opener: ServicesOpener, autojump_clock: MockClock) -> None:
    async with opener(clock=mock_time()) as services:
        await build_world(services.core.database, services.core.vault)
        before = await Fleet.of(services, 3)
        sessions = [await before.register(device) for device in before.devices]
        task = await before.update(rollout=RolloutPlan(canary_devices=1))
        await settle()
        (canary,) = working(sessions)
        await finish(before, canary, result=5)
    async with opener(clock=mock_time()) as services:
        fleet = Fleet(services, before.type)
        for device in before.devices:
            await fleet.register(await services.devices.registry.find(device.id))
        await settle()
        assert await statuses(fleet, task.record.key) == {"FAILED": 1, "QUEUED": 2}


@pytest.mark.both_engines
async def test_a_thousand_devices_of_which_one_in_twenty_fails_stop_within_one_batch(
    services: Services, autojump_clock: MockClock
) -> None:
    """5 % fail. 1 % are allowed, 10 devices; so at most 10 + 50 fail. In daily use a fifth of them."""
    size = max(200, examples(1000))
    batch, allowed = size // 20, size // 100
    fleet = await Fleet.of(services, size)
    sessions = [await fleet.register(device) for device in fleet.devices]
    plan = RolloutPlan(devices_per_minute=batch, abort_percent=1)
    task = await fleet.update(rollout=plan, expires_after=604_800)
    await settle()
    begun_at_most = finished = 0
    for _ in range(10):
        begun = working(sessions)
        begun_at_most = max(begun_at_most, len(begun))
        for session in begun:
            finished += 1  # whichever device it is
            await finish(fleet, session, result=5 if finished % 20 == 0 else 1)
        await trio.sleep(61)
    counts = await statuses(fleet, task.record.key)
    assert begun_at_most == batch
    assert allowed < counts["FAILED"] <= allowed + batch
    assert counts["FAILED"] + counts["SUCCEEDED"] + counts["CANCELLED"] == size
    assert counts["CANCELLED"] > 0.6 * size
    assert await fleet.task_status(task) == "COMPLETE"
    _, cancelled, _ = await fleet.management.tasks.entries(
        task.record, status="CANCELLED", dids=None, offset=0, count=size
    )
    assert {entry.error_code for _, entry in cancelled} == {"ROLLOUT_ABORTED"}


async def test_devices_that_hang_stop_the_rollout_too(services: Services, autojump_clock: MockClock) -> None:
    fleet = await Fleet.of(services, 6)
    for device in fleet.devices:
        await fleet.register(device)
    task = await fleet.update(rollout=RolloutPlan(devices_per_minute=2, abort_percent=50))
    await trio.sleep(600)
    assert await statuses(fleet, task.record.key) == {"PROCESSING": 2, "QUEUED": 4}


async def test_numbers_out_of_range_are_refused(fleet: Fleet, autojump_clock: MockClock) -> None:
    for plan, field in (
        (RolloutPlan(devices_per_minute=0), "devicesPerMinute"),
        (RolloutPlan(canary_devices=0), "canaryDevices"),
        (RolloutPlan(canary_success_percent=101), "canarySuccessPercent"),
        (RolloutPlan(abort_percent=-1), "abortPercent"),
    ):
        with pytest.raises(ValidationFailed) as refused:
            await fleet.update(rollout=plan)
        assert [one.field for one in refused.value.findings] == [f"taskParameters.update.rollout.{field}"]


def test_what_did_not_begin_takes_no_place() -> None:
    rollout = Rollout(RolloutPlan(devices_per_minute=1), RolloutPhase.OPEN, total=2, started={})
    assert rollout.may_begin(0)
    rollout.begin(0)
    assert not rollout.may_begin(0)
    rollout.undo_begin()
    assert rollout.may_begin(0)


def test_counts_of_the_store_say_where_a_rollout_is() -> None:
    succeeded, failed = DeviceTaskStatus.SUCCEEDED, DeviceTaskStatus.FAILED
    plan = RolloutPlan(canary_devices=2, abort_percent=40)

    def phase(*started: str) -> RolloutPhase:
        return Rollout(plan, RolloutPhase.CANARY, total=10, started=Counter(started)).phase

    assert phase() is RolloutPhase.CANARY
    assert phase(succeeded) is RolloutPhase.CANARY
    assert phase(succeeded, succeeded) is RolloutPhase.OPEN
    assert phase(succeeded, failed) is RolloutPhase.PAUSED
    assert phase(failed, failed, failed, failed, failed) is RolloutPhase.ABORTED
