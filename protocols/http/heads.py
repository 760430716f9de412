"""The head of an HTTP request: its usual form, read without h11, and the refusals of what is no head.

`parse_head` reads the forms that nearly every client uses, as h11 would read them, and no others. Not usual are other
versions than HTTP/1.1, escapes in the path, transfer and content codings, `Expect`, `Upgrade`, `Connection` with
anything but `keep-alive`, headers twice of which there is one, folded or non-ASCII lines, and long bodies.
"""

import re
import time
from functools import lru_cache
from http import HTTPStatus
from typing import Final
from wsgiref.handlers import format_date_time

import msgspec

from broker.ids import new_id
from broker.trace.refusals import Refusals
from config.limits import UNCOUNTED_BODY_BYTES
from protocols.http.forwarded import Headers
from protocols.refusals import rest_error_body
from protocols.roots import usual_root

HEAD_BYTES: Final = 16 * 1024

_END: Final = re.compile(rb"\n\r?\n")  # as lenient as h11
_LINE_END: Final = re.compile(rb"\r?\n")
_EMPTY_LINES: Final = re.compile(rb"(?:\r?\n)+")
_PATH_BYTES: Final = 200
_USUAL: Final = re.compile(
    rb"(GET|POST|PUT|DELETE) ((?:/[A-Za-z0-9_.~-]+){1,12})(?:\?([!\"$-~]*))? HTTP/1\.1\r\n"
    rb"((?:[A-Za-z0-9_-]+:[\t -~]*\r\n)+)\r\n"
)
#: With a port; a name has labels of at most 63 characters.
_HOST: Final = re.compile(rb"[A-Za-z0-9\[\]-]{1,63}(?:\.[A-Za-z0-9\[\]-]{1,63})*\.?(?::[A-Za-z0-9.:\[\]-]*)?")
_LIVE: Final = re.compile(rb"GET /[vV]1\.1/live/?(?:\?[!-~]*)? HTTP/1\.[01]\r?\n")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
#: Headers that no usual request has.
_REFUSED: Final = frozenset(
    {b"content-encoding", b"expect", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
#: Of each of these there is one at most.
_SINGLE: Final = frozenset({b"authorization", b"connection", b"content-length", b"host"})


class RequestHead(msgspec.Struct, frozen=True):
    """A head of the usual form."""

    method: str
    path: str
    query: bytes
    authorization: str
    headers: Headers  # names in lower case
    head_length: int
    body_length: int


def parse_head(received: bytes, *, longest_body: int | None = UNCOUNTED_BODY_BYTES) -> RequestHead | None:
    """The head that these bytes begin with; None for one of an unusual form, or with a body longer than `longest_body`
    bytes, which need not have come."""
    match = _USUAL.match(received)
    if match is None or match.end() > HEAD_BYTES:
        return None
    method, path, query, lines = match.groups(b"")
    if len(path) > _PATH_BYTES:
        return None
    headers = []
    single: dict[bytes, bytes] = {}
    for line in lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b"\t ")
        if name in _REFUSED or name in single:
            return None
        if name in _SINGLE:
            single[name] = value
        headers.append((name, value))
    length = single.get(b"content-length", b"0")
    if (
        not _is_usual_host(single.get(b"host", b""))
        or single.get(b"connection", b"keep-alive").lower() != b"keep-alive"
        or _LENGTH.fullmatch(length) is None
        or (longest_body is not None and int(length) > longest_body)
    ):
        return None
    return RequestHead(
        method.decode("ascii"),
        usual_root(path.decode("ascii")),
        query,
        single.get(b"authorization", b"").decode("ascii"),
        headers,
        match.end(),
        int(length),
    )


@lru_cache(maxsize=64)  # clients send the same few
def _is_usual_host(host: bytes) -> bool:
    return _HOST.fullmatch(host) is not None


def without_empty_lines(received: bytes) -> bytes:
    """These bytes without the empty lines before a request, which are ignored (RFC 9112, 2.2)."""
    match = _EMPTY_LINES.match(received)
    return received if match is None else received[match.end() :]


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


def asks_for_events(head: bytes | bytearray) -> bool:
    """Whether a request asks for the live feed as Server-Sent Events (reference 19.6). This is cheap for all others."""
    if not head.startswith(b"GET /") or not _LIVE.match(head):
        return False
    accepted = b",".join(value for name, value in headers_of(head) if name == b"accept").lower()
    return any(one.partition(b";")[0].strip() == b"text/event-stream" for one in accepted.split(b","))


def headers_of(head: bytes | bytearray) -> list[tuple[bytes, bytes]]:
    """Names in lower case, and values. A malformed line is one whose name no header has."""
    end = _END.search(head)
    lines = _LINE_END.split(bytes(head if end is None else head[: end.start()]).rstrip(b"\r"))[1:]
    split = (line.partition(b":") for line in lines)
    return [(name.lower(), value.strip()) for name, _, value in split]


def head_refusal(received: bytes, refusals: Refusals) -> bytes | None:
    """The answer to bytes that begin no head, or a head that is too long; None: they may begin one."""
    end = _END.search(received)
    if (len(received) >= HEAD_BYTES) if end is None else (end.end() > HEAD_BYTES):
        return refused_head(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, refusals)
    # No method begins with a byte below "!". Hypercorn's parser, h11, refuses a head that has an end.
    return no_head() if end is None and received[0] < 0x21 and received != b"\r" else None


def refused_head(status: HTTPStatus, refusals: Refusals) -> bytes:
    """The last answer of a connection, about a head that cannot be read."""
    error_id = new_id()
    refusals.note("http_head_refused", reason=status.phrase, error_id=error_id, status=status.value)
    body = rest_error_body(status.value, status.phrase, error_id)
    return b"".join(
        (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json; charset=utf-8\r\n".encode(),
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode(),
            body,
        )
    )


def no_head() -> bytes:
    """The last answer of a connection, about what will not become a head: the bytes that Hypercorn would send.

    Hypercorn takes ten times as long, and strangers decide how many connections end so.
    """
    return b"HTTP/1.1 400 \r\ncontent-length: 0\r\nconnection: close\r\n" + date_line() + b"\r\n"


def date_line() -> bytes:
    return _date_line(int(time.time()))


@lru_cache(1)
def _date_line(second: int) -> bytes:
    return f"date: {format_date_time(second)}\r\n".encode()
