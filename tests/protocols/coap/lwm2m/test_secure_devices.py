"""Securely registered devices (reference 7.1) over DTLS and TLS: int-402, and TLS by a certificate as in int-404."""

import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import aiocoap
import pytest
import trio

from broker.devices.inventory import DeviceChanges
from broker.devices.registry import Device
from broker.services import Services
from config.settings import Address
from protocols.coap.dtls.listener import DtlsListener
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.server import Lwm2mServer
from protocols.coap.lwm2m.streams import serve_lwm2m_tcp
from protocols.streams.tls import PeerContext
from tests.certificates import DAY, Authority, Issued
from tests.factories import ADA_TOKEN, KITCHEN, KITCHEN_TOKEN, World
from tests.fakes import run_inline
from tests.programs import require_dtls
from tests.protocols.coap.dtls.client import client_context, dtls_client, is_resumed, left, make_certificate
from tests.protocols.coap.lwm2m.conftest import Management
from tests.protocols.coap.lwm2m.device import TLV, DtlsTransport, ScriptedDevice, StreamTransport, Transport, content
from tests.protocols.coap.lwm2m.test_formats import EXAMPLE, EXAMPLE_TLV
from tests.rows import each_row
from tests.secure_types import NOW, SECURE_TYPE, provision_secure_type


@pytest.fixture
def authority() -> Authority:
    return Authority(now=NOW)


@pytest.fixture
def issued(authority: Authority) -> Issued:
    return authority.issue(ends=30 * DAY)


@pytest.fixture
async def board(services: Services, world: World, authority: Authority, issued: Issued) -> Device:
    """A device that is registered with the certificate."""
    await provision_secure_type(services, authority)
    ada = await services.accounts.tokens.caller(ADA_TOKEN)
    registrations = services.registration.registrations
    begun = await registrations.begin(issued.shown, SECURE_TYPE, "vendor-1")
    await registrations.confirm_new(ada, begun.pin, owner=world.ada, name="Board")
    completed = await registrations.complete(issued.shown, begun.id, begun.nonce)
    return await services.devices.registry.find(completed.device_id)


@pytest.fixture
async def server(services: Services, management: Management) -> AsyncIterator[Lwm2mServer]:
    server = Lwm2mServer(services, management, pause_seconds=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


@pytest.fixture
async def dtls(services: Services, server: Lwm2mServer, tmp_path: Path) -> AsyncIterator[Address]:
    require_dtls()
    listener = DtlsListener(services, endpoint=Lwm2mEndpoint(server), run=run_inline)
    async with trio.open_nursery() as nursery:
        chain = make_certificate(tmp_path, "ecdsa")
        yield await nursery.start(partial(listener.serve, Address("127.0.0.1", 0), chain))
        nursery.cancel_scope.cancel()


@pytest.fixture
async def tls(server: Lwm2mServer, tmp_path: Path) -> AsyncIterator[Address]:
    context = PeerContext(*make_certificate(tmp_path, "ecdsa"), required=False)
    async with trio.open_nursery() as connections, trio.open_nursery() as nursery:
        serve = partial(serve_lwm2m_tcp, server, connections=connections, ssl_context=context)
        yield await nursery.start(serve, Address("127.0.0.1", 0))
        nursery.cancel_scope.cancel()
        connections.cancel_scope.cancel()


async def _over_tls(address: Address, shown: Issued | None, folder: Path) -> StreamTransport:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if shown is not None:
        context.load_cert_chain(*shown.files(folder, "device"))
    stream = trio.SSLStream(
        await trio.open_tcp_stream(address.host, address.port), context, server_hostname="localhost"
    )
    await stream.do_handshake()
    return StreamTransport(stream)


async def _register(transport: Transport, *queries: str) -> aiocoap.Message:
    device = ScriptedDevice(transport, KITCHEN)
    device.replies["GET /3/0"] = content(TLV, EXAMPLE_TLV)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.run)
        answer = await device.register(*queries)
        if answer.code == aiocoap.CREATED:
            await device.wait_asked("GET /5/0")
        nursery.cancel_scope.cancel()
    return answer


async def test_over_dtls_without_a_token(
    dtls: Address, board: Device, issued: Issued, management: Management, tmp_path: Path
) -> None:
    """int-402: UDP with a certificate."""
    context = client_context(b"ECDHE-ECDSA-AES128-CCM8")
    chain, key = issued.files(tmp_path, "device")
    context.use_certificate_chain_file(str(chain))
    context.use_privatekey_file(str(key))
    with dtls_client(dtls, context) as client:
        await client.handshake()
        assert (await _register(DtlsTransport(client), f"ep={board.id}")).code == aiocoap.CREATED
    assert management.values == EXAMPLE
    assert management.sessions[0].device is board


@pytest.mark.parametrize("change", ["nothing", "authority", "disabled", "deleted"])
async def test_a_resumed_session_over_dtls_has_the_rights_of_now(
    services: Services, dtls: Address, board: Device, issued: Issued, tmp_path: Path, change: str
) -> None:
    """A resumed session has the certificate of the first handshake, which is checked again."""
    context = client_context(b"ECDHE-ECDSA-AES128-CCM8")
    chain, key = issued.files(tmp_path, "device")
    context.use_certificate_chain_file(str(chain))
    context.use_privatekey_file(str(key))
    with dtls_client(dtls, context) as client:
        await client.handshake()
        assert (await _register(DtlsTransport(client), f"ep={board.id}")).code == aiocoap.CREATED
        session = await left(client)
    if change == "authority":
        await provision_secure_type(services, Authority("another", now=NOW))
    elif change == "disabled":
        await services.devices.inventory.change(board, DeviceChanges(enabled=False))
    elif change == "deleted":
        await services.devices.inventory.delete(board)
    with dtls_client(dtls, context) as client:
        client.session.set_session(session)
        await client.handshake()
        assert is_resumed(client)
        code = (await _register(DtlsTransport(client), f"ep={board.id}")).code
    assert (
        code
        == {
            "nothing": aiocoap.CREATED,
            "authority": aiocoap.FORBIDDEN,
            "disabled": aiocoap.FORBIDDEN,
            "deleted": aiocoap.UNAUTHORIZED,
        }[change]
    )


@each_row("whose", ["nobody's", "another's"])
async def test_over_dtls_with_another_certificate(
    dtls: Address, board: Device, authority: Authority, tmp_path: Path, whose: str
) -> None:
    context = client_context(b"ECDHE-ECDSA-AES128-CCM8")
    if whose == "another's":
        chain, key = authority.issue(ends=30 * DAY).files(tmp_path, "other")
        context.use_certificate_chain_file(str(chain))
        context.use_privatekey_file(str(key))
    with dtls_client(dtls, context) as client:
        await client.handshake()
        code = (await _register(DtlsTransport(client), f"ep={board.id}")).code
    assert code == (aiocoap.FORBIDDEN if whose == "another's" else aiocoap.UNAUTHORIZED)


async def test_over_tls_without_a_token(
    tls: Address, board: Device, issued: Issued, management: Management, tmp_path: Path
) -> None:
    """int-404 without the bootstrap server: TCP with a certificate."""
    transport = await _over_tls(tls, issued, tmp_path)
    assert (await _register(transport, f"ep={board.id}", "b=T")).code == aiocoap.CREATED
    assert management.values == EXAMPLE
    await trio.aclose_forcefully(transport.stream)


async def test_over_tls_a_token_alone_does_not_do(
    tls: Address, services: Services, board: Device, tmp_path: Path
) -> None:
    token = await services.core.database.read(lambda tx: tx.devices.token_of(board.key))
    assert token is not None
    transport = await _over_tls(tls, None, tmp_path)
    answer = await _register(transport, f"ep={board.id}", f"token={services.core.vault.open(token.sealed)}")
    assert answer.code == aiocoap.FORBIDDEN
    await trio.aclose_forcefully(transport.stream)


async def test_over_tls_an_ordinary_device_needs_its_token_only(
    tls: Address, services: Services, board: Device, tmp_path: Path
) -> None:
    assert board.type.record.rsp
    transport = await _over_tls(tls, None, tmp_path)
    strangers = services.limits.strangers
    assert strangers.statistics().connections == 1
    assert (await _register(transport, f"ep={KITCHEN}", f"token={KITCHEN_TOKEN}")).code == aiocoap.CREATED
    assert strangers.statistics().connections == 0  # reference 21.6
    await trio.aclose_forcefully(transport.stream)
