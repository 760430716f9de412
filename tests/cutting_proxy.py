"""A proxy that cuts the connections through it, at a moment that the test chooses."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class CuttingProxy:
    """Listens on a port of the loopback address and connects with a socket in the file system."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._marker: bytes | None = None
        self._losing: bytes | None = None
        self._is_answered = self._then_closed = False
        self._swallowing: set[socket.socket] = set()
        self._broken: set[socket.socket] = set()  # they have lost something: nothing comes from them any more
        #: Whether new connections are cut at once.
        self.is_closed = False
        #: The direction whose bytes get lost, `up` to the server or `down` from it, while the connection stays open.
        self.loses = ""
        #: Changes what the server says.
        self.rewrites: Callable[[bytes], bytes] = bytes
        self._flows = threading.Event()
        self._flows.set()
        #: Set when something was lost.
        self.has_lost = threading.Event()
        #: Set when the marker has come and its connection is cut.
        self.has_cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut_at(self, marker: bytes, *, answered: bool, then_closed: bool = False) -> None:
        """Cut the connection that sends this: before the server gets it, or after it has answered; the answer is lost.

        `then_closed`: new connections are cut, too.
        """
        self.has_cut.clear()
        self._marker, self._is_answered, self._then_closed = marker, answered, then_closed

    def connect_to(self, target: Path) -> None:
        """New connections go to another server."""
        self._target = str(target)

    def lose_at(self, marker: bytes) -> None:
        """Lose what is sent from this on, in each new connection: the server seems to stand still."""
        self._losing = marker

    def cut(self) -> None:
        """Cut all connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _end(pair)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Until the block ends, what is sent to the server waits; nothing gets lost."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_closed:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._target)
            except OSError:  # the server is away
                client.close()
                server.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            for run in (self._up, self._down):
                threading.Thread(target=run, args=(client, server), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                loses = self._losing is not None and self._losing in data
                if self.loses == "up" or loses or client in self._broken:
                    self._broken.add(client)
                    self.has_lost.set()
                    continue
                if self._marker is not None and self._marker in data:
                    self._marker = None
                    self.is_closed = self._then_closed
                    if not self._is_answered:
                        break
                    with self._lock:
                        self._swallowing.add(server)
                self._flows.wait()
                server.sendall(data)
        _end((client, server))
        if not self._is_answered:
            self.has_cut.set()

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if server in self._swallowing:
                    break
                if self.loses == "down" or server in self._broken:
                    self._broken.add(server)
                    self.has_lost.set()
                    continue
                client.sendall(self.rewrites(data))
        _end((client, server))
        if server in self._swallowing:
            self.has_cut.set()


def _end(pair: tuple[socket.socket, socket.socket]) -> None:
    for one in pair:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
