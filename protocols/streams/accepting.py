"""Accepting connections, also when the process has no free descriptors.

A connection that nobody accepts stays in the kernel's queue. When that is full, the kernel ignores new clients, which
then try again after 1, 3, 7 and 15 seconds: long after there are descriptors again. So one descriptor is kept in
reserve: with it, connections that cannot be served are accepted and closed at once, and the queue stays short.
"""

import errno
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import structlog
import trio

from config.limits import TURNS_BETWEEN_CONNECTIONS

_EPISODE_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 0.1
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

A = TypeVar("A")

_log = structlog.get_logger(__name__)


class Episodes:
    """Many refusals in a row are one episode, which is logged once. It ends when none came for `_EPISODE_SECONDS`."""

    def __init__(self) -> None:
        self._last = -_EPISODE_SECONDS

    def has_begun(self) -> bool:
        """Note a refusal; return whether it is the first of its episode."""
        before, self._last = self._last, trio.current_time()
        return self._last - before >= _EPISODE_SECONDS


async def at_once(_stream: trio.SocketStream) -> None:
    """There is always room."""
    await trio.lowlevel.checkpoint()


async def accept_forever(
    listeners: list[trio.SocketListener],
    serve: Callable[[trio.SocketStream, A], Awaitable[None]],
    admit: Callable[[trio.SocketStream], A],
    *,
    protocol: str,
    connections: trio.Nursery,
    wait_room: Callable[[trio.SocketStream], Awaitable[None]] = at_once,
) -> None:
    """Accept connections until cancelled, and close the listeners at the end.

    Args:
        listeners: where to accept.
        serve: serves one connection with what `admit` has returned, and closes it. It must not raise.
        admit: called before the next connection is accepted; None refuses the connection.
        protocol: the name in log entries.
        connections: the nursery in which connections are served.
        wait_room: waits until the accepted connection can be admitted. Until then no other one is accepted.
    """
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(partial(_accept, listener, serve, admit, protocol, connections, wait_room))


async def _accept(
    listener: trio.SocketListener,
    serve: Callable[[trio.SocketStream, A], Awaitable[None]],
    admit: Callable[[trio.SocketStream], A],
    protocol: str,
    connections: trio.Nursery,
    wait_room: Callable[[trio.SocketStream], Awaitable[None]],
) -> None:
    shortage = _Shortage(protocol)
    try:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise
                accepted = await shortage.accept(listener, error)
            else:
                accepted = stream
            if accepted is None:
                continue
            await wait_room(accepted)  # `admit` follows without awaiting in between, so there is still room
            admitted = admit(accepted)
            if admitted is None:
                accepted.socket.close()
            else:
                connections.start_soon(serve, accepted, admitted)
            await _let_others_run()
    finally:
        shortage.close()
        await listener.aclose()


async def _let_others_run() -> None:
    """Wait some turns of the loop.

    A connection begins with work in each of about as many turns. If hundreds come at once, then each turn has the work
    of one or two of them, and a client that waits for an answer, which takes some twenty turns, waits little longer.
    """
    for _ in range(TURNS_BETWEEN_CONNECTIONS):
        await trio.lowlevel.checkpoint()


class _Shortage:
    """Refuses connections while there are no descriptors for them, with one log entry for each episode."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._episodes = Episodes()
        self._reserve: int | None = None
        self._keep_reserve()

    async def accept(self, listener: trio.SocketListener, error: OSError) -> trio.SocketStream | None:
        """Accept a connection with the reserve; refuse it if there are still no descriptors, and return None."""
        if self._episodes.has_begun():
            _log.error("connections_refused", protocol=self._protocol, reason=os.strerror(error.errno or 0))
        if self._reserve is None:
            await trio.sleep(_RETRY_SECONDS)
            self._keep_reserve()
            return None
        self.close()
        accepted = None
        with trio.move_on_after(_RETRY_SECONDS):
            try:
                accepted = await listener.accept()
            except OSError as again:
                if again.errno not in _SHORTAGES:
                    raise
                await trio.sleep(_RETRY_SECONDS)
        self._keep_reserve()
        if accepted is not None and self._reserve is None:
            await trio.aclose_forcefully(accepted)
            self._keep_reserve()
            return None
        return accepted

    def _keep_reserve(self) -> None:
        try:
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # another thread was faster
            self._reserve = None

    def close(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
