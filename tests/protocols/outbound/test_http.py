"""Requests to addresses that others choose: which are allowed, and the bounds of answers."""

import socket
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import trio

from protocols.outbound.addresses import is_public, resolve
from protocols.outbound.http import HttpAnswer, HttpFailedError, OutboundHttp
from protocols.outbound.tls import client_context
from tests.protocols.http.certificates import contexts
from tests.rows import each_row

Serve = Callable[[bytes], Awaitable[int]]


@pytest.fixture
def heads() -> list[bytes]:
    """The requests that the servers got."""
    return []


@pytest.fixture
def serve(nursery: trio.Nursery, heads: list[bytes]) -> Serve:
    """Answers every connection with these bytes and closes; gives its port on 127.0.0.1."""

    async def start(answer: bytes, wrap: Any = None) -> int:
        async def converse(stream: trio.abc.Stream) -> None:
            stream = stream if wrap is None else trio.SSLStream(stream, wrap, server_side=True, https_compatible=True)
            async with stream:
                try:
                    heads.append(bytes(await stream.receive_some()))
                    await stream.send_all(answer)
                except trio.BrokenResourceError:
                    pass

        listeners = await nursery.start(partial(trio.serve_tcp, converse, 0, host="127.0.0.1"))
        port: int = listeners[0].socket.getsockname()[1]
        return port

    return start


def named(monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]]) -> list[str]:
    """The addresses of names, and the names that were resolved."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *rest: Any, **about: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in names or "flags" in about:  # an address, or whether it is one
            return real(host, port, *rest, **about)
        asked.append(name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in names[name]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


async def get(url: str, *, private: bool = True, http: OutboundHttp | None = None) -> HttpAnswer:
    http = http or OutboundHttp(client_context(""), allow_private=private)
    return await http.send("GET", url, headers={"X-Mine": "1"}, seconds=5, most_bytes=100)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Theirs: 2\r\n\r\nhi"


async def test_an_answer(serve: Serve, heads: list[bytes]) -> None:
    port = await serve(OK)
    answer = await get(f"http://localhost:{port}/a%2Fb?c=d%20e")
    assert (answer.status, answer.headers["x-theirs"], answer.body) == (200, "2", b"hi")
    lines = heads[0].decode().split("\r\n")
    assert lines[0] == "GET /a%2Fb?c=d%20e HTTP/1.1"
    assert {f"Host: localhost:{port}", "X-Mine: 1", "User-Agent: trunkline", "Accept-Encoding: identity"} <= set(lines)


@each_row(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 - an address like any other
        ("255.255.255.255", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.215.14", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d70e", True),
        ("2002:7f00:1::", False),
        ("fec0::1", False),
        ("64:ff9b:1::1", False),
        ("::127.0.0.1", False),
        ("::10.0.0.1", False),
        ("192.0.0.9", False),
        ("192.0.0.200", False),
        ("192.88.99.1", False),
        ("2001:0:5db8:d70e::1", False),
        ("3fff::1", False),
        ("5f00::1", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(ip_address(address)) is public


@each_row(
    "url",
    [
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://localhost/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://[::ffff:10.0.0.1]/",
        "https://mixed.example/",
    ],
)
async def test_private_addresses_are_refused_however_they_are_written(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    named(monkeypatch, {"mixed.example": ["93.184.215.14", "10.0.0.1"]})
    with pytest.raises(HttpFailedError, match="private"):
        await get(url, private=False)


@each_row(
    "url",
    ["http://93.184.215.14/", "ftp://example.org/", "https:///x", "https://user:pw@example.org/", "", "https://[/"],
)
async def test_malformed_addresses_are_refused(url: str) -> None:
    with pytest.raises(HttpFailedError):
        await get(url, private=False)


async def test_a_name_is_resolved_once_and_the_connection_goes_to_a_resolved_address(
    serve: Serve, heads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = await serve(OK)
    asked = named(monkeypatch, {"cloud.example": ["127.0.0.2", "127.0.0.1"]})  # nobody is at the first
    assert (await get(f"http://cloud.example:{port}/")).body == b"hi"
    assert asked == ["cloud.example"]
    assert f"Host: cloud.example:{port}".encode() in heads[0]


async def test_the_certificate_is_checked_for_the_name(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = contexts(tmp_path)
    port = await serve(OK, server)
    http = OutboundHttp(client, allow_private=True)
    assert (await get(f"https://127.0.0.1:{port}/", http=http)).body == b"hi"
    named(monkeypatch, {"cloud.example": ["127.0.0.1"]})
    with pytest.raises(HttpFailedError, match="CERTIFICATE"):
        await get(f"https://cloud.example:{port}/", http=http)
    with pytest.raises(HttpFailedError, match="CERTIFICATE"):
        await get(f"https://127.0.0.1:{port}/")


@each_row(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + b"x" * 101,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"not HTTP at all\r\n\r\n",
        b"",
    ],
)
async def test_answers_that_are_refused(serve: Serve, answer: bytes) -> None:
    port = await serve(answer)
    with pytest.raises(HttpFailedError):
        await get(f"http://127.0.0.1:{port}/")


async def test_a_redirection_is_an_answer_like_any_other(serve: Serve, heads: list[bytes]) -> None:
    port = await serve(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
    assert (await get(f"http://127.0.0.1:{port}/")).status == 302
    assert len(heads) == 1


async def test_no_answer_in_time(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:

        async def silent(_stream: trio.SocketStream) -> None:
            await trio.sleep_forever()

        listeners = await nursery.start(partial(trio.serve_tcp, silent, 0, host="127.0.0.1"))
        with pytest.raises(HttpFailedError, match="within 5 s"):
            await get(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/")
        assert trio.current_time() >= 5
        nursery.cancel_scope.cancel()


async def test_no_server_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(HttpFailedError, match=r"^no connection: connection refused$"):
            await get(f"http://127.0.0.1:{taken.getsockname()[1]}/")


async def test_a_name_that_stands_for_nothing_is_said_in_words() -> None:
    with pytest.raises(HttpFailedError, match=r"^the name of the host cannot be resolved$"):
        await get("https://nobody.invalid/")


async def test_line_breaks_in_headers_are_refused(serve: Serve) -> None:
    port = await serve(OK)
    http = OutboundHttp(client_context(""), allow_private=True)
    with pytest.raises(HttpFailedError):
        await http.send("GET", f"http://127.0.0.1:{port}/", headers={"X": "1\r\nY: 2"}, seconds=5, most_bytes=100)


async def test_a_kept_connection_is_for_one_name_and_a_closed_one_is_replaced(
    serve: Serve, heads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server closes each connection after its answer. Names with the same address share no connection."""
    port = await serve(OK)
    asked = named(monkeypatch, {"a.example": ["127.0.0.1"], "b.example": ["127.0.0.1"]})
    http = OutboundHttp(client_context(""), allow_private=True, idle_seconds=60)
    for name in ("a.example", "b.example", "a.example"):
        assert (await get(f"http://{name}:{port}/", http=http)).status == 200
    assert asked == ["a.example", "b.example", "a.example"]
    assert len(heads) == 3
    await http.close()


async def test_a_kept_connection_needs_no_new_look_at_the_name(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """Its address was checked when it was opened; after `close_idle` the name is resolved and checked again."""

    async def converse(stream: trio.SocketStream) -> None:
        async with stream:
            while await stream.receive_some():
                await stream.send_all(OK)

    listeners = await nursery.start(partial(trio.serve_tcp, converse, 0, host="127.0.0.1"))
    url = f"http://a.example:{listeners[0].socket.getsockname()[1]}/"
    asked = named(monkeypatch, {"a.example": ["127.0.0.1"]})
    http = OutboundHttp(client_context(""), allow_private=True, idle_seconds=60)
    await get(url, http=http)
    await get(url, http=http)
    assert asked == ["a.example"]
    mock_clock.jump(61)
    await http.close_idle()
    await get(url, http=http)
    assert asked == ["a.example", "a.example"]
    await http.close()


async def test_names_that_are_never_found_hold_up_neither_other_domains_nor_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name server of a user's own domain may let every lookup hang."""
    may_end = threading.Event()
    hanging: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *rest: Any, **about: Any) -> Any:
        if "flags" in about:  # whether it is an address
            return real(host, port, *rest, **about)
        if host.endswith(".evil.example"):
            hanging.append(host)
            may_end.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    try:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(partial(resolve, f"h{number}.evil.example", 443, allow_private=True))
            while len(hanging) < 4:  # noqa: ASYNC110 - threads
                await trio.sleep(0.001)
            assert [str(one) for one in await resolve("good.example", 443, allow_private=True)] == ["127.0.0.1"]
            assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
            assert len(hanging) == 4
            nursery.cancel_scope.cancel()
    finally:
        may_end.set()
