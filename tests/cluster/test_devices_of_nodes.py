"""Devices of LWM2M, and devices in clouds of third parties, at any of several nodes (reference 27.25)."""

import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from html import unescape
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import aiocoap
import httpx
import psycopg
import pytest
import trio

from config.settings import Address
from tests.cluster.node import PATIENCE_SECONDS, Node, running_nodes
from tests.daemon import DASHBOARD, USER_TOKEN, bearer, command_output, device_id, device_token
from tests.factories import LIGHT_MANIFEST, LIGHT_TYPE
from tests.programs import require_dtls
from tests.properties import in_ci
from tests.protocols.coap.dtls.client import PSK, dtls_client, make_certificate, psk_context
from tests.protocols.coap.lwm2m.device import TEXT, DtlsTransport, ScriptedDevice, content
from tests.third_party_cloud import ACCOUNT, ThirdPartyCloud

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
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRUNKLINE_PUBLIC_URL", "https://gateway.example.org")
        yield from _nodes(tmp_path_factory)


def _nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    folder = tmp_path_factory.mktemp("lwm2m")
    certificate, key = make_certificate(folder, "ecdsa")
    settings = '[outbound]\nallow_private_addresses = true\n[console]\noperators = ["ada@example.org"]\n'
    settings += f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n[lwm2m]\ndtls_bind = "127.0.0.1:LWM2M_PORT"\n'
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

    async def __call__(self, method: str, path: str, **given: Any) -> Any:
        return (await self.answer(method, path, **given)).json().get("data")

    async def answer(self, method: str, path: str, **given: Any) -> httpx.Response:
        async with httpx.AsyncClient(headers=bearer(USER_TOKEN), timeout=PATIENCE_SECONDS) as client:
            answer = await client.request(method, self._node.base + path, **given)
        assert answer.status_code == 200, answer.text
        return answer

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


LAMP, METER = "1a" * 16, "1b" * 16
_CLOUD_WORLD: Final = """
[[organizations]]
name = "Acme"

[[applications]]
id = "{dashboard}"
name = "Dashboard"
organization = "Acme"
redirect_uri = "https://app.example.org/callback"
"""
_CLOUD_TYPE: Final = """
[[device_types]]
id = "{type}"
unique_name = "example.{name}"
name = "{name}"
organization = "Acme"
published = true
manifest = "{manifest}"

[[devices]]
id = "{device}"
owner = "ada@example.org"
type = "example.{name}"
name = "{name}"
"""


class Clouds:
    """A third party's cloud with a lamp, whose notifications have values, and a meter, whose values are fetched."""

    def __init__(self, nodes: list[Node]) -> None:
        self.cloud = ThirdPartyCloud()
        self.nodes = nodes
        self.types = {LAMP: "dt" + "2a" * 16, METER: "dt" + "2b" * 16}

    def provision(self, folder: Path) -> None:
        (folder / "cloud.json").write_text(json.dumps(LIGHT_MANIFEST), encoding="utf-8")
        text = _CLOUD_WORLD.format(dashboard=DASHBOARD)
        for device, name in ((LAMP, "lamp"), (METER, "meter")):
            about = {"type": self.types[device], "name": name, "device": device, "manifest": folder / "cloud.json"}
            text += _CLOUD_TYPE.format(**about)
            connector = self.cloud.provision_file().replace("example.light", f"example.{name}")
            text += connector if device == LAMP else connector.replace('payload = "{state: on}"\n', "")
        file = folder / "clouds.toml"
        file.write_text(text, encoding="utf-8")
        command_output("provision", file, "--config", self.nodes[0].daemon.config)

    async def link(self, device: str, begin: Node, finish: Node) -> None:
        """Begin the authorization at one node, and come back to another one."""
        async with httpx.AsyncClient(headers=bearer(USER_TOKEN), timeout=PATIENCE_SECONDS) as browser:
            referer = {"Referer": "https://app.example.org/"}
            begun = await browser.post(f"{begin.base}/devices/{device}/providerauth", headers=referer)
            assert begun.status_code == 302, begun.text
            decided = await browser.get(begun.headers["Location"])
            back = httpx.URL(decided.headers["Location"]).copy_with(scheme="http", host="127.0.0.1", port=finish.http)
            assert (await browser.get(back)).headers["Location"] == referer["Referer"]

    async def notify(self, node: Node, device: str, **change: object) -> int:
        payload = {"changes": [{"user": ACCOUNT, **change}]}
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
            path = f"{node.base}/cloudconnectors/{self.types[device]}/thirdpartynotifications"
            return (await client.post(path, **self.cloud.notification(payload))).status_code


def holder_of_connectors(nodes: list[Node]) -> Node:
    with psycopg.connect(nodes[0].url) as connection:
        row = connection.execute("SELECT node FROM lease WHERE name = 'connectors' AND until <> 0").fetchone()
    return next(node for node in nodes if row is not None and node.name == row[0])


async def values(asked: Asked, device: str, field: str) -> list[object]:
    query = {"sdid": device, "startDate": 0, "endDate": 4_000_000_000_000, "order": "asc", "count": 100}
    found = await asked("GET", "/messages", params=query)
    return [one["data"][field] for one in found if field in one["data"]]


@pytest.fixture(scope="module")
def clouds(nodes: list[Node]) -> Clouds:
    return Clouds(nodes)


async def test_devices_in_a_cloud_are_served_by_all_nodes(
    nodes: list[Node], clouds: Clouds, tmp_path: Path, nursery: trio.Nursery
) -> None:
    a, b = nodes
    at_a, at_b = map(Asked, nodes)
    cloud = clouds.cloud
    cloud.readings = [{"at": 1000, "temp": 20.5}]
    await nursery.start(cloud.run)
    clouds.provision(tmp_path)

    async def is_known(asked: Asked) -> bool:
        return bool((await asked("GET", f"/devices/{LAMP}"))["needProviderAuth"])

    await comes(partial(is_known, at_b), wanted=True)
    await clouds.link(LAMP, a, b)
    await clouds.link(METER, b, a)
    for asked in (at_a, at_b):  # one of the nodes has fetched, for both
        for device in (LAMP, METER):
            await comes(partial(values, asked, device, "temperature"), [20.5])
    for number, node in enumerate((a, b, a, b)):
        assert await clouds.notify(node, LAMP, on=bool(number % 2), at=2_000 + number) == 200
        assert len(await values(Asked(nodes[1 - number % 2]), LAMP, "state")) == number + 1
    for number, node in enumerate((a, b), start=1):
        cloud.readings.append({"at": 1000 + number, "temp": 20.5 + number})
        assert await clouds.notify(node, METER) == 200
        await comes(partial(values, at_b, METER, "temperature"), [20.5 + one for one in range(number + 1)])
    for asked in (at_a, at_b):
        await asked("POST", "/actions", json={"ddid": LAMP, "data": {"actions": [{"name": "setOn"}]}})
    await comes(partial(_number_of, cloud, f"/lamps/{LAMP}"), 2)


async def _number_of(cloud: ThirdPartyCloud, path: str) -> int:
    return cloud.paths().count(path)


class Pages:
    """A person's browser without a balancer's memory: each request goes to the other node."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = cycle(nodes)
        self._cookies: dict[str, str] = {}

    async def __call__(self, method: str, path: str, **given: Any) -> httpx.Response:
        cookies = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        headers = {"Cookie": cookies, "Origin": "https://gateway.example.org"} | given.pop("headers", {})
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
            url = f"http://127.0.0.1:{next(self._nodes).http}{httpx.URL(path).raw_path.decode()}"
            answer = await client.request(method, url, headers=headers, **given)
        for one in answer.headers.get_list("set-cookie"):
            name, _, value = one.partition(";")[0].partition("=")
            self._cookies[name] = value
        return answer


@in_ci
async def test_a_person_signs_in_over_several_nodes(nodes: list[Node]) -> None:
    page = Pages(nodes)
    led = await page("GET", "/console")
    shown = await page("GET", led.headers["location"])
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', shown.text)
    fields = {name: unescape(value) for name, value in hidden}
    fields |= {"email": "ada@example.org", "password": "correct horse battery staple"}
    signed_in = await page("POST", "/accounts/login", data=fields)
    assert signed_in.status_code in {302, 303}, signed_in.text
    console = await page("GET", signed_in.headers["location"])
    (proof,) = re.findall(r'<meta name="csrf" content="(\w+)">', console.text)
    for _ in nodes:
        answer = await page("POST", "/console/token", headers={"X-Console": proof})
        token = answer.json()["accessToken"]
        found = await page("GET", "/v1.1/users/self", headers=bearer(token))
        assert found.status_code == 200, found.text
    begun = await page("POST", "/v1.1/operator/backups", headers=bearer(token))
    assert begun.status_code == 200, begun.text
    node = begun.json()["data"]["node"]

    async def backup() -> tuple[str, str]:
        """Each call comes to the other node."""
        latest = (await page("GET", "/v1.1/operator/backups", headers=bearer(token))).json()["data"]["latest"]
        return latest["status"], latest["node"]

    for _ in nodes:
        await comes(backup, ("done", node))
        found = await page("GET", "/v1.1/operator/backups", headers=bearer(token))
        assert [one["node"] for one in found.json()["data"]["backups"]] == [node]


async def test_what_one_node_has_begun_is_asked_for_at_another(nodes: list[Node]) -> None:
    for here, there in ((nodes[0], nodes[1]), (nodes[1], nodes[0])):
        at_first, at_second = Asked(here), Asked(there)
        for value in (1.5, 2.5, 3.5):
            body = {"sdid": device_id(4), "type": "message", "data": {"temperature": value}}
            await at_first("POST", "/messages", json=body)
        await _pages_of_a_search(at_first, at_second)
        await _an_export(at_first, there)
        await _an_image(at_first, at_second, here.name)
        await _an_upload(at_first, at_second, here.name)


async def _pages_of_a_search(*asked: Asked) -> None:
    query = {"sdid": device_id(4), "startDate": 0, "endDate": 4_000_000_000_000, "count": 1, "order": "desc"}
    found, offset = list[float](), None
    for one in (*asked, asked[0]):
        answer = await one.answer("GET", "/messages", params=query | ({} if offset is None else {"offset": offset}))
        found += [row["data"]["temperature"] for row in answer.json()["data"]]
        offset = answer.json().get("next")
    assert found == [3.5, 2.5, 1.5]


async def _an_export(asked: Asked, there: Node) -> None:
    now_ms = int(time.time() * 1000)
    body = {"sdids": device_id(4), "startDate": now_ms - 3_600_000, "endDate": now_ms}
    export = (await asked("POST", "/messages/export", json=body))["exportId"]
    other = Asked(there)

    async def status() -> object:
        return (await other.answer("GET", f"/messages/export/{export}/status")).json()["status"]

    await comes(status, "Success")
    archive = await other.answer("GET", f"/messages/export/{export}/result")
    assert archive.content[:2] == b"\x1f\x8b"


async def _an_image(asked: Asked, other: Asked, version: str) -> None:
    images = f"/devicemgmt/devicetypes/{LIGHT_TYPE}/images"
    image = await asked("POST", f"{images}?version={version}", content=b"an image")
    assert image["updateId"] in {one["updateId"] for one in (await other("GET", images))["images"]}
    await other("DELETE", f"{images}/{image['updateId']}")
    assert (await asked("GET", images))["images"] == []


async def _an_upload(asked: Asked, other: Asked, vendor: str) -> None:
    devices = f"/devicetypes/{LIGHT_TYPE}/whitelist"
    answer = await asked.answer("POST", devices, content=f"{vendor}-1\n{vendor}-2\n".encode())
    upload = answer.json()["uploadId"]

    async def status() -> object:
        return (await other.answer("GET", f"{devices}/{upload}/status")).json()["status"] != "Processing"

    await comes(status, wanted=True)


@in_ci
async def test_a_task_that_was_under_way_on_a_node_that_stops_waits_for_the_device(nodes: list[Node]) -> None:
    """Whoever serves the device next asks it again, and nobody else says meanwhile that it is being asked."""
    at_a = Asked(nodes[0])
    async with registered(nodes[1], 4) as first:
        first.replies[f"GET {_LEVEL}"] = silent
        await comes(lambda: at_a.resources(4), {"temperature": "observed", "humidity": "notObserved"})
        task = await at_a.task(4, "R", "deviceProperties.device.batteryLevel")
        await comes(lambda: at_a.waits_for(task), "The device has not answered the request yet.")
        nodes[1].daemon.begin_to_stop()
        assert await trio.to_thread.run_sync(nodes[1].daemon.stop) == 0  # at once: it moves no connections
        assert await at_a.status(task) == "QUEUED"
    async with registered(nodes[0], 4):
        await comes(lambda: at_a.status(task), "SUCCEEDED")
    await trio.to_thread.run_sync(nodes[1].start)


@in_ci
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
        found = (await at_a("GET", f"/devicemgmt/devices/{device_id(3)}/properties"))["systemProperties"]
        assert not (found["connection"] or {}).get("connected")
        await comes(lambda: at_a.status(task), "QUEUED")
    async with registered(nodes[0], 3):
        await comes(lambda: at_a.actions(3), [("setOn", "done", _DONE)])
        await comes(lambda: at_a.status(task), "SUCCEEDED")
