"""Faults of what is not on the machine: names, the mail server and callbacks, over any store."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

import httpx

from tests.daemon import ADA, DASHBOARD_WITH_SECRET, TRUNKLINE, USER_TOKEN, Daemon, bearer, command_output, device_id
from tests.faults.shim import Shim
from tests.faults.world import Row, World, under_load, wait
from tests.free_port import free_port
from tests.protocols.outbound.smtp_servers import Received, smtp_server

_GONE_SECONDS: Final = 8.0
#: As a resolver that asks servers that do not answer.
_LOOK_UP_MS: Final = 5_000
_EAI_AGAIN: Final = 1


class _Callback:
    """`trunkline receive`, which may end, or stand still with its sockets open."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self._daemon, self.port = daemon, free_port()
        self.output = folder / "received.jsonl"
        self._file: IO[str] = self.output.open("a", encoding="utf-8")
        self._process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        self._process = subprocess.Popen(
            [TRUNKLINE, "receive", "--port", str(self.port), "--service", self._daemon.base_url],
            stdout=self._file,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TRUNKLINE_CLIENT_SECRET": "s3cret"},
        )
        assert self._process.stderr is not None
        self._process.stderr.readline()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            assert self._process.stderr is not None
            self._process.stderr.close()
            self._process = None

    def close(self) -> None:
        self.end()
        self._file.close()

    def received(self) -> set[tuple[str, int]]:
        """The device and the number of each message, without a line that a kill cut off."""
        found: set[tuple[str, int]] = set()
        for line in self.output.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                for one in json.loads(line)["data"]:
                    found.add((one["sdid"], one["data"]["intensity"]))
        return found


def asked(daemon: Daemon, method: str, path: str, **body: Any) -> Any:
    answer = httpx.request(method, daemon.base_url + path, headers=bearer(USER_TOKEN), timeout=30, **body)
    answer.raise_for_status()
    return answer.json()["data"]


def gone(world: World, rounds: int) -> Row:
    """Look-ups of names fail or take long, the mail server refuses connections, and the callback ends or stands still.

    Messages go on. Afterwards each of them comes to the callback, and each mail to its mail server: what does not,
    counts as lost.
    """
    row = Row(
        f"look-ups of names, mail server and callback are gone for {_GONE_SECONDS:.0f} s",
        "the delivery log; `mail_server_unavailable` once",
        rounds,
    )
    mails, guests = Received(), 0
    with ExitStack() as held:
        folder = Path(held.enter_context(TemporaryDirectory(prefix="trunkline-gone-")))
        mail_port = free_port()
        settings = f'[outbound]\nallow_private_addresses = true\nsmtp_url = "smtp://localhost:{mail_port}"\n'
        daemon = world.daemon(held, settings=settings)
        file = folder / "local.toml"
        file.write_text(DASHBOARD_WITH_SECRET, encoding="utf-8")
        command_output("provision", file, "--config", daemon.config)
        shim = Shim(folder, daemon.state)
        with shim.loaded():
            daemon.start()
        callback = _Callback(daemon, folder)
        held.callback(callback.close)
        callback.begin()
        wanted = {"messageType": "message", "uid": ADA, "callbackUrl": f"http://localhost:{callback.port}/"}
        path = f"/subscriptions/{asked(daemon, 'POST', '/subscriptions', json=wanted)['id']}"
        wait(lambda: asked(daemon, "GET", path)["status"] == "ACTIVE", "an active subscription")
        with under_load(world, row, [daemon]) as fleet:
            for number in range(rounds):
                fleet.wait_for(world.chance.randint(20, 120))
                begun, stands_still = time.monotonic(), number % 2 == 1
                if stands_still:
                    callback.send(signal.SIGSTOP)
                else:
                    callback.end()
                shim.arm("g", "x", error=_EAI_AGAIN, delay=_LOOK_UP_MS if stands_still else 0)
                guests += 1
                asked(daemon, "POST", f"/devices/{device_id(0)}/shares", json={"email": f"guest{guests}@example.org"})
                time.sleep(_GONE_SECONDS)
                back = time.monotonic()
                shim.disarm()
                if stands_still:
                    callback.send(signal.SIGCONT)
                else:
                    callback.begin()
                row.recovery.append(fleet.goes_on(back))
                row.stall = max(row.stall, fleet.stall_since(begun))
                with smtp_server(mails, port=mail_port):
                    wait(lambda all_=guests: len(mails.envelopes) >= all_, "the mails")  # type: ignore[misc]
        sent = {(device_id(device), n) for _, device, n in fleet.acknowledged if device < world.devices}
        with suppress(TimeoutError):
            wait(lambda: _came(daemon, path, callback, sent), "every message at the callback")
        row.lost += len(sent - callback.received())
        daemon.stop()
    return row


def _came(daemon: Daemon, path: str, callback: _Callback, sent: set[tuple[str, int]]) -> bool:
    """Whether all have come. What waits for its next attempt, which may be due in minutes, is sent now."""
    waiting = [one["id"] for one in asked(daemon, "GET", f"{path}/deliveries?status=PENDING")]
    if waiting:
        with suppress(httpx.HTTPStatusError):  # it was sent meanwhile
            asked(daemon, "POST", f"{path}/deliveries/replay", json={"ids": waiting})
    time.sleep(0.5)
    return callback.received() >= sent


FAULTS: Final[dict[str, tuple[float, Callable[[World, int], Row]]]] = {"gone": (0.2, gone)}
