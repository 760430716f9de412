"""A developer's Advanced Manifest, from upload to failures, against the real daemon with a real MQTT client."""

import json
from pathlib import Path

import httpx
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion
from trio_websocket import open_websocket_url

from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, device_token, run_command, running_daemon
from tests.stores import configuration

PATIENCE_SECONDS = 60
MANIFEST = {
    "fields": [{"name": "intensity", "valueClass": "Integer"}, {"name": "state", "valueClass": "Boolean"}],
    "transform": {
        "format": "binary",
        "layout": [{"name": "intensity", "type": "uint16"}, {"name": "flags", "type": "uint8"}],
        "expression": "{intensity: intensity, state: bit(flags, `0`)}",
    },
}


def run(daemon: Daemon, *arguments: str | Path, status: int = 0) -> str:
    done = run_command("type", *arguments, "--config", daemon.config)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def publish(daemon: Daemon, *payloads: bytes) -> None:
    client = Client(CallbackAPIVersion.VERSION2)
    client.username_pw_set(device_id(0), device_token(0))
    client.connect(*daemon.host_port("mqtt"))
    client.loop_start()
    try:
        for payload in payloads:
            sent = client.publish(f"/v1.1/messages/{device_id(0)}", payload, qos=1)
            sent.wait_for_publish(PATIENCE_SECONDS)
            assert sent.is_published()
    finally:
        client.disconnect()
        client.loop_stop()


async def say(daemon: Daemon, text: str) -> None:
    """One message with a text for its data, over the device channel."""
    async with open_websocket_url(f"{daemon.ws_url}/websocket?ack=true") as socket:
        for frame in (
            {"type": "register", "sdid": device_id(0), "Authorization": f"bearer {device_token(0)}"},
            {"type": "message", "sdid": device_id(0), "data": text},
        ):
            await socket.send_message(json.dumps(frame))
            assert "error" not in json.loads(await socket.get_message())


async def test_from_upload_to_failures(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    with running_daemon(tmp_path, devices=1) as daemon:
        manifest.write_text(json.dumps(MANIFEST | {"transform": {"format": "binary"}}), encoding="utf-8")
        complaint = run(daemon, "upload", "example.light", manifest, status=1)
        assert complaint == f"trunkline: {manifest}: transform.layout: Required parameter\n"
        manifest.write_text(json.dumps(MANIFEST), encoding="utf-8")
        assert run(daemon, "upload", "example.light", manifest) == "version 2: waits for approval\n"
        assert run(daemon, "upload", "example.light", manifest) == "version 2: waits for approval, as before\n"
        (line,) = run(daemon, "list").splitlines()
        assert line.split()[0] == "example.light"
        assert line.endswith("version 1  waiting: 2")
        assert json.loads(run(daemon, "list", "--json"))["waiting"] == [2]
        assert run(daemon, "approve", "example.light", "2") == "version 2: approved\n"
        publish(daemon, b"\x01\x00\x01", b"\xff", b"\x00\x05\x00\x99")
        await say(daemon, "abc")
        async with httpx.AsyncClient(base_url=daemon.base_url, headers=bearer(USER_TOKEN)) as api:
            found = (await api.get(f"/messages/last?sdids={device_id(0)}")).json()["data"]
        assert [(message["data"], message["mv"]) for message in found] == [
            ({"intensity": 0x6162, "state": True}, 2),
            ({"intensity": 5, "state": False}, 2),
            ({"intensity": 256, "state": True}, 2),
        ]
        (failure,) = run(daemon, "failures", device_id(0)).splitlines()
        assert failure.endswith(f'  {device_id(0)}  payload: 1 bytes instead of 3  "hex:ff"')
        assert json.loads(run(daemon, "failures", "--json", device_id(0)))["payload"] == "hex:ff"
        assert (
            run(daemon, "failures", "nothing", status=1) == "trunkline: there is no device or device type 'nothing'\n"
        )


def test_without_a_daemon_it_says_so(tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text(configuration(f'state_dir = "{tmp_path / "state"}"\n', tmp_path / "state"), encoding="utf-8")
    done = run_command("type", "list", "--config", config)
    assert (done.returncode, done.stderr) == (1, f"trunkline: no daemon runs on {tmp_path / 'state'}\n")
