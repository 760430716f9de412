"""Observations of Actions: RFC 7641, and one persistent connection for each device (reference 16.1)."""

import json
from math import inf

import cbor2
import pytest
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.routing.claims import ConnectionClaims
from broker.routing.connections import CloseReason
from broker.services import Services
from config.limits import COAP_SILENCE_SECONDS
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.messages import ACK, CBOR, CON, JSON, Code, Option, uint
from protocols.coap.observe import MAX_WAITING, Observation
from protocols.coap.session_endpoint import SESSION_SWEEP_SECONDS
from storage.database import Database
from tests.factories import HALL_TOKEN, KITCHEN_TOKEN, NOW_MS, World
from tests.fakes import FakeClock
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.peers import (
    ACTION,
    Peer,
    disable_kitchen,
    error,
    observe_number,
    observing,
    option,
    revoke_kitchen_token,
    send_action,
)


async def test_registration(peer: Peer, services: Services, world: World) -> None:
    answer = await observing(peer)
    assert (answer.type, answer.code, answer.payload) == (ACK, Code.CONTENT, b"{}")
    assert observe_number(answer) > 0
    assert services.routing.connections.is_online(world.kitchen)
    presence = await services.devices.presence.of(world.kitchen)
    assert (presence.availability, presence.protocol) == ("online", "COAP")


async def test_notification(peer: Peer, services: Services, world: World) -> None:
    registered = await observing(peer)
    await send_action(services, world.kitchen)
    notification = peer.take()
    assert (notification.type, notification.code, notification.token) == (CON, Code.CONTENT, b"ob")
    assert option(notification, Option.CONTENT_FORMAT) == uint(JSON)
    assert json.loads(notification.payload) == ACTION
    assert observe_number(notification) > observe_number(registered)


async def test_notifications_come_one_at_a_time_with_increasing_numbers(
    peer: Peer, services: Services, world: World
) -> None:
    await observing(peer)
    for name in "abc":
        await send_action(services, world.kitchen, {"actions": [{"name": name}]})
    seen, numbers = [], []
    for _ in range(3):
        notification = peer.take()
        seen.append(json.loads(notification.payload)["actions"][0]["name"])
        numbers.append(observe_number(notification))
        peer.acknowledge(notification)
    assert (seen, peer.inbox) == (["a", "b", "c"], [])
    assert numbers == sorted(set(numbers))


async def test_a_slow_observer_loses_actions(
    peer: Peer, endpoint: CoapEndpoint, services: Services, world: World
) -> None:
    await observing(peer)
    for _ in range(MAX_WAITING + 5):
        await send_action(services, world.kitchen)
    assert endpoint.statistics().notifications_lost == 4  # one is under way, and MAX_WAITING wait
    assert services.routing.connections.statistics().actions_dropped == 4


async def test_in_cbor_if_asked(peer: Peer, services: Services, world: World) -> None:
    answer = await observing(peer, KITCHEN_TOKEN, (Option.ACCEPT, uint(CBOR)))
    assert cbor2.loads(answer.payload) == {}
    await send_action(services, world.kitchen)
    notification = peer.take()
    assert option(notification, Option.CONTENT_FORMAT) == uint(CBOR)
    assert cbor2.loads(notification.payload) == ACTION


@pytest.mark.parametrize(("value", "told"), [(b"1e400", inf), (b"-1e400", -inf), (b"1" * 60, int("1" * 60))])
async def test_a_number_beyond_the_range_of_doubles_is_infinity_in_cbor(
    peer: Peer, services: Services, world: World, value: bytes, told: object
) -> None:
    await observing(peer, KITCHEN_TOKEN, (Option.ACCEPT, uint(CBOR)))
    with capture_logs() as logs:
        await send_action(services, world.kitchen, b'{"actions":[{"name":"dim","parameters":{"to":%b}}]}' % value)
    assert cbor2.loads(peer.take().payload)["actions"][0]["parameters"] == {"to": told}
    assert logs == []


class TestNumbers:
    """RFC 7641, 3.4 and 4.4."""

    async def test_increase_over_observations(
        self, peer: Peer, services: Services, world: World, fake_clock: FakeClock
    ) -> None:
        """The token is the same: the peer cannot tell the observation from the one before."""
        numbers = [observe_number(await observing(peer))]
        for _ in range(3):
            await send_action(services, world.kitchen)
            notification = peer.take()
            numbers.append(observe_number(notification))
            peer.acknowledge(notification)
        peer.observe(KITCHEN_TOKEN, 1)
        peer.inbox.clear()
        fake_clock.advance(100)
        numbers.append(observe_number(await observing(peer)))
        assert numbers == sorted(set(numbers))

    def test_are_the_time(self) -> None:
        observation = Observation(b"", (), JSON, 6)
        assert observation.next_number(1000) == 1000
        assert observation.next_number(1000) == 1001
        assert observation.next_number(500) == 1002  # the clock was set back
        assert observation.next_number(2000) == 2000

    def test_wrap_around(self) -> None:
        observation = Observation(b"", (), JSON, 6)
        assert [observation.next_number(5 * 2**24 - 1) for _ in range(3)] == [2**24 - 1, 0, 1]

    def test_grow_by_less_than_half_of_their_range_in_256_s(self) -> None:
        observation = Observation(b"", (), JSON, 6)
        before = observation.next_number(NOW_MS)
        assert 0 < (observation.next_number(NOW_MS + 256_000) - before) % 2**24 < 2**23


class TestRefresh:
    async def test_sends_the_notification_under_way_again_after_the_response(
        self, peer: Peer, endpoint: CoapEndpoint, services: Services, world: World, time: Time
    ) -> None:
        """The number of the first transmission is lower than that of the response, so the peer may drop it as old."""
        await observing(peer)
        await send_action(services, world.kitchen)
        former = peer.take()
        await send_action(services, world.kitchen, {"actions": [{"name": "next"}]})
        peer.observe(KITCHEN_TOKEN)
        answer, again = peer.inbox
        peer.inbox.clear()
        assert (answer.type, again.type) == (ACK, CON)
        assert observe_number(former) < observe_number(answer) < observe_number(again)
        assert again.payload == former.payload
        peer.acknowledge(former)
        time.now += 2
        endpoint.tick(time.now)
        assert peer.take() == again  # the first one is not sent again, and its acknowledgement is not one of the second
        peer.acknowledge(again)
        assert json.loads(peer.take().payload)["actions"][0]["name"] == "next"

    async def test_with_nothing_under_way_sends_nothing(self, peer: Peer, services: Services, world: World) -> None:
        await observing(peer)
        await send_action(services, world.kitchen)
        peer.acknowledge(peer.take())
        await observing(peer)  # asserts that the response is the only message

    async def test_leaves_other_observers_of_the_session_alone(
        self, peer: Peer, services: Services, world: World
    ) -> None:
        for token, request_token in ((KITCHEN_TOKEN, b"k"), (HALL_TOKEN, b"h")):
            peer.observe(token, request_token=request_token)
        await wait_all_tasks_blocked()
        peer.inbox.clear()
        await send_action(services, world.kitchen)
        notification = peer.take()
        peer.observe(HALL_TOKEN, request_token=b"h")
        assert peer.take().token == b"h"
        peer.acknowledge(notification)
        assert peer.inbox == []

    async def test_with_another_format(self, peer: Peer, services: Services, world: World) -> None:
        """It also applies to notifications that wait."""
        await observing(peer)
        for name in "abc":
            await send_action(services, world.kitchen, {"actions": [{"name": name}]})
        peer.inbox.clear()
        peer.observe(KITCHEN_TOKEN, 0, [(Option.ACCEPT, uint(CBOR))])
        peer.inbox.pop(0)
        for name in "abc":
            notification = peer.take()
            assert option(notification, Option.CONTENT_FORMAT) == uint(CBOR)
            assert cbor2.loads(notification.payload) == {"actions": [{"name": name}]}
            peer.acknowledge(notification)

    async def test_with_another_block_size(self, peer: Peer, services: Services, world: World) -> None:
        await observing(peer)
        await observing(peer, KITCHEN_TOKEN, (Option.BLOCK2, uint(0)))
        await send_action(services, world.kitchen)
        assert option(peer.take(), Option.BLOCK2) == uint(8)

    async def test_keeps_the_account_of_bytes_held(self, peer: Peer, services: Services, world: World) -> None:
        await observing(peer, KITCHEN_TOKEN, (Option.BLOCK2, uint(0)))
        await send_action(services, world.kitchen)
        peer.inbox.clear()
        peer.observe(KITCHEN_TOKEN)
        peer.acknowledge(peer.inbox[-1])
        (observer,) = peer.session().observers.values()
        assert observer.observation.bytes_held == 0


async def test_get_without_observe(peer: Peer, services: Services, world: World) -> None:
    peer.request(Code.GET, f"v1.1/actions/{KITCHEN_TOKEN}")
    await wait_all_tasks_blocked()
    answer = peer.take()
    assert (answer.code, answer.payload, option(answer, Option.OBSERVE)) == (Code.CONTENT, b"{}", None)
    assert not services.routing.connections.is_online(world.kitchen)


class TestEnd:
    async def test_by_observe_1(self, peer: Peer, services: Services, world: World) -> None:
        await observing(peer)
        peer.observe(KITCHEN_TOKEN, 1)
        answer = peer.take()
        assert (answer.code, answer.payload, option(answer, Option.OBSERVE)) == (Code.CONTENT, b"{}", None)
        presence = await services.devices.presence.of(world.kitchen)
        assert (presence.availability, presence.last_time_online) == ("offline", NOW_MS)

    async def test_by_reset(self, peer: Peer, services: Services, world: World) -> None:
        await observing(peer)
        await send_action(services, world.kitchen)
        peer.reset(peer.take())
        assert not services.routing.connections.is_online(world.kitchen)
        await send_action(services, world.kitchen)
        assert peer.inbox == []

    async def test_by_silence(
        self, peer: Peer, endpoint: CoapEndpoint, services: Services, world: World, time: Time
    ) -> None:
        await observing(peer)
        await send_action(services, world.kitchen)
        for seconds in (2, 4, 8, 16, 32):
            assert services.routing.connections.is_online(world.kitchen)
            time.now += seconds
            endpoint.tick(time.now)
        assert len(peer.inbox) == 5
        assert not services.routing.connections.is_online(world.kitchen)

    @pytest.mark.parametrize(
        ("cause", "expected"),
        [
            ("revoked", ("4.01", "Please provide a valid authorization header")),
            ("disabled", ("4.03", "Source device is disconnected")),
        ],
    )
    async def test_by_the_broker(
        self, peer: Peer, services: Services, world: World, cause: str, expected: tuple[str, str]
    ) -> None:
        await observing(peer)
        await (revoke_kitchen_token if cause == "revoked" else disable_kitchen)(services, world)
        final = peer.take()
        assert error(final) == expected
        assert (final.type, final.token, option(final, Option.OBSERVE)) == (CON, b"ob", None)
        assert not services.routing.connections.is_online(world.kitchen)

    async def test_by_shutdown(self, peer: Peer, services: Services) -> None:
        await observing(peer)
        services.routing.connections.close_all()
        assert error(peer.take()) == ("5.03", "Service Unavailable")


class TestTakeOver:
    async def test_by_another_address(self, endpoint: CoapEndpoint, services: Services, world: World) -> None:
        former, latter = Peer(endpoint, "former"), Peer(endpoint, "latter")
        await observing(former)
        await observing(latter)
        final = former.take()
        assert error(final) == ("4.09", CloseReason.REPLACED.value)
        assert option(final, Option.OBSERVE) is None
        assert services.routing.connections.statistics().takeovers == 1
        await send_action(services, world.kitchen)
        assert json.loads(latter.take().payload) == ACTION
        assert former.inbox == []
        assert endpoint.statistics().observers == 1

    async def test_leaves_the_device_online(
        self, endpoint: CoapEndpoint, services: Services, world: World, fake_clock: FakeClock
    ) -> None:
        await observing(Peer(endpoint, "former"))
        fake_clock.advance(500)
        await observing(Peer(endpoint, "latter"))
        presence = await services.devices.presence.of(world.kitchen)
        assert presence.availability == "online"

    async def test_stops_the_notification_under_way(
        self, endpoint: CoapEndpoint, services: Services, world: World
    ) -> None:
        former = Peer(endpoint, "former")
        await observing(former)
        await send_action(services, world.kitchen)
        notification = former.take()
        await observing(Peer(endpoint, "latter"))
        assert error(former.take())[0] == "4.09"
        former.acknowledge(notification)
        assert former.inbox == []

    async def test_needs_a_valid_token(self, endpoint: CoapEndpoint, services: Services) -> None:
        former = Peer(endpoint, "former")
        await observing(former)
        assert error(await observing(Peer(endpoint, "latter"), "wrong"))[0] == "4.01"
        assert (former.inbox, services.routing.connections.statistics().takeovers) == ([], 0)

    async def test_is_not_what_a_refresh_does(self, peer: Peer, services: Services) -> None:
        first = await observing(peer)
        again = await observing(peer)
        assert observe_number(again) > observe_number(first)
        assert services.routing.connections.statistics().takeovers == 0

    async def test_by_another_protocol(self, peer: Peer, services: Services, world: World) -> None:
        await observing(peer)
        device, caller = await services.devices.registry.by_token(KITCHEN_TOKEN)
        with services.routing.connections.connect(
            device,
            protocol="MQTT",
            token=caller.token,
            exclusive=True,
            deliver=lambda _action: True,
            close=lambda _reason: None,
        ):
            assert error(peer.take())[0] == "4.09"
        assert not services.routing.connections.is_online(world.kitchen)


async def test_a_gateway_observes_several_devices(peer: Peer, services: Services, world: World) -> None:
    for token, request_token in ((KITCHEN_TOKEN, b"k"), (HALL_TOKEN, b"h")):
        peer.observe(token, request_token=request_token)
    await wait_all_tasks_blocked()
    peer.inbox.clear()
    await send_action(services, world.hall)
    assert peer.take().token == b"h"


class TestPing:
    async def _silence(self, endpoint: CoapEndpoint, time: Time, seconds: float) -> None:
        time.now += seconds
        endpoint.tick(time.now)

    async def test_after_five_minutes_of_silence(
        self, peer: Peer, endpoint: CoapEndpoint, services: Services, world: World, time: Time, fake_clock: FakeClock
    ) -> None:
        await observing(peer)
        await self._silence(endpoint, time, COAP_SILENCE_SECONDS - 1)
        assert peer.inbox == []
        await self._silence(endpoint, time, SESSION_SWEEP_SECONDS)
        ping = peer.take()
        assert (ping.type, ping.code) == (CON, Code.EMPTY)
        fake_clock.advance(300_000)
        peer.reset(ping)
        assert services.routing.connections.is_online(world.kitchen)
        presence = await services.devices.presence.of(world.kitchen)
        assert presence.last_seen_on == NOW_MS + 300_000
        await self._silence(endpoint, time, COAP_SILENCE_SECONDS - 1)
        assert peer.inbox == []

    async def test_two_without_answer_end_the_observation(
        self, peer: Peer, endpoint: CoapEndpoint, services: Services, world: World, time: Time
    ) -> None:
        await observing(peer)
        await self._silence(endpoint, time, COAP_SILENCE_SECONDS)
        for _ in range(2):
            for seconds in (2, 4, 8, 16, 32):
                assert services.routing.connections.is_online(world.kitchen)
                await self._silence(endpoint, time, seconds)
        assert len(peer.inbox) == 10
        assert len({ping.message_id for ping in peer.inbox}) == 2
        assert not services.routing.connections.is_online(world.kitchen)


async def test_a_session_that_ends_while_its_token_is_looked_up_observes_nothing(
    peer: Peer, endpoint: CoapEndpoint, services: Services, world: World
) -> None:
    """The observation would never end, and the device would seem to be online."""
    peer.observe(KITCHEN_TOKEN, 0)
    endpoint.close(peer.session())
    await wait_all_tasks_blocked()
    assert not services.routing.connections.is_online(world.kitchen)
    assert endpoint.statistics().observers == 0


@pytest.fixture
async def shared(services: Services, world: World) -> Database:
    """Devices connect to other nodes, too."""
    core = services.core
    services.routing.connections.share(ConnectionClaims(core.database, core.news, "a", core.clock))
    await services.devices.registry.by_token(KITCHEN_TOKEN)  # so that a request does not wait for it
    return core.database


async def test_of_several_nodes_the_others_know_of_an_observation_first(
    peer: Peer, services: Services, world: World, shared: Database
) -> None:
    """An Action that comes meanwhile waits for the answer."""
    peer.observe(KITCHEN_TOKEN, 0)
    assert services.routing.connections.is_online(world.kitchen)
    assert peer.inbox == []
    await send_action(services, world.kitchen)
    registered, notification = peer.inbox
    assert (registered.code, registered.payload) == (Code.CONTENT, b"{}")
    assert json.loads(notification.payload) == ACTION
    assert observe_number(notification) > observe_number(registered)
    assert await shared.read(lambda tx: tx.device_connections.connected([world.kitchen])) == {world.kitchen}


async def test_an_observation_that_could_not_be_stored_is_refused(
    peer: Peer, services: Services, world: World, shared: Database
) -> None:
    peer.observe(KITCHEN_TOKEN, 0)
    shared.open_group.refused = "a device has connected to another node"
    await wait_all_tasks_blocked()
    refused = peer.take()
    assert refused.code == Code.SERVICE_UNAVAILABLE
    assert option(refused, Option.OBSERVE) is None
    assert not services.routing.connections.is_online(world.kitchen)


async def test_an_observation_that_ends_before_it_is_stored_is_refused_with_the_reason(
    peer: Peer, services: Services, world: World, shared: Database
) -> None:
    peer.observe(KITCHEN_TOKEN, 0)
    (link,) = services.routing.connections.links()
    link.replaced_elsewhere()
    await wait_all_tasks_blocked()
    assert error(peer.take()) == ("4.09", CloseReason.REPLACED.value)
