"""The outbox: order, bounds, and bytes that leave without the sending task."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocols.streams.outbox import Outbox


class Wire(Outbox):
    """An outbox and a stand-in for its socket, which takes as many bytes as it has room for; the sending task waits for
    the rest."""

    def __init__(self, room: int = 0) -> None:
        super().__init__()
        self.room = room
        self.sent = b""
        self.pieces: list[bytes] = []
        self.open = trio.Event()

    def _send_now(self, data: bytes) -> int:
        taken = data[: self.room]
        self._note(taken)
        return len(taken)

    async def _send(self, data: bytes) -> None:
        await self.open.wait()
        self._note(data)

    def _note(self, data: bytes) -> None:
        self.room -= len(data)
        self.sent += data
        if data:
            self.pieces.append(data)


async def test_what_fits_is_sent_before_put_returns() -> None:
    wire = Wire(10)
    wire.put(b"abc")
    assert wire.sent == b"abc"
    await wire.wait_empty()


async def test_unsent_bytes_wait_in_order(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(4)
    monkeypatch.setattr(Outbox, "LIMIT", 6)
    nursery.start_soon(wire.send_forever)
    wire.put(b"abcdef")
    wire.room = 100  # there is room again, but what waits goes first
    wire.put(b"gh")
    assert wire.sent == b"abcd"
    await wait_all_tasks_blocked()
    wire.put(b"ij")
    assert not wire.has_room
    wire.open.set()
    await wire.wait_empty()
    assert wire.sent == b"abcdefghij"
    assert wire.has_room
    wire.put(b"kl")
    assert wire.pieces[-1] == b"kl"


async def test_without_send_now_the_task_sends_all_waiting_bytes_together(nursery: trio.Nursery) -> None:
    wire = Wire()
    wire.open.set()
    nursery.start_soon(wire.send_forever)
    for letter in (b"a", b"", b"b", b"c"):
        wire.put(letter)
    await wire.wait_empty()
    assert wire.pieces == [b"abc"]


async def test_corked_answers_leave_together() -> None:
    wire = Wire(10)
    wire.cork()
    wire.put(b"a")
    wire.put(b"b")
    assert wire.sent == b""
    wire.uncork()
    assert wire.pieces == [b"ab"]
    wire.put(b"c")
    assert wire.pieces == [b"ab", b"c"]


async def test_an_offer_is_refused_when_too_much_waits_and_an_answer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    monkeypatch.setattr(Outbox, "LIMIT", 2)
    assert wire.offer(b"abc")
    assert not wire.offer(b"d")
    wire.put(b"e")
    with trio.CancelScope() as scope:
        scope.cancel()
        await wire.wait_empty()
    assert scope.cancelled_caught


async def test_a_stream_error_ends_the_sending_task() -> None:
    class Broken(Wire):
        async def _send(self, _data: bytes) -> None:
            raise trio.BrokenResourceError

    broken = Broken()
    broken.put(b"a")
    with pytest.raises(trio.BrokenResourceError):
        await broken.send_forever()


async def test_who_waits_for_bytes_that_are_discarded_goes_on(nursery: trio.Nursery) -> None:
    wire = Wire()
    nursery.start_soon(wire.send_forever)
    wire.put(b"abc")
    async with trio.open_nursery() as waiting:
        waiting.start_soon(wire.wait_empty)
        await wait_all_tasks_blocked()
        wire.discard()
        with trio.fail_after(1):
            await wait_all_tasks_blocked()
            wire.open.set()  # the sending task was about to end
            await wire.wait_empty()
            while waiting.child_tasks:
                await trio.lowlevel.checkpoint()
