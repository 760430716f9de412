"""The simulated device, through aiocoap's client, against the UDP listener."""

import sys
from collections.abc import AsyncIterator
from functools import partial
from io import StringIO

import pytest
import trio

from broker.services import Services
from config.settings import Address
from protocols.cli.simulated.coap import run
from protocols.cli.simulated.simulation import LinkLostError, RefusedError, Simulation
from protocols.coap.server import serve_coap
from tests.factories import KITCHEN, KITCHEN_TOKEN, World


@pytest.fixture
async def address(services: Services, world: World) -> AsyncIterator[Address]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_coap, services, Address("127.0.0.1", 0))
        nursery.cancel_scope.cancel()


def _plan(address: Address, token: str, count: int | None) -> Simulation:
    return Simulation(address.host, address.port, KITCHEN, token, lambda _now: {"state": True}, 0.01, count, "Kitchen")


async def _simulate(plan: Simulation) -> None:
    await trio.to_thread.run_sync(run, plan, abandon_on_cancel=True)


async def test_sends_and_ends_its_observation(address: Address, services: Services, world: World) -> None:
    plan = _plan(address, KITCHEN_TOKEN, 3)
    await _simulate(plan)
    assert (plan.sent, services.messages.ingest.statistics().messages) == (3, 3)
    assert not services.routing.connections.is_online(world.kitchen)


async def test_shows_actions(
    address: Address, services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, shown = _plan(address, KITCHEN_TOKEN, None), StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_expect_the_end, plan)
        with trio.fail_after(10):
            while not services.routing.connections.is_online(world.kitchen):
                await trio.lowlevel.checkpoint()
        light = await services.devices.registry.get(world.kitchen)
        services.messages.ingest.submit_action(light, light, b'{"actions":[{"name":"setOn","parameters":{"a":1}}]}')
        with trio.fail_after(10):
            while 'Kitchen received setOn {"a":1}' not in shown.getvalue():
                await trio.lowlevel.checkpoint()
        services.routing.connections.close_all()


async def test_is_refused(address: Address) -> None:
    with pytest.raises(RefusedError, match=r"4\.01"):
        await _simulate(_plan(address, "wrong", 1))


async def test_without_a_server_the_link_is_lost() -> None:
    with pytest.raises(LinkLostError):
        await _simulate(_plan(Address("127.0.0.1", 1), KITCHEN_TOKEN, 1))


async def test_the_link_is_lost_when_the_observation_ends(address: Address, services: Services, world: World) -> None:
    plan = _plan(address, KITCHEN_TOKEN, None)
    refused = partial(_expect_the_end, plan)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused)
        with trio.fail_after(10):
            while not services.routing.connections.is_online(world.kitchen):
                await trio.lowlevel.checkpoint()
        services.routing.connections.close_all()


async def _expect_the_end(plan: Simulation) -> None:
    with pytest.raises(LinkLostError, match="ended the observation"):
        await _simulate(plan)
