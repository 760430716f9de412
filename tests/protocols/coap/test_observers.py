"""Observing Actions: RFC 7641, and the one-connection rule of reference 16.1."""

import json
from math import inf

import cbor2
import pytest
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.routing.connections import CloseReason
from broker.services import Services
from config.limits import COAP_SILENCE_SECONDS
from protocols.coap.endpoint import SWEEP_SECONDS, Endpoint
from protocols.coap.messages import ACK, CBOR, CON, JSON, Code, Message, Option, uint
from protocols.coap.observe import MAX_WAITING, Observation
from protocols.coap.observers import FETCH_SECONDS
from tests.factories import HALL_TOKEN, KITCHEN_TOKEN, NOW_MS, World
from tests.fakes import FakeClock
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.peers import Peer, disable_kitchen, error, option, revoke_kitchen_token

ACTION = {"actions": [{"name": "setOn"}]}


async def _send_action(services: Services, device: int, data: object = ACTION) -> None:
    light = await services.devices.registry.get(device)
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    services.messages.ingest.submit_action(light, light, text)
    await services.messages.ingest.wait_committed()


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
    assert services.routing.connections.is_online(world.kitchen)
    presence = await services.devices.presence.of(world.kitchen)
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
    assert services.routing.connections.statistics().actions_dropped == 4


async def test_in_cbor_if_asked(peer: Peer, services: Services, world: World) -> None:
    answer = await _observing(peer, KITCHEN_TOKEN, (Option.ACCEPT, uint(CBOR)))
    assert cbor2.loads(answer.payload) == {}
    await _send_action(services, world.kitchen)
    notification = peer.take()
    assert option(notification, Option.CONTENT_FORMAT) == uint(CBOR)
    assert cbor2.loads(notification.payload) == ACTION


@pytest.mark.parametrize(("value", "told"), [(b"1e400", inf), (b"-1e400", -inf), (b"1" * 60, int("1" * 60))])
async def test_a_number_beyond_all_doubles_is_infinity_in_cbor(
    peer: Peer, services: Services, world: World, value: bytes, told: object
) -> None:
    await _observing(peer, KITCHEN_TOKEN, (Option.ACCEPT, uint(CBOR)))
    with capture_logs() as logs:
        await _send_action(services, world.kitchen, b'{"actions":[{"name":"dim","parameters":{"to":%b}}]}' % value)
    assert cbor2.loads(peer.take().payload)["actions"][0]["parameters"] == {"to": told}
    assert logs == []


class TestNumbers:
    """RFC 7641 sections 3.4 and 4.4."""

    async def test_go_on_in_the_next_observation(
        self, peer: Peer, services: Services, world: World, fake_clock: FakeClock
    ) -> None:
        """Of the same token: after an eviction, or our restart, the peer cannot tell it from the one before."""
        numbers = [_number(await _observing(peer))]
        for _ in range(3):
            await _send_action(services, world.kitchen)
            notification = peer.take()
            numbers.append(_number(notification))
            peer.acknowledge(notification)
        peer.observe(KITCHEN_TOKEN, 1)
        peer.inbox.clear()
        fake_clock.advance(100)
        numbers.append(_number(await _observing(peer)))
        assert numbers == sorted(set(numbers))

    def test_are_the_time(self) -> None:
        observation = Observation(b"", (), JSON, 6)
        assert observation.next_number(1000) == 1000
        assert observation.next_number(1000) == 1001
        assert observation.next_number(500) == 1002  # somebody has set the clock
        assert observation.next_number(2000) == 2000

    def test_wrap_around(self) -> None:
        observation = Observation(b"", (), JSON, 6)
        assert [observation.next_number(5 * 2**24 - 1) for _ in range(3)] == [2**24 - 1, 0, 1]

    def test_are_far_from_their_half_turn_when_freshness_is_a_matter_of_time(self) -> None:
        observation = Observation(b"", (), JSON, 6)
        before = observation.next_number(NOW_MS)
        assert 0 < (observation.next_number(NOW_MS + 256_000) - before) % 2**24 < 2**23


class TestRefresh:
    async def test_sends_what_is_under_way_anew_after_the_answer(
        self, peer: Peer, endpoint: Endpoint, services: Services, world: World, time: Time
    ) -> None:
        """The peer has seen the answer's number, so the former one is old for it."""
        await _observing(peer)
        await _send_action(services, world.kitchen)
        former = peer.take()
        await _send_action(services, world.kitchen, {"actions": [{"name": "next"}]})
        peer.observe(KITCHEN_TOKEN)
        answer, again = peer.inbox
        peer.inbox.clear()
        assert (answer.type, again.type) == (ACK, CON)
        assert _number(former) < _number(answer) < _number(again)
        assert again.payload == former.payload
        peer.acknowledge(former)
        time.now += 2
        endpoint.tick(time.now)
        assert peer.take() == again  # the former is not sent again, and its acknowledgement is not this one's
        peer.acknowledge(again)
        assert json.loads(peer.take().payload)["actions"][0]["name"] == "next"

    async def test_with_nothing_under_way_sends_nothing(self, peer: Peer, services: Services, world: World) -> None:
        await _observing(peer)
        await _send_action(services, world.kitchen)
        peer.acknowledge(peer.take())
        await _observing(peer)

    async def test_leaves_other_observers_of_the_session_alone(
        self, peer: Peer, services: Services, world: World
    ) -> None:
        for token, request_token in ((KITCHEN_TOKEN, b"k"), (HALL_TOKEN, b"h")):
            peer.observe(token, request_token=request_token)
        await wait_all_tasks_blocked()
        peer.inbox.clear()
        await _send_action(services, world.kitchen)
        notification = peer.take()
        peer.observe(HALL_TOKEN, request_token=b"h")
        assert peer.take().token == b"h"
        peer.acknowledge(notification)
        assert peer.inbox == []

    async def test_with_another_format(self, peer: Peer, services: Services, world: World) -> None:
        """From then on: for what waits, too."""
        await _observing(peer)
        for name in "abc":
            await _send_action(services, world.kitchen, {"actions": [{"name": name}]})
        peer.inbox.clear()
        peer.observe(KITCHEN_TOKEN, 0, [(Option.ACCEPT, uint(CBOR))])
        peer.inbox.pop(0)
        for name in "abc":
            notification = peer.take()
            assert option(notification, Option.CONTENT_FORMAT) == uint(CBOR)
            assert cbor2.loads(notification.payload) == {"actions": [{"name": name}]}
            peer.acknowledge(notification)

    async def test_with_another_block_size(self, peer: Peer, services: Services, world: World) -> None:
        await _observing(peer)
        await _observing(peer, KITCHEN_TOKEN, (Option.BLOCK2, uint(0)))
        await _send_action(services, world.kitchen)
        assert option(peer.take(), Option.BLOCK2) == uint(8)

    async def test_keeps_what_it_holds_in_account(self, peer: Peer, services: Services, world: World) -> None:
        await _observing(peer, KITCHEN_TOKEN, (Option.BLOCK2, uint(0)))
        await _send_action(services, world.kitchen)
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
        await _observing(peer)
        peer.observe(KITCHEN_TOKEN, 1)
        answer = peer.take()
        assert (answer.code, answer.payload, option(answer, Option.OBSERVE)) == (Code.CONTENT, b"{}", None)
        presence = await services.devices.presence.of(world.kitchen)
        assert (presence.availability, presence.last_time_online) == ("offline", NOW_MS)

    async def test_by_reset(self, peer: Peer, services: Services, world: World) -> None:
        await _observing(peer)
        await _send_action(services, world.kitchen)
        peer.reset(peer.take())
        assert not services.routing.connections.is_online(world.kitchen)
        await _send_action(services, world.kitchen)
        assert peer.inbox == []

    async def test_by_silence(
        self, peer: Peer, endpoint: Endpoint, services: Services, world: World, time: Time
    ) -> None:
        await _observing(peer)
        await _send_action(services, world.kitchen)
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
        await _observing(peer)
        await (revoke_kitchen_token if cause == "revoked" else disable_kitchen)(services, world)
        final = peer.take()
        assert error(final) == expected
        assert (final.type, final.token, option(final, Option.OBSERVE)) == (CON, b"ob", None)
        assert not services.routing.connections.is_online(world.kitchen)

    async def test_by_shutdown(self, peer: Peer, services: Services) -> None:
        await _observing(peer)
        services.routing.connections.close_all()
        assert error(peer.take()) == ("5.03", "Service Unavailable")


class TestTakeOver:
    async def test_by_another_address(self, endpoint: Endpoint, services: Services, world: World) -> None:
        former, latter = Peer(endpoint, "former"), Peer(endpoint, "latter")
        await _observing(former)
        await _observing(latter)
        final = former.take()
        assert error(final) == ("4.09", CloseReason.REPLACED.value)
        assert option(final, Option.OBSERVE) is None
        assert services.routing.connections.statistics().takeovers == 1
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
        presence = await services.devices.presence.of(world.kitchen)
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
        assert (former.inbox, services.routing.connections.statistics().takeovers) == ([], 0)

    async def test_refresh_is_none(self, peer: Peer, services: Services) -> None:
        first = await _observing(peer)
        again = await _observing(peer)
        assert _number(again) > _number(first)
        assert services.routing.connections.statistics().takeovers == 0

    async def test_by_another_protocol(self, peer: Peer, services: Services, world: World) -> None:
        await _observing(peer)
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
        assert services.routing.connections.is_online(world.kitchen)
        presence = await services.devices.presence.of(world.kitchen)
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
                assert services.routing.connections.is_online(world.kitchen)
                await self._silence(endpoint, time, seconds)
        assert len(peer.inbox) == 10
        assert len({ping.message_id for ping in peer.inbox}) == 2
        assert not services.routing.connections.is_online(world.kitchen)


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
        assert not services.routing.connections.is_online(world.kitchen)


class TestBlocks:
    """Actions are events: what has begun to arrive is fetched to its end before the next one begins."""

    @staticmethod
    def _actions(name: str) -> object:
        return {"actions": [{"name": name, "parameters": {"text": name * 200}}]}

    async def _begun(
        self, peer: Peer, services: Services, world: World, *names: str, options: tuple[tuple[int, bytes], ...] = ()
    ) -> Message:
        """The first block of the first Action, acknowledged."""
        await _observing(peer, KITCHEN_TOKEN, (Option.BLOCK2, uint(2)), *options)  # 64 bytes
        for name in names:
            await _send_action(services, world.kitchen, self._actions(name))
        first = peer.take()
        peer.acknowledge(first)
        return first

    @staticmethod
    def _ask(peer: Peer, number: int, token: str = KITCHEN_TOKEN) -> Message:
        peer.request(Code.GET, f"v1.1/actions/{token}", options=[(Option.BLOCK2, uint(number << 4 | 2))])
        return peer.inbox.pop(0)

    def _fetch(self, peer: Peer, first: Message, token: str = KITCHEN_TOKEN) -> bytes:
        body, number, block = first.payload, 0, int.from_bytes(option(first, Option.BLOCK2) or b"", "big")
        while block & 8:
            assert peer.inbox == []
            number += 1
            answer = self._ask(peer, number, token)
            assert answer.code == Code.CONTENT
            assert option(answer, Option.ETAG) == option(first, Option.ETAG)
            assert option(answer, Option.CONTENT_FORMAT) == option(first, Option.CONTENT_FORMAT)
            body += answer.payload
            block = int.from_bytes(option(answer, Option.BLOCK2) or b"", "big")
        return body

    async def test_are_fetched_before_the_next_one_goes(self, peer: Peer, services: Services, world: World) -> None:
        first = await self._begun(peer, services, world, "a", "b", "c")
        for name in "abc":
            assert json.loads(self._fetch(peer, first)) == self._actions(name)
            if name != "c":
                first = peer.take()
                peer.acknowledge(first)
        assert peer.inbox == []
        (observer,) = peer.session().observers.values()
        assert observer.observation.bytes_held == 0

    async def test_may_be_fetched_before_the_acknowledgement(
        self, peer: Peer, services: Services, world: World
    ) -> None:
        """It can be lost."""
        await _observing(peer, KITCHEN_TOKEN, (Option.BLOCK2, uint(2)))
        for name in "ab":
            await _send_action(services, world.kitchen, self._actions(name))
        first = peer.take()
        assert json.loads(self._fetch(peer, first)) == self._actions("a")
        assert peer.inbox == []
        peer.acknowledge(first)
        assert b'"b"' in peer.take().payload

    async def test_that_nobody_fetches_hold_the_next_one_up_for_a_while(
        self, peer: Peer, endpoint: Endpoint, services: Services, world: World, time: Time
    ) -> None:
        await self._begun(peer, services, world, "a", "b")
        time.now += FETCH_SECONDS - 1
        endpoint.tick(time.now)
        assert peer.inbox == []
        time.now += SWEEP_SECONDS
        endpoint.tick(time.now)
        second = peer.take()
        peer.acknowledge(second)
        time.now += FETCH_SECONDS + SWEEP_SECONDS
        endpoint.tick(time.now)
        (observer,) = peer.session().observers.values()
        assert observer.observation.bytes_held == 0
        assert endpoint.statistics().bytes_held == peer.session().bytes_held
        assert error(self._ask(peer, 1))[0] == "4.00"

    async def test_that_are_fetched_slowly_hold_it_up_for_longer(
        self, peer: Peer, endpoint: Endpoint, services: Services, world: World, time: Time
    ) -> None:
        await self._begun(peer, services, world, "a", "b")
        for number in (1, 2):
            time.now += FETCH_SECONDS - 1
            endpoint.tick(time.now)
            assert self._ask(peer, number).code == Code.CONTENT
            assert peer.inbox == []

    async def test_of_several_observers_are_kept_apart(self, peer: Peer, services: Services, world: World) -> None:
        names = {KITCHEN_TOKEN: ("k", world.kitchen), HALL_TOKEN: ("h", world.hall)}
        first = {}
        for token, (name, device) in names.items():
            peer.observe(token, 0, [(Option.BLOCK2, uint(2))], request_token=name.encode())
            await wait_all_tasks_blocked()
            peer.inbox.clear()
            await _send_action(services, device, self._actions(name))
            first[token] = peer.take()
            peer.acknowledge(first[token])
        for token, (name, _) in reversed(names.items()):
            assert json.loads(self._fetch(peer, first[token], token)) == self._actions(name)

    async def test_in_cbor(self, peer: Peer, services: Services, world: World) -> None:
        """A request for a further block need not say again what is accepted."""
        first = await self._begun(peer, services, world, "a", options=((Option.ACCEPT, uint(CBOR)),))
        assert option(first, Option.CONTENT_FORMAT) == uint(CBOR)
        assert cbor2.loads(self._fetch(peer, first)) == self._actions("a")

    @pytest.mark.parametrize("is_acknowledged", [False, True])
    async def test_begin_anew_with_a_refresh(
        self, peer: Peer, services: Services, world: World, is_acknowledged: bool
    ) -> None:
        """Whoever has just started again will not fetch the rest of what came before."""
        await _observing(peer, KITCHEN_TOKEN, (Option.BLOCK2, uint(2)))
        await _send_action(services, world.kitchen, self._actions("a"))
        before = peer.take()
        if is_acknowledged:
            peer.acknowledge(before)
        peer.observe(KITCHEN_TOKEN, 0, [(Option.BLOCK2, uint(2))])
        again = peer.inbox.pop()
        assert again.message_id != before.message_id
        peer.inbox.clear()
        peer.acknowledge(again)
        assert json.loads(self._fetch(peer, again)) == self._actions("a")

    async def test_end_with_the_observation(
        self, peer: Peer, endpoint: Endpoint, services: Services, world: World, time: Time
    ) -> None:
        await self._begun(peer, services, world, "a", "b")
        peer.observe(KITCHEN_TOKEN, 1)
        peer.inbox.clear()
        assert error(self._ask(peer, 1))[0] == "4.00"
        time.now += FETCH_SECONDS
        endpoint.tick(time.now)
        assert peer.inbox == []

    async def test_behind_the_end(self, peer: Peer, services: Services, world: World) -> None:
        await self._begun(peer, services, world, "a")
        assert error(self._ask(peer, 100))[0] == "4.00"


async def test_a_session_that_ends_while_its_token_is_looked_up_observes_nothing(
    peer: Peer, endpoint: Endpoint, services: Services, world: World
) -> None:
    """Nobody would ever end that observation, and the device would seem to be online."""
    peer.observe(KITCHEN_TOKEN, 0)
    endpoint.close(peer.session())
    await wait_all_tasks_blocked()
    assert not services.routing.connections.is_online(world.kitchen)
    assert endpoint.statistics().observers == 0
