"""Which datagrams of strangers and of known peers are served (reference 17)."""

import pytest
from trio.testing import wait_all_tasks_blocked

from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.messages import RST, Code
from protocols.coap.session import OVERHEAD_AT_ONCE, OVERHEAD_PER_SECOND
from protocols.coap.sockets import STRANGER_WEIGHT
from protocols.coap.strangers import SOURCE_AT_ONCE, SOURCE_PER_SECOND, DatagramStrangers
from tests.factories import KITCHEN_TOKEN
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.peers import Peer

STATE = {"data": {"state": True}}
PING = bytes.fromhex("40001234")
MANY = 1_000_000


class TestStrangers:
    def test_a_source_gets_so_many_and_then_a_few_in_a_minute(self, time: Time) -> None:
        strangers = DatagramStrangers(time, per_second=MANY)
        assert sum(strangers.admits("a") for _ in range(MANY // 1_000)) == SOURCE_AT_ONCE
        time.now += 60
        assert sum(strangers.admits("a") for _ in range(MANY // 1_000)) == 60 * SOURCE_PER_SECOND
        assert strangers.dropped == 2 * MANY // 1_000 - SOURCE_AT_ONCE - 60 * SOURCE_PER_SECOND

    def test_all_together_get_so_many_in_a_second_and_a_tenth_of_them_at_once(self, time: Time) -> None:
        strangers = DatagramStrangers(time, per_second=1_000)
        assert sum(strangers.admits(number) for number in range(1_000)) == 100
        admitted = 0
        for tenth in range(10):
            time.now += 0.1
            admitted += sum(strangers.admits((tenth, number)) for number in range(1_000))
        assert admitted == 1_000

    def test_sources_that_have_sent_enough_take_nothing_from_a_new_one(self, time: Time) -> None:
        strangers = DatagramStrangers(time, per_second=1_000)
        for _ in range(100):  # seconds of a flood from 400 sources
            time.now += 1
            for number in range(400 * 3):
                strangers.admits(number % 400)
        assert strangers.admits("new")


class TestEndpoint:
    async def test_a_stranger_beyond_its_allowance_is_dropped_and_another_is_served(
        self, endpoint: CoapEndpoint
    ) -> None:
        flood, device = Peer(endpoint, "flood"), Peer(endpoint, "device")
        for _ in range(SOURCE_AT_ONCE + 100):
            flood.send(PING)
        assert len(flood.inbox) == SOURCE_AT_ONCE
        device.post(KITCHEN_TOKEN, STATE)
        await wait_all_tasks_blocked()
        assert device.take().code == Code.CREATED
        assert endpoint.statistics().strangers_dropped == 100

    async def test_a_device_is_no_stranger(self, peer: Peer) -> None:
        for _ in range(SOURCE_AT_ONCE + 10):
            peer.post(KITCHEN_TOKEN, STATE)
            await wait_all_tasks_blocked()
            assert peer.take().code == Code.CREATED

    @pytest.mark.parametrize(
        "datagram", [PING, b"\x40\x01\x12\x35", b"\x40garbage"], ids=["ping", "unknown path", "malformed"]
    )
    async def test_a_device_beyond_its_allowance_of_overhead_is_dropped(
        self, endpoint: CoapEndpoint, peer: Peer, time: Time, datagram: bytes
    ) -> None:
        peer.post(KITCHEN_TOKEN, STATE)
        await wait_all_tasks_blocked()
        peer.take()
        for _ in range(OVERHEAD_AT_ONCE + 50):
            peer.send(datagram)
        assert endpoint.statistics().overhead_dropped == 50
        peer.inbox.clear()
        time.now += 2 / OVERHEAD_PER_SECOND
        peer.send(PING)
        assert peer.take().type == RST

    async def test_the_weight_of_a_datagram(self, endpoint: CoapEndpoint) -> None:
        def weight() -> int:
            return endpoint.receive_from(lambda _address, _sent: None, "stranger", PING)

        assert [weight() for _ in range(SOURCE_AT_ONCE + 2)] == [STRANGER_WEIGHT] * SOURCE_AT_ONCE + [0, 0]
