"""A checker of the promises: at least once, and in order for each device, through failures, restarts and replays.

Which attempts fail is decided by the notification and the number of the attempt, so no run differs from another.
"""

import random
from collections import Counter
from itertools import pairwise

import pytest
import trio

from broker.alarm_views import AlarmView
from broker.cluster.leases import LeaseName
from broker.services import Services
from broker.subscriptions.port import AttemptOutcome
from broker.subscriptions.subscription import Subscription
from tests.builders import ServicesOpener
from tests.callbacks import OK, FakeCallbacks, Received, ada_of, sent, settled, subscribed
from tests.factories import HALL, KITCHEN, build_world
from tests.fakes import FakeClock

pytestmark = pytest.mark.slow


DEVICES = (KITCHEN, HALL)


class Checker:
    """Takes part in every run as the callback, and remembers what it got."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.first: dict[str, list[int]] = {device: [] for device in DEVICES}
        self.delivered: set[int] = set()

    def answer(self, received: Received) -> AttemptOutcome:
        id_ = received.notification.id
        self.attempts[id_] += 1
        if self.attempts[id_] == 1:
            for entry in received.notification.entries or ():
                assert not isinstance(entry, AlarmView)
                self.first[entry.sdid].append(entry.position)
        if self.attempts[id_] < 4 and (received.positions[0] + self.attempts[id_]) % 3 == 0:
            return AttemptOutcome(http_status=500)
        self.delivered.update(received.positions)
        return OK


@pytest.mark.both_engines
@pytest.mark.parametrize("seed", [1, 2])
async def test_every_message_comes_and_those_of_a_device_in_order(
    opener: ServicesOpener, fake_clock: FakeClock, seed: int
) -> None:
    chance, checker = random.Random(seed), Checker()  # noqa: S311 - a seeded test
    expected: list[int] = []
    subscription: Subscription | None = None
    for run in range(3):
        async with opener(callbacks=FakeCallbacks(answer=checker.answer)) as services:
            if subscription is None:
                await build_world(services.core.database, services.core.vault)
                subscription = await subscribed(services)
            for _ in range(15):
                expected += await sent(services, chance.randrange(1, 12), chance.choice(DEVICES))
                if chance.random() < 0.3:
                    await settled(services, lambda services=services: not at_work(services))  # type: ignore[misc]
                    fake_clock.advance(chance.choice((6_000, 400_000)))
                    services.subscriptions.sender.look_for_due()
            if run == 2:
                await deliver_all(services, fake_clock)
                await replay_all(services, subscription, checker, fake_clock)
    assert checker.delivered == set(expected)
    for device in DEVICES:
        assert all(earlier < later for earlier, later in pairwise(checker.first[device]))
    assert sorted(position for positions in checker.first.values() for position in positions) == expected


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_same_holds_while_the_lease_goes_away_and_comes_back(
    opener: ServicesOpener, fake_clock: FakeClock, seed: int
) -> None:
    """As of several nodes: messages come while nobody delivers, and while another one does."""
    chance, checker = random.Random(seed), Checker()  # noqa: S311 - as above
    expected: list[int] = []
    async with opener(callbacks=FakeCallbacks(answer=checker.answer)) as services:
        await build_world(services.core.database, services.core.vault)
        await subscribed(services)
        lease = services.core.leases.of(LeaseName.SUBSCRIPTIONS)
        for _ in range(8):
            expected += await sent(services, chance.randrange(1, 12), chance.choice(DEVICES))
            await lease.leave()
            statistics = services.subscriptions.deliveries.statistics()
            assert (statistics.in_flight, statistics.backlog, statistics.pending) == (0, 0, 0), "it holds nothing"
            expected += await sent(services, chance.randrange(1, 12), chance.choice(DEVICES))
            lease.gain(None)
            if chance.random() < 0.3:
                fake_clock.advance(6_000)
        await deliver_all(services, fake_clock)
    assert checker.delivered == set(expected)
    for device in DEVICES:
        assert all(earlier < later for earlier, later in pairwise(checker.first[device]))
    assert sorted(position for positions in checker.first.values() for position in positions) == expected


async def test_a_lease_that_goes_before_all_is_read_again_takes_no_message_along(
    opener: ServicesOpener, fake_clock: FakeClock
) -> None:
    callbacks = FakeCallbacks()
    async with opener(callbacks=callbacks) as services:
        await build_world(services.core.database, services.core.vault)
        await subscribed(services)
        lease = services.core.leases.of(LeaseName.SUBSCRIPTIONS)
        expected = await sent(services)
        await deliver_all(services, fake_clock)
        for turns in range(20):
            await lease.leave()
            expected += await sent(services)
            lease.gain(None)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            assert await services.core.database.read(lambda tx: tx.subscriptions.reader_position()) is not None
        await deliver_all(services, fake_clock)
        assert sorted({position for one in callbacks.received for position in one.positions}) == expected


def at_work(services: Services) -> int:
    statistics = services.subscriptions.deliveries.statistics()
    return statistics.in_flight + statistics.backlog


async def deliver_all(services: Services, clock: FakeClock) -> None:
    """Go on until nothing waits, not even to be read or for a retry."""
    deliveries = services.subscriptions.deliveries

    def is_done() -> bool:
        if deliveries._to_open or deliveries.statistics().behind:
            return False
        if deliveries._reader.position < services.messages.ingest.head:
            return False
        if not at_work(services):
            clock.advance(3_600_000)
            services.subscriptions.sender.look_for_due()
        return not deliveries.statistics().pending

    await settled(services, is_done)


async def replay_all(services: Services, subscription: Subscription, checker: Checker, clock: FakeClock) -> None:
    found = await services.subscriptions.subscriptions.find(await ada_of(services), subscription.id)
    before = checker.attempts.copy()
    again = await services.subscriptions.log.replay(found, ids=None, start_ms=0, end_ms=clock.now)
    assert set(again) == set(before)
    await deliver_all(services, clock)
    assert all(checker.attempts[id_] > count for id_, count in before.items())
