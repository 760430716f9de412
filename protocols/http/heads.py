"""The head of an HTTP request, examined before Hypercorn or the WebSocket server gets it."""

import re
from typing import Final

import trio

HEAD_BYTES: Final = 16 * 1024

_END: Final = re.compile(rb"\n\r?\n")  # as lenient as h11
_LINE_END: Final = re.compile(rb"\r?\n")
_UPGRADE: Final = re.compile(rb"\nupgrade[ \t]*:[^\n]*", re.IGNORECASE)


async def read_head(stream: trio.abc.ReceiveStream, head: bytearray) -> None:
    """Read into `head` until it is whole or too long, cannot become a request any more, or the peer has closed."""
    while len(head) < HEAD_BYTES and not is_whole(head):
        # No method begins with a byte below "!". Hypercorn's parser, h11, refuses what is not HTTP.
        if head and head[0] < 0x21:
            return
        received = await stream.receive_some(HEAD_BYTES - len(head))
        if not received:
            return
        head += received


def is_whole(head: bytes | bytearray) -> bool:
    return _END.search(head) is not None


def split_head(received: bytes) -> tuple[bytes, bytes]:
    """The head, and the bytes that came behind it."""
    end = _END.search(received)
    return (received, b"") if end is None else (received[: end.end()], received[end.end() :])


def is_websocket_upgrade(head: bytes | bytearray) -> bool:
    """RFC 6455, 4.2.1: a GET whose `Connection` names the upgrade and whose `Upgrade` names WebSocket."""
    end = _END.search(head)
    if end is None or not head.startswith(b"GET "):
        return False
    request_line, *lines = _LINE_END.split(bytes(head[: end.start()]))
    if not request_line.endswith(b" HTTP/1.1"):
        return False
    named: dict[bytes, set[bytes]] = {b"connection": set(), b"upgrade": set()}
    for line in lines:
        name, _, value = line.partition(b":")
        if (tokens := named.get(name.lower())) is not None:
            tokens.update(token.strip().lower() for token in value.split(b","))
    return b"upgrade" in named[b"connection"] and b"websocket" in named[b"upgrade"]


def for_http_1(head: bytes | bytearray) -> bytes:
    """The head as Hypercorn gets it, without a request for HTTP/2, which Hypercorn would grant."""
    if head.startswith(b"PRI "):
        return b"\0" + head  # not HTTP/1 any more, so h11 refuses it
    end = _END.search(head)
    if end is None or _UPGRADE.search(head, 0, end.start()) is None:
        return bytes(head)
    return _UPGRADE.sub(b"", head[: end.start()]) + head[end.start() :]
