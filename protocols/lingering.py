"""Closes connections gently, without a task for each of them.

If a TCP connection were closed with unread bytes, it would be reset, and bytes on the way to the peer be lost. So the
last bytes are followed by the end of the stream, and what the peer still sends is read and thrown away, until the peer
closes, too.

A stranger decides how many connections end so, and may close hundreds of them at one moment. Here one task reads from
all of them, from a few in each turn of the loop.
"""

import os
import select
from functools import partial
from itertools import islice
from typing import Final

import trio

from broker.limits.strangers import Place
from config.limits import LINGERING_CONNECTIONS, LINGERING_PER_TURN, LINGERING_SECONDS

#: What one peer may send until it closes.
LINGERING_BYTES: Final = 1024 * 1024
_READ_BYTES: Final = 16 * 1024
#: Behind so many bytes there is a pause: nobody needs what is thrown away, so nobody has to wait for that.
_BYTES_AT_ONCE: Final = 64 * 1024
_PAUSE_SECONDS: Final = 0.005


class _Ending:
    __slots__ = ("place", "unread", "until")

    def __init__(self, until: float, place: Place | None) -> None:
        self.until = until
        self.place = place
        self.unread = LINGERING_BYTES  # so many bytes may still come


class Lingering:
    """The connections of one listener that are ending. It has a task while there are some."""

    def __init__(self, connections: trio.Nursery) -> None:
        self._connections = connections
        self._ending: dict[int, _Ending] = {}  # by descriptor, the oldest first
        self._epoll: select.epoll | None = None
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
        ending = self._ending[number] = _Ending(trio.current_time() + LINGERING_SECONDS, place)
        if place is not None:
            place.pass_on(partial(self._end, number, ending))
        if len(self._ending) > LINGERING_CONNECTIONS:
            self._close(next(iter(self._ending)))
        return True

    def _register(self, number: int) -> None:
        epoll = self._epoll or select.epoll()
        try:
            epoll.register(number, select.EPOLLIN)
        except OSError:
            if self._epoll is None:
                epoll.close()
            raise
        if self._epoll is None:
            self._epoll = epoll
            self._connections.start_soon(self._run, epoll)

    async def _run(self, epoll: select.epoll) -> None:
        try:
            while self._ending:
                with trio.move_on_at(next(iter(self._ending.values())).until):
                    await trio.lowlevel.wait_readable(epoll.fileno())
                now = trio.current_time()
                for number, ending in list(islice(self._ending.items(), LINGERING_PER_TURN)):
                    if now >= ending.until:
                        self._close(number)
                size = sum(self._throw_away(number) for number, _ in epoll.poll(0, LINGERING_PER_TURN))
                if size >= _BYTES_AT_ONCE:
                    await trio.sleep(_PAUSE_SECONDS)
        finally:
            self._epoll = None
            for number in list(self._ending):
                self._close(number)
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
        if ending.place is not None:
            ending.place.leave()
            ending.place = None  # which refers to `ending`; a cycle would wait for the collector of garbage
