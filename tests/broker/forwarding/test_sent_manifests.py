"""Device types that the upstream does not know: their Manifests come in requests of bounded size (reference 30.3)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from trio.testing import MockClock

from broker.device_types.making import TypeChanges
from broker.devices.inventory import NewDevice
from broker.forwarding.edge_book import NewEdge
from broker.forwarding.sent_manifests import packed
from broker.forwarding.wire import ForwardAsked, SentType
from broker.services import Services
from config.limits import FORWARD_BODY_BYTES
from storage.transaction import Transaction
from tests.broker.forwarding.conftest import Two
from tests.factories import LIGHT_MANIFEST

pytestmark = pytest.mark.slow


def _pad(values: Mapping[str, Any], tx: Transaction) -> None:
    tx.connection.execute("UPDATE manifest SET document = :text WHERE device_type = :type", values)


async def make_devices(two: Two, sizes: Mapping[str, int]) -> list[str]:
    """Make a type with a Manifest of each size at the edge, and a device of it."""
    edge, owner = two.edge, (await two.edge.devices.registry.get(two.world.kitchen)).owner
    organization = await edge.core.database.read(lambda tx: tx.accounts.organization_named("Acme"))
    assert organization is not None
    found = []
    for name, size in sizes.items():
        record = await edge.device_types.making.add(organization, name, name.title(), TypeChanges())
        await edge.device_types.making.upload(await edge.device_types.catalog.get(record.key), LIGHT_MANIFEST)
        text = msgspec.json.encode(LIGHT_MANIFEST).decode().ljust(size)  # spaces at its end are JSON
        padded = partial(_pad, {"text": text, "type": record.key})
        await edge.core.database.write(padded)
        type_ = await edge.device_types.catalog.get(record.key)
        found.append((await edge.devices.inventory.create(NewDevice(owner=owner, type=type_))).id)
    return found


async def send_at_once(two: Two, devices: Sequence[str]) -> None:
    """Store 0, 1, 2, … of these devices in one commit."""
    found = [await two.edge.devices.registry.find(device) for device in devices]
    for value, device in enumerate(found):
        two.edge.messages.ingest.submit(device, b'{"intensity":%d}' % value)
    await two.edge.messages.ingest.wait_committed()


async def types_of_centre(centre: Services) -> set[str]:
    def read(tx: Any) -> set[str]:
        sql = "SELECT unique_name FROM device_type WHERE unique_name LIKE 'acme.%' ESCAPE '!'"
        return {row["unique_name"] for row in tx.connection.execute(sql)}

    return await centre.core.database.read(read)


async def bring_types(two: Two) -> None:
    """Give the edge a token with which it may bring its types."""
    _, two.line.token = await two.centre.forwarding.book.add(NewEdge("cellar", "ada@example.org", "Acme", 9))
    await two.settled()


@pytest.mark.both_engines
async def test_many_manifests_come_in_several_requests(two: Two, autojump_clock: MockClock) -> None:
    sizes = {f"acme.t{number}": 400_000 for number in range(3)}
    await bring_types(two)
    await send_at_once(two, await make_devices(two, sizes))
    await two.sent_on(75)
    assert await two.at_centre() == Counter(range(3))
    assert await types_of_centre(two.centre) == sizes.keys()
    brought = [len(one.types) for one in two.line.asked if one.types]
    assert brought == [2, 1]
    assert (two.status.problem, two.status.state) == ("", "sends")


@pytest.mark.both_engines
async def test_a_manifest_that_is_too_large_alone_does_not_stop_the_rest(two: Two, autojump_clock: MockClock) -> None:
    await bring_types(two)
    small, large = await make_devices(two, {"acme.small": 1_000, "acme.large": FORWARD_BODY_BYTES})
    await send_at_once(two, [large, small, large, small])
    await two.sent_on(75)
    assert await two.at_centre() == Counter([1, 3])
    status = two.status
    assert (status.state, status.sent, status.behind) == ("sends", 2, 0)
    assert status.problem.startswith("The Manifest of acme.large is too large to be sent (more than 1024 KiB): 2 mess")
    organization = await two.centre.core.database.read(lambda tx: tx.accounts.organization_named("Acme"))
    assert organization is not None
    making, catalog = two.centre.device_types.making, two.centre.device_types.catalog
    record = await making.add(organization, "acme.large", "Large", TypeChanges())
    await making.upload(await catalog.get(record.key), LIGHT_MANIFEST)
    await two.settled(600)
    await two.send(4, device=large)
    await two.settled()
    assert await two.at_centre() == Counter([1, 3, 4])
    assert two.status.problem == "", "it is over"


@pytest.mark.parametrize("size", [10, FORWARD_BODY_BYTES // 3, FORWARD_BODY_BYTES - 200])
def test_no_request_is_larger_than_a_body(size: int) -> None:
    types = {f"acme.t{number}": SentType("T", "\\" * (size // 2)) for number in range(7)}  # each sign takes two bytes
    requests, too_large = packed("5" * 32, types)
    assert too_large == {}
    assert [name for one in requests for name in one.types or ()] == list(types)
    assert all(len(msgspec.json.encode(one)) <= FORWARD_BODY_BYTES for one in requests)
    assert all(msgspec.json.decode(msgspec.json.encode(one), type=ForwardAsked) == one for one in requests)
    assert packed("5" * 32, {"acme.t": SentType("T", "x" * FORWARD_BODY_BYTES)})[1].keys() == {"acme.t"}
