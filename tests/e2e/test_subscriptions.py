"""Subscriptions of the real daemon: kills lose nothing, and `trunkline receive` shows what comes (reference 11)."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import httpx

from tests.daemon import (
    ADA,
    APPLICATION_TOKEN,
    DASHBOARD_WITH_SECRET,
    USER_TOKEN,
    Daemon,
    bearer,
    command_output,
    device_id,
    running_daemon,
    start_command,
)
from tests.fork_server import ForkedProcess
from tests.free_port import free_port
from tests.properties import in_ci

SETTINGS = "[outbound]\nallow_private_addresses = true\n"


def be_local(daemon: Daemon) -> None:
    """Callbacks of the application may be on this machine."""
    file = daemon.state.parent / "local.toml"
    file.write_text(DASHBOARD_WITH_SECRET, encoding="utf-8")
    command_output("provision", file, "--config", daemon.config)


@contextmanager
def receiving(
    daemon: Daemon, port: int, output: IO[str], **variables: str
) -> Iterator[tuple[subprocess.Popen[str] | ForkedProcess, Path]]:
    """A callback that listens, until the block ends by SIGKILL, and the file of what it says."""
    with TemporaryDirectory() as folder, (said := Path(folder) / "said").open("w") as errors:
        process = start_command(
            *("receive", "--port", str(port), "--service", daemon.base_url),
            stderr=errors,
            environment={**os.environ, "TRUNKLINE_CLIENT_SECRET": "s3cret", **variables},
        )
        copying = threading.Thread(target=_copy, args=(process.stdout, output))
        copying.start()
        try:
            eventually(lambda: said.read_text().startswith("listening on"))
            yield process, said
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)
            copying.join()


def _copy(source: IO[str], output: IO[str]) -> None:
    with source:
        for line in source:
            output.write(line)
            output.flush()


def asked(daemon: Daemon, method: str, path: str, token: str = USER_TOKEN, **body: Any) -> Any:
    answer = httpx.request(method, daemon.base_url + path, headers=bearer(token), timeout=30, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def eventually(holds: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def notifications(path: Path) -> list[dict[str, Any]]:
    """The output of the callbacks, without a line that a kill cut off."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def test_kills_of_the_daemon_and_of_the_callback_lose_no_message(tmp_path: Path) -> None:
    port, output = free_port(), tmp_path / "received.jsonl"
    sent: list[str] = []

    def send(count: int) -> None:
        for number in range(count):
            body = {"sdid": device_id(number % 2), "data": {"intensity": len(sent) % 100}}
            sent.append(asked(daemon, "POST", "/messages", json=body)["mid"])

    with ExitStack() as stack:
        daemon = stack.enter_context(running_daemon(tmp_path, devices=2, settings=SETTINGS))
        be_local(daemon)
        file = stack.enter_context(output.open("a", encoding="utf-8"))
        wanted = {"messageType": "message", "uid": ADA, "callbackUrl": f"http://localhost:{port}/"}
        with receiving(daemon, port, file):
            path = f"/subscriptions/{asked(daemon, 'POST', '/subscriptions', json=wanted)['id']}"
            eventually(lambda: asked(daemon, "GET", path)["status"] == "ACTIVE")
            send(10)
            daemon.kill()
            daemon.start()
            send(10)
        send(5)  # nobody listens
        with receiving(daemon, port, file):
            send(10)
            daemon.kill()
            daemon.start()
            send(5)

            def all_came() -> bool:
                # Waiting notifications are retried now: the next attempt would be due in minutes.
                waiting = [one["id"] for one in asked(daemon, "GET", f"{path}/deliveries?status=PENDING")]
                if waiting:
                    asked(daemon, "POST", f"{path}/deliveries/replay", json={"ids": waiting})
                return {one["mid"] for got in notifications(output) for one in got["data"]} >= set(sent)

            eventually(all_came)
        attempts = {one["id"]: one["attempts"] for one in asked(daemon, "GET", f"{path}/deliveries")}
    in_order: dict[str, list[str]] = {}
    for got in notifications(output):
        if all("httpStatus" in attempt for attempt in attempts[got["id"]]):  # retries come when they are due
            for one in got["data"]:
                of_device = in_order.setdefault(one["sdid"], [])
                if one["mid"] not in of_device:
                    of_device.append(one["mid"])
    assert in_order
    assert all(mids == sorted(mids) for mids in in_order.values())


@in_ci
def test_kills_of_the_daemon_and_of_the_callback_lose_no_change_of_an_alarm(tmp_path: Path) -> None:
    """Each change has one id, and comes in its order."""
    port, output = free_port(), tmp_path / "received.jsonl"
    condition = {"sdid": device_id(0), "field": "intensity", "operator": ">", "operand": {"value": 50}}
    rule = {"name": "Bright", "rule": {"if": condition, "alarm": {"severity": "info", "text": "Bright"}}}
    rounds = 5

    def say(value: int) -> None:
        asked(daemon, "POST", "/messages", json={"sdid": device_id(0), "data": {"intensity": value}})

    with ExitStack() as stack:
        daemon = stack.enter_context(running_daemon(tmp_path, devices=1, settings=SETTINGS))
        be_local(daemon)
        file = stack.enter_context(output.open("a", encoding="utf-8"))
        wanted = {"messageType": "alarm", "uid": ADA, "callbackUrl": f"http://localhost:{port}/"}
        with receiving(daemon, port, file):
            path = f"/subscriptions/{asked(daemon, 'POST', '/subscriptions', json=wanted)['id']}"
            eventually(lambda: asked(daemon, "GET", path)["status"] == "ACTIVE")
            asked(daemon, "POST", "/rules", json=rule)
            for number in range(rounds):
                say(80)
                say(10)
                if number == 2:
                    daemon.kill()
                    daemon.start()
        say(80)  # nobody listens
        with receiving(daemon, port, file):

            def all_came() -> bool:
                waiting = [one["id"] for one in asked(daemon, "GET", f"{path}/deliveries?status=PENDING")]
                if waiting:
                    asked(daemon, "POST", f"{path}/deliveries/replay", json={"ids": waiting})
                return len({one["id"] for one in notifications(output)}) == 2 * rounds + 1

            eventually(all_came)
        attempts = {one["id"]: one["attempts"] for one in asked(daemon, "GET", f"{path}/deliveries")}
        raised = asked(daemon, "GET", "/alarms")
    by_id = {one["id"]: one["data"] for one in notifications(output)}
    assert attempts.keys() == by_id.keys()
    changes = [(one["id"], one["state"]) for (one,) in by_id.values()]
    assert len(set(changes)) == len(changes)
    in_order = [(one["id"], state) for one in reversed(raised) for state in ("raised", "cleared")]
    assert sorted(changes) == sorted(in_order[:-1])
    if all("httpStatus" in attempt for one in list(attempts)[1:] for attempt in attempts[one]):
        assert changes == in_order[:-1]
    assert all(one["text"] == "Bright" for (one,) in by_id.values())


def test_receive_subscribes_prints_verifies_and_ends_its_subscription_with_itself(tmp_path: Path) -> None:
    """systemd ends it, or a person does."""
    port, output = free_port(), tmp_path / "received.jsonl"
    with running_daemon(tmp_path, devices=1, settings=SETTINGS) as daemon, output.open("a", encoding="utf-8") as file:
        be_local(daemon)

        def found() -> list[dict[str, Any]]:
            subscriptions: list[dict[str, Any]] = asked(daemon, "GET", "/subscriptions", APPLICATION_TOKEN)
            return subscriptions

        for ends in (signal.SIGTERM, signal.SIGINT):
            with receiving(daemon, port, file, TRUNKLINE_TOKEN=USER_TOKEN) as (process, said):
                eventually(lambda: [one["status"] for one in found()] == ["ACTIVE"])
                assert "webhookSecret" in found()[0]
                if ends == signal.SIGTERM:
                    asked(daemon, "POST", "/messages", json={"sdid": device_id(0), "data": {"state": True}})
                    eventually(lambda: notifications(output))
                process.send_signal(ends)
                process.wait(timeout=60)
                assert "signature" not in said.read_text()
            assert found() == []
        (got,) = notifications(output)
        assert got["data"][0]["data"] == {"state": True}
