"""docs/own-devices.md: its two files, and its lines for those who have no Shelly, Zigbee stick or board at hand."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.daemon import USER_TOKEN, Daemon, bearer, command_output
from tests.postgresql import STATES
from tests.programs import require_dtls, require_program
from tests.stores import configuration

PATIENCE_SECONDS: Final = 60
GUIDE: Final = (Path(__file__).parents[2] / "docs/own-devices.md").read_text(encoding="utf-8")
#: What the reader gets by signing in.
SIGNED_IN: Final = f"""
[[applications]]
name = "Test"
organization = "Home"
redirect_uri = "http://localhost/"
methods = ["client_credentials"]
permissions = [{{ device_type = "*", permissions = ["READ", "WRITE"] }}]

[[tokens]]
value = "{USER_TOKEN}"
application = "Test"
user = "you@example.org"

[[grants]]
user = "you@example.org"
application = "Test"
device_type = "*"
permissions = ["READ", "WRITE"]
"""


def blocks(language: str) -> dict[str, str]:
    return dict(re.findall(rf"```{language} (\w+)\n(.*?)```", GUIDE, re.DOTALL))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """The daemon of the page on free ports: its addresses, and the variables of the lines."""
    files = blocks("toml")
    settings = re.sub(r'"0\.0\.0\.0:\d+"', '"127.0.0.1:0"', files["home"])
    settings = settings.replace('"home-state"', f'"{tmp_path / "state"}"') + '[limits]\nrate_limits = "off"\n'
    daemon, gateway = Daemon(tmp_path / "state"), tmp_path / "gateway.toml"
    daemon.config.write_text(configuration(settings, daemon.state), encoding="utf-8")
    gateway.write_text(files["gateway"] + SIGNED_IN, encoding="utf-8")
    printed = command_output("provision", gateway, "--config", daemon.config)
    given = dict(os.environ)
    for name, variable in (("Zigbee2MQTT", "ZIGBEE"), ("Shellies", "SHELLIES"), ("Board", "BOARD")):
        made = dict(re.findall(rf"devices +{name} +(id|token) +([0-9a-f]+)", printed))
        given |= {variable: made["id"], f"{variable}_TOKEN": made["token"]}
    daemon.start()
    try:
        yield daemon.addresses, given
    finally:
        daemon.stop()
        STATES.drop(daemon.state)


def test_the_lines_of_the_page_bring_a_shelly_a_zigbee_sensor_and_a_board(
    home: tuple[dict[str, str], dict[str, str]],
) -> None:
    require_program("mosquitto_pub")
    require_dtls()
    addresses, given = home
    lines = {
        name: text.replace("-p 1883", f"-p {addresses['mqtt'].rpartition(':')[2]}")
        .replace("127.0.0.1:5686", addresses["lwm2m_dtls"])
        .replace(".venv/bin/trunkline", str(Path(sys.executable).parent / "trunkline"))
        for name, text in blocks("sh").items()
    }
    for name in ("shelly", "zigbee"):
        subprocess.run(["sh", "-ec", lines[name]], env=given, check=True, timeout=PATIENCE_SECONDS)
    with (
        httpx.Client(base_url=f"http://{addresses['http']}/v1.1", headers=bearer(USER_TOKEN)) as client,
        subprocess.Popen(["sh", "-c", f"exec env {lines['board']}"], env=given, stdout=subprocess.DEVNULL) as board,
    ):
        try:
            shelly = eventually(lambda: device_named(client, "shellyplus1pm-7c87ce7a1b2c"))
            assert last_of(client, shelly) == {"state": True, "power": 41.2}
            (found,) = eventually(lambda: client.get("/users/self/found").json()["data"]["found"])
            accepted = client.put(f"/found/{found['id']}", json={"status": "ACCEPTED"}).json()["data"]
            assert eventually(lambda: last_of(client, accepted["did"])) == {"temperature": 21.5}
            sentence = eventually(
                lambda: client.get(f"/devices/{given['BOARD']}/lwm2m").json()["data"]["offers"]["sentence"]
            )
            assert sentence.startswith("This board offers temperature (/3303/0/5700)")
        finally:
            board.terminate()


def device_named(client: httpx.Client, name: str) -> str | None:
    devices = client.get("/users/self/devices").json()["data"]["devices"]
    return next((one["id"] for one in devices if one["name"] == name), None)


def last_of(client: httpx.Client, did: str) -> Any:
    found = client.get("/messages/last", params={"sdids": did}).json()["data"]
    return found[0]["data"] if found else None


def eventually(ask: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := ask()):
        assert time.monotonic() < deadline
    return found
