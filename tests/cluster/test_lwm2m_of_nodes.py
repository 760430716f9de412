"""Devices of LWM2M register with any of several nodes, and are managed from each (reference 27.25)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import aiocoap
import httpx
import pytest
import trio

from config.settings import Address
from tests.cluster.node import PATIENCE_SECONDS, Node, running_nodes
from tests.daemon import USER_TOKEN, bearer, device_id, device_token
from tests.factories import LIGHT_TYPE
from tests.programs import require_dtls
from tests.protocols.coap.dtls.client import PSK, dtls_client, make_certificate, psk_context
from tests.protocols.coap.lwm2m.device import TEXT, DtlsTransport, ScriptedDevice, content

pytestmark = pytest.mark.processes

_LEVEL, _TEMPERATURE = "/3/0/9", "/3303/0/5700"
_OBJECTS: Final = b"</1/0>,</3/0>,</3303/0>,</3311/0>"
_MANIFEST: Final = {
    "fields": [
        {"name": "temperature", "valueClass": "Double", "lwm2m": _TEMPERATURE},
        {"name": "humidity", "valueClass": "Double", "lwm2m": "/3304/0/5700"},
    ],
    "actions": [
        {"name": "setOn", "lwm2m": {"write": "/3311/0/5850", "value": True}},
        {"name": "setOff", "lwm2m": {"write": "/3311/0/5850", "value": False}},
        {"name": "reboot", "lwm2m": {"execute": "/3/0/4"}},
    ],
}
_SET, _REBOOT = "PUT /3311/0/5850", "POST /3/0/4"
_DONE: Final = "The device did it."


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    require_dtls()
    folder = tmp_path_factory.mktemp("lwm2m")
    certificate, key = make_certificate(folder, "ecdsa")
    settings = f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n[lwm2m]\ndtls_bind = "127.0.0.1:LWM2M_PORT"\n'
    with running_nodes(folder, "a", "b", settings=settings, manifest=_MANIFEST) as found:
        for node in found[:1]:
            change = {"devicePropertiesEnabled": True}
            url = f"{node.base}/devicemgmt/devicetypes/{LIGHT_TYPE}"
            assert httpx.put(url, headers=bearer(USER_TOKEN), json=change).status_code == 200
        yield found


class Asked:
    """REST of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._client = httpx.AsyncClient(headers=bearer(USER_TOKEN), timeout=PATIENCE_SECONDS)

    async def __call__(self, method: str, path: str, **given: Any) -> Any:
        answer = await self._client.request(method, self._node.base + path, **given)
        assert answer.status_code == 200, answer.text
        return answer.json().get("data")

    async def resources(self, number: int) -> dict[str, str]:
        """The states of fields."""
        found = await self("GET", f"/devices/{device_id(number)}/lwm2m")
        return {one["field"]: one["state"] for one in found["fields"]}

    async def actions(self, number: int) -> list[tuple[str, str, str]]:
        """The latest first: name, state and text."""
        found = await self("GET", f"/devices/{device_id(number)}/lwm2m")
        return [(one["name"], one["state"], one["message"]) for one in found["actions"]]

    async def act(self, number: int, *names: str) -> None:
        data = {"actions": [{"name": name} for name in names]}
        await self("POST", "/actions", json={"ddid": device_id(number), "type": "action", "data": data})

    async def task(self, number: int, kind: str, target: str, value: str | None = None) -> str:
        body: dict[str, Any] = {"dtid": LIGHT_TYPE, "dids": [device_id(number)], "taskType": kind, "property": target}
        if value is not None:
            body["taskParameters"] = {"value": value}
        return str((await self("POST", "/devicemgmt/tasks", json=body))["id"])

    async def status(self, task: str) -> str:
        found = await self("GET", f"/devicemgmt/tasks/{task}/statuses")
        return str(found["statuses"][0]["status"]) if found["statuses"] else ""

    async def waits_for(self, task: str) -> str:
        found = await self("GET", f"/devicemgmt/tasks/{task}/statuses")
        return str(found["statuses"][0].get("waitsFor")) if found["statuses"] else ""

    async def close(self) -> None:
        await self._client.aclose()


@asynccontextmanager
async def registered(node: Node, number: int, *queries: str) -> AsyncIterator[ScriptedDevice]:
    """A device of DTLS that has registered with a node."""
    identity, token = device_id(number), device_token(number)
    with dtls_client(Address("127.0.0.1", node.lwm2m), psk_context(identity, token, PSK)) as client:
        await client.handshake(seconds=PATIENCE_SECONDS)
        device = ScriptedDevice(DtlsTransport(client), identity)
        device.replies |= {
            f"GET {_LEVEL}": content(TEXT, b"80"),
            f"GET {_TEMPERATURE}": content(TEXT, b"21.5"),
        }
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.run)
            answer = await device.register(f"ep={identity}", "lt=300", *queries, payload=_OBJECTS)
            assert answer.code == aiocoap.CREATED
            yield device
            nursery.cancel_scope.cancel()


async def until(what: Callable[[], Awaitable[object]], seconds: float = PATIENCE_SECONDS) -> None:
    with trio.fail_after(seconds):
        while not await what():  # noqa: ASYNC110 - other processes answer
            await trio.sleep(0.05)


async def comes(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Wait until the answer is this."""
    found: object = None

    async def is_there() -> bool:
        nonlocal found
        found = await ask()
        return found == wanted

    try:
        await until(is_there)
    except trio.TooSlowError:
        assert found == wanted


def silent(_request: aiocoap.Message) -> None:
    """The device does not answer."""


async def test_a_device_of_one_node_is_managed_from_another(nodes: list[Node]) -> None:
    at_b = Asked(nodes[1])
    async with registered(nodes[0], 0) as device:
        await comes(lambda: at_b.resources(0), {"temperature": "observed", "humidity": "notObserved"})
        read = await at_b.task(0, "R", "deviceProperties.device.batteryLevel")
        write = await at_b.task(0, "W", "deviceProperties.device.timezone", "CET")
        execute = await at_b.task(0, "E", "deviceProperties.device.reboot")
        for task in (read, write, execute):
            await comes(partial(at_b.status, task), "SUCCEEDED")
        assert [one for one in device.requests if one in {f"GET {_LEVEL}", "PUT /3/0/15", _REBOOT}] == [
            f"GET {_LEVEL}",
            "PUT /3/0/15",
            _REBOOT,
        ]
        found = await at_b("GET", f"/devicemgmt/devices/{device_id(0)}/properties")
        assert found["deviceProperties"]["device"] == {"batteryLevel": 80, "timezone": "CET"}
        await at_b.act(0, "setOn", "reboot")
        await comes(lambda: at_b.actions(0), [("setOn, reboot", "done", _DONE)])
        offers = (await at_b("GET", f"/devices/{device_id(0)}/lwm2m"))["offers"]
        assert offers["fields"], "the model of the light has more than the Manifest"
        assert (device.requests.count(_SET), device.requests.count(_REBOOT)) == (1, 2)
        await device.notify(_TEMPERATURE, 2, content(TEXT, b"22.5"))

        async def latest() -> object:
            found = await at_b("GET", "/messages/last", params={"sdids": device_id(0), "count": 1})
            return found and found[0]["data"]

        await comes(latest, {"temperature": 22.5})
    await at_b.close()


async def test_what_waits_goes_with_the_device_to_another_node(nodes: list[Node]) -> None:
    at_a, at_b = map(Asked, nodes)
    async with registered(nodes[0], 1) as first:
        first.replies |= {_SET: silent, _REBOOT: silent}
        await comes(lambda: at_b.resources(1), {"temperature": "observed", "humidity": "notObserved"})
        await at_b.act(1, "setOn")
        await at_b.act(1, "setOff", "reboot")
        await first.wait_asked(_SET)
        sentence = "The device gets it next."
        waiting = [("setOff, reboot", "waiting", sentence), ("setOn", "waiting", sentence)]
        await comes(lambda: at_b.actions(1), waiting)
        first.replies[f"GET {_LEVEL}"] = silent
        task = await at_b.task(1, "R", "deviceProperties.device.batteryLevel")
        await comes(lambda: at_b.waits_for(task), "The device has not answered the request yet.")
        async with registered(nodes[1], 1) as second:
            done = [("setOff, reboot", "done", _DONE), ("setOn", "done", _DONE)]
            await comes(lambda: at_a.actions(1), done)
            await comes(lambda: at_a.status(task), "SUCCEEDED")
            assert [one for one in second.requests if one in {_SET, _REBOOT}] == [_SET, _SET, _REBOOT]
            await at_a.act(1, "setOn")
            await comes(lambda: at_b.actions(1), [("setOn", "done", _DONE), *done])
            assert _REBOOT not in first.requests
            with trio.fail_after(PATIENCE_SECONDS):
                await first.has_ended.wait()  # the former session is closed
    for asked in (at_a, at_b):
        await asked.close()


async def test_an_execute_that_was_under_way_is_not_sent_again(nodes: list[Node]) -> None:
    at_a, at_b = map(Asked, nodes)
    async with registered(nodes[1], 2) as first:
        first.replies[_REBOOT] = silent
        await comes(lambda: at_a.resources(2), {"temperature": "observed", "humidity": "notObserved"})
        await at_a.act(2, "reboot")
        await at_a.act(2, "setOn")
        await first.wait_asked(_REBOOT)
        async with registered(nodes[0], 2) as second:
            wanted = [("setOn", "done", _DONE), ("reboot", "failed", "The device did not answer.")]
            await comes(lambda: at_b.actions(2), wanted)
            assert _REBOOT not in second.requests
    for asked in (at_a, at_b):
        await asked.close()


async def test_a_device_of_a_node_that_dies_goes_on_at_another(nodes: list[Node]) -> None:
    """The last test: one of the nodes is gone."""
    at_a = Asked(nodes[0])
    async with registered(nodes[1], 3) as first:
        first.replies |= {_SET: silent}
        await comes(lambda: at_a.resources(3), {"temperature": "observed", "humidity": "notObserved"})
        await at_a.act(3, "setOn")
        await first.wait_asked(_SET)
        first.replies[f"GET {_LEVEL}"] = silent
        task = await at_a.task(3, "R", "deviceProperties.device.batteryLevel")
        nodes[1].close()
        await comes(lambda: at_a.resources(3), {"temperature": "away", "humidity": "away"})
        connection = (await at_a("GET", f"/devicemgmt/devices/{device_id(3)}/properties"))["systemProperties"]
        assert not connection["connection"]["connected"]
        await comes(lambda: at_a.status(task), "QUEUED")
    async with registered(nodes[0], 3):
        await comes(lambda: at_a.actions(3), [("setOn", "done", _DONE)])
        await comes(lambda: at_a.status(task), "SUCCEEDED")
    await at_a.close()
