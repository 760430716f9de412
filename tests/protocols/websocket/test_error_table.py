"""Every row of the table of WebSocket errors, as the device channel sends it (reference 19.5).

test_errors.py has the texts of the errors themselves; here each is brought about on an open socket.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgpack
import pytest
import trio
import trio.testing
from trio_websocket import WebSocketConnection

from broker.services import Services
from config.limits import MAX_DATA_BYTES, REGISTRATION_SECONDS
from config.settings import Limits, Settings
from storage.keys import OrganizationKey
from tests.factories import ACME, ADA_TOKEN, BOBS, HALL, KITCHEN, KITCHEN_TOKEN, NOW_MS, World
from tests.protocols.websocket.peers import Peers, ask, closing, register, said, say
from tests.rows import each_row

Form: TypeAlias = Callable[[WebSocketConnection, dict[str, object]], Awaitable[Any]]
DATA = {"state": True}
PER_DAY = 60


@pytest.fixture
def settings(settings: Settings) -> Settings:
    limits = Limits(rate_limits="on", quotas="on", websocket_device=f"1000/{PER_DAY}")
    return Settings(state_dir=settings.state_dir, limits=limits)


@pytest.fixture
async def socket(peers: Peers) -> WebSocketConnection:
    """A device channel with `ack`, on which Kitchen is registered."""
    opened = await peers.connect("/v1.1/websocket?ack=true")
    await register(opened, KITCHEN, KITCHEN_TOKEN)
    return opened


async def set_monthly(services: Services, limit: int) -> None:
    await services.core.database.write(
        lambda tx: tx.accounts.change_organization(OrganizationKey(1), name="Acme", monthly_messages=limit)
    )
    await services.limits.quotas.reload()


async def ask_packed(socket: WebSocketConnection, frame: dict[str, object]) -> Any:
    await socket.send_message(msgpack.packb(frame))
    answer = await socket.get_message()
    assert isinstance(answer, bytes)
    return msgpack.unpackb(answer)


async def ask_json(socket: WebSocketConnection, frame: dict[str, object]) -> Any:
    return await ask(socket, **frame)


def error(code: int, message: str, cid: str | None = "c") -> dict[str, object]:
    return {"error": {"code": code, "message": message} | ({} if cid is None else {"cid": cid})}


FRAMES: list[tuple[dict[str, object], int, str]] = [
    ({"type": "unregister"}, 400, "Missing sdid value"),
    ({"type": "register", "Authorization": KITCHEN_TOKEN}, 400, "Missing sdid value"),
    ({"type": "action", "data": {"actions": [{"name": "setOn"}]}}, 400, "Missing ddid value"),
    ({"data": DATA, "ts": -1}, 400, "Invalid ts value"),
    ({"data": DATA, "ts": "yesterday"}, 400, "Invalid ts value"),
    ({"data": DATA, "ts": NOW_MS + 60_001}, 400, "Invalid ts value (in future)"),
    ({"type": "register", "sdid": HALL}, 401, "Please provide a valid authorization header"),
    ({"sdid": HALL, "data": DATA}, 401, "Device not registered"),
    (
        {"type": "register", "sdid": BOBS, "Authorization": ADA_TOKEN},
        403,
        "You do not have the right permission: devices",
    ),
    (
        {"ddid": HALL, "data": {"actions": [{"name": "setOn"}]}},
        403,
        "You do not have the right permission: devices",
    ),
    ({"type": "unregister", "sdid": HALL}, 404, "Device(s) not found"),
    (
        {"data": {"text": "x" * MAX_DATA_BYTES}},
        413,
        f"Plan quota exceeded for organization {ACME}. Reason: Max payload size limit",
    ),
]


@each_row(("frame", "code", "message"), FRAMES)
@each_row("form", [ask_json, ask_packed])
async def test_a_refused_frame(
    socket: WebSocketConnection, form: Form, frame: dict[str, object], code: int, message: str
) -> None:
    assert await form(socket, {**frame, "cid": "c"}) == error(code, message)
    assert "mid" in (await ask(socket, data=DATA))["data"], "errors do not close the connection"


@each_row("payload", ["", "{", "[]", b"{", b"\xc1"])
async def test_invalid_json(socket: WebSocketConnection, payload: str | bytes) -> None:
    await socket.send_message(payload)
    answer = await socket.get_message()
    assert (msgpack.unpackb if isinstance(answer, bytes) else json.loads)(answer) == error(400, "Bad Request", cid=None)


@each_row("cid", [{}, [], True, "c" * 257])
@each_row("kind", ["register", "unregister", "list", "message", "action"])
async def test_wrong_cid(socket: WebSocketConnection, kind: str, cid: object) -> None:
    assert await ask(socket, type=kind, cid=cid) == error(403, "Wrong cid", cid=None)


async def test_missing_sdid_with_several_devices(socket: WebSocketConnection) -> None:
    await register(socket, HALL, ADA_TOKEN)
    assert await ask(socket, data=DATA, cid="c") == error(400, "Missing sdid value")


async def test_registration_timeout(peers: Peers, autojump_clock: trio.testing.MockClock) -> None:
    socket = await peers.connect("/v1.1/websocket")
    began = trio.current_time()
    assert await said(socket) == error(400, "Registration timeout", cid=None)
    assert await closing(socket) == (1000, "Registration timeout")
    assert trio.current_time() - began == REGISTRATION_SECONDS


async def test_no_registered_device(socket: WebSocketConnection) -> None:
    await say(socket, type="unregister", sdid=KITCHEN, cid="c")
    assert (await said(socket))["data"]["code"] == "200"
    assert await said(socket) == error(400, "No registered device")
    assert await closing(socket) == (1000, "No registered device")


async def test_the_daily_rate_limit_in_the_middle_of_a_burst(socket: WebSocketConnection) -> None:
    burst = PER_DAY + 10
    for number in range(burst):
        await say(socket, data=DATA, cid=number)
    answers = [await said(socket) for _ in range(burst)]
    registration = 1
    taken = PER_DAY - registration
    assert [answer["data"]["cid"] for answer in answers[:taken]] == [str(number) for number in range(taken)]
    assert answers[taken:] == [error(429, "DAILY rate limit exceeded", str(number)) for number in range(taken, burst)]


async def test_the_monthly_quota_in_the_middle_of_a_burst(
    socket: WebSocketConnection, services: Services, world: World
) -> None:
    await set_monthly(services, 3)
    for number in range(5):
        await say(socket, data=DATA, cid=number)
    answers = [await said(socket) for _ in range(5)]
    text = f"Plan quota exceeded for organization {ACME}. Reason: Monthly message limit"
    assert answers[3:] == [error(429, text, str(number)) for number in (3, 4)]
    assert all("mid" in answer["data"] for answer in answers[:3])


async def test_a_plan_that_does_not_exist(socket: WebSocketConnection, services: Services) -> None:
    await set_monthly(services, -2)
    text = f"Quota validation error for organization {ACME}. Reason: Plan limits have not been set"
    assert await ask(socket, data=DATA, cid="c") == error(400, text)
