"""The event feed: which subscribers get which events, their names, and their form (reference 19.4 and 20)."""

import json
from typing import Any

import msgpack
import pytest
import trio
import trio.testing
from msgspec.structs import replace
from trio.testing import MockClock
from trio_websocket import WebSocketConnection
from wsproto.events import CloseConnection, Message

from broker.facts import (
    AvailabilityChanged,
    DeviceCreated,
    DeviceDeleted,
    DeviceDisabled,
    DeviceEnabled,
    DeviceFact,
    DeviceUpdated,
    TokenRevoked,
    UserProfileUpdated,
)
from broker.secrets import token_hash
from broker.services import Services
from config.limits import IDS_MAX
from storage.keys import Milliseconds
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    DASHBOARD,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
)
from tests.protocols.websocket.peers import FEW_FRAMES, MOST_FRAMES, Peers, closing
from tests.rows import each_row

KINDS: dict[str, type[DeviceFact]] = {
    "device.new": DeviceCreated,
    "device.updated": DeviceUpdated,
    "device.connected": DeviceEnabled,
    "device.disconnected": DeviceDisabled,
    "device.deleted": DeviceDeleted,
}


def events(token: str, query: str = "") -> str:
    return f"/v1.1/events?authorization={token}&{query}"


async def device_fact(services: Services, kind: type[DeviceFact], did: str, aid: str | None = DASHBOARD) -> DeviceFact:
    device = await services.devices.registry.find(did)
    return kind(
        device=device.key,
        device_id=device.id,
        device_type=device.type_key,
        device_type_id=device.type.id,
        type_organization=device.type_organization,
        type_protected=device.type_protected,
        owner=device.owner,
        owner_id=device.owner_id,
        application_id=aid,
        at_ms=NOW_MS,
    )


async def tell(services: Services, name: str, did: str, aid: str | None = DASHBOARD) -> None:
    """An event of a device."""
    if name.startswith("device.status."):
        device = await services.devices.registry.find(did)
        services.core.router.publish(AvailabilityChanged(device.key, name.rpartition(".")[2], NOW_MS))
    else:
        services.core.router.publish(await device_fact(services, KINDS[name], did, aid))


async def heard(socket: WebSocketConnection) -> list[Any]:
    """All events that have arrived so far."""
    frames: list[Any] = []
    while True:
        with trio.move_on_after(0.1):
            frames.append(json.loads(await socket.get_message()))
            continue
        return frames


HEARD_OF = [
    # Without parameters: the device itself, the user's devices.
    (KITCHEN_TOKEN, "", [KITCHEN]),
    (ADA_TOKEN, "", [KITCHEN, HALL]),
    (BOB_TOKEN, "", [BOBS]),
    # By devices, in every spelling; both names count together.
    (ADA_TOKEN, f"did={HALL}", [HALL]),
    (ADA_TOKEN, f"dids={HALL}", [HALL]),
    (ADA_TOKEN, f"dids={HALL},{KITCHEN}", [KITCHEN, HALL]),
    (ADA_TOKEN, f"did={HALL}&dids={KITCHEN}", [KITCHEN, HALL]),
    (ADA_TOKEN, f"?did={HALL}", [HALL]),
    (KITCHEN_TOKEN, f"did={KITCHEN}", [KITCHEN]),
    (APPLICATION_TOKEN, f"dids={HALL}", [HALL]),
    # By user.
    (ADA_TOKEN, f"uid={ADA}", [KITCHEN, HALL]),
    (ADA_TOKEN, "uid=self", [KITCHEN, HALL]),
    (KITCHEN_TOKEN, f"uid={ADA}", [KITCHEN]),
    (APPLICATION_TOKEN, f"uid={ADA}", [KITCHEN, HALL]),
    (APPLICATION_TOKEN, f"uid={ADA}&did={HALL}", [HALL]),
]


@each_row(("token", "query", "expected"), HEARD_OF)
async def test_a_subscriber_gets_events_that_match_all_filters_and_its_permissions(
    autojump_clock: MockClock, services: Services, peers: Peers, token: str, query: str, expected: list[str]
) -> None:
    async with await peers.connect(events(token, query)) as socket:
        for did in (KITCHEN, HALL, BOBS):
            await tell(services, "device.updated", did)
        assert [frame["data"]["did"] for frame in await heard(socket)] == expected


REFUSED = [
    ("0" * 32, "", 401, 401),
    (ADA_TOKEN, f"uid={BOB}", 403, 403),
    (ADA_TOKEN, f"did={BOBS}", 403, 403),
    (KITCHEN_TOKEN, f"did={HALL}", 403, 403),
    (APPLICATION_TOKEN, f"uid={BOB}", 403, 403),
    (APPLICATION_TOKEN, f"did={BOBS}", 403, 403),
    (ADA_TOKEN, f"did={'f' * 32}", 404, 404),
    (ADA_TOKEN, f"uid={'f' * 32}", 404, 1201),
    (APPLICATION_TOKEN, "", 400, 4001),
    (APPLICATION_TOKEN, "events=device.*", 400, 4001),
    (ADA_TOKEN, "dids=" + ",".join(f"{number:032x}" for number in range(IDS_MAX + 1)), 400, 4001),
    (ADA_TOKEN, "events=" + ",".join(f"e{number}" for number in range(IDS_MAX + 1)), 400, 4001),
    (ADA_TOKEN, "events=" + "*a" * 100, 400, 4001),
]


@each_row(("token", "query", "status", "code"), REFUSED)
async def test_a_selection_without_permission_fails_the_handshake(
    autojump_clock: MockClock, peers: Peers, world: World, token: str, query: str, status: int, code: int
) -> None:
    answered, _, body = await peers.refusal(events(token, query))
    assert (answered, body["error"]["code"]) == (status, code)


async def test_without_a_token_the_handshake_fails(autojump_clock: MockClock, peers: Peers) -> None:
    status, _, body = await peers.refusal("/v1.1/events")
    assert (status, body["error"]["message"]) == (401, "Please provide a valid authorization header")


ALL = [*KINDS, "device.status.online", "device.status.offline"]
PATTERNS = [
    ("", ALL),
    ("events=*", ALL),
    ("events=device.*", ALL),
    ("events=device.status.*", ALL[-2:]),
    ("event=device.status.online", ["device.status.online"]),
    ("events=device.new,device.deleted", ["device.new", "device.deleted"]),
    ("events=device.new&event=device.updated", ["device.new", "device.updated"]),
    ("events=*.status.off*", ["device.status.offline"]),
    ("events=**", ALL),
    ("events=devicexnew", []),
    ("events=device", []),
    ("events=user.*", []),
    ("events=DEVICE.NEW", []),
]


@each_row(("query", "expected"), PATTERNS)
async def test_names_and_patterns_choose_the_events(
    autojump_clock: MockClock, services: Services, peers: Peers, world: World, query: str, expected: list[str]
) -> None:
    async with await peers.connect(events(ADA_TOKEN, query)) as socket:
        for name in ALL:
            await tell(services, name, KITCHEN)
        assert [frame["event"] for frame in await heard(socket)] == expected


@each_row("name", KINDS)
async def test_a_device_event_names_owner_application_device_and_type(
    autojump_clock: MockClock, services: Services, peers: Peers, world: World, name: str
) -> None:
    async with await peers.connect(events(ADA_TOKEN)) as socket:
        await tell(services, name, KITCHEN)
        assert await heard(socket) == [
            {
                "event": name,
                "ts": NOW_MS,
                "data": {"uid": ADA, "did": KITCHEN, "dtid": LIGHT_TYPE, "aid": DASHBOARD},
            }
        ]


async def test_an_operators_change_has_no_application(
    autojump_clock: MockClock, services: Services, peers: Peers, world: World
) -> None:
    async with await peers.connect(events(ADA_TOKEN)) as socket:
        await tell(services, "device.updated", KITCHEN, aid=None)
        [frame] = await heard(socket)
        assert "aid" not in frame["data"]


async def test_a_status_event_names_owner_and_device(
    autojump_clock: MockClock, services: Services, peers: Peers, world: World
) -> None:
    async with await peers.connect(events(ADA_TOKEN)) as socket:
        await tell(services, "device.status.online", KITCHEN)
        assert await heard(socket) == [
            {"event": "device.status.online", "ts": NOW_MS, "data": {"uid": ADA, "did": KITCHEN}}
        ]


async def test_a_status_without_an_event_is_not_sent(
    autojump_clock: MockClock, services: Services, peers: Peers, world: World
) -> None:
    async with await peers.connect(events(ADA_TOKEN)) as socket:
        services.core.router.publish(AvailabilityChanged(world.kitchen, "unknown", NOW_MS))
        assert await heard(socket) == []


@each_row(
    ("token", "query", "hears"),
    [
        (ADA_TOKEN, "", True),
        (ADA_TOKEN, f"did={KITCHEN}", False),
        (BOB_TOKEN, "", False),
        (KITCHEN_TOKEN, "", False),
        (APPLICATION_TOKEN, f"uid={ADA}", True),
    ],
)
async def test_an_event_of_a_changed_profile_reaches_the_user_and_the_users_applications(
    autojump_clock: MockClock, services: Services, peers: Peers, world: World, token: str, query: str, hears: bool
) -> None:
    async with await peers.connect(events(token, query)) as socket:
        services.core.router.publish(UserProfileUpdated(world.ada, ADA, NOW_MS))
        told = [{"event": "user.profile.updated", "ts": NOW_MS, "data": {"uid": ADA}}]
        assert await heard(socket) == (told if hears else [])


async def test_a_client_that_writes_message_pack_gets_message_pack(
    autojump_clock: MockClock, services: Services, peers: Peers, world: World
) -> None:
    async with (
        await peers.connect(events(ADA_TOKEN)) as packed,
        await peers.connect(events(ADA_TOKEN)) as text,
    ):
        await packed.send_message(msgpack.packb({"type": "hello"}))
        await trio.testing.wait_all_tasks_blocked()
        await tell(services, "device.new", KITCHEN)
        assert msgpack.unpackb(await packed.get_message()) == json.loads(await text.get_message())


async def test_a_revoked_token_ends_the_feed(
    autojump_clock: MockClock, services: Services, peers: Peers, world: World
) -> None:
    async with await peers.connect(events(ADA_TOKEN)) as socket:
        services.core.router.publish(TokenRevoked(token_hash(ADA_TOKEN)))
        assert await closing(socket) == (1008, "token revoked or expired")


@pytest.mark.usefixtures("few_wait")
async def test_a_slow_subscriber_is_closed_with_a_reason_and_without_a_gap(
    services: Services, peers: Peers, world: World, mock_clock: MockClock
) -> None:
    """No time passes: a busy machine would be slower than the server waits for the last frames to be read."""
    slow = await peers.connect_plain(events(ADA_TOKEN), lockstep=True)
    fact = await device_fact(services, DeviceUpdated, KITCHEN)
    async with await peers.connect(events(ADA_TOKEN)) as quick:
        for number in range(MOST_FRAMES + 1):
            services.core.router.publish(replace(fact, at_ms=Milliseconds(number)))
            if number % 100 == 0:
                heard_last = -1
                while heard_last < number:
                    heard_last = json.loads(await quick.get_message())["ts"]
        assert services.routing.events.statistics().subscribers == 1
    told = []
    while isinstance(event := await slow.event(), Message):
        told.append(json.loads(event.data)["ts"])
    assert isinstance(event, CloseConnection)
    assert event.code == 1013
    assert told == list(range(len(told)))
    assert len(told) >= FEW_FRAMES
