"""LWM2M over DTLS by OpenSSL (reference 18.1)."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import aiocoap
import pytest
import trio
import trio.testing
from OpenSSL import SSL

from broker.device_management.sessions import ManagedSession, SessionLostError, latest
from broker.services import Services
from config.settings import Address
from protocols.coap.dtls.connection import LWM2M_PRIORITIES
from protocols.coap.dtls.listener import DtlsListener
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.server import Lwm2mServer
from tests.factories import KITCHEN, KITCHEN_TOKEN
from tests.fakes import run_inline
from tests.programs import require_dtls
from tests.protocols.coap.dtls.client import PSK, DtlsClient, client_context, dtls_client, make_certificate, psk_context
from tests.protocols.coap.lwm2m.conftest import Management
from tests.protocols.coap.lwm2m.device import TEXT, TLV, DtlsTransport, ScriptedDevice, content, tlv
from tests.protocols.coap.lwm2m.test_formats import EXAMPLE_TLV, LEVEL
from tests.protocols.coap.lwm2m.test_sequence import FIRMWARE, SEQUENCE


@pytest.fixture(autouse=True)
def library() -> None:
    require_dtls()


@pytest.fixture
async def listener(services: Services, management: Management) -> AsyncIterator[DtlsListener]:
    """A listener in real time: DTLS clients send again by their own clocks."""
    server = Lwm2mServer(services, management, pause_seconds=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield DtlsListener(services, endpoint=Lwm2mEndpoint(server), priorities=LWM2M_PRIORITIES, run=run_inline)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def address(listener: DtlsListener, world: object) -> AsyncIterator[Address]:
    """It has no certificate and takes pre-shared keys only."""
    async with trio.open_nursery() as nursery:
        yield await nursery.start(partial(listener.serve, Address("127.0.0.1", 0), None))
        nursery.cancel_scope.cancel()


@contextmanager
def _client(
    address: Address, suite: bytes = PSK, identity: str = KITCHEN, token: str = KITCHEN_TOKEN
) -> Iterator[DtlsClient]:
    with dtls_client(address, psk_context(identity, token, suite)) as client:
        yield client


def _device(client: DtlsClient) -> ScriptedDevice:
    device = ScriptedDevice(DtlsTransport(client), KITCHEN)
    device.replies["GET /3/0"] = content(TLV, EXAMPLE_TLV)
    device.replies["GET /5/0"] = content(TLV, FIRMWARE)
    return device


@pytest.mark.parametrize("suite", [PSK, b"PSK-AES128-CBC-SHA256", b"PSK-AES128-CBC-SHA"])
async def test_a_device_registers_with_every_suite_of_the_reference(
    address: Address, management: Management, suite: bytes
) -> None:
    """int-401: UDP with a pre-shared key."""
    with _client(address, suite) as client:
        await client.handshake()
        assert client.cipher == suite.decode()
        device = _device(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.run)
            assert (await device.register()).code == aiocoap.CREATED
            session = await management.session()
            assert device.requests == SEQUENCE
            device.replies["GET /3/0/9"] = content(TEXT, b"80")
            assert latest(await session.read(LEVEL)) == {LEVEL: 80}
            await device.notify("/3/0", 2, content(TLV, tlv((3, 9, b"\x2a"))))
            await management.wait(lambda: management.values[(3, 0, 9)] == 42)
            nursery.cancel_scope.cancel()


async def test_a_handshake_of_an_unknown_identity_is_refused(address: Address) -> None:
    with _client(address, identity="0" * 32) as client, pytest.raises(SSL.Error, match="unknown psk identity"):
        await client.handshake()


async def test_a_handshake_with_a_wrong_key_gets_no_answer(address: Address, listener: DtlsListener) -> None:
    with _client(address, token="0" * 32) as client:
        assert await client.is_left_without_answer()
        assert (listener.statistics().sessions, listener.statistics().half_open) == (0, 1)


async def test_a_device_with_a_new_address_takes_over(
    address: Address, management: Management, listener: DtlsListener
) -> None:
    with _client(address) as first, _client(address) as second:
        async with trio.open_nursery() as nursery:
            devices = []
            for client in (first, second):
                await client.handshake()
                devices.append(_device(client))
                nursery.start_soon(devices[-1].run)
            await devices[0].register()
            session = await management.session()
            devices[1].location = devices[0].location
            assert (await devices[1].update()).code == aiocoap.CHANGED
            with trio.fail_after(5):
                await devices[0].has_ended.wait()  # close_notify
            await management.session(2)
            devices[1].replies["GET /3/0/9"] = content(TEXT, b"81")
            assert latest(await session.read(LEVEL)) == {LEVEL: 81}
            assert "GET /3/0 observe" in devices[1].requests
            nursery.cancel_scope.cancel()
    assert listener.statistics().sessions == 1


async def test_a_registration_goes_on_over_a_new_session_from_its_address(
    address: Address, management: Management, listener: DtlsListener
) -> None:
    """Wakaama shakes hands again before it answers a request that comes after 40 s of silence, and the answer is lost.
    The request is sent again over the new session, but an Execute is not."""
    reached: list[object] = []

    async def ask(session: ManagedSession) -> None:
        with pytest.raises(SessionLostError):
            await session.execute((3, 0, 4))
        reached.append(latest(await session.read(LEVEL)))

    with _client(address) as client:
        await client.handshake()
        device = _device(client)
        device.replies["POST /3/0/4"] = device.replies["GET /3/0/9"] = lambda _: None
        async with trio.open_nursery() as nursery:
            for what in ("registers", "POST /3/0/4", "GET /3/0/9"):
                async with trio.open_nursery() as listening:
                    listening.start_soon(device.run)
                    if what == "registers":
                        await device.register()
                        session = await management.session()
                        nursery.start_soon(ask, session)
                    else:
                        await device.wait_asked(what)
                    listening.cancel_scope.cancel()
                if what != "registers":
                    client.connect(psk_context(KITCHEN, KITCHEN_TOKEN, PSK))
                    await client.handshake()
            device.replies["GET /3/0/9"] = content(TEXT, b"81")
            nursery.start_soon(device.run)
            with trio.fail_after(5):
                while not reached:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert reached == [{LEVEL: 81}]
            assert device.requests.count("POST /3/0/4") == 1
            await device.notify("/3/0", 3, content(TLV, tlv((3, 9, b"\x2a"))))
            await management.wait(lambda: management.values[(3, 0, 9)] == 42)
            assert (await device.update()).code == aiocoap.CHANGED
            await device.wait_asked("GET /3/0 observe", times=2)  # it may have lost its observations
            nursery.cancel_scope.cancel()
    assert listener.statistics().sessions == 1


async def test_a_device_that_lost_its_session_comes_back(address: Address, management: Management) -> None:
    """int-105, and after a restart of the daemon: the location is unknown: the device registers again."""
    for number in (1, 2):
        with _client(address) as client:
            await client.handshake()
            device = _device(client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(device.run)
                device.location = ("rd", "777")
                assert (await device.update()).code == aiocoap.NOT_FOUND
                assert (await device.register()).code == aiocoap.CREATED
                await management.session(number)
                nursery.cancel_scope.cancel()
    assert [session.is_over for session in management.sessions] == [True, False]


@pytest.fixture
async def certified(listener: DtlsListener, world: object, tmp_path: Path) -> AsyncIterator[Address]:
    """A listener with a certificate."""
    chain = make_certificate(tmp_path, "ecdsa")
    async with trio.open_nursery() as nursery:
        yield await nursery.start(partial(listener.serve, Address("127.0.0.1", 0), chain))
        nursery.cancel_scope.cancel()


class TestCertificates:
    async def test_a_peer_without_one_and_without_a_key_is_refused(self, certified: Address) -> None:
        with dtls_client(certified, client_context(b"ECDHE-ECDSA-AES128-CCM8")) as client:
            await client.handshake()
            device = _device(client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(device.run)
                queries = f"ep={KITCHEN}", f"token={KITCHEN_TOKEN}"  # the token is for TCP
                assert (await device.register(*queries)).code == aiocoap.UNAUTHORIZED
                nursery.cancel_scope.cancel()

    async def test_a_device_with_a_key_still_registers(self, certified: Address) -> None:
        with _client(certified) as client:
            await client.handshake()
            device = _device(client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(device.run)
                assert (await device.register()).code == aiocoap.CREATED
                nursery.cancel_scope.cancel()

    async def test_of_an_ordinary_device_proves_nothing(self, certified: Address, tmp_path: Path) -> None:
        """Anyone can make a certificate for himself."""
        (tmp_path / "own").mkdir()
        certificate, key = make_certificate(tmp_path / "own", "ecdsa")
        context = client_context(b"ECDHE-ECDSA-AES128-CCM8")
        context.use_certificate_file(str(certificate))
        context.use_privatekey_file(str(key))
        with dtls_client(certified, context) as client:
            await client.handshake()
            device = _device(client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(device.run)
                assert (await device.register()).code == aiocoap.UNAUTHORIZED
                nursery.cancel_scope.cancel()
