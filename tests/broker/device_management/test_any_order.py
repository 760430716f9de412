"""Whatever happens in whatever order, each device task ends once, and the counts agree (reference 15.2)."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from broker.device_management.objects import FIRMWARE_VERSION
from broker.device_management.requests import RolloutPlan
from broker.device_management.states import ENDED, MAY_FOLLOW, DeviceTaskStatus
from broker.device_management.tasks import Task
from broker.errors import Conflict
from tests.broker.device_management.devices import VERSION, FakeSession, Fleet, mock_time, register, settle
from tests.builders import ServicesOpener, opener_in
from tests.factories import build_world
from tests.properties import examples

pytestmark = pytest.mark.slow


DEVICES = 3
EXPIRES_SECONDS = 600
Action = tuple[str, int, int]

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "register",
                "update registration",
                "leave",
                "sleep",
                "answer",
                "refuse",
                "say",
                "new version",
                "cancel device",
                "cancel task",
                "accept",
                "reject",
                "wait",
                "delete",
                "restart",
            ]
        ),
        st.integers(0, DEVICES - 1),
        st.integers(0, 9),
    ),
    max_size=25,
)


class Play:
    """One device task after the other, of a read, an accepted update and an update in steps."""

    def __init__(self, fleet: Fleet, tasks: Sequence[Task]) -> None:
        self.fleet = fleet
        self.tasks = tasks
        self.sessions: dict[int, FakeSession] = {}

    async def take(self, kind: str, device: int, number: int) -> None:
        fleet, tasks, session = self.fleet, self.fleet.management.tasks, self.sessions.get(device)
        task = self.tasks[number % len(self.tasks)]
        if kind == "register":
            if session is not None:
                fleet.leave(session)
            known = {} if session is None else {FIRMWARE_VERSION: session.values[FIRMWARE_VERSION]}
            self.sessions[device] = FakeSession(fleet.devices[device], known)
            await register(fleet.services, self.sessions[device])
        elif kind == "wait":
            await trio.sleep(number * 10)
        elif kind in {"cancel device", "accept", "reject"}:
            entry = await fleet.services.core.database.read(
                lambda tx: tx.tasks.entry_of(task.record.key, fleet.devices[device].key)
            )
            with suppress(Conflict):
                if entry is not None and kind == "cancel device":
                    await tasks.cancel_on(entry)
                elif entry is not None:
                    await tasks.answer(entry, is_accepted=kind == "accept")
        elif kind == "cancel task":
            with suppress(Conflict):
                await tasks.cancel(task.record)
        elif kind == "delete":
            if number == 0 and fleet.devices[device].enabled:
                await fleet.services.devices.inventory.delete(fleet.devices[device])
        elif session is not None:
            await self._of_session(kind, session, number)

    async def _of_session(self, kind: str, session: FakeSession, number: int) -> None:
        registrations = self.fleet.management.registrations
        if kind == "update registration":
            await registrations.registered(session)
        elif kind == "leave":
            self.fleet.leave(session)
        elif kind == "sleep":
            session.sleep()
        elif kind == "answer":
            session.is_awake.set()
        elif kind == "refuse":
            session.refuses = dict.fromkeys([(3, 0, 0), (5, 0, 1), (5, 0, 2), (3, 0, 3)][: number % 5], "4.05")
        elif kind == "new version":
            session.values[FIRMWARE_VERSION] = VERSION
        elif kind == "say":
            await self.fleet.say(session, state=number % 4, result=number % 3)


async def play(opener: ServicesOpener, actions: Sequence[Action]) -> None:
    rounds: list[list[Action]] = [[]]
    for action in actions:
        if action[0] == "restart":
            rounds.append([])
        else:
            rounds[-1].append(action)
    first, *others = rounds
    async with opener(clock=mock_time()) as services:
        await build_world(services.core.database, services.core.vault)
        fleet = await Fleet.of(services, DEVICES)
        await fleet.had_registered(*fleet.devices[1:])
        plan = RolloutPlan(devices_per_minute=1, canary_devices=1, canary_success_percent=50, abort_percent=60)
        tasks = [
            await fleet.task("deviceProperties.device.manufacturer", expires_after=EXPIRES_SECONDS),
            await fleet.update(needs_acceptance=True, expires_after=EXPIRES_SECONDS),
            await fleet.update(rollout=plan, expires_after=EXPIRES_SECONDS),
            await fleet.task("serverProperties.site", "W", value="x", expires_after=EXPIRES_SECONDS),
        ]
        await take_all(Play(fleet, tasks), first)
        if not others:
            await all_ended(fleet, tasks)
    for index, some in enumerate(others):
        async with opener(clock=mock_time()) as services:
            again = Fleet(services, fleet.type)
            again.devices = [
                await services.devices.registry.find(device.id) if device.enabled else device
                for device in fleet.devices
            ]
            fleet = again
            await take_all(Play(fleet, tasks), some)
            if index == len(others) - 1:
                await all_ended(fleet, tasks)


async def take_all(played: Play, actions: Sequence[Action]) -> None:
    for kind, device, number in actions:
        await played.take(kind, device, number)
        if number % 2:  # else the next one comes in the middle of what this one began
            await settle()
        else:
            await trio.lowlevel.checkpoint()
    await settle()


async def all_ended(fleet: Fleet, tasks: Sequence[Task]) -> None:
    await trio.sleep(EXPIRES_SECONDS + 1)
    await settle()
    for task in tasks:
        shown = await fleet.management.tasks.shown(task.record)
        counts = shown.counts
        assert shown.record.status in {"COMPLETE", "CANCELLED"}
        assert counts.total == counts.completed == counts.succeeded + counts.failed + counts.cancelled
        history = await fleet.services.core.database.read(
            partial(lambda key, tx: tx.tasks.history(key, None, limit=10_000), task.record.key)
        )
        for device in fleet.devices:
            statuses = [DeviceTaskStatus(row.status) for _, row in history if row.device == device.key]
            assert sum(status in ENDED for status in statuses) == bool(statuses)
            for before, after in pairwise(statuses):
                assert after in MAY_FOLLOW[before]


@settings(max_examples=examples(24))
@given(ACTIONS)
def test_each_device_task_ends_once_and_the_counts_agree(actions: list[Action]) -> None:
    with TemporaryDirectory() as folder:
        trio.run(play, opener_in(Path(folder)), actions, clock=MockClock(autojump_threshold=0))
