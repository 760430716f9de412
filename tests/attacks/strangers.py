"""Connections of strangers, from as many addresses of loopback as an attack wants."""

import socket

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
