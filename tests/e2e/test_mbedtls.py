"""mbedTLS, which most constrained devices have: DTLS with a pre-shared key (reference 17 and 18.1)."""

import platform
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pytest
import trio

from broker.services import Services
from config.settings import Address
from protocols.coap.dtls.connection import LWM2M_PRIORITIES
from protocols.coap.dtls.listener import DtlsListener
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.server import Lwm2mServer
from protocols.coap.messages import CON, LINK_FORMAT, CoapMessage, Code, Option, decode_message, uint
from tests.factories import HALL_TOKEN, KITCHEN, KITCHEN_TOKEN
from tests.programs import require_dtls, skip_without
from tests.protocols.coap.dtls.client import observe, post
from tests.protocols.coap.lwm2m.conftest import Management
from tests.protocols.coap.peers import encode_message

try:
    from mbedtls import tls
    from mbedtls.exceptions import TLSError
except ImportError:
    if sys.version_info >= (3, 13) or platform.machine() != "x86_64":
        pytest.skip("python-mbedtls has no wheel for this Python", allow_module_level=True)
    skip_without("python-mbedtls")

T = TypeVar("T")
ANYWHERE = Address("127.0.0.1", 0)
PATIENCE_SECONDS = 10
#: How long the client with the wrong key waits for an answer to its Finished.
SILENCE_SECONDS = 1
#: The suites of RFC 7925, RFC 7252 and LWM2M.
CIPHERS = [f"TLS-PSK-WITH-AES-128-{kind}" for kind in ("CCM-8", "CCM", "GCM-SHA256", "CBC-SHA256")]
CIPHERS += ["TLS-ECDHE-PSK-WITH-AES-128-CBC-SHA256"]


@dataclass(frozen=True, slots=True)
class Listening:
    services: Services
    coap: DtlsListener
    coaps: Address
    lwm2m: Address


@pytest.fixture
async def listening(services: Services, world: object) -> AsyncIterator[Listening]:
    require_dtls()
    server = Lwm2mServer(services, Management())
    coap = DtlsListener(services)
    lwm2m = DtlsListener(services, endpoint=Lwm2mEndpoint(server), priorities=LWM2M_PRIORITIES)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        coaps = await nursery.start(partial(coap.serve, ANYWHERE, None))
        yield Listening(services, coap, coaps, await nursery.start(partial(lwm2m.serve, ANYWHERE, None)))
        nursery.cancel_scope.cancel()


def ask(address: Address, identity: str, key: str, requests: list[CoapMessage], cipher: str = CIPHERS[0]) -> list[Any]:
    """The cipher that was agreed upon, and the answers to requests. Runs in a thread."""
    configuration = tls.DTLSConfiguration(
        pre_shared_key=(identity, bytes.fromhex(key)),
        ciphers=(cipher,),
        validate_certificates=False,
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE_SECONDS if key == KITCHEN_TOKEN else SILENCE_SECONDS)
        client = tls.ClientContext(configuration).wrap_socket(sock, None)
        client.connect((address.host, address.port))
        until_done(client.do_handshake)
        answers = []
        for request in requests:
            until_done(partial(client.send, encode_message(request)))
            answers.append(decode_message(until_done(partial(client.recv, 4096))))
        return [client.cipher(), *answers]


def until_done(step: Callable[[], T]) -> T:
    while True:
        try:
            return step()
        except (tls.WantReadError, tls.WantWriteError):
            continue


async def asked(*arguments: Any) -> list[Any]:
    with trio.fail_after(2 * PATIENCE_SECONDS):
        return await trio.to_thread.run_sync(ask, *arguments, abandon_on_cancel=True)


@pytest.mark.parametrize("cipher", CIPHERS)
async def test_sends_and_asks_over_coap(listening: Listening, cipher: str) -> None:
    agreed, sent, read = await asked(listening.coaps, KITCHEN, KITCHEN_TOKEN, [post(1), observe(2)], cipher)
    assert (agreed, sent.code, read.code) == (cipher, Code.CREATED, Code.CONTENT)


@pytest.mark.parametrize("cipher", CIPHERS)
async def test_registers_as_an_lwm2m_device(listening: Listening, cipher: str) -> None:
    queries = [(int(Option.URI_QUERY), query) for query in (f"ep={KITCHEN}".encode(), b"lt=60", b"lwm2m=1.1")]
    options = ((int(Option.URI_PATH), b"rd"), (int(Option.CONTENT_FORMAT), uint(LINK_FORMAT)), *queries)
    register = CoapMessage(CON, Code.POST, 1, b"t", options, b"</1/0>,</3/0>")
    agreed, answer = await asked(listening.lwm2m, KITCHEN, KITCHEN_TOKEN, [register], cipher)
    assert (agreed, answer.code) == (cipher, Code.CREATED)


async def test_an_unknown_identity_gets_an_alert(listening: Listening) -> None:
    with pytest.raises(TLSError, match=r"(?i)fatal alert"):
        await asked(listening.coaps, "f" * 32, KITCHEN_TOKEN, [])
    assert listening.coap.statistics().handshakes_failed == 1


async def test_a_wrong_key_gets_no_answer(listening: Listening) -> None:
    with pytest.raises(TimeoutError):
        await asked(listening.coaps, KITCHEN, HALL_TOKEN, [])
    assert (listening.coap.statistics().sessions, listening.coap.statistics().half_open) == (0, 1)
    _, answer = await asked(listening.coaps, KITCHEN, KITCHEN_TOKEN, [post(1)])
    assert answer.code == Code.CREATED
