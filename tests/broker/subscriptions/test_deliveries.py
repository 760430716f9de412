"""Delivering notifications: at least once, in order for each device, with retries (reference 11.3 to 11.5)."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY
from urllib.parse import urlsplit

import msgspec
import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from broker.facts import ProviderAuthRemoved, SubscriptionReported
from broker.services import Services
from broker.subscriptions.outlets import FAILURES_IN_A_ROW
from broker.subscriptions.port import AttemptOutcome, Entry, StreamFailed, StreamRejected
from broker.subscriptions.subscription import Subscription, SubscriptionStatus
from config.limits import RETRY_SECONDS
from storage.deliveries import AttemptRecord, DeliveryStore, NotificationRecord
from storage.keys import OrganizationKey
from storage.records import AuditFilter, GrantRecord
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.callbacks import (
    URL,
    FakeCallbacks,
    FakeStreams,
    Received,
    ada_of,
    outcomes_stored,
    sent,
    settled,
    streaming,
    subscribed,
)
from tests.factories import ADA, BOBS, DASHBOARD, HALL, KITCHEN, World, allow, build_world
from tests.fakes import FakeClock
from tests.mail_queue import waiting_mails

pytestmark = pytest.mark.slow


def of(callbacks: FakeCallbacks, name: str) -> list[int]:
    """The positions that the callback with this last part of its address got."""
    return positions([one for one in callbacks.received if one.url.endswith(name)])


def positions(received: Sequence[Received]) -> list[int]:
    return [position for one in received for position in one.positions]


async def deliveries(services: Services, subscription: Subscription) -> list[tuple[str, tuple[AttemptRecord, ...]]]:
    """Status and attempts, the oldest notification first, with the outcomes that are counted and not stored yet."""
    await outcomes_stored(services)
    found, _total = await services.subscriptions.log.page(subscription, None, offset=0, limit=100)
    return [(one.status, one.attempts) for one in reversed(found)]


async def in_flight(services: Services, count: int) -> None:
    await settled(services, lambda: services.subscriptions.deliveries.statistics().in_flight == count)


async def failed(services: Services, count: int) -> None:
    await settled(services, lambda: services.subscriptions.sender.counts.failures == count)


def pending(services: Services) -> int:
    return services.subscriptions.deliveries.statistics().pending


@pytest.mark.both_engines
async def test_a_notification_names_its_subscription_and_carries_its_messages(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    subscription = await subscribed(services, sdid=KITCHEN)
    (position,) = await sent(services)
    await callbacks.wait_received(1)
    (received,) = callbacks.received
    notification = received.notification
    assert (notification.type, notification.subscription_id) == ("message", subscription.id)
    assert notification.query == {"uid": ADA, "sdid": KITCHEN}
    assert notification.start_date == notification.end_date
    assert received.positions == [position]
    assert received.callback.client_secret == "s3cret"
    assert received.callback.webhook_secrets == ()
    await settled(services, lambda: not pending(services))
    ((status, (attempt,)),) = await deliveries(services, subscription)
    assert (status, attempt.http_status, attempt.error) == ("DELIVERED", 200, None)
    (reader,) = await services.devices.readers.of_owner((await services.devices.registry.find(KITCHEN)).owner)
    assert (reader.application, reader.user, reader.record.count) == (ANY, (ADA, ANY), 1)


async def test_what_each_combination_covers(services: Services, world: World, callbacks: FakeCallbacks) -> None:
    """reference 11.2. Bob shares his light with Ada."""
    await services.provisioning.apply({"shares": [{"device": BOBS, "with": "ada@example.org"}]})
    type_id = (await services.devices.registry.find(KITCHEN)).type.id
    wanted: dict[str, dict[str, object]] = {
        "user": {},
        "type": {"sdtid": type_id},
        "device": {"sdid": HALL},
        "shared": {"include_shared": True},
        "action": {"message_type": "action", "ddid": KITCHEN},
    }
    for name, members in wanted.items():
        await subscribed(services, url=f"{URL}/{name}", **members)
    sources = {device: (await sent(services, device=device))[0] for device in (KITCHEN, HALL, BOBS)}
    kitchen, hall = [await services.devices.registry.find(one) for one in (KITCHEN, HALL)]
    action = services.messages.ingest.submit_action(hall, kitchen, b'{"actions":[{"name":"setOn"}]}')
    services.messages.ingest.submit_action(kitchen, hall, b'{"actions":[{"name":"setOn"}]}')
    await services.messages.ingest.wait_committed()
    await callbacks.wait(lambda: len(positions(callbacks.received)) == 9)
    found = {name: sorted(of(callbacks, name)) for name in wanted}  # devices do not wait for each other
    own = [sources[KITCHEN], sources[HALL]]
    assert found == {
        "user": own,
        "type": own,
        "device": [sources[HALL]],
        "shared": [*own, sources[BOBS]],
        "action": [action],
    }


async def test_what_comes_while_five_are_under_way_is_collected(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    gate = callbacks.gates[URL] = trio.Event()
    await subscribed(services)
    expected = []
    for count in range(1, 6):
        expected += await sent(services)
        await in_flight(services, count)
    expected += await sent(services, 150)
    await settled(services, lambda: services.subscriptions.deliveries.statistics().backlog == 150)
    gate.set()
    await settled(services, lambda: not pending(services))
    assert [len(one.positions) for one in callbacks.received] == [1, 1, 1, 1, 1, 100, 50]
    assert positions(callbacks.received) == expected


async def test_a_callback_that_hangs_delays_its_own_later_messages_by_a_second_and_others_not_at_all(
    services: Services, world: World, callbacks: FakeCallbacks, autojump_clock: MockClock
) -> None:
    hanging = callbacks.gates[f"{URL}/hangs"] = trio.Event()
    await subscribed(services, url=f"{URL}/hangs")
    await subscribed(services, url=f"{URL}/works")
    first = await sent(services)
    await callbacks.wait_received(2)
    second = await sent(services)
    began = trio.current_time()
    for name, delay in (("works", 0), ("hangs", 1)):
        await callbacks.wait(lambda name=name: of(callbacks, name) == first + second)  # type: ignore[misc]
        assert trio.current_time() - began == pytest.approx(delay)
    hanging.set()


@pytest.mark.both_engines
async def test_a_failed_notification_is_sent_again_with_its_id_until_the_eighth_failure(
    services: Services, world: World, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    callbacks.answer = lambda _received: AttemptOutcome(http_status=500, excerpt="out of order")
    subscription = await subscribed(services)
    first = await sent(services)
    for count, delay in enumerate((*RETRY_SECONDS, 0), start=1):
        await callbacks.wait_received(count)
        await failed(services, count)
        ((status, attempts),) = await deliveries(services, subscription)
        assert len(attempts) == count
        if delay:
            found, _ = await services.subscriptions.log.page(subscription, "PENDING", offset=0, limit=1)
            assert found[0].next_on is not None
            assert 0.9 * delay * 1000 <= found[0].next_on - fake_clock.now <= 1.1 * delay * 1000
            fake_clock.advance(int(delay * 1100) + 1)
            services.subscriptions.sender.look_for_due()
    assert status == "FAILED"
    assert {attempt.excerpt for attempt in attempts} == {"out of order"}
    assert len({one.notification.id for one in callbacks.received}) == 1
    assert positions(callbacks.received) == first * 8
    assert pending(services) == 0


async def test_a_clock_that_is_set_back_does_not_hold_up_a_retry(
    services: Services, world: World, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    fake_clock.now += 365 * 86_400_000
    callbacks.answer = lambda _received: AttemptOutcome(http_status=500)
    await subscribed(services)
    await sent(services)
    await failed(services, 1)
    fake_clock.now -= 365 * 86_400_000
    services.subscriptions.sender.look_for_due()
    await failed(services, 2)
    services.subscriptions.sender.look_for_due()
    await services.subscriptions.sender.retry_due()
    assert (
        services.subscriptions.deliveries.statistics().in_flight == 0
    )  # the next one is planned by the clock as it is now


async def test_a_failing_notification_holds_back_no_later_one(
    services: Services, world: World, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    refused = await sent(services)  # before the subscription: not delivered
    subscription = await subscribed(services)
    callbacks.answer = lambda _received: AttemptOutcome(http_status=200 if len(callbacks.received) > 1 else 503)
    first = await sent(services)
    await settled(services, lambda: services.subscriptions.sender.counts.failures == 1)
    second = await sent(services)
    await settled(services, lambda: services.subscriptions.sender.counts.delivered == 1)
    assert [status for status, _ in await deliveries(services, subscription)] == ["PENDING", "DELIVERED"]
    fake_clock.advance(6_000)
    services.subscriptions.sender.look_for_due()
    await settled(services, lambda: not pending(services))
    assert positions(callbacks.received) == first + second + first
    assert not set(refused) & set(positions(callbacks.received))


@pytest.mark.both_engines
async def test_a_subscription_with_very_many_due_notifications_is_read_a_few_at_a_time_and_holds_up_no_other(
    services: Services, world: World, callbacks: FakeCallbacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.subscriptions.sender._DUE_AT_ONCE", 10)
    flooded, other = [await subscribed(services, url=f"{URL}/{name}") for name in ("flooded", "other")]
    for _ in range(60):
        await sent(services)
        await settled(services, lambda: not pending(services))
    gate = callbacks.gates[f"{URL}/flooded"] = trio.Event()
    read = list[int]()
    real = DeliveryStore.due

    def due(store: DeliveryStore, now_ms: int, **more: Any) -> list[NotificationRecord]:
        found = real(store, now_ms, **more)
        read.append(len(found))
        return found

    monkeypatch.setattr(DeliveryStore, "due", due)
    callbacks.received.clear()
    for subscription in (flooded, other):
        await services.subscriptions.log.replay(subscription, ids=None, end_ms=2**50)
    await callbacks.wait(lambda: len(of(callbacks, "other")) == 60)
    assert len(of(callbacks, "flooded")) <= 5
    gate.set()
    del callbacks.gates[f"{URL}/flooded"]
    await settled(services, lambda: not pending(services))
    assert sorted(of(callbacks, "flooded")) == sorted(of(callbacks, "other"))
    assert sum(read) < 120, "each replayed notification was not read again and again"


async def test_after_many_failures_first_attempts_pause_and_messages_are_collected(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    callbacks.answer = lambda _received: AttemptOutcome(error="ConnectError: refused")
    await subscribed(services)
    for count in range(1, FAILURES_IN_A_ROW + 1):
        await sent(services)
        await failed(services, count)
    await sent(services, 3)
    await settled(services, lambda: services.subscriptions.deliveries.statistics().backlog == 3)
    assert len(callbacks.received) == FAILURES_IN_A_ROW


@pytest.mark.both_engines
async def test_an_answer_410_suspends_with_an_event_a_mail_an_audit_entry_and_a_count(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    told: list[SubscriptionReported] = []
    services.core.router.subscribe(SubscriptionReported, told.append)
    await services.core.database.write(lambda tx: tx.accounts.set_role(_acme(tx), world.ada, "administrator"))
    await services.core.database.write(lambda tx: tx.accounts.set_role(_acme(tx), world.bob, "administrator"))
    no_address = "UPDATE user SET email = 'bob..@example.org' WHERE key = :key"
    await services.core.database.write(lambda tx: tx.accounts._db.execute(no_address, {"key": world.bob}))
    callbacks.answer = lambda _received: AttemptOutcome(http_status=500)
    subscription = await subscribed(services)
    await sent(services)
    await failed(services, 1)
    callbacks.answer = lambda _received: AttemptOutcome(http_status=410)
    await sent(services)
    await settled(services, lambda: services.subscriptions.deliveries.statistics().suspended == 1)
    await settled(services, lambda: services.subscriptions.deliveries.statistics().in_flight == 0)
    found = await services.subscriptions.subscriptions.find(await ada_of(services), subscription.id)
    assert found.record.status == SubscriptionStatus.SUSPENDED
    assert [status for status, _ in await deliveries(services, subscription)] == ["FAILED", "FAILED"]
    mails = await services.core.database.read(waiting_mails)
    assert [(mail.kind, mail.recipient) for mail in mails] == [("subscription_suspended", "ada@example.org")]
    text = msgspec.json.decode(services.core.vault.open(mails[0].content or b""), type=list[Any])[1]
    host = urlsplit(subscription.record.callback_url or "").hostname
    assert f"Subscription: {subscription.id}\nTo: {host}\n" in text, "the mail says where it delivered"
    wanted = AuditFilter(since_ms=0, until_ms=2**62, limit=10, object=f"subscription {subscription.id}")
    events = [one.event for one in await services.core.audit.find(wanted)]
    assert events == ["subscription_created", "subscription_suspended"]
    (report,) = told
    assert (report.kind, report.subscription_id, report.user_id, report.application_id, report.text) == (
        "suspended",
        subscription.id,
        ADA,
        DASHBOARD,
        "HTTP status 410",
    )
    assert report.backlog == 1  # the one that waited for its next attempt
    await sent(services)
    assert services.subscriptions.deliveries.statistics().backlog == 0


def _acme(tx: Transaction) -> OrganizationKey:
    found = tx.accounts.organization_named("Acme")
    assert found is not None
    return found.key


async def test_five_days_without_a_success_suspend(
    services: Services, world: World, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    callbacks.answer = lambda _received: AttemptOutcome(http_status=500)
    await subscribed(services)
    await sent(services)
    await settled(services, lambda: services.subscriptions.sender.counts.failures == 1)
    fake_clock.advance(5 * 86_400_000)
    services.subscriptions.sender.look_for_due()
    await settled(services, lambda: services.subscriptions.deliveries.statistics().suspended == 1)


async def test_a_pause_keeps_what_comes_for_afterwards(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    subscription = await subscribed(services)
    first = await sent(services)
    await callbacks.wait_received(1)
    await services.subscriptions.subscriptions.set_paused(subscription, paused=True)
    meanwhile = await sent(services, 1_500)
    await settled(services, lambda: services.subscriptions.deliveries.statistics().backlog == 0)
    assert len(callbacks.received) == 1
    await services.subscriptions.subscriptions.set_paused(subscription, paused=False)
    await callbacks.wait(lambda: len(positions(callbacks.received)) == 1_501)
    assert positions(callbacks.received) == first + meanwhile
    await settled(services, lambda: services.subscriptions.deliveries.statistics().behind == 0)


async def test_an_outlet_without_room_falls_behind_and_catches_up(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    gate = callbacks.gates[URL] = trio.Event()
    await subscribed(services)
    expected = await sent(services, 3_000)
    await settled(services, lambda: services.subscriptions.deliveries.statistics().behind == 1)
    gate.set()
    await callbacks.wait(lambda: len(positions(callbacks.received)) == 3_000)
    assert positions(callbacks.received) == expected
    expected += await sent(services)
    await callbacks.wait(lambda: len(positions(callbacks.received)) == 3_001)
    assert positions(callbacks.received) == expected


@pytest.mark.parametrize("saved", [True, False])
async def test_a_restart_loses_nothing_and_goes_on_in_order(
    opener: ServicesOpener, callbacks: FakeCallbacks, saved: bool
) -> None:
    """Five are under way, 3,000 wait in memory or in the log. Without a save, the daemon was killed."""
    callbacks.gates[URL] = trio.Event()
    async with opener(callbacks=callbacks) as services:
        await build_world(services.core.database, services.core.vault)
        await subscribed(services)
        expected = []
        for count in range(1, 6):
            expected += await sent(services)
            await in_flight(services, count)
        expected += await sent(services, 3_000)
        await settled(services, lambda: services.subscriptions.deliveries.statistics().behind == 1)
        if not saved:

            async def killed() -> None:
                pass

            services.core.life._workers[:] = [replace(one, save=killed) for one in services.core.life._workers]
    again = FakeCallbacks()
    async with opener(callbacks=again) as services:
        await again.wait(lambda: len(set(positions(again.received))) == 3_005)
        assert positions(again.received) == expected
        assert [one.notification.id for one in again.received[:1]] == [callbacks.received[0].notification.id]
        expected += await sent(services)
        await again.wait(lambda: positions(again.received) == expected)


@pytest.mark.both_engines
async def test_a_replay_has_the_same_ids_oldest_first(
    services: Services, world: World, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    subscription = await subscribed(services)
    for count in range(1, 4):
        await sent(services)
        await callbacks.wait_received(count)
    await settled(services, lambda: not pending(services))
    first = [one.notification.id for one in callbacks.received]
    log = services.subscriptions.log
    assert await log.replay(subscription, ids=None, start_ms=0, end_ms=fake_clock.now) == first
    await callbacks.wait_received(6)
    assert await log.replay(subscription, ids=[first[2], first[0]]) in ([first[0], first[2]], [])
    await settled(services, lambda: not pending(services))
    assert [one.notification.id for one in callbacks.received[3:6]] == first
    assert positions(callbacks.received[3:6]) == positions(callbacks.received[:3])


@pytest.mark.both_engines
async def test_a_message_that_is_no_longer_granted_is_in_no_retry(
    services: Services, world: World, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    """The type is of another organization, so a grant of the sign-in alone does not cover it."""
    callbacks.answer = lambda _received: AttemptOutcome(http_status=500)
    await services.provisioning.apply({"organizations": [{"name": "Beta"}]})
    await services.core.database.write(
        lambda tx: tx.connection.execute("UPDATE device_type SET organization = 2").one()
    )
    await services.device_types.catalog.reload()
    await services.devices.registry.reload()
    await subscribed(services)
    await sent(services)
    await settled(services, lambda: services.subscriptions.sender.counts.failures == 1)
    await allow(services, GrantRecord(world.ada, world.application, world.light_type, read=False, write=True))
    fake_clock.advance(6_000)
    services.subscriptions.sender.look_for_due()
    await callbacks.wait_received(2)
    assert [len(one.positions) for one in callbacks.received] == [1, 0]


async def test_what_ends_a_subscription_ends_it_at_once(
    services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    subscriptions, caller = services.subscriptions.subscriptions, await ada_of(services)
    linked, deleted, revoked = [await subscribed(services, sdid=one) for one in (KITCHEN, HALL, None)]
    services.core.router.publish(ProviderAuthRemoved(world.kitchen))
    await services.devices.inventory.delete(await services.devices.registry.find(HALL))
    assert [one.id for one in subscriptions.of_application(world.application, None)] == [revoked.id]
    await services.accounts.granted.revoke(world.ada, world.application)
    assert subscriptions.of_application(world.application, None) == []
    await services.subscriptions.endings.sweep()
    removed = await services.core.database.read(
        lambda tx: [tx.subscriptions.by_key(one.key) for one in (linked, deleted, revoked)]
    )
    assert [one.last_error for one in removed if one is not None and one.removed_on] == [
        "the device's authorization was revoked",
        "the device was deleted",
        "the user revoked the application",
    ]
    assert caller.application == world.application


async def test_what_ended_while_the_daemon_was_down_is_removed_at_its_start(opener: ServicesOpener) -> None:
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        await subscribed(services)
        await services.core.database.write(lambda tx: tx.accounts.remove_grants(world.ada, world.application))
    async with opener() as services:
        assert services.subscriptions.subscriptions.all() == []


async def test_a_stream_gets_a_record_for_each_message(services: Services, world: World, streams: FakeStreams) -> None:
    await streaming(services)
    expected = await sent(services, 1_200)
    await settled(services, lambda: len(streams.written) == 1_200)
    assert [entry.position for entry in streams.written] == expected
    assert max(count for _target, count in streams.calls) <= 500
    assert streams.calls[0][0].secret == "secret"


async def test_a_stream_that_fails_is_tried_again_and_one_that_rejects_ends_its_subscription(
    services: Services, world: World, streams: FakeStreams, fake_clock: FakeClock
) -> None:
    await services.core.database.write(lambda tx: tx.accounts.set_role(_acme(tx), world.ada, "administrator"))

    def fail(_entries: Sequence[Entry]) -> None:
        raise StreamFailed("throttled")

    def reject(_entries: Sequence[Entry]) -> None:
        raise StreamRejected("ResourceNotFoundException: no such stream")

    streams.fail = fail
    subscription = await streaming(services)
    await sent(services)
    await settled(services, lambda: services.subscriptions.sender.counts.failures == 1)
    ((status, (attempt,)),) = await deliveries(services, subscription)
    assert (status, attempt.error) == ("PENDING", "throttled")
    streams.fail = reject
    fake_clock.advance(6_000)
    services.subscriptions.sender.look_for_due()
    await settled(services, lambda: services.subscriptions.subscriptions.all() == [])
    removed = await services.core.database.read(lambda tx: tx.subscriptions.by_key(subscription.key))
    assert removed is not None
    assert removed.last_error == "ResourceNotFoundException: no such stream"
    mails = await services.core.database.read(waiting_mails)
    assert [mail.kind for mail in mails] == ["stream_removed"]


@pytest.mark.both_engines
async def test_the_log_is_kept_within_days_and_bytes(
    services: Services, world: World, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    subscription = await subscribed(services)
    upkeep = services.subscriptions.deliveries._upkeep
    for count in range(1, 4):
        await sent(services)
        await callbacks.wait_received(count)
    await settled(services, lambda: not pending(services))
    await outcomes_stored(services)
    await upkeep.sweep()
    assert len(await deliveries(services, subscription)) == 3
    upkeep._keep_bytes = upkeep.log_bytes - 1
    await upkeep.sweep()
    assert len(await deliveries(services, subscription)) == 2
    fake_clock.advance(31 * 86_400_000)
    await upkeep.sweep()
    assert await deliveries(services, subscription) == []
