"""The life of a connection on a stream, with a conversation that needs everything: a model test and single cases."""

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from broker.life import Life
from broker.limits.overhead import Overhead
from protocols.streams import connection
from protocols.streams.connection import MOVES, LifePhase, Need, StreamConnection
from protocols.streams.hub import Hub
from tests.rows import each_row

_SLOW_SECONDS = 2.0
_SILENCE_SECONDS = 30.0


_slot: Any = StreamConnection.__dict__["state"]


class Lines(StreamConnection):
    """Answers each line with itself. A line's first character says what it needs first."""

    __slots__ = ("_deadline", "_is_stored", "_left", "_lines", "left_times", "said", "worked")

    PROTOCOL = "lines"
    LIMIT = 256

    def __init__(self, stream: trio.abc.Stream, hub: Hub, overhead: Overhead) -> None:
        super().__init__(stream, hub)
        self.pace = overhead.pace()
        self._left = b""
        self._lines: list[bytes] = []
        self._is_stored = True
        self._deadline = trio.current_time() + _SILENCE_SECONDS
        self.said: list[bytes] = []
        self.worked: list[bytes] = []
        self.left_times = 0

    @property
    def state(self) -> LifePhase:
        phase: LifePhase = _slot.__get__(self)
        return phase

    @state.setter
    def state(self, following: LifePhase) -> None:
        assert not hasattr(self, "state") or following in MOVES[self.state]
        _slot.__set__(self, following)

    def take(self, data: bytes | bytearray) -> Need:
        if data:
            self._deadline = trio.current_time() + _SILENCE_SECONDS
            *lines, self._left = (self._left + bytes(data)).split(b"\n")
            self._lines += lines
        for _ in range(3):
            if not self._lines or not self.has_room:
                break
            line = self._lines[0]
            kind = line[:1]
            if kind == b"!":
                raise ValueError("a bug")
            if kind == b"t" and line not in self.worked:
                return Need.TASK
            if kind == b"s" and self._is_stored:
                self._is_stored = False
                return Need.STORE
            self._is_stored = True
            self._lines.pop(0)
            self.said.append(line)
            self.put(line + b"\n")
            if kind == b"p":
                self.pace.spend(100)
            if kind == b"q":
                return Need.END
            if kind == b"e":
                self.end()
        if not self.has_room:
            return Need.DRAIN
        if self.pace.owed:
            return Need.PACE
        if self._lines:
            return Need.TURN
        return Need.READ

    async def work(self) -> None:
        await trio.sleep(_SLOW_SECONDS)
        self.worked.append(self._lines[0])

    async def wait_store(self) -> None:
        await trio.sleep(_SLOW_SECONDS)

    def due(self) -> float:
        return self._deadline

    async def beat(self, now: float) -> None:
        if now >= self._deadline:
            self.end()

    def farewell(self) -> bytes:
        return b"bye\n"

    def leave(self) -> None:
        self.left_times += 1


L = TypeVar("L", bound=Lines)


@pytest.fixture
async def hub(nursery: trio.Nursery) -> AsyncIterator[Hub]:
    yield Hub(nursery, Life())
    nursery.cancel_scope.cancel()


def line_of(choices: random.Random) -> bytes:
    kind = choices.choices(b"atspqe!", (40, 3, 3, 3, 1, 1, 0.3))[0]
    return bytes((kind,)) + choices.randbytes(choices.randrange(60)).hex().encode()


def _sockets() -> tuple[trio.abc.Stream, trio.abc.Stream]:
    """Two ends of which neither takes much at once."""
    pair = trio.socket.socketpair()
    for one in pair:
        one.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, 2_048)
    return trio.SocketStream(pair[0]), trio.SocketStream(pair[1])


async def _send_in_pieces(choices: random.Random, ours: trio.abc.Stream, sent: bytes, served: Lines) -> bool:
    """Return whether the connection was ended from outside."""
    is_ended, at = False, 0
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while at < len(sent):
            size = choices.choice((1, 7, 100, 1_000))
            await ours.send_all(sent[at : at + size])
            at += size
            if choices.random() < 0.1:
                await trio.sleep(choices.random() * 3)
            if choices.random() < 0.01:
                is_ended = True
                served.end()
    return is_ended


@pytest.mark.parametrize("has_socket", [False, True], ids=["alone", "parked"])
@pytest.mark.parametrize("seed", range(40))
async def test_any_bytes_stops_slow_peers_and_errors(
    hub: Hub, autojump_clock: MockClock, seed: int, has_socket: bool
) -> None:
    """Each line that was taken is answered once, in order; the phases follow each other; nothing stays behind."""
    choices = random.Random(seed)  # noqa: S311
    ours, theirs = _sockets() if has_socket else memory_stream_pair()
    before = trio.lowlevel.current_statistics().tasks_living
    served = Lines(theirs, hub, Overhead())
    failed, closed, is_disturbed = list[Exception](), trio.Event(), False
    received = bytearray()

    async def serve() -> None:
        async with theirs:
            try:
                await served.run()
            except ValueError as error:
                failed.append(error)
            finally:
                closed.set()

    async def read() -> None:
        nonlocal is_disturbed
        with suppress(trio.BrokenResourceError):
            while choices.random() > 0.01 and (some := await ours.receive_some(choices.randrange(1, 200))):
                received.extend(some)
                if choices.random() < 0.1:
                    await trio.sleep(choices.random() * 5)
                    is_disturbed |= served.is_ended  # the goodbye has a time limit
        is_disturbed |= not served.is_ended

    lines = [line_of(choices) for _ in range(choices.randrange(1, 60))]
    sent = b"".join(line + b"\n" for line in lines)
    with capture_logs():
        async with trio.open_nursery() as tasks:
            tasks.start_soon(serve)
            tasks.start_soon(read)
            is_ended = await _send_in_pieces(choices, ours, sent, served)
            is_disturbed |= is_ended
            if choices.random() < 0.3:
                is_disturbed = True
                hub.life.stop()
            with trio.fail_after(200):
                await closed.wait()
            assert served.state is LifePhase.CLOSED
            tasks.cancel_scope.cancel()
    await ours.aclose()
    await wait_all_tasks_blocked()
    assert served.left_times == 1
    assert [str(one) for one in failed] in ([], ["a bug"])
    assert served.said == [line for line in lines if line[:1] != b"!"][: len(served.said)]
    answers = b"".join(line + b"\n" for line in served.said) + b"bye\n"
    assert answers.startswith(bytes(received))
    if not (is_disturbed or failed or any(line[:1] in b"qe!" for line in lines)):
        assert (served.said, bytes(received)) == (lines, answers)
    assert served.alarm_entry is None
    assert hub.parked == 0
    shared = 2 if has_socket and hub._epoll is not None else 1  # the tasks of the hub and the alarms
    assert trio.lowlevel.current_statistics().tasks_living <= before + shared


@asynccontextmanager
async def conversing(hub: Hub, kind: type[L], *, has_socket: bool) -> AsyncIterator[tuple[L, trio.abc.Stream]]:
    ours, theirs = _sockets() if has_socket else memory_stream_pair()
    async with ours, trio.open_nursery() as tasks:
        served = kind(theirs, hub, Overhead())
        tasks.start_soon(served.run)
        await wait_all_tasks_blocked()
        assert hub.parked == has_socket
        yield served, ours
        tasks.cancel_scope.cancel()
    await theirs.aclose()


@pytest.mark.parametrize("has_socket", [False, True], ids=["alone", "parked"])
async def test_what_a_turn_asked_for_is_done_although_it_ended_the_connection(
    hub: Hub, autojump_clock: MockClock, has_socket: bool
) -> None:
    async with conversing(hub, Lines, has_socket=has_socket) as (served, peer):
        begin = trio.current_time()
        await peer.send_all(b"a\ne\nt1\n")
        assert await _read(peer, 10) == b"a\ne\nt1\nbye"
        assert (served.worked, trio.current_time()) == ([b"t1"], begin + _SLOW_SECONDS)


@each_row("has_socket", [False, True], ids=["alone", "parked"])
@each_row("needed", [b"", b"t", b"s", b"p"], ids=["bytes", "task", "store", "pace"])
async def test_an_end_from_outside_waits_for_nothing_but_the_goodbye(
    hub: Hub, autojump_clock: MockClock, has_socket: bool, needed: bytes
) -> None:
    async with conversing(hub, Lines, has_socket=has_socket) as (served, peer):
        if needed:
            await peer.send_all(needed + b"\n")
            await wait_all_tasks_blocked()
            assert served.state is LifePhase.WAITING
        begin = trio.current_time()
        served.end()
        said = b"p\n" if needed == b"p" else b""
        assert await _read(peer, len(said) + 4) == said + b"bye\n"
        assert trio.current_time() == begin
        assert hub.parked == 0


@pytest.mark.parametrize("has_socket", [False, True], ids=["alone", "parked"])
async def test_a_turn_that_ends_the_connection_ends_it_at_once(
    hub: Hub, autojump_clock: MockClock, has_socket: bool
) -> None:
    async with conversing(hub, Lines, has_socket=has_socket) as (_, peer):
        begin = trio.current_time()
        await peer.send_all(b"a\ne\n")
        assert await _read(peer, 8) == b"a\ne\nbye\n"
        assert trio.current_time() == begin


@pytest.mark.parametrize("has_socket", [False, True], ids=["alone", "parked"])
async def test_what_has_come_before_the_peer_closed_its_side_is_answered(
    hub: Hub, autojump_clock: MockClock, has_socket: bool
) -> None:
    async with conversing(hub, Lines, has_socket=has_socket) as (served, peer):
        assert isinstance(peer, trio.abc.HalfCloseableStream)
        await peer.send_all(b"s1\na\nt1\nb\nc\nd\n")
        await peer.send_eof()
        answers = b"s1\na\nt1\nb\nc\nd\n"
        assert await _read(peer, len(answers)) == answers
        await wait_all_tasks_blocked()
        assert served.state is LifePhase.CLOSED


async def test_a_peer_that_does_not_read_is_not_read_from(hub: Hub, autojump_clock: MockClock) -> None:
    async with conversing(hub, Lines, has_socket=True) as (served, peer):
        with trio.move_on_after(5):
            while True:
                await peer.send_all(b"a" * 99 + b"\n")
        assert (served.state, served.need) == (LifePhase.WAITING, Need.DRAIN)
        assert hub.parked == 0


class Checked(Lines):
    """Its beat takes time, and begins something that `leave` ends."""

    __slots__ = ("beats", "is_subscribed")

    def __init__(self, stream: trio.abc.Stream, hub: Hub, overhead: Overhead) -> None:
        super().__init__(stream, hub, overhead)
        self.beats, self.is_subscribed = 0, False

    async def beat(self, now: float) -> None:  # noqa: ARG002 - as the driver calls it
        self.beats += 1
        if self.beats > 1:
            raise AssertionError("the first beat has put nothing off")
        await trio.sleep(_SLOW_SECONDS)
        self.is_subscribed = True

    def leave(self) -> None:
        super().leave()
        self.is_subscribed = False


async def test_what_a_beat_begins_ends_with_a_connection_that_ended_before(hub: Hub, autojump_clock: MockClock) -> None:
    async with conversing(hub, Checked, has_socket=True) as (served, peer):
        await trio.sleep(_SILENCE_SECONDS + _SLOW_SECONDS / 2)
        assert (served.beats, served.state) == (1, LifePhase.READING)
        await peer.aclose()
        await wait_all_tasks_blocked()
        assert served.state is LifePhase.CLOSED
        await trio.sleep(_SLOW_SECONDS)
        assert not served.is_subscribed


async def test_a_connection_that_has_ended_but_for_its_work_has_no_beats(
    hub: Hub, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with conversing(hub, Checked, has_socket=True) as (served, peer):
        served._deadline = trio.current_time() + _SLOW_SECONDS / 2
        served.set_alarm()
        monkeypatch.setattr(f"{__name__}._SILENCE_SECONDS", _SLOW_SECONDS / 2)
        await peer.send_all(b"e\nt1\n")
        assert await _read(peer, 9) == b"e\nt1\nbye\n"
        assert (served.worked, served.beats) == ([b"t1"], 0)


async def test_a_reader_whose_socket_is_closed_before_its_turn_reads_from_no_other_one() -> None:
    """The number of the socket may be another one's by then."""
    ours, theirs = trio.socket.socketpair()
    others, their_peer = trio.socket.socketpair()
    number = ours.fileno()

    class Thief(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            if task is reader and ours.fileno() >= 0 and is_sent:
                ours.close()
                os.dup2(others.fileno(), number)

    with theirs, others, their_peer:
        is_sent, reader = False, trio.lowlevel.current_task()
        await their_peer.send(b"secret")
        await theirs.send(b"abc")
        thief = Thief()
        trio.lowlevel.add_instrument(thief)
        is_sent = True
        try:
            with pytest.raises(trio.BrokenResourceError):
                await connection._read_when_ready(ours, 100)
        finally:
            trio.lowlevel.remove_instrument(thief)
            os.close(number)
        assert await others.recv(10) == b"secret"


async def _read(peer: trio.abc.Stream, size: int) -> bytes:
    received = b""
    while len(received) < size and (some := await peer.receive_some(size - len(received))):
        received += some
    return received
