"""Home Assistant's own MQTT integration on open topics: it finds 40 sensors, and switches a lamp (reference 16.6).

It subscribes to hundreds of topics in one packet. It needs Python 3.13; `hass` comes with the package `homeassistant`.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import Daemon, device_id, device_token
from tests.e2e.test_mosquitto import listening
from tests.programs import require_program

SENSORS = 40
HOME, THINGS, LAMP = range(3)


@pytest.fixture
def python() -> str:
    """The interpreter that has Home Assistant."""
    hass = shutil.which("hass")
    if hass is None:
        pytest.skip("hass (homeassistant, Python 3.13) is not installed")
    return Path(hass).read_text(encoding="utf-8").splitlines()[0].removeprefix("#!")


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setenv("TRUNKLINE_MQTT_TOPICS", "open")
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=3)
    daemon.start()
    yield daemon
    daemon.stop()


def test_home_assistant_finds_sensors_and_switches_a_lamp(python: str, daemon: Daemon, tmp_path: Path) -> None:
    program, port = require_program("mosquitto_pub"), str(daemon.port("mqtt"))

    def who(number: int) -> list[str]:
        return ["-h", "127.0.0.1", "-p", port, "-u", device_id(number), "-P", device_token(number)]

    def retain(topic: str, text: str) -> None:
        subprocess.run([program, *who(THINGS), "-q", "1", "-r", "-t", topic, "-m", text], check=True, timeout=30)

    for number in range(SENSORS):
        sensor = {"name": f"s{number}", "unique_id": f"s{number}", "state_topic": f"home/s{number}"}
        retain(f"homeassistant/sensor/s{number}/config", json.dumps(sensor))
        retain(f"home/s{number}", str(number))
    lamp = {"name": "lamp", "unique_id": "lamp", "object_id": "lamp", "command_topic": "home/lamp/set"}
    retain("homeassistant/switch/lamp/config", json.dumps(lamp))
    with listening([require_program("mosquitto_sub"), *who(LAMP)], ["home/lamp/set"], 1) as at_the_lamp:
        home = [str(tmp_path / "home"), "127.0.0.1", port, device_id(HOME), device_token(HOME), str(SENSORS)]
        script = Path(__file__).with_name("home_assistant.py")
        done = subprocess.run([python, script, *home], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert at_the_lamp.stdout is not None
        assert [line for line in at_the_lamp.stdout if line.startswith("home/")] == ["home/lamp/set ON\n"]
    values = json.loads(done.stdout)
    assert values == {f"sensor.s{number}": str(number) for number in range(SENSORS)}
