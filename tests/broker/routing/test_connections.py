"""Connected devices (reference 16.1): one persistent connection per device token, and what ends one."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from broker.accounts.permissions import Permission, Permissions
from broker.clock import Clock
from broker.devices.registry import Device
from broker.envelope import Action
from broker.facts import (
    ActionStored,
    DeviceChanged,
    DeviceWentOffline,
    DeviceWentOnline,
    Fact,
    GrantsChanged,
    Router,
    TokenRevoked,
)
from broker.routing.connections import CloseReason, Connections, ConnectionStatistics, DeviceLink
from broker.services import Services
from storage.keys import DeviceKey, Milliseconds, Position
from tests.factories import APPLICATION_TOKEN, NOW_MS, World, make_device
from tests.fakes import FakeClock
from tests.properties import examples

TOKEN, OTHER_TOKEN = b"t" * 32, b"o" * 32


class Peer:
    """A peer: the Actions it got, and the reasons for which it was closed."""

    def __init__(self, *, slow: bool = False) -> None:
        self.slow = slow
        self.actions: list[Action] = []
        self.closed: list[CloseReason] = []

    def deliver(self, action: Action) -> bool:
        if self.slow:
            return False
        self.actions.append(action)
        return True


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_MS)


@pytest.fixture
def connections(router: Router, clock: FakeClock) -> Connections:
    return Connections(router, Clock(clock))


@pytest.fixture
def facts(router: Router) -> list[Fact]:
    heard: list[Fact] = []
    router.subscribe(DeviceWentOnline, heard.append)
    router.subscribe(DeviceWentOffline, heard.append)
    return heard


@pytest.fixture
def light() -> Device:
    return make_device(1)


def connect(
    connections: Connections,
    device: Device,
    peer: Peer,
    *,
    protocol: str = "MQTT",
    token: bytes = TOKEN,
    exclusive: bool = True,
) -> AbstractContextManager[DeviceLink]:
    return connections.connect(
        device, protocol=protocol, token=token, exclusive=exclusive, deliver=peer.deliver, close=peer.closed.append
    )


@contextmanager
def connected(
    connections: Connections, device: Device, *, token: bytes = TOKEN, exclusive: bool = True, slow: bool = False
) -> Iterator[Peer]:
    peer = Peer(slow=slow)
    with connect(connections, device, peer, token=token, exclusive=exclusive):
        yield peer


def action(destination: Device, position: int = 1) -> ActionStored:
    stored = Action(
        position=Position(position),
        mid=f"{position:032x}",
        sdid=destination.id,
        ddid=destination.id,
        ddtid=destination.type.id,
        uid=destination.owner_id,
        boid="",
        ts=Milliseconds(1),
        cts=Milliseconds(1),
        mv=1,
        data="{}",
    )
    return ActionStored(action=stored, source=destination.key, destination=destination.key)


# Online and offline


def test_a_device_is_online_while_it_has_a_link(
    connections: Connections, light: Device, facts: list[Fact], clock: FakeClock
) -> None:
    assert not connections.is_online(light.key)
    with connected(connections, light):
        assert connections.is_online(light.key)
        assert facts == [DeviceWentOnline(light.key, "MQTT", NOW_MS)]
        clock.advance(5)
    assert not connections.is_online(light.key)
    assert facts[1:] == [DeviceWentOffline(light.key, Milliseconds(NOW_MS + 5))]


def test_a_connection_that_breaks_takes_its_device_offline(connections: Connections, light: Device) -> None:
    with pytest.raises(ConnectionError), connected(connections, light):
        raise ConnectionError
    assert not connections.is_online(light.key)


def test_links_with_user_tokens_are_not_limited_and_count_for_being_online(
    connections: Connections, light: Device, facts: list[Fact]
) -> None:
    with connected(connections, light, exclusive=False) as first:
        with (
            connected(connections, light, exclusive=False) as second,
            connected(connections, light) as own,
        ):
            assert connections.statistics().links == 3
        assert connections.is_online(light.key)
    assert [peer.closed for peer in (first, second, own)] == [[], [], []]
    assert [type(fact) for fact in facts] == [DeviceWentOnline, DeviceWentOffline]


def test_devices_do_not_disturb_each_other(connections: Connections, light: Device) -> None:
    other = make_device(2)
    with connected(connections, light) as first, connected(connections, other) as second:
        assert (first.closed, second.closed) == ([], [])
        assert connections.statistics().devices_online == 2
    assert connections.statistics() == ConnectionStatistics(0, 0, 0, 0, 0)


# Taking over


def test_a_new_connection_replaces_the_old_one_which_is_closed_once(
    connections: Connections, router: Router, light: Device, facts: list[Fact]
) -> None:
    old, new = Peer(), Peer()
    old_link = connect(connections, light, old, protocol="WEBSOCKET")
    old_link.__enter__()
    new_link = connect(connections, light, new, protocol="MQTT")
    new_link.__enter__()
    assert (old.closed, new.closed) == ([CloseReason.REPLACED], [])
    assert connections.statistics().takeovers == 1
    assert connections.statistics().links == 1
    router.publish(action(light))
    assert (len(old.actions), len(new.actions)) == (0, 1)

    # The late cleanup of the old connection does not touch the new one.
    old_link.__exit__(None, None, None)
    assert connections.is_online(light.key)
    assert connections.statistics().links == 1
    with connected(connections, light) as third:
        assert new.closed == [CloseReason.REPLACED]
        assert third.closed == []
    new_link.__exit__(None, None, None)
    assert old.closed == [CloseReason.REPLACED]
    assert [type(fact) for fact in facts] == [DeviceWentOnline, DeviceWentOffline]


def test_the_new_connection_is_registered_before_the_old_one_is_closed(connections: Connections, light: Device) -> None:
    online: list[tuple[bool, int]] = []
    old = connections.connect(
        light,
        protocol="MQTT",
        token=TOKEN,
        exclusive=True,
        deliver=lambda _action: True,
        close=lambda _reason: online.append((connections.is_online(light.key), connections.statistics().links)),
    )
    with old, connected(connections, light):
        assert online == [(True, 1)]


def test_a_device_is_offline_without_its_new_connection_even_while_the_old_one_closes(
    connections: Connections, light: Device, facts: list[Fact]
) -> None:
    with connected(connections, light):
        with connected(connections, light):
            pass
        assert not connections.is_online(light.key)
    assert [type(fact) for fact in facts] == [DeviceWentOnline, DeviceWentOffline]


def test_actions_lost_by_a_replaced_link_stay_counted(connections: Connections, router: Router, light: Device) -> None:
    with connected(connections, light, slow=True):
        router.publish(action(light))
        with connected(connections, light):
            assert connections.statistics().actions_dropped == 1
    assert connections.statistics().actions_dropped == 1


def test_links_with_other_tokens_are_left_alone_by_a_take_over(connections: Connections, light: Device) -> None:
    with connected(connections, light, exclusive=False, token=OTHER_TOKEN) as user:
        with connected(connections, light), connected(connections, light):
            pass
        assert user.closed == []
        assert connections.is_online(light.key)


def test_an_old_connection_that_cannot_be_closed_is_replaced_all_the_same(
    connections: Connections, light: Device
) -> None:
    def fail(_reason: CloseReason) -> None:
        raise ZeroDivisionError

    broken = connections.connect(
        light, protocol="MQTT", token=TOKEN, exclusive=True, deliver=lambda _action: True, close=fail
    )
    with broken, connected(connections, light):
        assert connections.statistics().links == 1
    assert connections.statistics().links == 0


# Actions


def test_an_action_goes_to_every_link_of_its_destination_and_nowhere_else(
    connections: Connections, router: Router, light: Device
) -> None:
    other = make_device(2)
    with (
        connected(connections, light) as own,
        connected(connections, light, exclusive=False) as user,
        connected(connections, other) as stranger,
    ):
        stored = action(light)
        router.publish(stored)
        assert (own.actions, user.actions, stranger.actions) == ([stored.action], [stored.action], [])
        assert connections.statistics().actions_delivered == 2


def test_an_action_for_a_device_that_is_not_connected_is_not_kept(
    connections: Connections, router: Router, light: Device
) -> None:
    router.publish(action(light))
    with connected(connections, light) as peer:
        assert peer.actions == []
    assert connections.statistics().actions_dropped == 0


def test_a_slow_device_loses_its_own_actions_and_they_are_counted(
    connections: Connections, router: Router, light: Device
) -> None:
    with connected(connections, light, exclusive=False) as quick:
        with connected(connections, light, slow=True):
            router.publish(action(light, 1))
            router.publish(action(light, 2))
            assert len(quick.actions) == 2
            assert connections.statistics() == ConnectionStatistics(2, 1, 0, 2, 2)
        assert connections.statistics() == ConnectionStatistics(1, 1, 0, 2, 2)


def test_a_link_that_raises_does_not_harm_the_others(connections: Connections, router: Router, light: Device) -> None:
    def fail(_argument: object) -> Any:
        raise ZeroDivisionError

    broken = connections.connect(light, protocol="MQTT", token=TOKEN, exclusive=True, deliver=fail, close=fail)
    with broken, connected(connections, light, exclusive=False) as peer:
        router.publish(action(light))
        assert len(peer.actions) == 1
        assert connections.statistics().actions_dropped == 1
        router.publish(TokenRevoked(TOKEN))
        assert peer.closed == [CloseReason.TOKEN_REVOKED]
        connections.close_all()
        assert peer.closed == [CloseReason.TOKEN_REVOKED, CloseReason.SHUTDOWN]


# Ends of connections


def test_a_revoked_token_ends_the_links_that_came_with_it(
    connections: Connections, router: Router, light: Device
) -> None:
    other = make_device(2)
    with (
        connected(connections, light) as own,
        connected(connections, light, exclusive=False, token=OTHER_TOKEN) as user,
        connected(connections, other, exclusive=False, token=OTHER_TOKEN) as user_too,
    ):
        router.publish(TokenRevoked(OTHER_TOKEN))
        assert own.closed == []
        assert user.closed == user_too.closed == [CloseReason.TOKEN_REVOKED]
        router.publish(TokenRevoked(b"x" * 32))
        assert own.closed == []


def test_a_disabled_device_loses_its_links(connections: Connections, router: Router, light: Device) -> None:
    other = make_device(2)
    with (
        connected(connections, light) as own,
        connected(connections, light, exclusive=False) as user,
        connected(connections, other) as stranger,
    ):
        router.publish(DeviceChanged(light.key))
        assert own.closed == []
        light.refresh(replace(light.record, enabled=False), light.type)
        router.publish(DeviceChanged(light.key))
        assert own.closed == user.closed == [CloseReason.DEVICE_DISABLED]
        assert stranger.closed == []


async def test_a_link_ends_with_its_grant_even_if_links_subscribed_before_permissions(
    connections: Connections, router: Router, services: Services, world: World
) -> None:
    permissions = Permissions(services.core.database, router)  # after `connections`: their handlers come later
    kitchen = await services.devices.registry.get(world.kitchen)
    reach = await permissions.reach(await services.accounts.tokens.caller(APPLICATION_TOKEN))
    peer = Peer()
    with connections.connect(
        kitchen,
        protocol="WEBSOCKET",
        token=TOKEN,
        exclusive=False,
        deliver=peer.deliver,
        close=peer.closed.append,
        is_allowed=lambda: reach.allows(kitchen, Permission.WRITE),
    ):
        assert reach.allows(kitchen, Permission.WRITE)
        router.publish(GrantsChanged(world.ada, world.application, ()))
        assert peer.closed == [CloseReason.PERMISSION_REMOVED]


def test_every_link_is_closed_when_the_daemon_stops(connections: Connections, light: Device) -> None:
    with connected(connections, light) as own, connected(connections, make_device(2), exclusive=False) as user:
        connections.close_all()
        assert own.closed == user.closed == [CloseReason.SHUTDOWN]


# Any order of connecting, replacing and leaving


class AnyOrder(RuleBasedStateMachine):
    """Devices connect, take over and leave in any order; leaving after being replaced may be late."""

    def __init__(self) -> None:
        super().__init__()
        router = Router()
        self.devices = {key: make_device(key) for key in (1, 2)}
        self.connections = Connections(router, Clock(FakeClock(NOW_MS)))
        self.facts: dict[int, list[type[Fact]]] = {1: [], 2: []}
        self.open: list[tuple[AbstractContextManager[DeviceLink], Peer, int, bool]] = []
        self.takeovers = 0
        self.router = router
        router.subscribe(DeviceWentOnline, lambda fact: self.facts[fact.device].append(type(fact)))
        router.subscribe(DeviceWentOffline, lambda fact: self.facts[fact.device].append(type(fact)))

    def live(self, key: int) -> list[Peer]:
        return [peer for _, peer, device, _ in self.open if device == key and not peer.closed]

    @rule(key=st.sampled_from([1, 2]), exclusive=st.booleans())
    def connect(self, key: int, exclusive: bool) -> None:
        incumbents = [
            peer
            for _, peer, device, only in self.open
            if (device, only) == (key, True) and exclusive and not peer.closed
        ]
        peer = Peer()
        link = connect(self.connections, self.devices[key], peer, exclusive=exclusive)
        link.__enter__()
        self.open.append((link, peer, key, exclusive))
        assert [one.closed for one in incumbents] == [[CloseReason.REPLACED]] * len(incumbents)
        self.takeovers += len(incumbents)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        link, *_ = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        link.__exit__(None, None, None)

    @rule(key=st.sampled_from([1, 2]))
    def send_an_action(self, key: int) -> None:
        before = [(peer, len(peer.actions), device) for _, peer, device, _ in self.open]
        live = self.live(key)
        self.router.publish(action(self.devices[key]))
        assert [len(peer.actions) - count for peer, count, _ in before] == [int(peer in live) for peer, _, _ in before]

    @invariant()
    def a_device_has_at_most_one_exclusive_link(self) -> None:
        for key in self.devices:
            exclusive = [peer for _, peer, device, only in self.open if (device, only) == (key, True)]
            assert sum(not peer.closed for peer in exclusive) <= 1

    @invariant()
    def nobody_is_told_twice(self) -> None:
        assert all(len(peer.closed) <= 1 for _, peer, _, _ in self.open)

    @invariant()
    def a_device_is_online_exactly_while_it_has_a_link(self) -> None:
        for key in self.devices:
            assert self.connections.is_online(DeviceKey(key)) is bool(self.live(key))

    @invariant()
    def facts_alternate_and_the_last_one_is_true(self) -> None:
        for key, facts in self.facts.items():
            assert facts == [DeviceWentOnline, DeviceWentOffline] * (len(facts) // 2) + [DeviceWentOnline] * (
                len(facts) % 2
            )
            assert len(facts) % 2 == int(self.connections.is_online(DeviceKey(key)))

    @invariant()
    def the_statistics_agree(self) -> None:
        statistics = self.connections.statistics()
        assert statistics.links == sum(len(self.live(key)) for key in self.devices)
        assert statistics.devices_online == sum(bool(self.live(key)) for key in self.devices)
        assert statistics.takeovers == self.takeovers


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
