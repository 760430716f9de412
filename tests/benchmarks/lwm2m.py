"""A fleet of simulated LWM2M devices: all register over DTLS, and a Read of each completes.

    python -m tests.benchmarks.lwm2m [--devices 1000] [--at-once 32]

It prints the seconds until every device has registered and was read, devices a second, and the resident memory of the
server for each registered device; beside that the handshakes alone, by the same clients. Server and devices are one
process each. The sequence after a registration (Write-Attributes, Observe, Read of three objects) is part of it.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from broker.device_management.sessions import ManagedSession, Observation, ResourcePath, ResourceValue
from broker.devices.registry import Device
from broker.secrets import Vault
from broker.services import open_services
from config.logging import configure_logging
from config.settings import Address, Limits, Settings
from protocols.cli.simulated.lwm2m import serve
from protocols.cli.simulated.simulation import Simulation
from protocols.coap.dtls.client import DtlsClient
from protocols.coap.dtls.connection import LWM2M_PRIORITIES
from protocols.coap.dtls.listener import DtlsListener
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.server import Lwm2mServer
from protocols.interpreter import set_aside_what_stays, switch_threads_often
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.keys import Milliseconds
from tests.benchmarks.coap_server import add_devices
from tests.daemon import device_id, device_token
from tests.factories import build_world

FIRMWARE_VERSION = (3, 0, 3)
SPARE = 8  # devices that register before anything is measured, so that code and caches are in memory
PATIENCE_SECONDS = 300
_PAGE_KIB = 4


class Reader:
    """Device management that reads one resource of each device that registers."""

    def __init__(self) -> None:
        self.read = self.failed = 0

    async def observation_of(self, _device: Device) -> Observation:
        return Observation(is_enabled=True, pmin=300, pmax=86_400)

    async def registered(self, session: ManagedSession) -> None:
        found = await session.read(FIRMWARE_VERSION)
        if found == {FIRMWARE_VERSION: "1.0.0"}:
            self.read += 1
        else:
            self.failed += 1

    def ended(self, _session: ManagedSession) -> None:
        """Nothing was begun."""

    async def values_came(
        self, _device: Device, _values: Mapping[ResourcePath, ResourceValue], _ts_ms: Milliseconds
    ) -> None:
        """They are not kept."""


async def serve_fleet(folder: Path, devices: int) -> None:
    """The server's process: one line of JSON with the port, then one for each line that comes."""
    settings = Settings(state_dir=folder, limits=Limits(rate_limits="off", quotas="off"))
    vault = Vault(Vault.new_key())
    database = Database(SqliteEngine(folder / "store.sqlite"))
    async with open_services(settings, database, vault) as services, trio.open_nursery() as nursery:
        await build_world(database, vault)
        await database.write(lambda tx: add_devices(tx, vault, devices))
        reader = Reader()
        server = Lwm2mServer(services, reader)
        listener = DtlsListener(services, endpoint=Lwm2mEndpoint(server), priorities=LWM2M_PRIORITIES)
        await nursery.start(server.run)
        address = await nursery.start(partial(listener.serve, Address("127.0.0.1", 0), None))
        set_aside_what_stays()
        _print({"port": address.port})
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            if line.strip() == "memory":
                gc.collect()
            _print({
                "read": reader.read,
                "failed": reader.failed,
                "registered": server.statistics().registered,
                "sessions": listener.statistics().sessions,
                "kib": _resident_kib(),
            })  # fmt: skip
        nursery.cancel_scope.cancel()


def _resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_KIB


def _print(document: object) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


class Server:
    """The other process."""

    def __init__(self, folder: str, devices: int) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.lwm2m", "--serve", folder, "--devices", str(devices)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port: int = self._line()["port"]

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._line()

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


async def _run_fleet(server: Server, first: int, devices: int, at_once: int, nursery: trio.Nursery) -> float:
    """Register devices, so many at once, and wait until each was read. Returns the seconds."""
    begin = time.perf_counter()
    with trio.fail_after(PATIENCE_SECONDS):
        started, done = 0, 0
        before = server.ask("counts")["read"]
        while done < devices:
            while started < devices and started - done < at_once:
                number = first + started
                plan = Simulation(
                    *("127.0.0.1", server.port, device_id(number), device_token(number)),
                    *(lambda _: {}, 3600.0, None, str(number)),
                )
                nursery.start_soon(serve, plan)
                started += 1
            done = (await trio.to_thread.run_sync(server.ask, "counts"))["read"] - before
            await trio.sleep(0.01)
    return time.perf_counter() - begin


async def _run_handshakes(port: int, first: int, devices: int, at_once: int) -> float:
    begin = time.perf_counter()
    places = trio.CapacityLimiter(at_once)

    async def shake(number: int) -> None:
        async with (
            places,
            DtlsClient(Address("127.0.0.1", port), device_id(number).encode(), bytes.fromhex(device_token(number))),
        ):
            pass

    async with trio.open_nursery() as nursery:
        for number in range(first, first + devices):
            nursery.start_soon(shake, number)
    return time.perf_counter() - begin


async def measure(devices: int, at_once: int) -> None:
    with TemporaryDirectory() as folder:
        server = await trio.to_thread.run_sync(Server, folder, devices + SPARE)
        try:
            async with trio.open_nursery() as nursery:
                await _run_fleet(server, 0, SPARE, SPARE, nursery)
                before = server.ask("memory")
                seconds = await _run_fleet(server, SPARE, devices, at_once, nursery)
                after = server.ask("memory")
                nursery.cancel_scope.cancel()
            alone = await _run_handshakes(server.port, SPARE, devices, at_once)
        finally:
            server.stop()
    kib = (after["kib"] - before["kib"]) / devices
    print(f"{devices} devices registered and were read in {seconds:.1f} s: {devices / seconds:.0f} devices/s")
    print(f"handshakes alone: {devices / alone:.0f}/s, ratio {alone / seconds:.2f}")
    print(
        f"{kib:.1f} KiB for each registered device ({after['registered']} registered, {after['failed']} reads failed)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        configure_logging("warning", "console")  # to standard error
        switch_threads_often()  # as the daemon does
        trio.run(serve_fleet, options.serve, options.devices)
    else:
        trio.run(measure, options.devices, options.at_once)


if __name__ == "__main__":
    main()
