"""Connections of strangers, from as many addresses of loopback as an attack wants."""

import multiprocessing
import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager

Target = tuple[str, int]


def connect_from(number: int, target: Target) -> socket.socket:
    """A connection from the loopback address with this number; innocent clients have 127.0.0.1, number 0."""
    one = socket.socket()
    one.settimeout(5)
    one.bind(("127.0.0.1" if not number else f"127.1.{number // 250}.{number % 250 + 1}", 0))
    try:
        one.connect(target)
    except OSError:
        one.close()
        raise
    return one


@contextmanager
def decoy(*, most: int = 200) -> Iterator[Target]:
    """A process that accepts connections, reads what comes, and closes the oldest when there are more than `most`."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        process = multiprocessing.Process(target=_take, args=(listener, most), daemon=True)
        process.start()
        try:
            host, port = listener.getsockname()
            yield host, port
        finally:
            process.kill()
            process.join()


def _take(listener: socket.socket, most: int) -> None:
    selector, taken = selectors.DefaultSelector(), dict[socket.socket, None]()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            one = key.fileobj
            assert isinstance(one, socket.socket)
            if one is listener:
                one, _ = listener.accept()
                taken[one] = None
                selector.register(one, selectors.EVENT_READ)
                ended = next(iter(taken)) if len(taken) > most else None
            else:
                ended = None if one in taken and _has_more(one) else one
            if ended in taken:
                del taken[ended]
                selector.unregister(ended)
                ended.close()


def _has_more(one: socket.socket) -> bool:
    try:
        return bool(one.recv(65_536))
    except OSError:
        return False
