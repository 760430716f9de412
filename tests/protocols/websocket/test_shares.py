"""Shares on open connections: they take effect with the acceptance and the removal, not with the next ping."""

import json

import pytest
import trio

from broker.devices.inventory import DeviceChanges
from broker.devices.shares import ShareStatus
from broker.facts import AvailabilityChanged
from broker.services import Services
from config.limits import PING_SECONDS
from storage.records import GrantRecord
from tests.factories import (
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    NOW_MS,
    World,
    allow,
)
from tests.protocols.websocket.peers import Peers, ask, closing, register, said
from tests.protocols.websocket.test_feeds import live, store
from tests.protocols.websocket.test_server import ACTION, WITH_ACK, error

FORBIDDEN = "You do not have the right permission: devices"


async def share(services: Services, world: World, device_id: str = KITCHEN) -> str:
    """Ada's device is shared with Bob; the id of the share."""
    device = await services.devices.registry.find(device_id)
    offered = await services.devices.shares.offer(device, email="bob@example.org")
    return (await services.devices.shares.answer(offered.id, world.bob, ShareStatus.ACCEPTED)).id


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        (f"uid={BOB}&includeSharedDevices=true", [KITCHEN, BOBS]),
        ("includeSharedDevices=true", [KITCHEN, BOBS]),
        (f"sdids={KITCHEN}", [KITCHEN]),
        (f"sdids={KITCHEN},{BOBS}&uid={BOB}", [BOBS]),
        ("", [BOBS]),
        (f"uid={BOB}", [BOBS]),
        (f"uid={BOB}&includeSharedDevices=false", [BOBS]),
    ],
)
async def test_shared_devices_are_watched_when_asked_for(
    peers: Peers, services: Services, world: World, query: str, shown: list[str]
) -> None:
    await share(services, world)
    socket = await peers.connect(live(BOB_TOKEN, query))
    await store(services, KITCHEN, HALL, BOBS)
    assert [(await said(socket))["sdid"] for _ in shown] == shown


async def test_a_subscriber_sees_a_device_from_the_acceptance_to_the_removal_of_the_share(
    peers: Peers, services: Services, world: World
) -> None:
    socket = await peers.connect(live(BOB_TOKEN, "includeSharedDevices=true"))
    await store(services, KITCHEN)
    accepted = await share(services, world)
    (mid,) = await store(services, KITCHEN)
    assert json.loads(await socket.get_message())["mid"] == mid
    await services.devices.shares.remove(accepted)
    await store(services, KITCHEN)
    (mid,) = await store(services, BOBS)
    assert (await said(socket))["mid"] == mid


async def test_an_application_watches_what_is_shared_with_its_user(
    peers: Peers, services: Services, world: World
) -> None:
    await allow(services, GrantRecord(world.bob, world.application, world.light_type, read=True, write=False))
    socket = await peers.connect(live(APPLICATION_TOKEN, f"uid={BOB}&includeSharedDevices=true"))
    await store(services, KITCHEN)
    await share(services, world)
    (mid,) = await store(services, KITCHEN)
    assert (await said(socket))["mid"] == mid


async def test_a_sharee_speaks_for_the_device_until_the_share_ends(
    peers: Peers, services: Services, world: World
) -> None:
    socket = await peers.connect(WITH_ACK)
    answer = await ask(socket, type="register", sdid=KITCHEN, Authorization=BOB_TOKEN)
    assert answer == error(403, FORBIDDEN)
    accepted = await share(services, world)
    await register(socket, KITCHEN, BOB_TOKEN)
    assert "mid" in (await ask(socket, sdid=KITCHEN, data={"state": True}))["data"]
    await services.devices.shares.remove(accepted)
    assert await closing(socket) == (1008, FORBIDDEN)


async def test_the_device_itself_stays_connected_when_a_share_ends(
    peers: Peers, services: Services, world: World
) -> None:
    accepted = await share(services, world)
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, KITCHEN_TOKEN)
    await services.devices.shares.remove(accepted)
    assert "mid" in (await ask(socket, sdid=KITCHEN, data={"state": True}))["data"]


async def test_actions_to_a_shared_device_end_with_the_share(peers: Peers, services: Services, world: World) -> None:
    accepted = await share(services, world)
    socket = await peers.connect(WITH_ACK)
    await register(socket, BOBS, BOB_TOKEN)
    assert "data" in await ask(socket, ddid=KITCHEN, data=ACTION)
    await services.devices.shares.remove(accepted)
    assert await ask(socket, ddid=KITCHEN, data=ACTION) == error(403, FORBIDDEN)


@pytest.mark.parametrize("token", [KITCHEN_TOKEN, BOB_TOKEN])
async def test_a_deleted_device_is_disconnected_with_1008(
    peers: Peers, services: Services, world: World, token: str
) -> None:
    await share(services, world)
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, token)
    await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
    assert (await closing(socket))[0] == 1008


@pytest.mark.parametrize("query", ["", f"&did={KITCHEN}", "&uid=self", f"&uid={BOB}&events=device.*"])
async def test_sharees_get_online_status_events_only(
    peers: Peers, services: Services, world: World, query: str
) -> None:
    await share(services, world)
    device = await services.devices.registry.find(KITCHEN)
    socket = await peers.connect(f"/v1.1/events?authorization=bearer+{BOB_TOKEN}{query}")
    await services.devices.inventory.change(device, DeviceChanges(name="New"))
    services.core.router.publish(AvailabilityChanged(device.key, "online", NOW_MS))
    assert (await said(socket))["event"] == "device.status.online"


@pytest.mark.parametrize("change", ["unshared", "deleted"])
@pytest.mark.parametrize("named", [f"{KITCHEN}", f"{BOBS},{KITCHEN}"])
async def test_a_feed_that_names_a_device_ends_with_it(
    peers: Peers, services: Services, world: World, change: str, named: str
) -> None:
    """It ends at once, not with the next ping; other feeds of the same token stay."""
    accepted = await share(services, world)
    live_of_it = await peers.connect(live(BOB_TOKEN, f"sdids={named}"))
    events_of_it = await peers.connect(f"/v1.1/events?authorization=bearer+{BOB_TOKEN}&dids={named}&event=none")
    others = [
        await peers.connect(live(BOB_TOKEN, f"sdid={BOBS}")),
        await peers.connect(live(BOB_TOKEN, "includeSharedDevices=true")),
    ]
    if change == "unshared":
        await services.devices.shares.remove(accepted)
    else:
        await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
    reason = "permission removed" if change == "unshared" else "device deleted"
    with trio.fail_after(PING_SECONDS / 3):
        assert await closing(live_of_it) == (1008, reason)
        assert await closing(events_of_it) == (1008, reason)
    (mid,) = await store(services, BOBS)
    for one in others:
        assert (await said(one))["mid"] == mid


async def test_the_owner_is_told_of_the_deletion_before_the_feed_ends(peers: Peers, services: Services) -> None:
    socket = await peers.connect(f"/v1.1/events?authorization=bearer+{ADA_TOKEN}&did={KITCHEN}")
    await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
    with trio.fail_after(PING_SECONDS / 3):
        assert (await said(socket))["event"] == "device.disconnected"
        assert (await said(socket))["event"] == "device.deleted"
        assert await closing(socket) == (1008, "device deleted")
