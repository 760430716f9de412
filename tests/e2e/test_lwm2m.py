"""LWM2M with programs of others, and with the real daemon."""

import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from broker.device_management.sessions import DeviceRefusedError
from broker.services import Services
from config.settings import Address
from protocols.coap.dtls.connection import LWM2M_PRIORITIES
from protocols.coap.dtls.listener import DtlsListener
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.device import RegisteredDevice
from protocols.coap.lwm2m.server import Lwm2mServer
from tests.daemon import TRUNKLINE, USER_TOKEN, Daemon, bearer, device_id, device_token, running_daemon
from tests.e2e.dtls_relay import DtlsRelay
from tests.factories import KITCHEN, KITCHEN_TOKEN
from tests.programs import require_dtls, require_node_module
from tests.protocols.coap.lwm2m.conftest import Management

PATIENCE_SECONDS = 20
_SCRIPT = Path(__file__).with_name("coap_node.js")


@pytest.fixture
def management() -> Management:
    return Management()


@pytest.fixture
async def client(services: Services, world: object, management: Management) -> AsyncIterator["subprocess.Popen[str]"]:
    require_dtls()
    node_path = require_node_module("coap-node")
    server = Lwm2mServer(services, management)
    listener = DtlsListener(services, endpoint=Lwm2mEndpoint(server), priorities=LWM2M_PRIORITIES)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        address = await nursery.start(partial(listener.serve, Address("127.0.0.1", 0), None))
        relay = DtlsRelay((address.host, address.port), KITCHEN, KITCHEN_TOKEN)
        await trio.to_thread.run_sync(relay.__enter__)
        try:
            with _node(node_path, KITCHEN, str(relay.port)) as process:
                yield process
        finally:
            relay.__exit__(None, None, None)
        nursery.cancel_scope.cancel()


class TestCoapNode:
    """The npm package coap-node 0.2.5, an LWM2M 1.0 client. It has no DTLS, so a relay with OpenSSL adds that."""

    async def test_registers_and_is_read(self, client: "subprocess.Popen[str]", management: Management) -> None:
        """int-101, int-203, int-223: the sequence after the registration."""
        assert await _line(client) == "2.01"
        session = await management.session()
        assert session.offers == {(3,), (3, 0), (4,), (4, 0), (3303,), (3303, 0)}
        assert management.values[(3, 0, 0)] == "Example"
        assert management.values[(3, 0, 7)] == [100]
        assert management.values[(3303, 0, 5700)] == 21.5

    async def test_answers_every_operation(self, client: "subprocess.Popen[str]", management: Management) -> None:
        """int-201, int-224, int-256, int-260."""
        assert await _line(client) == "2.01"
        session = await management.session()
        assert await session.read((3, 0, 1)) == {(3, 0, 1): "Node"}
        assert isinstance(session, RegisteredDevice)
        assert (3303, 0, 5700) in await session.discover((3303,))
        for refused in (session.execute((3, 0, 4)), session.write((3, 0, 14), "+01:00"), session.read((5, 0))):
            with pytest.raises(DeviceRefusedError):
                await refused

    async def test_notifies_and_leaves(self, client: "subprocess.Popen[str]", management: Management) -> None:
        """int-301, int-103."""
        session = await management.session()
        assert client.stdin is not None
        client.stdin.write("3300\n")
        client.stdin.flush()
        await management.wait(lambda: management.values[(3, 0, 7)] == [3300])
        client.stdin.write("leave\n")
        client.stdin.flush()
        await management.wait(lambda: session.is_over)


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


async def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    with trio.fail_after(PATIENCE_SECONDS):
        return (await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)).strip()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[Daemon]:
    require_dtls()
    tls = f'[tls]\ncertificate = "{certificate}"\nkey = "{certificate.with_name("key.pem")}"\n'
    lwm2m = "[lwm2m]\n" + "".join(f'{kind}_bind = "127.0.0.1:0"\n' for kind in ("dtls", "tcp", "tls"))
    with running_daemon(tmp_path_factory.mktemp("lwm2m"), devices=3, settings=tls + lwm2m) as daemon:
        yield daemon


def _simulate(daemon: Daemon) -> list[str]:
    address = daemon.addresses["lwm2m_dtls"]
    return [str(TRUNKLINE), "simulate", "--protocol", "lwm2m", "--address", address, "--device", device_id(0)]


def _wait_availability(daemon: Daemon, device: str, wanted: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    found = None
    while found != wanted:
        assert time.monotonic() < deadline, found
        answer = httpx.get(f"{daemon.base_url}/devices/{device}/status", headers=bearer(USER_TOKEN))
        found = answer.json()["data"].get("availability")


def test_the_simulated_device_is_online_while_it_is_registered(daemon: Daemon) -> None:
    with subprocess.Popen(_simulate(daemon), env={**os.environ, "TRUNKLINE_TOKEN": device_token(0)}) as process:
        _wait_availability(daemon, device_id(0), "online")
        shown = subprocess.run(
            [TRUNKLINE, "statistics", "--config", daemon.config], capture_output=True, text=True, check=True
        )
        assert "lwm2m" in shown.stdout
        process.terminate()


def test_the_daemon_stops_at_once_with_registered_devices(tmp_path: Path) -> None:
    require_dtls()
    with (
        running_daemon(tmp_path, devices=1, settings='[lwm2m]\ndtls_bind = "127.0.0.1:0"\n') as daemon,
        subprocess.Popen(
            _simulate(daemon),
            env={**os.environ, "TRUNKLINE_TOKEN": device_token(0)},
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        _wait_availability(daemon, device_id(0), "online")
        begin = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - begin < 4  # less than the grace period
        process.terminate()
