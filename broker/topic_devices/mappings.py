"""The shipped mappings of topic devices: the payloads of products that many people have (reference 16.8).

Written after the vendors' documents: Shelly's RPC notifications (Gen2 and later), Tasmota's telemetry, the events of
ChirpStack v4 in JSON, and the data formats of The Things Stack. The device types that fit them are shipped,
too (reference 8.7).
"""

from collections.abc import Mapping
from typing import Final

import msgspec


class ShippedRoute(msgspec.Struct, frozen=True):
    """`topic` is a filter; hooks have none. `key` is `topic:N`, a level counted from 1, or `payload:` with an
    expression. `data` and `ts` are expressions; an empty `ts` is the time of arrival."""

    topic: str
    key: str
    data: str
    ts: str = ""


def _lines(*lines: str) -> str:
    return " ".join(lines)


_SHELLY: Final = _lines(
    "(method == 'NotifyStatus' || method == 'NotifyFullStatus') && params.{",
    'state: not_null("switch:0".output, "light:0".output),',
    'brightness: "light:0".brightness,',
    'power: not_null("switch:0".apower, "light:0".apower, "cover:0".apower, "pm1:0".apower, "em:0".total_act_power),',
    'voltage: not_null("switch:0".voltage, "light:0".voltage, "cover:0".voltage, "pm1:0".voltage),',
    'current: not_null("switch:0".current, "light:0".current, "cover:0".current, "pm1:0".current),',
    'energy: not_null("switch:0".aenergy, "light:0".aenergy, "cover:0".aenergy, "pm1:0".aenergy).total,',
    'temperature: not_null("temperature:0", "temperature:100").tC,',
    'humidity: not_null("humidity:0", "humidity:100").rh,',
    'deviceTemperature: not_null("switch:0".temperature, "light:0".temperature, "cover:0".temperature).tC,',
    'battery: "devicepower:0".battery.percent,',
    'position: "cover:0".current_pos,',
    'input: "input:0".state,',
    "rssi: wifi.rssi}",
)
_TASMOTA_SENSOR: Final = _lines(
    "{temperature: ([@][?TempUnit != 'F'] | [0]).{found: values(@)[*].Temperature | [0]}.found,",
    "humidity: values(@)[*].Humidity | [0],",
    "pressure: ([@][?PressureUnit == 'hPa'] | [0]).{found: values(@)[*].Pressure | [0]}.found,",
    "illuminance: values(@)[*].Illuminance | [0],",
    "power: not_null(ENERGY.Power[0], ENERGY.Power),",
    "voltage: not_null(ENERGY.Voltage[0], ENERGY.Voltage),",
    "current: not_null(ENERGY.Current[0], ENERGY.Current),",
    "energy: not_null(ENERGY.Total[0], ENERGY.Total)}",
)
_TASMOTA_STATE: Final = _lines(
    "{state: not_null(POWER, POWER1) && (not_null(POWER, POWER1) == 'ON'),",
    "brightness: Dimmer, supplyVoltage: Vcc, signal: Wifi.Signal}",
)
_CHIRPSTACK: Final = _lines(
    "not_null(fPort, data, object) && merge(not_null(object, `{}`),",
    "{fCnt: fCnt, fPort: fPort, payload: data, rssi: rxInfo[0].rssi, snr: rxInfo[0].snr})",
)
_TTS: Final = _lines(
    "uplink_message && merge(not_null(uplink_message.decoded_payload, `{}`), {fCnt: uplink_message.f_cnt,",
    "fPort: uplink_message.f_port, payload: uplink_message.frm_payload, rssi: uplink_message.rx_metadata[0].rssi,",
    "snr: uplink_message.rx_metadata[0].snr})",
)

MAPPINGS: Final[Mapping[str, tuple[ShippedRoute, ...]]] = {
    "shelly": (ShippedRoute("+/events/rpc", "payload:src", _SHELLY, "params.ts"),),
    "tasmota": (
        ShippedRoute("tele/+/SENSOR", "topic:2", _TASMOTA_SENSOR),
        ShippedRoute("tele/+/STATE", "topic:2", _TASMOTA_STATE),
        ShippedRoute("stat/+/POWER", "topic:2", "{state: @ == 'ON'}"),
    ),
    "chirpstack": (ShippedRoute("application/+/device/+/event/up", "payload:deviceInfo.devEui", _CHIRPSTACK, "time"),),
    "things-stack": (
        # Over its own broker the topic is v3/APPLICATION/devices/DEVICE/up.
        ShippedRoute(
            "v3/+/devices/+/up",
            "payload:end_device_ids.device_id",
            _TTS,
            "not_null(uplink_message.received_at, received_at)",
        ),
    ),
}
