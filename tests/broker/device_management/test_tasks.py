"""Every transition of tasks and device tasks (reference 15.2)."""

from types import SimpleNamespace
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from broker.device_management.configuration import ConfigurationChange
from broker.device_management.engine import ManagementEngine
from broker.device_management.states import MAY_FOLLOW, TASK_MAY_FOLLOW, DeviceTaskStatus, TaskStatus
from broker.errors import Conflict, DeviceNotFound, ValidationFailed
from broker.services import Services
from tests.broker.device_management.devices import Fleet, mock_time, settle
from tests.builders import ServicesOpener
from tests.factories import NOW_MS, build_world
from tests.rows import each_row

pytestmark = pytest.mark.slow


MANUFACTURER = "deviceProperties.device.manufacturer"
OFFSET = "deviceProperties.device.utcOffset"


async def test_a_read_stores_what_the_device_answers(fleet: Fleet, autojump_clock: MockClock) -> None:
    session = await fleet.register(fleet.devices[0])
    task = await fleet.task(MANUFACTURER)
    await settle()
    assert await fleet.steps(task) == ["QUEUED", "PROCESSING", "SUCCEEDED"]
    assert session.done == ["R /3/0/0"]
    sets = await fleet.management.properties.of(fleet.devices[0], with_times=False)
    assert sets.reported == {"device": {"manufacturer": "Acme"}}
    assert await fleet.task_status(task) == "COMPLETE"


async def test_operations_reach_the_resource(fleet: Fleet, autojump_clock: MockClock) -> None:
    session = await fleet.register(fleet.devices[0])
    for target, kind, value, done in (
        ("deviceProperties.device", "R", None, "R /3/0"),
        (OFFSET, "W", "+01:00", "W /3/0/14 +01:00"),
        ("deviceProperties.device.reboot", "E", None, "E /3/0/4"),
        ("deviceProperties.connectivityStatistics.collectionPeriod", "W", "60", "W /7/0/8 60"),
        ("deviceProperties.firmwareUpdate.updateSupportedObjects", "W", "true", "W /5/0/4 True"),
        ("deviceProperties.object3303.0.5605", "E", None, "E /3303/0/5605"),
        ("deviceProperties.temperature.1.resetMinAndMaxMeasuredValues", "E", None, "E /3303/1/5605"),
        ("deviceProperties.object4242.0.1", "W", "x", "W /4242/0/1 x"),
    ):
        session.done.clear()
        task = await fleet.task(target, kind, value=value)
        await settle()
        assert (await fleet.status(task), session.done) == ("SUCCEEDED", [done])


async def test_the_devices_of_a_task_are_found_in_one_statement(services: Services, statements: list[str]) -> None:
    fleet = await Fleet.of(services, 60)
    statements.clear()
    task = await fleet.task(MANUFACTURER)
    await settle()
    assert await fleet.task_status(task) == "COMPLETE"  # none has ever registered
    assert {await fleet.status(task, device) for device in fleet.devices} == {"FAILED"}
    # At the creation, when the devices become fixed, and the above.
    assert sum("FROM device AS d" in one for one in statements) < 10


WRONG: Final[list[tuple[str, str, dict[str, object], str]]] = [
    (MANUFACTURER, "W", {"value": "x"}, "property"),
    ("deviceProperties.device.nothing", "R", {}, "property"),
    ("deviceProperties.object3.0.0", "R", {}, "property"),
    ("deviceProperties.object0.0.5", "R", {}, "property"),
    (OFFSET, "E", {}, "property"),
    (OFFSET, "W", {}, "taskParameters.value"),
    ("deviceProperties.connectivityStatistics.collectionPeriod", "W", {"value": "x"}, "taskParameters.value"),
    ("deviceProperties.firmwareUpdate.packageURI", "W", {"value": "x" * 256}, "taskParameters.value"),
    ("deviceProperties.device.timezone", "W", {"value": "é" * 513}, "taskParameters.value"),
    ("nothing", "R", {}, "property"),
    ("serverProperties.a b", "R", {}, "property"),
    ("serverProperties.a", "E", {}, "taskType"),
    ("serverProperties.a", "W", {}, "taskParameters.value"),
    (MANUFACTURER, "X", {}, "taskType"),
    (MANUFACTURER, "R", {"expires_after": 59}, "taskParameters.expiresAfter"),
    (MANUFACTURER, "R", {"expires_after": 604_801}, "taskParameters.expiresAfter"),
    (MANUFACTURER, "R", {"filter": "systemProperties.did=x"}, "filter"),
    (MANUFACTURER, "R", {"dids": None, "filter": "did=x"}, "filter"),
    (MANUFACTURER, "R", {"dids": None, "filter": "serverProperties.a=b," * 21}, "filter"),
    (MANUFACTURER, "R", {"dids": None, "filter": f"serverProperties.{'a.' * 2500}a=b"}, "filter"),
    (MANUFACTURER, "R", {"at": NOW_MS}, "scheduledOn"),
    (MANUFACTURER, "R", {"at": NOW_MS + 366 * 86_400_000}, "scheduledOn"),
    (MANUFACTURER, "R", {"needs_acceptance": True}, "needsAcceptance"),
    (MANUFACTURER, "R", {"update_id": "f" * 32}, "taskParameters.update"),
    ("akc.update", "W", {}, "taskParameters.update.updateId"),
]


async def test_what_is_wrong_with_a_task_is_said_at_its_creation(fleet: Fleet, autojump_clock: MockClock) -> None:
    for target, kind, members, field in WRONG:
        with pytest.raises(ValidationFailed) as refused:
            await fleet.task(target, kind, **members)  # type: ignore[arg-type]
        assert [finding.field for finding in refused.value.findings] == [field], (target, kind, members)


async def test_device_properties_need_to_be_enabled(services: Services, autojump_clock: MockClock) -> None:
    fleet = await Fleet.of(services, 1, enabled=False)
    with pytest.raises(ValidationFailed):
        await fleet.task(MANUFACTURER)


async def test_devices_that_the_task_names_must_exist(fleet: Fleet, autojump_clock: MockClock) -> None:
    with pytest.raises(DeviceNotFound):
        await fleet.task(MANUFACTURER, dids=("f" * 32,))


async def test_a_device_that_never_registered_fails_at_once(fleet: Fleet, autojump_clock: MockClock) -> None:
    task = await fleet.task(MANUFACTURER)
    await settle()
    assert await fleet.steps(task) == ["QUEUED", "FAILED DEVICE_NOT_REGISTERED"]
    assert await fleet.task_status(task) == "COMPLETE"


@pytest.mark.both_engines
async def test_a_device_that_is_away_is_waited_for_until_the_task_expires(
    fleet: Fleet, autojump_clock: MockClock
) -> None:
    await fleet.had_registered()
    task = await fleet.task(MANUFACTURER, expires_after=60)
    await settle()
    assert await fleet.status(task) == "QUEUED"
    await trio.sleep(59.9)
    assert await fleet.status(task) == "QUEUED"
    await trio.sleep(0.2)
    assert await fleet.steps(task) == ["QUEUED", "FAILED TASK_EXPIRED"]


async def test_a_device_that_comes_back_is_asked(fleet: Fleet, autojump_clock: MockClock) -> None:
    await fleet.had_registered()
    task = await fleet.task(MANUFACTURER)
    await settle()
    await fleet.register(fleet.devices[0])
    await settle()
    assert await fleet.status(task) == "SUCCEEDED"


async def test_a_refusal_fails_with_its_code(fleet: Fleet, autojump_clock: MockClock) -> None:
    session = await fleet.register(fleet.devices[0])
    session.refuses = {(3, 0, 14): "4.05", (3, 0, 15): "4.04"}
    refused = await fleet.task(OFFSET, "W", value="x")
    unknown = await fleet.task("deviceProperties.device.timezone", "W", value="x")
    await settle()
    entries = [await fleet.entry(task) for task in (refused, unknown)]
    assert [entry.error_code for entry in entries] == ["DEVICE_ERROR", "PROPERTY_NOT_FOUND"]
    assert "4.05" in (entries[0].error_message or "")


async def test_after_a_communication_failure_the_next_registration_tries_again(
    fleet: Fleet, autojump_clock: MockClock
) -> None:
    session = await fleet.register(fleet.devices[0])
    session.sleep()
    task = await fleet.task(MANUFACTURER)
    await settle()
    assert await fleet.status(task) == "PROCESSING"
    fleet.leave(session)
    await settle()
    entry = await fleet.entry(task)
    assert (entry.status, entry.attempts, entry.error_code) == ("QUEUED", 1, "DEVICE_TIMEOUT")
    await fleet.register(fleet.devices[0])
    await settle()
    assert await fleet.steps(task) == ["QUEUED", "PROCESSING", "QUEUED DEVICE_TIMEOUT", "PROCESSING", "SUCCEEDED"]


async def test_a_device_that_is_lost_ends_failed_with_its_attempts_counted(
    fleet: Fleet, autojump_clock: MockClock
) -> None:
    task = None
    for _ in range(2):
        session = await fleet.register(fleet.devices[0])
        session.sleep()
        task = task or await fleet.task(MANUFACTURER, expires_after=60)
        await settle()
        fleet.leave(session)
        await settle()
    assert task is not None
    await trio.sleep(61)
    entry = await fleet.entry(task)
    assert (entry.status, entry.error_code, entry.attempts) == ("FAILED", "TASK_EXPIRED", 2)
    assert await fleet.task_status(task) == "COMPLETE"


async def test_a_value_that_cannot_be_sent_fails_at_once(fleet: Fleet, autojump_clock: MockClock) -> None:
    """A value that the session refuses to send is not tried again at each registration."""
    session = await fleet.register(fleet.devices[0])
    session.cannot_send = True
    task = await fleet.task(OFFSET, "W", value="x")
    await settle()
    assert await fleet.steps(task) == ["QUEUED", "PROCESSING", "FAILED DEVICE_ERROR"]


async def test_an_update_of_the_registration_tries_again_too(fleet: Fleet, autojump_clock: MockClock) -> None:
    session = await fleet.register(fleet.devices[0])
    session.is_over = True  # it does not answer
    task = await fleet.task(MANUFACTURER)
    await settle()
    session.is_over = False
    await settle()
    await fleet.management.registrations.registered(session)
    await settle()
    assert await fleet.status(task) == "SUCCEEDED"


async def test_an_operation_ends_when_the_task_expires(fleet: Fleet, autojump_clock: MockClock) -> None:
    session = await fleet.register(fleet.devices[0])
    session.sleep()
    task = await fleet.task(MANUFACTURER, expires_after=60)
    younger = await fleet.task(OFFSET, "W", value="x")
    await trio.sleep(61)
    assert await fleet.steps(task) == ["QUEUED", "PROCESSING", "FAILED TASK_EXPIRED"]
    session.is_awake.set()
    await settle()
    assert await fleet.status(younger) == "SUCCEEDED"


async def test_the_oldest_device_task_of_a_device_goes_first_and_alone(fleet: Fleet, autojump_clock: MockClock) -> None:
    session = await fleet.register(fleet.devices[0])
    session.sleep()
    tasks = [await fleet.task(OFFSET, "W", value=value) for value in "abc"]
    await settle()
    assert [await fleet.status(task) for task in tasks] == ["PROCESSING", "QUEUED", "QUEUED"]
    session.is_awake.set()
    await settle()
    assert session.done == ["W /3/0/14 a", "W /3/0/14 b", "W /3/0/14 c"]


@pytest.mark.both_engines
async def test_cancelling_what_waits_and_what_is_under_way(services: Services, autojump_clock: MockClock) -> None:
    fleet = await Fleet.of(services, 2)
    waiting, working = fleet.devices
    await fleet.had_registered(waiting)
    session = await fleet.register(working)
    session.sleep()
    task = await fleet.task(MANUFACTURER)
    await settle()
    await fleet.management.tasks.cancel(task.record)
    assert await fleet.task_status(task) == "CANCELLED"
    assert await fleet.steps(task, waiting) == ["QUEUED", "CANCEL_REQUESTED", "CANCELLED"]
    assert await fleet.status(task, working) == "CANCEL_REQUESTED"
    session.is_awake.set()
    await settle()
    assert await fleet.steps(task, working) == ["QUEUED", "PROCESSING", "CANCEL_REQUESTED", "SUCCEEDED"]
    with pytest.raises(Conflict):
        await fleet.management.tasks.cancel(task.record)


async def test_cancelling_on_one_device_leaves_the_others(services: Services, autojump_clock: MockClock) -> None:
    fleet = await Fleet.of(services, 2)
    await fleet.had_registered()
    task = await fleet.task(MANUFACTURER)
    await settle()
    moved = await fleet.management.tasks.cancel_on(await fleet.entry(task))
    assert moved.status == "CANCELLED"
    assert await fleet.status(task, fleet.devices[1]) == "QUEUED"
    with pytest.raises(Conflict):
        await fleet.management.tasks.cancel_on(await fleet.entry(task))


async def test_a_cancelled_operation_whose_connection_fails_is_cancelled(
    fleet: Fleet, autojump_clock: MockClock
) -> None:
    session = await fleet.register(fleet.devices[0])
    session.sleep()
    task = await fleet.task(MANUFACTURER)
    await settle()
    await fleet.management.tasks.cancel_on(await fleet.entry(task))
    fleet.leave(session)
    await settle()
    assert (await fleet.steps(task))[-2:] == ["CANCEL_REQUESTED", "CANCELLED DEVICE_TIMEOUT"]


async def test_a_scheduled_task_begins_at_its_time_and_expires_after_it(
    fleet: Fleet, autojump_clock: MockClock
) -> None:
    await fleet.had_registered()
    task = await fleet.task(MANUFACTURER, at=NOW_MS + 600_000, expires_after=60)
    await trio.sleep(599)
    assert await fleet.task_status(task) == "SCHEDULED"
    await trio.sleep(2)
    assert await fleet.status(task) == "QUEUED"
    await trio.sleep(60)
    assert await fleet.status(task) == "FAILED"


async def test_a_scheduled_task_can_be_cancelled(fleet: Fleet, autojump_clock: MockClock) -> None:
    task = await fleet.task(MANUFACTURER, at=NOW_MS + 600_000)
    await fleet.management.tasks.cancel(task.record)
    await trio.sleep(601)
    assert await fleet.task_status(task) == "CANCELLED"


@pytest.mark.both_engines
async def test_a_task_without_a_device_is_complete(fleet: Fleet, autojump_clock: MockClock) -> None:
    task = await fleet.task(MANUFACTURER, dids=None, filter="serverProperties.site=nowhere")
    await settle()
    shown = await fleet.management.tasks.shown(task.record)
    assert (shown.record.status, shown.counts.total) == ("COMPLETE", 0)


async def test_server_properties_need_no_device(
    services: Services, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("engine", "queueing"):
        monkeypatch.setattr(f"broker.device_management.{module}.BATCH", 20)
    fleet = await Fleet.of(services, 45)  # more than one batch
    task = await fleet.task("serverProperties.site.floor", "W", value="3")
    read = await fleet.task("serverProperties.site.floor", "read")
    missing = await fleet.task("serverProperties.nothing", "READ")
    await settle()
    counts = [(await fleet.management.tasks.shown(one.record)).counts for one in (task, read, missing)]
    assert [(one.total, one.succeeded, one.failed) for one in counts] == [(45, 45, 0), (45, 45, 0), (45, 0, 45)]
    sets = await fleet.management.properties.of(fleet.devices[-1], with_times=True)
    assert sets.server == {"site": {"floor": {"value": "3", "ts": NOW_MS}}}


@pytest.mark.both_engines
async def test_a_filter_chooses_the_devices(services: Services, autojump_clock: MockClock) -> None:
    fleet = await Fleet.of(services, 3)
    for device, floor in zip(fleet.devices, ("3", "4", "13"), strict=True):
        await fleet.management.properties.merge(device, {"site": {"floor": floor}})
    task = await fleet.task(
        "serverProperties.seen", "W", value="yes", dids=None, filter="serverProperties.site.floor=3"
    )
    await settle()
    _, found, _ = await fleet.management.tasks.entries(task.record, status=None, dids=None, offset=0, count=10)
    assert [did for did, _ in found] == [fleet.devices[0].id, fleet.devices[2].id]


async def test_the_tasks_of_a_deleted_device_fail(fleet: Fleet, autojump_clock: MockClock) -> None:
    await fleet.had_registered()
    task = await fleet.task(MANUFACTURER)
    await settle()
    await fleet.services.devices.inventory.delete(fleet.devices[0])
    await settle()
    found = await fleet.services.core.database.read(lambda tx: tx.tasks.entry_of(task.record.key, fleet.devices[0].key))
    assert found is not None
    assert (found.status, found.error_code) == ("FAILED", "DEVICE_DELETED")


async def test_tasks_wait_while_device_properties_are_switched_off(fleet: Fleet, autojump_clock: MockClock) -> None:
    await fleet.had_registered()
    task = await fleet.task(MANUFACTURER)
    await fleet.management.configurations.change(fleet.type, ConfigurationChange(device_properties_enabled=False))
    await fleet.register(fleet.devices[0])
    await settle()
    assert await fleet.status(task) == "QUEUED"


@pytest.mark.both_engines
async def test_a_failing_device_does_not_fill_the_history(fleet: Fleet, autojump_clock: MockClock) -> None:
    task = None
    for _ in range(60):
        session = await fleet.register(fleet.devices[0])
        session.sleep()
        task = task or await fleet.task(MANUFACTURER)
        await settle()
        fleet.leave(session)
        await settle()
    assert task is not None
    rows = await fleet.history(task)
    assert len(rows) < 50
    assert max(row.attempts for row in rows) == 60


@pytest.mark.both_engines
async def test_a_restart_goes_on(opener: ServicesOpener, autojump_clock: MockClock) -> None:
    async with opener(clock=mock_time()) as services:
        await build_world(services.core.database, services.core.vault)
        before = await Fleet.of(services, 2)
        session = await before.register(before.devices[0])
        await before.had_registered(before.devices[1])
        session.sleep()
        interrupted = await before.task(MANUFACTURER, expires_after=600)
        scheduled = await before.task(MANUFACTURER, at=NOW_MS + 60_000, expires_after=600)
        await settle()
        assert await before.status(interrupted) == "PROCESSING"
    async with opener(clock=mock_time()) as services:
        fleet = Fleet(services, before.type)
        fleet.devices = [await services.devices.registry.find(device.id) for device in before.devices]
        assert (await fleet.steps(interrupted))[-1] == "QUEUED DEVICE_TIMEOUT"
        await fleet.register(fleet.devices[0])
        await settle()
        assert await fleet.status(interrupted) == "SUCCEEDED"
        await trio.sleep(61)
        assert await fleet.status(scheduled) == "SUCCEEDED"
        await trio.sleep(600)
        assert (await fleet.steps(interrupted, fleet.devices[1]))[-1] == "FAILED TASK_EXPIRED"
        assert await fleet.task_status(scheduled) == "COMPLETE"


@pytest.mark.both_engines
async def test_a_node_that_stops_puts_back_what_is_under_way(
    fleet: Fleet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others do not bury it: the operation would seem to be under way until the device has registered again."""
    session = await fleet.register(fleet.devices[0])
    session.sleep()
    task = await fleet.task(MANUFACTURER)
    await settle()
    assert await fleet.status(task) == "PROCESSING"
    engine = fleet.management.registrations
    assert isinstance(engine, ManagementEngine)
    monkeypatch.setattr(engine, "_shared", SimpleNamespace(instance=""))
    monkeypatch.setattr(engine, "_put_back_interrupted", trio.lowlevel.checkpoint)  # of nodes that have ended before
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.work_forever)
        assert await fleet.status(task) == "PROCESSING"
        nursery.cancel_scope.cancel()
    assert (await fleet.steps(task))[-1] == "QUEUED DEVICE_TIMEOUT"


@each_row("before", DeviceTaskStatus)
@each_row("after", DeviceTaskStatus)
def test_the_end_is_the_end(before: DeviceTaskStatus, after: DeviceTaskStatus) -> None:
    is_end = before in {DeviceTaskStatus.SUCCEEDED, DeviceTaskStatus.FAILED, DeviceTaskStatus.CANCELLED}
    assert not (is_end and after in MAY_FOLLOW[before])


def test_every_task_can_end() -> None:
    for status, following in TASK_MAY_FOLLOW.items():
        is_end = status in {TaskStatus.COMPLETE, TaskStatus.CANCELLED}
        assert is_end is (not following)
        assert is_end or TaskStatus.CANCELLED in following
