"""Devices that speak MQTT with MQTT.js on Node: each version over TCP, TLS and WebSocket."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.daemon import Daemon, device_id, device_token
from tests.e2e.accounts.node_program import installed_programs, running_node
from tests.e2e.conftest import Rest

_SOURCES = Path(__file__).parent / "mqtt_node"


def test_mqtt_js_publishes_and_hears_actions(
    daemon: Daemon, rest: Rest, new_device: Callable[[], int], certificate: Path
) -> None:
    urls = [f"{scheme}://{daemon.addresses[name]}" for scheme, name in (("mqtt", "mqtt"), ("mqtts", "mqtts"))]
    urls.append(f"ws://{daemon.addresses['http']}/mqtt")
    with running_node(installed_programs(_SOURCES), "client.mjs", trusted=certificate) as program:
        for url in urls:
            for version in (3, 4, 5):
                number = new_device()
                did = device_id(number)
                told = {"url": url, "version": version, "id": did, "token": device_token(number)}
                program.tell(json.dumps(told))
                assert program.hear() == {"granted": [0]}
                rest.act(number, {"name": "setOn"})
                assert program.hear() == {
                    "topic": f"/v1.1/actions/{did}",
                    "payload": {"actions": [{"name": "setOn"}]},
                }
                stored = [message["data"]["intensity"] for message in rest.last(number)]
                assert stored == [2, 1, 0], (url, version)
