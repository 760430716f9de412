"""Requests of rules are shared out by user and by host: receivers that hang hold up nobody else's."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.leases import Lease, LeaseName
from broker.rules.sending.requests import HttpContent, RequestQueue
from broker.services import Services
from config.limits import RULE_REQUESTS_AT_ONCE, RULE_REQUESTS_OF_ONE_USER, RULE_REQUESTS_TO_ONE_HOST
from storage.keys import Milliseconds, RuleKey, UserKey
from tests.factories import NOW_MS, World
from tests.fakes import FakeClock

HANG_SECONDS = 10.0
QUICK = "https://quick.example.org/"


@dataclass
class Receivers:
    """Hosts whose name begins with `slow` answer after ten seconds."""

    under_way: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    answered: dict[str, float] = field(default_factory=dict)

    async def send(self, request: HttpContent) -> int:
        self.under_way.append(request.url)
        self.begun.append(request.url)
        if urlsplit(request.url).netloc.startswith("slow"):
            await trio.sleep(HANG_SECONDS)
        await trio.lowlevel.checkpoint()
        self.under_way.remove(request.url)
        self.answered[request.url] = trio.current_time()
        return 200


class NoProblems:
    async def note(self, rule: RuleKey, field: str, text: str) -> None:
        raise AssertionError(rule, field, text)


@dataclass
class Post:
    """A queue of its own on the store, and its worker."""

    services: Services
    queue: RequestQueue
    receivers: Receivers

    async def add(self, owner: int, *urls: str) -> None:
        database = self.services.core.database

        def work(tx: object) -> None:
            for url in urls:
                content = HttpContent("POST", url)
                self.queue.add(tx, RuleKey(1), UserKey(owner), "rule.then.0", content, Milliseconds(NOW_MS))  # type: ignore[arg-type]

        await database.write(work)
        self.queue.wake()
        await wait_all_tasks_blocked()


@pytest.fixture
async def post(services: Services, world: World, fake_clock: FakeClock, nursery: trio.Nursery) -> AsyncIterator[Post]:
    made = Post(services, RequestQueue(services.core.database, Lease(LeaseName.RULES), fake_clock.clock), Receivers())
    await nursery.start(made.queue.send_forever, made.receivers, NoProblems())
    yield made
    nursery.cancel_scope.cancel()


async def test_users_whose_receivers_hang_hold_up_no_other_user(post: Post, autojump_clock: MockClock) -> None:
    for owner in range(10, 14):
        await post.add(owner, *(f"https://slow{owner}.example.org/{number}" for number in range(5)))
    began = trio.current_time()
    await post.add(1, QUICK)
    assert post.receivers.answered == {QUICK: began}
    assert len(post.receivers.under_way) == 4 * RULE_REQUESTS_OF_ONE_USER


async def test_a_host_that_hangs_holds_up_no_request_to_another_host(post: Post, autojump_clock: MockClock) -> None:
    for owner in range(10, 10 + RULE_REQUESTS_AT_ONCE // 2):
        await post.add(owner, *(f"https://slow.example.org/{owner}/{number}" for number in range(4)))
    assert len(post.receivers.under_way) == RULE_REQUESTS_TO_ONE_HOST
    await post.add(99, QUICK)
    assert QUICK in post.receivers.answered


@pytest.mark.both_engines
async def test_every_request_is_sent_once_and_those_of_one_user_in_their_order(
    post: Post, autojump_clock: MockClock
) -> None:
    sent = [f"https://slow.example.org/{number}" for number in range(5)]
    await post.add(10, *sent)
    await post.add(11, QUICK)
    while len(post.receivers.answered) < 6:  # noqa: ASYNC110 - the worker tells nobody
        await trio.sleep(HANG_SECONDS)
    await wait_all_tasks_blocked()
    assert [url for url in post.receivers.begun if url != QUICK] == sent
    assert post.receivers.begun.count(QUICK) == 1
    assert await post.services.core.database.read(lambda tx: tx.rules.waiting_requests(of_one=9, limit=9)) == []


async def test_the_end_of_a_request_leaves_the_places_of_its_host_to_later_ones(
    post: Post, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome is stored after its place is free: the host has been idle by then, and others have new places."""
    finish, stored, released = post.queue._finish, list[int](), trio.Event()

    async def finish_the_first_one_late(key: int) -> None:
        stored.append(key)
        if len(stored) == 1:
            await released.wait()
        await finish(key)

    monkeypatch.setattr(post.queue, "_finish", finish_the_first_one_late)
    host = "https://slow.example.org"
    await post.add(1, f"{host}/first")
    await post.add(2, f"{host}/second")
    with trio.fail_after(2 * HANG_SECONDS):
        while len(stored) < 2:  # noqa: ASYNC110 - the worker tells nobody
            await trio.sleep(HANG_SECONDS / 4)
    await wait_all_tasks_blocked()
    for owner in range(3, 3 + RULE_REQUESTS_TO_ONE_HOST):
        await post.add(owner, f"{host}/{owner}")
    assert len(post.receivers.under_way) == RULE_REQUESTS_TO_ONE_HOST
    released.set()
    await wait_all_tasks_blocked()
    await post.add(99, f"{host}/99")
    assert len(post.receivers.under_way) == RULE_REQUESTS_TO_ONE_HOST
