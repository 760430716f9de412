"""Rate limits on the device channel: frames of any type, answered with `ack` only (reference 21.1)."""

import msgpack
import pytest
import trio.testing
from wsproto.events import Pong

from broker.limits.meters import Channel
from broker.limits.overhead import FRAMES_AT_ONCE
from broker.services import Services
from config.limits import PACKETS_PER_TURN
from config.settings import Limits, Settings
from tests.certificates import Authority
from tests.factories import (
    ADA_TOKEN,
    BOBS,
    BOBS_TOKEN,
    HALL,
    HALL_TOKEN,
    KITCHEN,
    KITCHEN_TOKEN,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.websocket.peers import EMPTY_PING, Peers, ask, register, said, say
from tests.secure_types import NOW, SECURE_TYPE, provision_secure_type

WITH_ACK, WITHOUT_ACK = "/v1.1/websocket?ack=true", "/v1.1/websocket"
DATA = {"state": True}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(
        state_dir=settings.state_dir,
        limits=Limits(websocket_device="4/6", websocket_user="3/100", websocket_application="9/9"),
    )


def limit(window: str = "MINUTE", **more: str) -> dict[str, object]:
    return {"error": {"code": 429, "message": f"{window} rate limit exceeded", **more}}


async def test_a_burst_over_the_limit_is_answered_in_order(peers: Peers, services: Services) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    for number in range(6):
        await say(socket, data=DATA, cid=number)
    answers = [await said(socket) for _ in range(6)]
    assert [answer["data"]["cid"] for answer in answers[:3]] == ["0", "1", "2"]
    assert answers[3:] == [limit(cid=str(number)) for number in (3, 4, 5)]
    assert services.messages.ingest.statistics().messages == 3


async def test_without_ack_a_frame_over_the_limit_has_no_effect_and_no_answer(
    peers: Peers, services: Services, fake_clock: FakeClock, autojump_clock: trio.testing.MockClock
) -> None:
    socket = await peers.connect(WITHOUT_ACK)
    await say(socket, type="register", sdid=KITCHEN, Authorization=KITCHEN_TOKEN)
    for _ in range(6):
        await say(socket, data=DATA)
    await say(socket, type="list", cid="lost")
    await say(socket, type="unregister", sdid=KITCHEN)
    await trio.testing.wait_all_tasks_blocked()
    assert services.messages.ingest.statistics().messages == 3
    fake_clock.advance(60_000)
    assert await ask(socket, type="list", cid="next") == {"data": {"message": [KITCHEN], "code": "200", "cid": "next"}}


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "list"},
        {"type": "message", "data": DATA},
        {"type": "action", "ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}},
        {"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN},
        {"type": "register", "sdid": "", "Authorization": KITCHEN_TOKEN},
        {"type": "unregister", "sdid": HALL},
        {"type": "unknown"},
        {"data": DATA, "ts": "yesterday"},
        {"data": DATA, "cid": {}},
    ],
)
async def test_frames_of_any_type_count_be_they_valid_or_not(peers: Peers, frame: dict[str, object]) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    for _ in range(3):
        answer = await ask(socket, **frame)
        while answer.get("type") == "action":  # an Action that the device sent to itself
            answer = await said(socket)
        assert answer != limit()
    answers = [await ask(socket, data=DATA)]
    while answers[-1].get("type") == "action":
        answers.append(await said(socket))
    assert answers[-1] == limit()


async def test_each_registration_counts_for_its_own_token(peers: Peers) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    await register(socket, BOBS, BOBS_TOKEN)
    for _ in range(3):
        assert "data" in await ask(socket, sdid=KITCHEN, data=DATA)
    assert await ask(socket, sdid=KITCHEN, data=DATA) == limit()
    assert "data" in await ask(socket, sdid=BOBS, data=DATA)
    assert await ask(socket, type="list") == limit(), "of what names no device, the first one's"


async def test_devices_of_one_user_share_the_users_limit(peers: Peers) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, ADA_TOKEN)
    other = await peers.connect(WITH_ACK)
    await register(other, HALL, ADA_TOKEN)
    assert "data" in await ask(socket, data=DATA)
    assert await ask(other, data=DATA) == limit()
    await register(socket, HALL, HALL_TOKEN)


async def test_a_registration_over_the_limit_is_refused(
    peers: Peers, services: Services, fake_clock: FakeClock
) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, ADA_TOKEN)
    for _ in range(2):
        await ask(socket, data=DATA)
    answer = await ask(socket, type="register", sdid=HALL, Authorization=ADA_TOKEN, cid="r")
    assert answer == limit(cid="r")
    fake_clock.advance(60_000)
    answer = await ask(socket, type="register", sdid=HALL, Authorization=ADA_TOKEN)
    assert answer["data"]["code"] == "200"


async def test_the_token_of_the_handshake_counts_until_there_is_a_registration(peers: Peers) -> None:
    socket = await peers.connect(f"{WITH_ACK}&Authorization=bearer+{ADA_TOKEN}")
    for _ in range(3):
        assert (await ask(socket, type="list"))["data"]["message"] == []
    assert await ask(socket, type="list") == limit()
    status, headers, body = await peers.refusal(f"{WITH_ACK}&Authorization=bearer+{ADA_TOKEN}")
    assert (status, headers[b"retry-after"]) == (429, b"60")
    assert (body["error"]["code"], body["error"]["message"]) == (429, "MINUTE rate limit exceeded")


async def test_a_missing_certificate_is_reported_before_the_limit(
    peers: Peers, services: Services, world: World
) -> None:
    authority = Authority(now=NOW)
    await provision_secure_type(services, authority)
    shown, ada = authority.issue().shown, await services.accounts.tokens.caller(ADA_TOKEN)
    begun = await services.registration.registrations.begin(shown, SECURE_TYPE, "vendor-1")
    await services.registration.registrations.confirm_new(ada, begun.pin, owner=world.ada, name="Board")
    board = await services.registration.registrations.complete(shown, begun.id, begun.nonce)
    meter = services.limits.meters.of(Channel.WEBSOCKET, await services.accounts.tokens.caller(board.token))
    assert meter is not None
    for _ in range(4):
        meter.count()
    status, _, body = await peers.refusal(f"{WITH_ACK}&Authorization=bearer+{board.token}")
    assert (status, body["error"]["code"]) == (403, 403)


async def test_live_is_not_limited(peers: Peers, services: Services) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    for _ in range(4):
        await ask(socket, data=DATA)
    await peers.connect(f"/v1.1/live?Authorization=bearer+{KITCHEN_TOKEN}")


async def test_the_daily_limit_outlives_the_minute(peers: Peers, fake_clock: FakeClock) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    for _ in range(3):
        assert "data" in await ask(socket, data=DATA)
    fake_clock.advance(60_000)
    for _ in range(2):
        assert "data" in await ask(socket, data=DATA)
    assert await ask(socket, data=DATA) == limit("DAILY")


async def test_a_limited_message_pack_frame_is_answered_in_message_pack(peers: Peers) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    for _ in range(3):
        await ask(socket, data=DATA)
    await socket.send_message(msgpack.packb({"data": DATA, "cid": "m"}))
    assert msgpack.unpackb(await socket.get_message()) == limit(cid="m")


async def test_a_used_up_quota_has_the_text_of_the_table(peers: Peers, services: Services, world: World) -> None:
    services.limits.quotas.set_device_limit(world.kitchen, 1)
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    assert "mid" in (await ask(socket, data=DATA))["data"]
    text = f"Plan quota exceeded for device {KITCHEN}. Reason: Daily message limit."
    assert await ask(socket, data=DATA) == {"error": {"code": 429, "message": text}}


async def test_pings_count_and_are_answered_beyond_the_limit(
    peers: Peers, services: Services, autojump_clock: trio.testing.MockClock
) -> None:
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    for number in range(5):
        await socket.ping(b"%d" % number)  # returns with the Pong
    await say(socket, data=DATA, cid="late")
    assert await said(socket) == limit(cid="late")
    assert services.messages.ingest.statistics().messages == 0


async def test_who_sends_beyond_the_limit_may_ping_as_client_libraries_do(peers: Peers) -> None:
    """A refusal never closes the connection (reference 19.3), however many frames are refused."""
    peer = await peers.connect_plain(WITHOUT_ACK)
    await peer.send({"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN})
    await peer.send(*[{"data": DATA}] * (10 * FRAMES_AT_ONCE))
    for _ in range(2):
        await peer.stream.send_all(EMPTY_PING)
        assert await peer.event() == Pong(payload=b"")


async def test_a_flood_of_pings_beyond_the_limit_ends_the_connection(peers: Peers) -> None:
    peer = await peers.connect_plain(WITH_ACK)
    await peer.send({"type": "register", "sdid": KITCHEN, "Authorization": KITCHEN_TOKEN})
    await peer.said()
    await peer.stream.send_all(EMPTY_PING * PACKETS_PER_TURN)
    assert await peer.end() == (1008, "MINUTE rate limit exceeded")
