"""The head of an HTTP request, examined before Hypercorn or the WebSocket server gets it."""

import re
import time
from functools import lru_cache
from http import HTTPStatus
from typing import Final
from wsgiref.handlers import format_date_time

import trio

from broker.ids import new_id
from broker.trace.refusals import Refusals
from protocols.refusals import rest_error_body
from protocols.streams.listeners import Stream, end_gently
from protocols.streams.peers import turn_of_strangers

HEAD_BYTES: Final = 16 * 1024
#: From the first byte of a head to its last; for the first head of a connection, from the connection's begin.
HEAD_SECONDS: Final = 10.0
_LINGER_SECONDS: Final = 1.0

_END: Final = re.compile(rb"\n\r?\n")  # as lenient as h11
_LINE_END: Final = re.compile(rb"\r?\n")


async def read_head(stream: trio.abc.ReceiveStream, head: bytearray) -> None:
    """Read into `head` until it is whole or too long, cannot become a request any more, or the peer has closed.

    Empty lines before a request are ignored (RFC 9112, 2.2).
    """
    while True:
        drop_empty_lines(head)
        if len(head) >= HEAD_BYTES or is_whole(head):
            return
        # No method begins with a byte below "!". Hypercorn's parser, h11, refuses what is not HTTP.
        if head and head[0] < 0x21 and head != b"\r":
            return
        try:
            received = await stream.receive_some(HEAD_BYTES - len(head))
        finally:
            await turn_of_strangers()
        if not received:
            return
        head += received


def drop_empty_lines(received: bytearray) -> None:
    """Remove the empty lines before a request."""
    while received.startswith((b"\r\n", b"\n")):
        del received[: received.index(b"\n") + 1]


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
    if not _LINE_END.split(bytes(head[: end.start()]), 1)[0].endswith(b" HTTP/1.1"):
        return False
    named: dict[bytes, set[bytes]] = {b"connection": set(), b"upgrade": set()}
    for name, value in headers_of(head):
        if (tokens := named.get(name)) is not None:
            tokens.update(token.strip().lower() for token in value.split(b","))
    return b"upgrade" in named[b"connection"] and b"websocket" in named[b"upgrade"]


def headers_of(head: bytes | bytearray) -> list[tuple[bytes, bytes]]:
    """Names in lower case, and values. A malformed line is one whose name no header has."""
    end = _END.search(head)
    lines = _LINE_END.split(bytes(head if end is None else head[: end.start()]).rstrip(b"\r"))[1:]
    split = (line.partition(b":") for line in lines)
    return [(name.lower(), value.strip()) for name, _, value in split]


async def refuse_head(stream: Stream, status: HTTPStatus, refusals: Refusals) -> None:
    """Answer a request whose head cannot be read, and close."""
    error_id = new_id()
    refusals.note("http_head_refused", reason=status.phrase, error_id=error_id, status=status.value)
    body = rest_error_body(status.value, status.phrase, error_id)
    answer = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    with trio.move_on_after(_LINGER_SECONDS):
        await stream.send_all(answer + body)
        await end_gently(stream)


async def has_refused(head: bytes, stream: Stream, refusals: Refusals, *, is_late: bool = False) -> bool:
    """Answer what is no head, too long, or late, and close; nothing is to be said about an empty one. Returns whether
    the connection has ended so: then these bytes begin no request."""
    end = _END.search(head)
    if not head:
        return True
    if is_late:
        await refuse_head(stream, HTTPStatus.REQUEST_TIMEOUT, refusals)
    elif (len(head) >= HEAD_BYTES) if end is None else (end.end() > HEAD_BYTES):
        await refuse_head(stream, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, refusals)
    elif end is None:
        await refuse_fragment(stream)
    else:
        return False
    return True


async def refuse_fragment(stream: Stream) -> None:
    """Answer what is no head and will not become one, with the bytes that Hypercorn would send, and close.

    Hypercorn takes ten times as long, and strangers decide how many connections end so.
    """
    with trio.move_on_after(_LINGER_SECONDS):
        await stream.send_all(b"HTTP/1.1 400 \r\ncontent-length: 0\r\nconnection: close\r\n" + date_line() + b"\r\n")
        await end_gently(stream)


def date_line() -> bytes:
    return _date_line(int(time.time()))


@lru_cache(1)
def _date_line(second: int) -> bytes:
    return f"date: {format_date_time(second)}\r\n".encode()
