"""The event feed of the real daemon: the events that REST, operators and connections cause."""

import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import WebSocketConnection

from tests.benchmarks.websocket_load import Sender
from tests.daemon import (
    ADA,
    ADA_EMAIL,
    APPLICATION_TOKEN,
    DASHBOARD,
    LIGHT_TYPE,
    USER_TOKEN,
    Daemon,
    bearer,
    device_id,
    device_token,
    running_daemon,
)
from tests.e2e import test_mqtt as mqtt
from tests.e2e.test_monetization import trunkline
from tests.e2e.test_websocket import connect
from tests.programs import require_program

PATIENCE_SECONDS = 60
BOB, BOB_EMAIL, BOB_TOKEN = "b0b0" * 8, "bob@example.org", "35" * 16

_BOB = f"""
[[users]]
id = "{BOB}"
email = "{BOB_EMAIL}"
full_name = "Bob"
password = "another horse battery staple"

[[tokens]]
value = "{BOB_TOKEN}"
application = "{DASHBOARD}"
user = "{BOB_EMAIL}"
expires_in = 86400
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    with running_daemon(folder, devices=3, settings='[coap]\nbind = "127.0.0.1:0"\n') as running:
        provision(running, _BOB)
        yield running


def provision(daemon: Daemon, tables: str) -> None:
    """Change the running daemon as an operator does."""
    document = daemon.state.parent / "more.toml"
    document.write_text(tables, encoding="utf-8")
    trunkline(daemon, "provision", str(document))


async def hear(feed: WebSocketConnection, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Names and data of the next events."""
    heard: list[tuple[str, dict[str, Any]]] = []
    with trio.fail_after(PATIENCE_SECONDS):
        while len(heard) < count:
            frame = json.loads(await feed.get_message())
            if frame.get("type") != "ping":
                assert set(frame) == {"event", "ts", "data"}
                heard.append((frame["event"], frame["data"]))
    return heard


@pytest.fixture
async def rest(daemon: Daemon) -> AsyncIterator[Callable[..., Any]]:
    async with httpx.AsyncClient(base_url=daemon.base_url, timeout=PATIENCE_SECONDS) as client:

        async def call(method: str, path: str, body: object = None, *, token: str = USER_TOKEN) -> Any:
            answer = await client.request(method, path, headers=bearer(token), json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["data"]

        yield call


async def test_changes_by_rest_reach_all_subscribers_concerned_in_order(
    daemon: Daemon, rest: Callable[..., Any]
) -> None:
    async with (
        connect(daemon, f"/events?authorization=bearer+{USER_TOKEN}") as owner,
        connect(daemon, f"/events?authorization=bearer+{BOB_TOKEN}&uid={BOB}") as sharee,
        connect(daemon, f"/events?authorization=bearer+{APPLICATION_TOKEN}&uid={ADA}") as application,
    ):
        did = (await rest("POST", "/devices", {"uid": ADA, "dtid": LIGHT_TYPE, "name": "Porch"}))["id"]
        device = f"/devices/{did}"
        await rest("PUT", device, {"name": "Front porch"})
        await rest("PUT", f"{device}/status", {"data": {"availability": "online"}})  # not yet shared
        share = (await rest("POST", f"{device}/shares", {"email": BOB_EMAIL}))["id"]
        await rest("PUT", f"{device}/shares/{share}", {"status": "ACCEPTED"}, token=BOB_TOKEN)
        await rest("PUT", f"{device}/status", {"data": {"availability": "offline"}})
        await rest("PUT", device, {"connected": False})
        await rest("PUT", device, {"connected": True})
        await rest("PUT", f"{device}/status", {"data": {"availability": "online"}})
        await rest("PUT", f"{device}/status", {"data": {"availability": "online"}})  # no change, no event
        await rest("DELETE", f"{device}/shares/{share}")
        await rest("PUT", f"{device}/status", {"data": {"availability": "offline"}})
        await rest("DELETE", device)
        for email, name in ((ADA_EMAIL, "Ada Lovelace"), (BOB_EMAIL, "Bob B.")):
            provision(daemon, f'[[users]]\nemail = "{email}"\nfull_name = "{name}"\n')

        status = {"uid": ADA, "did": did}
        change = {**status, "aid": DASHBOARD, "dtid": LIGHT_TYPE}
        everything = [
            ("device.new", change),
            ("device.connected", change),
            ("device.updated", change),
            ("device.status.online", status),
            ("device.status.offline", status),
            ("device.disconnected", change),
            ("device.connected", change),
            ("device.status.online", status),
            ("device.status.offline", status),
            ("device.disconnected", change),
            ("device.deleted", change),
            ("user.profile.updated", {"uid": ADA}),
        ]
        assert await hear(owner, len(everything)) == everything
        assert await hear(application, len(everything)) == everything
        # Whether it is online, for as long as the share lasted; the profile that follows is Bob's own.
        assert await hear(sharee, 3) == [
            ("device.status.offline", status),
            ("device.status.online", status),
            ("user.profile.updated", {"uid": BOB}),
        ]


# --- Connections ---


@contextmanager
def _mqtt(daemon: Daemon, number: int) -> Iterator[None]:
    with mqtt.connected(daemon, number):
        yield


@contextmanager
def _lost_mqtt(daemon: Daemon, number: int) -> Iterator[None]:
    """A connection that is lost without a DISCONNECT."""
    with mqtt.connected(daemon, number) as device:
        yield
        connection = device.client.socket()
        assert connection is not None
        connection.close()


@contextmanager
def _websocket(daemon: Daemon, number: int) -> Iterator[None]:
    sender = Sender(daemon.port("http"), device_id(number), device_token(number), "{}", window=1)
    yield
    sender.socket.close()


@contextmanager
def _coap(daemon: Daemon, number: int) -> Iterator[None]:
    """libcoap observes for a second, then cancels the observation."""
    client = require_program("coap-client-notls")
    url = f"coap://127.0.0.1:{daemon.port('coap')}/v1.1/actions/{device_token(number)}"
    observer = subprocess.Popen([client, "-s", "1", url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        observer.wait(PATIENCE_SECONDS)


Connect = Callable[[Daemon, int], AbstractContextManager[None]]


@pytest.mark.parametrize("connected", [_mqtt, _lost_mqtt, _websocket, _coap])
@pytest.mark.parametrize(
    "query",
    [
        f"authorization=bearer+{USER_TOKEN}&events=device.status.*&did={device_id(0)}",
        f"authorization=bearer+{device_token(0)}",
        f"authorization=bearer+{APPLICATION_TOKEN}&dids={device_id(0)}&event=*line",
    ],
)
async def test_connections_of_every_protocol_cause_online_and_offline_events(
    daemon: Daemon, connected: Connect, query: str
) -> None:
    async with connect(daemon, f"/events?{query}") as feed:
        data = {"uid": ADA, "did": device_id(0)}
        with connected(daemon, 0):
            assert await hear(feed, 1) == [("device.status.online", data)]
        assert await hear(feed, 1) == [("device.status.offline", data)]


async def test_a_take_over_from_one_protocol_to_another_causes_no_event(
    daemon: Daemon, rest: Callable[..., Any]
) -> None:
    path = f"/events?authorization=bearer+{USER_TOKEN}&did={device_id(1)}"
    async with connect(daemon, path) as feed:
        with _mqtt(daemon, 1), _websocket(daemon, 1):
            await rest("PUT", f"/devices/{device_id(1)}", {"name": "Taken over"})
        heard = [name for name, _ in await hear(feed, 3)]
    assert heard == ["device.status.online", "device.updated", "device.status.offline"]
