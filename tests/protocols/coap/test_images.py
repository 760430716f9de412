"""Firmware images by CoAP (reference 18.5, issue 44, 14)."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.device_management.downloads import Downloads
from broker.limits.overhead import TokenBucket
from broker.services import Services
from broker.trace.origin import Origin, enter
from protocols.coap import images
from protocols.coap.blockwise import BlockOption
from protocols.coap.echo import new_guard
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.incoming import MAX_REMEMBERED
from protocols.coap.messages import JSON, OCTETS, CoapMessage, Code, Option, uint
from protocols.coap.session import OVERHEAD_AT_ONCE
from protocols.coap.strangers import SOURCE_AT_ONCE
from tests.factories import HALL
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.firmware import Offered, content_of, offer
from tests.protocols.coap.peers import Peer, option
from tests.rows import each_row

SIZE = 150_000
LARGEST = 6


@pytest.fixture
async def offered(services: Services, endpoint: CoapEndpoint) -> AsyncIterator[Offered]:
    found = await offer(services, content_of(SIZE))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.read_images_forever)
        yield found
        nursery.cancel_scope.cancel()


async def get(
    peer: Peer, path: str, number: int | None = None, exponent: int = LARGEST, *options: tuple[int, bytes]
) -> CoapMessage:
    """Ask for a block. The address proves itself when it is asked to (RFC 9175)."""
    wanted = [] if number is None else [(int(Option.BLOCK2), BlockOption(number, False, exponent).encode())]
    peer.request(Code.GET, path, b"", [*wanted, *options])
    with trio.fail_after(10):
        while not peer.inbox:
            await wait_all_tasks_blocked(0.001)  # the file is read in a thread
    answer = peer.take()
    echo = option(answer, Option.ECHO)
    return answer if echo is None else await get(peer, path, number, exponent, *options, (int(Option.ECHO), echo))


def block_of(answer: CoapMessage) -> BlockOption:
    encoded = option(answer, Option.BLOCK2)
    assert encoded is not None
    return BlockOption.decode(encoded)


async def fetch(peer: Peer, path: str, kept: bytes = b"", exponent: int = LARGEST, *, blocks: int = 10_000) -> bytes:
    """Go on with the kept state, for a number of blocks."""
    size = 16 << exponent
    while blocks:
        blocks -= 1
        answer = await get(peer, path, len(kept) // size, exponent)
        assert answer.code == Code.CONTENT
        kept += answer.payload
        if not block_of(answer).more:
            break
    return kept


async def test_an_image_comes_in_blocks(offered: Offered, peer: Peer, services: Services) -> None:
    assert offered.url.startswith("coap://localhost:5683/v1.1/updates/urls/")
    first = await get(peer, offered.path)  # without an option, the largest blocks
    assert (first.code, len(first.payload), block_of(first)) == (Code.CONTENT, 1024, BlockOption(0, True, LARGEST))
    assert option(first, Option.SIZE2) == uint(SIZE)
    assert option(first, Option.CONTENT_FORMAT) == uint(OCTETS)
    assert option(first, Option.ETAG) == hashlib.sha256(offered.content).digest()[:8]
    assert await fetch(peer, offered.path, first.payload) == offered.content
    entry = await services.device_management.tasks.entry_of(offered.task.record, offered.device)
    assert services.device_management.downloads.fetched(entry) == SIZE


@each_row("exponent", [0, 2, 5])
async def test_blocks_of_the_size_that_the_device_takes(offered: Offered, peer: Peer, exponent: int) -> None:
    kept = await fetch(peer, offered.path, exponent=exponent, blocks=5)
    assert kept == offered.content[: 5 * (16 << exponent)]


async def test_a_download_that_stops_goes_on_from_another_address(
    offered: Offered, endpoint: CoapEndpoint, peer: Peer, services: Services
) -> None:
    kept = await fetch(peer, offered.path, blocks=100)
    await services.device_management.downloads.flush()
    endpoint.close(peer.session())
    again = Peer(endpoint, ("192.0.2.9", 1))
    before = services.device_management.downloads.statistics().bytes_sent
    assert await fetch(again, offered.path, kept) == offered.content
    assert services.device_management.downloads.statistics().bytes_sent - before <= SIZE - 100 * 1024 + 16 * 1024


@pytest.mark.parametrize(
    ("connected_from", "fetches_from", "is_trusted"),
    [
        (Origin("192.0.2.7"), "192.0.2.7", True),
        (Origin("::ffff:192.0.2.7"), "192.0.2.7", True),
        (Origin("2001:db8::1"), "2001:db8::2", True),
        (Origin("192.0.2.8"), "192.0.2.7", False),
        (Origin("192.0.2.7", is_forgeable=True), "192.0.2.7", False),
        (Origin(""), "", False),
        (None, "192.0.2.7", False),
    ],
)
async def test_the_address_of_a_connection_of_the_device_is_not_asked_to_prove_itself(
    offered: Offered,
    endpoint: CoapEndpoint,
    services: Services,
    connected_from: Origin | None,
    fetches_from: str,
    is_trusted: bool,
) -> None:
    """Anjay 3.14 ends its download at 4.01 with Echo. Its request: no Block2, a token of 8 bytes."""
    peer = Peer(endpoint, (fetches_from, 5000))
    with ExitStack() as connected:
        if connected_from is not None:
            enter(connected_from)
            link = services.routing.connections.connect(
                offered.device, protocol="LWM2M", token=b"", exclusive=False, deliver=None, close=lambda _: None
            )
            connected.enter_context(link)
        peer.request(Code.GET, offered.path, b"", [])
        with trio.fail_after(10):
            while not peer.inbox:
                await wait_all_tasks_blocked(0.001)
        answer = peer.take()
    if is_trusted:
        assert (answer.code, len(answer.payload)) == (Code.CONTENT, 1024)
    else:
        assert (answer.code, answer.payload) == (Code.UNAUTHORIZED, b"")
        assert option(answer, Option.ECHO)


@each_row(("comes_from", "is_trusted"), [("192.0.2.1", True), ("192.0.2.2", False)])
async def test_an_address_that_was_proved_is_known_after_a_restart(
    offered: Offered, peer: Peer, services: Services, comes_from: str, is_trusted: bool
) -> None:
    """Anjay asks for its next block before it has registered again, and ends its download at 4.01 with Echo."""
    downloads = services.device_management.downloads
    await fetch(peer, offered.path, blocks=3)
    await downloads.flush()
    restarted = CoapEndpoint(services, guard=new_guard())
    restarted_downloads = Downloads(services.core.database, services.core.clock, services.core.router)
    restarted._resources.images._downloads = restarted_downloads
    async with trio.open_nursery() as nursery:
        nursery.start_soon(restarted.read_images_forever)
        again = Peer(restarted, (comes_from, 4711))
        again.request(Code.GET, offered.path, b"", [(int(Option.BLOCK2), BlockOption(3, False, LARGEST).encode())])
        with trio.fail_after(10):
            while not again.inbox:
                await wait_all_tasks_blocked(0.001)
        nursery.cancel_scope.cancel()
    answer = again.take()
    assert (answer.code == Code.CONTENT) is is_trusted
    assert answer.payload == (offered.content[3 * 1024 : 4 * 1024] if is_trusted else b"")


async def test_a_connection_of_another_device_proves_nothing(offered: Offered, peer: Peer, services: Services) -> None:
    enter(Origin("192.0.2.1"))  # the peer's address
    other = await services.devices.registry.find(HALL)
    link = services.routing.connections.connect(
        other, protocol="LWM2M", token=b"", exclusive=False, deliver=None, close=lambda _: None
    )
    with link:
        peer.request(Code.GET, offered.path, b"", [])
        with trio.fail_after(10):
            while not peer.inbox:
                await wait_all_tasks_blocked(0.001)
    assert peer.take().code == Code.UNAUTHORIZED


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, images.CHUNK_BYTES, images.CHUNK_BYTES + 1])
async def test_images_that_end_at_the_edge_of_a_block(
    services: Services, endpoint: CoapEndpoint, peer: Peer, size: int
) -> None:
    offered = await offer(services, content_of(size))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.read_images_forever)
        assert await fetch(peer, offered.path) == offered.content
        beyond = await get(peer, offered.path, size // 1024 + 1)
        assert beyond.code == 0x80
        nursery.cancel_scope.cancel()


async def test_refusals(offered: Offered, peer: Peer) -> None:
    assert (await get(peer, "v1.1/updates/urls/0123456789")).code == 0x84
    assert (await get(peer, offered.path, (1 << 20) - 1)).code == 0x80
    assert (await get(peer, offered.path, None, LARGEST, (int(Option.ACCEPT), uint(JSON)))).code == 0x86
    peer.request(Code.POST, offered.path, b"x")
    await wait_all_tasks_blocked()
    assert peer.take().code == 0x85


async def test_an_image_that_is_deleted_meanwhile_is_gone(
    offered: Offered, peer: Peer, services: Services, time: Time
) -> None:
    await fetch(peer, offered.path, blocks=3)
    image = await services.device_management.images.find(offered.device.type, offered.task.request.update_id or "")
    await services.device_management.images.remove(image)
    time.now += 6
    assert (await get(peer, offered.path, 3)).code == 0x84


async def test_a_download_is_neither_a_stranger_nor_overhead_and_holds_no_answers(
    offered: Offered, endpoint: CoapEndpoint, peer: Peer
) -> None:
    """None of a thousand blocks is dropped, and a duplicate is answered again."""
    blocks = SOURCE_AT_ONCE + OVERHEAD_AT_ONCE + MAX_REMEMBERED
    await fetch(peer, offered.path, exponent=3, blocks=blocks)
    statistics = endpoint.statistics()
    assert (statistics.strangers_dropped, statistics.overhead_dropped, statistics.requests_dropped) == (0, 0, 0)
    assert peer.session().message_layer.bytes_held < MAX_REMEMBERED * 400
    peer.request(Code.GET, offered.path, b"", [(int(Option.BLOCK2), uint(7 << 4 | 3))], message_id=60_000)
    await wait_all_tasks_blocked()
    first = peer.take()
    peer.request(Code.GET, offered.path, b"", [(int(Option.BLOCK2), uint(7 << 4 | 3))], message_id=60_000)
    await wait_all_tasks_blocked()
    assert peer.take() == first


@pytest.mark.parametrize("bound", ["of one", "of all"])
async def test_a_peer_that_takes_more_than_its_share_is_slowed(
    offered: Offered, endpoint: CoapEndpoint, peer: Peer, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    if bound == "of one":
        monkeypatch.setattr(images, "_BLOCKS_AT_ONCE", 10)
    else:
        endpoint._resources.images._together = TokenBucket(at_once=10, per_second=1)
    await fetch(peer, offered.path, exponent=3, blocks=10 + OVERHEAD_AT_ONCE - 1)  # one was a challenge
    peer.request(Code.GET, offered.path)
    await wait_all_tasks_blocked()
    assert (peer.inbox, endpoint.statistics().overhead_dropped) == ([], 1)


async def test_the_bytes_in_memory_are_bounded(
    offered: Offered, endpoint: CoapEndpoint, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_CHUNKS", 1)
    assert await fetch(peer, offered.path) == offered.content
    assert len(endpoint._resources.images._chunks) == 1
