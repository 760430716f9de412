"""Home Assistant's own MQTT integration on open topics (reference 16.6 and 16.7).

It subscribes to hundreds of topics in one packet. It finds 40 sensors and a lamp that MQTT devices announce, and 40
sensors, a relay and a button of a CoAP device, which the service announces. It needs Python 3.13; `hass` comes with the
package `homeassistant`. The other way round, the service takes over what a client announces that nobody here wrote.
"""

import json
import queue
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ha_mqtt_discoverable import DeviceInfo, Settings
from ha_mqtt_discoverable.sensors import BinarySensor, BinarySensorInfo, Sensor, SensorInfo, Switch, SwitchInfo
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from tests.daemon import ADA, ADA_EMAIL, USER_TOKEN, Daemon, bearer, command_output, device_id, device_token
from tests.e2e.coap_programs import run_program
from tests.e2e.test_mosquitto import listening
from tests.free_port import free_port
from tests.programs import require_program
from tests.properties import in_ci

SENSORS = 40
HOME, THINGS, LAMP = range(3)
STATION, STATION_TOKEN = "57a0" * 8, "57a1" * 8
UNITS = (
    *("SI.CELSIUS", "NonSI.PERCENT", "SI.PASCAL", "SI.WATT", "SI.VOLT", "SI.MILLI(SI.AMPERE)", "SI.HERTZ", "SI.LUX"),
    *("SI.METER", "SI.METERS_PER_SECOND", "SI.KILOGRAM", "SI.SQUARE_METRE", "SI.CUBIC_METRE", "NonSI.MINUTE"),
    *("NonSI.DAY", "NonSI.BYTE", "NonSI.DECIBEL", "SI.JOULE", "NonSI.FAHRENHEIT", "NonSI.BAR"),
)
CLASSES = {
    *("temperature", None, "pressure", "power", "voltage", "current", "frequency", "illuminance", "distance", "speed"),
    *("weight", "area", "volume_storage", "duration", "data_size", "sound_pressure", "energy"),
}
MANIFEST = {
    "fields": [
        *({"name": f"v{n}", "valueClass": "Double", "unit": UNITS[n % len(UNITS)]} for n in range(SENSORS)),
        {"name": "relay", "valueClass": "Boolean"},
    ],
    "actions": [
        {"name": "setRelay", "parameters": [{"name": "relay", "valueClass": "Boolean"}]},
        {"name": "restart", "parameters": []},
    ],
}
STATION_FILE = f"""
[[device_types]]
unique_name = "example.station"
name = "Station"
organization = "Acme"
published = true
manifest = "station.json"

[[devices]]
id = "{STATION}"
owner = "{ADA_EMAIL}"
type = "example.station"
name = "Garden"
token = "{STATION_TOKEN}"

[[grants]]
user = "{ADA_EMAIL}"
application = "Dashboard"
device_type = "example.station"
permissions = ["READ", "WRITE"]
"""

Ask = Callable[..., Any]


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
    monkeypatch.setenv("TRUNKLINE_COAP_BIND", "127.0.0.1:0")
    settings = f'[[home_assistant]]\nuser = "{ADA_EMAIL}"\n[[discover]]\ndevice = "Light 0"\nowner = "{ADA_EMAIL}"\n'
    daemon = Daemon(tmp_path / "state", settings)
    daemon.configure(devices=3)
    (tmp_path / "station.json").write_text(json.dumps(MANIFEST), encoding="utf-8")
    (tmp_path / "station.toml").write_text(STATION_FILE, encoding="utf-8")
    command_output("provision", tmp_path / "station.toml", "--config", daemon.config)
    daemon.start()
    yield daemon
    daemon.stop()


@contextmanager
def home_assistant(python: str, *arguments: str) -> Iterator[Ask]:
    """Calls a function of tests/e2e/home_assistant.py; returns its answer."""
    script = Path(__file__).with_name("home_assistant.py")
    pipe = subprocess.PIPE
    home = subprocess.Popen([python, script, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def ask(*wish: object) -> Any:
        assert home.stdin is not None
        assert home.stdout is not None
        home.stdin.write(json.dumps(wish) + "\n")
        home.stdin.flush()
        line = home.stdout.readline()
        assert line, home.communicate(timeout=30)[1]
        return json.loads(line)

    with home:
        try:
            yield ask
            _, errors = home.communicate(timeout=60)
            assert home.returncode == 0, errors
        finally:
            home.kill()


@in_ci
def test_home_assistant_finds_sensors_and_switches_a_lamp(python: str, daemon: Daemon, tmp_path: Path) -> None:
    program, port = require_program("mosquitto_pub"), str(daemon.port("mqtt"))
    coap = require_program("coap-client-notls")
    url = f"coap://127.0.0.1:{daemon.port('coap')}/v1.1"

    def who(number: int) -> list[str]:
        return ["-h", "127.0.0.1", "-p", port, "-u", device_id(number), "-P", device_token(number)]

    def retain(topic: str, text: str) -> None:
        subprocess.run([program, *who(THINGS), "-q", "1", "-r", "-t", topic, "-m", text], check=True, timeout=30)

    def report(**fields: object) -> None:
        body = json.dumps({"data": fields}, separators=(",", ":"))
        assert "mid" in run_program(coap, "-m", "post", "-b", "1024", "-e", body, f"{url}/messages/{STATION_TOKEN}")

    for number in range(SENSORS):
        sensor = {"name": f"s{number}", "unique_id": f"s{number}", "state_topic": f"home/s{number}"}
        retain(f"homeassistant/sensor/s{number}/config", json.dumps(sensor))
        retain(f"home/s{number}", str(number))
    lamp = {"name": "lamp", "unique_id": "lamp", "object_id": "lamp", "command_topic": "home/lamp/set"}
    retain("homeassistant/switch/lamp/config", json.dumps(lamp))
    report(**{f"v{number}": number for number in range(SENSORS)}, relay=False)
    home = (str(tmp_path / "home"), "127.0.0.1", port, device_id(HOME), device_token(HOME))
    with home_assistant(python, *home) as ask:
        with listening([require_program("mosquitto_sub"), *who(LAMP)], ["home/lamp/set"], 1) as at_the_lamp:
            found = ask("sensors", 2 * SENSORS)
            ask("state", "switch.lamp", "unknown")
            ask("call", "switch", "turn_on", {"entity_id": "switch.lamp"})
            assert at_the_lamp.stdout is not None
            assert [line for line in at_the_lamp.stdout if line.startswith("home/")] == ["home/lamp/set ON\n"]
        theirs = {f"sensor.s{number}": [str(number), None, None, True] for number in range(SENSORS)}
        ours = {f"sensor.garden_v{number}": float(number) for number in range(SENSORS)}
        assert found.keys() == theirs.keys() | ours.keys()
        assert {name: found[name] for name in theirs} == theirs
        assert {name: float(found[name][0]) for name in ours if found[name][1] != "temperature"}.items() <= ours.items()
        assert {found[name][1] for name in ours} == CLASSES
        assert all(unit is not None and fits for *_, unit, fits in (found[name] for name in ours))

        # A command reaches the device, and its effect Home Assistant.
        observe = [coap, "-s", "60", f"{url}/actions/{STATION_TOKEN}"]
        with subprocess.Popen(observe, stdout=subprocess.PIPE, text=True) as station:
            assert station.stdout is not None
            assert station.stdout.read(2) == "{}"  # it observes
            ask("state", "switch.garden_relay", "off")
            ask("call", "switch", "turn_on", {"entity_id": "switch.garden_relay"})
            action = '{"actions":[{"name":"setRelay","parameters":{"relay":true}}]}'
            assert station.stdout.read(len(action)) == action
            report(relay=True)
            ask("state", "switch.garden_relay", "on")
            ask("call", "button", "press", {"entity_id": "button.garden_restart"})
            station.kill()

        entities = ask("entities", f"tl_{STATION}", "Garden")
        assert len(entities) == SENSORS + 2
        with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as rest:
            assert rest.put(f"/devices/{STATION}", json={"name": "Yard"}).is_success
            assert ask("entities", f"tl_{STATION}", "Yard") == entities
            assert rest.delete(f"/devices/{STATION}").is_success
            ask("gone", f"tl_{STATION}")


@contextmanager
def announcing(daemon: Daemon) -> Iterator[Any]:
    """A connected client of ha-mqtt-discoverable."""
    client = Client(CallbackAPIVersion.VERSION2)
    client.username_pw_set(device_id(HOME), device_token(HOME))
    client.connect("127.0.0.1", daemon.port("mqtt"))
    client.loop_start()
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def until(read: Callable[[], Any]) -> Any:
    """The result of `read` once it is something."""
    end = time.monotonic() + 30
    while not (found := read()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return found


def test_what_a_client_announces_is_taken_over(daemon: Daemon) -> None:
    """ha-mqtt-discoverable announces three entities of one device; its states are messages, its command an Action."""
    asked: queue.Queue[bytes] = queue.Queue()
    about = DeviceInfo(name="Greenhouse", identifiers="greenhouse", manufacturer="Nobody", model="GH 1")
    with (
        announcing(daemon) as client,
        httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as rest,
    ):
        mqtt = Settings.MQTT(host="127.0.0.1", client=client)
        air = SensorInfo(name="Air", device_class="temperature", unit_of_measurement="°C", unique_id="a", device=about)
        sensor = Sensor(Settings(mqtt=mqtt, entity=air))
        door: Any = BinarySensor(Settings(mqtt=mqtt, entity=BinarySensorInfo(name="Door", unique_id="d", device=about)))
        pump: Any = Switch(
            Settings(mqtt=mqtt, entity=SwitchInfo(name="Pump", unique_id="p", device=about)),
            lambda _client, _data, message: asked.put(bytes(message.payload)),
        )
        sensor.set_state(20.5)
        door.on()
        pump.off()

        def listed() -> Any:
            (*_, one) = rest.get(f"/users/{ADA}/found").json()["data"]["found"] or [{"fields": []}]
            return one if len(one["fields"]) == 3 else None

        found = until(listed)
        assert (found["name"], found["model"], found["status"]) == ("Greenhouse", "GH 1", "FOUND")
        assert (found["fields"], found["actions"], found["problems"]) == (["Door", "Air", "Pump"], ["set_Pump"], [])
        device = rest.put(f"/found/{found['id']}", json={"status": "ACCEPTED"}).json()["data"]["did"]
        sensor.set_state(21.5)
        door.on()
        pump.on()

        def snapshot() -> Any:
            data = rest.get(f"/messages/snapshots?sdids={device}").json()["data"][0]["data"]
            values = {name: one["value"] for name, one in data.items()}
            return values if len(values) == 3 else None

        assert until(snapshot) == {"Air": 21.5, "Door": True, "Pump": True}
        history = rest.get(f"/messages?sdid={device}&startDate=0&endDate={2**42}").json()["data"]
        assert sorted(map(str, (message["data"] for message in history))) == [
            "{'Air': 21.5}",
            "{'Door': True}",
            "{'Pump': True}",
        ]
        action = {"name": "set_Pump", "parameters": {"Pump": False}}
        assert rest.post("/actions", json={"ddid": device, "data": {"actions": [action]}}).is_success
        assert asked.get(timeout=30) == b"OFF"


#: As a gateway GW1000 with a WH65 sends it, of the documents of Ecowitt.
WEATHER = {
    "PASSKEY": "343CA4E2A2F2DB7B5F54B1C9A29A2E1A",
    "stationtype": "GW1000_V1.6.8",
    "dateutc": "2026-11-27 17:00:00",
    "tempinf": "71.6",
    "humidityin": "48",
    "baromrelin": "29.920",
    "baromabsin": "29.350",
    "tempf": "50.0",
    "humidity": "80",
    "winddir": "270",
    "windspeedmph": "4.7",
    "windgustmph": "8.1",
    "rainratein": "0.000",
    "dailyrainin": "0.118",
    "solarradiation": "101.5",
    "uv": "1",
    "wh65batt": "0",
    "freq": "868M",
    "model": "GW1000_Pro",
}


def test_a_weather_station_of_ecowitt2mqtt_is_taken_over(daemon: Daemon) -> None:
    """ecowitt2mqtt has an environment of its own: its requirements are not those of the service."""
    program = require_program("ecowitt2mqtt")
    listen = free_port()
    broker = ["-b", "127.0.0.1", "--mqtt-port", str(daemon.port("mqtt"))]
    who = ["-u", device_id(HOME), "-p", device_token(HOME)]
    units = ["--output-unit-system", "metric", "--port", str(listen), "--hass-discovery"]
    with (
        subprocess.Popen([program, *broker, *who, *units], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run,
        httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as rest,
    ):
        try:

            def reported() -> bool:
                try:
                    return httpx.post(f"http://127.0.0.1:{listen}/data/report", data=WEATHER, timeout=30).is_success
                except httpx.TransportError:
                    return False

            def listed() -> Any:
                (*_, one) = rest.get(f"/users/{ADA}/found").json()["data"]["found"] or [{"fields": []}]
                return one if len(one["fields"]) >= 15 else None

            until(reported)
            found = until(listed)
            device = rest.put(f"/found/{found['id']}", json={"status": "ACCEPTED"}).json()["data"]["did"]
            assert found["problems"] == []
            reported()

            def snapshot() -> Any:
                data = rest.get(f"/messages/snapshots?sdids={device}").json()["data"][0]["data"]
                values = {name: one["value"] for name, one in data.items()}
                return values if len(values) >= 15 else None

            values = until(snapshot)
            names = ("temp", "tempin", "humidity", "winddir")
            assert [values[name] for name in names] == pytest.approx([10, 22, 80, 270])
        finally:
            run.terminate()
