"""The sessions of an endpoint: their limits, their ends, and the mitigation of amplification."""

from collections.abc import Callable

import pytest
import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from broker.services import Services
from config.limits import COAP_EXCHANGE_SECONDS
from protocols.coap.blockwise import OPERATION_SECONDS, BlockOption
from protocols.coap.echo import FRESH_SECONDS, AmplificationGuard
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.message_layer import PIGGYBACK_SECONDS
from protocols.coap.messages import CON, CoapMessage, Code, Option
from protocols.coap.session import SessionLimits
from protocols.coap.session_endpoint import SESSION_SWEEP_SECONDS
from tests.factories import BOBS_TOKEN, HALL_TOKEN, KITCHEN_TOKEN, World
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.peers import Peer, encode_message, error, option

STATE = {"data": {"state": True}}


Limited = Callable[..., CoapEndpoint]


def _endpoint(services: Services, time: Time, limits: SessionLimits, **changes: object) -> CoapEndpoint:
    return CoapEndpoint(services, limits=replace(limits, **changes), now=time, chance=lambda: 0.0)


@pytest.fixture
async def small(services: Services, world: World, time: Time) -> CoapEndpoint:
    """An endpoint for at most three sessions, which has all three device tokens in memory."""
    for token in (KITCHEN_TOKEN, HALL_TOKEN, BOBS_TOKEN):
        await services.devices.registry.by_token(token)
    return _endpoint(services, time, SessionLimits(sessions=3))


@pytest.fixture
async def limited(services: Services, world: World, time: Time) -> Limited:
    """Makes endpoints with these limits, which have the token of the kitchen light in memory."""
    await services.devices.registry.by_token(KITCHEN_TOKEN)
    return lambda **limits: _endpoint(services, time, SessionLimits(**limits))


class TestSessions:
    async def test_begin_with_a_request_only(self, endpoint: CoapEndpoint) -> None:
        peer = Peer(endpoint)
        peer.send(bytes.fromhex("40001234"))  # a ping
        peer.send(bytes.fromhex("60001234"))  # an acknowledgement
        peer.send(encode_message(CoapMessage(CON, Code.CONTENT, 7, b"t")))  # an answer to nothing
        peer.send(b"\x49\x02\x12\x34" + bytes(9))  # a token of 9 bytes
        peer.send(b"garbage")
        assert [answer.type for answer in peer.inbox] == [3, 3, 3]
        statistics = endpoint.statistics()
        assert (statistics.sessions, statistics.bytes_held, statistics.malformed) == (0, 0, 2)

    async def test_end_when_duplicates_cannot_come_any_more(
        self, peer: Peer, endpoint: CoapEndpoint, time: Time
    ) -> None:
        peer.post(KITCHEN_TOKEN, STATE)
        await wait_all_tasks_blocked()
        time.now += COAP_EXCHANGE_SECONDS - 1
        endpoint.tick(time.now)
        assert endpoint.statistics().sessions == 1
        time.now += SESSION_SWEEP_SECONDS
        endpoint.tick(time.now)
        statistics = endpoint.statistics()
        assert (statistics.sessions, statistics.bytes_held) == (0, 0)

    async def test_are_evicted_unauthenticated_first_and_observers_last(self, small: CoapEndpoint, time: Time) -> None:
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

    async def test_are_evicted_in_the_order_of_their_last_datagram(self, small: CoapEndpoint, time: Time) -> None:
        peers = [Peer(small, number) for number in range(3)]
        for peer in (*peers, peers[0], Peer(small, 3)):
            time.now += 1
            peer.request(Code.GET, ".well-known/core")
        assert [number for number in range(4) if small.find(number)] == [0, 2, 3]

    async def test_that_are_new_are_served_among_any_number_of_authenticated_ones(
        self, small: CoapEndpoint, time: Time
    ) -> None:
        for number in range(10):
            time.now += 1
            newcomer = Peer(small, number)
            newcomer.post(KITCHEN_TOKEN, STATE)
            await wait_all_tasks_blocked()
            assert newcomer.take().code == Code.CREATED
        assert [number for number in range(10) if small.find(number)] == [7, 8, 9]

    async def test_that_are_unauthenticated_take_only_their_reserve_from_authenticated_ones(
        self, small: CoapEndpoint, time: Time
    ) -> None:
        for number in range(3):
            time.now += 1
            Peer(small, number).post(KITCHEN_TOKEN, STATE)
        for number in range(3, 100):
            time.now += 1
            Peer(small, number).request(Code.GET, ".well-known/core")
        assert [number for number in range(100) if small.find(number)] == [1, 2, 99]

    async def test_that_are_unauthenticated_take_only_their_reserve_from_observers(
        self, small: CoapEndpoint, services: Services, time: Time
    ) -> None:
        peers = [Peer(small, number) for number in range(3)]
        for peer, token in zip(peers, (KITCHEN_TOKEN, HALL_TOKEN, BOBS_TOKEN), strict=True):
            peer.observe(token)
        for number in range(3, 100):
            Peer(small, number).request(Code.GET, ".well-known/core")
        assert services.routing.connections.statistics().devices_online == 2
        assert [error(peer.inbox[-1])[0] for peer in peers if len(peer.inbox) > 1] == ["5.03"]
        time.now += 0.1
        newcomer = Peer(small, "newcomer")
        newcomer.observe(KITCHEN_TOKEN)
        assert newcomer.take().code == Code.CONTENT
        assert services.routing.connections.statistics().devices_online == 3

    async def test_that_are_unauthenticated_hold_only_their_reserve_of_bytes(
        self, limited: Limited, time: Time
    ) -> None:
        endpoint = limited(bytes_held=100_000)
        for number in range(3):
            Peer(endpoint, number).post(KITCHEN_TOKEN, STATE)
        for number in range(3, 50):
            peer = Peer(endpoint, number)
            for _ in range(20):
                time.now += 0.001
                peer.request(Code.GET, ".well-known/core")
        assert endpoint.statistics().evicted > 30
        assert all(endpoint.find(number) for number in range(3))

    async def test_that_were_heard_just_now_are_evicted_last(self, limited: Limited) -> None:
        endpoint = limited(bytes_held=14_000)
        observer, device, stranger = Peer(endpoint, "observer"), Peer(endpoint, "device"), Peer(endpoint, "stranger")
        observer.observe(KITCHEN_TOKEN)
        stranger.request(Code.GET, ".well-known/core")
        gone = []
        for _ in range(30):
            device.post(KITCHEN_TOKEN, STATE)
            gone += [name for name in ("observer", "stranger") if name not in gone and not endpoint.find(name)]
        assert gone == ["stranger", "observer"]
        assert endpoint.statistics().bytes_held <= 14_000

    async def test_an_evicted_observer_gets_a_final_notification(
        self, services: Services, world: World, time: Time
    ) -> None:
        await services.devices.registry.by_token(KITCHEN_TOKEN)
        endpoint = _endpoint(services, time, SessionLimits(bytes_held=6_000))
        observer, observed = Peer(endpoint), await services.devices.registry.get(world.kitchen)
        observer.observe(KITCHEN_TOKEN)
        observer.inbox.clear()
        for _ in range(20):
            services.messages.ingest.submit_action(observed, observed, b'{"actions":[{"name":"%b"}]}' % (b"x" * 100))
        await services.messages.ingest.wait_committed()
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
        assert peer.session().message_layer.unanswered == 5

    async def test_count_answers_that_wait_for_their_turn_as_requests(
        self, limited: Limited, services: Services, time: Time
    ) -> None:
        """One confirmable message is under way at any time, so without a limit many responses would wait."""
        endpoint = limited()
        peer = Peer(endpoint)
        for _ in range(10):
            for _ in range(60):
                peer.post(KITCHEN_TOKEN, STATE)
            time.now += PIGGYBACK_SECONDS
            endpoint.tick(time.now)
            await services.messages.ingest.wait_committed()
        assert (peer.session().message_layer.unanswered, peer.session().message_layer.owed) == (0, 64)
        statistics = endpoint.statistics()
        assert statistics.requests_dropped + statistics.overhead_dropped == 600 - 64
        while peer.inbox:
            peer.acknowledge(peer.inbox.pop(0))
        assert peer.session().message_layer.owed == 0

    async def test_answer_duplicates_however_many_requests_are_unanswered(self, limited: Limited) -> None:
        endpoint = limited(requests_per_session=2)
        peer = Peer(endpoint)
        peer.request(Code.GET, ".well-known/core", message_id=100)
        first = peer.take()
        for _ in range(3):
            peer.post(KITCHEN_TOKEN, STATE)
        assert endpoint.statistics().requests_dropped == 1
        peer.request(Code.GET, ".well-known/core", message_id=100)
        assert peer.take() == first
        statistics = endpoint.statistics()
        assert (statistics.requests_dropped, statistics.duplicates) == (1, 1)


class TestBlocks:
    BLOCK = ((Option.BLOCK1, BlockOption(0, more=True, exponent=6).encode()),)

    async def test_count_in_the_bytes_held(self, peer: Peer, endpoint: CoapEndpoint, services: Services) -> None:
        await services.devices.registry.by_token(KITCHEN_TOKEN)
        peer.observe(KITCHEN_TOKEN)
        before = peer.session().bytes_held
        peer.post(KITCHEN_TOKEN, b"x" * 1024, self.BLOCK)
        assert peer.inbox[-1].code == Code.CONTINUE
        assert peer.session().bytes_held > before + 1024
        assert endpoint.statistics().bytes_held == peer.session().bytes_held

    async def test_of_unfinished_transfers_are_forgotten(
        self, peer: Peer, endpoint: CoapEndpoint, services: Services, time: Time
    ) -> None:
        await services.devices.registry.by_token(KITCHEN_TOKEN)
        other = Peer(endpoint, "other")
        for one in (peer, other):
            one.post(KITCHEN_TOKEN, b"x" * 1024, self.BLOCK)
        peer.observe(KITCHEN_TOKEN)
        endpoint.close(other.session())
        for _ in range(2):
            time.now += OPERATION_SECONDS / 2
            endpoint.tick(time.now)
        assert peer.session().blocks.bytes_held == 0
        assert endpoint.statistics().bytes_held == peer.session().bytes_held


async def test_a_late_commit_gets_a_separate_response(
    peer: Peer, endpoint: CoapEndpoint, services: Services, time: Time
) -> None:
    await services.devices.registry.by_token(KITCHEN_TOKEN)
    peer.post(KITCHEN_TOKEN, STATE)
    time.now += 1
    endpoint.tick(time.now)
    assert peer.take().code == Code.EMPTY
    await services.messages.ingest.wait_committed()
    answer = peer.take()
    assert (answer.type, answer.code) == (CON, Code.CREATED)
    peer.acknowledge(answer)
    assert peer.session().message_layer.deadline == float("inf")


class TestAmplification:
    @pytest.fixture
    def guarded(self, services: Services, time: Time) -> CoapEndpoint:
        return CoapEndpoint(
            services, guard=AmplificationGuard(b"key", free_bytes=20, factor=2), now=time, chance=lambda: 0.0
        )

    async def test_a_large_response_needs_an_echo_once(self, guarded: CoapEndpoint) -> None:
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
    async def test_a_wrong_echo_gets_another_challenge(self, guarded: CoapEndpoint, time: Time, what: str) -> None:
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

    async def test_a_response_in_proportion_to_the_request_needs_no_echo(self, guarded: CoapEndpoint) -> None:
        peer = Peer(guarded)
        peer.request(Code.GET, ".well-known/core", options=[(Option.URI_QUERY, b"rt=" + b"x" * 30)])
        assert peer.take().code == Code.CONTENT

    async def test_discovery_needs_no_echo_by_default(self, peer: Peer) -> None:
        peer.request(Code.GET, ".well-known/core", token=b"12345678")
        assert peer.take().code == Code.CONTENT


async def test_tick_forever_does_what_is_due(
    services: Services, world: World, autojump_clock: trio.testing.MockClock
) -> None:
    endpoint = CoapEndpoint(services, chance=lambda: 0.0)
    await services.devices.registry.by_token(KITCHEN_TOKEN)
    peer = Peer(endpoint)
    async with trio.open_nursery() as nursery:
        endpoint.start(nursery)
        peer.observe(KITCHEN_TOKEN)
        peer.inbox.clear()
        light = await services.devices.registry.get(world.kitchen)
        services.messages.ingest.submit_action(light, light, b'{"actions":[{"name":"setOn"}]}')
        await trio.sleep(63)  # 2 + 4 + 8 + 16 + 32 and a little
        assert len(peer.inbox) == 5
        assert not services.routing.connections.is_online(world.kitchen)
        await trio.sleep(COAP_EXCHANGE_SECONDS)
        assert endpoint.statistics().sessions == 0
        nursery.cancel_scope.cancel()
