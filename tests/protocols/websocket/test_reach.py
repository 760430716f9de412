"""Reach of a token on open connections: /live, /events and the device channel (reference 4.7)."""

import json
from collections.abc import Callable
from itertools import product

import pytest
from trio_websocket import WebSocketConnection

from broker.devices.inventory import DeviceChanges
from broker.services import Services
from tests.factories import ADA_TOKEN, KITCHEN, World
from tests.properties import every_nth_outside_ci
from tests.protocols.websocket.peers import Peers, ask, closing, register, said
from tests.protocols.websocket.test_events import events
from tests.protocols.websocket.test_feeds import live, store
from tests.protocols.websocket.test_server import ACTION, WITH_ACK, error
from tests.reach_world import CASES, GRANTS, HOLDERS, TOKENS, TYPES, ReachWorld, build_reach_world, is_granted
from tests.rows import each_row

pytestmark = pytest.mark.slow


FORBIDDEN = error(403, "You do not have the right permission: devices")


@pytest.fixture
async def reach(services: Services, world: World) -> ReachWorld:
    return await build_reach_world(services, world)


async def devices_until_kitchen(
    socket: WebSocketConnection, id_of: Callable[[dict[str, object]], object]
) -> set[object]:
    """The devices of the frames that came before one of the kitchen light, which is granted last."""
    seen: set[object] = set()
    while (id_ := id_of(json.loads(await socket.get_message()))) != KITCHEN:
        seen.add(id_)
    return seen


@each_row("grants", every_nth_outside_ci(4, tuple(GRANTS)))
@each_row("token", TOKENS)
async def test_the_live_feed_leaves_out_what_is_not_granted(
    peers: Peers, services: Services, reach: ReachWorld, grants: str, token: str
) -> None:
    await reach.grant(grants)
    socket = await peers.connect(live(TOKENS[token], "includeSharedDevices=true"))
    await store(services, *reach.devices.values())
    await reach.grant("*")
    await store(services, KITCHEN)
    assert await devices_until_kitchen(socket, lambda frame: frame["sdid"]) == reach.readable(grants, "own", "shared")


@each_row(("grants", "token"), every_nth_outside_ci(5, CASES))
async def test_the_event_feed_leaves_out_what_is_not_granted(
    peers: Peers, services: Services, reach: ReachWorld, grants: str, token: str
) -> None:
    await reach.grant("*")
    # An application must name devices, which must be granted at that time.
    named = [KITCHEN, *(reach.readable("*", "own") if token == "application" else ())]
    socket = await peers.connect(events(TOKENS[token], f"did={','.join(named)}" if len(named) > 1 else ""))
    await reach.grant(grants)
    for id_ in reach.devices.values():
        await rename(services, id_, f"{grants} {token}")
    await reach.grant("*")
    await rename(services, KITCHEN, f"{grants} {token}")
    found = await devices_until_kitchen(socket, lambda frame: frame["data"]["did"])  # type: ignore[index]
    assert found == reach.readable(grants, "own")


async def rename(services: Services, id_: str, name: str) -> None:
    await services.devices.inventory.change(
        await services.devices.registry.find(id_), DeviceChanges(name=name), application_id=None
    )


@each_row(("grants", "token"), every_nth_outside_ci(5, CASES))
async def test_a_feed_that_names_a_device_needs_read_on_its_type(
    peers: Peers, reach: ReachWorld, grants: str, token: str
) -> None:
    await reach.grant(grants)
    for holder, type_ in product(HOLDERS, TYPES):
        id_ = reach.devices[holder, type_]
        for path in (live(TOKENS[token], f"sdids={id_}"), events(TOKENS[token], f"did={id_}")):
            if holder != "foreign" and is_granted(grants, type_, "READ"):
                await (await peers.connect(path)).aclose()
            else:
                assert (await peers.refusal(path))[0] == 403


@each_row("grants", every_nth_outside_ci(4, tuple(GRANTS)))
@each_row("token", TOKENS)
async def test_the_device_channel_needs_read_and_write_on_the_type(
    peers: Peers, reach: ReachWorld, grants: str, token: str
) -> None:
    await reach.grant(grants)
    socket = await peers.connect(WITH_ACK)
    for holder, type_ in product(HOLDERS, TYPES):
        answer = await ask(socket, type="register", sdid=reach.devices[holder, type_], Authorization=TOKENS[token])
        both = is_granted(grants, type_, "READ") and is_granted(grants, type_, "WRITE")
        if holder != "foreign" and both:
            assert answer["data"]["message"] == "OK"
        else:
            assert answer == FORBIDDEN


@each_row("grants", [one for one in GRANTS if one != "none"])  # without any, nothing can be registered
async def test_an_action_from_the_device_channel_needs_write_on_the_type_of_its_destination(
    peers: Peers, reach: ReachWorld, grants: str
) -> None:
    await reach.grant(grants)
    socket = await peers.connect(WITH_ACK)
    await register(socket, KITCHEN, ADA_TOKEN)
    for holder, type_ in product(HOLDERS, TYPES):
        answer = await ask(socket, ddid=reach.devices[holder, type_], data=ACTION)
        assert ("data" in answer) == (holder != "foreign" and is_granted(grants, type_, "WRITE"))


@pytest.mark.parametrize("token", TOKENS)
async def test_a_revoked_application_ends_what_is_open_and_sees_nothing_more(
    peers: Peers, services: Services, reach: ReachWorld, token: str
) -> None:
    await reach.grant("*")
    feed = await peers.connect(live(TOKENS[token], "includeSharedDevices=true"))
    told = await peers.connect(events(TOKENS[token], f"did={KITCHEN}"))
    channel = await peers.connect(WITH_ACK)
    await register(channel, KITCHEN, TOKENS[token])
    await services.accounts.granted.revoke(reach.world.ada, reach.world.application)
    assert (await closing(channel))[0] == 1008
    if token == "user":  # its token is of Ada, and ends
        assert (await closing(feed))[0] == (await closing(told))[0] == 1008
        return
    await store(services, *reach.devices.values())
    await reach.grant("*")
    (mid,) = await store(services, KITCHEN)
    assert (await said(feed))["mid"] == mid
