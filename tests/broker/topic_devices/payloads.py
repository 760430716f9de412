"""Payloads of the shape that the vendors document, with values of their own."""

from collections.abc import Mapping
from typing import Any, Final

SHELLY_ID: Final = "shellyplus1pm-7c87ce7a1b2c"
SHELLY: Final[Mapping[str, Any]] = {
    "src": SHELLY_ID,
    "dst": f"{SHELLY_ID}/events",
    "method": "NotifyStatus",
    "params": {
        "ts": 1795778000.25,
        "switch:0": {
            "id": 0,
            "output": False,
            "apower": 0.0,
            "voltage": 231.4,
            "current": 0.0,
            "aenergy": {"total": 812.077, "by_minute": [0.0, 0.0, 0.0], "minute_ts": 1795777980},
            "temperature": {"tC": 41.2, "tF": 106.1},
        },
    },
}
SHELLY_SLEEPING: Final[Mapping[str, Any]] = {
    "src": "shellyplusht-08b61fcb99aa",
    "dst": "shellyplusht-08b61fcb99aa/events",
    "method": "NotifyFullStatus",
    "params": {
        "ts": 3.21,  # its clock was not set yet
        "devicepower:0": {"id": 0, "battery": {"V": 5.61, "percent": 87}, "external": {"present": False}},
        "humidity:0": {"id": 0, "rh": 48.1},
        "sys": {"mac": "08B61FCB99AA", "unixtime": None, "uptime": 3},
        "temperature:0": {"id": 0, "tC": 19.4, "tF": 66.9},
        "wifi": {"sta_ip": "192.0.2.31", "status": "got ip", "ssid": "home", "rssi": -61},
    },
}
SHELLY_EVENT: Final[Mapping[str, Any]] = {
    "src": SHELLY_ID,
    "dst": f"{SHELLY_ID}/events",
    "method": "NotifyEvent",
    "params": {"ts": 1795778001.0, "events": [{"component": "input:0", "id": 0, "event": "single_push", "ts": 1.0}]},
}
TASMOTA_SENSOR: Final[Mapping[str, Any]] = {
    "Time": "2026-11-27T14:20:38",
    "Switch1": "ON",
    "BME280": {"Temperature": 20.9, "Humidity": 43.7, "DewPoint": 8.1, "Pressure": 1004.2},
    "ENERGY": {
        "TotalStartTime": "2026-01-01T00:00:00",
        "Total": 17.331,
        "Yesterday": 0.4,
        "Today": 0.1,
        "Power": 61,
        "ApparentPower": 70,
        "Factor": 0.87,
        "Voltage": 229,
        "Current": 0.306,
    },
    "PressureUnit": "hPa",
    "TempUnit": "C",
}
TASMOTA_STATE: Final[Mapping[str, Any]] = {
    "Time": "2026-11-27T14:20:38",
    "Uptime": "0T00:10:11",
    "UptimeSec": 611,
    "Heap": 24,
    "SleepMode": "Dynamic",
    "POWER": "OFF",
    "Wifi": {"AP": 1, "SSId": "home", "BSSId": "02:00:00:00:00:01", "Channel": 3, "RSSI": 44, "Signal": -78},
}
DEV_EUI: Final = "70b3d57ed0000001"
CHIRPSTACK: Final[Mapping[str, Any]] = {
    "deduplicationId": "3ac7e3c4-4401-4b8d-9386-a5c902f9202d",
    "time": "2026-11-27T11:13:20.123456789+00:00",
    "deviceInfo": {
        "tenantId": "52f14cd4-c6f1-4fbd-8f87-4025e1d49242",
        "tenantName": "Home",
        "applicationId": "17c82e96-be03-4f38-aef3-f83d48582d97",
        "applicationName": "Cellar",
        "deviceProfileName": "Sensor",
        "deviceName": "Cellar sensor",
        "devEui": DEV_EUI,
        "tags": {},
    },
    "devAddr": "00189440",
    "adr": True,
    "dr": 5,
    "fCnt": 41,
    "fPort": 2,
    "confirmed": False,
    "data": "AQIDBA==",
    "object": {"temperature": 12.5, "humidity": 71.0},
    "rxInfo": [{"gatewayId": "0016c001f153a14c", "uplinkId": 4217106255, "rssi": -97, "snr": 7.25}],
    "txInfo": {"frequency": 868100000},
}
CHIRPSTACK_JOIN: Final[Mapping[str, Any]] = {
    "deduplicationId": "c9dbe358-2578-4fb7-b295-66b44edc45a6",
    "time": "2026-11-27T11:10:00+00:00",
    "deviceInfo": CHIRPSTACK["deviceInfo"],
    "devAddr": "00189440",
}
TTS: Final[Mapping[str, Any]] = {
    "end_device_ids": {
        "device_id": "garden-1",
        "application_ids": {"application_id": "garden"},
        "dev_eui": "70B3D57ED0000002",
        "dev_addr": "260B0001",
    },
    "correlation_ids": ["as:up:01"],
    "received_at": "2026-11-27T11:13:22.900000000Z",
    "uplink_message": {
        "f_port": 1,
        "f_cnt": 7,
        "frm_payload": "Aag=",
        "decoded_payload": {"temperature": -2.5, "battery": 96},
        "rx_metadata": [{"gateway_ids": {"gateway_id": "roof"}, "rssi": -105, "channel_rssi": -105, "snr": -3.5}],
        "settings": {"frequency": "868300000"},
        "received_at": "2026-11-27T11:13:22.500Z",
    },
}
TTS_JOIN: Final[Mapping[str, Any]] = {
    "end_device_ids": TTS["end_device_ids"],
    "received_at": "2026-11-27T11:13:00Z",
    "join_accept": {"session_key_id": "AXA50A==", "received_at": "2026-11-27T11:13:00Z"},
}
