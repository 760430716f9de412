"""Announcements of devices, read (reference 16.9): what is taken of each platform, and what is refused."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from broker.device_types.manifest_parser import parse_manifest
from broker.errors import ValidationFailed
from broker.found.announcements import Announcement, is_announcement, read_announcement
from broker.found.components import word_of
from broker.found.definitions import FoundDefinition, definition_of, values_of
from config.limits import FOUND_COMPONENTS_MAX, FOUND_TOPIC_NODES
from tests.rows import each_row

PREFIX = "homeassistant"


def announced(topic: str, document: object) -> Announcement:
    return read_announcement(PREFIX, f"{PREFIX}/{topic}/config", msgspec.json.encode(document))


def defined(platform: str, **options: Any) -> FoundDefinition:
    definition = definition_of(announced(f"{platform}/node/it", options).components)
    if not definition.is_empty:
        parse_manifest(definition.manifest)  # it is one
    return definition


def paid(definition: FoundDefinition, action: str, parameters: Mapping[str, Any]) -> str | None:
    return definition.settings[action].payload(parameters)


@each_row(
    ("platform", "options", "payload", "values"),
    [
        ("sensor", {"stat_t": "a", "unit_of_meas": "°C"}, b"21.5", {"it": 21.5}),
        ("sensor", {"stat_t": "a", "unit_of_meas": "°C"}, b"warm", {}),
        ("sensor", {"stat_t": "a", "unit_of_meas": "°C"}, b"1e999", {}),
        ("sensor", {"stat_t": "a"}, b"warm", {"it": "warm"}),
        ("sensor", {"stat_t": "a", "dev_cla": "timestamp"}, b"2026-01-01", {"it": "2026-01-01"}),
        ("sensor", {"stat_t": "a", "val_tpl": "{{ value_json.x }}"}, b'{"x": "y"}', {"it": "y"}),
        ("sensor", {"stat_t": "a", "val_tpl": "{{ value_json.x }}"}, b"no JSON", {}),
        ("sensor", {"~": "a/b", "stat_t": "~/c"}, b"x", {"it": "x"}),
        ("binary_sensor", {"stat_t": "a"}, b"ON", {"it": True}),
        ("binary_sensor", {"stat_t": "a", "pl_on": True, "pl_off": False}, b"False", {"it": False}),
        ("switch", {"stat_t": "a", "cmd_t": "b", "stat_on": "1", "stat_off": "0"}, b"1", {"it": True}),
        ("number", {"stat_t": "a", "cmd_t": "b"}, b"7", {"it": 7}),
        ("select", {"stat_t": "a", "cmd_t": "b", "ops": ["x", "y"]}, b"x", {"it": "x"}),
        ("text", {"stat_t": "a", "cmd_t": "b"}, b"x", {"it": "x"}),
        ("lock", {"stat_t": "a", "cmd_t": "b"}, b"UNLOCKED", {"it": False}),
        ("cover", {"stat_t": "a", "cmd_t": "b"}, b"open", {"it": "open"}),
        ("fan", {"stat_t": "a", "cmd_t": "b"}, b"OFF", {"it": False}),
        (
            "light",
            {"stat_t": "a", "cmd_t": "b", "schema": "json", "sup_clrm": ["rgb", "color_temp"]},
            b'{"state":"ON","brightness":1,"color":{"r":255,"g":128,"b":0},"color_temp":300}',
            {"it": True, "it_brightness": 1, "it_red": 255, "it_green": 128, "it_blue": 0, "it_color_temp": 300},
        ),
        ("light", {"cmd_t": "b", "rgb_stat_t": "a"}, b"255,128, 0", {"it_red": 255, "it_green": 128, "it_blue": 0}),
        ("light", {"cmd_t": "b", "rgb_stat_t": "a"}, b"red", {}),
        ("light", {"cmd_t": "b", "rgb_stat_t": "a"}, b"1,2,999", {"it_red": 1, "it_green": 2}),
        ("light", {"cmd_t": "b", "clr_temp_stat_t": "a"}, b"250", {"it_color_temp": 250}),
        ("climate", {"curr_temp_t": "a"}, b"20.5", {"it_current": 20.5}),
        (
            "climate",
            {"temp_stat_t": "a", "temp_stat_tpl": "{{ value_json.t }}", "mode_stat_t": "a", "mode_stat_tpl": "heat"},
            b'{"t":21}',
            {"it_target": 21, "it_mode": "heat"},
        ),
        ("event", {"stat_t": "a", "evt_typ": ["press", "hold"]}, b'{"event_type":"hold","more":1}', {"it": "hold"}),
        ("event", {"stat_t": "a", "evt_typ": ["press"]}, b'{"event_type":"<b>"}', {}),
        ("event", {"stat_t": "a", "evt_typ": ["press"]}, b"press", {}),
        (
            "light",
            {"stat_t": "a", "cmd_t": "b", "schema": "json", "brightness": True},
            b'{"state":"ON","brightness":120}',
            {"it": True, "it_brightness": 120},
        ),
    ],
)
def test_states(platform: str, options: Mapping[str, Any], payload: bytes, values: Mapping[str, Any]) -> None:
    definition = defined(platform, **options)
    assert not definition.problems
    assert {one.topic for one in definition.readings} == {"a/b/c" if "~" in options else "a"}
    assert values_of(definition.readings, payload) == values


@each_row(
    ("platform", "options", "action", "parameters", "payload"),
    [
        ("switch", {}, "set_it", {"it": True}, "ON"),
        ("switch", {"pl_off": "0"}, "set_it", {"it": False}, "0"),
        ("switch", {}, "set_it", {"it": "on"}, None),
        ("number", {"max": 50}, "set_it", {"it": 50.0}, "50"),
        ("number", {"max": 50}, "set_it", {"it": 50.5}, None),
        ("number", {"cmd_tpl": '{"x": {{ value }} }'}, "set_it", {"it": 5}, '{"x": 5 }'),
        ("select", {"ops": ["x"]}, "set_it", {"it": "x"}, "x"),
        ("select", {"ops": ["x"]}, "set_it", {"it": "z"}, None),
        ("select", {"ops": ["x", ["y"]]}, "set_it", {"it": ["x"]}, None),
        ("text", {}, "set_it", {"it": "grün"}, "grün"),
        ("button", {}, "it", {}, "PRESS"),
        ("lock", {}, "unlock_it", {}, "UNLOCK"),
        ("cover", {"pl_stop": "HALT"}, "stop_it", {}, "HALT"),
        ("light", {"schema": "json"}, "set_it", {"it": True}, '{"state":"ON"}'),
        (
            "light",
            {"schema": "json", "sup_clrm": ["rgb"]},
            "set_it_color",
            {"color": {"r": 1, "g": 2, "b": 3}},
            '{"state":"ON","color":{"r":1,"g":2,"b":3}}',
        ),
        (
            "light",
            {"schema": "json", "brightness": True},
            "set_it_brightness",
            {"brightness": 9},
            '{"state":"ON","brightness":9}',
        ),
        ("light", {"schema": "json", "brightness": True}, "set_it_brightness", {"brightness": 999}, None),
        ("light", {"rgb_cmd_t": "c"}, "set_it_color", {"color": {"r": 1, "g": 2, "b": 3}}, "1,2,3"),
        ("light", {"rgb_cmd_t": "c"}, "set_it_color", {"color": {"r": 1, "g": 2, "b": 300}}, None),
        ("light", {"rgb_cmd_t": "c"}, "set_it_color", {"color": {"r": True, "g": 2, "b": 3}}, None),
        (
            "light",
            {"rgb_cmd_t": "c", "rgb_cmd_tpl": "#{{ red }}/{{ green }}/{{ blue }}"},
            "set_it_color",
            {"color": {"r": 1, "g": 2, "b": 3}},
            "#1/2/3",
        ),
        ("light", {"clr_temp_cmd_t": "c", "max_mirs": 400}, "set_it_color_temp", {"color_temp": 400}, "400"),
        ("light", {"clr_temp_cmd_t": "c", "max_mirs": 400}, "set_it_color_temp", {"color_temp": 401}, None),
        (
            "light",
            {"schema": "json", "sup_clrm": ["color_temp"], "color_temp_kelvin": True},
            "set_it_color_temp",
            {"color_temp": 3000},
            '{"state":"ON","color_temp":3000}',
        ),
        ("climate", {"temp_cmd_t": "c", "max_temp": 28}, "set_it_target", {"target": 21.5}, "21.5"),
        ("climate", {"temp_cmd_t": "c", "max_temp": 28}, "set_it_target", {"target": 29}, None),
        ("climate", {"mode_cmd_t": "c", "modes": ["off", "heat"]}, "set_it_mode", {"mode": "heat"}, "heat"),
        ("climate", {"mode_cmd_t": "c", "modes": ["off", "heat"]}, "set_it_mode", {"mode": "cool"}, None),
        ("light", {"schema": "json", "sup_clrm": 5}, "set_it", {"it": True}, '{"state":"ON"}'),
        ("light", {"schema": "json", "sup_clrm": [["rgb"], {}]}, "set_it", {"it": False}, '{"state":"OFF"}'),
    ],
)
def test_commands(
    platform: str, options: Mapping[str, Any], action: str, parameters: Mapping[str, Any], payload: str | None
) -> None:
    assert paid(defined(platform, command_topic="b", **options), action, parameters) == payload


@each_row(
    ("platform", "options", "reason"),
    [
        ("climate", {}, "a climate without topics"),
        ("event", {"stat_t": "a"}, "event_types must be a list"),
        ("vacuum", {}, "vacuum is no kind of component that Trunkline knows"),
        ("device_automation", {}, "device_automation is no kind of component that Trunkline knows"),
        ("sensor", {}, "state_topic is missing"),
        ("sensor", {"stat_t": "a/#"}, "without wildcards"),
        ("sensor", {"stat_t": "a" * 2_000}, "at most 1,024 bytes"),
        ("sensor", {"stat_t": "/".join("a" * 40)}, "32 levels"),
        ("sensor", {"stat_t": "v1.1/messages/x"}, "a topic of Trunkline itself"),
        ("sensor", {"stat_t": "trunkline/x/state"}, "a topic of Trunkline itself"),
        ("sensor", {"stat_t": ["a"]}, "state_topic must be a text"),
        ("sensor", {"stat_t": "a", "val_tpl": "{% for x in y %}{% endfor %}"}, "for is not taken"),
        ("switch", {"stat_t": "a"}, "command_topic is missing"),
        ("number", {"cmd_t": "a", "min": "x"}, "min must be a number"),
        ("select", {"cmd_t": "a"}, "options must be a list"),
        ("light", {"cmd_t": "a", "schema": "template"}, "template is no schema of a light that Trunkline knows"),
    ],
)
def test_what_is_not_taken_is_said(platform: str, options: Mapping[str, Any], reason: str) -> None:
    definition = defined(platform, **options)
    assert definition.is_empty
    (problem,) = definition.problems
    assert problem.component == "it"
    assert reason in problem.text


SENSOR = {"p": "sensor", "stat_t": "a"}


@each_row(
    ("topic", "document", "reason"),
    [
        ("sensor/it", "text", "JSON object"),
        ("sensor/it", {"o": {"name": "Trunkline"}, "stat_t": "a"}, "its own devices"),
        ("device/tl_11", {"cmps": {"a": SENSOR}}, "tl_ begins"),
        ("device/x", {"dev": {"ids": ["tl_1"]}, "cmps": {"a": SENSOR}}, "tl_ begins"),
        ("device/x", {"cmps": {}}, "an object with components"),
        ("device/x", {"cmps": {"a": []}}, "must be an object"),
        ("device/x", {"cmps": {"a": {"stat_t": "a"}}}, "must be a text"),
        ("device/x", {"cmps": {f"c{n}": SENSOR for n in range(FOUND_COMPONENTS_MAX + 1)}}, "Maximum length 200"),
        ("device/x", {"dev": {"name": "<script>alert(1)</script>", "ids": "x"}, "cmps": {"a": SENSOR}}, "markup"),
        ("sensor/it", {"stat_t": "a", "x": "y" * 200_000}, "Maximum length 131072"),
    ],
)
def test_announcements_that_are_refused(topic: str, document: object, reason: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        announced(topic, document)
    assert reason in str(caught.value.findings)


def test_a_deep_announcement_is_refused() -> None:
    with pytest.raises(ValidationFailed):
        read_announcement(PREFIX, f"{PREFIX}/sensor/a/config", b'{"a":' * 5_000 + b"1" + b"}" * 5_000)


def test_a_device_with_several_components() -> None:
    found = announced(
        "device/zigbee_0x1",
        {
            "dev": {"ids": ["zigbee_0x1"], "name": "Ada's plug", "mdl": "TS011F", "mf": "Tuya"},
            "o": {"name": "Zigbee2MQTT", "sw": "2.0"},
            "stat_t": "zigbee2mqtt/plug",
            "avty": [{"t": "zigbee2mqtt/bridge/state", "val_tpl": "{{ value_json.state }}"}],
            "cmps": {
                "power": {"p": "sensor", "unit_of_meas": "W", "val_tpl": "{{ value_json.power }}"},
                "gone": {"p": "sensor"},
                "switch": {"p": "switch", "cmd_t": "zigbee2mqtt/plug/set", "val_tpl": "{{ value_json.state }}"},
                "scene": {"p": "scene", "cmd_t": "zigbee2mqtt/plug/set"},
            },
        },
    )
    assert (found.identity, found.name, found.model, found.manufacturer) == (
        "zigbee_0x1",
        "Ada s plug",
        "TS011F",
        "Tuya",
    )
    definition = definition_of(found.components)
    assert [one["name"] for one in definition.manifest["fields"]] == ["power", "switch"]
    assert list(definition.settings) == ["set_switch"]
    assert [one.component for one in definition.problems] == ["scene"]
    assert values_of(definition.readings, b'{"power": 12, "state": "ON"}') == {"power": 12, "switch": True}
    (availability,) = definition.availability
    assert (availability.topic, availability.available) == ("zigbee2mqtt/bridge/state", "online")


def test_names_that_are_taken_get_a_number() -> None:
    components = [
        one
        for node in ("a", "b")
        for one in announced(f"sensor/{node}/Temp-1", {"dev": {"ids": "x"}, "stat_t": node}).components
    ]
    definition = definition_of(components)
    assert [one["name"] for one in definition.manifest["fields"]] == ["Temp_1", "Temp_1_2"]
    assert {one.topic: one.field for one in definition.readings} == {"a": "Temp_1", "b": "Temp_1_2"}
    assert (word_of("0x1 °C"), word_of("°"), word_of("a" * 99)) == ("v_0x1_C", "v_", "a" * 48)


def test_one_message_is_for_a_bounded_number_of_templates() -> None:
    template = "{{ value_json.a" + " + 1" * 40 + " }}"
    components = [
        one
        for number in range(60)
        for one in announced(
            f"sensor/x/c{number}", {"dev": {"ids": "x"}, "stat_t": "a", "val_tpl": template}
        ).components
    ]
    definition = definition_of(components)
    assert len(definition.readings) + len(definition.problems) == 60
    assert 0 < len(definition.problems) < 60
    assert f"more than {FOUND_TOPIC_NODES} parts" in definition.problems[0].text


def test_which_topics_are_announcements() -> None:
    topics = (
        "homeassistant/sensor/a/config",
        "homeassistant/sensor/n/a/config",
        "x/sensor/a/config",
        "homeassistant/a",
    )
    assert [is_announcement(PREFIX, topic) for topic in topics] == [True, True, False, False]
