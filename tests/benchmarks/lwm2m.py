"""A fleet of simulated LWM2M devices and the daemon: registrations, a Read task, a firmware roll-out that stops.

    python -m tests.benchmarks.lwm2m [--devices 1000] [--at-once 32] [--no-rollout]

All devices register over DTLS: each gets attributes, is observed, and has three objects read. Then a task reads one
resource of all of them. Then a firmware is rolled out, of which 5 % of the devices cannot fetch the image; the roll-out
is to stop when more than ABORT_PERCENT have failed. It prints the seconds, devices a second, and the resident memory of
the daemon for each registered device; beside that the handshakes alone, by the same clients.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import trio

from config.settings import Address
from protocols.cli.simulated.board import Board
from protocols.cli.simulated.lwm2m import serve_board
from protocols.cli.simulated.simulation import Simulation
from protocols.coap.dtls.client import DtlsClient
from protocols.control.client import send_command
from tests.benchmarks.websocket import resident_kib
from tests.daemon import LIGHT_TYPE, USER_TOKEN, Daemon, bearer, device_id, device_token, running_daemon

SPARE = 8  # devices that register before anything is measured, so that code and caches are in memory
FAILING = 20  # one device in this number
ABORT_PERCENT = 2
BATCH = 100  # devices under way at once in a roll-out with a bound of failures (reference 18.5)
PATIENCE_SECONDS = 300
_ENDED = "numCompleted"


class FailingBoard(Board):
    """A device that cannot fetch its image."""

    def downloaded(self, _image: bytes | None) -> None:
        super().downloaded(None)


class Operator:
    """The REST calls of whoever manages the fleet."""

    def __init__(self, daemon: Daemon) -> None:
        self._state = daemon.state
        self._client = httpx.Client(base_url=f"{daemon.base_url}/devicemgmt", headers=bearer(USER_TOKEN), timeout=60)

    def call(self, method: str, path: str, **options: Any) -> Any:
        answer = self._client.request(method, path, **options)
        answer.raise_for_status()
        return answer.json()["data"]

    def begin(self, target: str, parameters: dict[str, Any]) -> str:
        """Create a task on all devices; its id."""
        body = {"dtid": LIGHT_TYPE, "taskType": "R", "property": target, "taskParameters": parameters}
        created: str = self.call("POST", "/tasks", json=body)["id"]
        return created

    async def counts(self, task: str) -> dict[str, int]:
        found: dict[str, int] = (await trio.to_thread.run_sync(self.call, "GET", f"/tasks/{task}"))["statusCounts"]
        return found

    async def wait(self, task: str, holds: Callable[[dict[str, int]], bool]) -> float:
        """Wait until the counts of a task are so. Returns the seconds."""
        begin = time.perf_counter()
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                if holds(await self.counts(task)):
                    break
                await trio.sleep(0.05)
        return time.perf_counter() - begin

    async def registered(self) -> int:
        """How many devices have registered and had their objects read."""
        statistics = await send_command(self._state, "statistics", {})
        found: int = statistics["tasks"]["sessions"]
        return found


async def _register(
    operator: Operator, dtls: Address, first: int, devices: int, at_once: int, nursery: trio.Nursery
) -> float:
    """Register devices, a number at once, and wait until each was read. Returns the seconds."""
    begin = time.perf_counter()
    started = done = 0
    with trio.fail_after(PATIENCE_SECONDS):
        while done < devices:
            while started < devices and started - done < at_once:
                number = first + started
                plan = Simulation(
                    *(dtls.host, dtls.port, device_id(number), device_token(number)),
                    *(lambda _: {}, 3600.0, None, str(number)),
                )
                nursery.start_soon(serve_board, plan, Board if number % FAILING else FailingBoard)
                started += 1
            done = await operator.registered() - first
            await trio.sleep(0.1)
    return time.perf_counter() - begin


async def _shake_hands(dtls: Address, devices: int, at_once: int) -> float:
    begin = time.perf_counter()
    places = trio.CapacityLimiter(at_once)

    async def shake(number: int) -> None:
        async with places, DtlsClient(dtls, device_id(number).encode(), bytes.fromhex(device_token(number))):
            pass

    async with trio.open_nursery() as nursery:
        for number in range(devices):
            nursery.start_soon(shake, number)
    return time.perf_counter() - begin


async def _roll_out(operator: Operator, devices: int) -> str:
    image = operator.call(
        "POST", f"/devicetypes/{LIGHT_TYPE}/images", params={"version": "2.0.0"}, content=b"2.0.0\n" + bytes(20_000)
    )
    update = {"updateId": image["updateId"], "rollout": {"abortPercent": ABORT_PERCENT}}
    task = operator.begin("akc.update", {"update": update})
    seconds = await operator.wait(task, lambda counts: 0 < counts["totalDevices"] == counts[_ENDED])
    counts = await operator.counts(task)
    bound = devices * ABORT_PERCENT // 100
    return (
        f"roll-out: {counts['numSucceeded']} succeeded, {counts['numFailed']} failed (more than {bound}, at most"
        f" {bound + BATCH}), {counts['numCancelled']} cancelled, in {seconds:.1f} s:"
        f" {(counts['numSucceeded'] + counts['numFailed']) / seconds:.0f} devices/s"
    )


async def measure(daemon: Daemon, devices: int, at_once: int, *, with_rollout: bool) -> list[str]:
    operator, dtls = Operator(daemon), Address.parse(daemon.addresses["lwm2m_dtls"])
    process = daemon.process
    assert process is not None
    operator.call("PUT", f"/devicetypes/{LIGHT_TYPE}", json={"devicePropertiesEnabled": True})
    found = []
    async with trio.open_nursery() as nursery:
        await _register(operator, dtls, 0, SPARE, SPARE, nursery)
        before = resident_kib(process.pid)
        seconds = await _register(operator, dtls, SPARE, devices, at_once, nursery)
        kib = (resident_kib(process.pid) - before) / devices
        found.append(
            f"{devices} devices registered and were read in {seconds:.1f} s: {devices / seconds:.0f} devices/s"
        )
        found.append(f"{kib:.1f} KiB for each registered device")
        task = operator.begin("deviceProperties.device.firmwareVersion", {})
        total = devices + SPARE
        seconds = await operator.wait(task, lambda counts: counts[_ENDED] == total)
        succeeded = (await operator.counts(task))["numSucceeded"]
        found.append(f"Read task: {succeeded} of {total} succeeded in {seconds:.1f} s: {total / seconds:.0f} devices/s")
        if with_rollout:
            found.append(await _roll_out(operator, total))
        nursery.cancel_scope.cancel()
    alone = await _shake_hands(dtls, devices, at_once)
    found.append(f"handshakes alone: {devices / alone:.0f}/s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--no-rollout", action="store_true")
    options = parser.parse_args()
    settings = '[lwm2m]\ndtls_bind = "127.0.0.1:0"\n'
    with (
        TemporaryDirectory() as folder,
        running_daemon(Path(folder), devices=options.devices + SPARE, settings=settings) as daemon,
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),  # what the devices print
    ):
        found = trio.run(
            partial(measure, daemon, options.devices, options.at_once, with_rollout=not options.no_rollout)
        )
    sys.stdout.write("\n".join(found) + "\n")


if __name__ == "__main__":
    main()
