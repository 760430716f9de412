"""Acknowledged means stored, also of a topic device that is read or made for its first message (reference 16.8)."""

import random
import re
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.daemon import ADA_EMAIL, Daemon, device_id, device_token
from tests.programs import require_program
from tests.properties import in_ci

SETTINGS = f"""
[[topic_devices]]
name = "gates"
owner = "{ADA_EMAIL}"
type = "example.light"
topic = "gate/+/now"
key = "topic:2"
data = "{{intensity: level}}"
make = true
"""
ROUNDS, KEYS, WINDOW = 2, 40, 20
ACKNOWLEDGED_BEFORE_KILL = (1, 60)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setenv("TRUNKLINE_MQTT_TOPICS", "open")
    daemon = Daemon(tmp_path / "state", SETTINGS)
    daemon.configure(devices=1)
    daemon.start()
    yield daemon
    daemon.stop()


def stored(daemon: Daemon) -> dict[str, Counter[int]]:
    """The values of each key, however often they are stored, of a store that nobody has open."""
    found = defaultdict[str, Counter[int]](Counter)
    with daemon.store(read_only=True) as connection:
        rows = connection.execute(
            "SELECT device.eid, message.data FROM message JOIN device ON device.key = message.device"
        )
        pairs = list(rows.tuples())
    for key, data in pairs:
        (value,) = re.findall("[0-9]+", data)
        found[key][int(value)] += 1
    return found


def killed_under_paho(daemon: Daemon, qos: int, values: Sequence[int], enough: int) -> set[int]:
    """Publish values, each to one of the keys in turn; kill the daemon after some acknowledgements. Returns all values
    that were acknowledged."""
    known, acknowledged, reached = dict[int, int](), set[int](), threading.Event()
    client = Client(CallbackAPIVersion.VERSION2, f"gate{values[0]}", protocol=MQTTProtocolVersion.MQTTv311)
    client.username_pw_set(device_id(0), device_token(0))
    client.max_inflight_messages_set(WINDOW)
    client.reconnect_delay_set(3_600, 3_600)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()

    def acknowledge(_client: Client, _data: object, number: int, *_: object) -> None:
        acknowledged.add(number)
        if len(acknowledged) >= enough:
            reached.set()

    client.on_publish = acknowledge
    client.connect("127.0.0.1", daemon.port("mqtt"))
    client.loop_start()
    try:
        assert connected.wait(30)
        for value in values:
            sent = client.publish(f"gate/{value % KEYS}/now", f'{{"level":{value}}}', qos=qos)
            known[sent.mid] = value
        assert reached.wait(60), "no acknowledgements"
        daemon.kill()
    finally:
        client.loop_stop()
    return {known[number] for number in acknowledged}


@in_ci
def test_every_acknowledged_first_message_is_stored_after_a_kill(daemon: Daemon) -> None:
    """Each start has all devices to read again, and the first rounds make them."""
    chance = random.Random(20_261_127)  # noqa: S311 - the moments are random, and the same in every run
    acknowledged = dict[int, set[int]]()
    for number in range(ROUNDS):
        qos = 1 + number % 2
        values = range(number * 200, number * 200 + 200)
        acknowledged.setdefault(qos, set()).update(
            killed_under_paho(daemon, qos, values, chance.randint(*ACKNOWLEDGED_BEFORE_KILL))
        )
        daemon.start()
    daemon.stop()
    found = stored(daemon)
    for value in acknowledged[1] | acknowledged[2]:
        assert found[str(value % KEYS)][value] == 1, f"{value} was acknowledged, and is not stored once"
    assert max(max(one.values()) for one in found.values()) == 1
    daemon.start()


def test_mosquitto_pub_and_a_kill(daemon: Daemon) -> None:
    """The program ends when its message is acknowledged, and the daemon is killed then."""
    program = require_program("mosquitto_pub")
    for value, qos in ((1, 1), (2, 2)):
        address = ["-h", "127.0.0.1", "-p", str(daemon.port("mqtt")), "-u", device_id(0), "-P", device_token(0)]
        message = ["-t", "gate/front/now", "-m", f'{{"level":{value}}}', "-q", str(qos)]
        subprocess.run([program, *address, *message], check=True, timeout=60)
        daemon.kill()
        assert stored(daemon)["front"] == Counter(range(1, value + 1))
        daemon.start()
