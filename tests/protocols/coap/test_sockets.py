"""Listeners on the unspecified address answer from the address that was asked: a connected socket takes no other."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio

from broker.services import Services
from config.settings import Address
from protocols.coap.dtls.listener import serve_coap_dtls
from protocols.coap.messages import ACK, CON, CoapMessage, Code, Option, decode_message
from protocols.coap.server import serve_coap
from tests.factories import KITCHEN_TOKEN, World
from tests.programs import require_dtls
from tests.protocols.coap.dtls.client import client_context, dtls_client, make_certificate
from tests.protocols.coap.peers import encode_message
from tests.rows import each_row

PATH = tuple((int(Option.URI_PATH), one) for one in (b"v1.1", b"messages", KITCHEN_TOKEN.encode()))
POST = CoapMessage(CON, Code.POST, 1, b"t", PATH, b'{"data":{"state":true}}')


@pytest.fixture
def bind() -> str:
    return "0.0.0.0"  # noqa: S104 - what is tested


@pytest.fixture
async def port(services: Services, world: World, bind: str) -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve_coap, services, Address(bind, 0))
        yield address.port
        nursery.cancel_scope.cancel()


async def _asked(host: str, port: int, message: CoapMessage) -> CoapMessage:
    family = trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET
    with trio.socket.socket(family, trio.socket.SOCK_DGRAM) as sock:
        await sock.connect((host, port))
        await sock.send(encode_message(message))
        with trio.fail_after(5):
            return decode_message(await sock.recv(2048))


@pytest.mark.parametrize(
    ("bind", "host"),
    [
        ("0.0.0.0", "127.0.0.1"),  # noqa: S104
        ("0.0.0.0", "127.0.0.2"),  # noqa: S104
        ("::", "::1"),
        ("*", "127.0.0.2"),
        ("*", "::1"),
        ("127.0.0.2", "127.0.0.2"),
        ("::1", "::1"),
    ],
)
async def test_plain(port: int, host: str) -> None:
    answer = await _asked(host, port, POST)
    assert (answer.type, answer.code) == (ACK, Code.CREATED)


async def test_a_client_that_asks_two_local_addresses_is_two_peers(port: int, services: Services) -> None:
    """A message is a duplicate only when it was sent to the same address (RFC 7252, 4.4)."""
    with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
        for host in ("127.0.0.1", "127.0.0.2", "127.0.0.2"):
            await sock.sendto(encode_message(POST), (host, port))
            with trio.fail_after(5):
                datagram, sender = await sock.recvfrom(2048)
            assert (sender, decode_message(datagram).code) == ((host, port), Code.CREATED)
    assert services.messages.ingest.statistics().messages == 2


async def test_the_same_client_at_two_sockets_is_two_peers(services: Services, world: World) -> None:
    listed = Address("127.0.0.1", 0, (Address("127.0.0.2", 0), Address("*", 0)))
    async with trio.open_nursery() as nursery:
        first, second, *both = (await nursery.start(serve_coap, services, listed)).all
        everywhere = [Address(host, both[0].port) for host in ("127.0.0.1", "127.0.0.3")]
        with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
            for asked in (first, second, *everywhere, second):
                await sock.sendto(encode_message(POST), (asked.host, asked.port))
                with trio.fail_after(5):
                    datagram, sender = await sock.recvfrom(2048)
                assert (sender, decode_message(datagram).code) == ((asked.host, asked.port), Code.CREATED)
        assert services.messages.ingest.statistics().messages == 4
        nursery.cancel_scope.cancel()


@each_row(
    ("bind", "host"),
    [("0.0.0.0", "127.0.0.1"), ("0.0.0.0", "127.0.0.2"), ("*", "127.0.0.2"), ("*", "::1")],  # noqa: S104
)
async def test_dtls(services: Services, world: World, bind: str, tmp_path: Path, host: str) -> None:
    require_dtls()
    serve = partial(serve_coap_dtls, services, Address(bind, 0), *make_certificate(tmp_path, "ecdsa"))
    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve)
        with dtls_client(Address(host, address.port), client_context(b"ECDHE-ECDSA-AES128-CCM8")) as client:
            await client.handshake()
            assert (await client.ask(POST)).code == Code.CREATED
        nursery.cancel_scope.cancel()
