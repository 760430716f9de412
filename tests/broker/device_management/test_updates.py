"""The firmware update step by step, with every failure of the table (reference 18.5)."""

import pytest
import trio
from trio.testing import MockClock

from broker.device_management.engine import ManagementEngine
from broker.device_management.objects import FIRMWARE_VERSION, PACKAGE_URI, RESULT, STATE, UPDATE
from broker.device_management.sessions import Readings, ResourcePath, ResourceValue
from broker.device_management.tasks import Task
from broker.errors import Conflict, NotFound, ValidationFailed
from broker.services import Services
from config.settings import Address
from tests.broker.device_management.devices import VERSION, FakeSession, Fleet, mock_time, register, settle
from tests.builders import ServicesOpener
from tests.factories import build_world
from tests.rows import each_row

ADDRESS = "http://localhost/v1.1/updates/urls/"


async def offered(fleet: Fleet, **members: object) -> tuple[Task, FakeSession]:
    """A device that has the address of its image and downloads it."""
    session = await fleet.register(fleet.devices[0])
    task = await fleet.update(**members)
    await settle()
    assert (await fleet.entry(task)).step == "DOWNLOAD"
    return task, session


async def back(
    fleet: Fleet, session: FakeSession, *, version: str = VERSION, state: int = 0, result: int = 1
) -> FakeSession:
    """The device reboots and registers again."""
    fleet.leave(session)
    await settle()
    again = FakeSession(session.device, {FIRMWARE_VERSION: version, STATE: state, RESULT: result})
    await fleet.management.registrations.registered(again)
    await settle()
    return again


async def test_an_update_from_its_offer_to_the_version_that_the_device_reports(
    fleet: Fleet, autojump_clock: MockClock
) -> None:
    task, session = await offered(fleet)
    entry = await fleet.entry(task)
    assert session.done == ["R /5/0/3", f"W /5/0/1 {ADDRESS}{entry.download}"]
    await fleet.say(session, state=2)
    await settle()
    assert session.done[-1] == "E /5/0/2"
    assert (await fleet.entry(task)).step == "REBOOT"
    await back(fleet, session)
    assert await fleet.steps(task) == ["QUEUED", "PROCESSING", "SUCCEEDED"]
    assert await fleet.task_status(task) == "COMPLETE"


@pytest.mark.parametrize(("protocol", "begin"), [("coaps", "coaps://localhost:5684/"), (None, "http://localhost/")])
async def test_the_address_is_that_of_the_protocol(
    fleet: Fleet, autojump_clock: MockClock, protocol: str | None, begin: str
) -> None:
    """A restart without the listener leaves the address of REST."""
    site = fleet.services.core.site
    site.listens_on({"coaps": Address("0.0.0.0", 5684)})  # noqa: S104 - nothing listens
    await fleet.had_registered()
    task = await fleet.update(protocol="coaps")
    await settle()
    if protocol is None:
        site.listens_on({})
    session = await fleet.register(fleet.devices[0])
    await settle()
    entry = await fleet.entry(task)
    assert session.done == ["R /5/0/3", f"W /5/0/1 {begin}v1.1/updates/urls/{entry.download}"]


async def test_without_notifications_the_device_is_asked_every_30_seconds(
    fleet: Fleet, autojump_clock: MockClock
) -> None:
    task, session = await offered(fleet)
    asked = len(session.done)
    await trio.sleep(29)
    assert len(session.done) == asked
    session.values[STATE] = 2
    await trio.sleep(2)
    assert "E /5/0/2" in session.done
    session.values |= {STATE: 0, RESULT: 1, FIRMWARE_VERSION: VERSION}  # without a reboot
    await trio.sleep(30)
    assert await fleet.status(task) == "SUCCEEDED"


@pytest.mark.parametrize("state", [1, 3])
async def test_another_update_is_waited_for(fleet: Fleet, state: int, autojump_clock: MockClock) -> None:
    session = await fleet.register(fleet.devices[0])
    session.values[STATE] = state
    task = await fleet.update()
    await trio.sleep(40)
    assert (await fleet.entry(task)).step == "CHECK"
    session.values[STATE] = 0
    await trio.sleep(30)
    assert (await fleet.entry(task)).step == "DOWNLOAD"


@pytest.mark.both_engines
async def test_an_image_that_is_there_already_is_replaced(fleet: Fleet, autojump_clock: MockClock) -> None:
    session = await fleet.register(fleet.devices[0])
    session.values[STATE] = 2
    task = await fleet.update()
    await settle()
    assert session.done[:2] == ["R /5/0/3", "W /5/0/1 "]
    assert (await fleet.entry(task)).step == "DOWNLOAD"


async def test_a_result_of_the_device_fails_with_its_number(services: Services, autojump_clock: MockClock) -> None:
    fleet = await Fleet.of(services, 8)
    sessions = [await fleet.register(device) for device in fleet.devices]
    task = await fleet.update()
    await settle()
    for result, session in enumerate(sessions, start=2):
        await fleet.say(session, state=0, result=result)
        await settle()
        assert (await fleet.steps(task, session.device))[-1] == f"FAILED UPDATE_RESULT_{result}"


async def test_a_result_after_the_installation_fails_too(fleet: Fleet, autojump_clock: MockClock) -> None:
    task, session = await offered(fleet)
    await fleet.say(session, state=2)
    await settle()
    await back(fleet, session, version="1.0", result=8)
    assert (await fleet.steps(task))[-1] == "FAILED UPDATE_RESULT_8"


@each_row(
    ("path", "code", "error"),
    [
        (STATE, "4.04", "PROPERTY_NOT_FOUND"),
        (STATE, "4.01", "DEVICE_ERROR"),
        (PACKAGE_URI, "4.06", "DEVICE_ERROR"),
        (PACKAGE_URI, "4.04", "DEVICE_ERROR"),
    ],
)
async def test_a_refusal_before_the_download_fails(
    fleet: Fleet, path: tuple[int, ...], code: str, error: str, autojump_clock: MockClock
) -> None:
    session = await fleet.register(fleet.devices[0])
    session.refuses[path] = code
    task = await fleet.update()
    await settle()
    assert (await fleet.steps(task))[-1] == f"FAILED {error}"


async def test_a_refusal_to_install_fails(fleet: Fleet, autojump_clock: MockClock) -> None:
    task, session = await offered(fleet)
    session.refuses[UPDATE] = "4.05"
    await fleet.say(session, state=2)
    await settle()
    assert (await fleet.steps(task))[-1] == "FAILED DEVICE_ERROR"


@pytest.mark.both_engines
async def test_a_deleted_image_fails_before_it_is_offered(fleet: Fleet, autojump_clock: MockClock) -> None:
    await fleet.had_registered()
    task = await fleet.update()
    image = await fleet.management.images.find(fleet.type, task.record.image or "")
    await fleet.services.core.database.write(lambda tx: tx.firmware.remove(image.id))
    await fleet.register(fleet.devices[0])
    await settle()
    assert (await fleet.steps(task))[-1] == "FAILED IMAGE_NOT_FOUND"


async def test_another_version_is_asked_for_three_times_and_fails(fleet: Fleet, autojump_clock: MockClock) -> None:
    task, session = await offered(fleet)
    await fleet.say(session, state=2)
    await settle()
    again = await back(fleet, session, version="1.0")
    await trio.sleep(9)
    assert again.done.count("R /3/0/3") == 1
    await trio.sleep(12)
    assert again.done.count("R /3/0/3") == 3
    entry = await fleet.entry(task)
    assert (entry.error_code, entry.error_message) == (
        "VERSION_MISMATCH",
        "The device reports version 1.0 instead of 2.0.",
    )


async def test_the_version_may_come_late(fleet: Fleet, autojump_clock: MockClock) -> None:
    task, session = await offered(fleet)
    await fleet.say(session, state=2)
    await settle()
    again = await back(fleet, session, version="1.0")
    again.values[FIRMWARE_VERSION] = VERSION
    await trio.sleep(11)
    assert await fleet.status(task) == "SUCCEEDED"


async def test_the_execute_may_get_no_answer(fleet: Fleet, autojump_clock: MockClock) -> None:
    task, session = await offered(fleet)
    await fleet.say(session, state=2)
    session.is_over = True  # it reboots at once
    await settle()
    assert await fleet.status(task) == "PROCESSING"
    await back(fleet, session)
    assert await fleet.status(task) == "SUCCEEDED"


@pytest.mark.both_engines
async def test_nothing_stays_in_memory_of_an_update_whose_device_left(fleet: Fleet, autojump_clock: MockClock) -> None:
    task, session = await offered(fleet, expires_after=60)
    work = fleet.management.registrations.work
    assert fleet.devices[0].key in work._updates
    fleet.leave(session)
    await trio.sleep(61)
    assert await fleet.status(task) == "FAILED"
    assert fleet.devices[0].key not in work._updates


@pytest.mark.parametrize(
    ("state", "step", "restarts"), [(0, "DOWNLOAD", 1), (1, "DOWNLOAD", 0), (2, "REBOOT", 0), (3, "REBOOT", 0)]
)
async def test_after_a_lost_download_the_state_of_the_device_says_how_to_go_on(
    fleet: Fleet, state: int, step: str, restarts: int, autojump_clock: MockClock
) -> None:
    task, session = await offered(fleet)
    fleet.leave(session)
    await settle()
    assert await fleet.status(task) == "PROCESSING"
    await back(fleet, session, version="1.0", state=state, result=0)
    entry = await fleet.entry(task)
    assert (entry.status, entry.step, entry.restarts, entry.attempts) == ("PROCESSING", step, restarts, restarts)


async def test_a_download_that_is_lost_again_and_again_fails(fleet: Fleet, autojump_clock: MockClock) -> None:
    task, session = await offered(fleet)
    address = (await fleet.entry(task)).download
    for _ in range(4):
        session = await back(fleet, session, version="1.0", result=0)
    entry = await fleet.entry(task)
    assert (entry.status, entry.error_code, entry.attempts) == ("FAILED", "DEVICE_TIMEOUT", 3)
    assert entry.download == address, "one address for each device task"


async def test_a_connection_that_is_lost_before_the_download_puts_it_back(
    fleet: Fleet, autojump_clock: MockClock
) -> None:
    session = await fleet.register(fleet.devices[0])
    session.sleep()
    task = await fleet.update()
    await settle()
    fleet.leave(session)
    await settle()
    entry = await fleet.entry(task)
    assert (entry.status, entry.attempts) == ("QUEUED", 1)


async def test_what_the_device_says_while_it_takes_the_address_is_not_lost(
    fleet: Fleet, autojump_clock: MockClock
) -> None:
    session = await fleet.register(fleet.devices[0])
    session.sleep()
    task = await fleet.update()
    await settle()
    session.values[STATE] = 0
    session.is_awake.set()
    while not any(done.startswith("W /5/0/1") for done in session.done):
        await trio.lowlevel.checkpoint()
    await fleet.say(session, state=0, result=7)
    await settle()
    assert (await fleet.steps(task))[-1] == "FAILED UPDATE_RESULT_7"


class _ReportingSession(FakeSession):
    """Its server reports what it reads, as it reports notifications."""

    registrations: ManagementEngine

    async def read(self, path: ResourcePath) -> Readings:
        found = await super().read(path)
        await self.registrations.receive_values(self.device, found)
        return found


async def test_what_the_server_reads_itself_causes_no_other_reads(fleet: Fleet, autojump_clock: MockClock) -> None:
    session = _ReportingSession(fleet.devices[0])
    session.registrations = fleet.management.registrations
    await register(fleet.services, session)
    task = await fleet.update()
    await trio.sleep(301)
    assert (await fleet.entry(task)).step == "DOWNLOAD"
    assert session.done.count("R /5/0/3") <= 1 + 10 + 2  # before the address, every 30 s, and at what was new


async def test_an_update_ends_when_it_expires(fleet: Fleet, autojump_clock: MockClock) -> None:
    task, _ = await offered(fleet, expires_after=60)
    await trio.sleep(61)
    assert (await fleet.steps(task))[-1] == "FAILED TASK_EXPIRED"


async def test_the_running_version_again_does_not_loop(fleet: Fleet, autojump_clock: MockClock) -> None:
    task, session = await offered(fleet)
    session.values[FIRMWARE_VERSION] = VERSION
    await fleet.say(session, state=0, result=1)  # it does not install what it runs
    await settle()
    assert await fleet.steps(task) == ["QUEUED", "PROCESSING", "SUCCEEDED"]


async def test_a_device_that_ignores_the_address_is_given_it_once(fleet: Fleet, autojump_clock: MockClock) -> None:
    """Some devices do nothing about an image of the version that they run."""
    task, session = await offered(fleet, expires_after=600)
    session.values |= {STATE: 0, RESULT: 0, FIRMWARE_VERSION: VERSION}
    await trio.sleep(601)
    assert sum(done.startswith("W /5/0/1") for done in session.done) == 1
    assert await fleet.steps(task) == ["QUEUED", "PROCESSING", "FAILED TASK_EXPIRED"]


async def test_a_cancelled_update_that_has_not_begun_ends(fleet: Fleet, autojump_clock: MockClock) -> None:
    session = await fleet.register(fleet.devices[0])
    session.values[STATE] = 1
    task = await fleet.update()
    await settle()
    await fleet.management.tasks.cancel_on(await fleet.entry(task))
    await settle()
    assert (await fleet.steps(task))[-1] == "CANCELLED"


async def test_a_cancelled_update_that_has_begun_has_its_real_outcome(fleet: Fleet, autojump_clock: MockClock) -> None:
    task, session = await offered(fleet)
    await fleet.management.tasks.cancel(task.record)
    await fleet.say(session, state=2)
    await settle()
    await back(fleet, session)
    assert (await fleet.steps(task))[-2:] == ["CANCEL_REQUESTED", "SUCCEEDED"]


@pytest.mark.both_engines
async def test_the_owner_accepts(fleet: Fleet, autojump_clock: MockClock) -> None:
    await fleet.register(fleet.devices[0])
    task = await fleet.update(needs_acceptance=True)
    younger = await fleet.task("deviceProperties.device.manufacturer")
    await settle()
    assert [await fleet.status(one) for one in (task, younger)] == ["QUEUED", "SUCCEEDED"]
    device = fleet.devices[0].key
    assert await fleet.management.tasks.waiting_for_acceptance(device) == [task.record.id]
    await fleet.management.tasks.answer(await fleet.entry(task), is_accepted=True)
    await settle()
    assert (await fleet.entry(task)).step == "DOWNLOAD"
    assert await fleet.management.tasks.waiting_for_acceptance(device) == []
    with pytest.raises(Conflict):
        await fleet.management.tasks.answer(await fleet.entry(task), is_accepted=True)


async def test_the_owner_rejects(fleet: Fleet, autojump_clock: MockClock) -> None:
    await fleet.register(fleet.devices[0])
    task = await fleet.update(needs_acceptance=True)
    await settle()
    await fleet.management.tasks.answer(await fleet.entry(task), is_accepted=False)
    assert await fleet.steps(task) == ["QUEUED", "FAILED UPDATE_REJECTED"]
    assert (await fleet.entry(task)).acceptance == "REJECTED"


async def test_updates_need_no_device_properties(services: Services, autojump_clock: MockClock) -> None:
    fleet = await Fleet.of(services, 1, enabled=False)
    await offered(fleet)


@pytest.mark.both_engines
async def test_an_image_of_another_type_or_none_is_refused(fleet: Fleet, autojump_clock: MockClock) -> None:
    with pytest.raises(NotFound):
        await fleet.task("akc.update", "W", update_id="f" * 32)
    image = await fleet.image()
    database = fleet.services.core.database
    await database.write(
        lambda tx: tx.connection.execute("UPDATE firmware_image SET device_type = 99 WHERE id = :id", {"id": image.id})
    )
    with pytest.raises(ValidationFailed):
        await fleet.task("akc.update", "W", update_id=image.id)


@pytest.mark.both_engines
async def test_the_address_is_gone_a_day_after_the_end(fleet: Fleet, autojump_clock: MockClock) -> None:
    task, session = await offered(fleet)
    address = (await fleet.entry(task)).download or ""
    await fleet.say(session, state=0, result=5)
    await settle()
    assert (await fleet.management.downloads.find(address)).image.version == VERSION
    await fleet.services.core.database.write(
        lambda tx: tx.connection.execute("UPDATE device_task SET ended_on = ended_on - 86400000")
    )
    with pytest.raises(NotFound):
        await fleet.management.downloads.find(address)


@pytest.mark.parametrize("step", ["DOWNLOAD", "REBOOT"])
async def test_an_update_goes_on_after_a_restart(opener: ServicesOpener, step: str, autojump_clock: MockClock) -> None:
    async with opener(clock=mock_time()) as services:
        await build_world(services.core.database, services.core.vault)
        before = await Fleet.of(services, 1)
        task, session = await offered(before)
        if step == "REBOOT":
            await before.say(session, state=2)
            await settle()
        assert (await before.entry(task)).step == step
    async with opener(clock=mock_time()) as services:
        fleet = Fleet(services, before.type)
        fleet.devices = [await services.devices.registry.find(before.devices[0].id)]
        values: dict[ResourcePath, ResourceValue] = {FIRMWARE_VERSION: VERSION, RESULT: 1}
        again = FakeSession(fleet.devices[0], {STATE: 2} if step == "DOWNLOAD" else values)
        await fleet.management.registrations.registered(again)
        await settle()
        if step == "DOWNLOAD":
            assert "E /5/0/2" in again.done
            await back(fleet, again)
        assert await fleet.status(task) == "SUCCEEDED"
        assert (await fleet.entry(task)).attempts == 0


async def test_an_answer_without_a_number_fails(fleet: Fleet, autojump_clock: MockClock) -> None:
    session = await fleet.register(fleet.devices[0])
    session.values[STATE] = "idle"
    task = await fleet.update()
    await settle()
    entry = await fleet.entry(task)
    assert (entry.error_code, entry.error_message) == (
        "DEVICE_ERROR",
        "The device's answer for /5/0/3 is not a number.",
    )
