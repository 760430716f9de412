"""A signed-in user, Eve, who uses what the service offers as much as it lets her; Ada is the innocent one.

python -m tests.attacks.signed_in [--messages 120000] [--seconds 5] [--beside] [case …]

Bound: p99 of Ada's answers at most 3 times that alone, or 50 ms. A case is one kind of call, on some connections. With
--beside, Ada is also measured while Eve does the same to another daemon on the machine, and 3 times that is the bound.
"""

import argparse
import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from storage.database import Transaction
from storage.engines.sqlite import SqliteEngine
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import MessageRow
from tests.attacks.flooding import ask_each
from tests.attacks.measuring import Damage, Exchange, damage_of
from tests.daemon import DASHBOARD, LIGHT_TYPE, USER_TOKEN, Daemon, command_output, device_id
from tests.stores import make_index

EVE, EVE_TOKEN = "e4e0" * 8, "3e" * 16
EVES_DEVICES: Final = tuple(device_id(0x9000 + number) for number in range(20))
ALLOWED_MS: Final = 50.0

_USER = f"""
[[users]]
id = "{EVE}"
email = "eve@example.org"
full_name = "Eve"
password = "correct horse battery staple"
organization = "Acme"
role = "developer"

[[tokens]]
value = "{EVE_TOKEN}"
application = "Dashboard"
user = "eve@example.org"
expires_in = 86400

[[grants]]
user = "eve@example.org"
application = "Dashboard"
device_type = "example.light"
permissions = ["READ", "WRITE"]
"""
_DEVICE = """
[[devices]]
id = "{id}"
owner = "eve@example.org"
type = "example.light"
name = "Eve {number}"
token = "{token}"
"""


@contextmanager
def world(folder: Path, *, messages: int, settings: str = "") -> Iterator["World"]:
    """A daemon with a light of Ada, which has sent some messages, and Eve's lights; the first one has sent `messages`
    in the last days."""
    daemon = Daemon(folder / "state", settings)
    daemon.configure(devices=1)
    file = folder / "eve.toml"
    devices = enumerate(EVES_DEVICES)
    file.write_text(_USER + "".join(_DEVICE.format(id=one, number=n, token=f"{0x9000 + n:032x}") for n, one in devices))
    command_output("provision", file, "--config", daemon.config)
    end_ms = int(time.time() * 1000) - 3_600_000
    start_ms = end_ms - 2 * 86_400_000
    _write_log(next(daemon.state.glob("*.sqlite*")), messages, start_ms, end_ms)
    daemon.start()
    try:
        one = World(daemon, start_ms, end_ms)
        one.wait_projected(messages)
        yield one
    finally:
        daemon.stop()


def _write_log(store: Path, messages: int, start_ms: int, end_ms: int) -> None:
    with closing(SqliteEngine(store, synchronous="off").open(read_only=False)) as connection:
        tx = Transaction(connection)
        found = [tx.devices.by_id(one) for one in (device_id(0), EVES_DEVICES[0])]
        ada, eve = (DeviceKey(one.key) for one in found if one is not None)
        rows = [_row(number + 1, ada, start_ms + number) for number in range(100)]
        step = (end_ms - start_ms) / messages
        rows += [_row(101 + number, eve, start_ms + int(number * step)) for number in range(messages)]
        connection.begin(write=True)
        for first in range(0, len(rows), 5_000):
            some = rows[first : first + 5_000]
            tx.messages.append(some, [], [], head=some[-1].position)
        connection.commit()
    make_index(store)


def _row(position: int, device: DeviceKey, ts: int) -> MessageRow:
    data = f'{{"state":{"true" if position % 2 else "false"},"intensity":{position % 100}}}'
    return MessageRow(Position(position), device, Milliseconds(ts), Milliseconds(ts), 1, data)


@dataclass(frozen=True, slots=True)
class World:
    daemon: Daemon
    start_ms: int
    end_ms: int

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Eve's call and its answer."""
        return json.loads(self.answer(request(method, path, body)).partition(b"\r\n\r\n")[2])

    def answer(self, wanted: bytes) -> bytes:
        with socket.create_connection(self.daemon.host_port("http"), timeout=120) as one:
            one.sendall(wanted.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            received = b""
            while more := one.recv(65_536):
                received += more
        return received

    def wait_projected(self, messages: int) -> None:
        """Until the aggregates have all messages: the daemon has done what it does after a start."""
        path = f"/messages/analytics/aggregates?sdid={EVES_DEVICES[0]}&field=intensity&startDate={self.start_ms}"
        end = time.monotonic() + 120
        while time.monotonic() < end:
            found = self.call("GET", f"{path}&endDate={self.end_ms + 60_000}").get("data")
            if found and found[0]["count"] >= messages - 1:
                return
            time.sleep(0.5)
        raise TimeoutError("the daemon has not read the log")

    def rule(self) -> str:
        """The id of a rule of Eve's that looks at the device with many messages, and at others."""
        conditions = [
            {"sdid": one, "field": "intensity", "operator": ">", "operand": {"value": 98}} for one in EVES_DEVICES[:5]
        ]
        body = {
            "name": "A rule",
            "rule": {
                "if": {"and": conditions},
                "then": [{"ddid": EVES_DEVICES[1], "action": "setOn", "parameters": {}}],
            },
        }
        made = self.call("POST", "/rules", body)
        return str(made["data"]["id"])


def request(method: str, path: str, body: Mapping[str, Any] | bytes | None = None) -> bytes:
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "Content-Type: application/json\r\n" if content else ""
    head = (
        f"{method} /v1.1{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: bearer {EVE_TOKEN}\r\n{kind}"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


# What Eve does: the bytes of one request for each connection


def _range(world: World) -> str:
    return f"startDate={world.start_ms}&endDate={world.end_ms}"


def _searches(world: World) -> list[bytes]:
    device = f"/messages?sdid={EVES_DEVICES[0]}&{_range(world)}"
    filters = ("&fieldPresence=zz", "&filter=intensity%3D1000", "&filter=text%3Da&order=desc")
    return [request("GET", device + filters[number % 3]) for number in range(32)]


def _searches_of_all(world: World) -> list[bytes]:
    return [request("GET", f"/messages?{_range(world)}&fieldPresence=zz")] * 8


def _last(_world: World) -> list[bytes]:
    return [request("GET", f"/messages/last?sdids={','.join(EVES_DEVICES)}&fieldPresence=zz")] * 8


def _replays(world: World) -> list[bytes]:
    path, body = f"/rules/{world.rule()}", {"startDate": world.start_ms, "endDate": world.end_ms}
    return [request("POST", f"{path}/replay", body)] * 4 + [request("GET", f"{path}/explain?{_range(world)}")] * 4


def _exports(world: World) -> list[bytes]:
    body = {"sdids": EVES_DEVICES[0], "startDate": world.start_ms, "endDate": world.end_ms, "format": "json"}
    return [request("POST", "/messages/export", body)] * 4


def _tries(_world: World) -> list[bytes]:
    fields = [{"name": f"f{number}", "valueClass": "Integer"} for number in range(5_000)]
    manifest = {"fields": fields, "actions": []}
    body = json.dumps({"manifest": manifest, "payload": '{"f1":1}'}).encode()
    return [request("POST", f"/devicetypes/{LIGHT_TYPE}/manifests/try", body)] * 8


def _refused_rules(_world: World) -> list[bytes]:
    wrong = {"sdid": "zz", "field": "f" * 60, "operator": "??", "operand": {"value": [1]}}
    rule = {"if": {"and": [wrong] * 160}, "then": [{"ddid": "zz", "action": ""}] * 50}
    return [request("POST", "/rules", {"name": "A rule", "rule": rule})] * 8


def _histograms(world: World) -> list[bytes]:
    device = f"sdid={EVES_DEVICES[0]}&field=intensity"
    hour = f"startDate={world.end_ms - 3_600_000}&endDate={world.end_ms}"
    return [
        request("GET", f"/messages/analytics/histogram?{device}&interval=minute&{hour}"),
        request("GET", f"/messages/analytics/histogram?{device}&interval=day&{_range(world)}"),
        request("GET", f"/messages/analytics/aggregates?{device}&{_range(world)}"),
        request("GET", f"/messages/presence?interval=minute&fieldPresence=intensity&{hour}"),
    ] * 2


def _snapshots(_world: World) -> list[bytes]:
    return [request("GET", f"/messages/snapshots?sdids={','.join(EVES_DEVICES)}")] * 8


def _models(_world: World) -> list[bytes]:
    source = {"did": EVES_DEVICES[0], "field": "intensity"}
    body = {
        "data": {"sources": [source, {"did": EVES_DEVICES[0], "field": "state"}]},
        "type": "prediction",
        "parameters": {"sourceToPredict": source, "predictIn": 60},
    }
    return [request("POST", "/ml/models", body)] * 2


def _long_bodies(_world: World) -> list[bytes]:
    """Almost 1 MiB each: many numbers that are nearly out of range, many arrays, many levels with such a number."""
    numbers = b'{"a":[' + b"1.5e100," * 130_000 + b"1]}"
    arrays = b'{"a":[' + (b"[" * 20 + b"]" * 20 + b",") * 25_000 + b"1]}"
    deep = b'{"a":' * 800 + b'{"p":"' + b"1" * 1_000_000 + b'","x":1e400}' + b"}" * 800
    return [request("POST", "/devices", one) for one in (numbers, arrays, deep)] * 2


def _feeds(_world: World) -> list[bytes]:
    upgrade = (
        f"GET /v1.1/live?authorization={EVE_TOKEN} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    return [upgrade.encode()] * 200


CASES: Final[Mapping[str, Callable[[World], list[bytes]]]] = {
    "searches": _searches,
    "searches-of-all-devices": _searches_of_all,
    "last-messages-with-a-field": _last,
    "replays-and-explanations": _replays,
    "exports": _exports,
    "manifests-tried": _tries,
    "rules-refused": _refused_rules,
    "histograms": _histograms,
    "snapshots": _snapshots,
    "model-training": _models,
    "long-bodies": _long_bodies,
    "feeds": _feeds,
}


# What Ada does


def _kept(daemon: Daemon, path: str) -> Exchange:
    head = f"GET /v1.1{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: bearer {USER_TOKEN}\r\n\r\n".encode()
    connection = socket.create_connection(daemon.host_port("http"), timeout=30)

    def exchange() -> None:
        connection.sendall(head)
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]

    return exchange


def reads_last_messages(daemon: Daemon) -> Exchange:
    """What needs a reader of the store."""
    return _kept(daemon, f"/messages/last?sdids={device_id(0)}&count=1")


def gets_a_token(daemon: Daemon) -> Exchange:
    """A token of the application: a look-up, a hash and a write."""
    form = f"grant_type=client_credentials&client_id={DASHBOARD}&client_secret=s3cret".encode()
    head = (
        "POST /accounts/token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        f"Content-Length: {len(form)}\r\n\r\n"
    ).encode()
    connection = socket.create_connection(daemon.host_port("http"), timeout=30)

    def exchange() -> None:
        connection.sendall(head + form)
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]

    return exchange


INNOCENT: Final[Mapping[str, Callable[[Daemon], Exchange]]] = {
    "reads": reads_last_messages,
    "signs in": gets_a_token,
}


def is_bounded(damage: Damage) -> bool:
    without = max(one.percentile(0.99) for one in (damage.alone, damage.beside) if one is not None)
    return damage.during.percentile(0.99) <= max(ALLOWED_MS, 3 * without)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    parser.add_argument("--messages", type=int, default=120_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--beside", action="store_true")
    given = parser.parse_args()
    with ExitStack() as stack:

        def opened() -> World:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            return stack.enter_context(world(folder, messages=given.messages))

        one, other = opened(), opened() if given.beside else None
        for name in given.cases or CASES:
            requests = CASES[name](one)
            if name != "feeds":  # its answers have no end
                for wanted in dict.fromkeys(requests):
                    _show_alone(one, wanted)
            attack = partial(ask_each, one.daemon.host_port("http"), requests)
            on_another = None
            if other is not None:
                on_another = partial(ask_each, other.daemon.host_port("http"), CASES[name](other))
            for what, innocent in INNOCENT.items():
                damage = damage_of(one.daemon, attack, seconds=given.seconds, innocent=innocent, on_another=on_another)
                damage.show(f"{name}: Ada {what}: {'bounded' if is_bounded(damage) else 'OUT OF BOUNDS'}")


def _show_alone(world: World, wanted: bytes) -> None:
    began = time.perf_counter()
    answer = world.answer(wanted)
    took = time.perf_counter() - began
    assert answer[9:12] in {b"200", b"400", b"429"}, answer[:200]
    print(f"  alone {1000 * took:7.1f} ms: {wanted[:50]!r} {answer[9:12].decode()} {len(answer)} bytes")


if __name__ == "__main__":
    main()
