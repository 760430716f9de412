"""Unexpected exceptions: each ends one request or session, is logged once, and touches nothing else."""

import json
from collections.abc import Callable

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.messages.ingest import Ingest
from broker.services import Services
from config.limits import COAP_SILENCE_SECONDS
from protocols.coap.containment import Failure, contain, contain_async
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.messages import ACK, Code, empty
from protocols.coap.observers import Observers
from tests.factories import HALL_TOKEN, KITCHEN_TOKEN, World
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.peers import Peer, error

STATE = {"data": {"state": True}}


async def test_in_a_request_is_answered_with_5_00_and_ends_nothing(
    peer: Peer, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError

    await services.devices.registry.by_token(KITCHEN_TOKEN)
    with monkeypatch.context() as patch:
        patch.setattr(Ingest, "submit", broken)
        peer.post(KITCHEN_TOKEN, STATE)
    answer = peer.take()
    assert error(answer) == ("5.00", "Internal Server Error")
    assert len(json.loads(answer.payload)["error"]["id"]) == 32
    peer.post(KITCHEN_TOKEN, STATE)
    await wait_all_tasks_blocked()
    assert peer.take().code == Code.CREATED


class TestOutsideRequests:
    """Where no request is to be answered, an exception ends one session."""

    @pytest.fixture
    async def observer(self, peer: Peer, services: Services, world: World) -> Peer:
        """A client that observes; the only message in its inbox is a notification to acknowledge."""
        await services.devices.registry.by_token(KITCHEN_TOKEN)
        await services.devices.registry.by_token(HALL_TOKEN)
        peer.observe(KITCHEN_TOKEN)
        peer.inbox.clear()
        light = await services.devices.registry.get(world.kitchen)
        services.messages.ingest.submit_action(light, light, b'{"actions":[{"name":"setOn"}]}')
        await services.messages.ingest.wait_committed()
        return peer

    @pytest.mark.parametrize("method", ["delivered", "rejected", "timed_out", "end", "heard"])
    async def test_end_one_session(
        self, observer: Peer, endpoint: CoapEndpoint, time: Time, monkeypatch: pytest.MonkeyPatch, method: str
    ) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError

        notification = observer.take()
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(Observers, method, broken)
            if method in ("delivered", "heard"):
                observer.acknowledge(notification)
            elif method in ("rejected", "end"):
                observer.reset(notification)
            for _ in range(6):  # every transmission of the notification
                time.now += 40
                endpoint.tick(time.now)
        assert [entry["event"] for entry in logs] == ["coap_session_failed"]
        statistics = endpoint.statistics()
        assert (statistics.sessions, statistics.bytes_held) == (0, 0)
        other = Peer(endpoint, "other")
        other.observe(HALL_TOKEN)
        assert other.take().code == Code.CONTENT

    async def test_take_the_device_offline(
        self, observer: Peer, services: Services, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.delattr(Observers, "delivered")
            observer.acknowledge(observer.take())
        assert error(observer.take())[0] == "5.03"
        assert not services.routing.connections.is_online(world.kitchen)

    async def test_are_raised_to_a_listener_that_contains_them(
        self, observer: Peer, endpoint: CoapEndpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(Observers, "delivered")
        with pytest.raises(AttributeError):
            endpoint.receive(observer.session(), empty(ACK, observer.take().message_id))

    async def test_in_decoding_a_datagram_end_no_session(
        self, endpoint: CoapEndpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        peer = Peer(endpoint)
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.delattr("protocols.coap.endpoint.decode_message")
            peer.request(Code.GET, ".well-known/core")
        assert [entry["event"] for entry in logs] == ["coap_session_failed"]
        peer.request(Code.GET, ".well-known/core")
        assert peer.take().code == Code.CONTENT


@pytest.mark.parametrize(
    ("peer", "logged"),
    [
        (("192.0.2.1", 40000), "192.0.2.1:40000"),
        (("2001:db8::1", 40001, 0, 0, bytes(16)), "[2001:db8::1]:40001"),
        ("key", "key"),
    ],
)
async def test_the_log_has_the_peer_and_the_error(peer: object, logged: str) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with capture_logs() as logs:
        failures = [
            contain("event", None, peer, _broken),
            await contain_async("event", peer, fail, details={"more": 1}),
        ]
    assert [(entry["event"], entry["peer"], entry.get("more")) for entry in logs] == [
        ("event", logged, None),
        ("event", logged, 1),
    ]
    assert [Failure(entry["error_id"]) for entry in logs] == failures
    assert all(isinstance(entry["exc_info"], ZeroDivisionError) for entry in logs)


async def test_without_an_exception_the_result_is_returned() -> None:
    async def add(one: int, other: int) -> int:
        return one + other

    assert contain("event", None, "peer", int, "7") == 7
    assert await contain_async("event", "peer", add, 3, 4) == 7


@pytest.mark.parametrize("does_end_raise", [False, True])
def test_what_the_call_was_part_of_is_ended(does_end_raise: bool) -> None:
    ended: list[object] = []

    def end(peer: object) -> None:
        ended.append(peer)
        if does_end_raise:
            raise ZeroDivisionError

    with capture_logs() as logs:
        contain("event", end, "peer", _broken)
    assert (ended, len(logs)) == (["peer"], 1)


async def test_a_cancellation_is_raised() -> None:
    with capture_logs() as logs, trio.move_on_after(0) as scope:
        await contain_async("event", "peer", trio.sleep_forever)
    assert (scope.cancelled_caught, logs) == (True, [])


class TestSeveralSessions:
    """An exception in one of them does not affect the others."""

    @pytest.fixture
    async def peers(self, endpoint: CoapEndpoint, services: Services) -> list[Peer]:
        """Two clients that observe a device each; the first one shall fail."""
        peers = [Peer(endpoint, "first"), Peer(endpoint, "second")]
        for peer, token in zip(peers, (KITCHEN_TOKEN, HALL_TOKEN), strict=True):
            await services.devices.registry.by_token(token)
            peer.observe(token)
            peer.inbox.clear()
        return peers

    @pytest.mark.parametrize("method", ["shut_down", "end", "send"])
    async def test_that_end_with_the_listener(
        self,
        endpoint: CoapEndpoint,
        peers: list[Peer],
        services: Services,
        monkeypatch: pytest.MonkeyPatch,
        method: str,
    ) -> None:
        first = peers[0].session()
        if method == "send":
            monkeypatch.setattr(first, "send", _broken)
        elif method == "end":
            monkeypatch.setattr(first, "_end", _broken)
        else:
            monkeypatch.setattr(Observers, "shut_down", _broken_for(first, Observers.shut_down))
        with capture_logs() as logs:
            endpoint.close_all()
        assert [(entry["event"], entry["peer"]) for entry in logs] == [("coap_session_failed", "first")]
        assert error(peers[1].take())[0] == "5.03"
        assert (endpoint.statistics().sessions, endpoint.statistics().bytes_held) == (0, 0)
        online = services.routing.connections.statistics().devices_online
        assert online == (1 if method == "shut_down" else 0)

    async def test_whose_messages_are_committed_together(
        self, endpoint: CoapEndpoint, peers: list[Peer], services: Services, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peers[0].session(), "send", _broken)
        for peer, token in zip(peers, (KITCHEN_TOKEN, HALL_TOKEN), strict=True):
            peer.post(token, STATE)
        with capture_logs() as logs:
            await services.messages.ingest.wait_committed()
        assert [(entry["event"], entry["peer"]) for entry in logs] == [("coap_session_failed", "first")]
        assert peers[1].take().code == Code.CREATED
        assert (endpoint.find("first"), endpoint.find("second")) == (None, peers[1].session())

    async def test_that_are_swept_together(
        self, endpoint: CoapEndpoint, peers: list[Peer], time: Time, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = peers[0].session()
        monkeypatch.setattr(Observers, "ping", _broken_for(first, Observers.ping))
        time.now += COAP_SILENCE_SECONDS
        with capture_logs() as logs:
            endpoint.tick(time.now)
        assert [(entry["event"], entry["peer"]) for entry in logs] == [("coap_session_failed", "first")]
        assert peers[1].take().code == Code.EMPTY  # a ping
        assert (endpoint.find("first"), endpoint.find("second")) == (None, peers[1].session())


async def test_one_observation_of_several_that_fails_to_end_does_not_keep_the_others(
    endpoint: CoapEndpoint, peer: Peer, services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token, request_token in ((KITCHEN_TOKEN, b"k"), (HALL_TOKEN, b"h")):
        await services.devices.registry.by_token(token)
        peer.observe(token, request_token=request_token)
    first = peer.session().observers[b"k"]
    monkeypatch.setattr(Observers, "end", _broken_for(first, Observers.end))
    with capture_logs() as logs:
        endpoint.close(peer.session())
    assert [entry["event"] for entry in logs] == ["coap_session_failed"]
    assert not services.routing.connections.is_online(world.hall)


async def test_stop_closes_the_sessions_although_the_last_commit_is_late(
    endpoint: CoapEndpoint, peer: Peer, services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await services.devices.registry.by_token(KITCHEN_TOKEN)
    peer.observe(KITCHEN_TOKEN)
    peer.inbox.clear()
    monkeypatch.setattr(Ingest, "wait_committed", _never)
    monkeypatch.setattr("protocols.coap.endpoint._COMMIT_SECONDS", 0.01)
    with trio.fail_after(5):
        await endpoint.stop()
    assert error(peer.take())[0] == "5.03"
    assert not services.routing.connections.is_online(world.kitchen)


async def _never(_ingest: Ingest) -> None:
    await trio.sleep_forever()


def _broken(*_: object) -> None:
    raise ZeroDivisionError


def _broken_for(one: object, method: Callable[..., None]) -> Callable[..., None]:
    """The method, which raises for this session or observer."""

    def called(self: Observers, subject: object, *arguments: object) -> None:
        if subject is one:
            raise ZeroDivisionError
        method(self, subject, *arguments)

    return called
