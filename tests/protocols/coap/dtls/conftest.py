"""A DTLS listener on a real socket, and a client for it."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from OpenSSL import SSL

from broker.services import Services
from broker.threads import RunInThread
from config.settings import Address
from protocols.coap.dtls.listener import DtlsListener, serve_coap_dtls
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.session import SessionLimits
from tests.factories import World
from tests.fakes import run_inline
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.dtls.client import ECDSA, HALF_OPEN, DtlsClient, client_context, dtls_client, make_certificate


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("certificates")
    return {kind: make_certificate(folder, kind) for kind in ("ecdsa", "rsa")}


@pytest.fixture
def kind() -> str:
    return "ecdsa"


@pytest.fixture
def run() -> RunInThread:
    return run_inline


@pytest.fixture
async def listener(services: Services, time: Time, run: RunInThread) -> DtlsListener:
    begin = time.now
    endpoint = CoapEndpoint(services, now=lambda: trio.current_time() + time.now - begin)  # as fast as it is, or faster
    limits = SessionLimits(half_open_handshakes=HALF_OPEN)
    return DtlsListener(services, endpoint=endpoint, limits=limits, run=run)


@pytest.fixture
async def address(
    services: Services,
    world: World,
    listener: DtlsListener,
    certificates: dict[str, tuple[Path, Path]],
    kind: str,
) -> AsyncIterator[Address]:
    serve = partial(serve_coap_dtls, services, Address("127.0.0.1", 0), *certificates[kind], listener=listener)
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve)
        nursery.cancel_scope.cancel()


@pytest.fixture
def context() -> SSL.Context:
    return client_context(ECDSA)


@pytest.fixture
def client(address: Address, context: SSL.Context) -> Iterator[DtlsClient]:
    with dtls_client(address, context) as client:
        yield client
