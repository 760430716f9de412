"""Closes connections gently, without a task for each of them.

If a TCP connection were closed with unread bytes, it would be reset, and bytes on the way to the peer be lost. So the
last bytes are followed by the end of the stream, and what the peer still sends is read and thrown away, until the peer
closes, too.

A stranger decides how many connections end so, and may close hundreds of them at one moment. Here one task reads from
all of them, from a few in each turn of the loop.
"""

import math
import os
import select
from functools import partial
from itertools import islice
from typing import Final

import trio

from broker.life import Life
from broker.limits.strangers import Place
from config.limits import LINGERING_CONNECTIONS, LINGERING_PER_TURN, LINGERING_SECONDS

#: Most bytes that one peer may send until it closes.
LINGERING_BYTES: Final = 1024 * 1024
_READ_BYTES: Final = 16 * 1024
#: Bytes after which there is a pause: discarding bytes is never urgent.
_BYTES_AT_ONCE: Final = 64 * 1024
_PAUSE_SECONDS: Final = 0.005


class _Ending:
    __slots__ = ("place", "unread", "until")

    def __init__(self, until: float, place: Place | None) -> None:
        self.until = until
        self.place = place
        self.unread = LINGERING_BYTES  # the number of bytes that may still come


class Lingering:
    """The connections of one listener that are ending.

    It has a task from the first one on, which ends when the daemon stops and there are none.
    """

    def __init__(self, connections: trio.Nursery, life: Life) -> None:
        self._connections = connections
        self._life = life
        self._ending: dict[int, _Ending] = {}  # by descriptor, the oldest first
        self._epoll: select.epoll | None = None
        self._running = trio.CancelScope()
        self._waiting = trio.CancelScope()  # of the task, for the first one whose time is over
        self._thrown_away = bytearray(_READ_BYTES)

    @property
    def ending(self) -> int:
        """How many connections are ending."""
        return len(self._ending)

    def take(self, socket: trio.socket.SocketType, place: Place | None = None) -> bool:
        """Send the end of the stream, and close when the peer has closed, after `LINGERING_SECONDS` at the latest.

        This works on another descriptor of the connection, so the caller closes its own one at any time. When there are
        too many connections, the oldest one is closed at once.

        Args:
            socket: the connection.
            place: that of a stranger, which is left when the connection is closed.

        Returns:
            False when there is no free descriptor, or the connection is broken: the caller closes it and keeps `place`.
        """
        try:
            socket.shutdown(trio.socket.SHUT_WR)
            number = os.dup(socket.fileno())
        except OSError:
            return False
        try:
            self._register(number)
        except OSError:
            os.close(number)
            return False
        ending = _Ending(trio.current_time() + LINGERING_SECONDS, place)
        if not self._ending:
            self._waiting.deadline = ending.until
        self._ending[number] = ending
        if place is not None:
            place.pass_on(partial(self._end, number, ending))
        if len(self._ending) > LINGERING_CONNECTIONS:
            self._close(next(iter(self._ending)))
        return True

    def _register(self, number: int) -> None:
        if self._epoll is not None and not self._running.cancel_called:
            self._epoll.register(number, select.EPOLLIN)
            self._life.forget(self._running)
            return
        epoll = select.epoll()
        try:
            epoll.register(number, select.EPOLLIN)
        except OSError:
            epoll.close()
            raise
        self._epoll, self._running = epoll, trio.CancelScope()
        self._connections.start_soon(self._run, epoll, self._running)

    async def _run(self, epoll: select.epoll, running: trio.CancelScope) -> None:
        try:
            with running:
                while True:
                    first = next(iter(self._ending.values()), None)
                    with trio.move_on_at(math.inf if first is None else first.until) as self._waiting:
                        await trio.lowlevel.wait_readable(epoll.fileno())
                    now = trio.current_time()
                    for number, ending in list(islice(self._ending.items(), LINGERING_PER_TURN)):
                        if now >= ending.until:
                            self._close(number)
                    size = sum(self._throw_away(number) for number, _ in epoll.poll(0, LINGERING_PER_TURN))
                    if size >= _BYTES_AT_ONCE:
                        await trio.sleep(_PAUSE_SECONDS)
        finally:
            if self._epoll is epoll:  # after a cancellation without connections, another task may have begun
                for number in list(self._ending):
                    self._close(number)
                self._epoll = None
            self._life.forget(running)
            epoll.close()

    def _throw_away(self, number: int) -> int:
        """Returns how many bytes came."""
        ending = self._ending[number]
        try:
            received = os.readv(number, [self._thrown_away])
        except BlockingIOError:
            return 0
        except OSError:  # it is broken
            received = 0
        ending.unread -= received
        if not received or ending.unread <= 0:
            self._close(number)
        return received

    def _end(self, number: int, ending: _Ending) -> None:
        """Another connection needs the place of this one."""
        if self._ending.get(number) is ending:
            self._close(number)

    def _close(self, number: int) -> None:
        ending = self._ending.pop(number)
        if self._epoll is not None:  # closing alone does not end that while the caller of `take` has its descriptor
            self._epoll.unregister(number)
        os.close(number)
        if not self._ending:
            self._life.end_with_stop(self._running)
        if ending.place is not None:
            ending.place.leave()
            ending.place = None  # which refers to `ending`; a cycle would wait for the garbage collector
