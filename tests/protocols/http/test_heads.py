import pytest

from protocols.http.heads import headers_of, is_websocket_upgrade, is_whole


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
