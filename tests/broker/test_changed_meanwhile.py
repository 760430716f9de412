"""A change between a read and its consequence is not lost: the read is held, and the change comes first."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.devices.inventory import NewDevice
from broker.devices.registry import Device
from broker.facts import PlanApproved, Router
from broker.rules.running import loader
from broker.rules.running.loader import RuleInvalidator
from broker.services import Services
from broker.subscriptions.creation import NewSubscription
from broker.subscriptions.entries import NotificationEntries
from broker.subscriptions.outlets import Taken
from broker.subscriptions.port import AttemptOutcome
from broker.subscriptions.subscription import Subscription
from config.limits import RETRY_SECONDS
from storage.database import Database
from storage.keys import OrganizationKey, RuleKey
from storage.monetization import MonetizationStore
from storage.sql import StoreError
from tests.broker.rules.home import Home, body, when
from tests.builders import ServicesOpener
from tests.callbacks import OK, URL, FakeCallbacks, ada_of, sent, settled, subscribed
from tests.factories import ADA, DASHBOARD, HALL, KITCHEN, LIGHT_TYPE, World, build_world
from tests.fakes import FakeClock, HeldRunner


@dataclass
class Held:
    services: Services
    world: World
    runner: HeldRunner
    callbacks: FakeCallbacks

    def release(self) -> None:
        self.runner.reads.set()


@pytest.fixture
async def held(opener: ServicesOpener, autojump_clock: MockClock) -> AsyncIterator[Held]:
    runner, callbacks = HeldRunner(), FakeCallbacks()
    async with opener(run_sync=runner, callbacks=callbacks) as services:
        world = await build_world(services.core.database, services.core.vault)
        yield Held(services, world, runner, callbacks)
        runner.reads.set()


async def test_a_subscription_that_begins_while_another_one_is_opened_delivers(held: Held) -> None:
    services, subscriptions = held.services, held.services.subscriptions.subscriptions
    ada = await ada_of(services)

    async def created(url: str) -> tuple[Subscription, str]:
        wanted = NewSubscription(spelling="httpCallback", message_type="message", uid=ADA, callback_url=url)
        made = await subscriptions.create(ada, wanted)
        assert made.record.nonce is not None
        return made, services.core.vault.open(made.record.nonce)

    (first, nonce), (second, other_nonce) = await created(f"{URL}/1"), await created(f"{URL}/2")
    await wait_all_tasks_blocked()
    held.runner.hold_reads()
    await subscriptions.validate(first.id, DASHBOARD, nonce)
    await wait_all_tasks_blocked()  # its cursor is read
    await subscriptions.validate(second.id, DASHBOARD, other_nonce)
    held.release()
    (position,) = await sent(services)
    await held.callbacks.wait_received(2)
    assert {one.url: one.positions for one in held.callbacks.received} == {
        f"{URL}/{number}": [position] for number in (1, 2)
    }


async def test_retries_whose_rows_cannot_be_read_are_made_later(
    held: Held, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, callbacks = held.services, held.callbacks
    callbacks.answer = lambda _received: AttemptOutcome(http_status=500)
    await subscribed(services, sdid=KITCHEN)
    await sent(services)
    await settled(services, lambda: services.subscriptions.sender.counts.failures == 1)
    callbacks.answer = lambda _received: OK
    read, errors = NotificationEntries.taken, [StoreError("the disk has an error")]

    async def taken(entries: NotificationEntries, records: Sequence[Any], outlets: Any) -> list[list[Taken]]:
        if records and errors:
            raise errors.pop()
        return await read(entries, records, outlets)

    monkeypatch.setattr(NotificationEntries, "taken", taken)
    fake_clock.advance(int(RETRY_SECONDS[0] * 1_200))
    services.subscriptions.sender.look_for_due()
    await settled(services, lambda: services.subscriptions.deliveries.statistics().pending == 0)
    assert errors == []
    assert services.subscriptions.deliveries.statistics().in_flight == 0


async def test_a_subscription_that_falls_behind_while_positions_are_saved_is_behind_in_memory_and_store(
    held: Held,
) -> None:
    services = held.services
    await subscribed(services, sdid=KITCHEN)
    await wait_all_tasks_blocked()
    reader = services.subscriptions.deliveries._reader
    (outlet,) = reader._outlets
    outlet.is_behind, outlet.saved_behind = False, True
    held.runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.save)
        await wait_all_tasks_blocked()
        outlet.fall_behind(reader.position)
        nursery.start_soon(reader._store, [], [outlet])
        await wait_all_tasks_blocked()
        held.runner.commits.set()
    cursor = await services.core.database.read(lambda tx: tx.subscriptions.cursor(outlet.key))
    assert cursor is not None
    assert (cursor.is_behind, outlet.saved_behind) == (True, True)


async def test_a_plan_that_is_approved_while_the_one_before_is_read_is_in_force(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, kitchen = held.services, held.world.kitchen
    limits = {kitchen: 10}
    monkeypatch.setattr(MonetizationStore, "limits", lambda _store, _type=None: dict(limits))
    type_ = (await services.device_types.catalog.find(LIGHT_TYPE)).record.key
    held.runner.hold_reads()
    services.core.router.publish(PlanApproved(type_))
    await wait_all_tasks_blocked()
    limits[kitchen] = 5
    services.core.router.publish(PlanApproved(type_))
    held.release()
    await wait_all_tasks_blocked()
    assert services.limits.quotas.limit_of("device", kitchen) == 5


async def test_an_organization_that_is_added_while_limits_are_read_is_limited(held: Held) -> None:
    services, quotas = held.services, held.services.limits.quotas

    async def add(number: int) -> OrganizationKey:
        added = await services.core.database.write(
            lambda tx: tx.accounts.add_organization(f"{number:032x}", name=f"New {number}", monthly_messages=7)
        )
        quotas.of_organization(added.key)
        await wait_all_tasks_blocked()
        return added.key

    held.runner.hold_reads()
    added = [await add(1), await add(2)]
    held.release()
    await wait_all_tasks_blocked()
    assert [quotas.limit_of("organization", one) for one in added] == [7, 7]


class SlowLoader:
    """Waits before it runs all rules, and counts how often it did."""

    def __init__(self) -> None:
        self.begun, self.gate, self.loaded = 0, trio.Event(), list[RuleKey]()
        self.error: Exception | None = None

    async def load_all(self) -> None:
        self.begun += 1
        await self.gate.wait()

    async def reload(self, keys: Sequence[RuleKey]) -> int:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.loaded += keys
        return 0


def invalidator(database: Database, slow: Any) -> RuleInvalidator:
    unused: Any = None
    return RuleInvalidator(database, Router(), slow, unused, unused)


async def test_changes_that_are_too_many_while_all_rules_are_loaded_load_all_again(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_WAITING_MAX", 0)
    slow = SlowLoader()
    changes = invalidator(services.core.database, slow)
    changes._put("rule", 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(changes.step)
        await wait_all_tasks_blocked()
        changes._put("rule", 2)
        slow.gate.set()
    assert await changes.step() is False
    assert slow.begun == 2


async def test_rules_that_could_not_be_loaded_are_loaded_later(services: Services) -> None:
    slow = SlowLoader()
    changes = invalidator(services.core.database, slow)
    changes._put("rule", 1)
    slow.error = StoreError("full")
    with pytest.raises(StoreError):
        await changes.step()
    await changes.step()
    assert slow.loaded == [1]


async def test_a_device_that_is_added_while_the_devices_of_a_type_are_read_is_one_of_them(held: Held) -> None:
    services, home = held.services, Home(held.services)
    every = when("intensity", ">=", 0, {"selector": "every", "dtid": LIGHT_TYPE})
    rule = await home.rule(body([every]))
    type_ = await services.device_types.catalog.find(LIGHT_TYPE)

    async def add(name: str) -> Device:
        return await services.devices.inventory.create(NewDevice(owner=held.world.ada, type=type_, name=name))

    for device in (KITCHEN, HALL):
        await home.says({"intensity": 1}, device)
    before = await home.triggered(rule)
    third = await add("third light")
    held.runner.hold_reads()
    of_values = held.runner.reads
    services.messages.ingest.submit(third, b'{"intensity":1}')
    await wait_all_tasks_blocked()
    held.runner.hold_reads()
    of_devices = held.runner.reads
    of_values.set()
    await wait_all_tasks_blocked()
    held.runner.release_later_reads()
    await add("has said nothing")
    of_devices.set()
    await wait_all_tasks_blocked()
    assert await home.triggered(rule) == before
