"""Kills a Trunkline that forwards, and the one that it forwards to, again and again; and restarts a mosquitto beside.

    python -m tests.e2e.forward_kills [--kills 200] [--order oldest|newest] [--seed N] [--folder NEW]

Afterwards each message of the edge is at the centre once, each Action of the centre at the edge once, and what
mosquitto has given a subscriber has each message at least once, in order.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.daemon import ADA, USER_TOKEN, Daemon, bearer, command_output, device_id
from tests.e2e.test_kill import CountingDevice
from tests.free_port import free_port
from tests.programs import require_program

SENDERS: Final = 2
_STALLED_SECONDS: Final = 60.0  # longer than the longest pause of a forwarder after failures
_MOSQUITTO: Final = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {folder}/
autosave_interval 1
max_queued_messages 0
"""
_FORWARDS: Final = """
[[forward]]
name = "centre"
to = "http://127.0.0.1:{centre}"
token_file = "{token}"
begin = "start"
order = "{order}"

[[forward]]
name = "broker"
to = "mqtt://127.0.0.1:{broker}"
begin = "start"
"""


class Result(NamedTuple):
    """Of messages and Actions: how many there are, how many the other side lacks, and how many it has too often."""

    kills: int
    messages: int
    lost: int
    twice: int
    actions: int
    actions_lost: int
    actions_twice: int
    at_broker: int
    broker_lost: int
    broker_out_of_order: int
    seconds: float

    @property
    def is_right(self) -> bool:
        wrong = (self.lost, self.twice, self.actions_lost, self.actions_twice, self.broker_lost)
        return not any((*wrong, self.broker_out_of_order))


class Subscriber:
    """Hears everything at the broker, in a session that outlives its connections."""

    def __init__(self, port: int) -> None:
        self.heard: list[tuple[str, int, str]] = []
        self._client = Client(CallbackAPIVersion.VERSION2, "subscriber", protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_connect = lambda client, *_: void(client.subscribe("trunkline/+/messages", qos=1))
        self._client.on_message = self._hear
        is_subscribed = threading.Event()
        self._client.on_subscribe = lambda *_: is_subscribed.set()
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3_600
        self._client.reconnect_delay_set(0.1, 0.5)  # type: ignore[arg-type]
        self._client.connect_async("127.0.0.1", port, clean_start=False, properties=properties)
        self._client.loop_start()
        assert is_subscribed.wait(30)  # mosquitto drops what nobody has subscribed to

    def _hear(self, _client: Any, _data: Any, message: MQTTMessage) -> None:
        properties = dict(message.properties.UserProperty)  # type: ignore[union-attr]
        assert properties.keys() == {"mid", "ts", "did", "path"}
        self.heard.append((properties["did"], json.loads(message.payload)["intensity"], properties["mid"]))

    def end(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def void(_: object) -> None:
    """Callbacks of paho return nothing."""


class Pace(threading.Semaphore):
    """Has a device wait after each acknowledgement: otherwise it sends more than there is time to forward."""

    def release(self, n: int = 1) -> None:
        time.sleep(0.003)
        super().release(n)


class ActionSender(threading.Thread):
    """Sends Actions to the first device of the edge, at the centre, until the centre is gone."""

    def __init__(self, daemon: Daemon, first: int, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._url, self.number, self._chance = daemon.base_url, first, chance
        self.has_sent, self.is_over = threading.Event(), threading.Event()

    def begin(self) -> None:
        """Start, and wait for the first Action: on a busy machine the edge needs longer than all kills take."""
        is_first = not self.number
        self.start()
        if is_first:
            self.has_sent.wait(_STALLED_SECONDS)

    def run(self) -> None:
        with suppress(httpx.HTTPError), httpx.Client(base_url=self._url, headers=bearer(USER_TOKEN), timeout=20) as api:
            while (device := _first_of_edge(api)) is None:
                time.sleep(0.05)
            while not self.is_over.is_set():
                self.number += 1
                actions = {"actions": [{"name": "setOn", "parameters": {"n": self.number}}]}
                api.post("/actions", json={"ddid": device, "data": actions}).raise_for_status()
                self.has_sent.set()
                time.sleep(self._chance.choice((0, 0.01, 0.1)))


def _end(acting: ActionSender | None) -> None:
    if acting is not None:
        acting.is_over.set()
        acting.join(timeout=30)


def _first_of_edge(api: httpx.Client) -> str | None:
    found = api.get(f"/users/{ADA}/devices", params={"count": 100}).raise_for_status().json()["data"]["devices"]
    return next((one["id"] for one in found if one["name"] == "Light 0"), None)


@contextmanager
def mosquitto_in(folder: Path, port: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A running mosquitto: a list with its process, which may be replaced."""
    folder.mkdir()
    config = folder / "mosquitto.conf"
    config.write_text(_MOSQUITTO.format(port=port, folder=folder), encoding="utf-8")
    folder.chmod(0o777)
    running = [start_mosquitto(config)]
    try:
        yield running
    finally:
        running[0].terminate()
        running[0].wait(timeout=30)


def start_mosquitto(config: Path) -> subprocess.Popen[bytes]:
    program = require_program("mosquitto")
    return subprocess.Popen([program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def other_store(daemon: Daemon) -> None:
    """Make its store another one than that which the same world was copied from."""
    with daemon.store() as connection:
        connection.execute("UPDATE secret SET value = :key WHERE name = 'mid'", {"key": bytes(range(16))})


def edge_and_centre(folder: Path, settings: str = _FORWARDS, **more: object) -> tuple[Daemon, Daemon]:
    """Two daemons, of which neither runs; the edge has a token of the centre."""
    edge, centre = Daemon(folder / "edge" / "state"), Daemon(folder / "centre" / "state")
    port = free_port()
    for daemon, devices in ((edge, SENDERS), (centre, 0)):
        daemon.state.parent.mkdir()
        daemon.configure(devices=devices)
    text = centre.config.read_text(encoding="utf-8")
    centre.config.write_text(text.replace("127.0.0.1:0", f"127.0.0.1:{port}", 1), encoding="utf-8")
    other_store(centre)
    centre.start()
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(command_output("edge", "add", "attic", "--owner", "ada@example.org", "--config", centre.config))
    edge.config.write_text(
        edge.config.read_text(encoding="utf-8") + settings.format(centre=port, token=token, **more), encoding="utf-8"
    )
    return edge, centre


def run(folder: Path, kills: int, *, seed: int = 20_261_127, order: str = "oldest") -> Result:
    chance, began = random.Random(seed), time.monotonic()  # noqa: S311 - the moments are random
    broker = free_port()
    edge, centre = edge_and_centre(folder, broker=broker, order=order)
    with mosquitto_in(folder / "mosquitto", broker) as mosquitto:
        subscriber = Subscriber(broker)
        edge.start()
        reached, actions = [0] * SENDERS, 0
        senders: list[CountingDevice] = []
        acting: ActionSender | None = None
        for _ in range(kills):
            if not senders:
                senders = [
                    CountingDevice(edge.port("mqtt"), number, reached[number], Pace(0)) for number in range(SENDERS)
                ]
                for sender in senders:
                    sender.start()
            if acting is None and centre.process is not None:
                acting = ActionSender(centre, actions, random.Random(chance.random()))  # noqa: S311
                acting.begin()
            time.sleep(chance.uniform(0.05, 0.8))
            whom = chance.choice(("edge", "centre", "both"))
            if whom != "centre":
                edge.kill()
                for sender in senders:
                    sender.join(timeout=30)
                reached, senders = [sender.sent for sender in senders], []
            if whom != "edge" and centre.process is not None:
                centre.kill()
                if acting is not None:
                    acting.join(timeout=30)
                    actions, acting = acting.number, None
            if chance.random() < 0.1:
                mosquitto[0].terminate()
                mosquitto[0].wait(timeout=30)
                mosquitto[0] = start_mosquitto(folder / "mosquitto" / "mosquitto.conf")
            if edge.process is None:
                edge.start()
            if centre.process is None and chance.random() < 0.8:  # otherwise it is away for longer
                centre.start()
        if centre.process is None:
            centre.start()
        edge.kill()
        for sender in senders:
            sender.join(timeout=30)
        edge.start()
        _end(acting)
        _wait_for_all(edge, centre, subscriber)
        found = _compare(edge, centre, subscriber)
        subscriber.end()
    return Result(kills, *found, round(time.monotonic() - began, 1))


def _wait_for_all(edge: Daemon, centre: Daemon, subscriber: Subscriber) -> None:
    """Return when each side has all of the other ones, or no more comes for long."""
    fewest, since = sys.maxsize, time.monotonic()
    while time.monotonic() - since < _STALLED_SECONDS:
        sent = _messages(edge)
        at_broker = _at_broker(subscriber)
        missing = (sent - _messages(centre)).total() + len(sent.keys() - at_broker)
        missing += (_actions(centre) - _actions(edge)).total()
        if not missing:
            return
        if missing < fewest:
            fewest, since = missing, time.monotonic()
        time.sleep(1)


def _at_broker(subscriber: Subscriber) -> dict[tuple[str, int], str]:
    """The mid of each message that the subscriber has heard, in the order in which it heard them first."""
    names = {device_id(number): f"Light {number}" for number in range(SENDERS)}
    found: dict[tuple[str, int], str] = {}
    for did, number, mid in list(subscriber.heard):
        found.setdefault((names[did], number), mid)
    return found


def _say_missing(where: str, missing: Collection[tuple[str, int]], sent: Counter[tuple[str, int]]) -> None:
    """Write which numbers of each device are missing as ranges, and its last one: is it the tail?"""
    for name in sorted({name for name, _ in missing}):
        numbers = sorted(number for device, number in missing if device == name)
        starts = [at for at, number in enumerate(numbers) if not at or number != numbers[at - 1] + 1]
        ends = [*starts[1:], len(numbers)]
        ranges = [f"{numbers[start]}-{numbers[end - 1]}" for start, end in zip(starts, ends, strict=True)]
        last = max(number for device, number in sent if device == name)
        sys.stderr.write(f"{where} lacks of {name} (last {last}): {', '.join(ranges)}\n")


def _compare(
    edge: Daemon, centre: Daemon, subscriber: Subscriber
) -> tuple[int, int, int, int, int, int, int, int, int]:
    for daemon in (centre, edge):
        assert daemon.stop() == 0
    sent, stored = _messages(edge), _messages(centre)
    wanted, got = _actions(centre), _actions(edge)
    lost, twice = sent - stored, stored - sent
    first = _at_broker(subscriber)
    by_device: dict[str, list[int]] = {}
    for name, number in first:
        by_device.setdefault(name, []).append(number)
    broker_lost = sent.keys() - first
    _say_missing("The centre", lost, sent)
    _say_missing("The broker", broker_lost, sent)
    out_of_order = sum(numbers != sorted(numbers) for numbers in by_device.values())
    return (
        sent.total(),
        lost.total(),
        twice.total(),
        wanted.total(),
        (wanted - got).total(),
        (got - wanted).total(),
        len(subscriber.heard),
        len(broker_lost),
        out_of_order,
    )


def _messages(daemon: Daemon) -> Counter[tuple[str, int]]:
    sql = "SELECT d.name, m.data FROM message m JOIN device d ON d.key = m.device"
    with daemon.store(read_only=True) as connection:
        return Counter((row["name"], json.loads(row["data"])["intensity"]) for row in connection.execute(sql))


def _actions(daemon: Daemon) -> Counter[int]:
    with daemon.store(read_only=True) as connection:
        rows = [json.loads(row["data"]) for row in connection.execute("SELECT data FROM action")]
    return Counter(row["actions"][0]["parameters"]["n"] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--order", choices=("oldest", "newest"), default="oldest")
    parser.add_argument("--seed", type=int, default=20_261_127)
    parser.add_argument("--folder", type=Path, help="keeps both stores here; made, must not exist")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=options.folder is None)
        result = run(folder, options.kills, seed=options.seed, order=options.order)
    sys.stdout.write(f"{result}\n")
    sys.exit(not result.is_right)


if __name__ == "__main__":
    main()
