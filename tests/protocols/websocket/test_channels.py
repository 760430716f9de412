"""Common behaviour of /websocket, /live and /events: authentication, pings, ends of connections (reference 19.1)."""

import json

import msgpack
import pytest
import trio
import trio.testing
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from broker.services import Services
from config.limits import WEBSOCKET_FRAME_BYTES
from tests.factories import ADA_TOKEN, KITCHEN, KITCHEN_TOKEN, NOW_MS
from tests.protocols.websocket.peers import Headers, Peers, PlainPeer, ask, closing, said, say
from tests.rows import each_row

pytestmark = pytest.mark.slow


CHANNELS = ["/v1.1/websocket", "/v1.1/live", "/v1.1/events"]
OPEN = [f"{path}?Authorization={ADA_TOKEN}" for path in CHANNELS]
UNAUTHORIZED = (401, "Please provide a valid authorization header")

SPELLINGS: list[tuple[str, Headers]] = [
    (f"?Authorization=bearer+{ADA_TOKEN}", ()),
    (f"?authorization=bearer%20{ADA_TOKEN}", ()),
    (f"?AUTHORIZATION=Bearer%2B{ADA_TOKEN}", ()),
    (f"?aUTHORIZATION=BEARER%2520{ADA_TOKEN}", ()),
    (f"?Authorization={ADA_TOKEN}", ()),
    (f"??Authorization=bearer+{ADA_TOKEN}", ()),
    (f"?sdids={KITCHEN}&?Authorization=bearer+{ADA_TOKEN}&&=&unknown=1", ()),
    (f"/?Authorization=bearer+{ADA_TOKEN}", ()),
    ("", (("Authorization", f"bearer {ADA_TOKEN}"),)),
    ("", (("authorization", f"Bearer+{ADA_TOKEN}"),)),
    ("/", (("AUTHORIZATION", ADA_TOKEN),)),
    (f"?Authorization={ADA_TOKEN}", (("Authorization", "bearer nonsense"),)),
    (f"?Authorization={ADA_TOKEN}", (("Origin", "https://anywhere.example"),)),
]


@each_row("path", CHANNELS)
@each_row(("query", "headers"), SPELLINGS)
async def test_a_token_is_found_however_it_is_given(peers: Peers, path: str, query: str, headers: Headers) -> None:
    socket = await peers.connect(path + query, headers)
    if path == CHANNELS[0]:  # a register frame without a token is taken for that of the handshake
        await say(socket, type="register", sdid=KITCHEN)
        assert (await ask(socket, type="list"))["data"]["message"] == [KITCHEN]
    await socket.aclose()
    assert socket.closed is not None
    assert socket.closed.code == 1000


async def test_the_device_channel_alone_needs_no_token(peers: Peers) -> None:
    socket = await peers.connect(f"{CHANNELS[0]}?ack=TRUE")
    assert await ask(socket, type="register", sdid=KITCHEN, Authorization=KITCHEN_TOKEN)
    for path in CHANNELS[1:]:
        status, _, body = await peers.refusal(path)
        assert (status, body["error"]["message"]) == UNAUTHORIZED


@each_row("path", CHANNELS)
@each_row("given", ["bearer+" + "9" * 32, f"basic+{ADA_TOKEN}", "bearer+", f"bearer+{ADA_TOKEN[:-1]}"])
async def test_an_invalid_token_fails_the_handshake(peers: Peers, path: str, given: str) -> None:
    status, headers, body = await peers.refusal(f"{path}?authorization={given}")
    assert (status, body["error"]["message"]) == UNAUTHORIZED
    assert headers[b"www-authenticate"] == b"Bearer"


# --- Alive ---


async def _register_where_it_can_be(peer: PlainPeer, path: str) -> None:
    """A device channel without a registration ends after 30 s."""
    if path == OPEN[0]:
        await peer.send({"type": "register", "sdid": KITCHEN})


@each_row("path", OPEN)
async def test_pings_come_every_30_seconds(
    peers: Peers, services: Services, path: str, autojump_clock: trio.testing.MockClock
) -> None:
    peer = await peers.connect_plain(path)
    await _register_where_it_can_be(peer, path)
    began = trio.current_time()
    for beat in (30, 60):
        event = await peer.event()
        assert trio.current_time() == began + beat
        assert isinstance(event, TextMessage)
        assert json.loads(event.data) == {"type": "ping", "ts": NOW_MS}
        assert isinstance(await peer.event(), Ping)


@each_row("path", OPEN)
async def test_a_client_that_writes_message_pack_gets_pings_in_message_pack(
    peers: Peers, path: str, autojump_clock: trio.testing.MockClock
) -> None:
    peer = await peers.connect_plain(path)
    await _register_where_it_can_be(peer, path)
    await peer.send_event(BytesMessage(msgpack.packb({"type": "list"})))
    while not isinstance(event := await peer.event(), BytesMessage) or "type" not in (
        frame := msgpack.unpackb(event.data)
    ):
        pass
    assert frame == {"type": "ping", "ts": NOW_MS}


@each_row("path", OPEN)
async def test_silence_for_90_seconds_ends_the_connection(
    peers: Peers, services: Services, path: str, autojump_clock: trio.testing.MockClock
) -> None:
    peer = await peers.connect_plain(path)
    await _register_where_it_can_be(peer, path)
    await trio.sleep(10)
    await peer.send_event(Pong(b""))
    began = trio.current_time()
    assert await peer.end() == (1011, "no sign of life")
    assert trio.current_time() == began + 90
    await peer.send_event(CloseConnection(1011))
    await trio.testing.wait_all_tasks_blocked()
    assert services.routing.connections.statistics().devices_online == 0


@each_row("path", OPEN)
async def test_a_protocol_ping_is_answered(peers: Peers, path: str) -> None:
    peer = await peers.connect_plain(path)
    await peer.send_event(Ping(b"payload"))
    assert await peer.event() == Pong(b"payload")


# --- The end ---


@each_row("path", OPEN)
@each_row("whole", [True, False])
async def test_a_frame_over_64_kib_closes(peers: Peers, path: str, whole: bool) -> None:
    peer = await peers.connect_plain(path)
    await peer.send_event(TextMessage(" " * WEBSOCKET_FRAME_BYTES, message_finished=whole))
    if whole:
        await peer.send_event(TextMessage(" " * (WEBSOCKET_FRAME_BYTES + 1)))
    else:  # what counts is the message, in however many fragments it comes
        await peer.send_event(TextMessage(" "))
    assert await peer.end() == (1009, f"over {WEBSOCKET_FRAME_BYTES} bytes")


@each_row("path", OPEN)
@each_row("code", [1000, 1001, 3000, 4999])
async def test_a_client_may_close_with_any_code(peers: Peers, path: str, code: int) -> None:
    peer = await peers.connect_plain(path)
    await peer.send_event(CloseConnection(code))
    assert await peer.end() == (code, "")
    assert not await peer.stream.receive_some()


@each_row("path", OPEN)
async def test_a_stop_closes_connections_without_a_device(peers: Peers, services: Services, path: str) -> None:
    socket = await peers.connect(path)
    services.core.life.stop()
    assert await closing(socket) == (1001, "server shuts down")


@each_row("path", OPEN[1:])
async def test_frames_of_a_subscriber_are_ignored(
    peers: Peers, path: str, autojump_clock: trio.testing.MockClock
) -> None:
    socket = await peers.connect(path)
    for payload in ("", "{", "[]", b"", b"\xc1", b"\xdf\xff\xff\xff\xff"):
        await socket.send_message(payload)
    with trio.move_on_after(20) as nothing_said:
        await said(socket)
    assert nothing_said.cancelled_caught
    assert socket.closed is None


@each_row("path", ["websocket", "live", "events"])
async def test_the_root_with_a_capital_is_the_root(peers: Peers, path: str) -> None:
    """Published clients send `/V1.1` (reference 2)."""
    socket = await peers.connect(f"/V1.1/{path}?Authorization=bearer+{KITCHEN_TOKEN}")
    await socket.aclose()


@each_row(
    ("ts", "stored", "warned"),
    [("5", 5, False), (f"{NOW_MS - 1}.9", NOW_MS - 1, False), (1_759_999_999, 1_759_999_999, True)],
)
@each_row("together", [1, 3])
async def test_a_time_may_be_a_text_and_one_in_seconds_is_told(
    peers: Peers, ts: object, stored: int, warned: bool, together: int
) -> None:
    socket = await peers.connect("/v1.1/websocket?ack=true")
    await ask(socket, type="register", sdid=KITCHEN, Authorization=KITCHEN_TOKEN)
    for _ in range(together):
        await say(socket, sdid=KITCHEN, data={"state": True}, ts=ts)
    for _ in range(together):
        answer = await said(socket)
        assert [one["field"] for one in answer.get("warnings", [])] == (["ts"] if warned else [])
        mid = answer["data"]["mid"]
        found = await peers.services.messages.history.by_mid(mid)
        assert found is not None
        assert found[0].ts == stored


async def test_a_wrong_token_is_on_the_page_of_the_devices_owner(peers: Peers) -> None:
    kitchen = await peers.services.devices.registry.find(KITCHEN)
    socket = await peers.connect("/v1.1/websocket?ack=true")
    answers = [
        await ask(socket, type="register", sdid=sdid, Authorization="0" * 32) for sdid in (KITCHEN, "9" * 32, KITCHEN)
    ]
    assert answers[0] == answers[1] == answers[2]
    with trio.fail_after(20):
        while not (found := peers.services.messages.ingest.refused.of(kitchen)):
            await trio.lowlevel.checkpoint()
    assert [(one.status, one.text, one.actor) for one in found] == [
        (401, "WebSocket: wrong credentials for this device", "")
    ]


async def test_a_time_of_an_action_in_seconds_is_told(peers: Peers) -> None:
    socket = await peers.connect("/v1.1/websocket?ack=true")
    await ask(socket, type="register", sdid=KITCHEN, Authorization=KITCHEN_TOKEN)
    action = {"type": "action", "sdid": KITCHEN, "ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}
    for ts, told in ((NOW_MS // 1000, ["ts"]), (NOW_MS, [])):
        await say(socket, **action, ts=ts)
        answer = await said(socket)
        while "mid" not in answer.get("data", {}) or "actions" in answer["data"]:  # the Action itself comes, too
            answer = await said(socket)
        assert [one["field"] for one in answer.get("warnings", [])] == told
