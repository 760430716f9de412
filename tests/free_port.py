"""A port of TCP for a program that cannot choose one itself and say which."""

import secrets
import socket
from contextlib import closing, suppress


def free_port() -> int:
    """Not one of those that connections begin at: a test beside this one may get it before the program listens."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with closing(socket.socket()) as one, suppress(OSError):
            one.bind(("", port))
            return port
