"""Reach of a user token on the real daemon, while an operator grants and the user revokes (reference 4.7)."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from tests.daemon import ADA_EMAIL, DASHBOARD, USER_TOKEN, Daemon, bearer, device_id, device_token, running_daemon
from tests.e2e.test_events import PATIENCE_SECONDS, hear, provision
from tests.e2e.test_websocket import connect

LIGHT, LOCK, LOCK_TOKEN = device_id(0), "1c" * 16, "2c" * 16

_LOCK = f"""
[[organizations]]
name = "Beta"

[[device_types]]
id = "dt-lock"
unique_name = "beta.lock"
organization = "Beta"
published = true
manifest = {{ fields = [{{ name = "state", valueClass = "Boolean" }}] }}

[[devices]]
id = "{LOCK}"
owner = "{ADA_EMAIL}"
type = "dt-lock"
name = "Front door"
token = "{LOCK_TOKEN}"
"""


def _grant(*permissions: str) -> str:
    return f"""
[[grants]]
user = "{ADA_EMAIL}"
application = "{DASHBOARD}"
device_type = "dt-lock"
permissions = {json.dumps(permissions)}
"""


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon"), devices=1) as running:
        provision(running, _LOCK)
        yield running


class Rest:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def status(self, method: str, path: str, token: str = USER_TOKEN, **given: Any) -> int:
        return (await self._client.request(method, path, headers=bearer(token), **given)).status_code

    async def devices(self) -> set[str]:
        answer = await self._client.get("/users/self/devices", headers=bearer(USER_TOKEN))
        return {one["id"] for one in answer.json()["data"]["devices"]}

    async def send_from_both(self) -> None:
        """The lock first: what a feed shows of it comes before the light's."""
        for sdid, token in ((LOCK, LOCK_TOKEN), (LIGHT, device_token(0))):
            message = {"sdid": sdid, "data": {"state": True}}
            assert await self.status("POST", "/messages", token, json=message) == 200


async def sender(feed: WebSocketConnection) -> str:
    """The device of the next message."""
    while (frame := json.loads(await feed.get_message())).get("type") == "ping":
        pass
    id_: str = frame["sdid"]
    return id_


async def close_code(connection: WebSocketConnection) -> int | None:
    while True:
        try:
            await connection.get_message()
        except ConnectionClosed as closed:
            return None if closed.reason is None else closed.reason.code


async def test_a_user_token_follows_what_is_granted_and_ends_with_the_revocation(daemon: Daemon) -> None:
    token = f"?Authorization=bearer+{USER_TOKEN}"
    with trio.fail_after(3 * PATIENCE_SECONDS):
        async with (
            httpx.AsyncClient(base_url=daemon.base_url, timeout=PATIENCE_SECONDS) as client,
            connect(daemon, f"/live{token}") as live,
            connect(daemon, f"/events{token}") as events,
        ):
            rest = Rest(client)
            # The lock is Ada's, and its type is of an organization with which the Dashboard has nothing to do.
            assert await rest.devices() == {LIGHT}
            for method, path in (
                ("GET", ""),
                ("GET", "/tokens"),
                ("PUT", "/tokens"),
                ("GET", "/shares"),
                ("DELETE", ""),
            ):
                assert await rest.status(method, f"/devices/{LOCK}{path}") == 403
            action = {"ddid": LOCK, "data": {"actions": [{"name": "open"}]}}
            assert await rest.status("POST", "/actions", json=action) == 403
            await rest.send_from_both()
            assert await sender(live) == LIGHT
            for id_, status in ((LOCK, 403), (LIGHT, 200)):
                assert await rest.status("PUT", f"/devices/{id_}", json={"name": "Renamed"}) == status
            assert [data["did"] for _, data in await hear(events, 1)] == [LIGHT]

            await trio.to_thread.run_sync(provision, daemon, _grant("READ"))
            assert await rest.devices() == {LIGHT, LOCK}
            assert await rest.status("GET", f"/devices/{LOCK}") == 200
            assert await rest.status("GET", f"/devices/{LOCK}/tokens") == 403
            await rest.send_from_both()
            assert [await sender(live), await sender(live)] == [LOCK, LIGHT]

            await trio.to_thread.run_sync(provision, daemon, _grant("READ", "WRITE"))
            assert await rest.status("GET", f"/devices/{LOCK}/tokens") == 200
            assert await rest.status("PUT", f"/devices/{LOCK}", json={"name": "Renamed"}) == 200
            assert [data["did"] for _, data in await hear(events, 1)] == [LOCK]

            assert await rest.status("DELETE", f"/users/self/applications/{DASHBOARD}") == 200
            assert await rest.status("GET", "/users/self") == 401
            assert [await close_code(live), await close_code(events)] == [1008, 1008]
