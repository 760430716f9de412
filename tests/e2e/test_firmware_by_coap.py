"""libcoap's clients fetch a firmware image by coap:// and coaps:// (reference 18.5, issue 44, 14)."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trio

from broker.services import Services
from config.settings import Address
from protocols.coap.dtls.listener import DtlsListener
from protocols.coap.echo import new_guard
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.server import serve_coap
from tests.benchmarks.coap_server import add_devices
from tests.daemon import device_id
from tests.e2e.coap_programs import KEY, run_program
from tests.programs import require_dtls, require_program
from tests.protocols.coap.firmware import Offered, content_of, offer

SIZE = 256 * 1024 + 5
#: The rate that issue 44 requires, in bytes a second.
RATE = 64 * 1024
ANYWHERE = Address("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class Listening:
    services: Services
    plain: Address
    dtls: Address

    async def offer(self, protocol: str) -> Offered:
        return await offer(
            self.services, content_of(SIZE), protocol, listens=self.plain if protocol == "coap" else self.dtls
        )


@pytest.fixture
async def listening(services: Services, world: object) -> AsyncIterator[Listening]:
    require_dtls()
    await services.core.database.write(lambda tx: add_devices(tx, services.core.vault, 1, KEY.encode().hex()))
    listener, endpoint = DtlsListener(services), CoapEndpoint(services, guard=new_guard())
    async with trio.open_nursery() as nursery:
        plain = await nursery.start(partial(serve_coap, services, ANYWHERE, endpoint=endpoint))
        dtls = await nursery.start(partial(listener.serve, ANYWHERE, None))
        yield Listening(services, plain, dtls)
        nursery.cancel_scope.cancel()


async def fetch(program: str, url: str, target: Path, *arguments: str) -> float:
    """Run a client. Returns how long it took."""
    url = url.replace("localhost", "127.0.0.1")
    begin = time.monotonic()
    said = await trio.to_thread.run_sync(
        partial(run_program, require_program(program), "-m", "get", "-o", target, *arguments, url)
    )
    assert "4." not in said, said
    return time.monotonic() - begin


class TestLibcoap:
    async def test_fetches_an_image(self, listening: Listening, tmp_path: Path) -> None:
        offered = await listening.offer("coap")
        seconds = await fetch("coap-client-notls", offered.url, tmp_path / "image", "-b", "1024")
        assert (tmp_path / "image").read_bytes() == offered.content
        assert SIZE / seconds > RATE, f"{SIZE / seconds / 1024:.0f} KiB/s"

    @pytest.mark.parametrize("program", ["coap-client-openssl", "coap-client-gnutls"])
    async def test_fetches_an_image_over_dtls(self, listening: Listening, tmp_path: Path, program: str) -> None:
        offered = await listening.offer("coaps")
        key = ("-u", device_id(0), "-k", KEY)
        seconds = await fetch(program, offered.url, tmp_path / "image", *key, "-b", "1024")
        assert (tmp_path / "image").read_bytes() == offered.content
        assert SIZE / seconds > RATE, f"{SIZE / seconds / 1024:.0f} KiB/s"

    async def test_gets_the_block_that_it_lacks(self, listening: Listening, tmp_path: Path) -> None:
        """The option -b of the client asks for one block, in a session that has fetched none before."""
        offered = await listening.offer("coaps")
        key = ("-u", device_id(0), "-k", KEY)
        await fetch("coap-client-openssl", offered.url, tmp_path / "block", *key, "-b", "200,1024")
        assert (tmp_path / "block").read_bytes() == offered.content[200 * 1024 : 201 * 1024]
