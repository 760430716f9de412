"""Notifications that are large: the address is verified first, and blocks are fetched (RFC 7959, 2.6)."""

import json

import cbor2
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.services import Services
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.messages import CBOR, CoapMessage, Code, Option, uint
from protocols.coap.observers import FETCH_SECONDS
from protocols.coap.session_endpoint import SESSION_SWEEP_SECONDS
from tests.factories import HALL_TOKEN, KITCHEN_TOKEN, World
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.peers import (
    Peer,
    error,
    observing,
    option,
    send_action,
)


class TestLargeNotifications:
    ACTIONS = {"actions": [{"name": "setOn", "parameters": {"text": "x" * 400}}]}  # noqa: RUF012

    async def test_are_sent_after_the_address_is_verified(self, peer: Peer, services: Services, world: World) -> None:
        """The address of the request may be spoofed: a ping is sent first."""
        await observing(peer)
        await send_action(services, world.kitchen, self.ACTIONS)
        ping = peer.take()
        assert ping.code == Code.EMPTY
        peer.reset(ping)
        assert json.loads(peer.take().payload) == self.ACTIONS

    async def test_are_not_sent_to_a_spoofed_address(
        self, peer: Peer, endpoint: CoapEndpoint, services: Services, world: World, time: Time
    ) -> None:
        await observing(peer)
        await send_action(services, world.kitchen, self.ACTIONS)
        for seconds in (2, 4, 8, 16, 32, 64):
            time.now += seconds
            endpoint.tick(time.now)
        assert {message.code for message in peer.inbox} == {Code.EMPTY}
        assert not services.routing.connections.is_online(world.kitchen)


class TestBlocks:
    """A notification is fetched to its end before the next one is sent, because no Action may be lost."""

    @staticmethod
    def _actions(name: str) -> object:
        return {"actions": [{"name": name, "parameters": {"text": name * 200}}]}

    async def _begun(
        self, peer: Peer, services: Services, world: World, *names: str, options: tuple[tuple[int, bytes], ...] = ()
    ) -> CoapMessage:
        """Observe and send Actions. Returns the first block of the first notification, which is acknowledged."""
        await observing(peer, KITCHEN_TOKEN, (Option.BLOCK2, uint(2)), *options)  # 64 bytes
        for name in names:
            await send_action(services, world.kitchen, self._actions(name))
        first = peer.take()
        peer.acknowledge(first)
        return first

    @staticmethod
    def _ask(peer: Peer, number: int, token: str = KITCHEN_TOKEN) -> CoapMessage:
        peer.request(Code.GET, f"v1.1/actions/{token}", options=[(Option.BLOCK2, uint(number << 4 | 2))])
        return peer.inbox.pop(0)

    def _fetch(self, peer: Peer, first: CoapMessage, token: str = KITCHEN_TOKEN) -> bytes:
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

    async def test_are_fetched_before_the_next_notification_is_sent(
        self, peer: Peer, services: Services, world: World
    ) -> None:
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
        """The acknowledgement may be lost."""
        await observing(peer, KITCHEN_TOKEN, (Option.BLOCK2, uint(2)))
        for name in "ab":
            await send_action(services, world.kitchen, self._actions(name))
        first = peer.take()
        assert json.loads(self._fetch(peer, first)) == self._actions("a")
        assert peer.inbox == []
        peer.acknowledge(first)
        assert b'"b"' in peer.take().payload

    async def test_that_are_not_fetched_delay_the_next_notification_for_a_time(
        self, peer: Peer, endpoint: CoapEndpoint, services: Services, world: World, time: Time
    ) -> None:
        await self._begun(peer, services, world, "a", "b")
        time.now += FETCH_SECONDS - 1
        endpoint.tick(time.now)
        assert peer.inbox == []
        time.now += SESSION_SWEEP_SECONDS
        endpoint.tick(time.now)
        second = peer.take()
        peer.acknowledge(second)
        time.now += FETCH_SECONDS + SESSION_SWEEP_SECONDS
        endpoint.tick(time.now)
        (observer,) = peer.session().observers.values()
        assert observer.observation.bytes_held == 0
        assert endpoint.statistics().bytes_held == peer.session().bytes_held
        assert error(self._ask(peer, 1))[0] == "4.00"

    async def test_that_are_fetched_slowly_delay_it_for_longer(
        self, peer: Peer, endpoint: CoapEndpoint, services: Services, world: World, time: Time
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
            await send_action(services, device, self._actions(name))
            first[token] = peer.take()
            peer.acknowledge(first[token])
        for token, (name, _) in reversed(names.items()):
            assert json.loads(self._fetch(peer, first[token], token)) == self._actions(name)

    async def test_in_cbor(self, peer: Peer, services: Services, world: World) -> None:
        """A request for a further block need not repeat the option Accept."""
        first = await self._begun(peer, services, world, "a", options=((Option.ACCEPT, uint(CBOR)),))
        assert option(first, Option.CONTENT_FORMAT) == uint(CBOR)
        assert cbor2.loads(self._fetch(peer, first)) == self._actions("a")

    @pytest.mark.parametrize("is_acknowledged", [False, True])
    async def test_are_sent_again_from_the_first_after_a_refresh(
        self, peer: Peer, services: Services, world: World, is_acknowledged: bool
    ) -> None:
        """A client that has just restarted does not fetch the rest of an earlier notification."""
        await observing(peer, KITCHEN_TOKEN, (Option.BLOCK2, uint(2)))
        await send_action(services, world.kitchen, self._actions("a"))
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
        self, peer: Peer, endpoint: CoapEndpoint, services: Services, world: World, time: Time
    ) -> None:
        await self._begun(peer, services, world, "a", "b")
        peer.observe(KITCHEN_TOKEN, 1)
        peer.inbox.clear()
        assert error(self._ask(peer, 1))[0] == "4.00"
        time.now += FETCH_SECONDS
        endpoint.tick(time.now)
        assert peer.inbox == []

    async def test_beyond_the_end(self, peer: Peer, services: Services, world: World) -> None:
        await self._begun(peer, services, world, "a")
        assert error(self._ask(peer, 100))[0] == "4.00"
