"""Sessions and their limits, and what no resource ever sees."""

import json
from dataclasses import replace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.messages.ingest import Ingest
from broker.services import Services
from config.limits import COAP_EXCHANGE_SECONDS
from protocols.coap.echo import FRESH_SECONDS, AmplificationGuard
from protocols.coap.endpoint import SWEEP_SECONDS, Endpoint
from protocols.coap.messages import CON, Code, Message, Option, encode
from protocols.coap.session import SessionLimits
from tests.factories import BOBS_TOKEN, HALL_TOKEN, KITCHEN_TOKEN, World
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.peers import Peer, error, option

STATE = {"data": {"state": True}}


def _endpoint(services: Services, time: Time, limits: SessionLimits, **changes: object) -> Endpoint:
    return Endpoint(services, limits=replace(limits, **changes), now=time, chance=lambda: 0.0)  # type: ignore[arg-type]


@pytest.fixture
async def small(services: Services, world: World, time: Time) -> Endpoint:
    """Knows the three devices and holds three sessions."""
    for token in (KITCHEN_TOKEN, HALL_TOKEN, BOBS_TOKEN):
        await services.devices.by_token(token)
    return _endpoint(services, time, SessionLimits(sessions=3))


class TestSessions:
    async def test_begin_with_a_request_only(self, endpoint: Endpoint) -> None:
        peer = Peer(endpoint)
        peer.send(bytes.fromhex("40001234"))  # a ping
        peer.send(bytes.fromhex("60001234"))  # an acknowledgement
        peer.send(encode(Message(CON, Code.CONTENT, 7, b"t")))  # an answer to nothing
        peer.send(b"\x49\x02\x12\x34" + bytes(9))  # a token of 9 bytes
        peer.send(b"garbage")
        assert [answer.type for answer in peer.inbox] == [3, 3, 3]
        statistics = endpoint.statistics()
        assert (statistics.sessions, statistics.bytes_held, statistics.malformed) == (0, 0, 2)

    async def test_end_when_duplicates_cannot_come_any_more(self, peer: Peer, endpoint: Endpoint, time: Time) -> None:
        peer.post(KITCHEN_TOKEN, STATE)
        await wait_all_tasks_blocked()
        time.now += COAP_EXCHANGE_SECONDS - 1
        endpoint.tick(time.now)
        assert endpoint.statistics().sessions == 1
        time.now += SWEEP_SECONDS
        endpoint.tick(time.now)
        statistics = endpoint.statistics()
        assert (statistics.sessions, statistics.bytes_held) == (0, 0)

    async def test_strangers_go_before_devices_and_those_before_observers(self, small: Endpoint, time: Time) -> None:
        observer, device = Peer(small, "observer"), Peer(small, "device")
        observer.observe(KITCHEN_TOKEN)
        device.post(HALL_TOKEN, STATE)
        for number in range(100):
            time.now += 1
            Peer(small, number).request(Code.GET, ".well-known/core")
        statistics = small.statistics()
        assert (statistics.sessions, statistics.observers, statistics.strangers) == (3, 1, 1)
        assert statistics.evicted == 99
        assert small.find("observer")
        assert small.find("device")

    async def test_the_oldest_idle_goes_first(self, small: Endpoint, time: Time) -> None:
        peers = [Peer(small, number) for number in range(3)]
        for peer in (*peers, peers[0], Peer(small, 3)):
            time.now += 1
            peer.request(Code.GET, ".well-known/core")
        assert [number for number in range(4) if small.find(number)] == [0, 2, 3]

    async def test_a_stranger_moves_no_observer(self, small: Endpoint, services: Services) -> None:
        peers = [Peer(small, number) for number in range(3)]
        for peer, token in zip(peers, (KITCHEN_TOKEN, HALL_TOKEN, BOBS_TOKEN), strict=True):
            peer.observe(token)
        stranger = Peer(small, "stranger")
        stranger.request(Code.GET, ".well-known/core")
        assert stranger.inbox == []
        assert services.connections.statistics().devices_online == 3

    async def test_an_observer_that_must_go_is_told(self, services: Services, world: World, time: Time) -> None:
        await services.devices.by_token(KITCHEN_TOKEN)
        endpoint = _endpoint(services, time, SessionLimits(bytes_held=6_000))
        observer, observed = Peer(endpoint), await services.devices.get(world.kitchen)
        observer.observe(KITCHEN_TOKEN)
        observer.inbox.clear()
        for _ in range(20):
            services.ingest.submit_action(observed, observed, b'{"actions":[{"name":"%b"}]}' % (b"x" * 100))
        await services.ingest.wait_committed()
        observer.acknowledge(observer.inbox.pop(0))
        assert error(observer.inbox[-1])[0] == "5.03"
        assert endpoint.statistics().bytes_held == 0

    @pytest.mark.usefixtures("world")
    async def test_hold_a_bounded_number_of_bytes(self, services: Services, time: Time) -> None:
        endpoint = _endpoint(services, time, SessionLimits(bytes_held=50_000))
        for number in range(2000):
            time.now += 0.01
            peer = Peer(endpoint, number)
            peer.request(Code.GET, ".well-known/core")
            assert endpoint.statistics().bytes_held <= 50_000
        assert endpoint.statistics().evicted > 1900

    @pytest.mark.usefixtures("world")
    async def test_have_a_bounded_number_of_requests(self, services: Services, time: Time) -> None:
        endpoint = _endpoint(services, time, SessionLimits(requests_per_session=5))
        peer = Peer(endpoint)
        for _ in range(9):
            peer.post(KITCHEN_TOKEN, STATE)
        assert endpoint.statistics().requests_dropped == 4
        assert peer.session().exchange.unanswered == 5


async def test_a_late_commit_gets_a_separate_answer(
    peer: Peer, endpoint: Endpoint, services: Services, time: Time
) -> None:
    await services.devices.by_token(KITCHEN_TOKEN)
    peer.post(KITCHEN_TOKEN, STATE)
    time.now += 1
    endpoint.tick(time.now)
    assert peer.take().code == Code.EMPTY
    await services.ingest.wait_committed()
    answer = peer.take()
    assert (answer.type, answer.code) == (CON, Code.CREATED)
    peer.acknowledge(answer)
    assert peer.session().exchange.deadline == float("inf")


class TestAmplification:
    @pytest.fixture
    def guarded(self, services: Services, time: Time) -> Endpoint:
        return Endpoint(
            services, guard=AmplificationGuard(b"key", free_bytes=20, factor=2), now=time, chance=lambda: 0.0
        )

    async def test_a_large_answer_needs_an_echo_once(self, guarded: Endpoint) -> None:
        peer = Peer(guarded)
        peer.request(Code.GET, ".well-known/core")
        challenge = peer.take()
        assert (challenge.code, challenge.payload) == (Code.UNAUTHORIZED, b"")
        echo = option(challenge, Option.ECHO)
        assert echo
        peer.request(Code.GET, ".well-known/core", options=[(Option.ECHO, echo)])
        assert peer.take().code == Code.CONTENT
        peer.request(Code.GET, ".well-known/core")
        assert peer.take().code == Code.CONTENT
        assert guarded.statistics().challenges == 1

    @pytest.mark.parametrize("what", ["another address", "too late", "invented"])
    async def test_a_wrong_echo_gets_another(self, guarded: Endpoint, time: Time, what: str) -> None:
        peer = Peer(guarded)
        peer.request(Code.GET, ".well-known/core")
        echo = option(peer.take(), Option.ECHO)
        assert echo
        if what == "another address":
            peer = Peer(guarded, "elsewhere")
        elif what == "too late":
            time.now += 2 * FRESH_SECONDS
        else:
            echo = bytes(8)
        peer.request(Code.GET, ".well-known/core", options=[(Option.ECHO, echo)])
        assert peer.take().code == Code.UNAUTHORIZED

    async def test_an_answer_in_proportion_to_the_request_needs_none(self, guarded: Endpoint) -> None:
        peer = Peer(guarded)
        peer.request(Code.GET, ".well-known/core", options=[(Option.URI_QUERY, b"rt=" + b"x" * 30)])
        assert peer.take().code == Code.CONTENT

    async def test_nothing_of_ours_is_larger_by_default(self, peer: Peer) -> None:
        peer.request(Code.GET, ".well-known/core", token=b"12345678")
        assert peer.take().code == Code.CONTENT


async def test_a_bug_of_ours_is_answered_and_touches_nothing_else(
    peer: Peer, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError

    await services.devices.by_token(KITCHEN_TOKEN)
    with monkeypatch.context() as patch:
        patch.setattr(Ingest, "submit", broken)
        peer.post(KITCHEN_TOKEN, STATE)
    answer = peer.take()
    assert error(answer) == ("5.00", "Internal Server Error")
    assert len(json.loads(answer.payload)["error"]["id"]) == 32
    peer.post(KITCHEN_TOKEN, STATE)
    await wait_all_tasks_blocked()
    assert peer.take().code == Code.CREATED


async def test_the_clock_task_does_what_is_due(
    services: Services, world: World, autojump_clock: trio.testing.MockClock
) -> None:
    endpoint = Endpoint(services, chance=lambda: 0.0)
    await services.devices.by_token(KITCHEN_TOKEN)
    peer = Peer(endpoint)
    async with trio.open_nursery() as nursery:
        endpoint.start(nursery)
        peer.observe(KITCHEN_TOKEN)
        peer.inbox.clear()
        light = await services.devices.get(world.kitchen)
        services.ingest.submit_action(light, light, b'{"actions":[{"name":"setOn"}]}')
        await trio.sleep(63)  # 2 + 4 + 8 + 16 + 32 and a little
        assert len(peer.inbox) == 5
        assert not services.connections.is_online(world.kitchen)
        await trio.sleep(COAP_EXCHANGE_SECONDS)
        assert endpoint.statistics().sessions == 0
        nursery.cancel_scope.cancel()
