"""The outbox: order, bounds, and bytes that leave without the sending task."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocols.streams.outbox import Outbox


class Wire:
    """A stand-in for a socket: takes as many bytes as it has room for; the sending task waits for the rest."""

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self.sent = b""
        self.pieces: list[bytes] = []
        self.open = trio.Event()

    def send_now(self, data: bytes) -> int:
        taken = data[: self.room]
        self._take(taken)
        return len(taken)

    async def send(self, data: bytes) -> None:
        await self.open.wait()
        self._take(data)

    def _take(self, data: bytes) -> None:
        self.room -= len(data)
        self.sent += data
        if data:
            self.pieces.append(data)


async def test_what_fits_is_sent_before_put_returns() -> None:
    wire = Wire(10)
    outbox = Outbox(wire.send, send_now=wire.send_now)
    outbox.put(b"abc")
    assert wire.sent == b"abc"
    await outbox.wait_empty()


async def test_unsent_bytes_wait_in_order(nursery: trio.Nursery) -> None:
    wire = Wire(4)
    outbox = Outbox(wire.send, send_now=wire.send_now, limit=6)
    nursery.start_soon(outbox.send_forever)
    outbox.put(b"abcdef")
    wire.room = 100  # there is room again, but what waits goes first
    outbox.put(b"gh")
    assert wire.sent == b"abcd"
    await wait_all_tasks_blocked()
    outbox.put(b"ij")
    assert not outbox.has_room
    wire.open.set()
    await outbox.wait_empty()
    assert wire.sent == b"abcdefghij"
    assert outbox.has_room
    outbox.put(b"kl")
    assert wire.pieces[-1] == b"kl"


async def test_without_send_now_the_task_sends_all_waiting_bytes_together(nursery: trio.Nursery) -> None:
    wire = Wire()
    wire.open.set()
    outbox = Outbox(wire.send)
    nursery.start_soon(outbox.send_forever)
    for letter in (b"a", b"", b"b", b"c"):
        outbox.put(letter)
    await outbox.wait_empty()
    assert wire.pieces == [b"abc"]


async def test_corked_answers_leave_together() -> None:
    wire = Wire(10)
    outbox = Outbox(wire.send, send_now=wire.send_now)
    outbox.cork()
    outbox.put(b"a")
    outbox.put(b"b")
    assert wire.sent == b""
    outbox.uncork()
    assert wire.pieces == [b"ab"]
    outbox.put(b"c")
    assert wire.pieces == [b"ab", b"c"]


async def test_an_offer_is_refused_when_too_much_waits_and_an_answer_is_not() -> None:
    wire = Wire()
    outbox = Outbox(wire.send, limit=2)
    assert outbox.offer(b"abc")
    assert not outbox.offer(b"d")
    outbox.put(b"e")
    with trio.CancelScope() as scope:
        scope.cancel()
        await outbox.wait_empty()
    assert scope.cancelled_caught


async def test_a_stream_error_ends_the_sending_task() -> None:
    async def broken(_data: bytes) -> None:
        raise trio.BrokenResourceError

    outbox = Outbox(broken, send_now=lambda _data: 0)
    outbox.put(b"a")
    with pytest.raises(trio.BrokenResourceError):
        await outbox.send_forever()
