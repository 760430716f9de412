"""Devices that are mosquitto's command line programs."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon import Daemon, device_id, device_token
from tests.e2e.conftest import Rest
from tests.programs import require_program

PATIENCE_SECONDS = 60
VERSIONS = ["mqttv31", "mqttv311", "mqttv5"]


@pytest.fixture(scope="module")
def mosquitto_pub() -> str:
    return require_program("mosquitto_pub")


@pytest.fixture(scope="module")
def mosquitto_sub() -> str:
    return require_program("mosquitto_sub")


def who(daemon: Daemon, number: int, version: str, *, token: str | None = None) -> list[str]:
    port = str(daemon.port("mqtt"))
    password = device_token(number) if token is None else token
    return ["-h", "127.0.0.1", "-p", port, "-V", version, "-u", device_id(number), "-P", password]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mosquitto_pub_publishes(
    daemon: Daemon, rest: Rest, new_device: Callable[[], int], mosquitto_pub: str, version: str, qos: int
) -> None:
    number = new_device()
    topic = f"/v1.1/messages/{device_id(number)}"
    lines = [f'{{"intensity":{n}}}' for n in range(20)]
    # The last one has QoS 1: with QoS 0 there is no acknowledgement that it is stored.
    for quality, text in ((qos, "\n".join(lines)), (1, '{"intensity":20}')):
        subprocess.run(
            [mosquitto_pub, *who(daemon, number, version), "-q", str(quality), "-t", topic, "-l"],
            input=text + "\n",
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        )
    assert [message["data"]["intensity"] for message in rest.last(number)] == list(reversed(range(21)))


def test_mosquitto_pub_is_told_that_its_token_is_wrong(
    daemon: Daemon, new_device: Callable[[], int], mosquitto_pub: str
) -> None:
    number = new_device()
    done = subprocess.run(
        [mosquitto_pub, *who(daemon, number, "mqttv311", token="9" * 32), "-t", "t", "-m", "{}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 4
    assert "bad user name or password" in done.stderr


@contextmanager
def listening(command: list[str], topics: list[str], count: int) -> Iterator["subprocess.Popen[str]"]:
    """mosquitto_sub, subscribed to these topics; it ends after `count` messages."""
    options = [option for topic in topics for option in ("-t", topic)]
    process = subprocess.Popen(
        ["stdbuf", "-oL", *command, "-d", "-v", "-C", str(count), "-W", str(PATIENCE_SECONDS), *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("Subscribed"):
                break
        yield process
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def heard(process: "subprocess.Popen[str]") -> list[tuple[str, object]]:
    assert process.stdout is not None
    spoken = [line.split(" ", 1) for line in process.stdout if line.startswith(("/v1.1/", "v1.1/"))]
    assert process.wait(PATIENCE_SECONDS) == 0
    return [(topic, json.loads(payload)) for topic, payload in spoken]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("slash", ["/", ""])
def test_mosquitto_sub_hears_actions(
    daemon: Daemon, rest: Rest, new_device: Callable[[], int], mosquitto_sub: str, version: str, slash: str
) -> None:
    number = new_device()
    topic = f"{slash}v1.1/actions/{device_id(number)}"
    with listening([mosquitto_sub, *who(daemon, number, version)], [topic], 2) as process:
        rest.act(number, {"name": "setOn"})
        rest.act(number, {"name": "setText", "parameters": {"text": "ü"}})
        assert heard(process) == [
            (topic, {"actions": [{"name": "setOn"}]}),
            (topic, {"actions": [{"name": "setText", "parameters": {"text": "ü"}}]}),
        ]


def test_mosquitto_sub_is_told_that_a_wildcard_is_refused(
    daemon: Daemon, new_device: Callable[[], int], mosquitto_sub: str
) -> None:
    number = new_device()
    errors = f"/v1.1/errors/{device_id(number)}"
    with listening([mosquitto_sub, *who(daemon, number, "mqttv311")], [errors, "#"], 1) as process:
        ((topic, body),) = heard(process)
    assert topic == errors
    assert isinstance(body, dict)
    assert body["error"]["message"] == "You do not have subscribe permission to topic"


def test_mosquitto_pub_publishes_over_tls(
    daemon: Daemon, rest: Rest, new_device: Callable[[], int], mosquitto_pub: str, certificate: Path
) -> None:
    number = new_device()
    options = who(daemon, number, "mqttv311")
    options[options.index("-p") + 1] = str(daemon.port("mqtts"))
    topic = f"/v1.1/messages/{device_id(number)}"
    subprocess.run(
        [mosquitto_pub, *options, "--cafile", certificate, "-q", "1", "-t", topic, "-m", '{"state":true}'],
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert [message["data"] for message in rest.last(number)] == [{"state": True}]
