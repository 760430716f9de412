"""A signed-in user, Eve, who uses what the service offers as much as it lets her; Ada is the innocent one.

python -m tests.attacks.signed_in [--messages 120000] [--seconds 5] [--beside] [--markdown] [case …]

Bound: p99 of Ada's answers at most 3 times that alone, or 50 ms. A case is one kind of call, on some connections. With
--beside, Ada is also measured while Eve does the same to another daemon on the machine, and 3 times that is the bound.
"""

import argparse
import json
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import trio

from config.limits import APPROVED_ROWS_MAX
from config.loading import load_settings
from protocols.cli.provision import apply_document
from storage.engines import engine_of
from storage.engines.port import StoreEngine
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import MessageRow
from storage.transaction import Transaction
from tests.attacks.flooding import ask_each
from tests.attacks.lwm2m_device import answer_with_tlv
from tests.attacks.measuring import PAUSE_SECONDS, Damage, Exchange, damage_of
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
role = "administrator"

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
#: Three more, who do what Eve does.
_OTHERS = """
[[users]]
email = "eve{number}@example.org"
password = "correct horse battery staple"

[[tokens]]
value = "{token}"
application = "Dashboard"
user = "eve{number}@example.org"
expires_in = 86400

[[grants]]
user = "eve{number}@example.org"
application = "Dashboard"
device_type = "example.light"
permissions = ["READ", "WRITE"]

[[devices]]
id = "{device}"
owner = "eve{number}@example.org"
type = "example.light"
name = "Another light"
"""
_DELIVERIES, _DELIVERIES_TOKEN = "5e" * 16, "4e" * 16
_SUBSCRIPTION = f"""
[[applications]]
name = "Deliveries"
organization = "Acme"
redirect_uri = "https://localhost:{{port}}/"

[[tokens]]
value = "{_DELIVERIES_TOKEN}"
application = "Deliveries"
user = "eve@example.org"
expires_in = 86400

[[grants]]
user = "eve@example.org"
application = "Deliveries"
device_type = "*"
permissions = ["READ"]

[[subscriptions]]
id = "{_DELIVERIES}"
owner = "eve@example.org"
application = "Deliveries"
sdid = "{{device}}"
callback_url = "https://localhost:{{port}}/"
"""
_OTHER_TOKENS: Final = tuple(f"{0x3E00 + number:032x}" for number in range(1, 4))
_OTHER_DEVICES: Final = tuple(device_id(0x9100 + number) for number in range(1, 4))
_SETTINGS = """
[outbound]
allow_private_addresses = true
[lwm2m]
tcp_bind = "127.0.0.1:0"
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
    daemon = Daemon(folder / "state", settings + _SETTINGS)
    daemon.configure(devices=1)
    file = folder / "eve.toml"
    devices = enumerate(EVES_DEVICES)
    others = enumerate(zip(_OTHER_TOKENS, _OTHER_DEVICES, strict=True), start=1)
    file.write_text(
        _USER
        + "".join(_DEVICE.format(id=one, number=n, token=eves_token(n)) for n, one in devices)
        + "".join(_OTHERS.format(number=n, token=token, device=one) for n, (token, one) in others)
    )
    command_output("provision", file, "--config", daemon.config)
    end_ms = int(time.time() * 1000) - 3_600_000
    start_ms = end_ms - 2 * 86_400_000
    _write_log(engine_of(load_settings(daemon.config, {})), messages, start_ms, end_ms)
    daemon.start()
    try:
        one = World(daemon, start_ms, end_ms)
        one.wait_projected(messages)
        yield one
    finally:
        daemon.stop()


def _write_log(engine: StoreEngine, messages: int, start_ms: int, end_ms: int) -> None:
    with closing(engine.open(read_only=False)) as connection:
        tx = Transaction(connection)
        found = [tx.devices.by_id(one) for one in (device_id(0), EVES_DEVICES[0])]
        ada, eve = (DeviceKey(one.key) for one in found if one is not None)
        rows = [_row(number + 1, ada, start_ms + number) for number in range(100)]
        step = (end_ms - start_ms) / messages
        rows += [_row(101 + number, eve, start_ms + int(number * step)) for number in range(messages)]
        for first in range(0, len(rows), 5_000):
            some = rows[first : first + 5_000]
            connection.begin(write=True)
            tx.messages.append(some, [], [], head=some[-1].position)
            connection.commit()
    make_index(engine)


def eves_token(number: int) -> str:
    return f"{0x9000 + number:032x}"


def _row(position: int, device: DeviceKey, ts: int) -> MessageRow:
    data = f'{{"state":{"true" if position % 2 else "false"},"intensity":{position % 100}}}'
    return MessageRow(Position(position), device, Milliseconds(ts), Milliseconds(ts), 1, data)


@dataclass(frozen=True, slots=True)
class World:
    daemon: Daemon
    start_ms: int
    end_ms: int

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, token: str = EVE_TOKEN) -> Any:
        """Eve's call and its answer, or that of the user with this token."""
        return json.loads(self.answer(request(method, path, body, token)).partition(b"\r\n\r\n")[2])

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


def request(method: str, path: str, body: Mapping[str, Any] | bytes | None = None, token: str = EVE_TOKEN) -> bytes:
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "Content-Type: application/json\r\n" if content else ""
    head = (
        f"{method} /v1.1{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: bearer {token}\r\n{kind}"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


# Eve's attacks: the bytes of one request for each connection


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
    """Almost 1 MiB each: as many numbers as a body may have, nearly out of range; too many arrays; many levels."""
    numbers = b'{"a":[' + b"1.5e100," * 32_000 + b'1],"p":"' + b"1" * 750_000 + b'"}'
    arrays = b'{"a":[' + (b"[" * 20 + b"]" * 20 + b",") * 25_000 + b"1]}"
    deep = b'{"a":' * 800 + b'{"p":"' + b"1" * 1_000_000 + b'","x":1e400}' + b"}" * 800
    return [request("POST", "/devices", one) for one in (numbers, arrays, deep)] * 2


def _feeds(_world: World) -> list[bytes]:
    upgrade = (
        f"GET /v1.1/live?authorization={EVE_TOKEN} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    return [upgrade.encode()] * 200


def _deliveries(world: World) -> list[bytes]:
    """A subscription with some hundreds of notifications, whose log is read and delivered again; nobody answers."""
    file = world.daemon.state.parent / "subscription.toml"
    if not file.exists():
        hanging = socket.create_server(("127.0.0.1", 0))
        _HANGING.append(hanging)
        file.write_text(_SUBSCRIPTION.format(device=EVES_DEVICES[1], port=hanging.getsockname()[1]))
        command_output("provision", file, "--config", world.daemon.config)
        for number in range(300):
            body = {"sdid": EVES_DEVICES[1], "type": "message", "data": {"intensity": number % 100}}
            world.call("POST", "/messages", body)
    path = f"/subscriptions/{_DELIVERIES}/deliveries"
    whole = {"startDate": world.start_ms, "endDate": int(time.time() * 1000) + 60_000}
    return [
        request("GET", f"{path}?count=100", token=_DELIVERIES_TOKEN),
        request("POST", f"{path}/replay", whole, _DELIVERIES_TOKEN),
    ] * 4


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
    "delivery-log": _deliveries,
    "feeds": _feeds,
}


# Eve's other attacks: each is called in a process of its own, and never returns


def _provisioning(world: World) -> Callable[[], None]:
    """Files of 1,000 new devices, one after the other."""

    def attack() -> None:
        settings = load_settings(world.daemon.config, {})
        for number in count():
            named = (
                {"name": f"{time.time_ns()} {one}", "key": f"{number} {one} {time.time_ns()}"} for one in range(1_000)
            )
            devices = [{"owner": "eve@example.org", "type": "example.light", **one} for one in named]
            trio.run(partial(apply_document, settings, {"devices": devices}, dry_run=False))

    return attack


def _approved_lists(world: World) -> Callable[[], None]:
    """Lists of 10,000 new vendor ids of 64 characters, as many as may wait."""

    def attack() -> None:
        for number in count():
            rows = "".join(f"\n{number:032x}{one:032x}" for one in range(APPROVED_ROWS_MAX))
            upload = request("POST", f"/devicetypes/{LIGHT_TYPE}/whitelist", b"vdid" + rows.encode())
            while (status := world.answer(upload)[9:12]) != b"200":
                assert status == b"409", status  # as many wait as may
                time.sleep(0.01)

    return attack


def _hanging_requests(world: World) -> Callable[[], None]:
    """Rules of users, each with a request to a server of its own that does not answer. Others have rules whose requests
    are answered: `has_a_request_sent` measures them."""
    users = [_asker(number) for number in range(_ATTACKING_USERS + _ASKING_USERS)]
    file = world.daemon.state.parent / "askers.toml"
    file.write_text("".join(_OTHERS.format(number=100 + n, token=one, device=of) for n, (one, of) in enumerate(users)))
    command_output("provision", file, "--config", world.daemon.config)
    answering = socket.create_server(("127.0.0.1", 0))
    _ANSWERING[world.daemon.host_port("http")] = answering
    messages = []
    for number, (token, device) in enumerate(users):
        one = answering
        if number < _ATTACKING_USERS:
            one = socket.create_server((f"127.0.1.{1 + number}", 0))
            _HANGING.append(one)
        host, port = one.getsockname()[:2]
        asking = {
            "action": "httpRequest",
            "parameters": {"method": {"value": "GET"}, "url": {"value": f"http://{host}:{port}/"}},
        }
        condition = {"sdid": device, "field": "intensity", "operator": ">=", "operand": {"value": 0}}
        body = {"name": "Asks", "rule": {"if": {"and": [condition]}, "then": [asking]}}
        assert "data" in world.call("POST", "/rules", body, token)
        messages.append(_told(device, token))
    return partial(ask_each, world.daemon.host_port("http"), messages[:_ATTACKING_USERS])


def _asker(number: int) -> tuple[str, str]:
    """The token and the device of a user with a rule that sends requests."""
    return f"{0x3F00 + number:032x}", device_id(0x9200 + number)


def _told(device: str, token: str) -> bytes:
    return request("POST", "/messages", {"sdid": device, "type": "message", "data": {"intensity": 1}}, token)


def _long_tlv(world: World) -> Callable[[], None]:
    """Ten devices that register again and again, and answer each Read with 2,000 resources in 60 KB of TLV."""
    management = {"devicePropertiesEnabled": True}
    assert "data" in world.call("PUT", f"/devicemgmt/devicetypes/{LIGHT_TYPE}", management, USER_TOKEN)
    address = world.daemon.host_port("lwm2m_tcp")
    return partial(answer_with_tlv, address, [(one, eves_token(n)) for n, one in enumerate(EVES_DEVICES[:10])])


OTHER_CASES: Final[Mapping[str, Callable[[World], Callable[[], None]]]] = {
    "approved-lists": _approved_lists,
    "provisioning": _provisioning,
    "requests-to-hanging-servers": _hanging_requests,
    "lwm2m-tlv": _long_tlv,
}
#: Sockets on which nobody answers.
_HANGING: Final[list[socket.socket]] = []
#: Where rules of innocent users send their requests, by the address of their daemon.
_ANSWERING: Final[dict[tuple[str, int], socket.socket]] = {}
#: A user's rules send 5 requests a minute. The attackers hold 4 places each, nearly all places.
_ATTACKING_USERS, _ASKING_USERS = 15, 40
_PAUSE_OF_ASKERS: Final = 0.1
_ASKED: Final = multiprocessing.Value("i", 0)


def attack_of(name: str, world: World) -> Callable[[], None]:
    """The attack's function, which never returns."""
    if (other := OTHER_CASES.get(name)) is not None:
        return other(world)
    return partial(ask_each, world.daemon.host_port("http"), CASES[name](world))


# Ada's requests


def _kept(daemon: Daemon, path: str) -> Exchange:
    head = f"GET /v1.1{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: bearer {USER_TOKEN}\r\n\r\n".encode()
    connection = socket.create_connection(daemon.host_port("http"), timeout=30)

    def exchange() -> None:
        connection.sendall(head)
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]

    return exchange


def reads_last_messages(daemon: Daemon) -> Exchange:
    """A request that needs a reader of the store."""
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


def has_a_request_sent(daemon: Daemon) -> Exchange:
    """From a message to the request of a rule about it: each time of another user, because of the limit of requests."""
    server = _ANSWERING[daemon.host_port("http")]
    server.settimeout(30)
    connection = socket.create_connection(daemon.host_port("http"), timeout=30)

    def exchange() -> None:
        with _ASKED.get_lock():
            token, device = _asker(_ATTACKING_USERS + _ASKED.value % _ASKING_USERS)
            _ASKED.value += 1
        connection.sendall(_told(device, token))
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        asked, _address = server.accept()
        with asked:
            assert asked.recv(65_536).startswith(b"GET / ")
            asked.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    return exchange


INNOCENT: Final[Mapping[str, Callable[[Daemon], Exchange]]] = {
    "reads": reads_last_messages,
    "signs in": gets_a_token,
}
#: The innocent requests of other cases.
OTHER_INNOCENT: Final[Mapping[str, Mapping[str, Callable[[Daemon], Exchange]]]] = {
    "requests-to-hanging-servers": {"has a request sent": has_a_request_sent},
}


def is_bounded(damage: Damage) -> bool:
    without = max(one.percentile(0.99) for one in (damage.alone, damage.beside) if one is not None)
    return damage.during.percentile(0.99) <= max(ALLOWED_MS, 3 * without)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join([*CASES, *OTHER_CASES]))
    parser.add_argument("--messages", type=int, default=120_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--markdown", action="store_true", help="at the end, the rows of the table in README.md")
    given = parser.parse_args()
    with ExitStack() as stack:

        def opened() -> World:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            return stack.enter_context(world(folder, messages=given.messages))

        one, other = opened(), opened() if given.beside else None
        rows = list[str]()
        for name in given.cases or [*CASES, *OTHER_CASES]:
            if name in CASES and name != "feeds":  # their answers have no end
                for wanted in dict.fromkeys(CASES[name](one)):
                    _show_alone(one, wanted)
            attack, on_another = attack_of(name, one), None if other is None else attack_of(name, other)
            damages = []
            for what, innocent in OTHER_INNOCENT.get(name, INNOCENT).items():
                damage = damage_of(
                    one.daemon,
                    attack,
                    seconds=given.seconds,
                    innocent=innocent,
                    on_another=on_another,
                    pause=PAUSE_SECONDS if name not in OTHER_INNOCENT else _PAUSE_OF_ASKERS,
                )
                damage.show(f"{name}: Ada {what}: {'bounded' if is_bounded(damage) else 'OUT OF BOUNDS'}")
                damages.append(damage)
            rows.append(_row_of_table(name, damages))
        if given.markdown:
            print(*rows, sep="\n")


def _row_of_table(name: str, damages: Sequence[Damage]) -> str:
    """Of one case: what Ada did, in the order of `INNOCENT`."""
    times, figures = [], []
    for one in damages:
        waits = [each.percentile(0.99) for each in (one.alone, one.beside, one.during) if each is not None]
        times.append(f"{waits[-1] / max(waits[:-1]):.1f}")
        figures.append(", ".join(f"{each:.1f}" if each < 10 else f"{each:.0f}" for each in waits))
    grown = max(0, *(one.grown_mib for one in damages))
    return f"| `{name}` | {', '.join(times)} | {'; '.join(figures)} | {grown:.0f} MiB |"


def _show_alone(world: World, wanted: bytes) -> None:
    began = time.perf_counter()
    answer = world.answer(wanted)
    took = time.perf_counter() - began
    assert answer[9:12] in {b"200", b"400", b"413", b"429"}, answer[:200]
    print(f"  alone {1000 * took:7.1f} ms: {wanted[:50]!r} {answer[9:12].decode()} {len(answer)} bytes")


if __name__ == "__main__":
    main()
