import json
import re
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import FrameType

import httpx
import pytest
import trio
from h11._receivebuffer import ReceiveBuffer
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from structlog.testing import capture_logs
from structlog.types import EventDict
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.life import Life
from broker.limits.overhead import Overhead
from broker.services import Services
from config.settings import Address
from protocols.http.connection import HEAD_SECONDS, KEEP_ALIVE_SECONDS, REQUEST_FRAMES, HttpListener
from protocols.http.heads import HEAD_BYTES
from protocols.http.hypercorn_adapter import HypercornAdapter
from protocols.http.server import serve_http, serve_http_connection
from protocols.streams.hub import Hub
from protocols.streams.listeners import serve_tcp
from protocols.streams.proxies import TrustedProxies
from tests.factories import ADA_TOKEN, KITCHEN, KITCHEN_TOKEN, World
from tests.fakes import new_refusals
from tests.protocols.http.certificates import contexts
from tests.protocols.http.conftest import Raw, bearer, receive_all, repeat_head
from tests.rows import each_row

UPGRADE = b"GET /v1.1/live HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
AUTHORIZATION = f"Host: a\r\nAuthorization: bearer {KITCHEN_TOKEN}\r\n".encode()
BODY = b'{"data":{"state":true}}'
POST = b"POST /v1.1/messages HTTP/1.1\r\nContent-Length: %d\r\n%s\r\n" % (len(BODY), AUTHORIZATION)
GET_DEVICE = b"GET /v1.1/devices/%s HTTP/1.1\r\n%s\r\n" % (KITCHEN.encode(), AUTHORIZATION)
GET_DEVICE_AND_CLOSE = GET_DEVICE.replace(b"Host:", b"Connection: close\r\nHost:")


def errors(logs: list[EventDict]) -> list[EventDict]:
    return [entry for entry in logs if entry["log_level"] in {"warning", "error"}]


async def receive_answer(stream: trio.abc.ReceiveStream) -> bytes:
    """One answer with a JSON body."""
    received = b""
    while not received.endswith(b"}"):
        chunk = await stream.receive_some()
        assert chunk, "the server closed"
        received += chunk
    return received


@pytest.fixture(params=["fast path", "slow path"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections behave alike, whether Hypercorn serves the plain calls or not."""
    if request.param == "slow path":
        monkeypatch.setattr("protocols.http.server.fast_path", lambda *_, **__: None)


@pytest.fixture
async def door(way: None, services: Services, world: World, nursery: trio.Nursery) -> Address:
    bound: Address = await nursery.start(
        partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=repeat_head)
    )
    return bound


@pytest.fixture
async def stream(door: Address) -> AsyncIterator[trio.SocketStream]:
    async with await trio.open_tcp_stream(door.host, door.port) as opened:
        yield opened


# Which server


async def test_a_request_is_answered_by_the_rest_api(raw: Raw) -> None:
    answer = await raw(GET_DEVICE_AND_CLOSE)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"name":"Kitchen light"' in answer
    assert b"\r\nserver:" not in answer.lower()


async def test_requests_that_wait_for_no_answer_wait_in_line(raw: Raw, services: Services) -> None:
    answer = await raw(2 * GET_DEVICE + GET_DEVICE_AND_CLOSE)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert services.limits.overhead.statistics().delayed == 2 * REQUEST_FRAMES


async def test_a_request_that_waits_for_the_answer_before_it_does_not_wait(
    stream: trio.SocketStream, services: Services
) -> None:
    for _ in range(3):
        await stream.send_all(GET_DEVICE)
        await receive_answer(stream)
    assert services.limits.overhead.statistics().delayed == 0


async def test_an_upgrade_is_handed_over_from_its_first_byte_on(raw: Raw) -> None:
    assert await raw(UPGRADE) == b"websocket: " + UPGRADE


async def test_an_upgrade_that_comes_in_pieces_is_handed_over(stream: trio.SocketStream) -> None:
    for index in range(len(UPGRADE)):
        await stream.send_all(UPGRADE[index : index + 1])
        await wait_all_tasks_blocked()
    assert await receive_all(stream) == b"websocket: " + UPGRADE


async def test_a_kept_connection_may_become_a_websocket(stream: trio.SocketStream) -> None:
    await stream.send_all(GET_DEVICE)
    assert b"Kitchen light" in await receive_answer(stream)
    await stream.send_all(UPGRADE[:40])
    await wait_all_tasks_blocked()
    await stream.send_all(UPGRADE[40:])
    assert await receive_all(stream) == b"websocket: " + UPGRADE


async def test_a_body_that_looks_like_an_upgrade_is_a_body(stream: trio.SocketStream) -> None:
    post = POST.replace(b"Content-Length: %d" % len(BODY), b"Content-Length: %d" % len(UPGRADE))
    for _ in range(2):
        await stream.send_all(post)
        await wait_all_tasks_blocked()
        await stream.send_all(UPGRADE)
        assert (await receive_answer(stream)).startswith(b"HTTP/1.1 400")


async def test_a_kept_connection_serves_request_after_request(stream: trio.SocketStream) -> None:
    for _ in range(3):
        await stream.send_all(POST + BODY)
        assert b'{"data":{"mid":"' in await receive_answer(stream)


async def test_requests_that_are_sent_ahead_are_answered_in_order(raw: Raw) -> None:
    answers = await raw(POST + BODY + GET_DEVICE + GET_DEVICE_AND_CLOSE)
    assert answers.count(b"HTTP/1.1 200") == 3
    assert answers.index(b'"mid"') < answers.index(b"Kitchen light")


@pytest.mark.parametrize("fragment", [GET_DEVICE[:-10], b"G", b"\x16\x03\x01"])
async def test_what_will_be_no_request_is_refused_as_hypercorn_does(
    stream: trio.SocketStream, fragment: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unused(*_: object) -> bytes:
        raise AssertionError("Hypercorn takes ten times as long")

    monkeypatch.setattr(HypercornAdapter, "serve", unused)
    await stream.send_all(fragment)
    await stream.send_eof()
    lines = (await receive_all(stream)).split(b"\r\n")
    assert lines.pop(3).startswith(b"date: ")
    assert lines == [b"HTTP/1.1 400 ", b"content-length: 0", b"connection: close", b"", b""]


async def test_head_and_body_of_an_answer_travel_together(stream: trio.SocketStream) -> None:
    await stream.send_all(GET_DEVICE)
    received = await stream.receive_some()
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"}}")


async def test_http_2_is_not_spoken(raw: Raw) -> None:
    asked = GET_DEVICE_AND_CLOSE.replace(
        b"Connection: close", b"Connection: close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk"
    )
    assert (await raw(asked)).startswith(b"HTTP/1.1 200")
    assert (await raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")).startswith(b"HTTP/1.1 505")


@pytest.mark.parametrize("gap", ["none", "inside the head", "before the head"])
async def test_http_2_is_not_spoken_after_a_first_request(stream: trio.SocketStream, gap: str) -> None:
    """When both requests come at once, only Hypercorn sees the second head."""
    asked = GET_DEVICE_AND_CLOSE.replace(
        b"Connection: close", b"Connection: close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk"
    )
    cut = len(GET_DEVICE) + {"none": len(asked), "inside the head": 20, "before the head": 0}[gap]
    sent = GET_DEVICE + asked
    await stream.send_all(sent[:cut])
    await wait_all_tasks_blocked(0.01)
    await stream.send_all(sent[cut:])
    answers = await receive_all(stream)
    assert answers.count(b"HTTP/1.1 200") == 2
    assert b" 101 " not in answers


async def test_http_2_that_is_sent_ahead_is_refused(raw: Raw) -> None:
    answers = await raw(GET_DEVICE + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert answers.count(b"HTTP/1.1 200") == 1
    assert answers.count(b"HTTP/1.1 505") == 1


@each_row("before", [b"", GET_DEVICE])
async def test_two_lengths_of_one_body_are_refused_and_end_the_connection(raw: Raw, before: bytes) -> None:
    """RFC 9112, 6.1: what one server takes for the end of a request, another takes for a part of it."""
    both = POST.replace(b"\r\n", b"\r\nTransfer-Encoding: chunked\r\n", 1) + b"0\r\n\r\n"
    answers = await raw(before + both + GET_DEVICE)
    assert answers.count(b"HTTP/1.1 200") == bool(before)
    assert answers.count(b"HTTP/1.1 400") == 1
    assert answers.count(b"HTTP/1.1") == 1 + bool(before)


@each_row("lines", [b"\r\n", b"\n", b"\r\n\r\n\n"])
async def test_empty_lines_before_a_request_are_ignored(raw: Raw, stream: trio.SocketStream, lines: bytes) -> None:
    """RFC 9112, 2.2: before the first one, between two in one segment, and before a later one."""
    answers = await raw(lines + GET_DEVICE + lines + GET_DEVICE_AND_CLOSE)
    assert answers.count(b"HTTP/1.1 200") == 2
    for _ in range(2):
        await stream.send_all(lines[:1])
        await wait_all_tasks_blocked()
        await stream.send_all(lines[1:] + GET_DEVICE)
        assert (await receive_answer(stream)).startswith(b"HTTP/1.1 200")


async def test_thousands_of_empty_lines_behind_a_request_are_taken_at_once(raw: Raw) -> None:
    """Strangers can send them: one by one, each would copy the rest of what came."""
    taken = 0

    def count(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal taken
        taken += event == "call" and frame.f_code is ReceiveBuffer.maybe_extract_at_most.__code__
        taken += event == "call" and frame.f_code is ReceiveBuffer.maybe_extract_lines.__code__

    sys.setprofile(count)
    try:
        answers = await raw(GET_DEVICE + b"\n" * (HEAD_BYTES - 1_000) + GET_DEVICE_AND_CLOSE)
    finally:
        sys.setprofile(None)
    assert answers.count(b"HTTP/1.1 200") == 2
    assert taken < 100


async def test_an_upgrade_behind_another_request_is_handed_over_after_its_answer(raw: Raw) -> None:
    answers = await raw(GET_DEVICE + UPGRADE + b"early")
    first, _, handed_over = answers.partition(b"websocket: ")
    assert first.count(b"HTTP/1.1 200") == 1
    assert first.endswith(b"}}")
    assert handed_over == UPGRADE + b"early"


async def test_a_request_that_came_while_the_daemon_was_paused_is_answered(
    stream: trio.SocketStream, mock_clock: MockClock
) -> None:
    """When the daemon looks again, the keep-alive time is over, and bytes lie in the socket."""
    await stream.send_all(GET_DEVICE)
    await receive_answer(stream)
    await wait_all_tasks_blocked()
    await stream.send_all(GET_DEVICE)
    mock_clock.jump(KEEP_ALIVE_SECONDS + 1)
    assert (await receive_answer(stream)).startswith(b"HTTP/1.1 200")


async def test_a_client_that_waits_for_permission_to_send_gets_it(stream: trio.SocketStream) -> None:
    await stream.send_all(POST.replace(b"Host:", b"Expect: 100-continue\r\nHost:"))
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 100")
    await stream.send_all(BODY)
    assert b'{"data":{"mid":"' in await receive_answer(stream)


# Refused heads


@each_row("request_head", [b"\x16\x03\x01\x02\x00\x01", b"nonsense\r\n\r\n"])
async def test_bytes_that_are_not_http_are_refused_at_once(raw: Raw, request_head: bytes) -> None:
    assert (await raw(request_head)).startswith(b"HTTP/1.1 400")


async def test_a_long_head_is_431(raw: Raw) -> None:
    answer = await raw(b"GET /" + b"a" * (2 * HEAD_BYTES))
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], error["message"]) == (431, "Request Header Fields Too Large")


def head_of(length: int, path: str = "/v1.1/users/self", more: str = "") -> bytes:
    """A head of this length, which is whole."""
    begin = f"GET {path} HTTP/1.1\r\nHost: a\r\n{more}X: ".encode()
    return begin + b"x" * (length - len(begin) - 4) + b"\r\n\r\n"


SLOW_GET = GET_DEVICE.replace(b" HTTP/1.1", b"/ HTTP/1.1")
DEVICE_POSTS = POST + BODY


@each_row("first", [GET_DEVICE, SLOW_GET, DEVICE_POSTS], ids=["fast path", "slow path", "read by the hub"])
async def test_a_later_head_has_the_limit_of_the_first(door: Address, first: bytes) -> None:
    for length, path, status in (
        (HEAD_BYTES, "/v1.1/users/self", b"401"),
        (HEAD_BYTES, "/v1.1/users/self/", b"401"),
        (HEAD_BYTES + 1, "/v1.1/users/self", b"431"),
        (2 * HEAD_BYTES, "/v1.1/users/self", b"431"),
        (2 * HEAD_BYTES, "/v1.1/users/self/", b"431"),
    ):
        async with await trio.open_tcp_stream(door.host, door.port) as stream:
            for _ in range(2):
                await stream.send_all(first)
                assert (await receive_answer(stream)).startswith(b"HTTP/1.1 200")
            with suppress(trio.BrokenResourceError):
                await stream.send_all(head_of(length, path))
            assert (await receive_answer(stream))[9:12] == status, (length, path)


@each_row(("length", "status"), [(HEAD_BYTES, b"401"), (HEAD_BYTES + 1, b"431"), (33_000, b"431")])
async def test_a_head_that_was_sent_ahead_has_the_limit_of_the_first(raw: Raw, length: int, status: bytes) -> None:
    answers = await raw(SLOW_GET + head_of(length, more="Connection: close\r\n"))
    assert re.findall(rb"HTTP/1.1 ([0-9]+) ", answers) == [b"200", status]


async def test_a_slow_head_is_408(stream: trio.SocketStream, autojump_clock: MockClock) -> None:
    await stream.send_all(b"GET / HTTP/1.1\r\n")
    started = trio.current_time()
    answer = await receive_all(stream)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 408
    assert trio.current_time() - started == pytest.approx(HEAD_SECONDS, abs=1.5)


@pytest.mark.parametrize("is_sent_ahead", [False, True])
async def test_a_later_head_has_the_same_time(
    stream: trio.SocketStream, autojump_clock: MockClock, is_sent_ahead: bool
) -> None:
    """The time runs from its first byte on, also when that byte came together with the request before."""
    begun = b"GET / HTTP/1.1\r\n"
    await stream.send_all(GET_DEVICE + begun * is_sent_ahead)
    await receive_answer(stream)
    if not is_sent_ahead:
        await stream.send_all(begun)
    started = trio.current_time()
    answer = await receive_all(stream)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert trio.current_time() - started == pytest.approx(HEAD_SECONDS, abs=1.5)


@pytest.mark.parametrize("is_sent_ahead", [False, True])
async def test_a_later_head_that_drips_does_not_get_more_time(
    stream: trio.SocketStream, autojump_clock: MockClock, is_sent_ahead: bool
) -> None:
    await stream.send_all(GET_DEVICE + b"G" * is_sent_ahead)
    await receive_answer(stream)
    started = trio.current_time()
    for _ in range(5):
        await stream.send_all(b"G")
        await trio.sleep(3)
    assert (await receive_all(stream)).startswith(b"HTTP/1.1 408")
    assert trio.current_time() - started < 20


async def test_a_connection_that_sends_nothing_is_closed_without_an_answer(
    stream: trio.SocketStream, autojump_clock: MockClock
) -> None:
    assert await receive_all(stream) == b""
    assert trio.current_time() == pytest.approx(HEAD_SECONDS, abs=1.5)


async def test_an_idle_kept_connection_is_closed(stream: trio.SocketStream, autojump_clock: MockClock) -> None:
    await stream.send_all(GET_DEVICE)
    await receive_answer(stream)
    started = trio.current_time()
    assert await receive_all(stream) == b""
    assert trio.current_time() - started == pytest.approx(KEEP_ALIVE_SECONDS, abs=1.5)


async def test_a_slow_body_is_408(stream: trio.SocketStream, autojump_clock: MockClock) -> None:
    await stream.send_all(POST + BODY[:5])
    answer = await receive_all(stream)
    assert answer.startswith(b"HTTP/1.1 408")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == "Request Timeout"


# Endings


async def test_connection_close_is_honoured(stream: trio.SocketStream) -> None:
    await stream.send_all(GET_DEVICE_AND_CLOSE)
    assert b"Kitchen light" in await receive_all(stream)


@each_row("sent", [b"", b"GET", POST, POST + BODY[:5], POST + BODY, GET_DEVICE, GET_DEVICE * 50, UPGRADE, b"\x16"])
@each_row("abruptly", [False, True])
async def test_a_peer_that_vanishes_leaves_no_task_and_no_log_entry(
    door: Address, raw: Raw, sent: bytes, abruptly: bool
) -> None:
    with capture_logs() as logs:
        await raw(b"\x16")  # from now on the listener has its task for connections that linger
        await _vanish(door, sent, abruptly=abruptly)
        await wait_all_tasks_blocked(0.01)
        before = trio.lowlevel.current_statistics().tasks_living  # those of the listener wait for other connections
        await _vanish(door, sent, abruptly=abruptly)
        with trio.fail_after(10):
            while trio.lowlevel.current_statistics().tasks_living != before:
                await wait_all_tasks_blocked(0.01)
    assert errors(logs) == []


async def _vanish(door: Address, sent: bytes, *, abruptly: bool) -> None:
    stream = await trio.open_tcp_stream(door.host, door.port)
    await stream.send_all(sent)
    if abruptly:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()
    await wait_all_tasks_blocked(0.01)


async def test_a_failing_websocket_server_ends_only_its_connection(
    services: Services, world: World, nursery: trio.Nursery
) -> None:
    async def fail(_head: bytes, _early: bytes, _stream: trio.abc.Stream) -> None:
        raise RuntimeError("a bug")

    address = await nursery.start(partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=fail))
    async with httpx.AsyncClient(base_url=f"http://{address}/v1.1", headers=bearer(ADA_TOKEN)) as client:
        assert (await client.get("/users/self")).status_code == 200
        with capture_logs() as logs:
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                await stream.send_all(UPGRADE)
                assert await receive_all(stream) == b""
        assert [entry["event"] for entry in errors(logs)] == ["connection_failed"]
        assert (await client.get("/users/self")).status_code == 200


async def test_an_address_in_use_is_an_error(services: Services, door: Address, nursery: trio.Nursery) -> None:
    with pytest.raises(OSError, match="in use"):
        await nursery.start(partial(serve_http, services, door, nursery, websocket=repeat_head))


# Stopping


class Stopping:
    """A listener and its connections in the nurseries of the daemon, and how it stops."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.address = Address("", 0)
        self.stop = trio.Event()
        self.ended = trio.Event()

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as listeners:
                serve = partial(serve_http, self.services, Address("127.0.0.1", 0), connections, websocket=repeat_head)
                self.address = await listeners.start(serve)
                task_status.started()
                await self.stop.wait()
                listeners.cancel_scope.cancel()
            self.services.core.life.stop()
            connections.cancel_scope.deadline = trio.current_time() + self.services.core.settings.grace_seconds
        self.ended.set()


@pytest.fixture
async def stopping(services: Services, world: World, nursery: trio.Nursery) -> Stopping:
    daemon = Stopping(services)
    await nursery.start(daemon.serve)
    return daemon


async def test_a_stop_closes_idle_connections_at_once(stopping: Stopping) -> None:
    async with (
        await trio.open_tcp_stream(stopping.address.host, stopping.address.port) as fresh,
        await trio.open_tcp_stream(stopping.address.host, stopping.address.port) as kept,
    ):
        await kept.send_all(GET_DEVICE)
        await receive_answer(kept)
        stopping.stop.set()
        assert await receive_all(kept) == b""
        assert await receive_all(fresh) == b""
        await stopping.ended.wait()


async def test_a_stop_lets_requests_in_flight_finish(stopping: Stopping) -> None:
    async with await trio.open_tcp_stream(stopping.address.host, stopping.address.port) as stream:
        await stream.send_all(POST + BODY[:5])
        await wait_all_tasks_blocked()
        stopping.stop.set()
        await stopping.services.core.life.stopping.wait()
        await wait_all_tasks_blocked()
        await stream.send_all(BODY[5:])
        answer = await receive_all(stream)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"mid"' in answer
        await stopping.ended.wait()


async def test_a_stop_does_not_wait_longer_than_the_grace_period(stopping: Stopping, autojump_clock: MockClock) -> None:
    async with await trio.open_tcp_stream(stopping.address.host, stopping.address.port) as stream:
        await stream.send_all(POST + BODY[:5])
        await wait_all_tasks_blocked()
        started = trio.current_time()
        stopping.stop.set()
        await stopping.ended.wait()
        assert trio.current_time() - started == pytest.approx(stopping.services.core.settings.grace_seconds)


async def test_a_cancelled_grace_period_does_not_wait_for_a_peer_that_does_not_read(
    autojump_clock: MockClock,
) -> None:
    async def answer_at_length(_scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(50_000_000), "more_body": False})

    life = Life()
    async with AsyncExitStack() as after, trio.open_nursery() as connections:
        listener = HttpListener(
            Hub(connections, life), HypercornAdapter(answer_at_length), new_refusals(), Overhead(), takes_upgrades=False
        )
        serve = partial(
            serve_tcp,
            Address("127.0.0.1", 0),
            partial(serve_http_connection, listener, None, TrustedProxies()),
            protocol="http",
            refusals=new_refusals(),
            life=life,
        )
        address: Address = await connections.start(partial(serve, connections=connections))
        # The client stays open until the server's connection has ended.
        stream = await after.enter_async_context(await trio.open_tcp_stream(address.host, address.port))
        await stream.send_all(GET_DEVICE)
        await wait_all_tasks_blocked()
        life.stop()
        await trio.sleep(10)
        connections.cancel_scope.cancel()
    assert trio.current_time() == 10


# TLS


Secure = tuple[Address, ssl.SSLContext]


@pytest.fixture
async def secure(services: Services, world: World, nursery: trio.Nursery, tmp_path: Path) -> Secure:
    server, client = contexts(tmp_path)
    serve = partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=repeat_head, ssl_context=server)
    return await nursery.start(serve), client


@each_row("connection", ["keep-alive", "close"])
async def test_tls_serves_the_same(secure: Secure, connection: str) -> None:
    address, context = secure
    headers = bearer(KITCHEN_TOKEN) | {"Connection": connection}
    async with httpx.AsyncClient(base_url=f"https://{address}/v1.1", verify=context, headers=headers) as client:
        for _ in range(2):
            answer = await client.post("/messages", content=BODY)
            assert answer.status_code == 200


async def test_tls_hands_over_websockets(secure: Secure) -> None:
    address, context = secure
    async with await trio.open_ssl_over_tcp_stream(
        address.host, address.port, ssl_context=context, https_compatible=True
    ) as stream:
        await stream.send_all(UPGRADE)
        assert await receive_all(stream) == b"websocket: " + UPGRADE


async def test_plain_text_on_the_tls_port_is_closed_without_a_log_entry(secure: Secure) -> None:
    address, _ = secure
    with capture_logs() as logs:
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(GET_DEVICE)
            with suppress(trio.BrokenResourceError):
                assert b"HTTP" not in await receive_all(stream)
    assert errors(logs) == []
