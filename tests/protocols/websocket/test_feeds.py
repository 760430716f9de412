"""The live feed: selections, each message once, and slow readers."""

import json
from contextlib import AsyncExitStack
from typing import Any

import msgpack
import pytest
import trio
import trio.testing
from trio_websocket import WebSocketConnection
from wsproto.events import CloseConnection, Message

from broker.facts import TokenRevoked
from broker.secrets import token_hash
from broker.services import Services
from protocols.websocket.connection import SLOW_READER_SECONDS
from protocols.websocket.feeds import RecentMids
from storage.keys import Position
from storage.records import DeviceTokenRecord, GrantRecord
from tests.factories import (
    ACME,
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    BOBS,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
    allow,
    new_device,
)
from tests.fakes import FakeClock
from tests.protocols.websocket.peers import FEW_FRAMES, MOST_FRAMES, Peers, PlainPeer, closing, said
from tests.rows import each_row
from tests.tickets import at

pytestmark = pytest.mark.slow


ACTION = b'{"actions":[{"name":"setOn"}]}'
ATTIC = "14" * 16


def live(token: str, query: str = "") -> str:
    return f"/v1.1/live?Authorization=bearer+{token}&{query}"


async def store(services: Services, *sdids: str, data: bytes = b'{"state":true}') -> list[str]:
    """One message from each, all durable; gives their mids."""
    devices = [await services.devices.registry.find(sdid) for sdid in sdids]
    positions = [services.messages.ingest.submit(device, data) for device in devices]
    await services.messages.ingest.wait_committed()
    return [services.messages.ingest.mid(at(position)) for position in positions]


async def seen(socket: WebSocketConnection) -> list[Any]:
    """All frames that have arrived so far."""
    frames: list[Any] = []
    while True:
        with trio.move_on_after(0.1):
            frames.append(json.loads(await socket.get_message()))
            continue
        return frames


WATCHED = [
    # Without parameters: the device itself, the user's devices, all that an application may read.
    (KITCHEN_TOKEN, "", [KITCHEN]),
    (ADA_TOKEN, "", [KITCHEN, HALL]),
    (BOB_TOKEN, "", [BOBS]),
    (APPLICATION_TOKEN, "", [KITCHEN, HALL]),
    # By devices.
    (ADA_TOKEN, f"sdid={HALL}", [HALL]),
    (ADA_TOKEN, f"sdids={HALL}", [HALL]),
    (ADA_TOKEN, f"sdids={HALL},%20{KITCHEN},", [KITCHEN, HALL]),
    (ADA_TOKEN, f"sdids={HALL}&sdids={KITCHEN}", [KITCHEN, HALL]),
    (ADA_TOKEN, f"sdids={HALL}&sdid={KITCHEN}", [KITCHEN, HALL]),
    (ADA_TOKEN, f"?sdids={HALL}", [HALL]),
    (ADA_TOKEN, "sdids=", [KITCHEN, HALL]),
    (KITCHEN_TOKEN, f"sdids={KITCHEN}", [KITCHEN]),
    (APPLICATION_TOKEN, f"sdids={HALL}", [HALL]),
    # By type.
    (ADA_TOKEN, f"sdtids={LIGHT_TYPE}", [KITCHEN, HALL]),
    (BOB_TOKEN, "sdtids=example.smart_light", [BOBS]),
    (APPLICATION_TOKEN, f"sdtids={LIGHT_TYPE}", [KITCHEN, HALL]),
    # By user.
    (ADA_TOKEN, f"uid={ADA}", [KITCHEN, HALL]),
    (ADA_TOKEN, "uid=self", [KITCHEN, HALL]),
    (ADA_TOKEN, f"uid={ADA}&includeSharedDevices=true", [KITCHEN, HALL]),
    (APPLICATION_TOKEN, f"uid={ADA}", [KITCHEN, HALL]),
    (KITCHEN_TOKEN, f"uid={ADA}", [KITCHEN]),
    (ADA_TOKEN, f"uid={ADA}&sdtids={LIGHT_TYPE}", [KITCHEN, HALL]),
    (APPLICATION_TOKEN, f"uid={ADA}&sdids={HALL},{KITCHEN}&includeSharedDevices=1", [KITCHEN, HALL]),
    # There is no user whose shares it could mean.
    (APPLICATION_TOKEN, "includeSharedDevices=true", [KITCHEN, HALL]),
    # All at once: each narrows the others, and a message matched by all of them comes once.
    (ADA_TOKEN, f"sdids={HALL}&sdtids={LIGHT_TYPE}&uid={ADA}", [HALL]),
]


@each_row(("token", "query", "devices"), WATCHED)
async def test_selections(
    peers: Peers, services: Services, token: str, query: str, devices: list[str], autojump_clock: trio.testing.MockClock
) -> None:
    socket = await peers.connect(live(token, query))
    await store(services, KITCHEN, HALL, BOBS)
    assert [frame["sdid"] for frame in await seen(socket)] == devices


async def test_a_frame(peers: Peers, services: Services) -> None:
    socket = await peers.connect(live(ADA_TOKEN))
    (mid,) = await store(services, KITCHEN, data=b'{ "state" : "true", "text": "\xc3\xa4", "other": 1 }')
    assert json.loads(await socket.get_message()) == {
        "mid": mid,
        "data": {"state": True, "text": "ä"},
        "ts": NOW_MS,
        "sdtid": LIGHT_TYPE,
        "cts": NOW_MS,
        "uid": ADA,
        "mv": 1,
        "sdid": KITCHEN,
        "boid": ACME,
    }


async def test_a_message_without_known_fields_is_not_sent(peers: Peers, services: Services) -> None:
    socket = await peers.connect(live(ADA_TOKEN))
    await store(services, KITCHEN, data=b'{"unknown":1}')
    (mid,) = await store(services, KITCHEN)
    assert (await said(socket))["mid"] == mid


async def test_actions_of_a_watched_source_are_shown(peers: Peers, services: Services) -> None:
    watcher = await peers.connect(live(ADA_TOKEN, f"sdids={HALL}"))
    kitchen, hall = await services.devices.registry.find(KITCHEN), await services.devices.registry.find(HALL)
    services.messages.ingest.submit_action(kitchen, hall, ACTION)
    services.messages.ingest.submit_action(hall, kitchen, ACTION)
    frame = await said(watcher)
    assert (frame["type"], frame["sdid"], frame["ddid"], frame["boid"]) == ("action", HALL, KITCHEN, ACME)


async def test_a_client_that_writes_message_pack_gets_message_pack(peers: Peers, services: Services) -> None:
    plain, packed = await peers.connect(live(ADA_TOKEN)), await peers.connect(live(ADA_TOKEN))
    await packed.send_message(msgpack.packb({"type": "anything"}))
    await trio.testing.wait_all_tasks_blocked()
    await store(services, KITCHEN)
    kitchen = await services.devices.registry.find(KITCHEN)
    services.messages.ingest.submit_action(kitchen, kitchen, ACTION)
    for _ in range(2):
        assert msgpack.unpackb(await packed.get_message()) == json.loads(await plain.get_message())
    await packed.send_message("{}")
    await trio.testing.wait_all_tasks_blocked()
    await store(services, KITCHEN)
    assert await packed.get_message() == await plain.get_message()


async def test_a_device_created_later_is_seen(peers: Peers, services: Services, world: World) -> None:
    socket = await peers.connect(live(ADA_TOKEN))
    await store(services, KITCHEN)

    def create(tx: Any) -> None:
        key = tx.devices.put_device(
            new_device(
                ATTIC,
                owner=world.ada,
                device_type=world.light_type,
                name="Attic",
                manifest_version=1,
                manifest_version_policy="LATEST",
                enabled=True,
                now_ms=1,
            )
        )
        tx.devices.put_token(DeviceTokenRecord(key, b"x" * 32, b"", None, 1))

    await services.core.database.write(create)
    await store(services, ATTIC)
    assert [(await said(socket))["sdid"] for _ in range(2)] == [KITCHEN, ATTIC]


@each_row("sockets", [False, True])
async def test_who_has_the_answer_to_the_handshake_has_subscribed(
    peers: Peers, services: Services, sockets: bool
) -> None:
    """trio takes any task first that can run: a single handshake would show nothing."""
    async with AsyncExitStack() as streams:
        for number in range(1, 17):
            stream = await streams.enter_async_context(peers.open_stream(sockets=sockets))
            await PlainPeer(stream).shake_hands(live(ADA_TOKEN))
            assert services.routing.feeds.statistics().subscribers == number


async def test_the_subscription_ends_with_the_connection(peers: Peers, services: Services) -> None:
    socket = await peers.connect(live(ADA_TOKEN))
    assert services.routing.feeds.statistics().subscribers == 1
    await socket.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert services.routing.feeds.statistics().subscribers == 0


# --- What changes while one watches ---


async def test_a_grant_made_later_counts_at_once(peers: Peers, services: Services, world: World) -> None:
    socket = await peers.connect(live(APPLICATION_TOKEN))
    await store(services, BOBS)
    grant = GrantRecord(world.bob, world.application, None, read=True, write=False)
    await allow(services, grant)
    (mid,) = await store(services, BOBS)
    assert (await said(socket))["mid"] == mid


async def test_an_expired_token_ends_the_feed_with_the_next_ping(
    peers: Peers, fake_clock: FakeClock, autojump_clock: trio.testing.MockClock
) -> None:
    socket = await peers.connect(live(ADA_TOKEN))
    fake_clock.advance(NOW_MS)
    assert await closing(socket) == (1008, "token revoked or expired")


async def test_a_revoked_token_ends_the_feed_at_once(peers: Peers, services: Services, world: World) -> None:
    socket = await peers.connect(live(ADA_TOKEN))
    services.core.router.publish(TokenRevoked(token_hash(ADA_TOKEN)))
    assert await closing(socket) == (1008, "token revoked or expired")


# --- Slow readers ---


@pytest.mark.usefixtures("few_wait")
async def test_a_slow_reader_is_closed_and_the_others_miss_nothing(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    slow = await peers.connect_plain(live(ADA_TOKEN), lockstep=True)
    good = await peers.connect(live(ADA_TOKEN))
    mids: list[str] = []
    for _ in range(FEW_FRAMES):
        mids += await store(services, KITCHEN)
    await trio.sleep(SLOW_READER_SECONDS + 0.1)
    later = await store(services, KITCHEN)
    assert [(await said(good))["mid"] for _ in range(len(mids) + 1)] == mids + later
    # Frames that were sent before can still be read.
    assert [(await slow.said())["mid"] for _ in mids] == mids
    assert await slow.close_code() == 1013


@pytest.mark.usefixtures("few_wait")
async def test_few_frames_may_wait_without_a_time_limit(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    slow = await peers.connect_plain(live(ADA_TOKEN), lockstep=True)
    mids = await store(services, *[KITCHEN] * (FEW_FRAMES - 1))
    await trio.sleep(20)
    assert [(await slow.said())["mid"] for _ in mids] == mids


@pytest.mark.usefixtures("few_wait")
async def test_a_subscriber_that_is_behind_but_reads_stays_connected(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    """More than the allowed number of frames always waits, but the client reads within the time limit."""
    reader = await peers.connect_plain(live(ADA_TOKEN), lockstep=True)
    waiting = await store(services, *[KITCHEN] * (2 * FEW_FRAMES))
    for _ in range(5):
        await trio.sleep(SLOW_READER_SECONDS * 0.9)
        mids = await store(services, *[KITCHEN] * (2 * FEW_FRAMES))
        assert [(await reader.said())["mid"] for _ in waiting] == waiting
        waiting = mids
    assert [(await reader.said())["mid"] for _ in waiting] == waiting


@pytest.mark.usefixtures("few_wait")
async def test_frames_that_the_operating_system_has_taken_do_not_count_as_waiting(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    reader = await peers.connect_plain(live(ADA_TOKEN), sockets=True)
    async with reader.stream:
        for _ in range(10 * (MOST_FRAMES // FEW_FRAMES + 1)):
            mids = await store(services, *[KITCHEN] * (FEW_FRAMES // 10))
            assert [(await reader.said())["mid"] for _ in mids] == mids
        await trio.sleep(20)
        assert services.routing.feeds.statistics().subscribers == 1


@pytest.mark.usefixtures("few_wait")
async def test_a_socket_that_is_not_read_is_closed_after_whole_frames(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    slow = await peers.connect_plain(live(ADA_TOKEN), sockets=True)
    async with slow.stream:
        mids: list[str] = []
        while services.routing.feeds.statistics().subscribers:
            mids += await store(services, *[KITCHEN] * FEW_FRAMES)
            await trio.sleep(SLOW_READER_SECONDS / 4)
        told = []
        while isinstance(event := await slow.event(), Message):
            told.append(json.loads(event.data)["mid"])
        assert isinstance(event, CloseConnection)
        assert (event.code, event.reason) == (1013, "reads too slowly")
    assert told == mids[: len(told)]


@pytest.mark.usefixtures("few_wait")
async def test_the_number_of_waiting_frames_is_bounded_at_any_time(peers: Peers, services: Services) -> None:
    slow = await peers.connect_plain(live(ADA_TOKEN), lockstep=True)
    for _ in range(3):
        await store(services, *[KITCHEN] * (MOST_FRAMES // 2))
    await trio.testing.wait_all_tasks_blocked()
    assert services.routing.feeds.statistics().subscribers == 0
    assert await slow.close_code() == 1013


@pytest.mark.usefixtures("few_wait")
async def test_the_connection_of_a_slow_reader_that_never_reads_again_ends(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    await peers.connect_plain(live(ADA_TOKEN), lockstep=True)
    await store(services, *[KITCHEN] * FEW_FRAMES)
    await trio.sleep(10)
    assert services.routing.feeds.statistics().subscribers == 0


# --- The mids of frames ---


def test_a_mid_that_a_subscriber_got_is_worked_out_once_and_those_kept_are_bounded() -> None:
    asked: list[int] = []

    def mid(position: Position) -> str:
        asked.append(position)
        return f"mid of {position}"

    mids = RecentMids(mid)
    positions = [Position(number) for number in range(1, 20_000)]
    for position in positions:
        assert mids.of([position]) == mids.of([position]) == mids.find([position]) == [f"mid of {position}"]
    assert asked == positions
    assert len(mids._known) < 10_000
    assert mids.find(positions[:2]) == ["mid of 1", "mid of 2"]
    assert mids.of(positions) == [f"mid of {position}" for position in positions]
    assert len(mids._known) < 10_000
