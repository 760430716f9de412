"""A connection on which PostgreSQL tells that other nodes have stored something, for one thread."""

import select
import socket
from contextlib import suppress

import psycopg

from storage.engines.postgresql_insertion import CHANNEL, MESSAGES_CHANNEL
from storage.engines.postgresql_target import Connection, Target, explained
from storage.peers import HeardOf

_ALL = HeardOf(changes=True, messages=True)


class Listening:
    """A hint may be lost with its connection, so whoever listens also looks by itself."""

    def __init__(self, target: Target, instance: str) -> None:
        """`instance`: the name of this process, whose own commits are left out."""
        self._target = target
        self._instance = instance.encode()
        self._connection: Connection | None = None
        self._hears_messages = self._is_closed = False
        self._woken, self._waker = socket.socketpair()
        for one in (self._woken, self._waker):
            one.setblocking(False)

    def wait(self, seconds: float, *, messages: bool) -> HeardOf:
        """Hear of the next commits of others, within this number of seconds at most; of all with a new connection.
        `messages`: also hear of commits that have nothing else, of which a busy cluster has hundreds each second.
        Raises StoreError."""
        try:
            with explained(self._target):
                if self._connection is None:
                    self._connection = self._target.connect(name=f"trunkline {self._instance.decode()}.listens")
                    self._connection.execute(f"LISTEN {CHANNEL}".encode())
                    self._hears_messages = False
                    self._hear_messages(self._connection, messages)
                    if self._is_closed:  # by another thread, before there was a connection
                        self._end()
                    return _ALL
                if messages is not self._hears_messages:
                    self._hear_messages(self._connection, messages)
                    return _ALL  # the answers of the statement may have told something
                return self._waited(self._connection, seconds)
        except BaseException:  # whatever it is: the next call makes a new connection; raised again
            self._end()
            raise

    def _hear_messages(self, connection: Connection, messages: bool) -> None:
        if messages is not self._hears_messages:
            connection.execute(f"{'LISTEN' if messages else 'UNLISTEN'} {MESSAGES_CHANNEL}".encode())
            self._hears_messages = messages

    def _waited(self, connection: Connection, seconds: float) -> HeardOf:
        if self._is_closed:
            return HeardOf()
        driver, poll = connection.pgconn, select.poll()
        poll.register(driver.socket, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        poll.poll(seconds * 1000)
        if self._is_closed:
            return HeardOf()
        with suppress(BlockingIOError):
            while self._woken.recv(64):
                pass
        driver.consume_input()
        channels = set()
        while (one := driver.notifies()) is not None:
            if one.extra != self._instance:
                channels.add(one.relname)
        return HeardOf(changes=CHANNEL.encode() in channels, messages=MESSAGES_CHANNEL.encode() in channels)

    def interrupt(self) -> None:
        """From any thread: `wait` returns, as it may be called with other arguments."""
        with suppress(OSError):  # it is full: `wait` returns anyway; or it is closed
            self._waker.send(b".")

    def close(self) -> None:
        """From any thread: nothing is waited for any more."""
        self._is_closed = True
        self._end()
        self.interrupt()
        self._waker.close()
        self._woken.close()

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
