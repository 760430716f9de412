"""The WebSocket server with the real services: handshakes, the device channel on the wire, and every way to end."""

import json
import math
from typing import Any

import msgpack
import pytest
import trio
import trio.testing
from msgspec.structs import replace
from structlog.testing import capture_logs
from wsproto.events import BytesMessage, CloseConnection, Message, Pong

from broker.facts import DeviceWentOffline, DeviceWentOnline, TokenRevoked
from broker.ids import is_id
from broker.secrets import token_hash
from broker.services import Services
from config.limits import PACKETS_PER_TURN, PING_SECONDS, UNREGISTERED_FRAMES_MAX
from protocols.websocket.connection import PONGS_OF_TURN
from storage.records import GrantRecord
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    BOBS_TOKEN,
    HALL,
    HALL_TOKEN,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
    allow,
    new_device,
    new_device_type,
)
from tests.fakes import FakeClock
from tests.protocols.websocket.conftest import Disk
from tests.protocols.websocket.peers import EMPTY_PING, FEW_FRAMES, Peers, ask, closing, register, said, say
from tests.rows import each_row

CHANNEL = "/v1.1/websocket"
WITH_ACK = "/v1.1/websocket?ack=true"
UNKNOWN = "99" * 16
ACTION = {"actions": [{"name": "setOn"}]}
OK = {"message": "OK", "code": "200"}


def error(code: int, message: str, **more: str) -> dict[str, object]:
    return {"error": {"code": code, "message": message, **more}}


# --- The handshake ---

REFUSED = [
    ("/v1.1/nowhere", 404, 404, "Not Found"),
    ("/", 404, 404, "Not Found"),
    ("/v1.1/WebSocket", 404, 404, "Not Found"),
    (f"{CHANNEL}?Authorization=bearer+{UNKNOWN}", 401, 401, "Please provide a valid authorization header"),
    (f"{CHANNEL}?Authorization=basic+{ADA_TOKEN}", 401, 401, "Please provide a valid authorization header"),
    ("/v1.1/live", 401, 401, "Please provide a valid authorization header"),
    ("/v1.1/live?Authorization=", 401, 401, "Please provide a valid authorization header"),
    (f"/v1.1/live?Authorization=bearer+{UNKNOWN}", 401, 401, "Please provide a valid authorization header"),
    (f"/v1.1/live?Authorization={ADA_TOKEN}&sdids={UNKNOWN}", 404, 404, "Not Found"),
    (f"/v1.1/live?Authorization={ADA_TOKEN}&sdtids={UNKNOWN}", 404, 1101, "Device type does not exist."),
    (f"/v1.1/live?Authorization={ADA_TOKEN}&uid={UNKNOWN}", 404, 1201, "User does not exist."),
    (
        f"/v1.1/live?Authorization={ADA_TOKEN}&sdids={KITCHEN},{BOBS}",
        403,
        403,
        f"You don't have the right permissions: READ on device {BOBS}",
    ),
    (
        f"/v1.1/live?Authorization={ADA_TOKEN}&uid={BOB}",
        403,
        403,
        f"You don't have the right permissions: READ on user {BOB}",
    ),
    (
        f"/v1.1/live?Authorization={APPLICATION_TOKEN}&uid={BOB}",
        403,
        403,
        f"You don't have the right permissions: READ on user {BOB}",
    ),
    (
        f"/v1.1/live?Authorization={KITCHEN_TOKEN}&uid={BOB}",
        403,
        403,
        f"You don't have the right permissions: READ on user {BOB}",
    ),
    (
        f"/v1.1/live?Authorization={KITCHEN_TOKEN}&sdids={HALL}",
        403,
        403,
        f"You don't have the right permissions: READ on device {HALL}",
    ),
    (
        f"/v1.1/live?Authorization={KITCHEN_TOKEN}&sdtids={LIGHT_TYPE}",
        403,
        403,
        "You don't have the right permissions: messages by device type with a device token",
    ),
    (
        f"/v1.1/live?Authorization={ADA_TOKEN}&sdids={','.join(f'{n:032x}' for n in range(101))}",
        400,
        4001,
        "Validation Error",
    ),
]


@each_row(("path", "status", "code", "message"), REFUSED)
async def test_refused_handshake(peers: Peers, path: str, status: int, code: int, message: str) -> None:
    answered, headers, body = await peers.refusal(path)
    assert answered == status
    assert headers[b"content-type"] == b"application/json; charset=utf-8"
    assert (body["error"]["code"], body["error"]["message"]) == (code, message)
    assert is_id(body["error"]["id"])


HANDSHAKE = (
    b"GET /v1.1/websocket HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
HEADS = [
    (HANDSHAKE, 101),
    (HANDSHAKE.replace(b"\r\n", b"\n"), 101),
    (HANDSHAKE.replace(b"/v1.1/websocket", b"/v1.1/live?sdids=\xff"), 400),
    (HANDSHAKE.replace(b"Version: 13", b"Version: 8"), 426),
    (HANDSHAKE.replace(b"Sec-WebSocket-Key", b"Sec-WebSocket-Cay"), 400),
    (HANDSHAKE.replace(b"Host: x", b"Host: xn--\xff"), 400),
    (HANDSHAKE.replace(b"Host: x", b"Ghost: x"), 400),
    (HANDSHAKE.replace(b"Host: x", b"Host: x\r\nno header"), 400),
    (HANDSHAKE.replace(b"GET", b"POST"), 400),
]


@each_row(("head", "status"), HEADS)
async def test_a_head_of_any_kind_is_answered(peers: Peers, head: bytes, status: int) -> None:
    stream = peers.open_stream()
    await stream.send_all(head)
    assert bytes(await stream.receive_some()).startswith(b"HTTP/1.1 %d " % status)


async def test_frames_sent_behind_the_handshake_are_not_lost(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    stream = peers.open_stream()
    register = json.dumps({"type": "register", "sdid": KITCHEN, "authorization": KITCHEN_TOKEN}, separators=(",", ":"))
    await stream.send_all(HANDSHAKE + bytes((0x81, 0x80 | len(register), 0, 0, 0, 0)) + register.encode())
    await trio.testing.wait_all_tasks_blocked()
    assert services.routing.connections.statistics().devices_online == 1


# --- Registration ---


async def test_a_device_registers_and_speaks(peers: Peers, services: Services, world: World) -> None:
    socket = await peers.connect(WITH_ACK)
    assert await ask(socket, type="register", sdid=KITCHEN, Authorization=f"bearer {KITCHEN_TOKEN}", cid=1) == {
        "data": {**OK, "cid": "1"}
    }
    assert services.routing.connections.is_online(world.kitchen)
    answer = await ask(socket, sdid=KITCHEN, data={"state": True, "unknown": 1}, ts=NOW_MS - 5, cid="a")
    assert answer["data"]["cid"] == "a"
    found = await services.messages.history.by_mid(answer["data"]["mid"])
    assert found is not None
    assert (found[0].sdid, found[0].data, found[0].ts) == (KITCHEN, '{"state":true}', NOW_MS - 5)


async def test_a_device_is_given_what_is_wanted_when_it_registers_and_with_each_change(
    peers: Peers, services: Services, world: World
) -> None:
    fields = [{"name": name, "valueClass": "Integer", "settable": True} for name in ("speed", "level")]
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": fields}, approve=True)
    kitchen = await services.devices.registry.get(world.kitchen)

    async def want(data: bytes) -> dict[str, str]:
        view = await services.wanted.put(kitchen, data, expires_after=60, application_id=None)
        return {one.field: str(one.state) for one in view.fields}

    await want(b'{"speed":3}')
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    assert await said(socket) == {"type": "wanted", "ddid": KITCHEN, "data": {"speed": 3}}
    await want(b'{"level":4}')
    assert await said(socket) == {"type": "wanted", "ddid": KITCHEN, "data": {"level": 4, "speed": 3}}
    await services.wanted.step()
    assert await want(b'{"speed":null}') == {"level": "sent"}
    assert await said(socket) == {"type": "wanted", "ddid": KITCHEN, "data": {"level": 4}}
    await say(socket, sdid=KITCHEN, data={"level": 4})
    frames = [await said(socket) for _ in range(2)]  # the value is reached, and the message acknowledged
    assert {"type": "wanted", "ddid": KITCHEN, "data": {}} in frames


@pytest.mark.usefixtures("positions_jump")
async def test_mids_are_those_of_the_positions_that_the_commit_gives(
    peers: Peers, services: Services, world: World
) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    for state in ("true", "false"):
        answer = await ask(socket, sdid=KITCHEN, data={"state": state == "true"})
        found = await services.messages.history.by_mid(answer["data"]["mid"])
        assert found is not None
        assert found[0].data == f'{{"state":{state}}}'


REGISTRATIONS = [
    {"sdid": KITCHEN, "Authorization": f"bearer {KITCHEN_TOKEN}"},
    {"sdid": KITCHEN, "authorization": ADA_TOKEN},
    {"sdid": KITCHEN, "Authorization": APPLICATION_TOKEN},
]
REFUSED_REGISTRATIONS = [
    ({"sdid": KITCHEN}, (401, "Please provide a valid authorization header")),
    ({"sdid": KITCHEN, "Authorization": UNKNOWN}, (401, "Please provide a valid authorization header")),
    ({"sdid": KITCHEN, "Authorization": "basic x"}, (401, "Please provide a valid authorization header")),
    ({"Authorization": KITCHEN_TOKEN}, (400, "Missing sdid value")),
    ({"sdid": UNKNOWN, "Authorization": ADA_TOKEN}, (404, "Device(s) not found")),
    ({"sdid": UNKNOWN, "Authorization": UNKNOWN}, (401, "Please provide a valid authorization header")),
    ({"sdid": HALL, "Authorization": KITCHEN_TOKEN}, (403, "You do not have the right permission: devices")),
    ({"sdid": BOBS, "Authorization": ADA_TOKEN}, (403, "You do not have the right permission: devices")),
    ({"sdid": BOBS, "Authorization": APPLICATION_TOKEN}, (403, "You do not have the right permission: devices")),
]


@each_row("path", [CHANNEL, WITH_ACK])
@each_row("frame", REGISTRATIONS)
async def test_registration(peers: Peers, services: Services, path: str, frame: dict[str, object]) -> None:
    socket = await peers.connect(path)
    await say(socket, type="register", cid="r", **frame)
    if path == WITH_ACK:
        assert await said(socket) == {"data": {**OK, "cid": "r"}}
    answer = await ask(socket, type="list")
    assert answer["data"]["message"] == [frame["sdid"]]
    assert services.routing.connections.statistics().devices_online == 1


@each_row("path", [CHANNEL, WITH_ACK])
@each_row(("frame", "refusal"), REFUSED_REGISTRATIONS)
async def test_a_refused_registration(
    peers: Peers, services: Services, path: str, frame: dict[str, object], refusal: tuple[int, str]
) -> None:
    socket = await peers.connect(path)
    await say(socket, type="register", cid="r", **frame)
    assert await said(socket) == error(*refusal, cid="r")
    answer = await ask(socket, type="list")
    assert answer["data"]["message"] == []
    assert services.routing.connections.statistics().devices_online == 0


async def test_read_without_write_is_not_enough(peers: Peers, services: Services, world: World) -> None:
    grant = GrantRecord(world.bob, world.application, world.light_type, read=True, write=False)
    await allow(services, grant)
    await _give_type_to_another_organization(services)
    socket = await peers.connect(WITH_ACK)
    answer = await ask(socket, type="register", sdid=BOBS, Authorization=APPLICATION_TOKEN)
    assert answer == error(403, "You do not have the right permission: devices")


async def _give_type_to_another_organization(services: Services) -> None:
    """Any grant implies READ and WRITE on the types of the application's own organization."""
    other = await services.core.database.write(lambda tx: tx.accounts.add_organization("0b" * 16, "Other", 1))
    await services.core.database.write(
        lambda tx: tx.device_types.put_device_type(
            new_device_type(
                LIGHT_TYPE,
                unique_name="example.smart_light",
                name="Smart Light",
                organization=other.key,
                published=True,
                protected=False,
                rsp=False,
                description=None,
                tags=(),
                now_ms=1,
            )
        )
    )


async def test_the_token_of_the_handshake_serves_frames_without_one(peers: Peers) -> None:
    socket = await peers.connect(f"{WITH_ACK}&Authorization=bearer+{ADA_TOKEN}")
    assert await ask(socket, type="register", sdid=KITCHEN) == {"data": OK}
    assert await ask(socket, type="register", sdid=BOBS, Authorization=BOBS_TOKEN) == {"data": OK}


async def test_a_disabled_device_cannot_register(peers: Peers, services: Services, world: World) -> None:
    await _disable(services, world)
    socket = await peers.connect(CHANNEL)
    answer = await ask(socket, type="register", sdid=KITCHEN, Authorization=KITCHEN_TOKEN)
    assert answer == error(403, "Source device is disconnected")


async def test_messages_sent_with_the_registration_wait_for_it(
    peers: Peers, autojump_clock: trio.testing.MockClock
) -> None:
    peer = await peers.connect_plain(WITH_ACK)
    await peer.send(
        {"data": {"state": False}, "cid": "too early"},
        {"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN, "cid": "k"},
        {"data": {"state": True}, "cid": "1"},
        {"type": "register", "sdid": UNKNOWN, "Authorization": KITCHEN_TOKEN, "cid": "u"},
        {"data": {"state": True}, "cid": "2"},
        {"type": "register", "sdid": HALL, "Authorization": HALL_TOKEN, "cid": "h"},
        {"data": {"state": True}, "cid": "3"},
    )
    answers = [await peer.said() for _ in range(6)]
    assert [(kind, one[kind]["cid"]) for one in answers for kind in one] == [
        ("data", "k"),
        ("data", "1"),
        ("error", "u"),
        ("data", "2"),
        ("data", "h"),
        ("error", "3"),  # two devices are registered, so `sdid` must be said
    ]


async def test_an_unregistered_socket_is_closed_after_30_seconds(
    peers: Peers, autojump_clock: trio.testing.MockClock
) -> None:
    socket = await peers.connect(CHANNEL)
    began = trio.current_time()
    assert json.loads(await socket.get_message()) == error(400, "Registration timeout")
    assert await closing(socket) == (1000, "Registration timeout")
    assert trio.current_time() == began + 30


async def test_a_registered_socket_stays(peers: Peers, autojump_clock: trio.testing.MockClock) -> None:
    socket = await peers.connect(WITH_ACK)
    await trio.sleep(29)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    for _ in range(3600 // PING_SECONDS):
        autojump_clock.jump(PING_SECONDS - 1)  # each worker of the services wakes up once
        await trio.sleep(1)
    assert (await ask(socket, type="list"))["data"]["message"] == [KITCHEN]


async def test_unregistering_the_last_device_closes(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    await register(socket, HALL, HALL_TOKEN)
    assert await ask(socket, type="unregister", sdid=HALL, cid=1) == {"data": {**OK, "cid": "1"}}
    assert services.routing.connections.statistics().devices_online == 1
    assert await ask(socket, type="unregister", sdid=KITCHEN, cid=2) == {"data": {**OK, "cid": "2"}}
    assert await said(socket) == error(400, "No registered device", cid="2")
    assert await closing(socket) == (1000, "No registered device")
    assert services.routing.connections.statistics().devices_online == 0


# --- Messages ---

MESSAGES = [
    ('{"sdid":"%s","data":{"state":true}}', None),
    ('{"data":{"state":true}}', None),
    ('{"data":"{\\"state\\":true}"}', None),
    ('{"data":{"nothing":"known"}}', None),  # it has failed, and has a mid
    ('{"type":"MESSAGE","data":{"state":true},"ts":1760000000000.9}', None),
    ("{", (400, "Bad Request")),
    ("[]", (400, "Bad Request")),
    ('{"type":"nonsense"}', (400, "Bad Request")),
    ('{"data":[1]}', (400, "Bad Request")),
    ('{"sdid":"%s"}', (4001, "Validation Error")),
    ('{"sdid":5,"data":{}}', (400, "Missing sdid value")),
    (f'{{"sdid":"{HALL}","data":{{}}}}', (401, "Device not registered")),
    ('{"data":{},"ts":-1}', (400, "Invalid ts value")),
    ('{"data":{},"ts":"now"}', (400, "Invalid ts value")),
    ('{"data":{},"ts":1760000060001}', (400, "Invalid ts value (in future)")),
    ('{"data":{},"ts":1760000060000}', None),
    ('{"data":{"text":"' + "x" * 1013 + '"}}', None),
    (
        '{"data":{"text":"' + "x" * 1014 + '"}}',
        (413, f"Plan quota exceeded for organization {'0a' * 16}. Reason: Max payload size limit"),
    ),
    ('{"type":"action","data":{"actions":[{"name":"setOn"}]}}', (400, "Missing ddid value")),
    ('{"type":"action","ddid":"%s","data":{"actions":[]}}', (4001, "Validation Error")),
    ('{"type":"action","ddid":"%s","data":{"actions":[{"name":1}]}}', (4001, "Validation Error")),
    (f'{{"ddid":"{UNKNOWN}","data":{{"actions":[{{"name":"x"}}]}}}}', (404, "Device(s) not found")),
    (
        f'{{"ddid":"{HALL}","data":{{"actions":[{{"name":"x"}}]}}}}',
        (403, "You do not have the right permission: devices"),
    ),
]


@each_row(("text", "refusal"), MESSAGES)
async def test_message_with_ack(peers: Peers, text: str, refusal: tuple[int, str] | None) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    await socket.send_message(text.replace("%s", KITCHEN))
    answer = await said(socket)
    if refusal is None:
        assert is_id(answer["data"]["mid"])
    else:
        assert answer == error(*refusal)


@each_row(
    "frame",
    [
        {"data": {"secret": "x" * 1014}},
        {"ddid": "secret", "type": "action", "data": {"actions": [{"name": "setOn"}]}},
    ],
)
async def test_a_refused_frame_is_in_the_log_without_what_was_sent(peers: Peers, frame: dict[str, object]) -> None:
    """reference 28.1"""
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    with capture_logs() as logs:
        assert "error" in await ask(socket, **frame)
    assert [line["event"] for line in logs] == ["websocket_refused"]
    assert "secret" not in str(logs)


async def test_an_acknowledgement_names_the_fields_that_were_not_kept(peers: Peers) -> None:
    """reference 9.7"""
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    unknown = {"field": "opne", "message": "not in the Manifest"}
    answer = await ask(socket, data={"state": True, "opne": 1}, cid="a")
    assert (answer["data"].keys(), answer["warnings"]) == ({"mid", "cid"}, [unknown])
    assert "error" in await ask(socket, data={"state": True, "opne": 1}, ts=-1)
    assert "warnings" not in await ask(socket, data={"state": True})
    lost = await ask(socket, data={"opne": 1})
    assert lost["warnings"] == [{"field": "data", "message": "nothing remained after normalization"}, unknown]
    await socket.send_message(msgpack.packb({"data": {"opne": 1}}))
    assert msgpack.unpackb(await socket.get_message())["warnings"] == lost["warnings"]
    await socket.send_message(msgpack.packb({"data": {"temperature": math.nan, "intensity": 1}}))
    assert msgpack.unpackb(await socket.get_message())["warnings"] == [
        {"field": "temperature", "message": "is not a Double"}
    ]


async def test_wrong_cid(peers: Peers) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    assert await ask(socket, data={}, cid=["x"]) == error(403, "Wrong cid")


async def test_without_ack_messages_are_stored_and_never_answered(peers: Peers, services: Services) -> None:
    socket = await peers.connect(CHANNEL)
    await say(socket, type="register", sdid=KITCHEN, Authorization=KITCHEN_TOKEN)
    for text, _ in MESSAGES:
        await socket.send_message(text.replace("%s", KITCHEN))
    answer = await ask(socket, type="list", cid="end")
    assert answer["data"]["cid"] == "end"
    await services.messages.ingest.wait_committed()
    ingested = services.messages.ingest.statistics()
    assert ingested.messages + ingested.failed_messages == sum(refusal is None for _, refusal in MESSAGES)


async def test_answers_of_all_kinds_come_in_order(peers: Peers, autojump_clock: trio.testing.MockClock) -> None:
    peer = await peers.connect_plain(WITH_ACK)
    await peer.send(
        {"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN, "cid": "0"},
        {"data": {"state": True}, "cid": "1"},
        {"data": {"state": True}, "ts": -1, "cid": "2"},
        {"type": "list", "cid": "3"},
        {"ddid": KITCHEN, "data": ACTION, "cid": "4"},
        {"ddid": HALL, "data": ACTION, "cid": "5"},
        {"data": {"state": True}, "cid": "6"},
        {"type": "unregister", "sdid": KITCHEN, "cid": "7"},
    )
    cids: list[str] = []
    while len(cids) < 8:
        frame = await peer.said()
        if frame.get("type") != "action":
            cids.append((frame.get("data") or frame["error"])["cid"])
    assert cids == [str(number) for number in range(8)]


async def test_an_acknowledgement_waits_for_the_commit(peers: Peers, disk: Disk) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    disk.hold()
    answers: list[Any] = []

    async def read() -> None:
        answers.append(await said(socket))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await say(socket, data={"state": True})
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        disk.release()
    assert is_id(answers[0]["data"]["mid"])


async def test_a_message_that_could_not_be_stored_is_refused(peers: Peers, disk: Disk) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    disk.is_broken = True
    assert await ask(socket, data={"state": True}, cid=1) == error(503, "Service Unavailable", cid="1")
    disk.is_broken = False
    assert "data" in await ask(socket, data={"state": True})


async def test_message_pack_is_answered_in_message_pack(peers: Peers, autojump_clock: trio.testing.MockClock) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    await socket.send_message(msgpack.packb({"data": {"state": True}, "cid": "m"}))
    answer = await socket.get_message()
    assert isinstance(answer, bytes)
    assert msgpack.unpackb(answer)["data"]["cid"] == "m"
    await socket.send_message(msgpack.packb({"ddid": KITCHEN, "data": ACTION}))
    frames = [msgpack.unpackb(await socket.get_message()) for _ in range(2)]
    assert [one["data"] for one in frames if one.get("type") == "action"] == [ACTION]


# --- Actions ---


async def test_an_action_reaches_its_device(peers: Peers) -> None:
    light = await peers.connect(WITH_ACK)
    await register(light, KITCHEN, KITCHEN_TOKEN)
    sender = await peers.connect(WITH_ACK)
    await register(sender, HALL, ADA_TOKEN)
    answer = await ask(sender, type="action", ddid=KITCHEN, data=ACTION, ts=NOW_MS - 1)
    assert await said(light) == {
        "type": "action",
        "cts": NOW_MS,
        "ts": NOW_MS - 1,
        "mid": answer["data"]["mid"],
        "sdid": HALL,
        "ddid": KITCHEN,
        "data": ACTION,
        "ddtid": LIGHT_TYPE,
        "uid": ADA,
        "mv": 1,
        "boid": "0a" * 16,
    }


async def test_an_action_reaches_every_channel_of_the_device(peers: Peers) -> None:
    sockets = [await peers.connect(WITH_ACK) for _ in range(3)]
    for socket, token in zip(sockets, (KITCHEN_TOKEN, ADA_TOKEN, ADA_TOKEN), strict=True):
        await register(socket, KITCHEN, token)
    await say(sockets[2], ddid=KITCHEN, data=ACTION)
    for socket in sockets[:2]:
        assert (await said(socket))["data"] == ACTION


# --- One connection per device token ---


async def test_a_newer_connection_takes_over(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    flaps: list[object] = []
    services.core.router.subscribe(DeviceWentOnline, flaps.append)
    services.core.router.subscribe(DeviceWentOffline, flaps.append)
    older = await peers.connect(WITH_ACK)
    await register(older, KITCHEN, KITCHEN_TOKEN)
    newer = await peers.connect(WITH_ACK)
    await register(newer, KITCHEN, KITCHEN_TOKEN)
    assert await closing(older) == (1008, "replaced by a newer connection")
    assert "data" in await ask(newer, data={"state": True})
    assert len(flaps) == 1


async def test_a_channel_with_several_devices_loses_only_the_one_that_was_taken_over(peers: Peers) -> None:
    proxy = await peers.connect(WITH_ACK)
    await register(proxy, KITCHEN, KITCHEN_TOKEN)
    await register(proxy, HALL, HALL_TOKEN)
    device = await peers.connect(WITH_ACK)
    await register(device, KITCHEN, KITCHEN_TOKEN)
    assert await said(proxy) == error(409, "replaced by a newer connection")
    assert (await ask(proxy, type="list"))["data"]["message"] == [HALL]
    assert await ask(proxy, sdid=KITCHEN, data={}) == error(401, "Device not registered")
    assert "data" in await ask(proxy, data={"state": True})


async def test_a_refused_registration_does_not_take_over(peers: Peers) -> None:
    device = await peers.connect(WITH_ACK)
    await register(device, KITCHEN, KITCHEN_TOKEN)
    stranger = await peers.connect(WITH_ACK)
    for token in (HALL_TOKEN, BOB_TOKEN, UNKNOWN):
        assert "error" in await ask(stranger, type="register", sdid=KITCHEN, Authorization=token)
    assert "data" in await ask(device, data={"state": True})


async def test_the_last_acknowledgements_are_sent_before_a_take_over(
    peers: Peers, disk: Disk, autojump_clock: trio.testing.MockClock
) -> None:
    older = await peers.connect_plain(WITH_ACK)
    await older.send({"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN})
    await older.said()
    disk.hold()
    await older.send({"data": {"state": True}, "cid": "last"})
    await trio.testing.wait_all_tasks_blocked()
    newer = await peers.connect(WITH_ACK)
    await register(newer, KITCHEN, KITCHEN_TOKEN)
    disk.release()
    assert (await older.said())["data"]["cid"] == "last"
    assert await older.close_code() == 1008


# --- The end of access ---


async def test_a_revoked_token_ends_the_connection(peers: Peers, services: Services) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    services.core.router.publish(TokenRevoked(token_hash(KITCHEN_TOKEN)))
    assert await closing(socket) == (1008, "token revoked or expired")


async def test_a_disabled_device_loses_its_connection(peers: Peers, services: Services, world: World) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    await register(socket, HALL, HALL_TOKEN)
    await _disable(services, world)
    assert await said(socket) == error(403, "Source device is disconnected")
    assert (await ask(socket, type="list"))["data"]["message"] == [HALL]


async def _disable(services: Services, world: World) -> None:
    await services.core.database.write(
        lambda tx: tx.devices.put_device(
            new_device(
                KITCHEN,
                owner=world.ada,
                device_type=world.light_type,
                name="Kitchen light",
                manifest_version=1,
                manifest_version_policy="LATEST",
                enabled=False,
                now_ms=1,
            )
        )
    )
    await services.devices.registry.reload()


async def test_an_expired_token_ends_the_connection_with_the_next_ping(
    peers: Peers, fake_clock: FakeClock, autojump_clock: trio.testing.MockClock
) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, ADA_TOKEN)
    fake_clock.advance(NOW_MS)
    assert await closing(socket) == (1008, "token revoked or expired")


async def test_a_permission_on_a_destination_that_is_lost_counts_at_once(
    peers: Peers, services: Services, world: World
) -> None:
    await _give_type_to_another_organization(services)
    grant = GrantRecord(world.bob, world.application, world.light_type, read=True, write=True)
    await allow(services, grant)
    socket = await peers.connect(WITH_ACK)
    await register(socket, HALL, APPLICATION_TOKEN)
    assert "data" in await ask(socket, ddid=BOBS, data=ACTION)
    await allow(services, replace(grant, write=False))
    assert await ask(socket, ddid=BOBS, data=ACTION) == error(403, "You do not have the right permission: devices")


async def test_a_lost_permission_ends_the_connection_at_once(peers: Peers, services: Services, world: World) -> None:
    await _give_type_to_another_organization(services)
    socket = await peers.connect(WITH_ACK)
    await register(socket, HALL, APPLICATION_TOKEN)
    grant = GrantRecord(world.ada, world.application, world.light_type, read=True, write=False)
    await allow(services, grant)
    assert await closing(socket) == (1008, "You do not have the right permission: devices")


# --- Alive ---


async def test_a_ping_is_answered_and_counts_as_presence(
    peers: Peers, services: Services, world: World, fake_clock: FakeClock
) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    fake_clock.advance(5000)
    await socket.ping(b"payload")  # returns with the Pong
    assert (await services.devices.presence.of(world.kitchen)).last_seen_on == NOW_MS + 5000


async def test_of_many_pings_in_one_turn_the_last_are_answered(peers: Peers) -> None:
    peer = await peers.connect_plain(f"/v1.1/live?authorization={KITCHEN_TOKEN}")
    await peer.stream.send_all(EMPTY_PING * 50 + b"\x89\x84\0\0\0\0last")
    answered = [await peer.event() for _ in range(PONGS_OF_TURN)]
    assert answered == [*[Pong()] * (PONGS_OF_TURN - 1), Pong(b"last")]


async def test_a_stranger_on_the_device_channel_is_closed_after_a_handful_of_frames(peers: Peers) -> None:
    peer = await peers.connect_plain(WITH_ACK)
    await peer.stream.send_all(EMPTY_PING * (UNREGISTERED_FRAMES_MAX + 1))
    assert await peer.end() == (1008, "no device is registered")


@each_row("path", ["/v1.1/live", CHANNEL])
async def test_a_flood_of_pings_waits_in_line_and_is_answered(
    peers: Peers, services: Services, path: str, autojump_clock: trio.testing.MockClock
) -> None:
    peer = await peers.connect_plain(f"{path}?authorization={KITCHEN_TOKEN}")
    began = trio.current_time()
    await peer.stream.send_all(EMPTY_PING * 10 * PACKETS_PER_TURN)
    for _ in range(10 * PONGS_OF_TURN):
        assert await peer.event() == Pong()
    assert services.limits.overhead.statistics().delayed >= 9 * PACKETS_PER_TURN
    assert trio.current_time() - began >= 9 * PACKETS_PER_TURN / services.limits.overhead.per_second


# --- The end ---


@each_row("code", [1000, 1001, 3000, 4999])
async def test_a_client_may_close_with_any_code(
    peers: Peers, services: Services, world: World, disk: Disk, code: int
) -> None:
    peer = await peers.connect_plain(WITH_ACK)
    await peer.send({"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN})
    assert "data" in await peer.said()
    disk.hold()
    await peer.send({"data": {"state": True}, "cid": "last"})
    await peer.send_event(CloseConnection(code))
    await trio.testing.wait_all_tasks_blocked()
    disk.release()
    assert (await peer.said())["data"]["cid"] == "last"
    assert await peer.close_code() == code
    assert not await peer.stream.receive_some()
    assert not services.routing.connections.is_online(world.kitchen)


async def test_a_peer_that_disappears_goes_offline_at_once(peers: Peers, services: Services, world: World) -> None:
    peer = await peers.connect_plain(CHANNEL)
    await peer.send({"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN}, {"data": {"state": True}})
    await trio.testing.wait_all_tasks_blocked()
    assert services.routing.connections.is_online(world.kitchen)
    await peer.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert not services.routing.connections.is_online(world.kitchen)
    assert services.messages.ingest.statistics().messages == 1


async def test_a_frame_over_64_kib_closes(peers: Peers, autojump_clock: trio.testing.MockClock) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    await socket.send_message(json.dumps({"data": {}, "unknown": "x" * 60_000}))
    assert "data" in await said(socket)
    await socket.send_message(" " * (64 * 1024 + 1))
    assert (await closing(socket))[0] == 1009


async def test_frames_before_a_fault_are_processed(peers: Peers, autojump_clock: trio.testing.MockClock) -> None:
    peer = await peers.connect_plain(WITH_ACK)
    await peer.send({"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN})
    await peer.said()
    await peer.stream.send_all(peer.encoded({"data": {"state": True}, "cid": "last"}) + b"\x81\x02{}")
    assert (await peer.said())["data"]["cid"] == "last"
    assert await peer.close_code() == 1002


async def test_shutdown_says_1001_after_the_last_acknowledgement(
    peers: Peers, services: Services, disk: Disk, autojump_clock: trio.testing.MockClock
) -> None:
    peer = await peers.connect_plain(WITH_ACK)
    await peer.send({"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN})
    await peer.said()
    disk.hold()
    await peer.send({"data": {"state": True}, "cid": "last"})
    await trio.testing.wait_all_tasks_blocked()
    services.core.life.stop()
    services.routing.connections.close_all()
    await trio.testing.wait_all_tasks_blocked()
    disk.release()
    assert (await peer.said())["data"]["cid"] == "last"
    assert await peer.close_code() == 1001


@pytest.mark.usefixtures("few_wait")
async def test_a_device_that_does_not_read_actions_is_closed_and_the_others_miss_nothing(
    peers: Peers, autojump_clock: trio.testing.MockClock
) -> None:
    slow = await peers.connect_plain(CHANNEL, lockstep=True)
    await slow.send({"type": "register", "sdid": KITCHEN, "Authorization": ADA_TOKEN})
    good = await peers.connect(WITH_ACK)
    await register(good, KITCHEN, KITCHEN_TOKEN)
    sender = await peers.connect(CHANNEL)
    await say(sender, type="register", sdid=HALL, Authorization=ADA_TOKEN)
    taken = 0

    async def take() -> None:
        nonlocal taken
        while taken < FEW_FRAMES + 10:
            taken += (await said(good))["type"] == "action"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        for _ in range(FEW_FRAMES + 10):
            await say(sender, ddid=KITCHEN, data=ACTION)
    await trio.sleep(2)
    assert await slow.close_code() == 1013


async def test_the_server_does_not_read_while_its_answers_are_not_read(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    peer = await peers.connect_plain(WITH_ACK, lockstep=True)
    await peer.send({"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN})
    message = peer.encoded({"data": {"state": True}, "cid": "x" * 250}) * 1000

    async def flood() -> None:
        for _ in range(20):
            await peer.stream.send_all(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood)
        with trio.move_on_after(60):
            await trio.sleep_forever()
        assert services.messages.ingest.statistics().messages < 3000
        nursery.cancel_scope.cancel()


async def test_no_frame_of_a_client_breaks_the_channel(peers: Peers) -> None:
    peer = await peers.connect_plain(WITH_ACK)
    await peer.send({"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN})
    await peer.said()
    for payload in (b"", b"\xc1", b"{", b"\xdf\xff\xff\xff\xff", b"\x91" * 5000):
        await peer.send_event(BytesMessage(payload))
        event = await peer.event()
        assert isinstance(event, Message)
        assert "error" in (msgpack.unpackb(event.data) if isinstance(event, BytesMessage) else json.loads(event.data))
    await peer.send({"data": {"state": True}})
    assert "data" in await peer.said()


async def test_a_connection_that_other_nodes_would_not_know_ends(peers: Peers, services: Services) -> None:
    """Several nodes: the commit that should store it was refused, so a newer one could not take its place."""
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    (link,) = services.routing.connections.links()
    link.not_claimed()
    assert (await closing(socket))[0] == 1008
    assert not services.routing.connections.links()
