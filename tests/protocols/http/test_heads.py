"""Heads: WebSocket upgrades, ends, headers, and the usual form, which is read as h11 reads it."""

from typing import Final

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.limits import UNCOUNTED_BODY_BYTES
from protocols.http.heads import headers_of, is_websocket_upgrade, is_whole, parse_head, without_empty_lines
from tests.properties import examples


def head(*lines: str, line_end: str = "\r\n") -> bytes:
    return line_end.join((*lines, "", "")).encode()


@pytest.mark.parametrize(
    "upgrade",
    [
        head("GET /v1.1/live HTTP/1.1", "Host: a", "Connection: Upgrade", "Upgrade: websocket"),
        head("GET / HTTP/1.1", "CONNECTION: upgrade", "uPGRADE:WebSocket"),
        head("GET / HTTP/1.1", "Connection: keep-alive, Upgrade", "Upgrade: websocket"),
        head("GET / HTTP/1.1", "Connection: keep-alive", "Connection: upgrade", "Upgrade: h2c, websocket"),
        head("GET / HTTP/1.1", "Connection: upgrade", "Upgrade: websocket", line_end="\n"),
    ],
)
def test_a_websocket_upgrade_is_recognised(upgrade: bytes) -> None:
    assert is_websocket_upgrade(upgrade)


@pytest.mark.parametrize(
    "request_head",
    [
        head("GET /?Upgrade:%20websocket HTTP/1.1", "Connection: upgrade"),
        head("GET / HTTP/1.1", "Connection: upgrade", "X-Note: Upgrade: websocket"),
        head("GET / HTTP/1.1", "Connection: keep-alive", "Upgrade: websocket"),
        head("GET / HTTP/1.1", "Connection: upgrade", "Upgrade: websockets"),
        head("GET / HTTP/1.1", "Connection: not-upgrade", "Upgrade: websocket"),
        head("GET / HTTP/1.0", "Connection: upgrade", "Upgrade: websocket"),
        head("POST / HTTP/1.1", "Connection: upgrade", "Upgrade: websocket"),
        head("POST / HTTP/1.1") + head("GET / HTTP/1.1", "Connection: upgrade", "Upgrade: websocket"),
        head("GET / HTTP/1.1") + head("Connection: upgrade", "Upgrade: websocket"),
        b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n",
        b"",
    ],
)
def test_other_heads_are_no_upgrade(request_head: bytes) -> None:
    assert not is_websocket_upgrade(request_head)


@pytest.mark.parametrize(
    ("received", "whole"), [(b"A\r\n\r\n", True), (b"A\n\n", True), (b"A\n\r\nbody", True), (b"A\r\n\r", False)]
)
def test_a_head_ends_with_an_empty_line(received: bytes, whole: bool) -> None:
    assert is_whole(received) is whole


def test_headers_are_those_before_the_empty_line() -> None:
    received = head("GET / HTTP/1.1", "Host: a", "X-Forwarded-For:  1.2.3.4 ", "nonsense") + b"X-Forwarded-For: body"
    assert headers_of(received) == [(b"host", b"a"), (b"x-forwarded-for", b"1.2.3.4"), (b"nonsense", b"")]


@pytest.mark.parametrize(
    ("received", "left"),
    [(b"\r\n\nA", b"A"), (b"\n\rA", b"\rA"), (b"\r", b"\r"), (b"A\r\n", b"A\r\n"), (b"\r\n", b"")],
)
def test_empty_lines_before_a_head_are_left_out(received: bytes, left: bytes) -> None:
    assert without_empty_lines(received) == left


LINES: Final = st.lists(
    st.sampled_from(
        [
            b"Host: a",
            b"host:a:1",
            b"Host: [::1]",
            b"Host: a b",
            b"Content-Length: 2",
            b"content-length:0",
            b"Content-Length: 1, 1",
            b"Content-Length: 02",
            b"Content-Length:",
            b"Connection: keep-alive",
            b"Connection: close",
            b"Connection: Upgrade",
            b"Transfer-Encoding: chunked",
            b"Expect: 100-continue",
            b"Authorization: Bearer x",
            b"X: \t a \t",
            b"X:",
            b"X : 1",
            b" folded",
            b"X: \x00",
            b"X: \xe9",
            b"X: \x7f",
            b"X\xe9: 1",
            b": 1",
            b"X",
            b"A_b.c: 1",
        ]
    ),
    max_size=5,
)
BEGINNINGS: Final = st.tuples(
    st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE", b"get", b"HEAD", b"PATCH", b" GET"]),
    st.sampled_from([b" ", b"  ", b"\t"]),
    st.sampled_from(
        [b"/v1.1/a", b"/", b"/a?b=c", b"/a?\x7f", b"/a#b", b"/a%20", b"*", b"a", b"/a?b#c", b"/a?", b'/a?"']
    ),
    st.sampled_from([b" HTTP/1.1", b" HTTP/1.0", b" HTTP/1.1 ", b" HTTP/2.0", b""]),
).map(b"".join)


@settings(max_examples=examples(300))
@given(beginning=BEGINNINGS, lines=LINES, end=st.sampled_from([b"\r\n", b"\n"]), behind=st.binary(max_size=4))
def test_what_is_plain_h11_reads_in_the_same_way(
    beginning: bytes, lines: list[bytes], end: bytes, behind: bytes
) -> None:
    """Two readers that take one request for different ones are how requests are smuggled (RFC 9112, 11.2)."""
    sent = end.join([beginning, *lines, b"", b""]) + behind
    plain = parse_head(sent)
    if plain is None:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(sent)
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    path, _, query = event.target.partition(b"?")
    assert (plain.method.encode(), plain.path.encode(), plain.query) == (event.method, path, query)
    assert list(plain.headers) == list(event.headers)
    body = b""
    while isinstance(following := connection.next_event(), h11.Data):
        body += following.data
    assert body == behind[: plain.body_length]
    assert (following is h11.NEED_DATA) == (len(behind) < plain.body_length)
    assert sent[plain.head_length :] == behind


def test_a_long_body_or_path_is_not_plain() -> None:
    for length, path, is_plain in (
        (UNCOUNTED_BODY_BYTES, "/a", True),
        (UNCOUNTED_BODY_BYTES + 1, "/a", False),
        (0, "/" + "a" * 199, True),
        (0, "/" + "a" * 200, False),
        (0, "/a" * 13, False),
    ):
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
        assert (parse_head(head.encode()) is not None) is is_plain
