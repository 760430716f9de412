"""Entries of topic_devices: what is refused, and what the shipped mappings make of payloads (reference 16.8)."""

import json
import re
import subprocess
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from broker.device_types.examples import load_examples
from broker.topic_devices.entries import NotUnderstoodError, TopicDeviceEntry, entries_of, overlap
from broker.topic_devices.mappings import MAPPINGS
from config.loading import SettingsError
from config.settings import HomeAssistant, Mqtt, Settings, TopicDevice
from tests.broker.topic_devices import payloads
from tests.programs import require_program
from tests.rows import each_row

HASH: Final = "sha256:" + "0" * 64
GOOD: Final[dict[str, Any]] = {
    "name": "cellar",
    "owner": "ada@example.org",
    "type": "example.light",
    "topic": "cellar/+/now",
    "key": "topic:2",
    "data": "{temperature: t}",
}


def settings_with(*entries: dict[str, Any], topics: Any = "open") -> Settings:
    made = tuple(msgspec.convert(one, TopicDevice) for one in entries)
    return Settings(
        state_dir=Path(),
        mqtt=Mqtt(topics=topics),
        topic_devices=made,
        home_assistant=(HomeAssistant(user="ada@example.org"),),
    )


def shipped(name: str) -> TopicDeviceEntry:
    (entry,) = entries_of(settings_with({"name": name, "owner": "a", "type": "b", "mapping": name}))
    return entry


def test_a_good_entry() -> None:
    (entry,) = entries_of(settings_with(GOOD))
    made = entry.mappings[0].made_of(b"cellar/north/now", b'{"t":12.5}')
    assert made is not None
    assert (made.key, json.loads(made.data), made.ts) == ("north", {"temperature": 12.5}, None)


@each_row(
    ("change", "problem"),
    [
        ({"name": "a b"}, "topic_devices[0].name: expected 1 to 64 letters, digits, _ and -"),
        ({"owner": " "}, "topic_devices[0].owner: is required"),
        ({"type": ""}, "topic_devices[0].type: is required"),
        (
            {"mapping": "shely"},
            "topic_devices[0].mapping: unknown (allowed: shelly, tasmota, chirpstack, things-stack)",
        ),
        ({"topic": ""}, "topic_devices[0].topic: is required, unless mapping names a shipped one"),
        ({"data": ""}, "topic_devices[0].data: is required, unless mapping names a shipped one"),
        ({"key": "level 2"}, "topic_devices[0].key: expected topic: with the number of a level, or payload: with an"),
        ({"key": "payload:a b"}, "topic_devices[0].key: Invalid value: unexpected 'b' at position 2"),
        ({"data": "{a: b"}, "topic_devices[0].data: Invalid value"),
        ({"data": "unknown(@)"}, "topic_devices[0].data: Invalid value: unknown function unknown() at position 0"),
        ({"ts": "now("}, "topic_devices[0].ts: Invalid value"),
        ({"topic": "a/#/b"}, "topic_devices[0].topic: expected a topic filter of MQTT"),
        ({"topic": "$SYS/+/x"}, "topic_devices[0].topic: expected a topic filter of MQTT, and none that begins with $"),
        # topics of the service
        ({"topic": "#"}, "topic_devices[0].topic: # matches topics of this service, /v1.1/messages/#"),
        ({"topic": "/v1.1/messages/+"}, "topic_devices[0].topic: /v1.1/messages/+ matches topics of this service"),
        ({"topic": "+/+/messages/+"}, "topic_devices[0].topic: +/+/messages/+ matches topics of this service"),
        ({"topic": "trunkline/+/state"}, "topic_devices[0].topic: trunkline/+/state matches topics of this service"),
        ({"topic": "+/+/state"}, "topic_devices[0].topic: +/+/state matches topics of this service"),
        ({"topic": "homeassistant/#"}, "topic_devices[0].topic: homeassistant/# matches topics of this service"),
        ({"hook": "secret", "topic": ""}, "topic_devices[0].hook: expected sha256: and the 64 hexadecimal digits"),
        ({"hook": HASH}, "topic_devices[0].topic: an entry has either topic or hook"),
        ({"hook": HASH, "topic": ""}, "topic_devices[0].key: a hook has no topic"),
        ({"make_max": 0}, "topic_devices[0].make_max: expected 1 to 10000"),
        ({"make_max": 10_001}, "topic_devices[0].make_max: expected 1 to 10000"),
    ],
)
def test_what_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        entries_of(settings_with(GOOD | change))
    assert any(one.startswith(problem) for one in (str(refused.value), *refused.value.others)), refused.value


def test_entries_that_exclude_each_other() -> None:
    with pytest.raises(SettingsError, match=r"topic_devices\[1\].name: is there twice"):
        entries_of(settings_with(GOOD, GOOD))
    other = GOOD | {"name": "other", "topic": "cellar/#"}
    with pytest.raises(SettingsError) as refused:
        entries_of(settings_with(GOOD, other))
    assert str(refused.value) == "topic_devices[1].topic: cellar/# and cellar/+/now of cellar match the same topics"
    entries_of(settings_with(GOOD, other | {"owner": "bob@example.org"}))  # devices of another owner
    entries_of(settings_with(GOOD, other | {"topic": "attic/+/now"}))


def test_topics_must_be_open_and_hooks_need_none() -> None:
    with pytest.raises(SettingsError, match=r'needs mqtt\.topics = "open"'):
        entries_of(settings_with(GOOD, topics="service"))
    hook = {"name": "h", "owner": "a", "type": "b", "mapping": "things-stack", "hook": HASH}
    assert entries_of(settings_with(hook, topics="service"))[0].is_hook


@each_row(
    ("one", "other", "common"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/+", "+/b", True),
        ("a/#", "a", True),
        ("a/+", "a", False),
        ("+/events/rpc", "tele/+/SENSOR", False),
        ("#", "x/y", True),
        ("a/b/#", "a/+/c", True),
    ],
)
def test_filters_overlap(one: str, other: str, common: bool) -> None:
    assert overlap(one, other) is common
    assert overlap(other, one) is common


#: What each payload becomes: mapping, topic, payload, key, data, ts.
MADE: Final = [
    (
        "shelly",
        f"{payloads.SHELLY_ID}/events/rpc",
        payloads.SHELLY,
        payloads.SHELLY_ID,
        {
            "state": False,
            "power": 0.0,
            "voltage": 231.4,
            "current": 0.0,
            "energy": 812.077,
            "deviceTemperature": 41.2,
        },
        1_795_778_000_250,
    ),
    (
        "shelly",
        "bathroom/events/rpc",
        payloads.SHELLY_SLEEPING,
        "shellyplusht-08b61fcb99aa",
        {"battery": 87, "humidity": 48.1, "temperature": 19.4, "rssi": -61},
        None,
    ),
    (
        "tasmota",
        "tele/boiler/SENSOR",
        payloads.TASMOTA_SENSOR,
        "boiler",
        {
            "temperature": 20.9,
            "humidity": 43.7,
            "pressure": 1004.2,
            "power": 61,
            "voltage": 229,
            "current": 0.306,
            "energy": 17.331,
        },
        None,
    ),
    ("tasmota", "tele/boiler/STATE", payloads.TASMOTA_STATE, "boiler", {"state": False, "signal": -78}, None),
    ("tasmota", "stat/boiler/POWER", "ON", "boiler", {"state": True}, None),
    (
        "chirpstack",
        "application/17c82e96/device/70b3d57ed0000001/event/up",
        payloads.CHIRPSTACK,
        payloads.DEV_EUI,
        {
            "temperature": 12.5,
            "humidity": 71.0,
            "fCnt": 41,
            "fPort": 2,
            "payload": "AQIDBA==",
            "rssi": -97,
            "snr": 7.25,
        },
        1_795_778_000_123,
    ),
    (
        "things-stack",
        "v3/garden@tenant/devices/garden-1/up",
        payloads.TTS,
        "garden-1",
        {"temperature": -2.5, "battery": 96, "fCnt": 7, "fPort": 1, "payload": "Aag=", "rssi": -105, "snr": -3.5},
        1_795_778_002_500,
    ),
]
TYPES: Final = {
    "shelly": "example.shelly",
    "tasmota": "example.tasmota",
    "chirpstack": "example.lorawan_sensor",
    "things-stack": "example.lorawan_sensor",
}


@each_row(("mapping", "topic", "payload", "key", "data", "ts"), MADE)
def test_shipped_mappings(mapping: str, topic: str, payload: Any, key: str, data: dict[str, Any], ts: int) -> None:
    (one,) = (one for one in shipped(mapping).mappings if one.pattern.fullmatch(topic.encode()))
    sent = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
    made = one.made_of(topic.encode(), sent)
    assert made is not None
    assert (made.key, json.loads(made.data), made.ts) == (key, data, ts)
    # The shipped type takes all of it.
    (example,) = (one for one in load_examples() if one.unique_name == TYPES[mapping])
    assert data.keys() <= {one.name for one in example.manifest.fields}


@each_row(
    ("mapping", "payload"),
    [
        ("shelly", payloads.SHELLY_EVENT),
        ("shelly", {"src": "x", "method": "NotifyStatus", "params": {"ts": 1.0, "cloud": {"connected": True}}}),
        ("chirpstack", payloads.CHIRPSTACK_JOIN),
        ("things-stack", payloads.TTS_JOIN),
        ("tasmota", {"Time": "2026-11-27T14:20:38", "Switch1": "ON"}),
    ],
)
def test_what_is_about_nothing(mapping: str, payload: Any) -> None:
    assert shipped(mapping).mappings[0].made_of(b"tele/boiler/SENSOR", json.dumps(payload).encode()) is None


def test_fahrenheit_is_not_taken_for_celsius() -> None:
    payload = {**payloads.TASMOTA_SENSOR, "TempUnit": "F", "PressureUnit": "mmHg"}
    made = shipped("tasmota").mappings[0].made_of(b"tele/boiler/SENSOR", json.dumps(payload).encode())
    assert made is not None
    assert not {"temperature", "pressure"} & json.loads(made.data).keys()


@each_row(
    ("payload", "reason"),
    [
        (b"\xff\xfe", "The payload is neither JSON nor text."),
        (b"x" * 70_000, "The payload has more than 65536 bytes."),
        (b"[" * 5_000 + b"]" * 5_000, "The payload is nested too deeply."),
        (b'{"t":[1,2]}', "The expression data makes no object."),
        (b'{"t":{"a":"' + b"x" * 9_000 + b'"},"k":"a"}', "The data of the message has more than"),
        (b'{"t":{"a":1}}', "The payload or topic has no key of a device"),
        (b'{"t":{"a":1},"k":"a\\nb"}', "The payload or topic has no key of a device"),
        (b'{"t":{"a":1},"k":"' + b"x" * 65 + b'"}', "The payload or topic has no key of a device"),
    ],
)
def test_what_is_not_understood(payload: bytes, reason: str) -> None:
    (entry,) = entries_of(settings_with(GOOD | {"key": "payload:k", "data": "t"}))
    with pytest.raises(NotUnderstoodError) as refused:
        entry.mappings[0].made_of(b"cellar/north/now", payload)
    assert str(refused.value).startswith(reason)


def test_an_expression_that_grows_is_stopped() -> None:
    (entry,) = entries_of(settings_with(GOOD | {"data": "{a: " + "[@,@][]|" * 20 + "@}"}))
    with pytest.raises(NotUnderstoodError, match="takes more than"):
        entry.mappings[0].made_of(b"cellar/north/now", b"[1,2,3]")


@each_row(
    ("said", "ts"),
    [
        (1_795_778_000, 1_795_778_000_000),
        (1_795_778_000.5, 1_795_778_000_500),
        (1_795_778_000_500, 1_795_778_000_500),
        ("2026-11-27T11:13:20Z", 1_795_778_000_000),
        ("2026-11-27T12:13:20.5+01:00", 1_795_778_000_500),
        ("2026-11-27T11:13:20", None),  # of no zone
        ("2026-13-27T11:13:20Z", None),
        (3.5, None),
        (-1e300, None),
        (True, None),
        (None, None),
        ({}, None),
    ],
)
def test_times(said: object, ts: int | None) -> None:
    (entry,) = entries_of(settings_with(GOOD | {"ts": "at"}))
    made = entry.mappings[0].made_of(b"cellar/north/now", json.dumps({"t": 1, "at": said}).encode())
    assert made is not None
    assert made.ts == ts


@pytest.mark.parametrize("said", ["inf", "-inf", "nan"])
def test_a_time_that_is_no_number_is_that_of_the_arrival(said: str) -> None:
    (entry,) = entries_of(settings_with(GOOD | {"ts": "to_number(at)"}))
    made = entry.mappings[0].made_of(b"cellar/north/now", json.dumps({"t": 1, "at": said}).encode())
    assert made is not None
    assert made.ts is None


def test_each_mapping_is_shown() -> None:
    assert MAPPINGS.keys() == TYPES.keys()


def test_the_entries_of_the_guide() -> None:
    guide = (Path(__file__).parents[3] / "docs/topics-and-hooks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    entries = [one for block in blocks for one in tomllib.loads(block)["topic_devices"]]
    assert len(entries) == 3
    for entry in entries:
        entries_of(settings_with(entry))
    require_program("openssl")
    (lines,) = re.findall(r"```sh\n(.*?)```", guide, re.DOTALL)
    digest, address = subprocess.run(
        ["sh", "-c", lines], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert sha256(address.rpartition("/")[2].encode()).hexdigest() == digest.split()[0]
