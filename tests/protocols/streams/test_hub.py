"""The hub: it reads from parked sockets, wakes their tasks, and none of them can hinder the others."""

import os
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
import pytest
import trio
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.life import Life
from config.limits import HUB_BYTES_PER_TURN, HUB_CONNECTIONS_PER_TURN, HUB_TASKS_PER_TURN
from protocols.streams import hub as hub_module
from protocols.streams.hub import Hub
from tests.properties import examples

_name: ContextVar[str] = ContextVar("name", default="nobody")


@dataclass
class Peer:
    """Our end of a connection, and a task that parks the other end."""

    hub: Hub
    nursery: trio.Nursery
    take: Callable[[bytes], bool] = bool  # False at the end of the stream
    taken: list[bytes] = field(default_factory=list)
    outcomes: list[object] = field(default_factory=list)  # what `read` has returned or raised
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    is_reading: bool = False

    def __post_init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.theirs = trio.socket.from_stdlib_socket(theirs)

    def park(self) -> None:
        self.is_reading = True
        self.scope = trio.CancelScope()
        self.nursery.start_soon(self._park)

    async def _park(self) -> None:
        try:
            with self.scope:
                self.outcomes.append(await self.hub.read(self.theirs, self._take))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.outcomes.append(error)
        self.is_reading = False

    def _take(self, received: bytes) -> bool:
        self.taken.append(received)
        return self.take(received)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


Dial = Callable[..., Peer]


@pytest.fixture
async def life() -> AsyncIterator[Life]:
    life = Life()
    async with life.running():
        yield life


@pytest.fixture
def hub(nursery: trio.Nursery, life: Life) -> Hub:
    return Hub(nursery, life)


@pytest.fixture
async def dial(hub: Hub, nursery: trio.Nursery) -> AsyncIterator[Dial]:
    with ExitStack() as stack:

        def dial(take: Callable[[bytes], bool] = bool) -> Peer:
            peer = Peer(hub, nursery, take)
            stack.callback(peer.close)
            peer.park()
            return peer

        yield dial
        nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()


async def test_bytes_are_taken_until_the_end_of_the_stream(dial: Dial, hub: Hub) -> None:
    peer = dial()
    peer.ours.sendall(b"before it is parked")
    await wait_all_tasks_blocked()
    peer.ours.sendall(b"after that")
    await wait_all_tasks_blocked()
    assert (peer.taken, hub.parked) == ([b"before it is parked", b"after that"], 1)
    peer.ours.sendall(b"last")
    peer.ours.shutdown(socket.SHUT_WR)
    await wait_all_tasks_blocked()
    assert (peer.taken[2:], peer.outcomes, hub.parked) == ([b"last", b""], [True], 0)


async def test_the_task_goes_on_when_something_is_to_be_awaited(dial: Dial) -> None:
    peer = dial(lambda received: received != b"await")
    await wait_all_tasks_blocked()
    peer.ours.sendall(b"await")
    await wait_all_tasks_blocked()
    peer.ours.sendall(b"the rest waits in the socket")
    await wait_all_tasks_blocked()
    assert (peer.taken, peer.outcomes) == ([b"await"], [True])
    peer.park()
    await wait_all_tasks_blocked()
    assert peer.taken == [b"await", b"the rest waits in the socket"]


async def test_an_error_is_raised_in_its_own_task_only(dial: Dial, hub: Hub) -> None:
    error = ValueError("a bug")

    def fail(_received: bytes) -> bool:
        raise error

    failing, innocent = dial(fail), dial()
    await wait_all_tasks_blocked()
    for peer in (failing, innocent):
        peer.ours.sendall(b"x")
    await wait_all_tasks_blocked()
    assert failing.outcomes == [error]
    assert (innocent.taken, innocent.outcomes, hub.parked) == ([b"x"], [], 1)


async def test_a_reset_breaks_its_own_connection_only(dial: Dial, hub: Hub) -> None:
    peer, innocent = dial(), dial()
    await wait_all_tasks_blocked()
    await peer.theirs.send(b"unread")
    peer.ours.close()
    innocent.ours.sendall(b"x")
    await wait_all_tasks_blocked()
    (broken,) = peer.outcomes
    assert isinstance(broken, trio.BrokenResourceError)
    assert isinstance(broken.__cause__, ConnectionResetError)
    assert (innocent.taken, hub.parked) == ([b"x"], 1)


async def test_cancelling_takes_nothing_from_the_socket(dial: Dial, hub: Hub) -> None:
    peer, other = dial(), dial()
    await wait_all_tasks_blocked()
    peer.scope.cancel()
    peer.ours.sendall(b"unread")
    other.ours.sendall(b"x")
    await wait_all_tasks_blocked()
    assert (peer.taken, peer.outcomes, other.taken, hub.parked) == ([], [], [b"x"], 1)
    peer.park()
    await wait_all_tasks_blocked()
    assert peer.taken == [b"unread"]


async def test_a_socket_that_is_closed_while_it_is_parked_hinders_nobody(dial: Dial, hub: Hub) -> None:
    peer, other = dial(), dial()
    await wait_all_tasks_blocked()
    peer.theirs.close()
    other.ours.sendall(b"x")
    await wait_all_tasks_blocked()
    assert (peer.taken, other.taken, hub.parked) == ([], [b"x"], 2)
    peer.scope.cancel()
    await wait_all_tasks_blocked()
    assert peer.scope.cancelled_caught
    assert hub.parked == 1


@pytest.mark.parametrize("goes_on", [True, False])
async def test_what_is_taken_may_cancel_its_own_task(dial: Dial, hub: Hub, goes_on: bool) -> None:
    def part(_received: bytes) -> bool:
        peer.scope.cancel()
        return goes_on

    peer = dial(part)
    await wait_all_tasks_blocked()
    peer.ours.sendall(b"x")
    await wait_all_tasks_blocked()
    assert (peer.taken, peer.outcomes, hub.parked) == ([b"x"], [], 0)
    assert peer.scope.cancelled_caught


async def test_an_error_behind_a_cancellation_is_logged(dial: Dial) -> None:
    def fail(_received: bytes) -> bool:
        peer.scope.cancel()
        raise ValueError("a bug")

    peer = dial(fail)
    await wait_all_tasks_blocked()
    peer.ours.sendall(b"x")
    with capture_logs() as logs:
        await wait_all_tasks_blocked()
    assert [(entry["event"], str(entry["exc_info"])) for entry in logs] == [("connection_failed", "a bug")]
    assert peer.scope.cancelled_caught


async def test_what_is_taken_may_cancel_another_task(dial: Dial) -> None:
    def part(_received: bytes) -> bool:
        for other in peers:
            other.scope.cancel()
        return True

    peers = [dial(part) for _ in range(3)]
    await wait_all_tasks_blocked()
    for peer in peers:
        peer.ours.sendall(b"x")
    await wait_all_tasks_blocked()
    assert sum(len(peer.taken) for peer in peers) == 1
    assert all(peer.scope.cancelled_caught for peer in peers)


async def test_a_descriptor_may_be_closed_and_used_again_within_a_turn(
    dial: Dial, hub: Hub, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub has polled one socket, and finds another one of the same number, which has nothing to read."""
    monkeypatch.setattr(hub_module, "HUB_CONNECTIONS_PER_TURN", 1)
    numbers: list[int] = []

    async def replace() -> None:  # in the turn between `first` and `second`
        second.scope.cancel()
        await trio.lowlevel.checkpoint()
        number = second.theirs.fileno()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        os.dup2(theirs.fileno(), number)
        theirs.close()
        second.ours.close()
        second.ours = ours
        numbers.append(number)
        second.park()

    def begin(_received: bytes) -> bool:
        nursery.start_soon(replace)
        return True

    first, second = dial(begin), dial()
    # One connection for each turn: the ones between give `replace` its turns before `second` comes.
    between = [dial() for _ in range(8)]
    await wait_all_tasks_blocked()
    for peer in (first, *between, second):
        peer.ours.sendall(b"x")
    await wait_all_tasks_blocked()
    assert (numbers, second.taken, hub.parked) == ([second.theirs.fileno()], [], 10)
    second.ours.sendall(b"of the new one")
    await wait_all_tasks_blocked()
    assert second.taken == [b"of the new one"]


async def test_other_tasks_run_after_so_many_connections(dial: Dial) -> None:
    peers = [dial() for _ in range(6 * HUB_CONNECTIONS_PER_TURN)]
    await wait_all_tasks_blocked()
    for peer in peers:
        peer.ours.sendall(b"x")
    steps = await _taken_in_each_turn(peers)
    assert sum(steps) == len(peers)
    assert max(steps) <= 2 * HUB_CONNECTIONS_PER_TURN  # trio runs ready tasks in any order


async def test_other_tasks_run_after_a_few_whose_tasks_go_on(dial: Dial) -> None:
    peers = [dial(lambda _received: False) for _ in range(6 * HUB_TASKS_PER_TURN)]
    await wait_all_tasks_blocked()
    for peer in peers:
        peer.ours.sendall(b"x")
    steps = await _taken_in_each_turn(peers)
    assert sum(steps) == len(peers)
    assert max(steps) <= 2 * HUB_TASKS_PER_TURN


async def test_other_tasks_run_after_what_took_long(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose task goes on has searched, or delivered to many."""
    monkeypatch.setattr(hub_module, "_LONG_TURN_SECONDS", 0)
    peers = [dial(lambda _received: False) for _ in range(HUB_TASKS_PER_TURN)]
    await wait_all_tasks_blocked()
    for peer in peers:
        peer.ours.sendall(b"x")
    steps = await _taken_in_each_turn(peers)
    assert sum(steps) == len(peers)
    assert max(steps) <= 2


async def test_other_tasks_run_after_so_many_bytes(dial: Dial) -> None:
    data, count = bytes(64 * 1024), 8
    peers = [dial() for _ in range(count)]
    await wait_all_tasks_blocked()
    for peer in peers:
        peer.ours.sendall(data)
    steps = await _taken_in_each_turn(peers)
    reads = -(-HUB_BYTES_PER_TURN // hub_module._READ_BYTES)
    assert sum(steps) == count * len(data) // hub_module._READ_BYTES
    assert max(steps) <= 2 * reads


async def _taken_in_each_turn(peers: list[Peer]) -> list[int]:
    """How many reads there are from one turn to the next of a task that is always ready to run."""
    steps: list[int] = []
    before, idle = sum(len(peer.taken) for peer in peers), 0
    while idle < 50:  # turns without a read: all is read
        await trio.lowlevel.checkpoint()
        now = sum(len(peer.taken) for peer in peers)
        steps.append(now - before)
        before, idle = now, 0 if now > before else idle + 1
    return steps


async def test_a_flood_holds_nobody_up(dial: Dial) -> None:
    """Each read of the flooding peers is followed by another full one."""
    full = bytes(hub_module._READ_BYTES)
    flooding: list[Peer] = []

    def more(received: bytes) -> bool:
        for peer in flooding:
            if len(peer.taken) < 200 and len(received) == len(full):
                peer.ours.setblocking(False)
                try:
                    peer.ours.send(full)
                except BlockingIOError:
                    break
        return True

    flooding += [dial(more) for _ in range(6)]
    seen: list[int] = []

    def look(_received: bytes) -> bool:
        seen.append(max(len(peer.taken) for peer in flooding))
        return True

    innocent = dial(look)
    await wait_all_tasks_blocked()
    for peer in flooding:
        peer.ours.sendall(full)
    innocent.ours.sendall(b"x")
    with trio.fail_after(10):
        while not seen:
            await trio.lowlevel.checkpoint()
    assert seen[0] <= 2  # each of the others at most once more
    await wait_all_tasks_blocked()
    assert min(len(peer.taken) for peer in flooding) > 2


async def test_what_is_taken_runs_in_the_context_of_its_task(hub: Hub, nursery: trio.Nursery, dial: Dial) -> None:
    seen: list[str] = []

    def note(received: bytes) -> bool:
        seen.append(_name.get())
        _name.set(received.decode())
        return True

    for name in ("ada", "bea"):
        _name.set(name)
        peer = dial(note)
        _name.set("nobody")
        await wait_all_tasks_blocked()
        for text in (b"later", b"x"):
            peer.ours.sendall(text)
            await wait_all_tasks_blocked()
    assert seen == ["ada", "later", "bea", "later"]
    assert _name.get() == "nobody"


async def test_a_socket_is_parked_once_and_only_while_it_is_open(dial: Dial, hub: Hub) -> None:
    peer = dial()
    await wait_all_tasks_blocked()
    closed = trio.socket.socket()
    closed.close()
    with pytest.raises(trio.ClosedResourceError):
        await hub.read(closed, bool)
    with pytest.raises(trio.BusyResourceError):
        await hub.read(peer.theirs, bool)
    peer.ours.sendall(b"x")
    await wait_all_tasks_blocked()
    assert peer.taken == [b"x"]


async def test_its_task_and_its_descriptor_wait_for_the_next_socket(dial: Dial, hub: Hub) -> None:
    peers = [dial() for _ in range(3)]
    await wait_all_tasks_blocked()
    before, tasks = _descriptors(), _tasks()
    for _ in range(3):
        for peer in peers:
            peer.scope.cancel()
        await wait_all_tasks_blocked()
        assert (_descriptors(), _tasks(), hub.parked) == (before, tasks - 3, 0)
        for peer in peers:
            peer.park()
        await wait_all_tasks_blocked()
        peers[0].ours.sendall(b"x")
        await wait_all_tasks_blocked()
        assert (peers[0].taken.pop(), _descriptors(), _tasks(), hub.parked) == (b"x", before, tasks, 3)


async def test_at_a_stop_its_task_ends_as_soon_as_no_socket_is_parked(dial: Dial, hub: Hub, life: Life) -> None:
    first, second = dial(), dial()
    await wait_all_tasks_blocked()
    before, tasks = _descriptors(), _tasks()
    await _stop(life)
    first.scope.cancel()
    second.ours.sendall(b"x")
    await wait_all_tasks_blocked()
    assert (second.taken, _tasks(), hub.parked) == ([b"x"], tasks - 2, 1)
    second.scope.cancel()
    await wait_all_tasks_blocked()
    assert (_descriptors(), _tasks()) == (before - 1, tasks - 4)


async def test_at_a_stop_its_task_ends_when_no_socket_is_parked(dial: Dial, hub: Hub, life: Life) -> None:
    peer = dial()
    await wait_all_tasks_blocked()
    before, tasks = _descriptors(), _tasks()
    peer.scope.cancel()
    await wait_all_tasks_blocked()
    await _stop(life)
    assert (_descriptors(), _tasks()) == (before - 1, tasks - 3)
    peer.park()  # also then it is read from
    peer.ours.sendall(b"x")
    await wait_all_tasks_blocked()
    assert (peer.taken, _descriptors(), _tasks(), hub.parked) == ([b"x"], before, tasks - 1, 1)


async def test_a_socket_that_is_parked_before_the_ended_task_has_run_gets_another_one(
    dial: Dial, hub: Hub, life: Life
) -> None:
    peer = dial()
    await wait_all_tasks_blocked()
    before, tasks = _descriptors(), _tasks()
    await _stop(life)
    for _ in range(3):
        peer.scope.cancel()
        peer.park()
    await wait_all_tasks_blocked()
    peer.ours.sendall(b"x")
    await wait_all_tasks_blocked()
    assert (peer.taken, _descriptors(), _tasks(), hub.parked) == ([b"x"], before, tasks - 1, 1)


async def _stop(life: Life) -> None:
    """As the daemon does. The task that waits for this ends."""
    life.stop()
    await wait_all_tasks_blocked()


def _tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_cancelling_all_connections_ends_the_hub() -> None:
    before = _descriptors()
    with trio.fail_after(10):
        async with trio.open_nursery() as connections:
            hub = Hub(connections, Life())
            peers = [Peer(hub, connections) for _ in range(3)]
            for peer in peers:
                peer.park()
            await wait_all_tasks_blocked()
            connections.cancel_scope.cancel()
    for peer in peers:
        peer.close()
    assert (_descriptors(), hub.parked) == (before, 0)


async def test_what_cannot_be_parked_is_left_to_its_task(dial: Dial, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> select.epoll:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as shortage:
        shortage.setattr("select.epoll", none_left)
        peer = dial()
        await wait_all_tasks_blocked()
        assert (peer.outcomes, hub.parked) == ([False], 0)
    peer.park()
    await wait_all_tasks_blocked()
    assert hub.parked == 1


_steps = st.lists(st.tuples(st.sampled_from(("send", "park", "cancel", "settle")), st.integers(0, 2)), max_size=30)


@hypothesis.given(steps=_steps)
@hypothesis.settings(max_examples=examples(60))
def test_all_bytes_are_taken_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        with ExitStack() as stack:
            async with trio.open_nursery() as nursery:
                hub = Hub(nursery, Life())
                peers = [Peer(hub, nursery, lambda received: received[-1:] != b"7") for _ in range(3)]
                for peer in peers:
                    stack.callback(peer.close)
                await _follow(steps, peers)
                assert hub.parked == 0
                nursery.cancel_scope.cancel()

    trio.run(run)


async def _follow(steps: list[tuple[str, int]], peers: list[Peer]) -> None:
    sent = [b""] * len(peers)
    for number, (step, index) in enumerate(steps):
        peer = peers[index]
        if step == "send":
            sent[index] += (data := b"%d" % number)
            peer.ours.sendall(data)
        elif step == "settle":
            await wait_all_tasks_blocked()
        elif step == "cancel":
            peer.scope.cancel()
        elif not peer.is_reading:
            peer.park()
    for peer in peers:
        peer.scope.cancel()
    await wait_all_tasks_blocked()
    for peer in peers:
        peer.take = bool
        peer.park()
    await wait_all_tasks_blocked()
    assert [b"".join(peer.taken) for peer in peers] == sent
    for peer in peers:
        peer.ours.shutdown(socket.SHUT_WR)
    await wait_all_tasks_blocked()
