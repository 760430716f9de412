"""A process that serves only CoAP, for the benchmark: a store on disk, `synchronous=FULL`, no other listener.

    python -m tests.benchmarks.coap_server FOLDER CERTIFICATE KEY DEVICES [SECOND_CERTIFICATE KEY]

It prints one line of JSON with its ports, then obeys lines on stdin: `actions SECONDS` sends Actions to every device as
fast as they are stored, `action NUMBER` sends one, `statistics` prints one line of JSON.
"""

import json
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

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


async def main() -> None:
    folder, certificate, key = map(Path, sys.argv[1:4])
    devices = int(sys.argv[4])
    second = (Path(sys.argv[5]), Path(sys.argv[6])) if len(sys.argv) > 5 else None
    settings = Settings(state_dir=folder, limits=Limits(rate_limits="off", quotas="off"), storage=storage_of(folder))
    vault = Vault(Vault.new_key())
    database = Database(engine_of(settings))
    async with open_services(settings, database, vault) as services:
        await build_world(database, vault)
        await database.write(lambda tx: add_devices(tx, vault, devices))
        endpoint = CoapEndpoint(services, guard=new_guard())
        listener = DtlsListener(services)
        async with trio.open_nursery() as nursery:
            plain = await nursery.start(partial(serve_coap, services, ANYWHERE, endpoint=endpoint))
            dtls = await nursery.start(partial(listener.serve, ANYWHERE, (certificate, key), second))
            freeze_objects()
            _print({"coap": plain.port, "coaps": dtls.port})
            async for line in _lines():
                match line.split():
                    case ["actions", seconds]:
                        await _send_actions(services, devices, float(seconds))
                    case ["action", number]:
                        light = await services.devices.registry.find(device_id(int(number)))
                        services.messages.ingest.submit_action(light, light, ACTION)
                    case ["statistics"]:
                        _print({
                            "messages": services.messages.ingest.statistics().messages,
                            "online": services.routing.connections.statistics().devices_online,
                            "plain": asdict(endpoint.statistics()),
                            "dtls": asdict(listener.statistics()),
                            "dtls_endpoint": asdict(listener.endpoint.statistics()),
                        })  # fmt: skip
            nursery.cancel_scope.cancel()


def _print(document: object) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def _lines() -> AsyncIterator[str]:
    while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        yield line


def add_devices(tx: Transaction, vault: Vault, devices: int) -> None:
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
        # The option -k of libcoap's clients is text, so one device may have a token that is text in hexadecimal.
        token = os.environ.get(f"COAP_SERVER_TOKEN_{number}") or device_token(number)
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
