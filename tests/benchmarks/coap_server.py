"""A process that serves only CoAP, for the benchmark: a store on disk, `synchronous=FULL`, no other listener.

    python -m tests.benchmarks.coap_server FOLDER CERTIFICATE KEY DEVICES [SECOND_CERTIFICATE KEY]

It prints one line of JSON with its ports, then obeys lines on stdin: `actions SECONDS` sends Actions to every device as
fast as they are stored, `action NUMBER` sends one, `statistics` prints one line of JSON.
"""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import asdict

from broker.devices.registry import Device
from broker.secrets import Vault, token_hash
from broker.services import Services, open_services
from config.logging import configure_logging
from config.settings import Address, Limits, Settings
from protocols.coap.dtls.listener import DtlsListener
from protocols.coap.echo import new_guard
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.server import serve_coap
from protocols.operation.interpreter import freeze_objects, switch_threads_often
from storage.database import Database
from storage.engines import engine_of
from storage.keys import ApplicationKey, DeviceTypeKey, UserKey
from storage.records import DeviceTokenRecord
from storage.transaction import Transaction
from tests.daemon import device_id, device_token
from tests.factories import build_world, new_device
from tests.stores import storage_of

ACTION = b'{"actions":[{"name":"setOn"}]}'
ROUNDS_UNDER_WAY = 4
ANYWHERE = Address("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class CoapServer:
    services: Services
    endpoint: CoapEndpoint
    listener: DtlsListener
    plain: int
    dtls: int

    def statistics(self) -> dict[str, Any]:
        return {
            "messages": self.services.messages.ingest.statistics().messages,
            "online": self.services.routing.connections.statistics().devices_online,
            "plain": asdict(self.endpoint.statistics()),
            "dtls": asdict(self.listener.statistics()),
            "dtls_endpoint": asdict(self.listener.endpoint.statistics()),
        }

    async def is_online(self, number: int) -> bool:
        """Whether a device observes its Actions."""
        light = await self.services.devices.registry.find(device_id(number))
        return self.services.routing.connections.is_online(light.key)

    async def act(self, number: int) -> None:
        """Send an Action to a device."""
        light = await self.services.devices.registry.find(device_id(number))
        self.services.messages.ingest.submit_action(light, light, ACTION)


@asynccontextmanager
async def serving(
    folder: Path, certificates: Sequence[Path], devices: int, first_token: str | None = None
) -> AsyncIterator[CoapServer]:
    """`certificates`: a chain and its key, or two of each; the rest is for `add_devices`."""
    pairs = [(certificates[at], certificates[at + 1]) for at in range(0, len(certificates), 2)]
    settings = Settings(state_dir=folder, limits=Limits(rate_limits="off", quotas="off"), storage=storage_of(folder))
    vault = Vault(Vault.new_key())
    database = Database(engine_of(settings))
    async with open_services(settings, database, vault) as services:
        await build_world(database, vault)
        await database.write(lambda tx: add_devices(tx, vault, devices, first_token))
        endpoint = CoapEndpoint(services, guard=new_guard())
        listener = DtlsListener(services)
        async with trio.open_nursery() as nursery:
            plain = await nursery.start(partial(serve_coap, services, ANYWHERE, endpoint=endpoint))
            second = pairs[1] if pairs[1:] else None
            dtls = await nursery.start(partial(listener.serve, ANYWHERE, pairs[0], second))
            yield CoapServer(services, endpoint, listener, plain.port, dtls.port)
            nursery.cancel_scope.cancel()


async def main() -> None:
    folder, certificate, key = map(Path, sys.argv[1:4])
    devices = int(sys.argv[4])
    async with serving(folder, (certificate, key, *map(Path, sys.argv[5:])), devices) as server:
        freeze_objects()
        _print({"coap": server.plain, "coaps": server.dtls})
        async for line in _lines():
            match line.split():
                case ["actions", seconds]:
                    await _send_actions(server.services, devices, float(seconds))
                case ["action", number]:
                    await server.act(int(number))
                case ["statistics"]:
                    _print(server.statistics())


def _print(document: object) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def _lines() -> AsyncIterator[str]:
    while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        yield line


def add_devices(tx: Transaction, vault: Vault, devices: int, first_token: str | None = None) -> None:
    """The option -k of libcoap's clients is text, so the first device may have a token that is text in hexadecimal."""
    for number in range(devices):
        key = tx.devices.put_device(
            new_device(
                device_id(number),
                owner=UserKey(1),
                device_type=DeviceTypeKey(1),
                name=f"Light {number}",
                manifest_version=1,
                manifest_version_policy="LATEST",
                enabled=True,
                now_ms=1,
            )
        )
        token = (first_token if number == 0 else None) or device_token(number)
        tx.devices.put_token(DeviceTokenRecord(key, token_hash(token), vault.seal(token), ApplicationKey(1), 1))


async def _send_actions(services: Services, devices: int, seconds: float) -> None:
    lights = [await services.devices.registry.find(device_id(number)) for number in range(devices)]
    end = trio.current_time() + seconds
    async with trio.open_nursery() as nursery:
        for _ in range(ROUNDS_UNDER_WAY):
            nursery.start_soon(_send_rounds, services, lights, end)


async def _send_rounds(services: Services, lights: list[Device], end: float) -> None:
    while trio.current_time() < end:
        for light in lights:
            services.messages.ingest.submit_action(light, light, ACTION)
        await services.messages.ingest.wait_committed()


if __name__ == "__main__":
    configure_logging("warning", "console")  # to standard error: standard output is for the one who asks
    switch_threads_often()  # as the daemon does
    trio.run(main)
