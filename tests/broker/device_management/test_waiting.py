"""Ten causes of "not updated", and the sentence for each (reference 15.2)."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from broker.device_management.objects import STATE
from broker.device_management.requests import RolloutPlan
from broker.device_management.tasks import Task
from broker.services import Services
from tests.broker.device_management.devices import FakeSession, Fleet, settle

Cause = Callable[[Fleet], Awaitable[Task]]


async def never_connected_again(fleet: Fleet) -> Task:
    await fleet.had_registered()
    return await fleet.update()


async def not_accepted(fleet: Fleet) -> Task:
    await fleet.register(fleet.devices[0])
    return await fleet.update(needs_acceptance=True)


async def busy_with_an_older_task(fleet: Fleet) -> Task:
    session = await fleet.register(fleet.devices[0])
    session.sleep()
    await fleet.task("deviceProperties.device.manufacturer")
    await settle()
    return await fleet.update()


async def busy_with_another_update(fleet: Fleet) -> Task:
    session = await fleet.register(fleet.devices[0])
    session.values[STATE] = 3
    return await fleet.update()


async def sleeps(fleet: Fleet) -> Task:
    session = await fleet.register(fleet.devices[0])
    session.sleep()
    session.is_asleep = True
    return await fleet.task("deviceProperties.device.manufacturer")


async def did_not_answer(fleet: Fleet) -> Task:
    session = await fleet.register(fleet.devices[0])
    session.sleep()
    task = await fleet.task("deviceProperties.device.manufacturer")
    await settle()
    fleet.leave(session)
    await settle()
    return task


async def does_not_fetch(fleet: Fleet) -> Task:
    await fleet.register(fleet.devices[0])
    return await fleet.update()


async def fetches_slowly(fleet: Fleet) -> Task:
    task = await does_not_fetch(fleet)
    await settle()
    fleet.management.downloads.sent(await fleet.entry(task), 400, 400)
    return task


async def lost_while_it_fetched(fleet: Fleet) -> Task:
    session = await fleet.register(fleet.devices[0])
    task = await fleet.update()
    await settle()
    fleet.management.downloads.sent(await fleet.entry(task), 400, 400)
    fleet.leave(session)
    return task


async def does_not_come_back(fleet: Fleet) -> Task:
    session = await fleet.register(fleet.devices[0])
    task = await fleet.update()
    await settle()
    await fleet.say(session, state=2)
    await settle()
    return task


async def reports_another_version(fleet: Fleet) -> Task:
    session = await fleet.register(fleet.devices[0])
    task = await fleet.update()
    await settle()
    await fleet.say(session, state=2)
    await settle()
    fleet.leave(session)
    await fleet.management.registrations.registered(FakeSession(fleet.devices[0]))
    return task


async def waits_for_the_canary(fleet: Fleet) -> Task:
    return await _rolled_out(fleet, RolloutPlan(canary_devices=1))


async def waits_for_its_minute(fleet: Fleet) -> Task:
    return await _rolled_out(fleet, RolloutPlan(devices_per_minute=1))


async def waits_for_a_place(fleet: Fleet) -> Task:
    task = await _rolled_out(fleet, RolloutPlan(devices_per_minute=1, abort_percent=50))
    await trio.sleep(61)
    return task


async def waits_in_a_paused_rollout(fleet: Fleet) -> Task:
    canary = await fleet.register(fleet.devices[1])
    task = await fleet.update(rollout=RolloutPlan(canary_devices=1, canary_success_percent=90))
    await settle()
    await fleet.say(canary, state=0, result=5)
    await fleet.register(fleet.devices[0])
    return task


async def _rolled_out(fleet: Fleet, plan: RolloutPlan) -> Task:
    await fleet.register(fleet.devices[1])
    task = await fleet.update(rollout=plan)
    await settle()
    await fleet.register(fleet.devices[0])
    return task


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (never_connected_again, "The device is not connected; it was last seen at an unknown time."),
        (not_accepted, "The owner of the device has not accepted the update yet."),
        (busy_with_an_older_task, "The device is busy with the older task "),
        (busy_with_another_update, "The device is busy with another update: its update state is 3."),
        (did_not_answer, "The device is not connected; it was last seen at an unknown time, and one attempt failed."),
        (sleeps, "The device sleeps, and is asked when it is heard again."),
        (does_not_fetch, "The device has the address of the image, and has not begun to download it."),
        (fetches_slowly, "The device downloads the image: 40 % so far."),
        (lost_while_it_fetched, "The device's connection was lost after 40 % of the download; it was last seen "),
        (does_not_come_back, "The device installs the image, and has not registered again yet."),
        (reports_another_version, "The device reports 1.0 instead of 2.0; it is asked up to three times."),
        (waits_for_the_canary, "The roll-out waits for its canary devices: 0 of 1 have ended."),
        (waits_for_its_minute, "The roll-out begins on one device in a minute, and the device's turn comes later."),
        (waits_for_a_place, "The roll-out has one device under way; the next begins when one has ended."),
        (
            waits_in_a_paused_rollout,
            "The roll-out is paused: 0 of 1 canary devices succeeded, and 90 % are needed.",
        ),
    ],
)
async def test_the_sentence_names_the_cause(
    services: Services, cause: Cause, sentence: str, autojump_clock: MockClock
) -> None:
    fleet = await Fleet.of(services, 2)
    await fleet.had_registered()
    task = await cause(fleet)
    await settle()
    assert (await fleet.waits_for(task) or "").startswith(sentence)


async def test_what_has_ended_waits_for_nothing(fleet: Fleet, autojump_clock: MockClock) -> None:
    await fleet.register(fleet.devices[0])
    task = await fleet.task("deviceProperties.device.manufacturer")
    await settle()
    assert await fleet.waits_for(task) is None


async def test_each_sentence_is_one_sentence(fleet: Fleet, autojump_clock: MockClock) -> None:
    await fleet.had_registered()
    task = await fleet.task("deviceProperties.device.manufacturer")
    await settle()
    sentence = await fleet.waits_for(task) or ""
    assert sentence.count(". ") == 0
    assert sentence.endswith(".")
