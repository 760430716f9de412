"""What happens to the daemon during a soak: devices on each protocol, and everything else that users and operators do.

Each activity is a thread that does one thing, waits, and does it again. None of them may fail: whatever is refused, is
not answered or raises is noted, and ends the soak as a failure.
"""

import json
import random
import re
import signal
import socket
import struct
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
from websockets.sync.client import connect

from tests.daemon import (
    ADA,
    ADA_EMAIL,
    DASHBOARD_WITH_SECRET,
    LIGHT_TYPE,
    USER_TOKEN,
    Daemon,
    bearer,
    command_output,
    device_id,
    device_token,
)
from tests.faults import clients
from tests.protocols.http.accounts.browser import PASSWORD, Form
from tests.served import served

#: Devices of each protocol, one after the other; those of LWM2M are of a type whose Manifest has their property.
PROTOCOLS: Final[Sequence[Callable[..., clients.Exchange]]] = (*clients.PROTOCOLS, clients.lwm2m)
LIGHTS: Final = 2 * len(clients.PROTOCOLS)
#: A light that only people send messages of; the rules look at it. The last light is told to switch on.
WATCHED, TOLD = LIGHTS, LIGHTS + 1
SENSORS: Final = (LIGHTS + 2, LIGHTS + 3)
_SENSOR_MANIFEST: Final = {
    "fields": [{"name": "temperature", "children": [{"name": "sensorValue", "valueClass": "Double"}]}],
    "actions": [],
}
_WORLD: Final = f"""{DASHBOARD_WITH_SECRET}
[[device_types]]
unique_name = "example.sensor"
name = "Sensor"
organization = "Acme"
published = true
manifest = "sensor.json"

[[grants]]
user = "{ADA_EMAIL}"
application = "Dashboard"
device_type = "example.sensor"
permissions = ["READ", "WRITE"]
"""
_SENSOR: Final = """
[[devices]]
id = "{id}"
owner = "ada@example.org"
type = "example.sensor"
name = "Sensor {n}"
token = "{token}"
"""
SETTINGS: Final = """rest_user = "{rate}/1000000"
[outbound]
allow_private_addresses = true
[coap]
bind = "127.0.0.1:0"
[lwm2m]
tcp_bind = "127.0.0.1:0"
[log]
format = "json"
"""
_PATIENCE_SECONDS: Final = 60.0
#: Messages over one connection.
_MESSAGES: Final = 40
#: LWM2M requests beyond 10 a second of a peer wait (reference 21.5).
_LEAST_PAUSE: Final = {clients.lwm2m: 0.2}
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: the connection is reset


def provision(daemon: Daemon) -> None:
    """The lights, the sensors, and an application whose callbacks are on this machine."""
    daemon.configure(devices=LIGHTS + 2)
    folder = daemon.state.parent
    folder.joinpath("sensor.json").write_text(json.dumps(_SENSOR_MANIFEST), encoding="utf-8")
    sensors = "".join(_SENSOR.format(id=device_id(n), n=n, token=device_token(n)) for n in SENSORS)
    file = folder / "soak.toml"
    file.write_text(_WORLD + sensors, encoding="utf-8")
    command_output("provision", file, "--config", daemon.config)


@dataclass
class Load:
    """The activities, and what came of them."""

    daemon: Daemon
    pause: float  # of each device, between two messages
    often: float  # the shortest time between two reloads, exports and so on; others take a multiple of it
    acknowledged: dict[int, set[int]] = field(default_factory=dict)  # by device
    received: set[tuple[str, int]] = field(default_factory=set)  # by the subscription's callback
    done: Counter[str] = field(default_factory=Counter)
    activities: list[str] = field(default_factory=list)  # their names
    failures: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    #: While a subscription waits for its handshake. A clock that goes back then lets it wait as much longer.
    subscribing: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)
    _subscription: str = ""

    def __post_init__(self) -> None:
        self._http = self._client()

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self.daemon.base_url, headers=bearer(USER_TOKEN), timeout=_PATIENCE_SECONDS)

    def ask(self, method: str, path: str, **body: Any) -> Any:
        answer = self._http.request(method, path, **body)
        assert answer.status_code == 200, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()["data"]

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._receiver() as port:
            self._subscribe(port)
            self._rule("always")
            sensor = self.ask("GET", f"/devices/{device_id(SENSORS[0])}")["dtid"]
            self.ask("PUT", f"/devicemgmt/devicetypes/{sensor}", json={"devicePropertiesEnabled": True})
            devices = [*range(LIGHTS), *SENSORS]
            for number in devices:
                protocol = PROTOCOLS[len(clients.PROTOCOLS) if number in SENSORS else number % len(clients.PROTOCOLS)]
                self._begin(f"{protocol.__name__} {number}", partial(self._send, number, protocol), 0)
            for activity, times in (
                (self._switch, 0.5),
                (self._listen, 0.1),
                (self._come_and_go, 0.5),
                (self._change_rules, 1),
                (self._change_subscriptions, 2),
                (self._search, 0.5),
                (self._export, 4),
                (self._sign_in, 2),
                (self._reload, 3),
                (self._back_up, 12),
            ):
                self._begin(activity.__name__.strip("_"), activity, times * self.often)
            try:
                yield
            finally:
                self.stop.set()
                for thread in self._threads:
                    thread.join(timeout=2 * _PATIENCE_SECONDS)
                    if thread.is_alive():
                        self.failures.append(f"{thread.name} does not end")

    def wait_received(self) -> None:
        """Until the callback has everything that was acknowledged before."""
        wanted = {(device_id(device), number) for device, numbers in self.acknowledged.items() for number in numbers}
        end = time.monotonic() + _PATIENCE_SECONDS
        while not wanted <= self.received:
            if time.monotonic() > end:
                self.failures.append(f"the callback never got {len(wanted - self.received)} messages")
                return
            time.sleep(0.1)

    def _begin(self, name: str, activity: Callable[[], None], seconds: float) -> None:
        def repeat() -> None:
            while not self.stop.is_set():
                try:
                    activity()
                    self.done[name] += 1
                except Exception:  # noqa: BLE001 - whatever it is, the soak has failed
                    self.failures.append(f"{name}: {traceback.format_exc(limit=-4)}")
                    self.stop.wait(1)
                self.stop.wait(seconds)

        self.activities.append(name)
        thread = threading.Thread(target=repeat, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    # --- Devices -----------------------------------------------------------------------------------------------------

    def _send(self, device: int, protocol: Callable[..., clients.Exchange]) -> None:
        """A connection with some messages. Every third one ends with a reset."""
        acknowledged = self.acknowledged.setdefault(device, set())
        pause = max(self.pause, _LEAST_PAUSE.get(protocol, 0.0))
        with ExitStack() as held:
            exchange = protocol(self.daemon, device, held, _PATIENCE_SECONDS)
            for _ in range(_MESSAGES):
                number = len(acknowledged) + 1
                exchange(number)  # an error, when it is refused
                acknowledged.add(number)
                if self.stop.wait(pause):
                    break

    def _come_and_go(self) -> None:
        """A device that is made, sends one message over MQTT, is removed, and another connection that is reset."""
        body = {"uid": ADA, "dtid": LIGHT_TYPE, "name": "Soon gone"}
        device = self.ask("POST", "/devices", json=body)["id"]
        self.ask("PUT", f"/devices/{device}/tokens")
        self.ask("POST", "/messages", json={"sdid": device, "data": {"intensity": 0}})
        self.ask("DELETE", f"/devices/{device}")
        with ExitStack() as held:
            mqtt = socket.create_connection(self.daemon.host_port("mqtt"), timeout=_PATIENCE_SECONDS)
            held.enter_context(mqtt)
            mqtt.sendall(b"\x10")
            mqtt.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    # --- Ada ---------------------------------------------------------------------------------------------------------

    def _switch(self) -> None:
        """A message that the rules look at."""
        data = {"state": self.done["switch"] % 2 == 0}
        self.ask("POST", "/messages", json={"sdid": device_id(WATCHED), "data": data})

    def _rule(self, name: str) -> str:
        condition = {"sdid": device_id(WATCHED), "field": "state", "operator": "=", "operand": {"value": True}}
        rule = {"if": condition, "then": {"ddid": device_id(TOLD), "action": "setOn"}}
        return str(self.ask("POST", "/rules", json={"name": name, "rule": rule})["id"])

    def _change_rules(self) -> None:
        self.ask("DELETE", f"/rules/{self._rule('soon gone')}")

    def _listen(self) -> None:
        """The live feed of all her devices."""
        url = f"{self.daemon.ws_url}/live?uid={ADA}&authorization={USER_TOKEN}"
        with connect(url, open_timeout=_PATIENCE_SECONDS, close_timeout=_PATIENCE_SECONDS) as feed:
            for _ in range(200):
                if self.stop.is_set():
                    return
                with suppress(TimeoutError):  # the others have ended
                    feed.recv(timeout=1)

    def _search(self) -> None:
        now = time.time_ns() // 1_000_000
        last = f"/messages/last?sdids={device_id(0)},{device_id(1)}&count=10"
        spans = f"startDate={now - 600_000}&endDate={now + 7_200_000}"
        for path in (
            last,
            f"/messages?sdid={device_id(random.randrange(LIGHTS))}&{spans}&count=100",  # noqa: S311
            f"/messages/analytics/aggregates?sdid={device_id(0)}&field=intensity&{spans}",
            f"/users/{ADA}/devices?count=20",
        ):
            answer = self._http.get(path)
            assert answer.status_code == 200, f"{path}: {answer.text}"

    def _export(self) -> None:
        now = time.time_ns() // 1_000_000
        body = {"sdids": device_id(0), "startDate": now - 600_000, "endDate": now + 7_200_000, "format": "json"}
        made = self.ask("POST", "/messages/export", json=body)["exportId"]
        while (found := self._http.get(f"/messages/export/{made}/status").json())["status"] != "Success":
            assert found["status"] in {"Received", "InProgress"}, found
            if self.stop.wait(0.2):
                return
        archive = self._http.get(f"/messages/export/{made}/result")
        assert archive.status_code == 200, archive.text

    # --- The subscription --------------------------------------------------------------------------------------------

    @contextmanager
    def _receiver(self) -> Iterator[int]:
        load = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
                if "nonce" in body:
                    proof = {"aid": body["aid"], "nonce": body["nonce"]}
                    load.ask("POST", f"/subscriptions/{body['subscriptionId']}/validate", json=proof)
                for one in body.get("data", ()):
                    numbers = [*re.findall(r"-?[0-9]+", json.dumps(one["data"]))]
                    load.received |= {(one["sdid"], int(number)) for number in numbers}

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        with served(server):
            yield server.server_address[1]

    def _subscribe(self, port: int) -> str:
        self._port = port
        wanted = {"messageType": "message", "uid": ADA, "callbackUrl": f"http://localhost:{port}/"}
        with self.subscribing:
            made = self.ask("POST", "/subscriptions", json=wanted)["id"]
            end = time.monotonic() + _PATIENCE_SECONDS
            while self.ask("GET", f"/subscriptions/{made}")["status"] != "ACTIVE":
                assert time.monotonic() < end, "the subscription does not become active"
                time.sleep(0.1)
        return str(made)

    def _change_subscriptions(self) -> None:
        self.ask("DELETE", f"/subscriptions/{self._subscribe(self._port)}")

    # --- The operator ------------------------------------------------------------------------------------------------

    def _sign_in(self) -> None:
        """Ada signs in to the console, looks at two pages, and signs out."""
        origin = f"http://{self.daemon.addresses['http']}"
        with httpx.Client(base_url=origin, follow_redirects=True, timeout=_PATIENCE_SECONDS) as client:
            form = Form(client.get("/console").text)
            client.post(form.action, data=form.fields | {"email": ADA_EMAIL, "password": PASSWORD}).raise_for_status()
            for page in ("/console/rules", "/console/account"):
                shown = client.get(page)
                assert shown.status_code == 200, shown.text
                assert shown.url.path == page, shown.url

    def _reload(self) -> None:
        """Another rate, which SIGHUP makes known."""
        self.daemon.settings = SETTINGS.format(rate=1_000_000 - self.done["reload"] % 2)
        self.daemon.write_config()
        assert self.daemon.process is not None
        self.daemon.process.send_signal(signal.SIGHUP)

    def _back_up(self) -> None:
        folder = self.daemon.state.parent / "backups"
        folder.mkdir(exist_ok=True)
        command_output("backup", folder, "--keep", "2", "--config", self.daemon.config)


def stored(daemon: Daemon) -> dict[int, Counter[int]]:
    """The numbers of each device in the store of a daemon that does not run, and how often each is there."""
    devices = {device_id(number): number for number in (*range(LIGHTS), *SENSORS)}
    found: dict[int, Counter[int]] = {number: Counter() for number in devices.values()}
    with daemon.store(read_only=True) as connection:
        rows = connection.execute("SELECT d.id, m.data FROM message m JOIN device d ON d.key = m.device")
        for id_, data in map(tuple, rows.tuples()):
            if id_ in devices:
                found[devices[id_]][_number(json.loads(data))] += 1
    return found


def _number(data: dict[str, Any]) -> int:
    value: int = data["intensity"] if "intensity" in data else data["temperature"]["sensorValue"]
    return value


def folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:  # gone
            continue
    return total
