"""LWM2M with programs of others, and with the real daemon."""

import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from broker.device_management.sessions import DeviceRefusedError, RegistrationPort, latest
from broker.services import Services
from config.settings import Address
from protocols.coap.dtls.connection import LWM2M_PRIORITIES
from protocols.coap.dtls.listener import DtlsListener
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.device import RegisteredDevice
from protocols.coap.lwm2m.server import Lwm2mServer
from protocols.coap.lwm2m.streams import serve_lwm2m_tcp
from tests.benchmarks.coap_server import add_devices
from tests.daemon import (
    USER_TOKEN,
    Daemon,
    bearer,
    command_output,
    device_id,
    device_token,
    running_daemon,
)
from tests.e2e.coap_programs import KEY, run_program
from tests.e2e.dtls_relay import DtlsRelay
from tests.factories import KITCHEN, KITCHEN_TOKEN
from tests.programs import require_dtls, require_node_module, require_program
from tests.protocols.coap.lwm2m.conftest import Management
from tests.protocols.coap.lwm2m.test_fields import Messages, until

PATIENCE_SECONDS = 60
PSK_CLIENTS = ("coap-client-openssl", "coap-client-gnutls")
_SCRIPT = Path(__file__).with_name("coap_node.js")


@pytest.fixture
def management() -> Management:
    return Management()


@dataclass(frozen=True, slots=True)
class Listening:
    server: Lwm2mServer
    dtls: Address
    tcp: Address


@pytest.fixture
async def listening(services: Services, world: object, management: Management) -> AsyncIterator[Listening]:
    async with _serve(services, management) as listening:
        yield listening


@asynccontextmanager
async def _serve(services: Services, registrations: RegistrationPort) -> AsyncIterator[Listening]:
    require_dtls()
    server = Lwm2mServer(services, registrations)
    listener = DtlsListener(services, endpoint=Lwm2mEndpoint(server), priorities=LWM2M_PRIORITIES)
    anywhere = Address("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        dtls = await nursery.start(partial(listener.serve, anywhere, None))
        tcp = await nursery.start(partial(serve_lwm2m_tcp, server, anywhere, connections=nursery))
        yield Listening(server, dtls, tcp)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def client(listening: Listening) -> AsyncIterator["subprocess.Popen[str]"]:
    async with _coap_node(listening) as process:
        yield process


@asynccontextmanager
async def _coap_node(listening: Listening) -> AsyncIterator["subprocess.Popen[str]"]:
    node_path = require_node_module("coap-node")
    relay = DtlsRelay((listening.dtls.host, listening.dtls.port), KITCHEN, KITCHEN_TOKEN)
    await trio.to_thread.run_sync(relay.__enter__)
    try:
        with _node(node_path, KITCHEN, str(relay.port)) as process:
            yield process
    finally:
        relay.__exit__(None, None, None)


class TestCoapNode:
    """The npm package coap-node 0.2.5, an LWM2M 1.0 client. It has no DTLS, so a relay with OpenSSL adds that."""

    async def test_registers_does_every_operation_and_leaves(
        self, client: "subprocess.Popen[str]", management: Management
    ) -> None:
        assert await _line(client) == "2.01"
        session = await management.session()
        assert isinstance(session, RegisteredDevice)
        # int-101, int-203, int-223: the sequence after the registration
        assert {path for path in session.offers if len(path) > 1} == {(3, 0), (4, 0), (3303, 0), (3308, 0)}
        assert management.values[(3, 0, 0)] == "Example"
        assert management.values[(3, 0, 7)] == [100]
        assert management.values[(3303, 0, 5700)] == 21.5
        # int-201, int-222, int-224, int-256, int-260
        assert latest(await session.read((3, 0, 1))) == {(3, 0, 1): "Node"}
        assert latest(await session.read((3308,)))[(3308, 0, 5900)] == 20.5
        assert (3303, 0, 5700) in await session.discover((3303,))
        for refused in (session.execute((3, 0, 4)), session.write((3, 0, 14), "+01:00"), session.read((5, 0))):
            with pytest.raises(DeviceRefusedError):
                await refused
        # int-205, int-227, int-241
        await session.write((3308, 0, 5900), 24.5)
        assert latest(await session.read((3308, 0, 5900))) == {(3308, 0, 5900): 24.5}
        await session.execute((3303, 0, 5605))
        assert await _line(client) == "executed"
        # int-102, int-107
        assert session.lifetime_seconds == 300
        _tell(client, "update 600")
        assert await management.session(2) is session
        assert session.lifetime_seconds == 600
        # int-301, int-103
        _tell(client, "3300")
        await management.wait(lambda: management.values[(3, 0, 7)] == [3300])
        _tell(client, "leave")
        await management.wait(lambda: session.is_over)


async def test_values_of_coap_node_are_messages_and_it_does_actions(services: Services, world: object) -> None:
    """Reference 18.6, 18.7: fields of the Manifest have the values that it notifies, Actions are operations on it."""
    fields = [
        {"name": "temperature", "valueClass": "Double", "lwm2m": "/3303/0/5700"},
        {"name": "supply", "valueClass": "Integer", "isCollection": True, "lwm2m": "/3/0/7"},
        {"name": "humidity", "valueClass": "Double", "lwm2m": "/3304/0/5700"},
    ]
    actions = [
        {"name": "reset", "lwm2m": {"execute": "/3303/0/5605"}},
        {"name": "set", "lwm2m": {"write": "/3308/0/5900", "value": 24.5}},
    ]
    await services.device_types.manifests.upload("example.smart_light", {"fields": fields, "actions": actions})
    device = await services.devices.registry.find(KITCHEN)
    messages = Messages(services)
    registrations = services.device_management.registrations
    async with _serve(services, registrations) as listening, _coap_node(listening) as process:
        assert await _line(process) == "2.01"
        await messages.wait(2)
        assert messages.data == [{"temperature": 21.5}, {"supply": [100]}]
        _tell(process, "3300")
        await messages.wait(3)
        assert messages.data[2] == {"supply": [3300]}
        await until(lambda: registrations.work.session_of(device.key))
        session = registrations.work.session_of(device.key)
        assert session is not None
        assert dict(session.unobserved) == {(3304, 0, 5700): "The device does not list /3304/0."}
        services.messages.ingest.submit_action(device, device, b'{"actions":[{"name":"set"},{"name":"reset"}]}')
        assert await _line(process) == "executed"
        await until(lambda: services.device_management.actions.statistics().done)
        assert latest(await session.read((3308, 0, 5900))) == {(3308, 0, 5900): 24.5}


async def test_coap_node_is_written_what_is_wanted_and_reports_it(services: Services, world: object) -> None:
    """Reference 9.10: wanted before the device registers, written then, and reached by its notification."""
    fields = [{"name": "target", "valueClass": "Double", "lwm2m": "/3308/0/5900", "settable": True}]
    await services.device_types.manifests.upload("example.smart_light", {"fields": fields})
    device = await services.devices.registry.find(KITCHEN)

    async def is_reached() -> None:
        with trio.fail_after(30):
            while [one.state for one in (await services.wanted.show(device)).fields] != ["reached"]:
                await services.messages.ingest.wait_committed()
                await trio.lowlevel.checkpoint()

    await services.wanted.put(device, b'{"target":23.5}', expires_after=600, application_id=None)
    registrations = services.device_management.registrations
    async with _serve(services, registrations) as listening, _coap_node(listening) as process:
        assert await _line(process) == "2.01"
        await is_reached()
        session = registrations.work.session_of(device.key)
        assert session is not None
        assert latest(await session.read((3308, 0, 5900))) == {(3308, 0, 5900): 23.5}


class TestLibcoap:
    """libcoap's clients. They send the requests of a device and answer none."""

    @pytest.mark.parametrize("program", PSK_CLIENTS)
    async def test_registers_updates_and_leaves(self, services: Services, listening: Listening, program: str) -> None:
        """int-101, int-102, int-103, int-107, int-401. Each request is a DTLS session of its own, so
        the device comes from another address each time."""
        await services.core.database.write(lambda tx: add_devices(tx, services.core.vault, 1, KEY.encode().hex()))
        root = f"coaps://127.0.0.1:{listening.dtls.port}"
        path = require_program(program)

        async def ask(method: str, url: str, *more: str) -> str:
            arguments = (path, "-v", "7", "-u", device_id(0), "-k", KEY, "-m", method, *more, root + url)
            return await trio.to_thread.run_sync(run_program, *arguments)

        registered = await ask("post", f"/rd?ep={device_id(0)}&lt=60&lwm2m=1.0&b=UQ", "-t", "40", "-e", "</1/0>,</3/0>")
        found = re.search(r"c:2\.01 .*Location-Path:rd, Location-Path:([0-9]+)", registered)
        assert found is not None, registered
        assert listening.server.statistics().registered == 1
        location = f"/rd/{found[1]}"
        assert "c:2.04 " in await ask("post", f"{location}?lt=600")
        assert "c:2.02 " in await ask("delete", location)
        assert "c:4.04 " in await ask("post", location)
        assert listening.server.statistics().registered == 0

    async def test_registers_over_tcp(self, listening: Listening, management: Management) -> None:
        """int-106. The registration ends with the connection."""
        url = f"coap+tcp://127.0.0.1:{listening.tcp.port}/rd?ep={KITCHEN}&token={KITCHEN_TOKEN}&lt=60&b=T"
        program = require_program("coap-client-notls")
        answer = await trio.to_thread.run_sync(run_program, program, "-v", "7", "-m", "post", "-e", "</3/0>", url)
        assert re.search(r"c:2\.01 .*Location-Path:rd", answer), answer
        await management.wait(lambda: management.over)


@contextmanager
def _node(node_path: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        ["node", _SCRIPT, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NODE_PATH": node_path},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


async def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    with trio.fail_after(PATIENCE_SECONDS):
        return (await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)).strip()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    require_dtls()
    with running_daemon(tmp_path, devices=1, settings='[lwm2m]\ndtls_bind = "127.0.0.1:0"\n') as daemon:
        yield daemon


def _simulate(program: Path, daemon: Daemon) -> list[str]:
    address = daemon.addresses["lwm2m_dtls"]
    return [str(program), "simulate", "--protocol", "lwm2m", "--address", address, "--device", device_id(0)]


def _wait_availability(daemon: Daemon, device: str, wanted: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    found = None
    while found != wanted:
        assert time.monotonic() < deadline, found
        answer = httpx.get(f"{daemon.base_url}/devices/{device}/status", headers=bearer(USER_TOKEN))
        found = answer.json()["data"].get("availability")


def test_the_daemon_stops_at_once_with_a_simulated_device_that_is_online(daemon: Daemon, program: Path) -> None:
    """It is online while it is registered."""
    with subprocess.Popen(
        _simulate(program, daemon),
        env={**os.environ, "TRUNKLINE_TOKEN": device_token(0)},
        stderr=subprocess.DEVNULL,
    ) as process:
        _wait_availability(daemon, device_id(0), "online")
        assert "lwm2m" in command_output("statistics", "--config", daemon.config)
        begin = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - begin < 4  # less than the grace period
        process.terminate()
