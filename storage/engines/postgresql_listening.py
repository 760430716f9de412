"""A connection on which PostgreSQL tells that other nodes have stored something."""

import socket
from contextlib import suppress
from functools import partial

import psycopg
import trio

from storage.engines.postgresql_insertion import CHANNEL, MESSAGES_CHANNEL
from storage.engines.postgresql_target import Connection, Target, explained
from storage.peers import HeardOf

_ALL = HeardOf(changes=True, messages=True)


class Listening:
    """A hint may be lost with its connection, so whoever listens also looks by itself.

    The loop waits for the socket: a thread that waits, and hands over to the loop, would cost an Action 0.3 ms.
    """

    def __init__(self, target: Target, instance: str) -> None:
        """`instance`: the name of this process, whose own commits are left out."""
        self._target = target
        self._instance = instance.encode()
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None  # that of the connection, under a number of its own
        self._hears_messages = self._is_closed = self._is_interrupted = False
        self._waiting = trio.CancelScope()

    async def wait(self, seconds: float, *, messages: bool) -> HeardOf:
        """Hear of the next commits of others, within this number of seconds at most; of all with a new connection.
        `messages`: also hear of commits that have nothing else, of which a busy cluster has hundreds each second.
        Raises StoreError."""
        try:
            with explained(self._target):
                if self._connection is None or self._socket is None or messages is not self._hears_messages:
                    # The answers of the statements may have told something.
                    await trio.to_thread.run_sync(partial(self._listen, messages), abandon_on_cancel=True)
                    return _ALL
                return await self._waited(self._connection, self._socket, seconds)
        except BaseException:  # whatever it is: the next call makes a new connection; raised again
            self._end()
            raise

    def _listen(self, messages: bool) -> None:
        """In a thread: have a connection that hears of them."""
        with explained(self._target):
            if self._connection is None:
                self._connection = self._target.connect(name=f"trunkline {self._instance.decode()}.listens")
                self._connection.execute(f"LISTEN {CHANNEL}".encode())
                self._socket = self._target.other_socket(self._connection)
                self._hears_messages = False
            if messages is not self._hears_messages:
                self._connection.execute(f"{'LISTEN' if messages else 'UNLISTEN'} {MESSAGES_CHANNEL}".encode())
                self._hears_messages = messages
        if self._is_closed:  # on the loop, before there was a connection
            self._end()

    async def _waited(self, connection: Connection, of: socket.socket, seconds: float) -> HeardOf:
        is_due, self._is_interrupted = self._is_interrupted or self._is_closed, False
        with trio.move_on_after(seconds) as self._waiting:
            if not is_due:
                await trio.lowlevel.wait_readable(of)
        if self._is_closed:
            return HeardOf()
        driver, channels = connection.pgconn, set()
        driver.consume_input()
        while (one := driver.notifies()) is not None:
            if one.extra != self._instance:
                channels.add(one.relname)
        return HeardOf(changes=CHANNEL.encode() in channels, messages=MESSAGES_CHANNEL.encode() in channels)

    def interrupt(self) -> None:
        """`wait` returns, as it may be called with other arguments."""
        self._is_interrupted = True
        self._waiting.cancel()

    def close(self) -> None:
        """Nothing is waited for any more."""
        self._is_closed = True
        self.interrupt()
        self._end()

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        of, self._socket = self._socket, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
        if of is not None:
            of.close()
