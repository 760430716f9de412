"""Subscriptions to alarms: each change once in the store, in order, with texts that may be read (reference 11.3)."""

from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.alarm_views import AlarmView
from broker.devices.transfers import hand_over
from broker.services import Services
from broker.subscriptions.port import AttemptOutcome
from broker.subscriptions.subscription import Subscription
from protocols.outbound.callbacks import notification_body
from storage.alarms import AlarmFilter, AlarmRecord
from storage.keys import ApplicationKey, Milliseconds
from storage.transaction import Transaction
from tests.broker.rules.home import Home, body, when
from tests.builders import ServicesOpener
from tests.callbacks import URL, FakeCallbacks, Received, ada_of, outcomes_stored, sent, settled, subscribed
from tests.factories import ADA, KITCHEN, NOW_MS, World, build_world

DARK = body(when("intensity", "<", 10)) | {"then": [], "alarm": {"severity": "critical", "text": "It is dark"}}


def states(callbacks: FakeCallbacks) -> list[str]:
    return [shown(one)["state"] for one in callbacks.received]


def shown(received: Received) -> dict[str, Any]:
    """The only entry, as the callback gets it."""
    (entry,) = msgspec.json.decode(notification_body(received.notification))["data"]
    assert isinstance(entry, dict)
    return entry


async def newest(services: Services) -> AlarmRecord:
    owner = await services.accounts.users.find(ADA)
    return (await services.alarms.alarms.page(AlarmFilter(owner.key), offset=0, count=1))[0][0]


async def to_alarms(services: Services, **more: Any) -> Subscription:
    return await subscribed(services, message_type="alarm", **more)


@pytest.mark.both_engines
async def test_each_change_has_a_notification_and_messages_have_none(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    home = Home(services)
    subscription = await to_alarms(services)
    rule = await home.rule(DARK)
    mid = await home.says({"intensity": 3})
    await home.says({"intensity": 2})
    alarm = await newest(services)
    await services.alarms.alarms.acknowledge(alarm, by=f"user {ADA}")
    await services.alarms.alarms.clear_by_hand(alarm, by=f"user {ADA}")
    await callbacks.wait_received(3)
    assert states(callbacks) == ["raised", "acknowledged", "cleared"]
    first, _, last = map(shown, callbacks.received)
    assert first["conditions"][0]["text"] == f"intensity < 10 holds: intensity of {KITCHEN} is 3"
    assert (first["id"], first["rid"], first["did"], first["text"]) == (alarm.id, rule.id, KITCHEN, "It is dark")
    assert (first["mid"], first["count"], "clearedOn" in first) == (mid, 1, False)
    assert (last["count"], last["clearedBy"], last["durationMs"]) == (2, f"user {ADA}", 0)
    notification = callbacks.received[0].notification
    assert (notification.type, notification.query, notification.start_date) == ("alarm", {"uid": ADA}, NOW_MS)
    await settled(services, lambda: not services.subscriptions.deliveries.statistics().pending)
    await outcomes_stored(services)
    deliveries, total = await services.subscriptions.log.page(subscription, "DELIVERED", offset=0, limit=10)
    assert (total, [len(one.attempts) for one in deliveries]) == (3, [1, 1, 1])
    found = await services.subscriptions.log.find(await ada_of(services), deliveries[-1].id)
    page = await services.subscriptions.log.entries(await ada_of(services), found, order="asc", offset=0, limit=10)
    (view,), number = page
    assert isinstance(view, AlarmView)
    assert (number, view.record.count, view.record.text) == (1, 1, "It is dark")


@pytest.mark.both_engines
async def test_alarms_wait_for_a_paused_subscription_and_survive_a_crash(
    opener: ServicesOpener, callbacks: FakeCallbacks
) -> None:
    """A callback that hangs at the crash gets the same notification again, with the same id."""
    async with opener() as services:  # nothing is delivered
        await build_world(services.core.database, services.core.vault)
        subscription = await to_alarms(services)
        await services.subscriptions.subscriptions.set_paused(subscription, paused=True)
        await Home(services).rule(DARK)
        await Home(services).says({"intensity": 3})
        await Home(services).says({"intensity": 30})
    async with opener(callbacks=callbacks) as services:
        await wait_all_tasks_blocked()
        assert not callbacks.received
        paused = await services.subscriptions.subscriptions.find(await ada_of(services), subscription.id)
        callbacks.answer = lambda _received: AttemptOutcome(http_status=500)
        await services.subscriptions.subscriptions.set_paused(paused, paused=False)
        await callbacks.wait_received(2)
        assert states(callbacks) == ["raised", "cleared"]
        await settled(services, lambda: services.subscriptions.sender.counts.failures == 2)
        await outcomes_stored(services)
    callbacks.answer = lambda _received: AttemptOutcome(http_status=200)
    async with opener(callbacks=callbacks) as services:
        again = await services.subscriptions.subscriptions.find(await ada_of(services), subscription.id)
        ids = await services.subscriptions.log.replay(again, ids=None, start_ms=0, end_ms=NOW_MS * 2)
        await callbacks.wait_received(4)
    assert [one.notification.id for one in callbacks.received] == ids * 2


@pytest.mark.both_engines
async def test_texts_go_only_to_an_application_that_may_read_the_device(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    callbacks.gates[URL] = gate = trio.Event()
    await to_alarms(services)
    await Home(services).rule(DARK)
    await Home(services).says({"intensity": 3})
    alarm = await newest(services)
    device = (await services.devices.registry.find(KITCHEN)).record
    # The alarm is deleted with it, and the last notification says so.
    await services.core.database.write(lambda tx: hand_over(tx, device, world.bob, Milliseconds(NOW_MS)))
    gate.set()
    await callbacks.wait_received(2)
    last = shown(callbacks.received[-1])
    assert (last["id"], last["state"], last["clearedBy"]) == (alarm.id, "cleared", "device")
    assert not {"text", "conditions", "mid"} & set(last)


async def test_alarms_of_another_application_are_not_told(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    await to_alarms(services)
    await subscribed(services, url=f"{URL}/messages")
    await Home(services).rule(DARK)
    await Home(services).says({"intensity": 3})
    alarm = await newest(services)
    other = msgspec.structs.replace(alarm, application=ApplicationKey(alarm.application + 1000))
    found = await services.core.database.write(lambda tx: tx.deliveries.add_of_alarm(other, Milliseconds(NOW_MS)))
    assert found == []
    await sent(services)
    await callbacks.wait_received(3)
    assert len([one for one in callbacks.received if one.notification.type == "alarm"]) == 1
    assert len({one.notification.id for one in callbacks.received}) == 3


@pytest.mark.parametrize("number", [1, 40])
async def test_keys_are_taken_once(services: Services, number: int) -> None:
    def work(tx: Transaction) -> tuple[int, int]:
        return tx.deliveries.take_keys(number), tx.deliveries.take_keys(1)

    first, second = await services.core.database.write(work)
    assert second - first == number
