"""Places for unauthenticated connections (reference 21.6)."""

import pytest
import trio
from trio.testing import MockClock

from broker.limits.strangers import Place, Strangers
from config.limits import UNAUTHENTICATED_SECONDS, UNAUTHENTICATED_WAIT_SECONDS


def gone() -> None:
    """The end of a connection that nobody asks about."""


NEW = "192.0.2.200"  # an address without a place


class Connections:
    """The connections that have entered, and the ones that had to go."""

    def __init__(self, strangers: Strangers) -> None:
        self.strangers = strangers
        self.ended: list[str] = []

    def enter(self, name: str, address: str | None = None) -> Place | None:
        return self.strangers.enter(address, lambda: self.ended.append(name))

    def must_enter(self, name: str, address: str | None = None) -> Place:
        place = self.enter(name, address)
        assert place is not None
        return place


async def test_one_address_has_so_many_places_and_leaves_the_others_alone(autojump_clock: MockClock) -> None:
    connections = Connections(Strangers(in_all=10, of_one_address=2))
    first = connections.must_enter("a", "192.0.2.1")
    connections.must_enter("b", "192.0.2.1")
    assert connections.enter("c", "192.0.2.1") is None
    connections.must_enter("d", "192.0.2.2")
    first.leave()
    first.leave()  # no effect: it has left
    connections.must_enter("e", "192.0.2.1")
    assert connections.enter("f", "192.0.2.1") is None
    assert connections.ended == []
    statistics = connections.strangers.statistics()
    assert (statistics.connections, statistics.waiting, statistics.ended_for_others) == (3, 0, 0)


async def test_all_addresses_of_an_ipv6_network_are_one(autojump_clock: MockClock) -> None:
    connections = Connections(Strangers(in_all=10, of_one_address=1))
    connections.must_enter("a", "2001:db8::1")
    assert connections.enter("b", "2001:db8::2:1") is None
    connections.must_enter("c", "2001:db8:0:1::1")


async def test_a_shared_address_is_not_limited(autojump_clock: MockClock) -> None:
    connections = Connections(Strangers(in_all=3, of_one_address=1))
    for name in "abc":
        connections.must_enter(name)
    assert connections.enter("d") is None


async def test_who_has_had_a_place_for_long_makes_room_for_another_of_the_address(autojump_clock: MockClock) -> None:
    connections = Connections(Strangers(in_all=10, of_one_address=2))
    connections.must_enter("other", "192.0.2.9")
    connections.must_enter("a", "192.0.2.1")
    await trio.sleep(UNAUTHENTICATED_SECONDS)
    connections.must_enter("b", "192.0.2.1")
    connections.must_enter("c", "192.0.2.1")
    assert connections.ended == ["a"]
    assert connections.enter("d", "192.0.2.1") is None  # b and c are new
    assert connections.strangers.statistics().ended_for_others == 1


async def test_a_listener_waits_until_there_is_room(autojump_clock: MockClock) -> None:
    strangers = Strangers(in_all=2, of_one_address=2)
    connections = Connections(strangers)
    place = connections.must_enter("a", "192.0.2.1")
    await strangers.wait_room(NEW)
    connections.must_enter("b", "192.0.2.2")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strangers.wait_room, NEW)
        await trio.testing.wait_all_tasks_blocked()
        place.leave()
    assert trio.current_time() == 0
    assert connections.ended == []


async def test_a_listener_waits_at_most_until_the_oldest_has_to_go(autojump_clock: MockClock) -> None:
    strangers = Strangers(in_all=2, of_one_address=2)
    connections = Connections(strangers)
    connections.must_enter("a", "192.0.2.1")
    connections.must_enter("b", "192.0.2.2")
    await strangers.wait_room(NEW)
    assert trio.current_time() == pytest.approx(UNAUTHENTICATED_SECONDS)
    connections.must_enter("c", "192.0.2.3")
    assert connections.ended == ["a"]


async def test_a_storm_of_connections_that_authenticate_gets_through(autojump_clock: MockClock) -> None:
    """A thousand devices behind one address connect at once: each needs its place for a moment only."""
    strangers = Strangers(in_all=20, of_one_address=10)
    ended: list[str] = []
    served = 0

    async def authenticate(name: str) -> None:
        nonlocal served
        place = await strangers.wait_place("192.0.2.1", lambda: ended.append(name))
        assert place is not None
        await trio.sleep(0.05)
        place.leave()
        served += 1

    async with trio.open_nursery() as nursery:
        for number in range(1000):
            nursery.start_soon(authenticate, str(number))
        await trio.testing.wait_all_tasks_blocked()
        statistics = strangers.statistics()
        assert (statistics.connections, statistics.waiting) == (10, 990)
    assert served == 1000
    assert ended == []
    statistics = strangers.statistics()
    assert (statistics.connections, statistics.waiting, statistics.refused) == (0, 0, 0)


async def test_who_waits_comes_in_the_order_of_arrival_when_the_oldest_have_to_go(autojump_clock: MockClock) -> None:
    connections = Connections(Strangers(in_all=10, of_one_address=2))
    strangers, came = connections.strangers, []
    for name in "ab":
        connections.must_enter(name, "192.0.2.1")

    async def wait(name: str) -> None:
        if await strangers.wait_place("192.0.2.1", lambda: connections.ended.append(name)) is not None:
            came.append((name, trio.current_time()))

    async with trio.open_nursery() as nursery:
        for name in "cdefghijklmnop":
            nursery.start_soon(wait, name)
            await trio.testing.wait_all_tasks_blocked()
        assert connections.enter("z", "192.0.2.1") is None, "others are before it"
        connections.must_enter("other", "192.0.2.9")
    assert [sorted(name for name, when in came if round(when) == second) for second in (2, 4, 6, 8)] == [
        ["c", "d"],
        ["e", "f"],
        ["g", "h"],
        ["i", "j"],
    ]
    assert connections.ended[:2] == ["a", "b"]
    statistics = strangers.statistics()
    assert trio.current_time() == pytest.approx(UNAUTHENTICATED_WAIT_SECONDS)
    assert len(came) + statistics.refused == 14
    assert (statistics.connections, statistics.waiting) == (3, 0)


class _BusiestTurn(trio.abc.Instrument):
    """The most tasks that ran in one turn of the loop."""

    def __init__(self) -> None:
        self.most = self._now = 0

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._now += 1
        self.most = max(self.most, self._now)

    def before_io_wait(self, _timeout: float) -> None:
        self._now = 0


async def test_hundreds_who_wait_do_not_wake_up_at_the_same_moment(mock_clock: MockClock) -> None:
    """Others would wait for the turn of the loop in which all of them look at the clock."""
    strangers, turns = Strangers(in_all=200, of_one_address=100), _BusiestTurn()
    for _ in range(100):
        assert strangers.enter("192.0.2.1", gone) is not None
    came = 0

    async def wait() -> None:
        nonlocal came
        place = await strangers.wait_place("192.0.2.1", gone)
        came += place is not None

    async with trio.open_nursery() as nursery:
        for _ in range(500):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(turns)
        mock_clock.jump(UNAUTHENTICATED_SECONDS)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(turns)
        assert came == 100
        assert turns.most < 10
        nursery.cancel_scope.cancel()
    assert strangers.statistics().waiting == 0


async def test_the_line_moves_on_when_its_first_connection_gives_up(mock_clock: MockClock) -> None:
    strangers, came = Strangers(in_all=10, of_one_address=1), []
    first = strangers.enter("192.0.2.1", gone)
    assert first is not None
    scopes = {name: trio.CancelScope() for name in "abc"}

    async def wait(name: str) -> None:
        with scopes[name]:
            if await strangers.wait_place("192.0.2.1", gone) is not None:
                came.append(name)

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(wait, name)
            await trio.testing.wait_all_tasks_blocked()
        scopes["b"].cancel()  # not the first
        await trio.testing.wait_all_tasks_blocked()
        scopes["a"].cancel()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(UNAUTHENTICATED_SECONDS)
    assert came == ["c"]
    assert strangers.statistics().waiting == 0


async def test_those_who_wait_get_no_place_that_another_address_has_taken(mock_clock: MockClock) -> None:
    """Otherwise there would be more places than there are in all."""
    connections = Connections(Strangers(in_all=2, of_one_address=1))
    connections.must_enter("a", "192.0.2.1")
    connections.must_enter("b", "192.0.2.2")
    came = []

    async def wait() -> None:
        came.append(await connections.strangers.wait_place("192.0.2.1", gone))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(UNAUTHENTICATED_SECONDS)
        connections.must_enter("c", "192.0.2.3")
        assert connections.strangers.statistics().connections == 2
    assert came == [None]
    assert connections.strangers.statistics().connections == 2
    assert connections.ended == ["a"]


async def test_only_so_many_wait(autojump_clock: MockClock) -> None:
    strangers = Strangers(in_all=10, of_one_address=1, waiting=5)

    async def wait() -> None:
        await strangers.wait_place("192.0.2.1", gone)

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not strangers.may_wait
        assert await strangers.wait_place("192.0.2.1", gone) is None
        nursery.cancel_scope.cancel()
    assert (strangers.statistics().connections, strangers.statistics().waiting) == (1, 0)


async def test_a_connection_that_ends_while_it_is_given_a_place_gives_it_back(autojump_clock: MockClock) -> None:
    connections = Connections(Strangers(in_all=10, of_one_address=1))
    first = connections.must_enter("a", "192.0.2.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connections.strangers.wait_place, "192.0.2.1", gone)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        first.leave()
    assert connections.strangers.statistics().connections == 0


async def test_addresses_that_fill_all_places_keep_nobody_waiting_behind_them(autojump_clock: MockClock) -> None:
    strangers = Strangers(in_all=9, of_one_address=8)
    connections = Connections(strangers)
    attackers = [f"192.0.2.{number}" for number in range(3)]
    for address in 3 * attackers:
        connections.must_enter("attack", address)
    await trio.sleep(UNAUTHENTICATED_SECONDS / 2)
    for number in range(1000):  # as they come out of the queue of a listener
        await strangers.wait_room(attackers[number % 3])
        assert connections.enter("more", attackers[number % 3]) is None
    assert trio.current_time() == UNAUTHENTICATED_SECONDS / 2
    await strangers.wait_room(NEW)
    connections.must_enter("innocent", NEW)
    assert trio.current_time() == UNAUTHENTICATED_SECONDS / 2
    assert connections.ended == ["attack"]


async def test_devices_behind_few_addresses_wait_for_a_moment_and_get_in(autojump_clock: MockClock) -> None:
    """Four networks of 250 devices each connect at once. Each device needs its place for a moment only."""
    strangers = Strangers(in_all=20, of_one_address=10)
    served = 0

    async def authenticate(address: str) -> None:
        nonlocal served
        place = await strangers.wait_place(address, gone)
        assert place is not None
        await trio.sleep(0.05)
        place.leave()
        served += 1

    async with trio.open_nursery() as nursery:
        for number in range(1000):
            address = f"192.0.2.{number % 4}"
            await strangers.wait_room(address)
            nursery.start_soon(authenticate, address)
    assert served == 1000
    assert strangers.statistics().refused == 0


async def test_more_places_let_in_who_waits(autojump_clock: MockClock) -> None:
    strangers = Strangers(in_all=1, of_one_address=1)
    connections = Connections(strangers)
    connections.must_enter("a", "192.0.2.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strangers.wait_room, NEW)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        strangers.renew(in_all=2, of_one_address=1)
    assert trio.current_time() == began
    connections.must_enter("b", NEW)
    strangers.renew(in_all=1, of_one_address=1)  # nobody loses a place for that
    assert connections.ended == []


async def test_an_address_with_fewer_than_its_share_gets_a_place_at_once(autojump_clock: MockClock) -> None:
    strangers = Strangers(in_all=6, of_one_address=6)
    connections = Connections(strangers)
    for number in range(6):
        connections.must_enter(f"greedy {number}", "192.0.2.1")
    await strangers.wait_room("192.0.2.1")  # it waits for one of its own, and the next connection is accepted
    for number in range(3):
        await strangers.wait_room(NEW)
        connections.must_enter(f"new {number}", NEW)
    assert trio.current_time() == 0
    assert connections.ended == ["greedy 0", "greedy 1", "greedy 2"]
    assert connections.enter("more than the share", NEW) is None
    await strangers.wait_room(NEW)
    assert strangers.statistics().connections == 6


async def test_who_has_its_share_waits_for_its_own_places(autojump_clock: MockClock) -> None:
    strangers = Strangers(in_all=4, of_one_address=4)
    connections = Connections(strangers)
    for address in ("192.0.2.1", "192.0.2.2"):
        for number in range(2):
            connections.must_enter(f"{address} {number}", address)
    assert await strangers.wait_place("192.0.2.1", gone) is not None
    assert trio.current_time() == pytest.approx(UNAUTHENTICATED_SECONDS)
    assert connections.ended == ["192.0.2.1 0"]
