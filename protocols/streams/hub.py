"""Reads from many sockets in one task, so that a message costs no turn of a task of its own.

A connection's task parks its socket here while it has nothing to do but wait for bytes. The hub reads what is there and
passes it to the connection's function, which may not wait. When something is to be awaited, that function returns
False, and the connection's task goes on.

The hub has an epoll of its own, level-triggered, which trio sees as one descriptor. So a read takes one call of the
operating system, where a task that waits for its socket takes four, and a turn of the loop.
"""

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
import trio
from outcome import Error, Value

from broker.life import Life
from config.limits import HUB_BYTES_PER_TURN, HUB_CONNECTIONS_PER_TURN, HUB_TASKS_PER_TURN
from protocols.streams.alarms import Alarms

_READ_BYTES: Final = 16 * 1024
_POLLED: Final = 512
#: Weight of a connection whose task goes on: the task's turn takes longer than the call of the hub.
_CONNECTIONS_OF_A_TASK: Final = HUB_CONNECTIONS_PER_TURN // HUB_TASKS_PER_TURN - 1
#: A connection that stops may have taken long, by searches or deliveries. After this time, other tasks run.
_LONG_TURN_SECONDS: Final = 0.001

Take = Callable[[bytes], bool]

_log = structlog.get_logger(__name__)


class _Parked:
    __slots__ = ("run", "take", "task")

    def __init__(self, take: Take, task: trio.lowlevel.Task) -> None:
        self.run = task.context.run
        self.take = take
        self.task = task


class Hub:
    """Reads from parked sockets, in one task of the connections' nursery, which begins with the first socket.

    While no socket is parked, it ends when the daemon stops: nobody waits for it. Devices that connect for one message
    would otherwise have a task begin and end each time.
    """

    def __init__(self, connections: trio.Nursery, life: Life) -> None:
        """`connections` is the nursery of the listener's connections."""
        self.connections = connections
        self.alarms = Alarms(connections, life)
        self.life = life
        self._parked: dict[int, _Parked] = {}  # by descriptor
        self._epoll: select.epoll | None = None
        self._running = trio.CancelScope()

    @property
    def parked(self) -> int:
        """How many sockets are parked."""
        return len(self._parked)

    async def read(self, socket: trio.socket.SocketType, take: Take) -> bool:
        """Call `take` with what comes, in the context of this task, until it returns False; with nothing at the end of
        the stream. No byte is lost: after a cancellation, unread ones stay in the socket.

        Only this task may close the socket, when this has returned or raised.

        Returns:
            False when the socket cannot be parked, for example without a free descriptor: the task reads for itself.

        Raises:
            BrokenResourceError: the connection is broken.
            ClosedResourceError: the socket is closed.
            BusyResourceError: another task has parked this socket.
            Exception: whatever `take` raises.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        number = socket.fileno()
        if number < 0:
            raise trio.ClosedResourceError
        if number in self._parked:
            raise trio.BusyResourceError("another task reads from this socket")
        try:
            self._register(number)
        except OSError:
            return False
        self._parked[number] = _Parked(take, trio.lowlevel.current_task())

        def abort(_raise_cancel: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._leave(number)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        return True

    def _register(self, number: int) -> None:
        if self._epoll is None or self._running.cancel_called:
            epoll = select.epoll()
            try:
                epoll.register(number, select.EPOLLIN)
            except OSError:
                epoll.close()
                raise
            self._epoll, self._running = epoll, trio.CancelScope()
            self.connections.start_soon(self._run, epoll, self._running)
        else:
            self._epoll.register(number, select.EPOLLIN)
            self.life.forget(self._running)

    def _leave(self, number: int) -> None:
        """The socket is not parked any more."""
        del self._parked[number]
        if self._epoll is not None:
            with suppress(OSError):  # it was closed, and the kernel has taken it out
                self._epoll.unregister(number)
            if not self._parked:
                self.life.end_with_stop(self._running)

    async def _run(self, epoll: select.epoll, running: trio.CancelScope) -> None:
        try:
            with running:
                while True:
                    await trio.lowlevel.wait_readable(epoll.fileno())
                    await self._serve(epoll.poll(0, _POLLED))
        finally:
            self.life.forget(running)
            if self._epoll is epoll:  # who parks after a cancellation has started another task
                self._epoll = None
            epoll.close()

    async def _serve(self, ready: list[tuple[int, int]]) -> None:
        connections, size, is_long, began_at = 0, 0, False, time.perf_counter()
        for number, _ in ready:
            parked = self._parked.get(number)
            if parked is None:  # it was woken or cancelled since the poll
                continue
            try:
                received = os.read(number, _READ_BYTES)
            except BlockingIOError:  # another socket than that of the poll has the number now
                continue
            except OSError as error:
                broken = trio.BrokenResourceError(str(error))
                broken.__cause__ = error
                self._wake(number, parked, Error(broken))
                continue
            try:
                goes_on = parked.run(parked.take, received)
            except Exception as error:  # noqa: BLE001 - it is raised in the connection's task
                self._wake(number, parked, Error(error))
            else:
                if not goes_on:
                    self._wake(number, parked, Value(None))
                    connections += _CONNECTIONS_OF_A_TASK
                    is_long = time.perf_counter() - began_at >= _LONG_TURN_SECONDS
            connections += 1
            size += len(received)
            if connections >= HUB_CONNECTIONS_PER_TURN or size >= HUB_BYTES_PER_TURN or is_long:
                await trio.lowlevel.checkpoint()
                connections, size, is_long, began_at = 0, 0, False, time.perf_counter()

    def _wake(self, number: int, parked: _Parked, result: Value[None] | Error) -> None:
        if self._parked.get(number) is parked:
            self._leave(number)
            trio.lowlevel.reschedule(parked.task, result)
        elif isinstance(result, Error):  # cancelled by what has failed
            parked.run(partial(_log.error, "connection_failed", exc_info=result.error))
