"""The progress of long work over the feed of events: who gets which hints, and how often (reference 27.22)."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, Final

import msgpack
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from broker.device_management.requests import TaskRequest
from broker.facts import BackupProgressed, DeliveriesProgressed, TaskProgressed, UploadProgressed
from broker.operating.progress import Follower, Hint, Work
from broker.services import Services
from broker.subscriptions.creation import NewSubscription
from broker.subscriptions.subscription import Subscription
from config.settings import ConsoleSettings, Settings
from storage.keys import Milliseconds, OrganizationKey
from storage.tasks import TaskRecord
from tests.builders import ServicesOpener
from tests.callbacks import FakeCallbacks, FakeStreams
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    World,
)
from tests.protocols.http.test_operator import FakeMachine, console_token
from tests.protocols.websocket.conftest import Disk
from tests.protocols.websocket.peers import Peers
from tests.protocols.websocket.test_events import events, heard, tell

ALL: Final = "progress=upload,task,deliveries,backup"
ORGANIZATION_S: Final = "progress=upload,task,deliveries"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(state_dir=settings.state_dir, console=ConsoleSettings(operators=("ada@example.org",)))


@pytest.fixture
async def services(opener: ServicesOpener, disk: Disk) -> AsyncIterator[Services]:
    async with opener(run_sync=disk, callbacks=FakeCallbacks(), streams=FakeStreams()) as opened:
        yield opened


@pytest.fixture
async def ada(services: Services, world: World) -> str:
    """Her token of the console; she is an administrator of Acme, and operates the service."""
    await set_role(services, world, "administrator")
    return await console_token(services, ADA)


@pytest.fixture
async def subscription(services: Services, world: World) -> Subscription:
    """Bob's, by an application of Acme, the Panel."""
    stream = NewSubscription(
        spelling="cloudStream",
        message_type="message",
        uid=BOB,
        stream_key="k",
        stream_secret="secret",
        stream_region="eu-west-1",
        stream_name="s",
    )
    caller = await services.accounts.tokens.caller(BOB_TOKEN)
    return await services.subscriptions.subscriptions.create(caller, stream)


async def set_role(services: Services, world: World, role: str) -> None:
    await services.core.database.write(lambda tx: tx.accounts.set_role(OrganizationKey(1), world.ada, role))


async def take_address(services: Services, world: World) -> None:
    """The operator has another address."""
    await services.core.database.write(
        lambda tx: tx.accounts.change_user(
            world.ada, email="other@example.org", full_name="Ada", password_hash=None, now_ms=1
        )
    )


async def new_task(services: Services, *, scheduled_on: Milliseconds | None = None) -> TaskRecord:
    type_ = await services.device_types.catalog.find(LIGHT_TYPE)
    request = TaskRequest(task_type="R", target="serverProperties.site", expires_after=60)
    made = await services.device_management.tasks.create(type_, request, scheduled_on=scheduled_on)
    return made.record


async def everything_goes_on(services: Services, world: World, subscription: Subscription) -> TaskRecord:
    task = await new_task(services)
    publish = services.core.router.publish
    publish(UploadProgressed("an upload", world.light_type))
    publish(TaskProgressed(task.key))
    publish(DeliveriesProgressed(subscription.key))
    publish(BackupProgressed())
    return task


async def test_each_gets_the_hints_of_work_that_it_may_see(
    services: Services,
    peers: Peers,
    world: World,
    ada: str,
    subscription: Subscription,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Administrators and applications that of their types, developers the delivery logs, operators the backups."""
    bob = await console_token(services, BOB)
    upload, task, deliveries, backup = (f"progress.{kind}" for kind in Work)
    for role, token, query, expected in (
        ("administrator", ada, ALL, {upload, task, deliveries, backup}),
        ("administrator", ada, "progress=task", {task}),
        ("developer", ada, ALL, {deliveries, backup}),
        ("viewer", ada, ORGANIZATION_S, set()),
        ("administrator", ADA_TOKEN, ORGANIZATION_S, {upload, task}),
        ("developer", ADA_TOKEN, ORGANIZATION_S, set()),
        ("viewer", APPLICATION_TOKEN, ORGANIZATION_S, {upload, task}),
        ("administrator", BOB_TOKEN, ORGANIZATION_S, {deliveries}),
        ("administrator", bob, ORGANIZATION_S, set()),
        ("administrator", ada, "", set()),
        ("administrator", ada, "events=*", set()),
    ):
        await set_role(services, world, role)
        async with await peers.connect(events(token, query)) as socket:
            await trio.testing.wait_all_tasks_blocked()
            made = await everything_goes_on(services, world, subscription)
            frames = await heard_for_long(socket)
        assert {one["event"] for one in frames} == expected, (role, token, query)
        named = {one["event"]: one["data"] for one in frames}
        known = {
            upload: {"uploadId": "an upload", "dtid": LIGHT_TYPE},
            task: {"id": made.id, "dtid": LIGHT_TYPE},
            deliveries: {"subscriptionId": subscription.id},
            backup: {},
        }
        assert named == {name: known[name] for name in named}
        assert all(set(one) == {"event", "ts", "data"} for one in frames)


async def heard_for_long(socket: Any) -> list[Any]:
    """Until nothing came for longer than hints may wait."""
    found: list[Any] = []
    for _ in range(5):
        found += await heard(socket)
    return found


async def test_events_come_beside_progress_only_by_their_names(
    services: Services, peers: Peers, world: World, ada: str, autojump_clock: MockClock
) -> None:
    for query, expected in (
        ("progress=backup", ["progress.backup"]),
        ("progress=backup&events=device.*", ["device.updated", "progress.backup"]),
        ("events=device.*,progress.*", ["device.updated"]),
    ):
        async with await peers.connect(events(ada, query)) as socket:
            await trio.testing.wait_all_tasks_blocked()
            await tell(services, "device.updated", (await services.devices.registry.get(world.kitchen)).id)
            services.core.router.publish(BackupProgressed())
            assert [one["event"] for one in await heard_for_long(socket)] == expected


async def test_hints_have_the_form_of_the_client_s_latest_frame(
    services: Services, peers: Peers, ada: str, autojump_clock: MockClock
) -> None:
    async with await peers.connect(events(ada, "progress=backup")) as socket:
        await socket.send_message(msgpack.packb({"type": "ping"}))
        await trio.testing.wait_all_tasks_blocked()
        services.core.router.publish(BackupProgressed())
        frame = msgpack.unpackb(await socket.get_message())
        assert (frame["event"], frame["data"]) == ("progress.backup", {})


async def test_who_has_left_gets_no_hint_that_was_on_its_way(
    services: Services, ada: str, autojump_clock: MockClock
) -> None:
    feed, kinds, hints = services.operating.progress, frozenset({Work.BACKUP}), list[Hint]()
    leaving = ExitStack()
    with feed.follow(Follower(kinds, ada, lambda _hint: leaving.close())):
        leaving.enter_context(feed.follow(Follower(kinds, ada, hints.append)))
        services.core.router.publish(BackupProgressed())
        await trio.sleep(1)
    assert hints == []


async def test_a_hint_on_its_way_survives_a_change_of_the_subscription(services: Services, ada: str) -> None:
    """Sockets subscribe again whenever they are checked."""
    hints: list[Hint] = []
    feed, follower = services.operating.progress, Follower(frozenset({Work.BACKUP}), ada, hints.append)
    with feed.follow(follower):
        services.core.router.publish(BackupProgressed())
    with feed.follow(follower), trio.fail_after(20):
        while not hints:
            await trio.lowlevel.checkpoint()
    assert [one.name for one in hints] == ["progress.backup"]


async def test_who_may_not_ask_is_refused(
    services: Services, peers: Peers, world: World, ada: str, autojump_clock: MockClock
) -> None:
    for token, query, status in (
        (KITCHEN_TOKEN, "progress=task", 403),
        (ADA_TOKEN, "progress=backup", 403),  # no application operates the service
        (APPLICATION_TOKEN, "progress=backup", 403),
        (await console_token(services, BOB), "progress=task,backup", 403),
        (ada, "progress=true", 400),
        (APPLICATION_TOKEN, "progress=task&events=*", 400),  # events need a user or a device
        ("0" * 32, "progress=task", 401),
    ):
        assert (await peers.refusal(events(token, query)))[0] == status, (token, query)


async def test_a_role_or_token_that_is_lost_ends_the_hints_at_once(
    services: Services, peers: Peers, world: World, ada: str, autojump_clock: MockClock
) -> None:
    async with await peers.connect(events(ada, "progress=task,backup")) as socket:
        await new_task(services)
        assert {one["event"] for one in await heard_for_long(socket)} == {"progress.task"}
        await set_role(services, world, "developer")
        await take_address(services, world)
        await new_task(services)
        services.core.router.publish(BackupProgressed())
        assert await heard_for_long(socket) == []


async def test_work_that_goes_on_all_the_time_makes_four_hints_a_second(
    services: Services, ada: str, autojump_clock: MockClock
) -> None:
    """The first at once, and the last change is never left out."""
    hints: list[tuple[float, Hint]] = []
    began = trio.current_time()

    def offer(hint: Hint) -> None:
        hints.append((trio.current_time() - began, hint))

    with services.operating.progress.follow(Follower(frozenset({Work.BACKUP}), ada, offer)):
        for _ in range(100):
            services.core.router.publish(BackupProgressed())
            await trio.sleep(0.01)
        ended = trio.current_time() - began
        await trio.sleep(2)
    assert hints[0][0] < 0.01
    assert len(hints) <= 6
    assert all(later - earlier >= 0.25 for (earlier, _), (later, _) in pairwise(hints))
    assert hints[-1][0] >= ended - 0.01


async def test_what_waits_is_bounded_and_nothing_waits_for_nobody(
    services: Services, world: World, ada: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr("broker.operating.progress.WORKS_TOLD", 5)
    hints: list[Hint] = []

    def many() -> None:
        for number in range(20):
            services.core.router.publish(UploadProgressed(f"upload {number}", world.light_type))

    many()
    with services.operating.progress.follow(Follower(frozenset({Work.UPLOAD}), ada, hints.append)):
        await trio.sleep(1)
        assert hints == []
        many()
        await trio.sleep(1)
        assert [one.data["uploadId"] for one in hints] == [f"upload {number}" for number in range(5)]
        many()  # there is room again
        await trio.sleep(1)
        assert len(hints) == 10


async def test_a_follower_that_fails_does_not_harm_the_others(
    services: Services, ada: str, autojump_clock: MockClock
) -> None:
    hints: list[Hint] = []

    def fail(_hint: Hint) -> None:
        raise RuntimeError("a bug")

    feed, kinds = services.operating.progress, frozenset({Work.BACKUP})
    with feed.follow(Follower(kinds, ada, fail)), feed.follow(Follower(kinds, ada, hints.append)):
        services.core.router.publish(BackupProgressed())
        await trio.sleep(1)
    assert [one.name for one in hints] == ["progress.backup"]


async def test_the_work_itself_tells_that_it_goes_on(
    services: Services, world: World, ada: str, subscription: Subscription, autojump_clock: MockClock
) -> None:
    """Each kind of work tells it from its begin to its end."""
    hints: list[str] = []
    followed = Follower(frozenset(Work), ada, lambda hint: hints.append(hint.name))

    async def told() -> list[str]:
        await trio.sleep(2)
        found = hints.copy()
        hints.clear()
        return found

    with services.operating.progress.follow(followed):
        task = await new_task(services)
        assert set(await told()) == {"progress.task"}
        at_ms = Milliseconds(services.core.clock.now_ms() + 3_600_000)
        later = await new_task(services, scheduled_on=at_ms)
        assert set(await told()) == {"progress.task"}
        await services.device_management.tasks.cancel(later)
        assert set(await told()) == {"progress.task"}
        assert task.key != later.key

        device = await services.devices.registry.find(BOBS)
        services.messages.ingest.submit(device, b'{"state":true}', None)
        assert set(await told()) == {"progress.deliveries"}  # the stream has taken it
        await services.subscriptions.log.replay(subscription, ids=None, end_ms=2**50)
        assert set(await told()) == {"progress.deliveries"}

        services.operating.machine = machine = FakeMachine()
        await services.operating.backups.begin(machine)
        assert set(await told()) == {"progress.backup"}
        machine.failure = "the disk is full"
        machine.gate.set()
        assert set(await told()) == {"progress.backup"}
        assert await told() == []


async def test_an_upload_tells_that_it_goes_on_and_that_it_was_refused(
    services: Services, ada: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.operating.progress._GAP_SECONDS", 0)  # a thread reads the file in real time
    send, receive = trio.open_memory_channel[Hint](100)
    type_ = await services.device_types.catalog.find(LIGHT_TYPE)
    lists = services.registration.approved_lists
    with services.operating.progress.follow(Follower(frozenset({Work.UPLOAD}), ada, send.send_nowait)):
        for content, status in ((b"vdid\na\nb\n", "Completed"), (b"no header\n", "Failed")):
            upload_id = await lists.upload(type_, content)
            with trio.fail_after(20):
                while (hint := await receive.receive()).data["uploadId"] != upload_id or (
                    await lists.upload_status(type_, upload_id)
                ).status != status:
                    pass
            assert hint.data == {"uploadId": upload_id, "dtid": LIGHT_TYPE}
