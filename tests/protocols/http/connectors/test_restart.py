"""Authorizations, links, pulls and Actions that are under way continue after a restart."""

import httpx
import pytest
import trio
from quart import Response

from broker.services import Services
from tests.builders import ServicesOpener
from tests.factories import ADA_TOKEN, KITCHEN, LIGHT_TYPE, NOW_MS, World, build_world
from tests.fakes import FakeClock
from tests.protocols.http.connectors.conftest import REFERER, bind, pull, query_of, quiet, terms
from tests.third_party_cloud import ThirdPartyCloud

pytestmark = pytest.mark.slow


SET_ON = b'{"actions":[{"name":"setOn"}]}'


async def begin(services: Services) -> str:
    caller = await services.accounts.tokens.caller(ADA_TOKEN)
    device = await services.devices.registry.find(KITCHEN)
    return await services.connectors.authorize(caller, device, referer=REFERER, mobile=False)


async def agree(address: str) -> dict[str, str]:
    async with httpx.AsyncClient() as browser:
        return query_of((await browser.get(address)).headers["Location"])


async def link(services: Services) -> None:
    parameters = await agree(await begin(services))
    assert await services.connectors.authorized(LIGHT_TYPE, parameters) == REFERER


async def state_of(services: Services) -> str:
    return (await services.devices.registry.find(KITCHEN)).record.cloud_authorization


@pytest.fixture
async def world_of_lights(opener: ServicesOpener, cloud: ThirdPartyCloud) -> World:
    async with opener() as services:
        world = await build_world(services.core.database, services.core.vault)
        await bind(services, terms(cloud))
        return world


async def test_an_authorization_under_way(
    opener: ServicesOpener, world_of_lights: World, cloud: ThirdPartyCloud
) -> None:
    async with opener() as services:
        address = await begin(services)
    parameters = await agree(address)
    async with opener() as services:
        assert await services.connectors.authorized(LIGHT_TYPE, parameters) == REFERER
        assert await state_of(services) == "AUTHORIZED"


async def test_a_pull_that_was_made_is_not_made_again(
    opener: ServicesOpener, world_of_lights: World, cloud: ThirdPartyCloud, fake_clock: FakeClock
) -> None:
    async with opener() as services:
        await link(services)
        await pull(services)
    async with opener() as services:
        await pull(services)
        assert cloud.paths().count("/readings") == 1
        fake_clock.advance(60 * 60_000)
        await pull(services)
        assert cloud.paths().count("/readings") == 2


async def test_an_action_that_was_not_sent_is_sent_after_the_restart(
    opener: ServicesOpener, world_of_lights: World, cloud: ThirdPartyCloud
) -> None:
    asked = trio.Event()

    async def never() -> Response:
        asked.set()
        await trio.sleep_forever()
        raise AssertionError

    async with opener() as services:
        await link(services)
        device = await services.devices.registry.find(KITCHEN)
        cloud.answers[f"/lamps/{KITCHEN}"] = never
        services.messages.ingest.submit_action(device, device, SET_ON)
        await services.messages.ingest.wait_committed()
        await asked.wait()
    cloud.answers.clear()
    async with opener() as services:
        await quiet(services)
        assert cloud.bodies(f"/lamps/{KITCHEN}") == [{"on": True}] * 2
    async with opener() as services:
        await quiet(services)
        assert len(cloud.bodies(f"/lamps/{KITCHEN}")) == 2


async def test_an_action_that_is_too_old_is_not_sent_any_more(
    opener: ServicesOpener, world_of_lights: World, cloud: ThirdPartyCloud, fake_clock: FakeClock
) -> None:
    async with opener() as services:
        await link(services)
        device = await services.devices.registry.find(KITCHEN)
        cloud.answers[f"/lamps/{KITCHEN}"] = trio.sleep_forever
        services.messages.ingest.submit_action(device, device, SET_ON)
        await services.messages.ingest.wait_committed()
    cloud.answers.clear()
    cloud.calls.clear()
    fake_clock.advance(11 * 60_000)
    async with opener() as services:
        await quiet(services)
        assert cloud.calls == []


async def test_a_device_that_was_deleted_before_a_crash_is_unsubscribed(
    opener: ServicesOpener, world_of_lights: World, cloud: ThirdPartyCloud
) -> None:
    async with opener() as services:
        await link(services)
        key = (await services.devices.registry.find(KITCHEN)).key
        await services.core.database.write(lambda tx: tx.devices.set_deleted(key, NOW_MS))
    async with opener() as services:
        await services.connectors.clean_up()
        assert cloud.subscriptions == {}
