"""Observing Actions: RFC 7641, and the one-connection rule of compatibility.md 16.1."""

import json

import cbor2
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.routing.connections import CloseReason
from broker.services import Services
from config.limits import COAP_SILENCE_SECONDS
from protocols.coap.endpoint import SWEEP_SECONDS, Endpoint
from protocols.coap.messages import ACK, CBOR, CON, JSON, Code, Message, Option, uint
from protocols.coap.observe import MAX_WAITING
from tests.factories import HALL_TOKEN, KITCHEN_TOKEN, NOW_MS, World
from tests.fakes import FakeClock
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.peers import Peer, disable_kitchen, error, option, revoke_kitchen_token

ACTION = {"actions": [{"name": "setOn"}]}


async def _send_action(services: Services, device: int, data: object = ACTION) -> None:
    light = await services.devices.get(device)
    services.ingest.submit_action(light, light, json.dumps(data).encode())
    await services.ingest.wait_committed()


async def _observing(peer: Peer, token: str = KITCHEN_TOKEN, *options: tuple[int, bytes]) -> Message:
    peer.observe(token, 0, options)
    await wait_all_tasks_blocked()
    return peer.take()


def _number(message: Message) -> int:
    value = option(message, Option.OBSERVE)
    assert value is not None
    return int.from_bytes(value, "big")


async def test_registration(peer: Peer, services: Services, world: World) -> None:
    answer = await _observing(peer)
    assert (answer.type, answer.code, answer.payload) == (ACK, Code.CONTENT, b"{}")
    assert _number(answer) > 0
    assert services.connections.is_online(world.kitchen)
    presence = await services.presence.of(world.kitchen)
    assert (presence.availability, presence.protocol) == ("online", "COAP")


async def test_notification(peer: Peer, services: Services, world: World) -> None:
    registered = await _observing(peer)
    await _send_action(services, world.kitchen)
    notification = peer.take()
    assert (notification.type, notification.code, notification.token) == (CON, Code.CONTENT, b"ob")
    assert option(notification, Option.CONTENT_FORMAT) == uint(JSON)
    assert json.loads(notification.payload) == ACTION
    assert _number(notification) > _number(registered)


async def test_notifications_come_one_at_a_time_with_increasing_numbers(
    peer: Peer, services: Services, world: World
) -> None:
    await _observing(peer)
    for name in "abc":
        await _send_action(services, world.kitchen, {"actions": [{"name": name}]})
    seen, numbers = [], []
    for _ in range(3):
        notification = peer.take()
        seen.append(json.loads(notification.payload)["actions"][0]["name"])
        numbers.append(_number(notification))
        peer.acknowledge(notification)
    assert (seen, peer.inbox) == (["a", "b", "c"], [])
    assert numbers == sorted(set(numbers))


async def test_a_slow_observer_loses_its_own_actions(
    peer: Peer, endpoint: Endpoint, services: Services, world: World
) -> None:
    await _observing(peer)
    for _ in range(MAX_WAITING + 5):
        await _send_action(services, world.kitchen)
    assert endpoint.statistics().notifications_lost == 4  # one is under way, and MAX_WAITING wait
    assert services.connections.statistics().actions_dropped == 4


async def test_in_cbor_if_asked(peer: Peer, services: Services, world: World) -> None:
    answer = await _observing(peer, KITCHEN_TOKEN, (Option.ACCEPT, uint(CBOR)))
    assert cbor2.loads(answer.payload) == {}
    await _send_action(services, world.kitchen)
    notification = peer.take()
    assert option(notification, Option.CONTENT_FORMAT) == uint(CBOR)
    assert cbor2.loads(notification.payload) == ACTION


async def test_get_without_observe(peer: Peer, services: Services, world: World) -> None:
    peer.request(Code.GET, f"v1.1/actions/{KITCHEN_TOKEN}")
    await wait_all_tasks_blocked()
    answer = peer.take()
    assert (answer.code, answer.payload, option(answer, Option.OBSERVE)) == (Code.CONTENT, b"{}", None)
    assert not services.connections.is_online(world.kitchen)


class TestEnd:
    async def test_by_observe_1(self, peer: Peer, services: Services, world: World) -> None:
        await _observing(peer)
        peer.observe(KITCHEN_TOKEN, 1)
        answer = peer.take()
        assert (answer.code, answer.payload, option(answer, Option.OBSERVE)) == (Code.CONTENT, b"{}", None)
        presence = await services.presence.of(world.kitchen)
        assert (presence.availability, presence.last_time_online) == ("offline", NOW_MS)

    async def test_by_reset(self, peer: Peer, services: Services, world: World) -> None:
        await _observing(peer)
        await _send_action(services, world.kitchen)
        peer.reset(peer.take())
        assert not services.connections.is_online(world.kitchen)
        await _send_action(services, world.kitchen)
        assert peer.inbox == []

    async def test_by_silence(
        self, peer: Peer, endpoint: Endpoint, services: Services, world: World, time: Time
    ) -> None:
        await _observing(peer)
        await _send_action(services, world.kitchen)
        for seconds in (2, 4, 8, 16, 32):
            assert services.connections.is_online(world.kitchen)
            time.now += seconds
            endpoint.tick(time.now)
        assert len(peer.inbox) == 5
        assert not services.connections.is_online(world.kitchen)

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
        await _observing(peer)
        await (revoke_kitchen_token if cause == "revoked" else disable_kitchen)(services, world)
        final = peer.take()
        assert error(final) == expected
        assert (final.type, final.token, option(final, Option.OBSERVE)) == (CON, b"ob", None)
        assert not services.connections.is_online(world.kitchen)

    async def test_by_shutdown(self, peer: Peer, services: Services) -> None:
        await _observing(peer)
        services.connections.close_all()
        assert error(peer.take()) == ("5.03", "Service Unavailable")


class TestTakeOver:
    async def test_by_another_address(self, endpoint: Endpoint, services: Services, world: World) -> None:
        former, latter = Peer(endpoint, "former"), Peer(endpoint, "latter")
        await _observing(former)
        await _observing(latter)
        final = former.take()
        assert error(final) == ("4.09", CloseReason.REPLACED.value)
        assert option(final, Option.OBSERVE) is None
        assert services.connections.statistics().takeovers == 1
        await _send_action(services, world.kitchen)
        assert json.loads(latter.take().payload) == ACTION
        assert former.inbox == []
        assert endpoint.statistics().observers == 1

    async def test_does_not_flap(
        self, endpoint: Endpoint, services: Services, world: World, fake_clock: FakeClock
    ) -> None:
        await _observing(Peer(endpoint, "former"))
        fake_clock.advance(500)
        await _observing(Peer(endpoint, "latter"))
        presence = await services.presence.of(world.kitchen)
        assert presence.availability == "online"

    async def test_stops_what_is_under_way(self, endpoint: Endpoint, services: Services, world: World) -> None:
        former = Peer(endpoint, "former")
        await _observing(former)
        await _send_action(services, world.kitchen)
        notification = former.take()
        await _observing(Peer(endpoint, "latter"))
        assert error(former.take())[0] == "4.09"
        former.acknowledge(notification)
        assert former.inbox == []

    async def test_needs_a_valid_token(self, endpoint: Endpoint, services: Services) -> None:
        former = Peer(endpoint, "former")
        await _observing(former)
        assert error(await _observing(Peer(endpoint, "latter"), "wrong"))[0] == "4.01"
        assert (former.inbox, services.connections.statistics().takeovers) == ([], 0)

    async def test_refresh_is_none(self, peer: Peer, services: Services) -> None:
        first = await _observing(peer)
        again = await _observing(peer)
        assert _number(again) > _number(first)
        assert services.connections.statistics().takeovers == 0

    async def test_by_another_protocol(self, peer: Peer, services: Services, world: World) -> None:
        await _observing(peer)
        device, caller = await services.devices.by_token(KITCHEN_TOKEN)
        with services.connections.connect(
            device,
            protocol="MQTT",
            token=caller.token,
            exclusive=True,
            deliver=lambda _action: True,
            close=lambda _reason: None,
        ):
            assert error(peer.take())[0] == "4.09"
        assert not services.connections.is_online(world.kitchen)


async def test_a_gateway_observes_several_devices(peer: Peer, services: Services, world: World) -> None:
    for token, request_token in ((KITCHEN_TOKEN, b"k"), (HALL_TOKEN, b"h")):
        peer.observe(token, request_token=request_token)
    await wait_all_tasks_blocked()
    peer.inbox.clear()
    await _send_action(services, world.hall)
    assert peer.take().token == b"h"


class TestPing:
    async def _silence(self, endpoint: Endpoint, time: Time, seconds: float) -> None:
        time.now += seconds
        endpoint.tick(time.now)

    async def test_after_five_minutes_of_silence(
        self, peer: Peer, endpoint: Endpoint, services: Services, world: World, time: Time, fake_clock: FakeClock
    ) -> None:
        await _observing(peer)
        await self._silence(endpoint, time, COAP_SILENCE_SECONDS - 1)
        assert peer.inbox == []
        await self._silence(endpoint, time, SWEEP_SECONDS)
        ping = peer.take()
        assert (ping.type, ping.code) == (CON, Code.EMPTY)
        fake_clock.advance(300_000)
        peer.reset(ping)
        assert services.connections.is_online(world.kitchen)
        presence = await services.presence.of(world.kitchen)
        assert presence.last_seen_on == NOW_MS + 300_000
        await self._silence(endpoint, time, COAP_SILENCE_SECONDS - 1)
        assert peer.inbox == []

    async def test_two_without_answer_end_it(
        self, peer: Peer, endpoint: Endpoint, services: Services, world: World, time: Time
    ) -> None:
        await _observing(peer)
        await self._silence(endpoint, time, COAP_SILENCE_SECONDS)
        for _ in range(2):
            for seconds in (2, 4, 8, 16, 32):
                assert services.connections.is_online(world.kitchen)
                await self._silence(endpoint, time, seconds)
        assert len(peer.inbox) == 10
        assert len({ping.message_id for ping in peer.inbox}) == 2
        assert not services.connections.is_online(world.kitchen)


class TestLargeNotifications:
    ACTIONS = {"actions": [{"name": "setOn", "parameters": {"text": "x" * 400}}]}  # noqa: RUF012

    async def test_wait_for_a_sign_of_the_peer(self, peer: Peer, services: Services, world: World) -> None:
        """Whoever stands in a datagram may be a victim: a ping goes first."""
        await _observing(peer)
        await _send_action(services, world.kitchen, self.ACTIONS)
        ping = peer.take()
        assert ping.code == Code.EMPTY
        peer.reset(ping)
        assert json.loads(peer.take().payload) == self.ACTIONS

    async def test_do_not_reach_a_victim(
        self, peer: Peer, endpoint: Endpoint, services: Services, world: World, time: Time
    ) -> None:
        await _observing(peer)
        await _send_action(services, world.kitchen, self.ACTIONS)
        for seconds in (2, 4, 8, 16, 32, 64):
            time.now += seconds
            endpoint.tick(time.now)
        assert {message.code for message in peer.inbox} == {Code.EMPTY}
        assert not services.connections.is_online(world.kitchen)

    async def test_come_in_blocks_if_asked(self, peer: Peer, services: Services, world: World) -> None:
        await _observing(peer, KITCHEN_TOKEN, (Option.BLOCK2, uint(2)))  # 64 bytes
        await _send_action(services, world.kitchen, self.ACTIONS)
        notification = peer.take()
        body, number, block = notification.payload, 0, int.from_bytes(option(notification, Option.BLOCK2) or b"", "big")
        peer.acknowledge(notification)
        while block & 8:
            number += 1
            options = [(Option.BLOCK2, uint(number << 4 | 2))]
            peer.request(Code.GET, f"v1.1/actions/{KITCHEN_TOKEN}", options=options)
            answer = peer.take()
            assert option(answer, Option.ETAG) == option(notification, Option.ETAG)
            body += answer.payload
            block = int.from_bytes(option(answer, Option.BLOCK2) or b"", "big")
        assert json.loads(body) == self.ACTIONS
